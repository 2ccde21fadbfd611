"""Factors by hand, from the facts of the authors' program: t / (0.1 T) while t < 0.1 T, then (T - t) / (0.9 T)."""

import numpy as np
import pytest
from oracle_problems import federated, scalar_task, split_of

import moiety as mo
from moiety.errors import MoietyError
from moiety.types import Schedule


def test_linear_by_hand():
    """T = 20: the rise is 2 rounds, 0 and 1/2, the top at t = 2 is 18/18, then 17/18 down to 1/18 at t = 19."""
    factor = mo.schedule.linear().factor
    factors = [0, 1 / 2, *((20 - t) / 18 for t in range(2, 20))]
    assert [factor(t, 20) for t in range(20)] == pytest.approx(factors, rel=1e-14)
    assert factor(20, 20) == 0
    assert max(factor(t, 1000) for t in range(1000)) == 1 == factor(100, 1000)


def test_linear_where_the_rise_is_no_whole_number():
    """T = 15, rise 1.5: t = 1 is still rising, 1/1.5; t = 2 is 13/13.5."""
    factor = mo.schedule.linear().factor
    assert [factor(t, 15) for t in (0, 1, 2, 14)] == pytest.approx([0, 2 / 3, 13 / 13.5, 1 / 13.5], rel=1e-14)


def test_linear_without_warm_up_starts_at_the_top():
    factor = mo.schedule.linear(warmup=0.0).factor
    assert [factor(t, 4) for t in range(4)] == [1, 0.75, 0.5, 0.25]


def test_exponential_by_hand():
    factor = mo.schedule.exponential(halve_every=500).factor
    assert [factor(t, 2000) for t in (0, 499, 500, 999, 1000, 1999)] == [1, 1, 0.5, 0.5, 0.25, 0.125]


def test_constant():
    assert {mo.schedule.constant().factor(t, 7) for t in range(7)} == {1.0}


@pytest.mark.parametrize("wrong", [-0.1, 1.0])
def test_warm_up_is_checked(wrong):
    with pytest.raises(MoietyError, match=r"^`warmup` must be >= 0 and < 1"):
        mo.schedule.linear(warmup=wrong)
    with pytest.raises(MoietyError, match=r"^`halve_every` must be >= 1"):
        mo.schedule.exponential(halve_every=0)


@pytest.mark.parametrize("build", [mo.fedalt, mo.fedsim], ids=["fedalt", "fedsim"])
def test_the_factor_is_on_both_client_rates(build):
    """One client, one row (a, b, y) = (1, 0, 1) and (0, 1, 1) with u and v apart: dF/du = (u - 1)/2, dF/dv = (v - 1)/2.

    Rates 1 and 1/2, factors 1, 1/2, 1/4: 1 - u is multiplied by 1 - f/2, so 1/2 * 3/4 * 7/8 = 21/64; 1 - v by 1 - f/4,
    so 3/4 * 7/8 * 15/16 = 315/512.
    """
    data = federated([{"a": np.array([1.0, 0]), "b": np.array([0, 1.0]), "y": np.ones(2)}])
    algorithm = build(shared=1.0, personal=0.5, schedule=mo.schedule.exponential(halve_every=1))
    run = mo.fit(scalar_task(0.0, 0.0), data, algorithm, split=split_of(["u"], ["v"]), rounds=3, engine="sequential")
    params = run.parameters(0)
    assert (float(params["u"]), float(params["v"])) == pytest.approx((1 - 21 / 64, 1 - 315 / 512), rel=1e-14)


def test_the_schedule_is_told_the_round_from_0_and_the_rounds_asked_for():
    calls = []
    own = Schedule(lambda t, rounds: calls.append((t, rounds)) or 1.0)
    data = federated([{"a": np.ones(1), "b": np.ones(1), "y": np.ones(1)}])
    algorithm = mo.fedalt(shared=0.1, personal=0.1, schedule=own)
    mo.fit(scalar_task(), data, algorithm, split=split_of(["u"], ["v"]), rounds=3, engine="sequential")
    assert calls == [(0, 3), (1, 3), (2, 3)]


def test_a_schedule_of_ones_own_can_be_used_in_a_run_with_a_folder(tmp_path):
    """It cannot be written to a configuration, but that must not stop the run."""
    data = federated([{"a": np.ones(1), "b": np.ones(1), "y": np.ones(1)}])
    algorithm = mo.fedalt(shared=0.1, personal=0.1, schedule=Schedule(lambda t, rounds: 1.0))
    split = split_of(["u"], ["v"])
    run = mo.fit(scalar_task(), data, algorithm, split=split, rounds=1, engine="sequential", out=tmp_path / "run")
    assert run.history[-1]["round"] == 1
