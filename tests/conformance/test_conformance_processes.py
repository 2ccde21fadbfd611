"""The processes engine against the sequential one, bit for bit, for every algorithm."""

from functools import cache, partial
from multiprocessing import active_children

import pytest
import torch
from conformance_table import NAMES, TABLE, shared_problem
from night import NIGHTLY
from oracle_problems import federated, image_clients, next_server
from run_settings import with_settings

import moiety as mo
from moiety import tree
from moiety.engines.base import RoundInfo
from moiety.engines.processes import Processes
from moiety.engines.sequential import Sequential
from moiety.engines.vectorised import Vectorised
from moiety.loop.evaluate import client_functions, evaluate
from moiety.types import Algorithm

SIZES = (1, 30, 2, 13, 7, 5, 24, 6)
FEW = (1, 13, 2, 7)
"""With batches of 6: one row, one row more than full batches, less than a batch."""
OPTIONS = {"batch_size": 6, "momentum": 0.5, "weight_decay": 0.1, "clip": 0.5}


class Fixed:
    """States by client, as an evaluation asks for them."""

    def __init__(self, states):
        self.states = states

    def get(self, clients):
        return [self.states[int(c)] for c in clients]

    def owners(self):
        return list(range(len(self.states)))


def everything(row, make, dtype=torch.float32, sizes=SIZES, rounds=2):
    """Two rounds of all clients and an evaluation: results, server and scores."""
    problem = shared_problem(row.name + row.variant, sizes, dtype)
    algorithm: Algorithm = row.build(**OPTIONS)
    engine = make(problem, client_functions(problem, algorithm))
    server = problem.first_server(algorithm)
    states = [problem.first_state(algorithm) for _ in sizes]
    try:
        for t in range(rounds):
            jobs = problem.make_jobs(algorithm.phases, range(len(sizes)), states, "train", t, part="train")
            results = engine.map("train", jobs, algorithm.broadcast(server), RoundInfo(t, scale=0.5))
            results = [tree.map_leaves(torch.clone, result) for result in results]
            states = [s for _, s, _ in results]
            server = next_server(algorithm, server, [u for u, _, _ in results])
        clients = problem.data.sizes("train").nonzero()[0]
        scores = evaluate(
            problem,
            algorithm,
            engine,
            algorithm.broadcast(server),
            Fixed(states),
            part="train",
            round=rounds,
            clients=clients,
        ).rows
    finally:
        engine.close()
    return (results, server), scores


def same(one, other):
    a, b = tree.leaves(one), tree.leaves(other)
    assert a.keys() == b.keys()
    for path in a:
        assert torch.equal(torch.as_tensor(a[path]), torch.as_tensor(b[path])), path


@cache
def reference(at, dtype=torch.float32, sizes=SIZES):
    """What the sequential engine gives for a row of the table."""
    return everything(TABLE[at], Sequential, dtype, sizes)


SHARP = ("fedavg", "fedalt", "scaffold", "sub_fedavg", "fedpop", "glocal_sgd")
"""Rows whose states and uploads are of every kind: none, parameters, control variates, masks, chains, a counter."""


def clients_of(at):
    """All clients at night, and for rows of ``SHARP``; few where the gate has the same on all clients elsewhere."""
    return SIZES if NIGHTLY or NAMES[at] in SHARP else FEW


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("at", range(len(TABLE)), ids=NAMES)
def test_bit_for_bit(at, workers):
    """Every row on three workers, whose shares of all clients are uneven; ``test_through_fit`` has all on two."""
    sizes = SIZES if workers == 3 else clients_of(at)
    one, scores = reference(at, sizes=sizes)
    other, again = everything(TABLE[at], partial(Processes, inner=Sequential, workers=workers), sizes=sizes)
    same(one, other)
    assert scores == again
    assert active_children() == []


@pytest.mark.parametrize("at", range(len(TABLE)), ids=NAMES)
def test_vectorised_workers_within_rounding(at):
    """Every row's vectorised work on all clients is compared in ``test_conformance_engines``."""
    sizes = clients_of(at)
    one, _ = reference(at, torch.float64, sizes)
    other, _ = everything(TABLE[at], partial(Processes, inner=Vectorised, workers=2), torch.float64, sizes)
    a, b = tree.leaves(one), tree.leaves(other)
    assert a.keys() == b.keys()
    for path in a:
        torch.testing.assert_close(torch.as_tensor(a[path]), torch.as_tensor(b[path]), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("row", TABLE, ids=NAMES)
def test_through_fit(row):
    net = mo.models.mlp(4, 3, hidden=(6,), seed=1)
    data = federated(image_clients(SIZES))
    options = {"split": row.split(net), "rounds": 3, "cohort": 5, "evaluate_every": 1}
    one = mo.fit(net, data, row.build(**OPTIONS), **with_settings(engine="sequential", **options))
    other = mo.fit(
        net, data, row.build(**OPTIONS), **with_settings(engine="processes:sequential", workers=2, **options)
    )
    assert [{**r, "seconds": 0} for r in one.history] == [{**r, "seconds": 0} for r in other.history]
    assert one.clients == other.clients
    assert one.ledger == other.ledger
    for client in range(len(SIZES)):
        same(one.parameters(client), other.parameters(client))
    assert active_children() == []
