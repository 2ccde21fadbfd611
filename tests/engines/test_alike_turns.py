"""Turns that are alike are held as columns. They must be those that are made one by one, and give the same numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import moiety as mo
from moiety.data.federated import FederatedData
from moiety.engines.auto import make_engine
from moiety.engines.base import RoundInfo
from moiety.engines.jobs import Jobs, clients_of, states_of, take_jobs, with_states
from moiety.engines.problem import Problem, to_tensors
from moiety.engines.processes import deal_jobs
from moiety.engines.rows import AlikeRows, own_rows, pad_rows, phase_rows, plan_rows, repeat_rows
from moiety.engines.sequential import RELEASE_CLIENTS
from moiety.engines.vectorised import split_into_blocks
from moiety.loop.evaluate import client_functions
from moiety.server.mean import RunningMean
from moiety.task import from_module
from moiety.task.block import fills_memory
from moiety.types import Phase

CLIENTS = [4, 0, 7]
phases = st.builds(
    lambda epochs, steps, batch, shuffle: Phase(None if steps else epochs, steps, batch, shuffle),
    st.integers(1, 3),
    st.one_of(st.none(), st.integers(1, 9)),
    st.integers(1, 9),
    st.booleans(),
)


@given(phase=phases, rows=st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_plans_are_those_of_single_clients(phase, rows):
    starts = np.array([100, 3, 50])
    plan = plan_rows(phase, CLIENTS, starts, starts + rows, "p", "train", 5, seed=1)
    one_by_one = [
        phase_rows(phase, int(s), int(s) + rows, "p", "train", 5, c, seed=1)
        for c, s in zip(CLIENTS, starts, strict=True)
    ]
    assert isinstance(plan, AlikeRows)
    for one, other in zip(plan, one_by_one, strict=True):
        np.testing.assert_array_equal(one.order, other.order)
        np.testing.assert_array_equal(one.sizes, other.sizes)
    (index, mask), (other_index, other_mask) = pad_rows(plan), pad_rows(one_by_one)
    assert torch.equal(index, other_index)
    assert (mask is None) == (other_mask is None)
    assert mask is None or torch.equal(mask, other_mask)
    assert repeat_rows(plan) == repeat_rows(one_by_one)
    if repeat_rows(plan):
        assert torch.equal(own_rows(plan), own_rows(one_by_one))


def alike(count: int = 5) -> Jobs:
    orders = np.arange(4 * count).reshape(count, 4)
    return Jobs(list(range(count)), 4, list("abcdefgh"[:count]), {"p": AlikeRows(orders, np.array([2, 2]), 4)}, -9, 3)


def test_columns_are_the_jobs_they_stand_for():
    jobs = alike()
    job_list = list(jobs)
    assert [job.key for job in job_list] == [-9 ^ c for c in range(5)] == jobs.keys().tolist()
    for part in (jobs[1:4], take_jobs(jobs, [1, 2, 3])):
        assert clients_of(part) == [1, 2, 3]
        assert list(states_of(part)) == list("bcd")
        assert [job.rows["p"].order.tolist() for job in part] == [j.rows["p"].order.tolist() for j in job_list[1:4]]
    assert take_jobs(jobs, list(range(5))) is jobs
    assert clients_of(take_jobs(jobs, [3, 0])) == [3, 0]
    assert [job.state for job in with_states(jobs, range(5))] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="as many"):
        Jobs([1, 2], 4, ["a"], jobs.rows, 0, 0)


@pytest.mark.parametrize(("most", "room"), [(2, 100), (100, 3), (100, 100), (1, 1)])
def test_blocks_and_shares_are_those_of_a_list(most, room):
    jobs = alike()
    blocks = [list(split_into_blocks(each, most=most, room=lambda width: room)) for each in (jobs, list(jobs))]
    assert blocks[0] == blocks[1]
    for workers in (1, 2, 3, 7):
        assert deal_jobs(jobs, workers) == deal_jobs(list(jobs), workers)


def make_problem(clients: int) -> Problem:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(clients * 5, 3)), rng.integers(2, size=clients * 5)
    fed = mo.data.from_arrays({"x": x, "y": y}, client=np.repeat(np.arange(clients), 5), test=0.0)
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    task = from_module(model, loss="cross_entropy")
    return Problem(task, mo.split.nothing(model), fed, to_tensors(fed.columns, task, torch.device("cpu")), 0)


@pytest.mark.parametrize("engine", ["sequential", "vectorised", "processes:vectorised", "processes:sequential"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_engines_give_the_same_bits_for_columns_and_for_a_list(engine, shuffle):
    problem, algorithm = make_problem(6), mo.fedavg(shared=mo.sgd(0.1, epochs=2, batch_size=2, shuffle=shuffle))
    received = algorithm.broadcast(problem.first_server(algorithm))
    states = [problem.first_state(algorithm)] * 6
    jobs = problem.make_jobs(algorithm.phases, range(6), states, "train", 0, part="train")
    assert isinstance(jobs, Jobs)
    results = []
    for each in (jobs, list(jobs)):
        runner = make_engine(engine, problem, client_functions(problem, algorithm), 2)
        uploads = [update.upload for update, _, _ in runner.map("train", each, received, RoundInfo())]
        results.append([{name: p.clone() for name, p in upload.items()} for upload in uploads])
        runner.close()
    for one, other in zip(*results, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_pages_are_let_go_while_many_clients_are_served(engine, monkeypatch):
    """Of a data file larger than memory, only what some clients read is resident at a time."""
    releases = []
    monkeypatch.setattr(FederatedData, "release", lambda self: releases.append(self))
    problem, algorithm = make_problem(2 * RELEASE_CLIENTS + 1), mo.fedavg(shared=0.1)
    runner = make_engine(engine, problem, client_functions(problem, algorithm), None)
    states = [problem.first_state(algorithm)] * len(problem.data)
    jobs = problem.make_jobs(algorithm.phases, range(len(problem.data)), states, "train", 0, part="train")
    runner.map("train", jobs, algorithm.broadcast(problem.first_server(algorithm)), RoundInfo())
    assert len(releases) == (2 if engine == "sequential" else 1)


def test_a_tensor_fills_its_memory_or_not():
    whole = torch.arange(12.0)
    assert fills_memory(whole)
    assert fills_memory(whole.view(3, 4))
    for part in (whole[1:], whole[:4], whole.view(3, 4).t(), torch.ones(1).expand(12), whole[:1].expand(12)):
        assert not fills_memory(part)
    answers = []
    torch.func.vmap(lambda x: answers.append(fills_memory(x)) or x)(whole.view(3, 4))
    torch.func.vmap(lambda x: answers.append(fills_memory(x)) or x)(whole.view(3, 4)[:2])
    assert answers == [True, False]


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 7)])
@pytest.mark.parametrize("padded", [False, True])
def test_equal_weights_give_the_bits_of_the_weighted_sum(shape, padded):
    x = torch.randn(37, *shape, generator=torch.Generator().manual_seed(0))
    if padded:  # as results of forked workers lie
        room = torch.empty(37, max(1, x[0].numel()) + 9)
        room[:, : x[0].numel()] = x.reshape(37, -1)
        x = room[:, : x[0].numel()].view(x.shape)
    mean = RunningMean()
    mean.add_stacked({"w": x}, [160.0] * 37)
    factors = torch.ones(37).view(-1, *[1] * len(shape))
    assert torch.equal(mean.result()["w"], (x * factors).sum(0) / 37.0)
