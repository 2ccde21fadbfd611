"""The text of an error may hold a cell of somebody's table: it stays on the device, whose owner reads it in the log."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Error, Message, RecordDict
from local_grid import LocalGrid, federation, loader, nodes_of, serve_here, small_model

import moiety as mo
from moiety import deploy
from moiety.deploy import worker

SECRET = "John Smith, diabetes"
BAD = "c1"


class SmithError(Exception):
    """An error of the user's own code."""


RAISED: dict[str, Callable[[], Exception]] = {
    "ValueError": lambda: ValueError(f"could not convert {SECRET!r}"),
    "KeyError": lambda: KeyError(SECRET),
    "SmithError": lambda: SmithError(SECRET),
    "MoietyError": lambda: mo.MoietyError(f"`cell` must be a number, got {SECRET}."),
    "FileNotFoundError": lambda: FileNotFoundError(2, "No such file or directory", f"/home/{SECRET}.csv"),
}


def find_everywhere(grid: LocalGrid, folder: Path) -> list[str]:
    """The places on the server's side where the secret is: in messages, and in files."""
    messages = [
        kind
        for kind, _, _, answer in grid.log
        if answer is not None and SECRET in (answer.error.reason if answer.has_error() else str(answer.content))
    ]
    files = [str(path) for path in folder.rglob("*") if path.is_file() and path.stat().st_size < 1 << 20]
    return [*messages, *(path for path in files if SECRET.encode() in Path(path).read_bytes())]


@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("calls", [0, 1])
def test_what_a_loader_raises_stays_on_its_device(kind, calls, tmp_path, caplog):
    """The loader fails when the device says hello, or one call later, when it joins."""
    data, model = federation((6, 9, 12, 17)), small_model()
    load, count = loader(data), [0]

    def load_site(config: Mapping[str, Any]) -> Any:
        count[0] += config["name"] == BAD
        if config["name"] == BAD and count[0] > calls:
            raise RAISED[kind]()
        return load(config)

    options = {"split": mo.split.output_layer(model), "rounds": 2, "seed": 5, "clients": 3, "deadline": 0.3}
    app = deploy.app(model, mo.fedalt(shared=0.1, personal=0.05), data=load_site, out=tmp_path / "server", **options)
    grid = LocalGrid(app, nodes_of(data, tmp_path))
    with caplog.at_level(logging.INFO, logger="moiety"):
        serve_here(app, grid)
    refusals = [answer.error.reason for *_, answer in grid.log if answer is not None and answer.has_error()]
    assert refusals
    assert all(text.startswith(kind) for text in refusals)
    assert kind != "FileNotFoundError" or "(No such file or directory)" in refusals[0]
    assert not find_everywhere(grid, tmp_path / "server")
    records = [record for record in caplog.records if "cannot take part" in record.message]
    assert records
    assert not [record for record in records if SECRET in record.message]
    own = [record for record in caplog.records if record.message.startswith("refused")]
    assert SECRET in own[0].message + str(own[0].exc_text or own[0].exc_info)


def test_what_training_raises_stays_on_its_device(tmp_path):
    """A loss of the user's own that fails in the second round of one device."""
    data, model = federation((6, 9, 12, 17)), small_model()
    split = mo.split.output_layer(model)
    app = deploy.app(
        model,
        mo.fedalt(shared=0.1, personal=0.05),
        data=loader(data),
        split=split,
        out=tmp_path / "server",
        rounds=3,
        clients=4,
        deadline=0.3,
        settings=mo.Settings(evaluate_every=1),
    )
    grid = LocalGrid(app, nodes_of(data, tmp_path))

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        name = grid.nodes[message.metadata.dst_node_id]["name"]
        if message.metadata.message_type == "train" and message.metadata.group_id == "1" and name == BAD:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("moiety.engines.sequential.Sequential.map", fail)
                return call(message)
        return call(message)

    def fail(*arguments: Any) -> Any:
        raise ZeroDivisionError(SECRET)

    grid.deliver = deliver
    run = serve_here(app, grid)
    assert [name for row in run.history for name in row["dropped"]] == [f"2:{BAD}"]
    assert run.history[1]["dropped_reasons"] == ["ZeroDivisionError: the device's own log says more."]
    assert not find_everywhere(grid, tmp_path / "server")


def test_a_worker_whose_app_cannot_be_loaded_says_no_more_than_the_kind_of_error(monkeypatch):
    """Neither in the answer nor in the details of its task, both of which leave the device."""
    from flwr.supernode.runtime import run_clientapp

    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    message.metadata.__dict__["_message_id"] = "m"
    outputs: list[Any] = []
    monkeypatch.setattr(run_clientapp, "pull_task_input", lambda line: (message, None, None, None))
    monkeypatch.setattr(run_clientapp, "push_message", lambda line, answer, context: outputs.append(answer))
    monkeypatch.setattr(run_clientapp, "push_task_output", lambda *arguments: outputs.append(arguments[-1]))
    mine = worker.Worker.__new__(worker.Worker)
    monkeypatch.setattr(mine, "open_task", lambda token: contextlib.nullcontext(SimpleNamespace()))

    def load(task: Any) -> Any:
        raise ImportError(SECRET)

    monkeypatch.setattr(mine, "load", load)
    mine.serve("token")
    answer, details = outputs
    assert isinstance(answer.error, Error)
    assert answer.error.reason == details == "ImportError: the device's own log says more."
