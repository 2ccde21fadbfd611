"""The processes engine is the sequential one, bit for bit, whatever happens to its workers."""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from engine_cases import (
    batch_norm_net,
    contents,
    dropout_net,
    federation,
    measure_always,
    mlp,
    refused,
    same_runs,
    seeded,
)
from flat_options import flat
from hypothesis import given, settings
from hypothesis import strategies as st
from run_settings import with_settings
from torch import Tensor, nn
from waiting import wait_until

import moiety as mo
from moiety import tree
from moiety.engines import processes
from moiety.engines.arena import ALIGN, Arena
from moiety.engines.base import RoundInfo
from moiety.engines.jobs import Jobs
from moiety.engines.messages import pack_answer, pack_order, unpack_answer, unpack_order
from moiety.engines.processes import Processes, deal_jobs
from moiety.engines.rows import AlikeRows, Job, Rows
from moiety.errors import MoietyError
from moiety.transport import PrivacyError

FOLDER = Path(__file__).parent
SIZES = (4, 9, 12, 17, 25, 40, 7)
DATA = federation(SIZES)


OTHERS: set[int] = set()
"""Processes that other tests of this session keep (a cluster of Ray's, for instance)."""


def children() -> list[int]:
    """The processes that this one started since the test began, dead ones that nobody has asked after included."""
    return [child.pid for child in psutil.Process().children() if child.pid not in OTHERS]


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    """No test may end with a child process, however it ends; one that does has no effect on the next."""
    OTHERS.clear()
    OTHERS.update(child.pid for child in psutil.Process().children())
    yield
    pids = children()
    for process in multiprocessing.active_children():
        if process.pid in pids:
            process.kill()
            process.join()
    assert pids == []


class Net(nn.Module):
    """Where ``trouble`` is a file, a worker at work on it raises the error that the file names, or kills itself."""

    def __init__(self, trouble: Path | None = None) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)
        self.trouble, self.home = trouble, os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        if self.trouble and os.getpid() != self.home:
            with contextlib.suppress(FileNotFoundError):  # there is none, or another worker took it
                text = self.trouble.read_text()
                if text.startswith("ValueError"):
                    raise ValueError(text)
                if text:
                    raise KeyError(text)
                if not self.trouble.with_suffix(".forever").exists():
                    self.trouble.unlink()
                with open(self.trouble.with_suffix(".deaths"), "a") as file:
                    file.write(f"{os.getpid()}\n")
                os.kill(os.getpid(), signal.SIGKILL)
        return self.head(torch.tanh(self.body(x)))


def net(trouble: Path | None = None) -> nn.Module:
    return seeded(lambda: Net(trouble))


def fedalt(**options: Any) -> mo.Algorithm:
    return flat(mo.fedalt, shared_lr=0.1, personal_lr=0.2, batch_size=5, **{"personal_epochs": 2, **options})


def fit(engine: str, algorithm: mo.Algorithm | None = None, model: nn.Module | None = None, **options: Any) -> mo.Run:
    algorithm, model = algorithm or fedalt(), model or net()
    split = mo.split.nothing(model) if algorithm.name == "fedavg" else mo.split.by_name(model, personal=["head"])
    options = {"rounds": 3, "cohort": 5, "evaluate_every": 1, "seed": 4, "data": DATA, **options}
    return mo.fit(model, options.pop("data"), algorithm, **with_settings(split=split, engine=engine, **options))


def close(one: mo.Run, other: mo.Run, tolerance: float = 1e-5) -> None:
    for client in range(len(one.clients)):
        a, b = one.parameters(client), other.parameters(client)
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=tolerance, atol=tolerance)
    for a, b in zip(one.clients, other.clients, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4, abs=1e-5)


# The same numbers.

