"""A device that lies, repeats itself or has a wrong clock: the others train on as if it had said nothing.

``test_faults.py`` has kills and what is not readable at all, ``processes/test_real_faults.py`` faults between real
processes.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from local_grid import LocalGrid, federation, make_app, nodes_of, serve_here, small_model
from safetensors.numpy import load as load_numpy
from safetensors.numpy import save as save_numpy
from test_equals_simulation import exact, states_on_devices

import moiety as mo

BAD = "c1"
"""The device that misbehaves."""


def make(folder: Path, **options: Any) -> tuple[Any, LocalGrid]:
    """FedAlt on four devices, three of them a round."""
    data, model = federation(), small_model()
    algorithm = mo.fedalt(shared=mo.sgd(0.1, batch_size=4), personal=mo.sgd(0.05, batch_size=4))
    split = mo.split.output_layer(model)
    common = {"split": split, "rounds": 5, "cohort": 3, "seed": 5, "deadline": 0.3, "share_metrics": "none"}
    app = make_app(model, data, algorithm, folder, **{**common, **options})
    return app, LocalGrid(app, nodes_of(data, folder))


def is_bad(grid: LocalGrid, message: Message) -> bool:
    return message.metadata.message_type == "train" and grid.nodes[message.metadata.dst_node_id]["name"] == BAD


def everything(run: mo.Run, folder: Path) -> list[Any]:
    """The server's state and that of every device, to the last bit."""
    states = states_on_devices(run, folder)
    return [exact(run._loop.progress.server), *(exact(states[client]) for client in sorted(states))]


@pytest.fixture(scope="module")
def silent(tmp_path_factory) -> list[Any]:
    """How the run ends where the bad device answers nothing at all."""
    folder = tmp_path_factory.mktemp("silent")
    app, grid = make(folder)
    grid.deliver = lambda message, call: None if is_bad(grid, message) else call(message)
    return everything(serve_here(app, grid), folder)


def reply(message: Message, head: Any, body: bytes | None) -> Message:
    """An answer as a device writes it, with whatever in it."""
    text = head if isinstance(head, str) else json.dumps(head)
    record = RecordDict({"head": ConfigRecord({"json": text})})
    if body is not None:
        array = Array(dtype="uint8", shape=(len(body),), stype="moiety.raw", data=body)
        record["body"] = ArrayRecord({"b": array})
    return Message(record, reply_to=message)


def parts(answer: Message) -> tuple[dict[str, Any], bytes]:
    head = json.loads(str(answer.content.config_records["head"]["json"]))
    return head, bytes(answer.content.array_records["body"]["b"].data)


def spoil_numbers(body: bytes, value: float) -> bytes:
    """The same tensors with one number of each replaced."""
    tensors = {name: np.array(each) for name, each in load_numpy(body).items()}
    for each in tensors.values():
        each.reshape(-1)[0] = value
    return save_numpy(tensors)


RUBBISH: dict[str, Callable[[Message, dict[str, Any], bytes], Message]] = {
    "head that is a list": lambda m, head, body: reply(m, [1], body),
    "head of nothing": lambda m, head, body: reply(m, {}, body),
    "cut short": lambda m, head, body: reply(m, head, body[:-7]),
    "one byte more": lambda m, head, body: reply(m, head, body + b"\0"),
    "another tensor": lambda m, head, body: reply(m, head, save_numpy({"x": np.zeros(3, np.float32)})),
    "another type": lambda m, head, body: reply(
        m, head, save_numpy({k: v.astype(np.float64) for k, v in load_numpy(body).items()})
    ),
    "infinite": lambda m, head, body: reply(m, head, spoil_numbers(body, np.inf)),
    "weight below zero": lambda m, head, body: reply(m, {**head, "weight": -1.0}, body),
    "weight not finite": lambda m, head, body: reply(
        m, json.dumps({**head, "weight": 1.0}).replace("1.0", "NaN"), body
    ),
    # Python fills these with zeros when somebody reads them, so a check that reads none takes no memory.
    "a thousand million bytes": lambda m, head, body: reply(m, head, bytes(10**9)),
    "an earlier round": lambda m, head, body: reply(m, {**head, "round": head["round"] - 1}, body),
    "a later round": lambda m, head, body: reply(m, {**head, "round": head["round"] + 1}, body),
}


