"""Hurt or unlucky: the interval of one client's change, against counting by hand and scipy's own tests."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, ttest_rel

import moiety as mo
from moiety.analysis import judge_clients
from moiety.errors import MoietyError
from moiety.evaluation.paired import RowScores, measure_change


def outcomes(wins, losses, ties=3):
    """Scores of two models that disagree on ``wins + losses`` rows."""
    new = np.array([1.0] * wins + [0.0] * losses + [1.0] * ties)
    old = np.array([0.0] * wins + [1.0] * losses + [1.0] * ties)
    return new, old


def test_right_and_wrong_by_hand():
    """One-sided: five losses to none (1/2)^5 = 0.031, six 0.016; seven to one 9/256 = 0.035, eight 10/512 = 0.0195."""
    assert not measure_change(*outcomes(0, 5)).hurt_beyond_noise
    assert measure_change(*outcomes(0, 6)).hurt_beyond_noise
    assert not measure_change(*outcomes(1, 7)).hurt_beyond_noise
    assert measure_change(*outcomes(1, 8)).hurt_beyond_noise
    assert measure_change(*outcomes(6, 0)).helped_beyond_noise
    assert measure_change(*outcomes(0, 1)).hurt
    assert not measure_change(*outcomes(0, 1)).hurt_beyond_noise
    assert measure_change(*outcomes(2, 2))[:1] == (0.0,)
    assert measure_change(*outcomes(0, 0)) == (0.0, 0.0, 0.0, 3)


def test_the_interval_lies_below_zero_where_the_exact_test_rejects():
    for wins, losses in product(range(12), range(1, 12)):
        p = binomtest(wins, wins + losses, alternative="less").pvalue
        change = measure_change(*outcomes(wins, losses))
        assert change.hurt_beyond_noise == (p <= 0.025), (wins, losses)
        exact = binomtest(wins, wins + losses).proportion_ci(0.95)
        rows = wins + losses + 3
        assert change.low == pytest.approx((2 * exact.low - 1) * (wins + losses) / rows)
        assert change.high == pytest.approx((2 * exact.high - 1) * (wins + losses) / rows)


def test_other_scores_by_student():
    rng = np.random.default_rng(0)
    new, old = rng.normal(size=9), rng.normal(size=9)
    change, theirs = measure_change(new, old), ttest_rel(new, old).confidence_interval(0.95)
    assert change[:3] == pytest.approx((float((new - old).mean()), theirs.low, theirs.high))
    flipped = measure_change(new, old, higher_is_better=False)
    assert flipped[:3] == pytest.approx((-change.mean, -change.high, -change.low))
    assert measure_change(np.array([1.5]), np.array([2.0]))[:3] == (-0.5, -math.inf, math.inf)


def test_weights_count_rows_as_often():
    """Weights 1 and 3: mean of 0.5 and -0.5 is -0.25; residuals 0.5 (0.75), 1.5 (-0.25); error sqrt(0.28125 / 2)."""
    change = measure_change(np.array([1.0, 0.5]), np.array([0.5, 1.0]), np.array([1.0, 3.0]))
    assert change.mean == pytest.approx(-0.25)
    assert change.high - change.mean == pytest.approx(12.7062 * math.sqrt(0.28125 / 2), rel=1e-5)
    assert measure_change(np.array([1.0, 0.5]), np.array([0.5, 0.5]), np.array([0.0, 1.0])).mean == 0
    assert measure_change(np.zeros(0), np.zeros(0)).rows == 0


@pytest.mark.parametrize("rows", [7, 40])
def test_at_most_one_in_forty_is_called_hurt_where_nobody_is(rows):
    """Two models that are right equally often: the exact interval is beyond zero in at most 2.5% of the draws."""
    rng = np.random.default_rng(rows)
    flags = [measure_change(*(rng.random((2, rows)) < 0.7).astype(float)).hurt_beyond_noise for _ in range(1500)]
    assert np.mean(flags) <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / 1500)


def test_clients_are_judged_one_by_one():
    def scores(metric):
        return RowScores(np.zeros(len(metric)), np.array(metric, dtype=float), np.ones(len(metric)))

    new = {"a": scores([0] * 6), "b": scores([1, 1, 0]), "c": scores([])}
    old = {"a": scores([1] * 6), "b": scores([1, 1, 1]), "c": scores([])}
    rows = judge_clients(new, old)
    assert [(r["client"], r["n_test"], r["hurt"], r["hurt_beyond_noise"]) for r in rows] == [
        ("a", 6, True, True),
        ("b", 3, True, False),
    ]
    assert rows[1]["change"] == pytest.approx(-1 / 3)
    with pytest.raises(MoietyError, match=r"`clients` must be the same on both sides, got \['a'\] on one only"):
        judge_clients({}, {"a": scores([1])})
    with pytest.raises(MoietyError, match="`scores` must be one a row"):
        measure_change(np.zeros(2), np.zeros(3))


def test_scores_of_rows_have_the_means_that_a_run_reports():
    fed = mo.data.load("digits", clients=4, per_client=20, validation=0.2, seed=0)
    model = mo.models.mlp(64, 10, hidden=(8,), seed=0)
    run = mo.fit(model, fed, mo.fedalt(shared=0.1, personal=0.1), split=mo.split.output_layer(model), rounds=2)
    own, shared = run.score_rows(), run.score_rows(shared=True)
    for row in run.clients:
        client = row["client"]
        assert own[client].metric.mean() == pytest.approx(row["metric"])
        assert own[client].loss.mean() == pytest.approx(row["loss"])
        assert shared[client].metric.mean() == pytest.approx(row["shared_metric"])
        assert len(own[client].metric) == row["n_test"]
    outputs = run.export("0")(torch.as_tensor(fed.at("0", "test")["x"])).argmax(-1).numpy()
    assert own["0"].metric.tolist() == (outputs == fed.at("0", "test")["y"]).astype(float).tolist()