CASES = {
    "fedavg": lambda: mo.fedavg(shared=mo.sgd(0.1, batch_size=5), server=mo.server.adam(lr=0.05)),
    "fedalt": lambda: fedalt(momentum=0.5),
    "fedalt stateless": lambda: fedalt(stateful=False),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_same_as_sequential(case, workers):
    algorithm = CASES[case]()
    run = fit("processes:sequential", algorithm, workers=workers)
    same_runs(fit("sequential", algorithm), run)
    assert run.engine == "processes:sequential"
    assert run.config["run"]["workers"] == workers


@pytest.mark.parametrize("case", ["fedavg", "fedalt stateless"])
@pytest.mark.parametrize("workers", [1, 3])
def test_vectorised_within(case, workers):
    algorithm = CASES[case]()
    close(fit("sequential", algorithm), fit("processes:vectorised", algorithm, workers=workers))


def test_the_faster_of_the_two_forms():
    run = fit("processes", rounds=2, workers=2)
    assert run.engine in ("processes:sequential", "processes:vectorised")
    reason = run.config["run"]["engine_reason"]
    assert "processes:sequential" in reason
    assert "processes:vectorised" in reason
    close(fit("sequential", rounds=2), run)


def test_auto_measures_processes_too(monkeypatch):
    measure_always(monkeypatch)
    run = fit("auto", rounds=1, workers=2)
    reason = run.config["run"]["engine_reason"]
    assert reason.startswith("measured on ")
    for name in ("sequential", "vectorised", "processes:sequential", "processes:vectorised"):
        assert f" {name} " in reason
    assert " ms" in reason


def test_auto_with_one_worker_leaves_processes_out():
    assert "processes" not in fit("auto", rounds=1, workers=1).config["run"]["engine_reason"]


@pytest.mark.parametrize("bytes", [1, 400])
@pytest.mark.parametrize("case", ["fedalt", "fedalt stateless"])
def test_more_clients_than_fit_the_arena(monkeypatch, bytes, case):
    """A state takes 72 bytes and a result about 190: one client at a time, then two."""
    batches = []
    inner = Processes._serve

    def count(self: Any, function: str, jobs: Any, *rest: Any) -> Any:
        batches.append((function, len(jobs)))
        return inner(self, function, jobs, *rest)

    monkeypatch.setattr(processes, "ARENA_BYTES", bytes)
    monkeypatch.setattr(Processes, "_serve", count)
    algorithm = CASES[case]()
    run = fit("processes:sequential", algorithm, workers=2, rounds=2)
    assert {n for f, n in batches if f == "train"} == ({1} if bytes == 1 else {1, 2})
    assert any(f == "score_both" for f, _ in batches)
    same_runs(fit("sequential", algorithm, rounds=2), run)


def test_a_cohort_goes_out_at_once(monkeypatch):
    """Also where a few clients were served first: test_choice_is_kept compares the room that there is then."""
    sizes: list[int] = []
    send = Processes._serve

    def count(self: Processes, function: str, jobs: Any, moment: Any) -> Any:
        if function != "score_shared":  # whose jobs are not clients
            sizes.append(len(jobs))
        return send(self, function, jobs, moment)

    monkeypatch.setattr(Processes, "_serve", count)
    mo.fit(mlp(), DATA, mo.fedavg(shared=mo.sgd(0.1, steps=1)), rounds=1, engine="processes")
    assert set(sizes) == {len(SIZES)}


def test_fewer_clients_than_workers():
    run = fit("processes:sequential", cohort=1, workers=3)
    same_runs(fit("sequential", cohort=1), run)


def test_dropout_and_running_statistics():
    for model in (dropout_net(), batch_norm_net()):
        algorithm = fedalt(personal_epochs=1)
        data = federation((10, 12, 16))
        options = {"data": data, "cohort": 2, "rounds": 2}
        run = fit("processes:sequential", algorithm, model, workers=2, **options)
        same_runs(fit("sequential", algorithm, model, **options), run)


def test_in_a_folder_and_resumed(tmp_path):
    """Begun by one engine, gone on with by the other, personal states on disk."""
    whole = fit("sequential", model=mlp(), rounds=4)
    for first, second in (("sequential", "processes:sequential"), ("processes:sequential", "sequential")):
        out = tmp_path / first.partition(":")[0]
        fit(first, model=mlp(), rounds=2, out=out, workers=2)
        run = mo.resume(out, rounds=4, data=DATA, engine=second, settings=mo.Settings(workers=2))
        assert run.engine == second
        same_runs(whole, run)


def test_resume_with_the_choice_open(tmp_path):
    fit("sequential", model=mlp(), rounds=1, out=tmp_path / "run")
    run = mo.resume(tmp_path / "run", rounds=2, data=DATA, engine="processes", settings=mo.Settings(workers=2))
    assert run.engine.startswith("processes:")
    close(fit("sequential", model=mlp(), rounds=2), run)


def test_a_fallback_is_said_once_and_where_the_caller_hears_it():
    """Of this process and its worker, who both find out that partial evaluation is off."""
    with pytest.warns(UserWarning, match="Partial evaluation is off") as records:
        fit("processes:sequential", fedalt(), dropout_net(), workers=2, rounds=2)
    assert len(records) == 1


def test_threads_of_the_caller():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        torch.ones(300, 300) @ torch.ones(300, 300)  # so that the threads are really there
        fit("processes:sequential", workers=2, rounds=1)
        assert torch.get_num_threads() == 2
        with pytest.raises(RuntimeError, match="enough"):
            fit("processes:sequential", workers=2, rounds=1, callbacks=[raising(RuntimeError("enough"))])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# Workers that die.


def raising(error: BaseException) -> Any:
    def on_round(run: Any, record: Any) -> None:
        raise error

    return on_round


def test_workers_killed_between_rounds():
    pids: list[set[int]] = []

    def on_round(run: Any, record: Any) -> None:
        pids.append(set(children()))
        victims = sorted(pids[-1])[: record.round]  # one, then both
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        if record.round == 1:
            assert wait_until(lambda: gone(set(victims)))  # dead when next asked; after the next round it may not be

    run = fit("processes:sequential", workers=3, rounds=4, callbacks=[on_round])
    assert [len(now) for now in pids] == [2, 2, 2, 2]
    assert len(pids[0] & pids[1]) == 1
    assert not pids[1] & pids[2]
    same_runs(fit("sequential", rounds=4), run)


def test_a_worker_that_dies_at_work(tmp_path):
    trouble = tmp_path / "trouble"
    model = net(trouble)
    pids: list[set[int]] = []

    def on_round(run: Any, record: Any) -> None:
        pids.append(set(children()))
        if record.round < 3:
            trouble.touch()

    run = fit("processes:sequential", model=model, workers=3, rounds=3, callbacks=[on_round])
    assert not trouble.exists()
    assert [len(now) for now in pids] == [2, 2, 2]
    assert len(pids[0] & pids[1]) == 1
    same_runs(fit("sequential", model=model, rounds=3), run)


def test_two_deaths_are_not_three(tmp_path, monkeypatch):
    """The same share may bring down two workers and be served by the third."""
    trouble = tmp_path / "trouble"
    model = net(trouble)
    (tmp_path / "trouble.forever").touch()
    inner = Processes._fork
    forks = []

    def count(self: Any, *args: Any, **options: Any) -> Any:
        forks.append(len(forks))
        if len(forks) == 3:
            trouble.unlink()
        return inner(self, *args, **options)

    monkeypatch.setattr(Processes, "_fork", count)
    trouble.touch()
    run = fit("processes:sequential", model=model, workers=1, rounds=1)
    assert len((tmp_path / "trouble.deaths").read_text().split()) == 2
    assert len(forks) == 3
    same_runs(fit("sequential", model=model, rounds=1), run)


def test_a_worker_that_dies_while_scoring_or_adapting(tmp_path, monkeypatch):
    """Stateless clients are adapted and scored by the workers too: the file appears before one of these."""
    trouble = tmp_path / "trouble"
    model = net(trouble)
    inner = Processes.map
    names = []

    def watch(self: Any, function: str, *rest: Any, **options: Any) -> Any:
        if function != "train" and function not in names:
            names.append(function)
            trouble.touch()
        results = inner(self, function, *rest, **options)
        assert not trouble.exists()
        return results

    monkeypatch.setattr(Processes, "map", watch)
    algorithm = fedalt(stateful=False, personal_epochs=1)
    run = fit(
        "processes:sequential", algorithm, model, workers=2, rounds=1, partial=False
    )  # all calls are of `forward`
    assert sorted(names) == ["adapt", "score", "score_shared"]
    same_runs(fit("sequential", algorithm, model, rounds=1, partial=False), run)


@pytest.mark.parametrize("workers", [1, 2])
def test_clients_that_bring_down_every_worker_are_named(tmp_path, workers):
    for suffix in ("", ".forever"):
        (tmp_path / f"trouble{suffix}").touch()
    model = net(tmp_path / "trouble")
    text = refused(lambda: fit("processes:sequential", model=model, workers=workers), "died in round 1")
    assert text.startswith("`workers` must be processes that live, got 3 that died in round 1 while serving clients c")
    assert children() == []
    deaths = (tmp_path / "trouble.deaths").read_text().split()
    assert len(set(deaths)) == len(deaths)
    assert 3 <= len(deaths) <= 3 * workers  # the last of the other share's may have been ended before it died


# Messages.


def test_messages_are_not_pickled(monkeypatch, tmp_path):
    def refuse(*values):
        raise AssertionError("something was pickled")

    for name in ("dumps", "loads"):
        monkeypatch.setattr(multiprocessing.connection._ForkingPickler, name, refuse)
    same_runs(fit("sequential", rounds=2), fit("processes:sequential", rounds=2, workers=2))
    trouble = tmp_path / "trouble"
    trouble.write_text("ValueError of a worker")
    refused(lambda: fit("processes:sequential", model=net(trouble), workers=2), "of a worker")


def test_an_order_arrives_as_it_was_sent():
    rows = {"first": Rows(np.array([7, 5, 6]), np.array([2, 1])), "second": Rows(np.arange(0), np.arange(0))}
    jobs = [
        Job(np.int64(3), rows, 3, None, 2**63 - 1, -(2**63), 4),
        Job(1, {}, 10**9, None),
        Job(2, {"first": Rows(np.array([2**40]), np.array([1]))}, 1, None),
    ]
    info = RoundInfo(12, 0.1 + 0.2, float("inf"))
    function, (slots, copies), same_info = unpack_order(pack_order("train", ([0, 9, 2], jobs), info))
    assert (function, slots, same_info) == ("train", [0, 9, 2], info)
    same_jobs(jobs, copies)


def test_an_order_of_turns_that_are_alike_arrives_as_it_was_sent():
    orders = {"first": np.array([[7, 5, 6], [2**40, 1, 2]]), "second": np.array([[5, 6, 7, 5], [0, 1, 2, 0]])}
    sizes = {"first": np.array([2, 1]), "second": np.array([2, 1, 1])}
    rows = {name: AlikeRows(order, sizes[name], 3) for name, order in orders.items()}
    jobs = Jobs([3, 9], 3, [None, None], rows, key=-(2**63) + 5, turn=2**62)
    assert [job.key for job in jobs] == [(-(2**63) + 5) ^ 3, (-(2**63) + 5) ^ 9]
    _, (slots, copies), _ = unpack_order(pack_order("train", ([4, 6], jobs), RoundInfo()))
    assert slots == [4, 6]
    assert isinstance(copies, Jobs)
    same_jobs(jobs, copies)


def same_jobs(jobs, others):
    for job, same in zip(jobs, others, strict=True):
        assert job._replace(rows={}) == same._replace(rows={})
        assert list(job.rows) == list(same.rows)
        for each, other in zip(job.rows.values(), same.rows.values(), strict=True):
            np.testing.assert_array_equal(np.concatenate(each), np.concatenate(other))
            assert len(each.order) == len(other.order)


@pytest.mark.parametrize("error", [PrivacyError("`a` must be b."), MoietyError("`a` must be \ud800."), KeyError("a")])
def test_errors_keep_their_kind_and_their_words(error):
    answer = unpack_answer(pack_answer(error))
    if isinstance(error, MoietyError):
        assert (type(answer), str(answer)) == (type(error), str(error))
    else:
        assert (type(answer), str(answer)) == (RuntimeError, "KeyError('a')")
    assert unpack_answer(pack_answer(["one", "two\nthree"])) == ["one", "two\nthree"]


# Errors, and what is left.


def test_an_error_in_a_worker_is_one_line(tmp_path):
    trouble = tmp_path / "trouble"
    trouble.write_text("ValueError first line\nsecond line")
    text = refused(lambda: fit("processes:sequential", model=net(trouble), workers=2), "first line second line")
    assert text.startswith("`model` must be trainable on every client, got an error at client c")
    assert "round 1" in text
    assert children() == []


def test_an_error_that_no_one_expects_reaches_the_caller(tmp_path):
    trouble = tmp_path / "trouble"
    trouble.write_text("what is this")
    with pytest.raises(Exception, match="what is this"):
        fit("processes:sequential", model=net(trouble), workers=2)
    assert children() == []


def test_batch_norm_with_one_row_is_the_same_line_as_in_the_sequential_engine():
    data = federation((8, 1, 12), test=0.0)
    options = {"data": data, "cohort": 3, "evaluate_on": "train"}
    algorithm = fedalt(personal_epochs=1)
    texts = [
        refused(lambda engine=engine: fit(engine, algorithm, batch_norm_net(), **options), "at least two .*client c1")
        for engine in ("sequential", "processes:sequential")
    ]
    assert texts[0] == texts[1]


def test_a_model_that_cannot_be_vectorised_is_refused():
    text = refused(lambda: fit("processes:vectorised", mo.fedavg(shared=0.1), dropout_net(), workers=2), "vectorise")
    assert "Use engine sequential" in text


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("enough")], ids=repr)
def test_nothing_is_left_after_an_exception(error):
    with pytest.raises(type(error)):
        fit("processes:sequential", workers=3, callbacks=[raising(error)])
    assert children() == []


