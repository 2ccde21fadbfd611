"""Kills, losses and rubbish: no state is lost, no round counts twice, numbers stay those of the simulation."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from local_grid import LocalGrid, federation, make_app, nodes_of, serve_here, small_model
from night import NIGHTLY
from test_equals_simulation import compare, exact, states_on_devices

import moiety as mo
from moiety import deploy, files
from moiety.deploy.journal import Journal
from moiety.deploy.letters import Letter, read_message, write_record
from moiety.transport import pack, unpack

OPTIONS: dict[str, Any] = {"rounds": 4, "cohort": 3, "seed": 5}


class KilledError(BaseException):
    """Stands for kill -9: nothing catches it."""


def algorithm() -> mo.Algorithm:
    return mo.fedalt(shared=mo.sgd(0.1, batch_size=4), personal=0.05)


def simulate(data: mo.FederatedData, **options: Any) -> mo.Run:
    model = small_model()
    arguments = {**OPTIONS, "split": mo.split.output_layer(model), **options}
    return mo.fit(model, data, algorithm(), engine="sequential", **arguments)


def new_app(data: mo.FederatedData, folder: Path, **options: Any) -> deploy.App:
    model = small_model()
    return make_app(model, data, algorithm(), folder, **{**OPTIONS, "split": mo.split.output_layer(model), **options})


def is_train(message: Message) -> bool:
    return message.metadata.message_type == "train"


@pytest.mark.parametrize("when", ["before the work", "after the work", "while evaluating"])
@pytest.mark.parametrize("turn", [1, 5])
def test_a_killed_server_goes_on_as_if_nothing_had_happened(when: str, turn: int, tmp_path: Path) -> None:
    data = federation()
    app, nodes = new_app(data, tmp_path), nodes_of(data, tmp_path)
    grid = LocalGrid(app, nodes)
    count = [0]

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        kind = "evaluate" if when == "while evaluating" else "train"
        count[0] += message.metadata.message_type == kind
        stop = message.metadata.message_type == kind and count[0] == turn
        if stop and when == "before the work":
            raise KilledError
        answer = call(message)
        if stop:
            raise KilledError
        return answer

    grid.deliver = deliver
    with pytest.raises(KilledError):
        serve_here(app, grid)
    again = new_app(data, tmp_path)
    run = serve_here(again, LocalGrid(again, nodes))
    compare(simulate(data), run, tmp_path)


def count_calls(monkeypatch: pytest.MonkeyPatch, fail_at: int = 0) -> list[int]:
    """Count what changes a disk from now on; kill the process at one of these calls."""
    count, plain = [0], files.system_call

    def counting(call: Any, *arguments: Any) -> Any:
        count[0] += 1
        if count[0] == fail_at:
            raise KilledError
        return plain(call, *arguments)

    monkeypatch.setattr(files, "system_call", counting)
    return count


def test_a_federation_that_is_killed_at_any_write_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Server and devices lie on one machine here, whose power is cut: between a checkpoint and its letters, too."""
    data = federation((6, 7, 9))
    options: dict[str, Any] = {"rounds": 2, "cohort": 2, "settings": mo.Settings(evaluate_every=1)}
    expected = simulate(data, **options)

    def serve_in(folder: Path) -> mo.Run:
        app = new_app(data, folder, **options)
        return serve_here(app, LocalGrid(app, nodes_of(data, folder)))

    with monkeypatch.context() as patch:
        total = count_calls(patch)
        compare(expected, serve_in(tmp_path / "whole"), tmp_path / "whole")
    assert total[0] > 100
    step = 1 if NIGHTLY else total[0] // 10
    for at in range(1, total[0] + 1, step):
        folder = tmp_path / f"killed-{at}"
        with monkeypatch.context() as patch:
            count_calls(patch, at)
            with pytest.raises(KilledError):
                serve_in(folder)
        run = serve_in(folder)
        compare(expected, run, folder)
        assert [row["round"] for row in run.history] == [1, 2], at


