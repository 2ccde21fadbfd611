"""Intervals at FedPop's defaults against the exact posterior: ``benchmarks/coverage.py`` at a small size.

One population of each shape has 80 clients, and its u begins near the truth to save rounds. It says little about
coverage of the function (the standard error is 4 points or more). So the gate looks at what has less chance in it: the
width of intervals, the distance of their centres from the exact posterior mean, and the coverage of observations, which
is a probability and no count. The full size is ``python -m benchmarks.coverage``; docs/uncertainty.md has its numbers.
"""

import functools
import importlib.util
from pathlib import Path

import numpy as np
import pytest

import moiety as mo

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "coverage.py"
spec = importlib.util.spec_from_file_location("coverage_program", PROGRAM)
coverage = importlib.util.module_from_spec(spec)
spec.loader.exec_module(coverage)
SEED, DRAWS = 1000, 30


@functools.cache
def measure(shape):
    population, new = coverage.draw_population(coverage.SHAPES[shape], 80, SEED)
    run = coverage.fit_population(population, 50, SEED, start=population.u + 0.05)
    groups = {"known": population, "new": new}
    predictions = {
        key: coverage.predict_group(run, group, DRAWS, SEED, new=key == "new") for key, group in groups.items()
    }
    return run, groups, predictions


@pytest.fixture(scope="module")
def measurement():
    return measure("slopes")


@pytest.mark.parametrize("group", ["known", "new"])
@pytest.mark.parametrize("shape", ["intercepts", "slopes", "correlated"])
def test_intervals_are_those_of_the_exact_posterior(shape, group):
    """Widths: 80 clients with 8 places of 30 draws leave about 2%, what was learned of sigma and s some 6%.

    Centres: the mean of 30 draws is off by 1 / sqrt(30) = 0.18 posterior deviations, and u, learned from 680 rows, by
    0.02 in each of its two numbers, which is some 0.1 of them. Observations: given what was learned, their coverage has
    a standard error of 1.3 points. The function of ``intercepts`` is held everywhere or nowhere by a client's interval:
    a standard error of 5.6 points.
    """
    _, groups, predictions = measure(shape)
    rows = coverage.measure_group(groups[group], predictions[group])
    assert rows["short"] == 0
    for level, cells in rows["levels"].items():
        assert cells["function_width"][0] == pytest.approx(1.0, abs=0.2)
        assert cells["observations_width"][0] == pytest.approx(1.0, abs=0.15)
        assert cells["observations"][0] == pytest.approx(float(level), abs=0.06)
        assert cells["function"][0] == pytest.approx(float(level), abs=0.15)
    errors, variances = [], []
    for at, (prediction, a, b) in enumerate(predictions[group]):
        mean, covariance = coverage.solve_posterior(groups[group], at)
        errors.append(prediction.mean[:, 0] - a @ groups[group].u - b @ mean)
        variances.append(np.einsum("nd,de,ne->n", b, covariance, b))
    assert np.sqrt(np.mean(np.square(errors)) / np.mean(variances)) < 0.4


def test_a_run_predicts_with_these_draws(measurement):
    """One client at a time, by ``run.predictive``, as in blocks."""
    run, groups, predictions = measurement
    for group, who in (("known", 3), ("new", groups["new"].clients[3])):
        prediction, a, b = predictions[group][3]
        one = run.predictive(who, {"a": a, "b": b}, draws=DRAWS)
        np.testing.assert_allclose(one.outputs, prediction.outputs, rtol=1e-6, atol=1e-8)
        assert one.effective == DRAWS
        assert one.noise == pytest.approx(float(run.broadcast()["noise:log_scale"].exp()))
        wide, narrow = one.interval(0.8, of="observations"), one.interval(0.8)
        assert (wide[0] < narrow[0]).all()
        assert (wide[1] > narrow[1]).all()


def test_a_client_without_data_has_independent_draws(measurement):
    run = measurement[0]
    x = {"a": np.zeros((1, 2)), "b": np.array([[1.0, 0.0]])}
    prediction = run.predictive(None, x, draws=500)
    assert prediction.outputs.shape[0] == prediction.effective == 500
    scale = float(run.broadcast()["prior:log_scale"].exp())
    assert prediction.outputs.std() == pytest.approx(scale, rel=6.5 / np.sqrt(1000))


def test_kept_draws_that_are_worth_little_are_named(measurement):
    run = measurement[0]
    x = {"a": np.zeros((1, 2)), "b": np.ones((1, 2))}
    rows = [row["effective_draws"] for row in run.clients]
    assert len(rows) == 80
    assert np.median(rows) < 19
    worst = int(np.argmin(rows))
    with pytest.warns(UserWarning, match=r"20 draws are worth .* independent ones, an interval of level 0.9 needs 19"):
        run.predictive(worst, x).interval(0.9)


def test_what_cannot_be_drawn_is_said(monkeypatch):
    """Steps of 1e-9 make a random walk: 400 of them, the most that are tried here, are not worth 20 draws."""
    monkeypatch.setattr("moiety.run.draws.LONGEST", 20)
    data = mo.data.from_clients({"a": {"x": np.ones((4, 1)), "y": np.arange(4.0)[:, None]}}, test=0.0)
    net = mo.models.linear(1, 1, seed=0).double()
    split = mo.split.by_name(net, personal=["head.bias"])
    algorithm = mo.fedpop(shared=1e-9, personal=mo.kernel.langevin(step=1e-9), learn_prior=False, noise=1.0)
    run = mo.fit(net, data, algorithm, split=split, rounds=1, engine="sequential")
    with pytest.warns(UserWarning, match="of 20 draws are effective after the longest chain"):
        prediction = run.predictive("a", np.ones((2, 1)), draws=20)
    assert prediction.effective < 20
    with pytest.raises(mo.MoietyError, match="`draws` must be >= 1"):
        run.predictive("a", np.ones((2, 1)), draws=0)
