import copy
import inspect
from functools import partial

import numpy as np
import pytest
import torch
from conformance_table import NAMES, TABLE, mlp_problem, table_is_complete
from oracle_problems import engine_name, next_server, serve
from through_a_file import check_rebuilt
from torch import Tensor

from moiety import tree
from moiety.algorithms import ALGORITHMS
from moiety.engines.base import RoundInfo
from moiety.engines.sequential import Sequential
from moiety.engines.vectorised import Vectorised
from moiety.loop.exchange import declare_layouts
from moiety.types import ClientUpdate

ENGINES = [Sequential, partial(Vectorised, block=2)]
FIX = {"batch_size": 2, "momentum": 0.5, "weight_decay": 0.1, "clip": 1.0}


def test_every_algorithm_has_a_row():
    assert table_is_complete()


@pytest.mark.parametrize("row", TABLE, ids=NAMES)
def test_a_file_can_describe_it(row):
    algorithm = row.build(batch_size=2)
    assert algorithm.spec["name"] == row.name
    assert set(algorithm.spec) - {"name"} <= set(inspect.signature(ALGORITHMS[row.name]).parameters)
    check_rebuilt(algorithm, algorithm.spec)


def begin(row, dtype=torch.float32):
    problem = mlp_problem(row, dtype=dtype)
    algorithm = row.build(**FIX)
    server = problem.first_server(algorithm)
    states = [problem.first_state(algorithm) for _ in range(3)]
    received = algorithm.broadcast(server)
    jobs = problem.make_jobs(algorithm.phases, range(3), states, "train", 0, part="train")
    return problem, algorithm, server, received, jobs


def tensors(*trees) -> list[Tensor]:
    return [x for t in trees for x in tree.leaves(t).values() if isinstance(x, Tensor)]


