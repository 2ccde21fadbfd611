"""Sequential is the reference; the vectorised engine must give the same: 1e-5 relative in float32, 1e-10 in float64."""

from functools import cache, partial

import numpy as np
import pytest
import torch
from conformance_table import NAMES, TABLE, shared_problem
from night import NIGHTLY
from oracle_problems import engine_name, next_server, serve

from moiety import tree
from moiety.engines.base import RoundInfo
from moiety.engines.sequential import Sequential
from moiety.engines.vectorised import Vectorised

SIZES = (1, 38, 2, 33, 17, 5, 32, 16)
"""With batches of 16: one row, full batches alone, one row or a few more than full batches."""
FEW = (1, 17, 5)
"""One row, one row more than a full batch, less than a batch."""
OPTIONS = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "decay": {"weight_decay": 0.3},
    "clip": {"clip": 0.2},
    "all": {"momentum": 0.5, "weight_decay": 0.1, "clip": 0.5},
}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def results(row, engine, dtype=torch.float32, order=None, rounds=2, sizes=SIZES, **options):
    """Two rounds, so that states differ between clients when the second begins."""
    problem = shared_problem(row.name + row.variant, sizes, dtype)
    algorithm = row.build(batch_size=16, **options)
    server = problem.first_server(algorithm)
    states = [problem.first_state(algorithm) for _ in sizes]
    order = np.arange(len(sizes)) if order is None else np.asarray(order)
    for t in range(rounds):
        jobs = problem.make_jobs(algorithm.phases, range(len(sizes)), states, "train", t, part="train")
        received = algorithm.broadcast(server)
        answers = serve(
            engine, problem, algorithm.client_update, [jobs[i] for i in order], received, RoundInfo(t, scale=0.5)
        )
        pairs = [answers[i] for i in np.argsort(order)]
        states = [s for _, s in pairs]
        server = next_server(algorithm, server, [u for u, _ in pairs])
    return pairs, server


@cache
def reference(at, dtype, option, sizes=SIZES):
    """What the sequential engine gives for a row of the table, in the plain order of clients."""
    return results(TABLE[at], Sequential, dtype, sizes=sizes, **OPTIONS[option])


@cache
def vectorised(at, dtype, option, sizes=SIZES):
    """The same by the vectorised engine, in blocks of three clients."""
    return results(TABLE[at], partial(Vectorised, block=3), dtype, sizes=sizes, **OPTIONS[option])


def agree(one, other, tolerance):
    a, b = tree.leaves(one), tree.leaves(other)
    assert a.keys() == b.keys()
    for path in a:
        scale = float(a[path].double().abs().max()) or 1.0
        gap = float((a[path].double() - b[path].double()).abs().max())
        # An upload is a difference of parameters of about 1: it is exact to their last digit, however small it is.
        digit = torch.finfo(a[path].dtype).eps if a[path].is_floating_point() else 0.0
        assert gap <= max(tolerance * scale, digit), f"{path}: {gap} of {scale}"


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("at", range(len(TABLE)), ids=NAMES)
def test_sequential_and_vectorised_agree(at, option, dtype):
    """Single options in float32 on few clients in the gate: in float64 they must agree to five digits more."""
    all_clients = NIGHTLY or dtype is torch.float64 or option in ("plain", "all")
    sizes = SIZES if all_clients else FEW
    agree(reference(at, dtype, option, sizes), vectorised(at, dtype, option, sizes), TOLERANCE[dtype])


@pytest.mark.parametrize("block", [1, 64])
@pytest.mark.parametrize("at", range(len(TABLE)), ids=NAMES)
def test_the_size_of_a_block_does_not_matter(at, block):
    other = results(TABLE[at], partial(Vectorised, block=block), torch.float64, **OPTIONS["all"])
    agree(reference(at, torch.float64, "all"), other, 1e-10)


@pytest.mark.parametrize("row", TABLE, ids=NAMES)
def test_each_weighting(row):
    for option in row.weightings():
        one, other = (results(row, e, torch.float64, **option) for e in (Sequential, partial(Vectorised, block=3)))
        agree(one, other, 1e-10)


@pytest.mark.parametrize("at", range(len(TABLE)), ids=NAMES)
def test_the_order_of_clients_does_not_matter(at):
    order, options = np.random.default_rng(3).permutation(len(SIZES)), OPTIONS["all"]
    one, other = reference(at, torch.float32, "all"), results(TABLE[at], Sequential, order=order, **options)
    again = tree.leaves(other)
    for path, leaf in tree.leaves(one).items():
        assert torch.equal(leaf, again[path]), path
    other = results(TABLE[at], partial(Vectorised, block=3), order=order, **options)
    agree(vectorised(at, torch.float32, "all"), other, 1e-5)


@pytest.mark.parametrize("engine", [Sequential, partial(Vectorised, block=4)], ids=engine_name)
@pytest.mark.parametrize("row", TABLE, ids=NAMES)
def test_a_client_does_not_depend_on_the_cohort_around_it(row, engine):
    """Client 3 alone, and client 3 among all: the same upload and the same state."""
    problem = shared_problem(row.name + row.variant, SIZES, torch.float64)
    algorithm = row.build(batch_size=16, momentum=0.5)
    received = algorithm.broadcast(problem.first_server(algorithm))

    def update(cohort):
        states = [problem.first_state(algorithm) for _ in cohort]
        jobs = problem.make_jobs(algorithm.phases, cohort, states, "train", 5, part="train")
        return serve(engine, problem, algorithm.client_update, jobs, received, RoundInfo(5))[list(cohort).index(3)]

    agree(update([3]), update(range(len(SIZES))), 1e-10)


@pytest.mark.parametrize("row", TABLE, ids=NAMES)
def test_results_stand_in_the_order_of_the_jobs(row):
    """The engine sorts clients by length inside; the sizes 1, 38, 2, ... come back as examples in that order."""
    block, _ = results(row, partial(Vectorised, block=3), rounds=1)
    # All weigh the same in some algorithms; then it is the order of the samples' own draws that tells.
    assert [float(u.weight) for u, _ in block] == [1.0 if row.alike else float(n) for n in SIZES]
    reference, _ = results(row, Sequential, rounds=1)
    agree([s for _, s in reference], [s for _, s in block], 1e-5)
