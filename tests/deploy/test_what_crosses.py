"""Nothing personal crosses: no window of personal tensors or features is in any message, and labels have no channel.

Here the messages of a run in this process are serialised as Flower does it. ``processes/test_real_wire.py``
records the wire.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import site_app
import torch
from capture import count_found, joined_bodies, windows
from flwr.app import Message, RecordDict
from local_grid import LocalGrid, federation, make_app, nodes_of, serve_here, small_model
from safetensors.numpy import load

import moiety as mo
from moiety import tree
from moiety.deploy.letters import Letter, read_message, write_record
from moiety.transport import pack, unpack

ROUNDS = 3


def make_nodes(folder: Path) -> dict[int, dict[str, Any]]:
    names = [str(name) for name in site_app.make_data().ids]
    return {500 + k: {"name": name, "folder": str(folder / "devices" / name)} for k, name in enumerate(names)}


def run_here(algorithm: str, folder: Path) -> tuple[LocalGrid, mo.Run]:
    app = site_app.make_app(algorithm, rounds=ROUNDS, out=folder / "server", deadline=5.0)
    grid = LocalGrid(app, make_nodes(folder))
    return grid, serve_here(app, grid)


def serialise(message: Message | RecordDict) -> list[bytes]:
    """Every object of a message or of its content, as Flower puts it on the wire."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    return [each.deflate() for each in get_all_nested_objects(message).values()]


def personal_bytes(algorithm: str, rounds: int) -> list[bytes]:
    """Every personal tensor after every round, from simulations, which devices equal to the bit; and all features.

    None has a zero: windows of zeros are not looked for.
    """
    model, method, split = site_app.make_parts(algorithm)
    data = site_app.make_data()
    values: list[bytes] = [np.ascontiguousarray(data.columns["x"]).tobytes()]
    for count in range(1, rounds + 1):
        run = mo.fit(model, data, method, split=split, rounds=count, cohort=3, seed=5, engine="sequential")
        # The schedule of the rates is constant, so a shorter run is the beginning of a longer one.
        for state in run._loop.progress.store.get(range(len(data))):
            values += [each.numpy().tobytes() for each in tree.leaves(state).values()]
    assert all((np.frombuffer(each, np.float32) != 0).all() for each in values)
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
    pieces = [piece for _, _, message, answer in grid.log for each in (message, answer) for piece in serialise(each)]
    assert len(pieces) > 20
    hidden = windows(personal_bytes("fedalt", ROUNDS))
    assert len(hidden) > 3000
    assert count_found(hidden, pieces) == 0
    # Control: what is shared is found, nearly every window of it.
    shared = windows([p.numpy().tobytes() for p in run._loop.broadcast().values()])
    assert count_found(shared, pieces) > 0.9 * len(shared) > 300


def test_a_personal_tensor_under_an_allowed_name_is_found(tmp_path):
    """Control: an algorithm that hides personal numbers in a shared tensor passes the guard, but not this search."""
    grid, _ = run_here("smuggler", tmp_path)
    pieces = [piece for _, _, message, answer in grid.log for each in (message, answer) for piece in serialise(each)]
    assert count_found(windows(personal_bytes("smuggler", ROUNDS)), pieces) > 0


