"""Do no harm on devices: each makes the simulation's choice, keeps it, and predicts and exports by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from local_grid import LocalGrid, make_app, nodes_of, serve_here, small_model

import moiety as mo
from moiety.deploy.folders import write_model
from moiety.deploy.letters import read_message
from moiety.evaluation.safeguard import choose
from moiety.run.folder import SAFEGUARD
from moiety.run.safeguard import Chooser

OPTIONS: dict[str, Any] = {"rounds": 2, "seed": 5}


def own_rules(clients: int = 8) -> mo.FederatedData:
    """Half of the clients have a rule of their own, the others one in common."""
    draw = np.random.default_rng(1)
    common, rows = draw.normal(size=(4, 3)), {}
    for i in range(clients):
        x = draw.normal(size=(24, 4)).astype(np.float32)
        rule = draw.normal(size=(4, 3)) if i % 2 else common
        rows[f"c{i}"] = {"x": x, "y": (x @ rule).argmax(1)}
    return mo.data.from_clients(rows, test=0.25, validation=0.25, seed=0)


def make(folder: Path, share: str) -> tuple[mo.FederatedData, Any, Any, LocalGrid, dict[str, Any]]:
    data, model = own_rules(), small_model()
    options = {**OPTIONS, "split": mo.split.output_layer(model), "safeguard": True}
    method = mo.fedalt(shared=mo.sgd(0.3, batch_size=8), personal=mo.sgd(0.5, batch_size=8))
    app = make_app(model, data, method, folder, **options, share_metrics=share)
    with pytest.warns(UserWarning, match="shared part of fedalt"):
        simulated = mo.fit(model, data, method, engine="sequential", **options)
    return data, simulated, app, LocalGrid(app, nodes_of(data, folder)), options


def answers_of(grid: LocalGrid, kind: str) -> list[dict[str, Any]]:
    return [
        read_message(answer, 1 << 30).head for each, _, _, answer in grid.log if each == kind and answer is not None
    ]


def test_devices_choose_as_the_clients_of_a_simulation_and_use_their_choice_offline(tmp_path: Path) -> None:
    data, simulated, app, grid, _ = make(tmp_path, "per_client")
    serve_here(app, grid)
    assert len({each.weight for each in simulated.choices.values()}) > 1, "or the choice decides nothing"
    x = data.columns["x"][:9]
    for config in grid.nodes.values():
        device = app.device(config)
        own = device.own_run()
        assert own.choices == {device.name: simulated.choices[device.name]}
        assert np.array_equal(own.predict_proba(device.name, x), simulated.predict_proba(device.name, x))
        (file,) = device.folder.rglob(SAFEGUARD)
        assert file.stat().st_mode & 0o077 == 0
        target = tmp_path / f"{device.name}.safetensors"
        count = write_model(app, device.folder, target, "")
        tensors = simulated.export(device.name).state_dict()
        assert count == sum(each.numel() for each in tensors.values())
    # Eleven numbers of each device, once, and nothing of the choice.
    heads = answers_of(grid, "query.weigh")
    assert len(heads) == len(data)
    for head in heads:
        assert set(head) == {"round", "evidence"}
        assert {name: np.size(value) for name, value in head["evidence"].items()} == {
            "means": 4,
            "variances": 4,
            "rows": 1,
            "hint": 1,
            "validation": 1,
        }
    assert all(head == {"round": 2} for head in answers_of(grid, "query.end"))
    assert not list((tmp_path / "server").rglob("safeguard*"))


def test_devices_that_share_no_scores_choose_by_a_test_of_their_own(tmp_path: Path) -> None:
    data, simulated, app, grid, _ = make(tmp_path, "histogram")
    serve_here(app, grid)
    assert not answers_of(grid, "query.weigh")
    assert all(head == {"round": 2} for head in answers_of(grid, "query.end"))
    evidence = Chooser(simulated._loop, simulated._loss, "predictions").gather(range(len(data)))
    for name, facts in zip(map(str, data.ids), evidence, strict=True):
        device = app.device({"name": name, "folder": str(tmp_path / "devices" / name)})
        assert device.own_run().choices == {name: choose(facts, None)}
    device = app.device({"name": "c0", "folder": str(tmp_path / "devices" / "c0")})
    (message,) = [m for kind, node, m, _ in grid.log if kind == "query.end" and grid.nodes[node]["name"] == "c0"]
    with pytest.raises(mo.MoietyError, match="one that the plan allows"):
        device.answer("weigh", read_message(message, 1 << 30))


def test_a_device_that_missed_the_end_chooses_by_itself_and_stays_with_it(tmp_path: Path) -> None:
    _, simulated, app, grid, _ = make(tmp_path, "per_client")

    def deliver(message: Message, call: Any) -> Message | None:
        late = message.metadata.message_type in ("query.end", "query.weigh")
        return None if late and grid.nodes[message.metadata.dst_node_id]["name"] == "c1" else call(message)

    grid.deliver = deliver
    serve_here(app, grid, deadline=0.3)
    device = app.device({"name": "c1", "folder": str(tmp_path / "devices" / "c1")})
    (first,) = device.own_run().choices.values()
    assert first.rows == simulated.choices["c1"].rows
    assert device.own_run().choices == {"c1": first}


EVIDENCE = {"means": [0.0] * 4, "variances": [0.0] * 4, "rows": 3, "hint": 0.0, "validation": 0.0}


@pytest.mark.parametrize(
    ("evidence", "line"),
    [
        ([], "a table of numbers"),
        ({**EVIDENCE, "means": [1.0]}, "4 numbers up to"),
        ({**EVIDENCE, "means": [float("nan")] * 4}, "4 numbers up to"),
        ({**EVIDENCE, "variances": [-1.0] * 4}, ">= 0"),
        ({**EVIDENCE, "rows": 0}, "number of rows"),
        ({**EVIDENCE, "hint": "x"}, "a number up to"),
        ({**EVIDENCE, "validation": float("inf")}, "`evidence.validation` must be a number up to"),
        ({**EVIDENCE, "validation": None, "more": 1}, "a table of numbers"),
    ],
)
def test_evidence_that_cannot_be_is_refused(evidence: Any, line: str) -> None:
    from moiety.deploy.choice import read_summary

    class Scored:
        score_outputs = object()

    with pytest.raises(mo.MoietyError, match=line):
        read_summary(evidence, Scored())  # type: ignore[arg-type]
