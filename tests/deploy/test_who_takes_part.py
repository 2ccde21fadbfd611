"""Rounds with too few answers are left out; who comes during the run is onboarded as in a simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from local_grid import LocalGrid, federation, make_app, nodes_of, serve_here, small_model
from test_equals_simulation import ALGORITHMS, exact, states_on_devices
from test_faults import assert_same_as_cohorts, is_train, new_app

import moiety as mo
from moiety.deploy.roster import load_roster
from moiety.loop import round as loop_round
from moiety.run.predict import current_state


@pytest.mark.parametrize(("least", "members"), [(2, [0, 3]), (3, [])], ids=["enough", "too few"])
def test_a_round_with_fewer_answers_than_least_is_left_out(least: int, members: list[int], tmp_path: Path) -> None:
    """In round 2 two of four devices answer. Where three are needed, no turn counts, and all go on from round 1."""
    data = federation()
    app, nodes = new_app(data, tmp_path, cohort=4, deadline=0.3, least=least), nodes_of(data, tmp_path)
    grid = LocalGrid(app, nodes)

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message | None:
        answer = call(message)
        lost = is_train(message) and message.metadata.group_id == "1"
        return None if lost and nodes[message.metadata.dst_node_id]["name"] in ("c1", "c2") else answer

    grid.deliver = deliver
    if members:
        run = serve_here(app, grid)
    else:
        with pytest.warns(UserWarning, match="Round 2 is left out: 2 finite uploads, 3 are needed"):
            run = serve_here(app, grid)
    assert [name for row in run.history for name in row["dropped"]] == ["2:c1", "2:c2"]
    everyone = [0, 1, 2, 3]
    assert_same_as_cohorts(run, data, {0: everyone, 1: members, 2: everyone, 3: everyone}, tmp_path)
    heads = [head for kind, head in sent_heads(grid) if kind == "train" and head["round"] == 2]
    assert sorted(head["used"] for head in heads) == sorted(1 if client in members else 0 for client in everyone)


def sent_heads(grid: LocalGrid) -> list[tuple[str, dict[str, Any]]]:
    from moiety.deploy.letters import read_message

    return [(kind, read_message(message, 1 << 30).head) for kind, _, message, _ in grid.log]


COHORTS = {0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1, 2], 3: [0, 1, 3], 4: [1, 2, 3]}
"""Client 3 comes in the second round, hears of the third and is asked in the fourth."""


@pytest.mark.parametrize("name", ["fedalt", "fedspa", "ffgg", "fedpop"])
def test_a_newcomer_is_onboarded_to_the_simulations_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is asked it has the model that the algorithm's own rule gives; then it trains as any client.

    The rule of FedSpa looks for a new mask, and a device knows the server's values under its first mask alone: there
    the two differ until the device is asked.
    """
    data, model, algorithm = federation(), small_model(), ALGORITHMS[name]()
    split = None if algorithm.default_split else mo.split.output_layer(model)
    monkeypatch.setattr(
        loop_round, "uniform_cohort", lambda clients, size, *, seed, round: np.array(COHORTS[round], dtype=np.int64)
    )
    options = {"split": split, "cohort": 3, "seed": 5}
    app = make_app(
        model, data, algorithm, tmp_path, **options, rounds=5, clients=3, settings=mo.Settings(evaluate_every=1)
    )
    nodes = nodes_of(data, tmp_path)
    (late,) = [node for node, config in nodes.items() if config["name"] == "c3"]
    grid = LocalGrid(app, {node: config for node, config in nodes.items() if node != late})
    models: list[dict[str, Any]] = []

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        kind, node, group = message.metadata.message_type, message.metadata.dst_node_id, message.metadata.group_id
        if kind == "train" and group == "1":
            grid.nodes[late] = nodes[late]
        answer = call(message)
        if kind == "evaluate" and node == late and group == "evaluate 3":
            assert not answer.has_error()
            other = make_app(model, data, algorithm, tmp_path, **options, rounds=5, clients=3)
            models.append(exact(other.device(nodes[late]).own_run().parameters("c3")))
        return answer

    grid.deliver = deliver
    run = serve_here(app, grid)
    members = load_roster(tmp_path / "server", run._loop.progress.run).members
    assert [member.name for member in members] == ["c0", "c1", "c2", "c3"]
    assert [row["dropped"] for row in run.history] == [[]] * 5
    # The whole run: server and devices.
    whole = mo.fit(model, data, algorithm, engine="sequential", **options, rounds=5)._loop
    assert exact(whole.progress.server) == exact(run._loop.progress.server)
    if whole.keeps_states:
        for client, mine in states_on_devices(run, tmp_path).items():
            assert exact(whole.progress.store.get([client])[0]) == exact(mine), client
    # The rule itself, called on the client's rows in a simulation of the first three rounds.
    loop = mo.fit(model, data, algorithm, engine="sequential", **options, rounds=3)._loop
    state = current_state(loop, 3, replace(loop.algorithm, stateful=False))
    received = loop.problem.broadcast(loop.algorithm, loop.progress.server)
    expected = exact(loop.problem.compose(*loop.algorithm.personal_model(received, state)))
    assert len(models) == 1
    assert (models[0] == expected) == (name != "fedspa")
