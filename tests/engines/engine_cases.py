"""Small federations and models, and what it means that two runs are the same bit for bit."""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn

import moiety as mo
from moiety import tree

torch.set_num_threads(1)


SHAPE = re.compile(r"`[^`\n]+` must be [^\n]+, got [^\n]*[.?]")
"""The house's shape: `name` must be <constraint>, got <value>. <what to do>, on one line that is a whole sentence."""


class StopHereError(Exception):
    """Raised by a test from a callback, in the place of a user who interrupts."""


def measure_always(patch: pytest.MonkeyPatch) -> None:
    """Let ``auto`` measure all engines however short the run is."""
    for name, value in {"SHORT": 0.0, "SHARE": 1e12, "LONGEST": 1e12, "NEAR": 1e12}.items():
        patch.setattr(f"moiety.engines.auto.{name}", value)


def stop_after(round: int) -> Callable[[Any, Any], None]:
    """A callback that ends the run after the given round."""

    def on_round(run: Any, record: Any) -> None:
        if record.round == round:
            raise StopHereError

    return on_round


def federation(
    sizes: tuple[int, ...] = (4, 9, 12, 17, 25, 40), *, seed: int = 0, test: float = 0.25, image: bool = False
) -> mo.FederatedData:
    """Clients of uneven sizes, each with a rule of its own for three classes."""
    draw = np.random.default_rng(seed)
    clients = {}
    for i, size in enumerate(sizes):
        x = draw.normal(size=(size, 1, 6, 6) if image else (size, 4)).astype(np.float32)
        rule = draw.normal(size=(int(np.prod(x.shape[1:])), 3))
        clients[f"c{i}"] = {"x": x, "y": (x.reshape(size, -1) @ rule).argmax(1)}
    return mo.data.from_clients(clients, test=test)


def mlp() -> nn.Module:
    return mo.models.mlp(4, 3, hidden=(5,), seed=3)


def seeded(build: Callable[[], nn.Module], seed: int = 3) -> nn.Module:
    """A module of the test's own with weights that do not depend on what ran before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def batch_norm_net() -> nn.Module:
    layers = lambda: OrderedDict(body=nn.Linear(4, 5), norm=nn.BatchNorm1d(5), act=nn.Tanh(), head=nn.Linear(5, 3))  # noqa: E731
    return seeded(lambda: nn.Sequential(layers()))


def dropout_net() -> nn.Module:
    layers = lambda: OrderedDict(body=nn.Linear(4, 8), drop=nn.Dropout(0.5), act=nn.Tanh(), head=nn.Linear(8, 3))  # noqa: E731
    return seeded(lambda: nn.Sequential(layers()))


def conv_net() -> nn.Module:
    layers = lambda: OrderedDict(  # noqa: E731
        conv=nn.Conv2d(1, 4, 3, padding=1),
        act=nn.ReLU(),
        pool=nn.MaxPool2d(2),
        flat=nn.Flatten(),
        head=nn.Linear(36, 3),
    )
    return seeded(lambda: nn.Sequential(layers()))


def without_seconds(history: list[dict[str, Any]]) -> list[str]:
    """History rows as exact text, all fields but the time they took and the checksum."""
    rows = [{k: v for k, v in row.items() if k not in ("seconds", "check")} for row in history]
    return [json.dumps(row, sort_keys=True) for row in rows]


def without_seal(table: dict[str, Any]) -> dict[str, Any]:
    """A table of a run's folder, without what two runs that do the same have otherwise: id and checksums."""
    return {k: v for k, v in table.items() if k not in ("run", "check")}


def exact(tensors: dict[str, Tensor]) -> dict[str, tuple[Any, ...]]:
    """Type, shape and bytes of every tensor."""
    return {n: (t.dtype, tuple(t.shape), t.detach().contiguous().numpy().tobytes()) for n, t in tensors.items()}


