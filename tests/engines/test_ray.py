"""The Ray engine is the sequential one, bit for bit, whatever happens to its actors."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flat_options import flat
from run_settings import with_settings
from torch import Tensor, nn

import moiety as mo
from moiety.engines.auto import ENGINES
from moiety.engines.ray import Ray, connect
from moiety.engines.ray_messages import digest, pack
from moiety.engines.vectorised import Vectorised

ray = pytest.importorskip("ray")

SIZES = (4, 9, 12, 17, 25, 40, 7)


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two workers on this machine, begun as the engine begins one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # by default workers give way to all else, and wait under load
        _, own = connect(None, 2)
        assert own
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not know where tests lie
        yield
        ray.shutdown()


@pytest.fixture
def engines(cluster, monkeypatch):
    """The Ray engines that runs make, as they make them."""
    instances: list[Ray] = []

    def make(problem: Any, functions: Any, workers: int | None = None, **inner: Any) -> Ray:
        instances.append(Ray(problem, functions, workers=workers, **inner))
        return instances[-1]

    monkeypatch.setitem(ENGINES, "ray:sequential", make)
    monkeypatch.setitem(ENGINES, "ray:vectorised", partial(make, inner=Vectorised))
    return instances


class Net(nn.Module):
    """Where ``trouble`` is a file, an actor at work on it raises the error that the file names, or ends its process."""

    def __init__(self, trouble: Path | None = None) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)
        with torch.no_grad():
            for i, p in enumerate(self.parameters()):
                p.copy_(torch.from_numpy(np.random.default_rng(i).normal(size=p.shape) / 2))
        self.trouble, self.home = trouble, os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        if self.trouble and os.getpid() != self.home:
            with contextlib.suppress(FileNotFoundError):  # there is none, or another actor took it
                if text := self.trouble.read_text():
                    raise RuntimeError(text)
                if not self.trouble.with_suffix(".forever").exists():
                    self.trouble.unlink()
                os._exit(1)
        return self.head(torch.tanh(self.body(x)))


class Noisy(Net):
    """Running statistics, of which one is an integer, and random numbers while training."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(self.body, nn.BatchNorm1d(5), nn.Dropout(0.3))


class Scaled(Net):
    """A parameter of the outermost module's own: not in a layer, and before the personal part."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5, 1.0, 1.5, 2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * self.scale)


def federation() -> mo.FederatedData:
    """Clients of uneven sizes, each with a rule of its own for three classes."""
    draw = np.random.default_rng(0)
    clients = {}
    for i, size in enumerate(SIZES):
        x = draw.normal(size=(size, 4)).astype(np.float32)
        clients[f"c{i}"] = {"x": x, "y": (x @ draw.normal(size=(4, 3))).argmax(1)}
    return mo.data.from_clients(clients, test=0.25)


def fedalt(**options: Any) -> mo.Algorithm:
    return flat(mo.fedalt, shared_lr=0.1, personal_lr=0.2, personal_epochs=2, batch_size=8, **options)


def fit(engine: str, algorithm: mo.Algorithm, model: nn.Module, **options: Any) -> mo.Run:
    split = mo.split.nothing(model) if algorithm.name == "fedavg" else mo.split.by_name(model, personal=["head"])
    options = {"rounds": 3, "cohort": 5, "evaluate_every": 1, **options}
    return mo.fit(model, federation(), algorithm, **with_settings(split=split, engine=engine, **options))


def same(one: mo.Run, other: mo.Run) -> None:
    """Assert that two runs are equal bit for bit, all but the time they took."""
    histories = [[{**row, "seconds": 0} for row in run.history] for run in (one, other)]
    assert histories[0] == histories[1]
    assert one.clients == other.clients
    assert one.ledger == other.ledger
    for client in range(len(SIZES)):
        a, b = one.parameters(client), other.parameters(client)
        assert all(torch.equal(a[name], b[name]) for name in a), client


def refusal(call: Any) -> str:
    with pytest.raises(mo.MoietyError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def inside(actor: Any, function: Any) -> Any:
    """What the function of an actor gives, called where the actor is."""
    return ray.get(actor.__ray_call__.remote(function))


CASES = {
    "fedavg": (lambda: mo.fedavg(shared=mo.sgd(0.1, batch_size=10)), Noisy, 1),
    "fedalt stateless": (lambda: fedalt(stateful=False), Scaled, 2),
}


@pytest.mark.parametrize("case", CASES)
def test_the_same_as_sequential(case, engines):
    make_algorithm, make_model, actors = CASES[case]
    algorithm, model = make_algorithm(), make_model()
    same(fit("sequential", algorithm, model), fit("ray:sequential", algorithm, model, workers=actors))
    assert engines[0].count == actors


def test_blocks_at_actors_give_the_same_up_to_rounding(engines, tmp_path):
    """The model draws nothing at random, so it can be vectorised."""
    plain = fit("sequential", fedalt(), Scaled())
    run = fit("ray:vectorised", fedalt(), Scaled(), out=tmp_path / "run")
    assert run.config["run"]["workers"] == 2  # which clients are computed together depends on it
    for client in range(len(SIZES)):
        for name, p in run.parameters(client).items():
            torch.testing.assert_close(p, plain.parameters(client)[name], atol=2e-6, rtol=1e-5)


class Overheard:
    """Stands before an actor and notes which clients' states it is sent."""

    def __init__(self, actor: Any, sent: list[int]) -> None:
        self.actor, self.sent, self.serve = actor, sent, self

    def remote(self, order: Any, received: Any) -> Any:
        self.sent += order.absent
        return self.actor.serve.remote(order, received)


