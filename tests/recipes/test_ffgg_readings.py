"""The recipe ffgg-readings: its rounds by linear algebra against ``moiety.fit``, its problem against the rows."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest

import moiety as mo
from moiety.random import generator
from moiety_recipes import ffgg_figure1_limits as limits
from moiety_recipes import ffgg_figure1_rounds as rounds
from moiety_recipes.ffgg_figure1_problem import Size, build_split, build_task, deal, draw_problem, draw_uniform

SMALL = Size(clients=3, rows=40, shared=4, personal=3)
PROBLEMS = {"planted": draw_problem(SMALL, 5), "uniform": draw_uniform(SMALL, 5)}
ROUNDS, TAU = 6, 7
BOTH = pytest.mark.parametrize("draw", list(PROBLEMS))


def fit(problem, algorithm, *, personal, curvature=False):
    """theta and the mean loss after ROUNDS, by the library."""
    run = mo.fit(
        build_task(problem, curvature=curvature),
        deal(problem),
        algorithm,
        split=build_split(problem, personal=personal),
        rounds=ROUNDS,
        engine="sequential",
        progress=False,
        settings=mo.Settings(evaluate_on="train", evaluate_every=ROUNDS, on_divergence="warn"),
    )
    return run.shared_parameters()["theta"].numpy(), run.history[-1]["loss"]


def check(problem, states, expected):
    theta, models = next(itertools.islice(states, ROUNDS, None))
    np.testing.assert_allclose(theta, expected[0], rtol=1e-9, atol=1e-12)
    assert limits.error(problem, models) == pytest.approx(expected[1], rel=1e-9)


@BOTH
def test_ffgg_is_what_fit_does(draw):
    problem = PROBLEMS[draw]
    step = 1 / problem.cocoercive()
    solver = mo.sgd(1 / problem.smooth_in_w(), steps=TAU)
    check(problem, rounds.ffgg(problem, step, TAU), fit(problem, mo.ffgg(shared=step, personal=solver), personal=True))
    exact = fit(problem, mo.ffgg(shared=step, personal=mo.solver.exact()), personal=True, curvature=True)
    check(problem, rounds.ffgg_exact(problem, step), exact)
    for steps in (1, 2, 3, 5):
        solver = mo.solver.conjugate_gradient(steps=steps, tolerance=0.0)
        expected = fit(problem, mo.ffgg(shared=step, personal=solver), personal=True, curvature=True)
        check(problem, rounds.ffgg_by_cg(problem, step, steps), expected)


@BOTH
def test_one_model_for_all_is_what_fit_does(draw):
    problem = PROBLEMS[draw]
    lr = 1 / (problem.smooth() * TAU)
    expected = fit(problem, mo.local_gd(shared=mo.sgd(lr, steps=TAU)), personal=False)
    check(problem, rounds.local_gd(problem, lr, TAU), expected)
    work = mo.sgd(lr, steps=TAU, batch_size="all")
    expected = fit(problem, mo.scaffold(shared=work, server=mo.server.sgd(lr=0.5)), personal=False)
    check(problem, rounds.scaffold(problem, lr, TAU, 0.5), expected)


@BOTH
def test_l2gd_is_what_fit_does(draw, monkeypatch):
    problem = PROBLEMS[draw]
    p, pull = 1 / TAU, 0.1
    lr = 1 / (2 * max(problem.smooth() / (1 - p), pull / p))
    monkeypatch.setattr(sys.modules["moiety.algorithms.l2gd"], "toss_coins", lambda probability, coins, turn: (2, 5))
    expected = fit(problem, mo.l2gd(personal=mo.sgd(lr, pull=pull), probability=p), personal=False)
    check(problem, rounds.l2gd(problem, lr, pull, p, [(2, 5)] * ROUNDS), expected)


def test_uniform_b_and_y_are_those_of_the_rows():
    """Each client's least loss is where least squares over its rows puts it, and F is 0 at the theta that is given."""
    problem = PROBLEMS["uniform"]
    operators = []
    for m in range(3):
        draw = generator(5, "ffgg-figure1", m)
        h, a, b = draw.random((40, 4)) / 4, draw.random((40, 4)) / 4, draw.random((40, 3)) / 3
        c, y = draw.random(40), draw.random(40)
        rows, right = np.block([[h, np.zeros((40, 3))], [a, b]]), np.concatenate([c, y])
        np.testing.assert_allclose(problem.stars()[m], np.linalg.lstsq(rows, right, rcond=None)[0], rtol=1e-8)
        outside = np.eye(40) - b @ np.linalg.pinv(b)
        operators.append(h.T @ (h @ problem.theta - c) + a.T @ outside @ (a @ problem.theta - y))
    np.testing.assert_allclose(np.mean(operators, axis=0), 0, atol=1e-10)
    assert max(np.abs(each).max() for each in operators) > 1e-3