HEAD = {"run", "position", "digest", "round", "used"}
KEYS: dict[tuple[str, str], set[str]] = {
    ("query.hello", "down"): set(),
    ("query.hello", "up"): {"name", "token", "sizes", "columns", "classes"},
    ("query.welcome", "down"): {"run", "position", "agreed", "preprocessing"},
    ("query.welcome", "up"): {"digest", "turns"},
    ("train", "down"): HEAD | {"rounds"},
    ("train", "up"): {"round", "weight", "info"},
    ("evaluate", "down"): HEAD | {"part"},
    ("evaluate", "up"): {"round", "scores"},
    ("query.weigh", "down"): HEAD | {"turns"},
    ("query.weigh", "up"): {"round", "evidence"},
    ("query.end", "down"): HEAD | {"turns", "population"},
    ("query.end", "up"): {"round"},
}
"""Everything that heads say, by kind of letter and direction; ``turns`` and ``population`` with a safeguard."""
FOLLOWS: dict[str, dict[tuple[str, str], dict[str, set[str]]]] = {
    "none": {},
    "histogram": {("evaluate", "up"): {"scores": {"metric", "gain", "hurt"}}},
    "per_client": {
        ("train", "up"): {"info": {"loss", "new_mask"}},
        ("evaluate", "up"): {"scores": {"loss", "metric", "shared_loss", "shared_metric", "gain", "hurt"}},
        ("query.weigh", "up"): {"evidence": {"means", "variances", "hint", "validation"}},
        ("query.end", "down"): {"population": {"candidates", "hint", "default"}},
    },
}
"""What follows from labels besides the numbers of shared tensors, as far as ``share_metrics`` lets it leave."""
COUNTS = {"n", "n_test", "rows"}
"""What stands beside it and does not follow from labels."""
LABELS = {
    "as drawn": lambda y: y,
    "others": lambda y: (y + 1) % site_app.CLASSES,
    "all the same": np.zeros_like,
}


def head_of(message: Message) -> dict[str, Any]:
    return dict(json.loads(str(message.content.config_records["head"]["json"])))


def describe(way: tuple[str, str], message: Message, share: str) -> tuple[Any, ...]:
    """A message without the numbers that follow from labels: all that it says, and how long each of its objects is."""
    assert set(message.content) <= {"head", "body"}
    head, follows = head_of(message), FOLLOWS[share].get(way, {})
    assert KEYS[way] - {"turns", "population"} <= set(head) <= KEYS[way]
    for key, names in follows.items():
        if head.get(key) is not None:
            assert names - {"new_mask"} <= set(head[key]) <= names | COUNTS  # only fedspa has masks
            head[key] |= {name: None for name in head[key] if name in names}
    body = bytes(message.content.array_records["body"]["b"].data) if "body" in message.content else b""
    tensors = {name: (str(each.dtype), each.shape) for name, each in (load(body) if body else {}).items()}
    content = write_record(Letter(head, body)) if follows else message.content
    lengths = sorted(len(each) for each in serialise(content))
    # The id of a run and the token of a device are random, so nothing but their lengths can be compared.
    fields = {key: len(value) if key in ("run", "token") else value for key, value in head.items()}
    return *way, fields, tensors, len(body), lengths


@pytest.mark.parametrize("share", FOLLOWS)
@pytest.mark.parametrize("algorithm", ["fedalt", "fedspa"])
def test_labels_have_no_channel(algorithm: str, share: str, tmp_path: Path) -> None:
    """Whatever the labels are, the same letters cross and are as long, but for what ``FOLLOWS`` names."""
    letters: dict[str, list[tuple[Any, ...]]] = {}
    for number, (name, change) in enumerate(LABELS.items()):
        grid, run = run_with_labels(algorithm, share, change, tmp_path / str(number))
        letters[name] = [
            (node, *describe((kind, way), message, share))
            for kind, node, *both in grid.log
            for way, message in zip(("down", "up"), both, strict=True)
        ]
        letters[name].sort(key=lambda each: each[:3])  # devices answer in any order, each in that of its letters
        names = set(run._loop.broadcast())
        names |= {f"{how}:{each}" for each in names for how in ("bits", "places")} if algorithm == "fedspa" else set()
        assert all(set(tensors) <= names for *_, tensors, _, _ in letters[name])
    kinds = {"none": set(), "histogram": {"evaluate"}, "per_client": {"evaluate", "query.weigh"}}[share]
    kinds -= set() if algorithm == "fedalt" else {"query.weigh"}
    assert {kind for _, kind, *_ in letters["as drawn"]} == {
        "query.hello",
        "query.welcome",
        "train",
        "query.end",
    } | kinds
    assert letters["others"] == letters["as drawn"]
    assert letters["all the same"] == letters["as drawn"]


