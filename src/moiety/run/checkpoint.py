"""Checkpoints: safetensors and JSON, written aside, flushed, renamed. No pickle: a file cannot run code.

``checkpoint/round-00000020/`` holds ``server.safetensors`` (shared things only), ``clients.safetensors`` (personal
states that changed since the checkpoint before, which in a deployment never leave their devices; a simulation must keep
them somewhere; the others are in the run's ``clients/``) and ``state.json``,
which says how long the other two are and what they hash to. A run with a clock has ``in_transit.safetensors``
(uploads that have not arrived, broadcasts still in use) and ``working.safetensors`` (personal states that belong to
those uploads) too. The folder appears by one rename, so it is whole or absent.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from moiety import tree
from moiety.errors import must
from moiety.files import digest, make_folder, new_folder, read_json, report_failure, report_unreadable, write_file
from moiety.loop.in_transit import FILES, pack_in_transit, unpack_in_transit
from moiety.loop.round import Progress
from moiety.run.identity import check_identity
from moiety.transport import Ledger
from moiety.types import Tree

FORMAT, VERSION, CLOCKED = "moiety-checkpoint", 1, 2
"""The second version is that of runs with a clock, which say what is under way."""
SERVER, CLIENTS = "server.safetensors", "clients.safetensors"
KEYS = {"round": int, "numbers": dict, "ledger": dict, "dropped": list, "identity": dict, "files": dict}
"""The keys of ``state.json`` and the types of their values."""


def save_checkpoint(folder: Path, progress: Progress, identity: dict[str, Any]) -> None:
    """Write the state after ``progress.round`` rounds, then remove older checkpoints.

    ``identity`` (algorithm, parameter names) is compared when the checkpoint is read. Where that round has a checkpoint
    already (an interrupt came soon after it) it stays: what has begun since then will be done again, and nothing that
    is whole is ever removed before something newer is in its place.
    """
    parent = make_folder(folder / "checkpoint")
    final = parent / f"round-{progress.round:08d}"
    if not final.exists():
        _write_checkpoint(final, progress, identity)
    for old in parent.iterdir():
        if old.name != final.name:
            shutil.rmtree(old, ignore_errors=True)


def _write_checkpoint(final: Path, progress: Progress, identity: dict[str, Any]) -> None:
    """Write a new checkpoint, whole or not at all."""
    server = tree.leaves(progress.server)
    files = {
        SERVER: save({k: v.contiguous() for k, v in server.items() if isinstance(v, Tensor)}),
        CLIENTS: save(pack_states(progress.store.pending)),
    }
    state: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "round": progress.round,
        "numbers": {k: v for k, v in server.items() if not isinstance(v, Tensor)},
        "ledger": progress.ledger.as_dict(),
        "dropped": progress.dropped,
        "identity": identity,
    }
    if progress.in_transit is not None:
        note, tensors = pack_in_transit(progress.in_transit)
        files |= {name: save(each) for name, each in tensors.items()}
        state |= {"version": CLOCKED, "in_transit": note}
    state["files"] = {name: {"bytes": len(b), "blake2b": digest(b)} for name, b in files.items()}
    files["state.json"] = json.dumps(state, indent=1).encode()
    with report_failure(final):
        with new_folder(final) as aside:
            for name, content in files.items():
                write_file(aside / name, content)
        # Only now may the states' own file move: until the rename it had to match the older checkpoint.
        progress.store.settle(progress.round)


def find_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint of a run folder, if there is one."""
    return max((folder / "checkpoint").glob("round-*"), default=None)


def load_checkpoint(path: Path, progress: Progress, identity: dict[str, Any]) -> None:
    """Read a checkpoint into ``progress``, which must be fresh and of the same problem."""
    state = _read_state(path, VERSION if progress.in_transit is None else CLOCKED)
    check_identity(state["identity"], identity, path)
    hint = "Remove that folder to go back to an older one or to start again."
    names = (SERVER, CLIENTS, *(() if progress.in_transit is None else FILES))
    with report_unreadable(path / "state.json", hint, "checkpoint"):
        digests = {name: state["files"][name]["blake2b"] for name in names}
    files = {name: read_tensors(path / name, digests[name], hint, "checkpoint") for name in names}
    server = tree.refill(progress.server, {**files[SERVER], **state["numbers"]})
    states = unpack_states(files[CLIENTS], progress.store.first())
    if progress.in_transit is not None:
        unpack_in_transit(progress.in_transit, state.get("in_transit", {}), files, progress.store.first())
    progress.store.restart(state["round"])
    progress.store.put(states, states.values())
    # The run may have been killed while these were being settled; settling them again does no harm.
    progress.store.settle(state["round"])
    progress.server, progress.round = server, state["round"]
    progress.ledger, progress.dropped = Ledger(**state["ledger"]), list(state["dropped"])


def pack_states(states: Mapping[int, Tree]) -> dict[str, Tensor]:
    """Personal states as one tensor per leaf, and the clients that they belong to."""
    clients = sorted(states)
    rows = tree.pack_rows([states[client] for client in clients])
    return {"clients": torch.tensor(clients, dtype=torch.int64), **rows}


def unpack_states(tensors: dict[str, Tensor], first: Tree) -> dict[int, Tree]:
    """The inverse of ``pack_states``; ``first`` is laid out as all states are."""
    clients = tensors.pop("clients").tolist()
    return dict(zip(clients, tree.unpack_rows(tensors, first), strict=True))


def store_first_states(progress: Progress, states: Mapping[int, Tree]) -> None:
    """Let some clients begin with states of their own.

    They count as settled before the first round. The folder keeps them apart too, for a run that starts again.
    """
    if states:
        progress.store.put(states, states.values())
        progress.store.settle(0)


def _read_state(path: Path, version: int) -> dict[str, Any]:
    """The content of a checkpoint's ``state.json``, checked."""
    state = read_json(path / "state.json", ("format", "version", *KEYS), name="checkpoint")
    known = state["format"] == FORMAT and state["version"] == version
    got = f"format {state['format']}, version {state['version']} in {path}"
    must(known, "checkpoint", f"of format {FORMAT}, version {version}", got)
    odd = [key for key, wanted in KEYS.items() if not isinstance(state[key], wanted)]
    odd = odd or [f"ledger.{key}" for key in Ledger().as_dict().keys() ^ state["ledger"].keys()]
    must(not odd, "checkpoint", "as it was written", f"another {''.join(odd[:1])} in {path / 'state.json'}")
    return state


def read_tensors(path: Path, wanted: str, hint: str = "", name: str = "") -> dict[str, Tensor]:
    """The tensors of a file that must hash to ``wanted``; ``hint`` and ``name`` are for the message otherwise."""
    with report_unreadable(path, hint, name):
        content = path.read_bytes()
        if digest(content) != wanted:
            raise ValueError(f"{len(content)} other bytes")
        return load(content)