def contents(run: mo.Run) -> dict[str, Any]:
    """Everything a run found, in a form that compares bit for bit."""
    progress = run._loop.progress
    server = {k: v if isinstance(v, Tensor) else torch.tensor(v) for k, v in tree.leaves(progress.server).items()}
    parts = {
        "history": without_seconds(run.history),
        "clients": [json.dumps(row) for row in run.clients],
        "ledger": run.ledger,
        "server": exact(server),
        "round": progress.round,
        "states": {c: exact(tree.leaves(*progress.store.get([c]))) for c in range(len(run._loop.problem.data))},
    }
    parts["models"] = [exact(run.parameters(i)) for i in range(len(run.clients))]
    return parts


def same_runs(one: mo.Run, other: mo.Run) -> None:
    """Assert that two runs are equal bit for bit, part by part so that a failure says where."""
    a, b = contents(one), contents(other)
    for part in a:
        assert a[part] == b[part], f"{part} differs"


def folder_contents(folder: Path) -> dict[str, Any]:
    """What a run folder says, without times."""
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    checkpoint = max((folder / "checkpoint").glob("round-*"))
    state = without_seal(json.loads((checkpoint / "state.json").read_text()))
    for table, key in ((state, "index"), (state, "before"), (state["files"], "index.safetensors")):
        del table[key]  # they depend on when checkpoints were made
    return {
        "config": (folder / "config.toml").read_text().partition("# moiety")[0],
        "history": without_seconds(rows),
        "clients": [json.dumps(row) for row in pq.read_table(folder / "clients.parquet").to_pylist()],
        "ledger": without_seal(json.loads((folder / "ledger.json").read_text())),
        "initial": (folder / "initial.safetensors").read_bytes(),
        "checkpoint": checkpoint.name,
        "files": {p.name: p.read_bytes() for p in sorted(checkpoint.glob("*.safetensors")) if p.stem != "index"},
        "state": state,
        "states": stored_states(folder / "clients"),
    }


def stored_states(folder: Path) -> dict[int, bytes]:
    """The personal states on disk by client: of two slots, the one that the index names, in which a run may differ."""
    if not folder.exists():
        return {}
    entries = np.fromfile(folder / "index.bin", dtype="<u4").reshape(-1, 3)[:, 1]
    slots = np.fromfile(folder / "states.bin", dtype=np.uint8).reshape(len(entries), 2, -1)
    return {int(c): slots[c, entries[c] - 1].tobytes() for c in np.flatnonzero(entries)}


def same_folders(one: Path, other: Path) -> None:
    """Assert that two run folders say the same, bit for bit, times aside."""
    a, b = folder_contents(one), folder_contents(other)
    for part in a:
        assert a[part] == b[part], f"{part} differs"


def reseal(path: Path) -> None:
    """Give a file that a test has changed the checksum that it would have if moiety had written it so."""
    text, json_file = path.read_text(), path.suffix == ".json"
    if json_file:
        table = {k: v for k, v in json.loads(text).items() if k != "check"}
        text = json.dumps(table, indent=1).removesuffix("\n}") + ',\n "check": "'
    else:
        text = text.rpartition(", check ")[0] + ", check "
    check = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    path.write_text(text + check + ('"\n}\n' if json_file else "\n"))


def tree_hash(folder: Path) -> dict[str, str]:
    """Every path below a folder with the hash of its content."""
    return {
        str(p.relative_to(folder)): hashlib.blake2b(p.read_bytes()).hexdigest() if p.is_file() else "folder"
        for p in sorted(folder.rglob("*"))
    }


def refused(call: Callable[[], Any], pattern: str) -> str:
    """Assert that a call ends in one MoietyError of the house's shape that matches; returns its text."""
    with pytest.raises(mo.MoietyError) as error:
        call()
    text = str(error.value)
    assert "\n" not in text
    assert SHAPE.fullmatch(text), f"not in the house's shape: {text}"
    assert len(text) < 600, text
    assert re.search(pattern, text), f"{pattern!r} is not in: {text}"
    return text