@pytest.mark.parametrize("engine", ["processes", "auto"])
def test_nothing_is_left_after_an_interrupt_while_engines_are_measured(engine, monkeypatch):
    measure_always(monkeypatch)
    inner = Processes.map
    calls = []

    def interrupted(self: Any, *args: Any, **options: Any) -> Any:
        calls.append(self)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return inner(self, *args, **options)

    monkeypatch.setattr(Processes, "map", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(engine, workers=2)
    pids = children()
    for each in calls:  # so that a fault here is not one of the next test's as well
        each.close()
    assert pids == []


def test_a_closed_engine_holds_no_files_open():
    fit("processes:sequential", workers=2, rounds=1)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        fit("processes:sequential", workers=2, rounds=1)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


SCRIPT = """
import sys, time
from test_processes import fit, mlp
wait = lambda run, record: time.sleep(300 * (record.round == 3))
fit("processes:sequential", model=mlp(), rounds=5, workers=3, out=sys.argv[1], callbacks=[wait])
"""


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def gone(pids: set[int]) -> bool:
    return not any(psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE for p in pids)


def test_interrupted_from_the_keyboard(tmp_path):
    """Ctrl-C goes to the whole group: the run ends with a checkpoint, its workers with it, and it goes on."""
    out = tmp_path / "run"
    paths = os.pathsep.join([str(FOLDER), str(FOLDER.parent / "oracles")])
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(out)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    try:
        assert wait_until(lambda: lines(out / "history.jsonl") >= 2 or child.poll() is not None)
        workers = {p.pid for p in psutil.Process(child.pid).children(recursive=True)}
        assert len(workers) == 2
        os.killpg(child.pid, signal.SIGINT)
        _, error = child.communicate(timeout=300)
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        child.wait()
    assert "KeyboardInterrupt" in error
    assert child.returncode in (-signal.SIGINT, 130)
    assert wait_until(lambda: gone(workers))
    (checkpoint,) = (out / "checkpoint").glob("round-*")
    last = json.loads((checkpoint / "state.json").read_text())["round"]
    assert 1 <= last <= 3  # the row of round 2 is seen before its checkpoint is there
    # No worker had a traceback to show.
    assert error.count("Traceback") <= 1, error
    run = mo.resume(out, data=DATA)
    assert run.engine == "processes:sequential"
    same_runs(fit("sequential", model=mlp(), rounds=5), run)


def test_workers_end_when_their_parent_is_killed(tmp_path):
    out = tmp_path / "run"
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            fit("processes:sequential", workers=3, rounds=10**6, out=out, checkpoint_every=10**6)
        os._exit(1)
    try:
        assert wait_until(lambda: lines(out / "history.jsonl") >= 2)
        workers = {p.pid for p in psutil.Process(child).children(recursive=True)}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert len(workers) == 2
    assert wait_until(lambda: gone(workers))


# The pieces.


def leaves_of(seed: int) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(seed)
    return {
        "a": (torch.randn(3, generator=draw), torch.randn((), generator=draw, dtype=torch.float64)),
        "b": torch.randint(0, 9, (2, 1), generator=draw),
        "none": torch.zeros(0, 4),
        "c": torch.randint(0, 2, (5,), generator=draw).bool(),
        "d": torch.randn(4, 4, generator=draw)[:, 1],
    }


def test_the_arena():
    arena = Arena(leaves_of(0), 3)
    for slot in (2, 0, 1, 2):
        arena.write(slot, leaves_of(10 + slot))
    for slot in range(3):
        actual, expected = tree.leaves(arena.read(slot)), tree.leaves(leaves_of(10 + slot))
        assert actual.keys() == expected.keys()
        for path, x in expected.items():
            assert actual[path].dtype == x.dtype
            assert torch.equal(actual[path], x)
            assert x.numel() == 0 or actual[path].data_ptr() % ALIGN == 0
    with pytest.raises(ValueError, match="zip"):
        arena.write(0, {"a": torch.zeros(3)})


@given(sizes=st.lists(st.integers(0, 50), max_size=20), shares=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_every_job_is_dealt_once_and_the_work_is_even(sizes, shares):
    jobs = [Job(i, {"local": Rows(np.zeros(n, dtype=int), np.array([n]))}, n, None) for i, n in enumerate(sizes)]
    parts = deal_jobs(jobs, shares)
    assert len(parts) == shares
    assert sorted(i for share in parts for i in share) == list(range(len(sizes)))
    assert all(share == sorted(share) for share in parts)
    loads = [sum(sizes[i] for i in share) for share in parts]
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_what_a_run_shows_does_not_lie_in_the_workers_memory():
    """Results of a run stay as they are when the next run of the same size reuses whatever memory there is."""
    run = fit("processes:sequential", workers=2)
    before = contents(run)
    fit("processes:sequential", fedalt(momentum=0.9), workers=2, seed=9)
    after = contents(run)
    assert before == after
