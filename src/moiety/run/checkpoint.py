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
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from moiety import tree
from moiety.clients.clock import Clock, trace_digests
from moiety.engines.problem import Problem
from moiety.errors import must
from moiety.files import digest, report_failure, report_unreadable, sync_folder, write_file
from moiety.loop.in_transit import FILES, pack_in_transit, unpack_in_transit
from moiety.loop.round import Progress
from moiety.transport import Ledger
from moiety.types import Algorithm, Tree

FORMAT, VERSION, CLOCKED = "moiety-checkpoint", 1, 2
"""The second version is that of runs with a clock, which say what is under way."""


def run_identity(problem: Problem, algorithm: Algorithm, clock: Clock | None) -> dict[str, Any]:
    """What must be the same for a checkpoint to be continued."""
    identity = {
        "algorithm": algorithm.spec or {"name": algorithm.name},
        "personal": list(problem.split.personal),
        "model": {name: list(p.shape) for name, p in problem.task.init.items()},
        "seed": problem.seed,
        "data": problem.data.fingerprint(),
    }
    # A file of times may have changed though its name has not.
    return identity if clock is None else {**identity, "clock": clock.spec, "traces": trace_digests(clock)}


def save_checkpoint(folder: Path, progress: Progress, identity: dict[str, Any]) -> None:
    """Write the state after ``progress.round`` rounds, then remove older checkpoints.

    ``identity`` (algorithm, parameter names) is compared when the checkpoint is read. Where that round has a checkpoint
    already (an interrupt came soon after it) it stays: what has begun since then will be done again, and nothing that
    is whole is ever removed before something newer is in its place.
    """
    parent = folder / "checkpoint"
    final = parent / f"round-{progress.round:08d}"
    with report_failure(final):
        if not final.exists():
            _write(final, progress, identity)
    for old in parent.iterdir():
        if old.name != final.name:
            shutil.rmtree(old, ignore_errors=True)


def _write(final: Path, progress: Progress, identity: dict[str, Any]) -> None:
    """A new checkpoint, whole or not at all."""
    server = tree.leaves(progress.server)
    files = {
        "server.safetensors": save({k: v.contiguous() for k, v in server.items() if isinstance(v, Tensor)}),
        "clients.safetensors": save(stacked(progress.store.pending)),
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
    aside = final.with_name(f".writing-{os.getpid()}")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        for name, content in files.items():
            write_file(aside / name, content)
        os.rename(aside, final)
        sync_folder(final.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    # Only now may the states' own file move: until the rename it had to match the older checkpoint.
    progress.store.settle(progress.round)


def latest(folder: Path) -> Path | None:
    """The newest checkpoint of a run folder, if there is one."""
    return max((folder / "checkpoint").glob("round-*"), default=None)


def load_checkpoint(path: Path, progress: Progress, identity: dict[str, Any]) -> None:
    """Read a checkpoint into ``progress``, which must be fresh and of the same problem."""
    state = _state(path, VERSION if progress.in_transit is None else CLOCKED)
    same_run(state["identity"], identity, path)
    tensors = _tensors(path, state, "server.safetensors")
    server = tree.refill(progress.server, {**tensors, **state["numbers"]})
    states = unstacked(_tensors(path, state, "clients.safetensors"), progress.store.first())
    if progress.in_transit is not None:
        files = {name: _tensors(path, state, name) for name in FILES}
        unpack_in_transit(progress.in_transit, state.get("in_transit", {}), files, progress.store.first())
    progress.store.restart(state["round"])
    progress.store.put(states, states.values())
    # The run may have been killed while these were being settled; settling them again does no harm.
    progress.store.settle(state["round"])
    progress.server, progress.round = server, state["round"]
    progress.ledger, progress.dropped = Ledger(**state["ledger"]), list(state["dropped"])


def same_run(stored: dict[str, Any], identity: dict[str, Any], path: Path) -> None:
    """Raise unless what is stored in ``path`` belongs to the problem at hand."""
    for key in sorted({*stored, *identity}):
        same = stored.get(key) == identity.get(key)
        got = f"{_short(stored.get(key))} in {path}"
        must(same, "folder", f"of this run, with {key} {_short(identity.get(key))}", got)


def stacked(states: Mapping[int, Tree]) -> dict[str, Tensor]:
    """Personal states, one tensor per leaf, and whose they are."""
    order = sorted(states)
    rows = [tree.leaves(states[c]) for c in order]
    whose = {"clients": torch.tensor(order, dtype=torch.int64)}
    return whose | ({k: torch.stack([r[k] for r in rows]) for k in rows[0]} if rows else {})


def unstacked(tensors: Mapping[str, Tensor], first: Tree) -> dict[int, Tree]:
    """The inverse of ``stacked``; ``first`` is a state as they all are laid out."""
    leaves = dict(tensors)
    seen = leaves.pop("clients", torch.zeros(0)).tolist()
    # Cloned, or the view would keep every other client's row alive.
    rows = [{k: v[row].clone() for k, v in leaves.items()} for row in range(len(seen))]
    return {int(client): tree.refill(first, row) for client, row in zip(seen, rows, strict=True)}


def begin_with(progress: Progress, states: Mapping[int, Tree]) -> None:
    """Let some clients begin with states of their own.

    They count as settled before the first round. The folder keeps them apart too, for a run that starts again.
    """
    if states:
        progress.store.put(states, states.values())
        progress.store.settle(0)


KEYS = {"round": int, "numbers": dict, "ledger": dict, "dropped": list, "identity": dict, "files": dict}


def _state(path: Path, version: int) -> dict[str, Any]:
    with report_unreadable(path / "state.json", name="checkpoint"):
        state = json.loads((path / "state.json").read_text())
        known = state["format"] == FORMAT and state["version"] == version
        got = f"format {state['format']}, version {state['version']} in {path}"
    must(known, "checkpoint", f"of format {FORMAT}, version {version}", got)
    odd = [key for key, wanted in KEYS.items() if not isinstance(state.get(key), wanted)]
    odd = odd or [f"ledger.{key}" for key in set(Ledger().as_dict()) ^ set(state["ledger"])]
    got = f"an odd or missing {''.join(odd[:1])} in {path / 'state.json'}"
    must(not odd, "checkpoint", "a whole moiety checkpoint", got)
    return state  # type: ignore[no-any-return]


def _tensors(path: Path, state: dict[str, Any], name: str) -> dict[str, Tensor]:
    hint = "Remove that folder to go back to an older one or to start again."
    with report_unreadable(path / name, hint, "checkpoint"):
        return read_tensors(path / name, state["files"][name]["blake2b"])


def read_tensors(path: Path, wanted: str) -> dict[str, Tensor]:
    """The tensors of a file that must hash to ``wanted``."""
    content = path.read_bytes()
    if digest(content) != wanted:
        raise ValueError(f"{len(content)} bytes that are not as they were written")
    return load(content)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."
