"""The estimators of scikit-learn against ``moiety.fit`` called by hand, and against scikit-learn's own checks."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
import torch
from night import NIGHTLY
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.utils.estimator_checks import estimator_checks_generator

import moiety as mo

ROUNDS = 4
PICKLE = "a run holds functions, which cannot be pickled; save it with moiety.fit(out=...)"
UNSCALED = "its targets are in the hundreds, where the default rate of 0.1 diverges"
DO_NOT_APPLY = {
    "PersonalisedClassifier": {"check_estimators_pickle": PICKLE},
    "PersonalisedRegressor": {
        "check_estimators_pickle": PICKLE,
        "check_regressor_data_not_an_array": UNSCALED,
        "check_fit_idempotent": UNSCALED,
    },
}
SAMPLE = (
    "check_estimator_cloneable",
    "check_estimators_overwrite_params",
    "check_estimators_unfitted",
    "check_estimators_nan_inf",
    "check_n_features_in_after_fitting",
    "check_no_attributes_set_in_init",
    "check_dont_overwrite_attributes",
    "check_classifiers_one_label",
    "check_classifiers_classes",
    "check_supervised_y_2d",
)


@pytest.fixture
def patients():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    sites = np.repeat([3, 7, 20], 20)
    labels = np.where((x[:, 0] > 0) ^ (sites == 7), "ill", "well")
    return x, labels, sites


@pytest.mark.parametrize("names", [lambda site: site, lambda site: np.array([f"site {s}" for s in site])])
def test_the_classifier_is_fit_by_hand(patients, names):
    x, labels, sites = patients
    groups = names(sites)
    algorithm = mo.fedalt(shared=0.3, personal=0.2)
    estimator = mo.PersonalisedClassifier(algorithm, rounds=ROUNDS, seed=5, engine="sequential")
    assert estimator.fit(x, labels, groups=groups) is estimator
    model = mo.models.mlp(3, 2, hidden=(32,), seed=5)
    y = (labels == "well").astype(int)
    fed = mo.data.from_arrays({"x": x.astype("float32"), "y": y}, client=groups, test=0.0)
    split = mo.split.output_layer(model)
    run = mo.fit(model, fed, algorithm, split=split, rounds=ROUNDS, seed=5, engine="sequential")
    expected = np.empty(60, dtype=int)
    for group in np.unique(groups):
        expected[groups == group] = run.predict(str(group), {"x": x[groups == group].astype("float32")})
    shuffle = np.random.default_rng(1).permutation(60)
    predictions = estimator.predict(x[shuffle], groups=groups[shuffle])
    assert predictions.tolist() == np.array(["ill", "well"])[expected[shuffle]].tolist()
    assert estimator.score(x, labels, groups=groups) == np.mean(y == expected)


def test_the_regressor_is_fit_by_hand_and_unseen_groups_have_the_shared_model(patients):
    x, _, sites = patients
    y = x[:, 0] + sites / 10
    estimator = mo.PersonalisedRegressor(
        rounds=ROUNDS, model=mo.models.linear, split=lambda m: mo.split.by_name(m, personal=["head.bias"])
    )
    estimator.fit(x, y, groups=sites)
    model = mo.models.linear(3, 1)
    fed = mo.data.from_arrays({"x": x.astype("float32"), "y": y.astype("float32")}, client=sites, test=0.0)
    split = mo.split.by_name(model, personal=["head.bias"])
    run = mo.fit(model, fed, mo.fedalt(shared=0.1, personal=0.1), split=split, rounds=ROUNDS)
    rows = torch.from_numpy(x[:4].astype("float32"))
    with torch.no_grad():
        new, own = run.export()(rows)[:, 0].numpy(), run.export("7")(rows)[:, 0].numpy()
    assert estimator.predict(x[:4], groups=[1, 2, 1, 2]) == pytest.approx(new, rel=1e-6)
    assert estimator.predict(x[:4], groups=[7, 7, 7, 7]) == pytest.approx(own, rel=1e-6)
    assert abs(new - own).max() > 1e-3


def test_groups_are_routed_to_folds_fit_and_score(patients):
    """Each fold by hand: trained without one site, that site by the shared model."""
    x, labels, sites = patients
    estimator = mo.PersonalisedClassifier(rounds=2)
    with sklearn.config_context(enable_metadata_routing=True):
        scores = cross_val_score(estimator, x, labels, cv=GroupKFold(3), params={"groups": sites})
    by_hand = []
    for train, test in GroupKFold(3).split(x, labels, sites):
        model = clone(estimator).fit(x[train], labels[train], groups=sites[train])
        with torch.no_grad():
            best = model.run_.export()(torch.from_numpy(x[test].astype("float32"))).argmax(1).numpy()
        by_hand.append(np.mean(model.classes_[best] == labels[test]))
    assert scores.tolist() == by_hand


def checks(estimator):
    """Those of scikit-learn that apply, or a sample of them."""
    exclusions = DO_NOT_APPLY[type(estimator).__name__]
    for each, check in estimator_checks_generator(estimator):
        name = getattr(check, "func", check).__name__
        if name not in exclusions and (NIGHTLY or name in SAMPLE):
            yield pytest.param(each, check, id=f"{type(estimator).__name__} {name}")


ESTIMATORS = (mo.PersonalisedClassifier(rounds=30), mo.PersonalisedRegressor(rounds=30))


@pytest.mark.parametrize(("estimator", "check"), [case for each in ESTIMATORS for case in checks(each)])
@pytest.mark.filterwarnings("ignore")
def test_checks_of_scikit_learn(estimator, check):
    if not NIGHTLY:
        estimator = clone(estimator).set_params(rounds=2)
    check(estimator)