@pytest.mark.parametrize("engine", ENGINES, ids=engine_name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("row", TABLE, ids=NAMES)
def test_types_keys_shapes_dtypes(row, dtype, engine):
    problem, algorithm, server, received, jobs = begin(row, dtype)
    split, init = problem.split, problem.task.init
    # The shared part goes down first, and beside it what the algorithm declares; all in the model's own precision.
    down, up = declare_layouts(problem, algorithm)
    assert list(received)[: len(split.shared)] == list(split.shared)
    assert {n: (p.shape, p.dtype) for n, p in received.items()} == {n: (p.shape, dtype) for n, p in down.items()}
    assert {n: down[n].shape for n in split.shared} == {n: init[n].shape for n in split.shared}
    results = serve(engine, problem, algorithm.client_update, jobs, received, RoundInfo())
    for update, state in results:
        assert isinstance(update, ClientUpdate)
        upload = update.upload
        assert {n: (p.shape, p.dtype) for n, p in upload.items()} == {n: (p.shape, p.dtype) for n, p in up.items()}
        assert {p.dtype for p in up.values() if p.is_floating_point()} <= {dtype}
        assert update.weight.shape == ()
        assert update.info["loss"].shape == ()
        assert update.info["loss"].dtype == torch.float64  # sums over steps are kept exact
        assert type(state) is type(jobs[0].state)
        assert {n: (p.shape, p.dtype) for n, p in tree.leaves(state).items()} == {
            n: (p.shape, p.dtype) for n, p in tree.leaves(jobs[0].state).items()
        }
        assert not any(x.requires_grad for x in tensors(update, state))
    after = next_server(algorithm, server, [u for u, _ in results])
    assert type(after) is type(server)
    again = algorithm.broadcast(after)
    assert {n: (p.shape, p.dtype) for n, p in again.items()} == {n: (p.shape, dtype) for n, p in down.items()}
    shared, personal = algorithm.personal_model(again, results[0][1])
    assert (set(shared), set(personal)) == (set(split.shared), set(split.personal))


@pytest.mark.parametrize("engine", ENGINES, ids=engine_name)
@pytest.mark.parametrize("row", TABLE, ids=NAMES)
def test_inputs_are_unchanged(row, engine):
    problem, algorithm, server, received, jobs = begin(row)
    recorder = {
        "received": received,
        "states": [j.state for j in jobs],
        "server": server,
        "columns": problem.columns,
        "init": problem.task.init,
    }
    before = copy.deepcopy(recorder)
    results = serve(engine, problem, algorithm.client_update, jobs, received, RoundInfo())
    uploads = copy.deepcopy([u for u, _ in results])
    next_server(algorithm, server, [u for u, _ in results])
    serve(engine, problem, algorithm.adapt, jobs, received, RoundInfo())
    for (path, a), b in zip(tree.leaves(before).items(), tree.leaves(recorder).values(), strict=True):
        assert torch.equal(a, b), path
    for (path, a), b in zip(tree.leaves(uploads).items(), tree.leaves([u for u, _ in results]).values(), strict=True):
        assert torch.equal(a, b), path


@pytest.mark.parametrize("engine", ENGINES, ids=engine_name)
@pytest.mark.parametrize("row", TABLE, ids=NAMES)
def test_a_later_round_does_not_edit_what_an_earlier_one_returned(row, engine):
    """Whoever keeps the results of round 1 (a checkpoint, a user) still has them after round 2."""
    problem, algorithm, server, received, jobs = begin(row)
    first = serve(engine, problem, algorithm.client_update, jobs, received, RoundInfo())
    server = next_server(algorithm, server, [u for u, _ in first])
    copies = copy.deepcopy((first, server))
    states = [s for _, s in first]
    jobs = problem.make_jobs(algorithm.phases, range(3), states, "train", 1, part="train")
    second = serve(engine, problem, algorithm.client_update, jobs, algorithm.broadcast(server), RoundInfo(1))
    next_server(algorithm, server, [u for u, _ in second])
    for (path, a), b in zip(tree.leaves(copies).items(), tree.leaves((first, server)).values(), strict=True):
        assert torch.equal(a, b), path
    # and the second round did move something, or the test would say nothing
    pairs = zip(
        tensors([s for _, s in first], [u for u, _ in first]),
        tensors([s for _, s in second], [u for u, _ in second]),
        strict=True,
    )
    assert any(not torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("row", TABLE, ids=NAMES)
def test_two_clients_of_one_cohort_share_no_memory(row):
    problem, algorithm, _, received, jobs = begin(row)
    results = serve(Sequential, problem, algorithm.client_update, jobs, received, RoundInfo())

    def own(result):  # a client that keeps nothing hands back the state that all begin with
        state = result[1] if algorithm.stateful else ()
        return {x.data_ptr() for x in tensors(result[0].upload, state)}

    assert not own(results[0]) & own(results[1])
    inputs = {x.data_ptr() for x in tensors(received, [j.state for j in jobs])}
    assert not inputs & own(results[0])


@pytest.mark.parametrize("row", TABLE, ids=NAMES)
def test_weights_are_what_the_option_says(row):
    """Sizes 5, 1, 9 in batches of 2 are 3, 1 and 5 batches."""
    weights = {"examples": [5, 1, 9], "batches": [3, 1, 5], "uniform": [1, 1, 1]}
    for option in row.weightings():
        problem = mlp_problem(row)
        algorithm = row.build(batch_size=2, **option)
        states = [problem.first_state(algorithm)] * 3
        received = algorithm.broadcast(problem.first_server(algorithm))
        jobs = problem.make_jobs(algorithm.phases, range(3), states, "train", 0, part="train")
        for engine in ENGINES:
            results = serve(engine, problem, algorithm.client_update, jobs, received, RoundInfo())
            name = option.get("weighting", "uniform" if row.alike else "examples")
            assert [float(u.weight) for u, _ in results] == weights[name]


@pytest.mark.parametrize("engine", ENGINES, ids=engine_name)
def test_a_weight_is_exact_in_a_model_of_low_precision(engine):
    """alpha_i is the number of examples, which bfloat16 cannot hold from 257 on; the weight is no part of the model."""
    (row,) = [row for row in TABLE if row.name == "fedavg"]
    problem = mlp_problem(row, sizes=(257, 3), dtype=torch.bfloat16)
    algorithm = row.build(batch_size=300)
    received = algorithm.broadcast(problem.first_server(algorithm))
    jobs = problem.make_jobs(algorithm.phases, range(2), [algorithm.init_client({}, {})] * 2, "train", 0, part="train")
    results = serve(engine, problem, algorithm.client_update, jobs, received, RoundInfo())
    assert [float(u.weight) for u, _ in results] == [257, 3]


@pytest.mark.parametrize("row", TABLE, ids=NAMES)
def test_data_columns_of_the_user_are_unchanged(row):
    problem = mlp_problem(row)
    before = {k: c.copy() for k, c in problem.data.columns.items()}
    algorithm = row.build(**FIX)
    received = algorithm.broadcast(problem.first_server(algorithm))
    jobs = problem.make_jobs(algorithm.phases, [0], [problem.first_state(algorithm)], "train", 0, part="train")
    serve(Sequential, problem, algorithm.client_update, jobs, received, RoundInfo())
    for name, column in before.items():
        np.testing.assert_array_equal(column, problem.data.columns[name])
