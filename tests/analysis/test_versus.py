"""Client by client: signs, rounding, and clients that are missing on one side."""

from __future__ import annotations

import math

import pytest

from moiety.errors import MoietyError
from moiety.reports.versus import column, higher_is_better, mean, versus


def test_signs_follow_the_metric():
    new, old = {"a": 2.0, "b": 1.0, "c": 3.0}, {"a": 1.0, "b": 1.5, "c": 3.0}
    up, down = (versus(new, old, higher_is_better=h) for h in (True, False))
    assert (up.helped, up.unchanged, up.hurt) == (("a",), ("c",), (("b", -0.5),))
    assert (down.helped, down.unchanged, down.hurt) == (("b",), ("c",), (("a", -1.0),))
    assert up.mean == -down.mean == pytest.approx(0.5 / 3)


def test_single_precision_is_no_gain():
    sevenths = {str(k): k / 7 for k in range(8)}
    single = {"0": 0.0, "5": 0.7142857313156128, "4": 0.5714285969734192}
    result = versus(single, sevenths, higher_is_better=True)
    assert (result.unchanged, result.helped, result.hurt) == (("0", "5", "4"), (), ())
    assert result.mean == 0


def test_the_one_that_lost_most_comes_first():
    result = versus({"a": 0.4, "b": 0.1, "c": 0.3}, {"a": 0.5, "b": 0.5, "c": 0.5}, higher_is_better=True)
    assert [name for name, _ in result.hurt] == ["b", "c", "a"]


def test_only_clients_on_both_sides_count():
    result = versus({"a": 1.0, "b": math.nan, "c": 1.0}, {"a": 0.0, "b": 1.0, "d": 1.0}, higher_is_better=True)
    assert (result.clients, result.helped) == (1, ("a",))
    assert math.isnan(versus({}, {}, higher_is_better=True).mean)
    assert math.isnan(mean([]))


def test_untested_clients_are_left_out():
    rows = [{"client": "a", "n_test": 2, "metric": 0.5}, {"client": "b", "n_test": 0, "metric": math.nan}]
    assert column(rows) == {"a": 0.5}


def test_direction_is_known_or_seen_or_refused():
    assert higher_is_better("accuracy")
    assert not higher_is_better("mse")
    assert not higher_is_better("loss")
    row = {"gain": -0.1, "metric": 0.4, "shared_metric": 0.5}
    assert higher_is_better("mine", [row])
    assert not higher_is_better("mine", [{**row, "gain": 0.1}])
    with pytest.raises(MoietyError, match="shows its direction"):
        higher_is_better("mine", [{**row, "gain": 0.0}])
