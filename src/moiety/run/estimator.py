"""Estimators for scikit-learn: ``fit`` trains a model for each group of rows, ``predict`` uses that of a row's group.

They wrap ``moiety.fit`` and nothing more. A group is a client, and all its rows are training rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
from torch import nn

from moiety.algorithms import fedalt
from moiety.data import from_arrays
from moiety.errors import must
from moiety.evaluation.predictive import Predictive
from moiety.models import mlp
from moiety.run.fit import fit
from moiety.run.result import Run
from moiety.run.settings import Settings
from moiety.split import Split, output_layer
from moiety.types import Algorithm

ONE = "all rows"
"""The name of the one client where there are no groups."""
MakeModel = Callable[[int, int], nn.Module]
MakeSplit = Callable[[nn.Module], Split]


class _PersonalisedEstimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators share."""

    # Groups are passed on by default, where scikit-learn routes metadata.
    __metadata_request__fit = {"groups": True}  # noqa: RUF012 - scikit-learn reads it
    __metadata_request__predict = {"groups": True}  # noqa: RUF012
    __metadata_request__predict_proba = {"groups": True}  # noqa: RUF012
    __metadata_request__score = {"groups": True}  # noqa: RUF012

    def __init__(
        self,
        algorithm: Algorithm | None = None,
        *,
        model: MakeModel | None = None,
        split: MakeSplit | None = None,
        rounds: int = 100,
        cohort: int | None = None,
        seed: int = 0,
        engine: str = "auto",
        settings: Settings | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.model = model
        self.split = split
        self.rounds = rounds
        self.cohort = cohort
        self.seed = seed
        self.engine = engine
        self.settings = settings

    def _train(self, X: np.ndarray, y: np.ndarray, outputs: int, groups: Any) -> Self:
        """Call ``moiety.fit``, with a client for each group."""
        clients = np.full(len(X), ONE) if groups is None else column_or_1d(groups)
        check_consistent_length(X, clients)
        data = from_arrays({"x": X, "y": y}, client=clients, test=0.0)
        algorithm = fedalt(shared=0.1, personal=0.1) if self.algorithm is None else self.algorithm
        make = (lambda i, o: mlp(i, o, hidden=(32,), seed=self.seed)) if self.model is None else self.model
        model = make(X.shape[1], outputs)
        split = None
        if self.split is not None or algorithm.default_split is None:
            split = (self.split or output_layer)(model)
        self.run_: Run = fit(
            model,
            data,
            algorithm,
            split=split,
            rounds=self.rounds,
            cohort=self.cohort,
            seed=self.seed,
            engine=self.engine,
            settings=Settings(evaluate_every=self.rounds) if self.settings is None else self.settings,
            progress=False,
        )
        self.groups_ = np.unique(clients)
        return self

    def _serve(self, X: Any, groups: Any) -> Iterator[tuple[np.ndarray, Predictive]]:
        """For each group, its rows and what its model says of them; all unseen groups by the shared model."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float32, reset=False)
        names = np.full(len(rows), ONE) if groups is None else column_or_1d(groups)
        check_consistent_length(rows, names)
        clients = [str(name) for name in self.groups_.tolist()]
        places = {name: at for at, name in enumerate(clients)}
        owners = np.array([places.get(str(name), -1) for name in names.tolist()])
        for owner in np.unique(owners):
            own = np.flatnonzero(owners == owner)
            if owner >= 0:
                yield own, self.run_.predictive(clients[owner], {"x": rows[own]})
            else:
                with torch.no_grad():
                    outputs = self.run_.export()(torch.from_numpy(rows[own]))
                yield own, Predictive(outputs.double().cpu().numpy()[None], loss=self.run_._loss)

    def _collect(self, X: Any, groups: Any, read: Callable[[Predictive], np.ndarray]) -> np.ndarray:
        """What ``read`` takes from the predictions, in the order of the rows."""
        parts = [(own, read(each)) for own, each in self._serve(X, groups)]
        order = np.concatenate([own for own, _ in parts])
        values: np.ndarray = np.concatenate([value for _, value in parts])[np.argsort(order)]
        return values


class PersonalisedClassifier(ClassifierMixin, _PersonalisedEstimator):  # type: ignore[misc]
    """A classifier with a model for each group of rows, trained by ``moiety.fit``.

    With ``sklearn.set_config(enable_metadata_routing=True)``, ``cross_val_score``, ``GridSearchCV`` and others pass
    ``groups`` on. Rows of a group that was not there in training are predicted by the shared model.

    Args:
        algorithm: what a builder such as ``moiety.fedalt`` made; by default FedAlt with both rates 0.1.
        model: a function of the numbers of inputs and outputs that makes the model; by default a multilayer perceptron
            with one hidden layer of 32.
        split: a function of the model that says what is shared and what is personal; by default the algorithm's own
            split, or else ``moiety.split.output_layer``.
        rounds: as in ``moiety.fit``.
        cohort: as in ``moiety.fit``.
        seed: as in ``moiety.fit``; the default model has it too.
        engine: as in ``moiety.fit``.
        settings: as in ``moiety.fit``; by default one evaluation, at the end.

    Once it is fitted, ``run_`` is the ``moiety.Run``, ``groups_`` are the groups, and ``classes_`` the labels.

    >>> x, y, sites = np.array([[-1.0], [1.0]] * 20), np.array(["no", "yes"] * 20), np.repeat(["a", "b"], 20)
    >>> y[20:] = np.array(["yes", "no"] * 10)                         # site b codes it the other way round
    >>> fitted = PersonalisedClassifier(rounds=30).fit(x, y, groups=sites)
    >>> fitted.predict([[1.0], [1.0]], groups=["a", "b"]).tolist()
    ['yes', 'no']
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train; ``groups`` has the group of each row. Without it, all rows are of one group."""
        X, y = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        must(len(self.classes_) > 1, "y", "of two classes or more", f"one class, {self.classes_[0]!r}")
        return self._train(X, labels.astype(np.int64), len(self.classes_), groups)

    def predict_proba(self, X: Any, groups: Any = None) -> np.ndarray:
        """The probability of each class of ``classes_``, row by row."""
        return self._collect(X, groups, lambda outputs: outputs.probabilities)

    def predict(self, X: Any, groups: Any = None) -> np.ndarray:
        """The label of each row, by the model of its group."""
        labels: np.ndarray = self.predict_proba(X, groups).argmax(1)
        return np.asarray(self.classes_[labels])

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:
        """The share of rows with the right label."""
        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))


class PersonalisedRegressor(RegressorMixin, _PersonalisedEstimator):  # type: ignore[misc]
    """A regressor with a model for each group of rows, trained by ``moiety.fit`` with the mean squared error.

    Arguments and attributes are those of ``PersonalisedClassifier``. Rates suit features and targets of a size near 1:
    scale them, for instance with ``StandardScaler`` and ``TransformedTargetRegressor``.

    >>> x, sites = np.array([[-1.0], [1.0]] * 20), np.repeat(["a", "b"], 20)
    >>> y = np.where(sites == "a", x[:, 0], -x[:, 0])                 # at site b it goes the other way round
    >>> fitted = PersonalisedRegressor(rounds=30).fit(x, y, groups=sites)
    >>> fitted.predict([[1.0], [1.0]], groups=["a", "b"]).round(1).tolist()
    [1.0, -1.0]
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train; ``groups`` has the group of each row. Without it, all rows are of one group."""
        X, y = validate_data(self, X, y, dtype=np.float32, y_numeric=True)
        return self._train(X, np.asarray(y, dtype=np.float32), 1, groups)

    def predict(self, X: Any, groups: Any = None) -> np.ndarray:
        """The number predicted for each row, by the model of its group."""
        return self._collect(X, groups, lambda outputs: outputs.mean[:, 0])

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:
        """The coefficient of determination, R2."""
        return float(r2_score(y, self.predict(X, groups), sample_weight=sample_weight))
