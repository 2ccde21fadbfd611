"""One way of training against another, from rows made by hand."""

from __future__ import annotations

import math

import pytest

from moiety.analysis.versus import PersonalPart, against_parameters, average, differences
from moiety.errors import MoietyError


def run(*metrics):
    """Clients with 1, 2, 3, ... test rows."""
    return [{"client": str(i), "n": 9, "n_test": i + 1, "metric": m} for i, m in enumerate(metrics)]


def test_averages():
    assert average(run(0.5, 0.8)) == pytest.approx((0.5 + 2 * 0.8) / 3)
    assert average(run(0.5, 0.8), weighted=False) == pytest.approx(0.65)
    tokens = [{"client": "a", "n_test": 1, "metric": 0.5, "weight": 30.0}, {"n_test": 3, "metric": 1.0, "weight": 10.0}]
    assert average(tokens) == pytest.approx(0.625)
    silent = [*tokens, {"n_test": 2, "metric": math.nan, "weight": 0.0}]
    assert average(silent) == pytest.approx(0.625)
    with pytest.raises(MoietyError, match="at least one client with test rows"):
        average([{"n_test": 0, "metric": math.nan}])


def test_after_minus_before_finetuning():
    """Seeds with means 0.5 -> 0.6 and 0.5 -> 0.8: differences 0.1 and 0.3, std 0.1 sqrt 2, half 12.706 * 0.1."""
    rows = differences({"output layer": ([run(0.6), run(0.8)], [run(0.5), run(0.5)])})
    (row,) = rows
    assert (row["row"], row["seeds"]) == ("output layer", 2)
    assert row["each"] == pytest.approx([0.1, 0.3])
    numbers = [row[key] for key in ("new", "old", "difference", "std", "low", "high")]
    assert numbers == pytest.approx([0.7, 0.5, 0.2, math.sqrt(0.02), 0.2 - 1.2706, 0.2 + 1.2706], abs=1e-4)


def test_the_sign_follows_the_metric_and_the_mean_the_weights():
    pair = {"x": ([run(2.0, 1.0)], [run(1.0, 1.5)])}
    (row,) = differences(pair, higher_is_better=False)
    # weighted: (2 + 2) / 3 against (1 + 3) / 3; plain: 1.5 against 1.25
    assert row["difference"] == pytest.approx(0)
    (row,) = differences(pair, higher_is_better=False, weighted=False)
    assert (row["difference"], row["std"], row["low"]) == (-0.25, None, None)


def test_seeds_must_pair_up():
    with pytest.raises(MoietyError, match="2 and 1 for x"):
        differences({"x": ([run(1.0), run(1.0)], [run(1.0)])})


def test_against_parameters_is_ordered_by_size():
    """Of the 14 points that all 5,731,092 parameters gain, an output layer of 788,736 gains 12: six sevenths."""
    old = [run(0.5)]
    parts = {
        "everything": PersonalPart(5_731_092, 5_731_092, [run(0.64)], old),
        "adapter": (71_808, 5_798_804, [run(0.6)], old),
        "output layer": PersonalPart(788_736, 5_731_092, [run(0.62)], old),
    }
    rows = against_parameters(parts)
    assert [row["row"] for row in rows] == ["adapter", "output layer", "everything"]
    assert [row["share"] for row in rows] == pytest.approx([0.012383, 0.137624, 1], abs=1e-6)
    assert [row["boost"] for row in rows] == pytest.approx([10 / 14, 12 / 14, 1])
    assert against_parameters({"worse": (1, 2, [run(0.4)], old)})[0]["boost"] is None
