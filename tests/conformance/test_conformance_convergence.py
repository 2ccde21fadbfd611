"""Every algorithm reaches the minimiser of the problem it claims to solve, found by one linear solve in NumPy.

F_i(u, v_i) = mean of (a . u + b . v_i - y)^2 / 2 over the client's rows, of different curvature and different targets
for each client; the problem is the minimum of sum_i alpha_i F_i over u (once) and v_i (for each i). With one
full-batch step per block and round there is no client drift, so the fixed point of the iteration is the minimiser
itself.
"""

import numpy as np
import oracle_numpy as ref
import pytest
from conformance_table import TABLE
from oracle_problems import even_clients, federated, split_of, vector_task

import moiety as mo

SIZES = (6, 9, 15)
CLIENTS = even_clients(SIZES, seed=4)
MATRICES = {"u": "a", "v": "b"}


def expected(row, weighting):
    weights = SIZES if weighting == "examples" else (1, 1, 1)
    return ref.minimiser(CLIENTS, weights, MATRICES, row.personal)


CASES = [(row, w) for row in TABLE for w in ("examples", "uniform") if row.weighted or w == "examples"]


@pytest.mark.parametrize(("row", "weighting"), CASES, ids=[f"{row.name}-{w}" for row, w in CASES])
def test_reaches_the_minimiser(row, weighting):
    option = {"weighting": weighting} if row.weighted else {}
    algorithm = row.build(batch_size=max(SIZES), **row.one_step, **option)
    split = split_of([k for k in "uv" if k not in row.personal], row.personal, {"u": 2, "v": 2})
    task = vector_task(np.array([3.0, -2.0]), np.array([-1.0, 4.0]))
    run = mo.fit(task, federated(CLIENTS), algorithm, split=split, rounds=300, engine="vectorised", evaluate_every=300)
    shared, personal, _ = expected(row, weighting)
    for k, value in shared.items():
        np.testing.assert_allclose(run.shared_parameters()[k].numpy(), value, atol=1e-6, rtol=0)
    for i, blocks in enumerate(personal):
        for k, value in blocks.items():
            np.testing.assert_allclose(run.parameters(i)[k].numpy(), value, atol=1e-6, rtol=0)


def test_the_minimisers_are_far_apart():
    """Or reaching one would not tell the algorithms, or the weightings, apart."""
    points = {}
    for row in TABLE:
        for weighting in ("examples", "uniform"):
            shared, personal, _ = expected(row, weighting)
            points[row.personal, weighting] = np.concatenate(
                [*shared.values(), *(x for p in personal for x in p.values())]
            )
    for personal in ((), ("v",)):
        assert np.abs(points[personal, "examples"] - points[personal, "uniform"]).max() > 0.05
    assert np.abs(points[("v",), "examples"][:2] - points[(), "examples"][:2]).max() > 0.05
    assert np.abs(points[("u", "v"), "examples"][:2] - points[("v",), "examples"][:2]).max() > 0.05
