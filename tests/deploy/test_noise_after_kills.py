"""Privacy on devices that are killed, and under a server that is: no draw serves two sums, and each draw is counted."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import get_epsilon_gaussian
from flwr.app import Message
from local_grid import LocalGrid, federation, make_app, nodes_of, serve_here, small_model
from test_faults import KilledError

import moiety as mo
from moiety.deploy.journal import Journal
from moiety.deploy.letters import read_message
from moiety.transport import privacy as noises

ROUNDS, DELTA = 3, 0.01


def begin(folder: Path, where: str, **privacy: Any) -> LocalGrid:
    """Three devices with noise; a grid with new processes of all of them."""
    data, model = federation((6, 9, 12)), small_model()
    arguments = {"clip": 0.05, "delta": DELTA, "where": where, "insecure_seed": 3, **privacy}
    settings = mo.Settings(privacy=mo.privacy.gaussian(**arguments), evaluate_every=1)
    options = {"split": mo.split.output_layer(model), "rounds": ROUNDS, "seed": 5, "settings": settings}
    algorithm = mo.fedalt(shared=0.1, personal=0.05, weighting="uniform")
    app = make_app(model, data, algorithm, folder, **options)
    return LocalGrid(app, nodes_of(data, folder))


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The words that name each draw of noise, as they are drawn."""
    names: list[tuple[Any, ...]] = []
    plain = noises.draw_normal

    def draw(privacy: Any, count: int, *words: Any) -> Any:
        names.append(words)
        return plain(privacy, count, *words)

    monkeypatch.setattr(noises, "draw_normal", draw)
    return names


def count_of(folder: Path) -> int:
    """How many draws a device has counted in its one run."""
    (path,) = folder.glob("runs/*/noise.json")
    return int(json.loads(path.read_text())["drawn"])


def kill_once(when: str) -> Callable[[Message, Callable[[Message], Message]], Message]:
    """Kill the server once, in its second round: before, while or after devices work, or when it has its noisy sum."""
    count = [0]

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        kind = message.metadata.message_type
        at = 4 if kind == "evaluate" else 5 if when == "in the middle" else 4
        count[0] += kind == ("evaluate" if when == "after the sum" else "train")
        stop = count[0] == at and kind == ("evaluate" if when == "after the sum" else "train")
        if stop and when != "after the work":
            raise KilledError
        answer = call(message)
        if stop:
            raise KilledError
        return answer

    return deliver


@pytest.mark.parametrize("when", ["before the work", "in the middle", "after the work", "after the sum"])
@pytest.mark.parametrize("where", ["central", "local"])
def test_a_server_that_is_killed_draws_anew_and_counts_it(
    where: str, when: str, tmp_path: Path, draws: list[tuple[Any, ...]]
) -> None:
    grid = begin(tmp_path, where, noise=0.7)
    grid.deliver = kill_once(when)
    with pytest.raises(KilledError):
        serve_here(grid.app, grid)
    again = begin(tmp_path, where, noise=0.7)
    run = serve_here(again.app, again)
    assert len(draws) == len(set(draws)), "no draw is made twice"
    # The second round's sum had noise where the server was killed after it; it is drawn anew, and both count.
    sums = ROUNDS + (when == "after the sum")
    assert run.ledger["noisy_sums"] == sums
    unit = 0.05 if where == "central" else 0.1  # how far a client moves what leaves, with noise of 0.7 * 0.05
    assert run.ledger["epsilon"] == pytest.approx(get_epsilon_gaussian(0.7 * 0.05 / unit / sums**0.5, DELTA), rel=1e-9)
    if where == "central":
        assert len({words[1] for words in draws if words[0] == "sum"}) == sums
    else:  # a letter that comes again gets the upload that was sent, so devices have drawn once a round
        devices = [count_of(Path(config["folder"])) for config in grid.nodes.values()]
        assert devices == [ROUNDS] * 3


def test_a_letter_that_comes_again_gets_the_same_noise(tmp_path: Path) -> None:
    """With the system's own generator, as in earnest: a second draw would be another, and their mean tells more."""
    grid = begin(tmp_path, "local", noise=0.7, insecure_seed=None)

    def deliver(message: Message, call: Callable[[Message], Message]) -> Message:
        answer = call(message)
        if message.metadata.message_type == "train":
            letter, reply = read_message(message, 1 << 30), read_message(answer, 1 << 30)
            config = grid.nodes[message.metadata.dst_node_id]
            for _ in range(2):
                other = begin(tmp_path, "local", noise=0.7, insecure_seed=None).app.device(config)
                assert other.answer("train", letter) == reply
            assert count_of(other.folder) == letter.head["round"] + 1
        return answer

    grid.deliver = deliver
    assert serve_here(grid.app, grid).ledger["noisy_sums"] == ROUNDS


def test_a_device_that_is_killed_before_it_stores_draws_anew_and_counts_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, draws: list[tuple[Any, ...]]
) -> None:
    """It was killed between the count of its draw and the turn's files; nobody can say what had left by then."""
    grid = begin(tmp_path, "local", epsilon=5.0)
    bodies: list[bytes] = []
    write = Journal.write_turn

    def kill(self: Journal, round: int, question: str, head: Any, body: bytes, state: Any) -> None:
        bodies.append(body)
        if len(bodies) == 1:
            raise KilledError
        write(self, round, question, head, body, state)

    monkeypatch.setattr(Journal, "write_turn", kill)
    with pytest.raises(KilledError):
        serve_here(grid.app, grid)
    (victim,) = [
        Path(config["folder"]) for config in grid.nodes.values() if list(Path(config["folder"]).rglob("noise*"))
    ]
    assert count_of(victim) == 1
    again = begin(tmp_path, "local", epsilon=5.0)
    with caplog.at_level(logging.WARNING, "moiety"):
        run = serve_here(again.app, again)
    assert len(draws) == len(set(draws))
    assert bodies[0] not in bodies[1:], "noise that may have been seen is used for nothing else"
    # Epsilon is for three draws. One was lost, so the device's last round is refused, and nobody else's.
    assert count_of(victim) == ROUNDS
    refusals = [
        answer for kind, _, _, answer in again.log if kind == "train" and answer is not None and answer.has_error()
    ]
    assert len(refusals) == 1
    assert caplog.text.count("one of the 3 that epsilon 5 is for") == 1
    assert [name for row in run.history for name in row["dropped"]] == [f"{ROUNDS}:{victim.name}"]
    others = [Path(config["folder"]) for config in again.nodes.values() if config["name"] != victim.name]
    assert [count_of(each) for each in others] == [ROUNDS, ROUNDS]
