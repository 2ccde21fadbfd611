"""The last guard: a device opens the bytes that it is about to send, as the server will, and sends no others.

Codecs and packings are code of others, which runs after the guard has looked at the upload.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from capture import count_found, windows
from local_grid import LocalGrid, federation, make_app, nodes_of, serve_here, small_model
from test_what_crosses import serialise

import moiety as mo
from moiety.deploy.journal import Journal
from moiety.transport import PrivacyError
from moiety.types import Codec, Packing, Params, Traffic, Tree, Wire

SECRET = "head.weight"
"""The name of a personal tensor; its values here are known, so that they can be looked for."""
VALUES = torch.arange(15, dtype=torch.float32).reshape(3, 5).sin().add(2.0)


def plant(upload: Params) -> Params:
    return {**upload, SECRET: VALUES}


def drop(upload: Params) -> Params:
    return dict(sorted(upload.items())[1:])


def swap(upload: Params) -> Params:
    """Other shapes under the declared names."""
    return {name: p.reshape(-1)[:1] for name, p in upload.items()}


def pick(packed: Params, like: Params) -> Params:
    return {name: packed[name] for name in like if name in packed}


def by_codec(change: Callable[[Params], Params]) -> tuple[mo.Algorithm, mo.Settings]:
    """A codec that declares the name of a personal tensor as one of its own."""
    codec = Codec(lambda upload, generator: change(upload), pick, names=(SECRET,))
    return fedalt(), mo.Settings(codec=codec)


def by_packing(change: Callable[[Params], Params]) -> tuple[mo.Algorithm, mo.Settings]:
    def unpack_up(key: torch.Tensor, packed: Params, like: Params, known: Tree) -> tuple[Params, Tree]:
        return pick(packed, like), known

    packing = Packing(
        facts=lambda state: {},
        pack_down=lambda key, received, known: received,
        unpack_down=lambda key, packed, like, known: packed,
        pack_up=lambda key, upload, known, after: change(upload),
        unpack_up=unpack_up,
    )
    traffic = Traffic(lambda received, state: (0, 0), lambda update: (0, 0))
    return replace(fedalt(), wire=Wire(traffic=traffic, packing=packing)), mo.Settings()


def fedalt() -> mo.Algorithm:
    return mo.fedalt(shared=0.1, personal=0.05)


def begin(how: Callable[..., Any], change: Callable[[Params], Params], folder: Path) -> LocalGrid:
    data, model = federation((6, 9)), small_model()
    algorithm, settings = how(change)
    split = mo.split.output_layer(model)
    assert SECRET in split.personal
    app = make_app(model, data, algorithm, folder, split=split, rounds=1, settings=settings, share_metrics="none")
    return LocalGrid(app, nodes_of(data, folder))


@pytest.mark.parametrize("how", [by_codec, by_packing])
def test_an_honest_one_passes(how: Callable[..., Any], tmp_path: Path) -> None:
    """Control: what is refused below is refused for what it sends, not for how it was made."""
    grid = begin(how, dict, tmp_path)
    assert [row["dropped"] for row in serve_here(grid.app, grid).history] == [[]]


@pytest.mark.parametrize("change", [plant, drop, swap])
@pytest.mark.parametrize("how", [by_codec, by_packing])
def test_a_device_sends_no_bytes_that_hold_what_is_not_declared(
    how: Callable[..., Any], change: Callable[[Params], Params], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = begin(how, change, tmp_path)
    with caplog.at_level(logging.WARNING, "moiety"):
        run = serve_here(grid.app, grid)
    answers = [answer for kind, _, _, answer in grid.log if kind == "train" and answer is not None]
    assert len(answers) == 2
    assert all(answer.has_error() for answer in answers), "nothing left, not even bytes that the server would refuse"
    if change is plant:
        assert caplog.text.count(f"`upload` must be without names of the personal part, got {SECRET}") == 2
    pieces = [piece for _, _, *both in grid.log for message in both if message for piece in serialise(message)]
    assert count_found(windows([VALUES.numpy().tobytes()]), pieces) == 0
    # No turn was written, so a repeated letter cannot bring the bytes out of the journal either.
    for config in grid.nodes.values():
        assert Journal(Path(config["folder"]), run._loop.progress.run).list_turns() == []


def test_the_guard_itself_names_the_tensor(tmp_path: Path) -> None:
    grid = begin(by_packing, dict, tmp_path)
    run = serve_here(grid.app, grid)
    device = grid.app.device(next(iter(grid.nodes.values())))
    wiring = device.ready(run._loop.progress.run).wiring
    upload = run._loop.broadcast()
    wiring.check_leaving(wiring._pack(upload, wiring.up).body, 0, 0, {})
    with pytest.raises(PrivacyError, match=f"without names of the personal part, got {SECRET}"):
        wiring.check_leaving(wiring._pack(plant(upload), wiring.up).body, 0, 0, {})