def test_actors_hold_rows_and_states_of_their_own_clients_and_end(engines):
    """Looked at between rounds of a run that is the same as the sequential one."""
    actors: list[Any] = []
    owners: list[int] = []
    shards, states, hashes = [], [], []

    def watch(run: Any, record: Any) -> None:
        if record.round == 1:
            actors.extend(engines[0].actors)
            engines[0].actors = [Overheard(actor, owners) for actor in actors]
        if record.round == 3:
            engines[0].actors = list(actors)
            hashes.extend(engines[0].actor_states)
            shards.extend(inside(actor, lambda self: self.engine.problem.columns) for actor in actors)
            states.extend(inside(actor, lambda self: self.states) for actor in actors)

    model, data = Net(), federation()
    run = fit("ray:sequential", fedalt(), model, callbacks=[watch])
    same(fit("sequential", fedalt(), model), run)
    assert len(engines) == 1
    assert len(actors) == 2
    assert owners == []  # since the first evaluation all states are where they belong
    store = run._loop.progress.store
    for w in range(2):
        own = range(w, len(SIZES), 2)
        for name, column in data.columns.items():
            rows = np.concatenate([column[data.bounds[c, 0] : data.bounds[c, 3]] for c in own])
            assert np.array_equal(shards[w][name].numpy(), rows), name
        assert set(states[w]) == set(own)
        for client, state in zip(own, store.get(own), strict=True):
            assert digest(pack(states[w][client])) == digest(pack(state)) == hashes[w][client]
    assert engines[0].actors == []
    for actor in actors:
        with pytest.raises(ray.exceptions.RayActorError):
            inside(actor, lambda self: None)
    assert ray.is_initialized()  # it was there before the engine was


def test_lost_actors_lose_nothing(engines, tmp_path):
    """One killed between rounds, one that dies at work, a run that stops: resumed with one actor, it ends the same."""
    trouble = tmp_path / "trouble"
    model = Net(trouble)
    pids = []

    def disturb(run: Any, record: Any) -> None:
        pids.append({inside(actor, lambda self: os.getpid()) for actor in engines[0].actors})
        if record.round == 1:
            os.kill(min(pids[0]), signal.SIGKILL)
        if record.round == 2:
            trouble.touch()
        if record.round == 3:
            raise KeyboardInterrupt

    whole = fit("sequential", fedalt(), model, rounds=4)
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fit("ray:sequential", fedalt(), model, rounds=4, out=out, callbacks=[disturb])
    assert not trouble.exists()
    # Two at a time, another in each of the two rounds.
    assert [len(now) for now in pids] == [2, 2, 2]
    assert len(pids[0] & pids[1]) == len(pids[1] & pids[2]) == 1
    assert min(pids[0]) not in pids[1]
    again = mo.resume(
        out,
        model=model,
        data=federation(),
        split=mo.split.by_name(model, personal=["head"]),
        engine="ray:sequential",
        settings=mo.Settings(workers=1),
    )
    assert [each.count for each in engines] == [2, 1]
    same(whole, again)


