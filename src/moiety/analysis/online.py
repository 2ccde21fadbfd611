"""Online learning: the loss incurred so far, and the regret against the best pair in hindsight.

Equation (1) of "Global and Local Learning for Distributed Personalization": the mean over clients and rounds of
lambda_i (l_{i,t}(w^g_t, w_{i,t}) - l_{i,t}(u^g, u_i)) for the pairs (u^g, u_i) that are best for all that was seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moiety.data import FederatedData
from moiety.errors import must
from moiety.split.two_parts import check_features
from moiety.types import RoundRecord

if TYPE_CHECKING:
    from moiety.run.result import Run

Floats = NDArray[np.float64]

_NOTHING = 1e-9
"""Singular values below this share of the largest count as 0."""


@dataclass
class OnlineLoss:
    """Collects the loss of every round, each at the parameters that predicted; for ``fit(callbacks=[...])``.

    >>> online = OnlineLoss([4.0, 2.0, 0.0])
    >>> online.cumulative.tolist(), online.regret(0.5).tolist()
    ([4.0, 6.0, 6.0], [3.5, 2.5, 1.5])
    """

    losses: list[float] = field(default_factory=list)

    def __call__(self, run: Run, record: RoundRecord) -> None:
        """After a round: its mean over clients, weighted by lambda_i."""
        self.losses.append(record.train_loss)

    @property
    def cumulative(self) -> Floats:
        """The sum up to each round."""
        return np.cumsum(np.asarray(self.losses, dtype=np.float64))

    def regret(self, best: float) -> Floats:
        """The mean loss up to each round minus the ``best`` that one pair would have had."""
        return np.asarray(self.cumulative / np.arange(1, len(self.losses) + 1) - best)


@dataclass(frozen=True)
class BestPair:
    """u^g [features, outputs], u_i of every client, and their mean loss; a constant is the last feature of each."""

    shared: Floats
    personal: list[Floats]
    loss: float


def best_pair(
    data: FederatedData,
    *,
    global_features: Sequence[int] | None = None,
    local_features: Sequence[int] | None = None,
    constant: bool = True,
    weights: Sequence[float] | None = None,
) -> BestPair:
    """The linear pair of least squared loss over whole passes through the training rows, in closed form.

    Minimises sum_i lambda_i mean (y - u^g . x^g - u_i . x^l)^2 / sum_i lambda_i. For each u^g the best u_i is least
    squares on the residual, so u^g is least squares on what the local features of every client cannot explain.

    Args:
        data: with columns ``x`` and ``y``; labels of more than two classes are regressed one versus all, summed.
        global_features: columns of ``x`` that the shared model sees; all by default.
        local_features: likewise for the personal models.
        constant: whether both models have a constant as well.
        weights: lambda_i; 1 each by default.
    """
    for name in ("x", "y"):
        must(name in data.columns, "data", f"columns with {name}", ", ".join(data.columns))
    count = len(data)
    lam = np.ones(count) if weights is None else np.asarray(weights, dtype=np.float64)
    fits = lam.shape == (count,) and bool((lam >= 0).all()) and lam.sum() > 0
    must(fits, "weights", f"{count} numbers >= 0, not all 0", weights)
    width = int(np.prod(data.columns["x"].shape[1:]))
    features = {"global_features": global_features, "local_features": local_features}
    sides = [range(width) if some is None else check_features(name, some, width) for name, some in features.items()]
    parts = [_read_client(data, i, sides, constant) for i in range(count)]
    rows = []
    for (g, own, y), weight in zip(parts, lam, strict=True):
        root = np.sqrt(weight / len(y))
        rows.append([root * (z - own @ (np.linalg.pinv(own) @ z)) for z in (g, y)])
    left, right = (np.concatenate([r[k] for r in rows]) for k in (0, 1))
    size = max(np.linalg.norm(g, 2) / np.sqrt(len(y)) for g, _, y in parts)
    u = _solve_least_squares(left, right, _NOTHING * size * np.sqrt(lam.max()))
    v = [np.linalg.pinv(own) @ (y - g @ u) for g, own, y in parts]
    losses = [((y - g @ u - own @ w) ** 2).sum(1).mean() for (g, own, y), w in zip(parts, v, strict=True)]
    return BestPair(u, v, float(np.average(losses, weights=lam)))


def _solve_least_squares(x: Floats, y: Floats, least: float) -> Floats:
    """The shortest solution, in the directions whose singular value is above ``least``.

    Directions that local features explain fully have singular values of rounding errors only.
    """
    left, values, right = np.linalg.svd(x, full_matrices=False)
    inverse = np.where(values > least, 1 / np.where(values > least, values, 1), 0)
    return np.asarray(right.T @ (inverse[:, None] * (left.T @ y)))


def _read_client(
    data: FederatedData, client: int, sides: Sequence[Sequence[int]], constant: bool
) -> tuple[Floats, Floats, NDArray[Any]]:
    """Global features, local features and targets [rows, outputs] of one client."""
    columns = data.at(client)
    x = np.asarray(columns["x"], dtype=np.float64).reshape(len(columns["y"]), -1)
    y = np.asarray(columns["y"])
    several = data.classes is not None and data.classes > 2
    targets = (y[:, None] == np.arange(data.classes or 0)) if several else y.reshape(len(y), -1)
    ones = np.ones((len(x), 1 if constant else 0))
    g, own = (np.hstack([x[:, list(some)], ones]) for some in sides)
    return g, own, targets.astype(np.float64)
