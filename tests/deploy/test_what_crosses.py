"""Nothing personal crosses: no window of personal tensors or features is in any message, and labels have no channel.

Here the messages of a run in this process are serialised as Flower does it. ``test_processes.py`` records the wire.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import site_app
from capture import count_found, joined_bodies, windows
from flwr.app import Message
from local_grid import LocalGrid, serve_here
from safetensors.numpy import load

import moiety as mo
from moiety import tree

ROUNDS = 3


def make_nodes(folder: Path) -> dict[int, dict[str, Any]]:
    names = [str(name) for name in site_app.make_data().ids]
    return {500 + k: {"name": name, "folder": str(folder / "devices" / name)} for k, name in enumerate(names)}


def run_here(algorithm: str, folder: Path) -> tuple[LocalGrid, mo.Run]:
    app = site_app.make_app(algorithm, rounds=ROUNDS, out=folder / "server", deadline=5.0)
    grid = LocalGrid(app, make_nodes(folder))
    return grid, serve_here(app, grid)


def serialise(message: Message) -> list[bytes]:
    """Every object of a message, as Flower puts it on the wire."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    return [each.deflate() for each in get_all_nested_objects(message).values()]


def personal_bytes(algorithm: str, rounds: int) -> list[bytes]:
    """Every personal tensor after every round, from simulations, which devices equal to the bit; and all features."""
    model, method, split = site_app.make_parts(algorithm)
    data = site_app.make_data()
    values: list[bytes] = [np.ascontiguousarray(data.columns["x"]).tobytes()]
    for count in range(1, rounds + 1):
        run = mo.fit(model, data, method, split=split, rounds=count, cohort=3, seed=5, engine="sequential")
        # The schedule of the rates is constant, so a shorter run is the beginning of a longer one.
        for state in run._loop.progress.store.get(range(len(data))):
            values += [each.numpy().tobytes() for each in tree.leaves(state).values()]
    return values


def test_windows_are_counted_as_by_hand():
    """Oracle: plain Python, byte by byte."""
    draw = np.random.default_rng(0)
    secret = draw.bytes(40)
    by_hand = {secret[k : k + 8] for k in range(33) if len(set(secret[k : k + 8])) >= 6}
    assert len(windows([secret])) == len(by_hand)
    noise = draw.bytes(1001)
    assert count_found(windows([secret]), [noise]) == 0
    assert count_found(windows([secret]), [noise[:333] + secret[5:16] + noise[333:]]) == sum(
        secret[k : k + 8] in by_hand for k in range(5, 9)
    )
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nabcdef\r\n3\r\nghi\r\n0\r\n\r\n"
    plain = b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nwxyz"
    assert joined_bodies(chunked + plain) == b"abcdefghiwxyz"


def test_no_personal_tensor_and_no_feature_is_in_any_message(tmp_path):
    grid, run = run_here("fedalt", tmp_path)
    sent = [piece for _, _, message, answer in grid.log for each in (message, answer) for piece in serialise(each)]
    assert len(sent) > 20
    hidden = windows(personal_bytes("fedalt", ROUNDS))
    assert len(hidden) > 3000
    assert count_found(hidden, sent) == 0
    # Control: what is shared is found, nearly every window of it.
    shared = windows([p.numpy().tobytes() for p in run._loop.broadcast().values()])
    assert count_found(shared, sent) > 0.9 * len(shared) > 300


def test_a_personal_tensor_under_an_allowed_name_is_found(tmp_path):
    """Control: an algorithm that hides personal numbers in a shared tensor passes the guard, but not this search."""
    grid, _ = run_here("smuggler", tmp_path)
    sent = [piece for _, _, message, answer in grid.log for each in (message, answer) for piece in serialise(each)]
    assert count_found(windows(personal_bytes("smuggler", ROUNDS)), sent) > 0


def test_labels_have_no_channel(tmp_path):
    """What devices say is exactly this; and messages are as long whatever the labels are."""
    grid, run = run_here("fedalt", tmp_path)
    names = set(run._loop.broadcast())
    heads: dict[str, set[str]] = {}
    for kind, _, _, answer in grid.log:
        assert set(answer.content) <= {"head", "body"}
        head = json.loads(str(answer.content.config_records["head"]["json"]))
        heads.setdefault(kind, set()).update(head)
        if "body" in answer.content:
            assert set(load(bytes(answer.content.array_records["body"]["b"].data))) == names
        if kind == "train":
            assert head["info"] == {}
    assert heads == {
        "query.hello": {"name", "token", "sizes", "columns", "classes"},
        "query.welcome": {"digest", "turns"},
        "train": {"round", "weight", "info"},
        "query.end": {"round"},
    }