def run_with_labels(
    algorithm: str, share: str, change: Callable[[np.ndarray], np.ndarray], folder: Path, **options: Any
) -> tuple[LocalGrid, mo.Run]:
    """A run of eight devices, so many that a population is estimated, with other labels and the same rows."""
    source = federation((9, 12, 17, 24, 9, 12, 17, 24))
    data = replace(source, columns={**source.columns, "y": change(source.columns["y"])})
    assert data.classes == site_app.CLASSES
    model = small_model()
    method = site_app.ALGORITHMS[algorithm]()
    split = None if method.default_split else mo.split.output_layer(model)
    common = {"rounds": 2, "seed": 5, "settings": mo.Settings(evaluate_every=1), "safeguard": algorithm == "fedalt"}
    app = make_app(model, data, method, folder, split=split, share_metrics=share, **{**common, **options})
    grid = LocalGrid(app, nodes_of(data, folder))
    return grid, serve_here(app, grid)


def test_what_a_device_refuses_says_nothing_of_labels(tmp_path: Path) -> None:
    """Every refusal that a server can provoke by a letter, word for word."""
    refusals = []
    for number, change in enumerate(LABELS.values()):
        grid, _ = run_with_labels("fedalt", "none", change, tmp_path / str(number))
        node = min(grid.nodes)
        message = [message for kind, where, message, _ in grid.log if kind == "train" and where == node][-1]
        letter = read_message(message, 1 << 30)
        tensors = unpack(letter.body)
        later = {**letter.head, "round": 2, "used": 1, "rounds": 9}
        wrong = [{"digest": "x"}, {"position": 99}, {"run": "ab"}, {"run": "../x"}, {"round": "2"}, {"used": 7}]
        wrong += [{"round": 1, "used": 0}, {"rounds": 2}, {"used": -2}, {"round": None}]
        letters = [Letter({**later, **each}, letter.body) for each in wrong]
        name = min(tensors)
        bodies = [{**tensors, name: change(tensors[name])} for change in (lambda p: p * torch.nan, lambda p: p[:1])]
        bodies += [{**tensors, "more": torch.ones(1)}, {**tensors, name: tensors[name].double()}]
        letters += [Letter(later, pack(each)) for each in bodies] + [
            Letter(later, b"rubbish"),
            Letter({}),
            Letter(later),
        ]
        replies = [
            grid.call(Message(write_record(each), dst_node_id=node, message_type=kind, ttl=60.0))
            for each in letters
            for kind in ("train", "evaluate", "query.weigh", "query.end")
        ]
        own = {str(letter.head["run"]): "RUN", str(tmp_path / str(number)): "FOLDER"}
        errors = [(reply.error.code, reply.error.reason) for reply in replies if reply.has_error()]
        refusals.append([(code, replace_all(reason, own)) for code, reason in errors])
        assert len(refusals[-1]) > 3 * len(letters)
        assert all(set(head_of(reply)) == {"round"} for reply in replies if not reply.has_error())
    assert refusals[0] == refusals[1] == refusals[2]


def replace_all(text: str, table: dict[str, str]) -> str:
    for old, new in table.items():
        text = text.replace(old, new)
    return text


def test_a_device_whose_training_diverges_says_nothing_of_labels(tmp_path: Path) -> None:
    heads = []
    for number, change in enumerate([LABELS["as drawn"], LABELS["others"]]):
        source, model = federation((9, 12)), small_model()
        data = replace(source, columns={**source.columns, "y": change(source.columns["y"])})
        folder = tmp_path / str(number)
        algorithm = mo.fedalt(shared=mo.sgd(1e30, steps=9), personal=1e30)
        app = make_app(model, data, algorithm, folder, split=mo.split.output_layer(model), rounds=1, least=1)
        grid = LocalGrid(app, nodes_of(data, folder))
        with pytest.warns(UserWarning, match="finite for some client"):
            serve_here(app, grid)
        heads.append([head_of(answer) for kind, _, _, answer in grid.log if kind == "train"])
        assert [set(head) for head in heads[-1]] == [{"round", "why"}] * 2
    assert heads[0] == heads[1]
