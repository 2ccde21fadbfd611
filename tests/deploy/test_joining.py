"""Who takes part and what is told: newcomers, names that stay, metrics as far as they are allowed, robust joining."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from local_grid import LocalGrid, federation, make_app, nodes_of, serve_here, small_model
from test_equals_simulation import compare, exact

import moiety as mo
from moiety.deploy.letters import read_message
from moiety.deploy.roster import load_roster
from moiety.deploy.scores import count_steps, share_row

OPTIONS: dict[str, Any] = {"rounds": 4, "seed": 5}


def fedalt() -> mo.Algorithm:
    return mo.fedalt(shared=mo.sgd(0.1, batch_size=4), personal=0.05)


def test_a_newcomer_joins_and_names_keep_their_positions_when_nodes_change_their_ids(tmp_path: Path) -> None:
    data, model = federation((6, 9, 12, 17)), small_model()
    app = make_app(model, data, fedalt(), tmp_path, split=mo.split.output_layer(model), **OPTIONS, clients=3)
    nodes = nodes_of(data, tmp_path)
    late = next(node for node, config in nodes.items() if config["name"] == "c0")  # the first by name comes last
    grid = LocalGrid(app, {node: config for node, config in nodes.items() if node != late})

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        if message.metadata.group_id == "1":
            grid.nodes[late] = nodes[late]
        if message.metadata.group_id == "2":  # every node starts again, with another id
            grid.nodes = {node if node > 2**64 - 100 else 2**64 - 1 - k: c for k, (node, c) in enumerate(_all(nodes))}
        return call(message)

    grid.deliver = deliver
    run = serve_here(app, grid)
    roster = load_roster(tmp_path / "server", run._loop.progress.run)
    assert [member.name for member in roster.members] == ["c1", "c2", "c3", "c0"]
    assert all(member.node > 2**64 - 100 for member in roster.members)
    assert [len(row["dropped"]) for row in run.history] == [0, 0, 4, 0]
    turns = [int(run._loop.progress.store.get([client])[0]["used"]) for client in range(4)]
    assert turns == [3, 3, 3, 3]  # round 3 was lost for all, and nobody counts it
    # The server goes on with more clients than it began with.
    again = make_app(model, data, fedalt(), tmp_path, split=mo.split.output_layer(model), **OPTIONS, clients=3)
    longer = serve_here(again, LocalGrid(again, nodes), rounds=5)
    assert [int(longer._loop.progress.store.get([client])[0]["used"]) for client in range(4)] == [4, 4, 4, 4]
    device = app.device(nodes[late])
    own = device.own_run()
    assert own.predict(device.name, data.columns["x"][:3]).shape == (3,)
    text = (tmp_path / "server" / "devices.json").read_text()
    assert json.loads(text)["members"][0]["node"].isdecimal()
    assert device_token(device.folder) not in text


def _all(nodes: dict[int, dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    return list(nodes.items())


def device_token(folder: Path) -> str:
    return str(json.loads((folder / "device.json").read_text())["token"])


def test_a_newcomer_predicts_by_the_algorithms_own_rule_before_it_is_asked(tmp_path: Path) -> None:
    data, model = federation((6, 9, 12, 17)), small_model()
    split = mo.split.output_layer(model)
    app = make_app(model, data, fedalt(), tmp_path, split=split, **OPTIONS, cohort=1)
    run = serve_here(app, LocalGrid(app, nodes_of(data, tmp_path)))
    never = [c for c in range(4) if int(run._loop.progress.store.get([c])[0]["used"]) < 0]
    assert never, "with a cohort of one and four rounds somebody is never asked"
    simulated = mo.fit(model, data, fedalt(), engine="sequential", split=split, **OPTIONS, cohort=1)
    for client in never:
        name = str(data.ids[client])
        device = app.device({"name": name, "folder": str(tmp_path / "devices" / name)})
        own = device.own_run().parameters(name)
        # The rule itself, called by hand on the client's rows.
        from dataclasses import replace

        from moiety.run.predict import current_state

        loop = simulated._loop
        state = current_state(loop, client, replace(loop.algorithm, stateful=False))
        received = loop.problem.broadcast(loop.algorithm, loop.progress.server)
        expected = loop.problem.compose(*loop.algorithm.personal_model(received, state))
        assert exact(own) == exact(expected)


@pytest.mark.parametrize("share", ["none", "histogram", "per_client"])
def test_scores_leave_a_device_only_as_the_plan_allows(share: str, tmp_path: Path) -> None:
    data, model = federation((8, 9, 12, 17, 9)), small_model()
    split = mo.split.output_layer(model)
    app = make_app(model, data, fedalt(), tmp_path, split=split, **OPTIONS, share_metrics=share, floor=5)
    grid = LocalGrid(app, nodes_of(data, tmp_path))
    run = serve_here(app, grid)
    heads = [(kind, read_message(answer, 1 << 30).head) for kind, _, _, answer in grid.log if answer is not None]
    train = [head for kind, head in heads if kind == "train"]
    evaluations = [head for kind, head in heads if kind == "evaluate"]
    simulated = mo.fit(model, data, fedalt(), engine="sequential", split=split, **OPTIONS)
    assert exact(simulated._loop.progress.server) == exact(run._loop.progress.server)
    if share == "none":
        assert not evaluations
    if share == "histogram":
        assert all(set(head["scores"]) == {"metric", "gain", "hurt"} for head in evaluations)
        last = run.history[-1]
        assert sum(last["metric_histogram"].values()) == last["clients"] == 5
        assert last["hurt"] == simulated.history[-1]["hurt"]
        by_hand = [int(np.floor(row["metric"] / 0.05 + 1e-9)) for row in simulated.clients]
        assert last["metric_histogram"] == {f"{k * 0.05:.2f}": by_hand.count(k) for k in sorted(set(by_hand))}
    if share != "per_client":
        assert all(head["info"] == {} for head in train)
        assert all(row["train_loss"] is None and row["metric"] is None for row in run.history)
        assert run.clients == []
        return
    assert [row["train_loss"] for row in simulated.history] == [row["train_loss"] for row in run.history]
    assert run.history[-1]["metric"] == pytest.approx(simulated.history[-1]["metric"], abs=1e-12)


def test_a_histogram_of_too_few_is_not_recorded() -> None:
    row = {"client": "a", "n": 3, "n_test": 1, "metric": 0.94, "gain": -0.01, "hurt": True}
    shared = share_row(row, "histogram")
    assert shared == {"metric": 18, "gain": -1, "hurt": True}
    assert count_steps([shared] * 4, 5) == {}
    assert count_steps([shared] * 5, 5)["metric_histogram"] == {"0.90": 5}


@pytest.mark.parametrize("codec", [mo.codec.qsgd(levels=7), mo.codec.rand_k(k=0.5), mo.codec.sparse()])
def test_codecs_and_robust_aggregators_do_on_devices_what_they_do_in_a_simulation(codec: Any, tmp_path: Path) -> None:
    data, model = federation((6, 9, 12, 17)), small_model()
    settings = mo.Settings(codec=codec, aggregator=mo.aggregator.trimmed_mean(byzantine=1))
    options = {"split": mo.split.output_layer(model), **OPTIONS, "settings": settings}
    simulated = mo.fit(model, data, fedalt(), engine="sequential", **options)
    app = make_app(model, data, fedalt(), tmp_path, **options)
    compare(simulated, serve_here(app, LocalGrid(app, nodes_of(data, tmp_path))), tmp_path)
    quiet = make_app(model, data, fedalt(), tmp_path / "quiet", **options, share_metrics="none")
    run = serve_here(quiet, LocalGrid(quiet, nodes_of(data, tmp_path / "quiet")))
    assert exact(simulated._loop.progress.server) == exact(run._loop.progress.server)
    assert [row["dropped"] for row in run.history] == [[]] * 4  # a loss that is not told is no fault


@pytest.mark.parametrize("share", ["none", "per_client"])
def test_the_servers_folder_opens_as_a_run_without_anybodys_personal_part(share: str, tmp_path: Path) -> None:
    data, model = federation((6, 9)), small_model()
    split = mo.split.output_layer(model)
    app = make_app(model, data, fedalt(), tmp_path, split=split, **OPTIONS, share_metrics=share)
    nodes = nodes_of(data, tmp_path)
    run = serve_here(app, LocalGrid(app, nodes))
    again = make_app(model, data, fedalt(), tmp_path, split=split, **OPTIONS, share_metrics=share)
    resumed = serve_here(again, LocalGrid(again, nodes))  # the server starts again after its end
    assert exact(run._loop.progress.server) == exact(resumed._loop.progress.server)
    assert len(resumed.clients) == (2 if share == "per_client" else 0)
    stored_run = mo.load(tmp_path / "server", model=model, split=split)
    assert exact(stored_run.shared_parameters()) == exact(run.shared_parameters())
    with pytest.raises(mo.MoietyError, match="Its personal part is on its device"):
        stored_run.export("c0")
    with pytest.raises(mo.MoietyError, match="Start the server"):
        mo.resume(tmp_path / "server", model=model, split=split, data=data, rounds=9)
    files = [path for path in (tmp_path / "server").rglob("*") if path.is_file()]
    personal = [p for config in nodes.values() for p in _personal_bytes(app, config, split)]
    assert personal
    assert not [path for path in files for p in personal if path.stat().st_size < 1 << 20 and p in path.read_bytes()]


def _personal_bytes(app: Any, config: dict[str, Any], split: mo.Split) -> list[bytes]:
    device = app.device(config)
    own = device.own_run().parameters(device.name)
    return [own[name].numpy().tobytes() for name in split.personal]
