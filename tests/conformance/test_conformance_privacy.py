"""Personal names never in an upload, in a broadcast, nor in the server's checkpoint."""

from dataclasses import replace

import pytest
import torch
from conformance_table import NAMES, TABLE
from oracle_problems import federated, image_clients
from safetensors import safe_open

import moiety as mo
from moiety import tree
from moiety.loop.exchange import Exchange, declare_layouts
from moiety.transport import PrivacyError
from moiety.types import ClientUpdate

DATA = federated(image_clients([3, 5, 2]))


def model():
    return mo.models.mlp(4, 3, hidden=(5,), seed=2)


@pytest.mark.parametrize("row", TABLE, ids=NAMES)
def test_personal_names_stay_away_from_the_server(row, tmp_path, monkeypatch):
    net = model()
    split = row.split(net)
    inner = row.build()
    if row.weighted:
        inner = row.build(server=mo.server.adam(lr=0.1))
    if inner.sparsity and inner.sparsity.for_seed:  # a run would build it anew, and nobody would watch that
        inner = inner.sparsity.for_seed(0)
    down, up = [], []

    def broadcast(server):
        down.append(inner.broadcast(server))
        return down[-1]

    def receive(exchange, received, clients, results, t):
        up.extend(update.upload for update, _, _ in results)
        return Exchange.receive(exchange, received, clients, results, t)

    monkeypatch.setattr("moiety.loop.round.Exchange", type("Watched", (Exchange,), {"receive": receive}))
    recorder = replace(inner, broadcast=broadcast)
    run = mo.fit(net, DATA, recorder, split=split, rounds=2, engine="sequential", out=tmp_path / "run")
    assert down
    assert len(up) == 2 * 3
    downwards, upwards = declare_layouts(run._loop.problem, inner)
    assert all(set(params) == set(downwards) for params in down)
    assert all(set(params) == set(upwards) for params in up)
    assert not set(split.personal) & {*downwards, *upwards}
    if inner.wire.layout is None:
        assert set(downwards) == set(split.shared)
        assert set(upwards) == (set(split.shared) if inner.aggregator is not None else set())
    checkpoints = list((tmp_path / "run").glob("checkpoint/*/server.safetensors"))
    assert len(checkpoints) == 1
    with safe_open(checkpoints[0], framework="pt") as file:
        keys = list(file.keys())
        tensors = [file.get_tensor(key) for key in keys]
    assert not [k for k in keys for name in split.personal if name in k]
    assert {k.removeprefix("shared/") for k in keys if k.startswith("shared/")} == set(split.shared)
    # No tensor that crossed or that the server has equals one that a client keeps, whatever the names.
    server = tree.leaves(run._loop.progress.server)
    contents = {values(x) for x in [*tensors, *server.values(), *(x for params in down + up for x in params.values())]}
    for state in run._loop.progress.store.get(range(3)):
        for path, leaf in tree.leaves(state).items():
            assert leaf.dtype == torch.bool or values(leaf) not in contents, path


def values(x):
    return tuple(torch.as_tensor(x).flatten().tolist())


def malicious(change, where="upload"):
    """FedAlt whose clients (or server) send ``change(names -> tensors, personal)``."""
    inner = mo.fedalt(shared=0.1, personal=0.1)

    def client_update(work, received, state):
        update, after = inner.client_update(work, received, state)
        return ClientUpdate(change(dict(update.upload), after.personal), update.weight, update.info), after

    return replace(inner, client_update=client_update)


CRIMES = {
    "a personal parameter": lambda up, v: {**up, "head.weight": v["head.weight"]},
    "a personal parameter instead": lambda up, v: {
        "head.weight": v["head.weight"],
        "hidden1.weight": up["hidden1.weight"],
    },
    "an extra key": lambda up, v: {**up, "notes": torch.zeros(1)},
    "another shape": lambda up, v: {**up, "hidden1.bias": torch.zeros(6)},
    "one more axis": lambda up, v: {**up, "hidden1.bias": up["hidden1.bias"][None]},
    "another type": lambda up, v: {**up, "hidden1.bias": up["hidden1.bias"].double()},
    "less than declared": lambda up, v: {"hidden1.bias": up["hidden1.bias"]},
    "nothing": lambda up, v: {},
}


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("crime", CRIMES.values(), ids=CRIMES)
def test_the_guard_stops_an_upload(crime, engine):
    net = model()
    split = mo.split.by_name(net, personal=["head"])
    with pytest.raises(PrivacyError, match=r"^`upload` must be .* \(client client-0, round 1\)\.$"):
        mo.fit(net, DATA, malicious(crime), split=split, rounds=1, engine=engine)


def test_the_guard_stops_a_broadcast():
    net = model()
    inner = mo.fedalt(shared=0.1, personal=0.1)
    leaky = replace(inner, broadcast=lambda server: {**inner.broadcast(server), "head.bias": torch.zeros(3)})
    with pytest.raises(PrivacyError, match=r"^`broadcast` must be .*head\.bias.* \(round 1\)\.$"):
        mo.fit(net, DATA, leaky, split=mo.split.by_name(net, personal=["head"]), rounds=1, engine="sequential")


def test_nothing_is_written_when_the_guard_stops_a_run(tmp_path):
    net = model()
    split = mo.split.by_name(net, personal=["head"])
    with pytest.raises(PrivacyError):
        mo.fit(
            net, DATA, malicious(CRIMES["an extra key"]), split=split, rounds=1, engine="sequential", out=tmp_path / "r"
        )
    assert not list((tmp_path / "r").glob("checkpoint/*"))
    assert not (tmp_path / "r" / "history.jsonl").exists()
