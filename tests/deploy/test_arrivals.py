"""Asynchronous training on devices: real arrivals, written down, and simulated again bit for bit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from local_grid import LocalGrid, federation, make_app, nodes_of, serve_here, small_model
from test_equals_simulation import exact, states_on_devices

import moiety as mo
from moiety import deploy
from moiety.deploy.arrivals import read_arrivals


class SlowGrid(LocalGrid):
    """Answers come in an order of their own, one at a time; those of ``first`` before all others."""

    def __init__(self, *args: Any, first: str = "") -> None:
        super().__init__(*args)
        self.draw, self.first = np.random.default_rng(11), first

    def name_of(self, message: Any) -> str:
        return str(self.nodes[message.metadata.dst_node_id]["name"])

    def pull_messages(self, message_ids: Any) -> Any:
        waiting = sorted(ticket for ticket in message_ids if ticket in self.waiting)
        trains = [t for t in waiting if self.waiting[t].metadata.message_type == "train"]
        if trains and len(trains) == len(waiting):
            trains = [t for t in trains if self.name_of(self.waiting[t]) == self.first] or trains
            waiting = [trains[int(self.draw.integers(len(trains)))]]
        return super().pull_messages(waiting)


class KilledError(Exception):
    pass


@pytest.mark.parametrize("killed", [False, True])
def test_recorded_arrivals_are_simulated_again_bit_for_bit(killed: bool, tmp_path: Path) -> None:
    data, model = federation(), small_model()
    algorithm = mo.fedalt(shared=0.1, personal=0.05)
    options = {"split": mo.split.output_layer(model), "rounds": 12, "seed": 5}
    settings = mo.Settings(clock=mo.clock.asynchronous(active=3), evaluate_every=4)
    app = make_app(model, data, algorithm, tmp_path, settings=settings, **options)
    nodes = nodes_of(data, tmp_path)
    grid = SlowGrid(app, nodes)
    if killed:
        messages = []

        def deliver(message: Any, call: Any) -> Any:
            messages.append(message)
            answer = call(message)
            if len([m for m in messages if m.metadata.message_type == "train"]) == 6:
                raise KilledError  # the device has done its turn, the server never hears of it
            return answer

        grid.deliver = deliver
        with pytest.raises(KilledError):
            serve_here(app, grid)
        app = make_app(model, data, algorithm, tmp_path, settings=settings, **options)
        grid = SlowGrid(app, nodes)
    run = serve_here(app, grid)
    clock = deploy.replay_clock(tmp_path / "server", 3, [str(name) for name in data.ids])
    settings = mo.Settings(clock=clock, evaluate_every=4)
    simulated = mo.fit(model, data, algorithm, engine="sequential", settings=settings, **options)
    assert exact(simulated._loop.progress.server) == exact(run._loop.progress.server)
    for client, state in states_on_devices(run, tmp_path).items():
        assert exact(simulated._loop.progress.store.get([client])[0]) == exact(state), client
    assert [row["staleness"] for row in simulated.history] == [row["staleness"] for row in run.history]
    assert len({row["client"] for row in run.clients}) == 4


@pytest.mark.parametrize("how", ["refused", "silent", "late"])
def test_a_replay_after_turns_that_were_not_used_is_the_same_bit_for_bit(how: str, tmp_path: Path) -> None:
    """One device is refused, says nothing, or answers after the deadline, in some of its turns."""
    data, model = federation(), small_model()
    algorithm = mo.fedalt(shared=0.1, personal=0.05)
    options = {"split": mo.split.output_layer(model), "rounds": 14, "seed": 5}
    settings = mo.Settings(clock=mo.clock.asynchronous(active=3), evaluate_every=7)
    app = make_app(model, data, algorithm, tmp_path, settings=settings, deadline=0.5, **options)
    grid = SlowGrid(app, nodes_of(data, tmp_path), first="c1")
    turns: list[int] = []

    def deliver(message: Any, call: Any) -> Any:
        if message.metadata.message_type != "train" or grid.name_of(message) != "c1":
            if turns and len(turns) % 2 == 0:
                time.sleep(0.1)  # the others are not done with the run before the silence is noticed
            return call(message)
        turns.append(int(message.metadata.group_id))
        answer = call(message)  # its own state has gone on
        if len(turns) % 2:
            return answer
        if how == "late":
            time.sleep(0.6)
            return answer
        return None if how == "silent" else Message(Error(code=2, reason="x"), reply_to=message)

    grid.deliver = deliver
    run = serve_here(app, grid)
    rows = read_arrivals(tmp_path / "server")
    lost_turns = [row for row in rows if row["used"] == "0"]
    assert lost_turns, turns
    assert len(rows) == 14
    assert len(lost_turns) == sum(len(row["dropped"]) for row in run.history)
    clock = deploy.replay_clock(tmp_path / "server", 3, [str(name) for name in data.ids])
    simulated = mo.fit(
        model, data, algorithm, engine="sequential", settings=mo.Settings(clock=clock, evaluate_every=7), **options
    )
    assert exact(simulated._loop.progress.server) == exact(run._loop.progress.server)
    for client, state in states_on_devices(run, tmp_path).items():
        assert exact(simulated._loop.progress.store.get([client])[0]) == exact(state), client
    assert [row["staleness"] for row in simulated.history] == [row["staleness"] for row in run.history]
    assert [row["dropped"] for row in simulated.history] == [row["dropped"] for row in run.history]