@pytest.mark.parametrize("kind", ["kill", "full disk"])
def test_a_device_that_fails_at_any_write_of_a_turn_comes_back_consistent(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = federation((6, 7))
    app, nodes = new_app(data, tmp_path, cohort=2, rounds=2), nodes_of(data, tmp_path)
    grid = LocalGrid(app, nodes)
    serve_here(app, grid, rounds=1)
    reference = new_app(data, tmp_path, cohort=2, rounds=2)
    letters = []
    grid = LocalGrid(reference, nodes)

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        if is_train(message):
            letters.append((message, read_message(message, 1 << 30)))
            raise KilledError
        return call(message)

    grid.deliver = deliver
    with pytest.raises(KilledError):
        serve_here(reference, grid)
    message, letter = letters[0]
    config = nodes[message.metadata.dst_node_id]
    expected, lines = None, []
    plain = files.system_call
    for at in range(1, 200):
        device = new_app(data, tmp_path, cohort=2, rounds=2).device(config)
        count = [0]

        def failing(call: Any, *arguments: Any, count: list[int] = count, at: int = at) -> Any:
            count[0] += 1
            if count[0] == at:
                raise KilledError if kind == "kill" else OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return plain(call, *arguments)

        monkeypatch.setattr(files, "system_call", failing)
        try:
            answer = device.answer("train", letter)
        except KilledError:
            answer = None
        except mo.MoietyError as error:
            lines.append(str(error))
            answer = None
        monkeypatch.setattr(files, "system_call", plain)
        fresh = new_app(data, tmp_path, cohort=2, rounds=2).device(config)
        again = fresh.answer("train", letter)
        expected = expected or again
        assert again == expected
        assert answer in (None, expected)
        assert fresh.answer("train", letter) == expected
        state = Journal(fresh.folder, letter.head["run"]).read_state(letter.head["round"], first_state(fresh, letter))
        assert exact(state)
        if answer is not None and count[0] < at:
            break
        # As before the turn: the next kill comes at the next call.
        for path in Journal(fresh.folder, letter.head["run"]).folder.glob(f"turn-{letter.head['round']:08d}*"):
            path.unlink()
    assert at > 8, "every write of the turn was tried"
    assert all("No space left" in line for line in lines)


def first_state(device: deploy.Device, letter: Letter) -> Any:
    ready = device.ready(letter.head["run"])
    return ready.problem.first_state(ready.algorithm)


def test_rounds_without_some_answers_equal_a_simulation_of_those_who_answered(tmp_path: Path) -> None:
    """A device that never hears of round 2, and one whose answer to round 3 is lost, keep their states."""
    data = federation()
    app, nodes = new_app(data, tmp_path, cohort=4, deadline=0.3), nodes_of(data, tmp_path)
    grid = LocalGrid(app, nodes)
    node = next(node for node, config in nodes.items() if config["name"] == "c1")

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message | None:
        if not is_train(message) or message.metadata.dst_node_id != node:
            return call(message)
        if message.metadata.group_id == "1":
            return None
        answer = call(message)
        return None if message.metadata.group_id == "2" else answer

    grid.deliver = deliver
    run = serve_here(app, grid)
    assert run.history[-1]["round"] == 4
    dropouts = [name for row in run.history for name in row["dropped"]]
    assert dropouts == ["2:c1", "3:c1"]
    # By hand: the same rounds, in which c1 is not asked.
    cohorts = {0: [0, 1, 2, 3], 1: [0, 2, 3], 2: [0, 2, 3], 3: [0, 1, 2, 3]}
    assert_same_as_cohorts(run, data, cohorts, tmp_path)


def test_an_answer_that_comes_too_late_neither_counts_nor_harms(tmp_path: Path) -> None:
    """c1 answers round 2 while the server waits for round 3: its upload is thrown away, its state goes back."""
    data = federation()
    app, nodes = new_app(data, tmp_path, cohort=4, deadline=0.3), nodes_of(data, tmp_path)
    grid, late = LocalGrid(app, nodes), list[Message]()

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message | None:
        answer = call(message)
        if is_train(message) and message.metadata.group_id == "2" and late:
            grid.answers.setdefault(str(late[0].metadata.reply_to_message_id), late[0])
        if (
            is_train(message)
            and message.metadata.group_id == "1"
            and nodes[message.metadata.dst_node_id]["name"] == "c1"
        ):
            late.append(answer)
            return None
        return answer

    grid.deliver = deliver
    run = serve_here(app, grid)
    assert [name for row in run.history for name in row["dropped"]] == ["2:c1"]
    assert list(grid.answers.values()) == late, "nobody has asked for it"
    assert_same_as_cohorts(run, data, {0: [0, 1, 2, 3], 1: [0, 2, 3], 2: [0, 1, 2, 3], 3: [0, 1, 2, 3]}, tmp_path)
    # The ledger counts what was used or refused, not what nobody fetched.
    size = len(read_message(late[0], 1 << 30).body)
    assert run.ledger["up_payload"] == 15 * size


def assert_same_as_cohorts(run: mo.Run, data: mo.FederatedData, cohorts: dict[int, list[int]], folder: Path) -> None:
    import numpy as np

    from moiety.loop import round as rounds

    patch = pytest.MonkeyPatch()
    patch.setattr(rounds, "uniform_cohort", lambda clients, size, *, seed, round: np.array(cohorts[round]))
    try:
        simulated = simulate(data, cohort=4)
    finally:
        patch.undo()
    assert exact(simulated._loop.progress.server) == exact(run._loop.progress.server)
    for client, state in states_on_devices(run, folder).items():
        assert exact(simulated._loop.progress.store.get([client])[0]) == exact(state), client


def change_upload(answer: Message, message: Message, change: Callable[[dict[str, torch.Tensor]], Any]) -> Message:
    letter = read_message(answer, 1 << 30)
    tensors = unpack(letter.body)
    return Message(write_record(Letter(letter.head, pack(change(tensors)))), reply_to=message)


def raw_reply(message: Message, **records: Any) -> Message:
    return Message(RecordDict(records), reply_to=message)


RUBBISH: dict[str, Callable[[Message, Message], Message]] = {
    "no record of ours": lambda message, answer: raw_reply(message, odd=ConfigRecord({"a": 1})),
    "no table": lambda message, answer: raw_reply(message, head=ConfigRecord({"json": "[1"})),
    "bytes that are no tensors": lambda message, answer: Message(
        write_record(Letter(read_message(answer, 1 << 30).head, b"rubbish" * 9)), reply_to=message
    ),
    "another round": lambda message, answer: Message(
        write_record(read_message(answer, 1 << 30)._replace(head={**read_message(answer, 1 << 30).head, "round": 99})),
        reply_to=message,
    ),
    "a weight that is text": lambda message, answer: Message(
        write_record(
            read_message(answer, 1 << 30)._replace(head={**read_message(answer, 1 << 30).head, "weight": "much"})
        ),
        reply_to=message,
    ),
    "NaN": lambda message, answer: change_upload(
        answer, message, lambda tensors: {name: p * float("nan") for name, p in tensors.items()}
    ),
    "another shape": lambda message, answer: change_upload(
        answer, message, lambda tensors: {name: p.reshape(-1)[:1] for name, p in tensors.items()}
    ),
    "a tensor too many": lambda message, answer: change_upload(
        answer, message, lambda tensors: {**tensors, "3.weight": torch.ones(3, 5)}
    ),
    "too many bytes": lambda message, answer: raw_reply(
        message,
        head=ConfigRecord({"json": "{}"}),
        body=ArrayRecord({"b": Array(dtype="uint8", shape=(200_001,), stype="moiety.raw", data=b"\\0" * 200_001)}),
    ),
}


@pytest.mark.parametrize("what", RUBBISH)
def test_rubbish_of_one_node_is_refused_and_the_others_go_on(what: str, tmp_path: Path) -> None:
    data = federation()
    app, nodes = new_app(data, tmp_path, cohort=4, rounds=2, largest_message=200_000), nodes_of(data, tmp_path)
    grid = LocalGrid(app, nodes)
    node = next(node for node, config in nodes.items() if config["name"] == "c2")

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        answer = call(message)
        bad = is_train(message) and message.metadata.dst_node_id == node and message.metadata.group_id == "1"
        return RUBBISH[what](message, answer) if bad else answer

    grid.deliver = deliver
    run = serve_here(app, grid)
    assert [name for row in run.history for name in row["dropped"]] == ["2:c2"]
    turns = [int(run._loop.progress.store.get([client])[0]["used"]) for client in range(4)]
    assert turns == [1, 1, 0, 1]


def answer_of(grid: LocalGrid, node: int, letter: Letter, kind: str = "train") -> str:
    """The line with which a device refuses a letter."""
    device = grid.app.device(grid.nodes[node])
    with pytest.raises(mo.MoietyError) as error:
        device.answer(kind, letter)
    text = str(error.value)
    assert "\n" not in text
    return text


def test_a_device_refuses_what_the_server_must_not_send(tmp_path: Path) -> None:
    data = federation()
    app, nodes = new_app(data, tmp_path, cohort=4), nodes_of(data, tmp_path)
    grid = LocalGrid(app, nodes)
    serve_here(app, grid)
    letters = [(node, read_message(message, 1 << 30)) for kind, node, message, _ in grid.log if kind == "train"]
    node, last = letters[-1]
    old = next(letter for each, letter in letters if each == node and letter.head["round"] == 1)
    assert "`round` must be after turn" in answer_of(grid, node, old)
    ahead = {**last.head, "round": 4, "used": 3, "rounds": 9}
    tensors = unpack(last.body)
    name = next(iter(tensors))
    bodies = {
        "`broadcast` must be finite": {**tensors, name: tensors[name] * torch.inf},
        "`broadcast` must be of shape": {**tensors, name: tensors[name][:1]},
        "`broadcast` must be all declared": {key: p for key, p in tensors.items() if key != name},
        "`broadcast` must be the declared": {**tensors, "more": torch.ones(1)},
    }
    for line, params in bodies.items():
        assert line in answer_of(grid, node, Letter(ahead, pack(params)))
    heads = {
        "`plan` must be the same": {**ahead, "digest": "another"},
        "`position` must be": {**ahead, "position": 9},
        "`run` must be the id": {**ahead, "run": "../elsewhere"},
        "`run` must be one that the device has joined": {**ahead, "run": "abcdef"},
        "`round` must be a whole number": {**ahead, "round": "4"},
        "`round` must be after": {**ahead, "round": 9},
        "`state` must be that of turn": {**ahead, "used": 5, "round": 6},
    }
    for line, head in heads.items():
        assert line in answer_of(grid, node, Letter(head, last.body))
    assert "whole safetensors" in answer_of(grid, node, Letter(ahead, b"rubbish"))


def test_another_device_cannot_take_a_name_and_other_plans_are_refused(tmp_path: Path) -> None:
    data = federation()
    app, nodes = new_app(data, tmp_path, cohort=4, rounds=2, clients=4), nodes_of(data, tmp_path)
    nodes[77] = {"name": "c0", "folder": str(tmp_path / "thief")}
    late = dict(nodes)
    del nodes[77]
    grid = LocalGrid(app, nodes)

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        if is_train(message):
            grid.nodes = late
        return call(message)

    grid.deliver = deliver
    run = serve_here(app, grid)
    assert [row["dropped"] for row in run.history] == [[], []]
    assert not (tmp_path / "thief" / "runs").exists()
    model = mo.models.mlp(4, 3, hidden=(5,), seed=4)  # other first values
    other = make_app(model, data, algorithm(), tmp_path, **OPTIONS, split=mo.split.output_layer(model))
    head = next(read_message(m, 1 << 30).head for kind, _, m, _ in grid.log if kind == "query.welcome")
    device = other.device({"name": "c9", "folder": str(tmp_path / "c9")})
    device.load = lambda preprocessing: new_app(data, tmp_path).device(next(iter(nodes.values()))).load(None)  # type: ignore[method-assign]
    with pytest.raises(mo.MoietyError, match="first values"):
        device.answer("welcome", Letter(head))