@pytest.mark.parametrize("kind", RUBBISH)
def test_a_device_that_sends_rubbish_is_left_out_and_nobody_else_notices(kind, silent, tmp_path):
    """Server and all devices end to the bit as where that device had said nothing."""
    app, grid = make(tmp_path)

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        answer = call(message)
        return RUBBISH[kind](message, *parts(answer)) if is_bad(grid, message) else answer

    grid.deliver = deliver
    run = serve_here(app, grid)
    assert any(mtype == "train" and grid.nodes[node]["name"] == BAD for mtype, node, *_ in grid.log)
    assert everything(run, tmp_path) == silent
    why = [text for row in run.history for text in row["dropped"] if BAD in str(text)]
    assert why
    assert all("\n" not in str(text) for text in why)


def test_a_replayed_answer_is_refused(silent, tmp_path):
    """The device's first answer comes back for every later round: it counts once, in its own round."""
    app, grid = make(tmp_path)
    first: list[Message] = []
    rounds: list[int] = []

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        answer = call(message)
        if not is_bad(grid, message):
            return answer
        first.append(answer)
        head, body = parts(first[0])
        if len(first) > 1:
            rounds.append(int(message.metadata.group_id) if message.metadata.group_id.isdigit() else -1)
        return reply(message, head, body)

    grid.deliver = deliver
    run = serve_here(app, grid)
    assert rounds
    turn = int(run._loop.progress.store.get([1])[0]["used"])
    assert turn == parts(first[0])[0]["round"]
    assert len([text for row in run.history for text in row["dropped"] if BAD in str(text)]) == len(rounds)


@pytest.fixture(scope="module")
def faultless(tmp_path_factory) -> list[Any]:
    """How the run ends where nothing goes wrong."""
    folder = tmp_path_factory.mktemp("faultless")
    app, grid = make(folder)
    return everything(serve_here(app, grid), folder)


def test_an_answer_that_is_lost_is_given_again_and_counted_once(faultless, tmp_path):
    """Every message to every device comes twice, the second time to a new process."""
    app, grid = make(tmp_path)

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        before = call(message)
        if message.metadata.message_type != "train":
            return before
        grid.app, _ = make(tmp_path)
        again = call(message)
        assert parts(before) == parts(again)
        return again

    grid.deliver = deliver
    assert everything(serve_here(app, grid), tmp_path) == faultless


@pytest.mark.parametrize("hours", [-24 * 400, 24 * 400])
def test_wrong_clocks_change_nothing(hours, faultless, tmp_path, monkeypatch):
    """The time of day jumps by more than a year between any two messages; deadlines do not use it."""
    now = time.time
    shift = [0.0]
    app, grid = make(tmp_path)

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        shift[0] = 0.0 if shift[0] else hours * 3600.0
        return call(message)

    grid.deliver = deliver
    monkeypatch.setattr(time, "time", lambda: now() + shift[0])
    assert everything(serve_here(app, grid), tmp_path) == faultless


def test_a_device_whose_folder_is_lost_says_so_and_the_others_go_on(tmp_path):
    """Its personal state is gone: it must not train on as if it were new, unnoticed."""
    app, grid = make(tmp_path, rounds=2)
    before = int(serve_here(app, grid)._loop.progress.store.get([1])[0]["used"])
    shutil.rmtree(tmp_path / "devices" / BAD)
    app, grid = make(tmp_path, rounds=4, deadline=0.2)
    with pytest.warns(UserWarning, match="c1 did not take the last model: `state` must be that of turn"):
        run = serve_here(app, grid)
    assert run._loop.progress.round == 4
    assert int(run._loop.progress.store.get([1])[0]["used"]) == before
    assert max(int(run._loop.progress.store.get([k])[0]["used"]) for k in (0, 2, 3)) == 3
