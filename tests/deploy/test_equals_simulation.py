"""What devices compute is what a simulation computes, bit for bit: server, personal states, losses, bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from local_grid import LocalGrid, federation, make_app, nodes_of, serve_here, small_model

import moiety as mo
from moiety import tree
from moiety.deploy.journal import Journal
from moiety.deploy.letters import read_message

ALGORITHMS: dict[str, Callable[[], Any]] = {
    "fedavg": lambda: mo.fedavg(shared=mo.sgd(0.1, epochs=2, batch_size=4)),
    "fedalt": lambda: mo.fedalt(shared=mo.sgd(0.1, batch_size=4), personal=0.05),
    "scaffold": lambda: mo.scaffold(shared=mo.sgd(0.1, steps=3, batch_size=4)),
    "fedspa": lambda: mo.fedspa(shared=mo.sgd(0.1, steps=3, batch_size=4), density=0.5, masks="different"),
    "sub_fedavg": lambda: mo.sub_fedavg(shared=mo.sgd(0.1, epochs=2, batch_size=4), accuracy=0.0, distance=0.0),
    "fedpop": lambda: mo.fedpop(shared=mo.sgd(0.05), personal=mo.kernel.langevin(step=0.01)),
    "ffgg": lambda: mo.ffgg(shared=0.1, personal=mo.solver.lbfgs(steps=3)),
}


def exact(value: Any) -> dict[str, Any]:
    leaves = {k: torch.as_tensor(v) for k, v in tree.leaves(value).items()}
    return {k: (v.dtype, tuple(v.shape), v.contiguous().numpy().tobytes()) for k, v in leaves.items()}


def states_on_devices(run: mo.Run, folder: Path) -> dict[int, Any]:
    """The state that each device keeps, of the turn that the server used last."""
    loop, states = run._loop, {}
    first = loop.problem.first_state(loop.algorithm)
    for client, name in enumerate(loop.problem.data.ids):
        turn = int(loop.progress.store.get([client])[0]["used"])
        journal = Journal(folder / "devices" / str(name), loop.progress.run)
        states[client] = first if turn < 0 else journal.read_state(turn, first)
    return states


def compare(simulated: mo.Run, deployed: mo.Run, folder: Path) -> None:
    one, other = simulated._loop, deployed._loop
    assert exact(one.progress.server) == exact(other.progress.server)
    if one.keeps_states:
        for client, state in states_on_devices(deployed, folder).items():
            assert exact(one.progress.store.get([client])[0]) == exact(state), client
    ours = {k: v for k, v in deployed.ledger.items() if k != "device_memory"}
    assert ours == {k: v for k, v in simulated.ledger.items() if k != "device_memory"}
    assert [row["train_loss"] for row in simulated.history] == [row["train_loss"] for row in deployed.history]
    for a, b in zip(simulated.clients, deployed.clients, strict=True):
        assert a.keys() >= b.keys() - {"client"}
        assert a["client"] == b["client"]
        assert a["metric"] == pytest.approx(b["metric"], abs=1e-12)
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-6)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_devices_equal_the_simulation_bit_for_bit(name: str, tmp_path: Path) -> None:
    data, model = federation(), small_model()
    algorithm = ALGORITHMS[name]()
    split = None if algorithm.default_split else mo.split.output_layer(model)
    options = {"split": split, "rounds": 4, "cohort": 3, "seed": 5}
    simulated = mo.fit(model, data, algorithm, engine="sequential", **options)
    app = make_app(model, data, algorithm, tmp_path, **options)
    grid = LocalGrid(app, nodes_of(data, tmp_path))
    deployed = serve_here(app, grid)
    compare(simulated, deployed, tmp_path)
    # The ledger counts the bytes that really crossed; sparse messages are smaller on the wire, too.
    turns = [(message, answer) for kind, _, message, answer in grid.log if kind == "train"]
    for key, messages in zip(("down_payload", "up_payload"), zip(*turns, strict=True), strict=True):
        assert deployed.ledger[key] == sum(len(read_message(each, 1 << 30).body) for each in messages), key