@pytest.fixture
def alone(engines, monkeypatch):
    """The same with one actor each."""
    make = ENGINES["ray:sequential"]
    monkeypatch.setitem(ENGINES, "ray:sequential", lambda *args, **options: make(*args, workers=1))
    return engines


def test_an_error_in_an_actor_is_one_line(alone, tmp_path):
    trouble = tmp_path / "trouble"
    trouble.write_text("first line\nsecond line")
    text = refusal(lambda: fit("ray:sequential", mo.fedavg(shared=0.1), Net(trouble), cohort=1, evaluate_every=3))
    assert text.startswith("`model` must be trainable on every client, got an error at client c")
    assert "round 1: first line second line" in text


def test_clients_that_bring_down_every_actor_are_named(alone, tmp_path, monkeypatch):
    monkeypatch.setattr(Ray, "tries", 2)
    for suffix in ("", ".forever"):
        (tmp_path / f"trouble{suffix}").touch()
    text = refusal(lambda: fit("ray:sequential", mo.fedavg(shared=0.1), Net(tmp_path / "trouble"), cohort=1))
    assert text.startswith("`workers` must be actors that live, got 2 that died in round 1 while serving clients c")
    assert alone[0].actors == []


def test_what_cannot_begin_is_one_line(engines, monkeypatch):
    lock = threading.Lock()

    def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
        with lock:
            return nn.functional.cross_entropy(output, batch["y"], reduction="none")

    text = refusal(lambda: fit("ray:sequential", mo.fedavg(shared=0.1), Net(), loss=loss))
    assert text.startswith("`model` must be one that can be sent to other processes, got ")
    monkeypatch.setitem(ENGINES, "ray:sequential", lambda *args, **options: Ray(*args, workers=3))
    text = refusal(lambda: fit("ray:sequential", mo.fedavg(shared=0.1), Net()))
    assert text == "`workers` must be at most 2, the cores of the Ray cluster, got 3."
    monkeypatch.setitem(sys.modules, "ray", None)
    text = refusal(lambda: fit("ray:sequential", mo.fedavg(shared=0.1), Net()))
    assert text == "`engine` must be one that is installed, got ray. Install it with: pip install 'moiety[ray]'"


def test_where_an_engine_connects(monkeypatch):
    """To the address, to that of the environment, or to a cluster of its own; and it ends what it began."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    text = refusal(lambda: connect(f"127.0.0.1:{port}", None))
    assert text.startswith(f"`address` must be that of a running Ray cluster, got 127.0.0.1:{port}. The reason: ")
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(socket, "create_connection", lambda *args, **options: server)
    monkeypatch.setattr(ray, "init", lambda **options: calls.append(options))
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append({"shutdown": True}))
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(ray, "put", lambda value: None)
    monkeypatch.setenv("RAY_ADDRESS", "there:1")
    problem = fit("sequential", mo.fedavg(shared=0.1), Net(), rounds=1)._loop.problem
    Ray(problem, {}).close()
    Ray(problem, {}, address="here:2").close()
    monkeypatch.delenv("RAY_ADDRESS")
    Ray(problem, {}, workers=1).close()
    assert [call.get("address", "end") for call in calls] == ["there:1", "end", "here:2", "end", "local", "end"]
    assert "num_cpus" not in calls[0]
    assert calls[4]["num_cpus"] == 1


class HalfStarted:
    """Stands for Ray's node, which gives up on processes that take longer than thirty seconds to start."""

    def __init__(self) -> None:
        self.ended: list[dict[str, bool]] = []

    def start(self) -> None:
        raise Exception("The current node timed out\nduring startup.")

    def kill_all_processes(self, **options: bool) -> None:
        self.ended.append(options)


@pytest.mark.parametrize("failures", [2, 3])
def test_a_cluster_that_is_slow_to_start_is_begun_again(failures, monkeypatch):
    """Twice too slow is made good; three times is one line. What was begun is ended each time."""
    nodes: list[HalfStarted] = []

    def init(**options: Any) -> None:
        if len(nodes) < failures:
            nodes.append(HalfStarted())
            nodes[-1].start()

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    if failures == 2:
        assert connect(None, 1) == (ray, True)
    else:
        text = refusal(lambda: connect(None, 1))
        assert text.startswith("`engine` must be ray with a cluster that starts, got 3 that did not: The current node")
    assert [len(node.ended) for node in nodes] == [1] * failures
    assert all(node.ended[0]["wait"] for node in nodes)
