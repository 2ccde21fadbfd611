"""Every algorithm ends where the problem that it claims to solve has its solution, found by linear solves in NumPy.

F_i(u, v_i) = mean of (a . u + b . v_i - y)^2 / 2 over the client's rows, of different curvature and different targets
for each client. For most algorithms the problem is the minimum of sum_i alpha_i F_i over u (once) and v_i (for each
i); the others' rows say what theirs is. With one full-batch step per block and round there is no client drift, so the
fixed point of the iteration is the solution itself.
"""

import itertools

import numpy as np
import pytest
from conformance_table import TABLE
from oracle_problems import even_clients, federated, split_of, vector_task

import moiety as mo

SIZES = (6, 9, 15)
CLIENTS = even_clients(SIZES, seed=4)
START = {"u": np.array([3.0, -2.0]), "v": np.array([-1.0, 4.0])}


def solve_exactly(row, weighting):
    weights = SIZES if weighting == "examples" else (1, 1, 1)
    return row.ends(CLIENTS, weights, START)


CASES = [(row, w) for row in TABLE for w in ("examples", "uniform") if row.weighted or w == "examples"]


@pytest.mark.parametrize(("row", "weighting"), CASES, ids=[f"{row.name}{row.variant}-{w}" for row, w in CASES])
def test_reaches_the_solution(row, weighting):
    option = {"weighting": weighting} if row.weighted else {}
    algorithm = row.build(batch_size=max(SIZES), **row.one_step, **option)
    split = split_of([k for k in "uv" if k not in row.personal], row.personal, {"u": 2, "v": 2})
    task = vector_task(START["u"], START["v"])
    run = mo.fit(
        task,
        federated(CLIENTS),
        algorithm,
        split=split,
        rounds=row.rounds,
        engine="vectorised",
        settings=mo.Settings(evaluate_every=row.rounds),
    )
    shared, own = solve_exactly(row, weighting)
    for k, value in shared.items():
        np.testing.assert_allclose(run.shared_parameters()[k].numpy(), value, atol=1e-6, rtol=0)
    for i, blocks in enumerate(own):
        for k, value in blocks.items():
            np.testing.assert_allclose(run.parameters(i)[k].numpy(), value, atol=1e-6, rtol=0)


def test_the_solutions_are_far_apart():
    """Or reaching one would not tell algorithms, or weightings, apart."""
    points = {}
    for row, weighting in CASES:
        shared, own = solve_exactly(row, weighting)
        # The whole model of the first client, and the shared blocks beside it. With one step a round there is no drift
        # that would tell algorithms apart which solve the same problem.
        problem = row.limit or row.personal
        points[problem, weighting] = np.concatenate([({**shared, **own[0]})[k] for k in "uv"] + [*shared.values()])
    for (a, one), (b, other) in itertools.combinations(points.items(), 2):
        assert one.shape != other.shape or np.abs(one - other).max() > 0.05, (a, b)
