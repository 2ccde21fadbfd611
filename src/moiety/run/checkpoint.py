"""Checkpoints: safetensors and JSON, written aside, flushed, renamed. No pickle: a file cannot run code.

``checkpoint/round-00000020/`` holds ``server.safetensors`` (shared things only), ``index.safetensors`` (which clients'
personal states changed since the checkpoint before, and where in the run's ``clients/`` the new ones are; in a
deployment states never leave their devices, a simulation must keep them somewhere) and ``state.json``, which says what
the other two hash to, and what the index of ``clients/`` sums up to. A run with a clock has ``in_transit.safetensors``
(uploads that have not arrived, broadcasts still in use) and ``working.safetensors`` (personal states that belong to
those uploads) too. The folder appears by one rename, so it is whole or absent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from moiety import tree
from moiety.errors import is_real, is_whole, must
from moiety.files import (
    aside_of,
    make_folder,
    new_folder,
    read_json,
    remove_folder,
    report_failure,
    report_unreadable,
    write_file,
)
from moiety.loop.in_transit import FILES, pack_in_transit, unpack_in_transit
from moiety.loop.round import Progress
from moiety.run.identity import check_identity
from moiety.seals import START_AGAIN, digest, read_sealed, write_sealed
from moiety.transport import Ledger
from moiety.transport.privacy import PrivacyState
from moiety.types import Tree

SERVER, INDEX, STATE = "server.safetensors", "index.safetensors", "state.json"
KEYS = {"round": int, "numbers": dict, "ledger": dict, "dropped": list, "identity": dict, "files": dict}
"""The keys of ``state.json`` and the types of their values; it also has ``index`` and ``before``."""
ROUND = re.compile(r"round-\d{8,}")
PROGRESS = "progress.json"
"""The round of the newest checkpoint, and whether the run's results are written.

It lies beside ``checkpoint/``, so that a lost checkpoint is noticed, and lost results.
"""


def save_checkpoint(folder: Path, progress: Progress, identity: dict[str, Any]) -> None:
    """Write the state after ``progress.round`` rounds, then remove the checkpoint before.

    ``identity`` (algorithm, parameter names) is compared when the checkpoint is read. Where that round has a checkpoint
    already (an interrupt came soon after it) it stays: what has begun since then will be done again, and nothing that
    is whole is ever removed before something newer is in its place.
    """
    parent = make_folder(folder / "checkpoint")
    final = parent / f"round-{progress.round:08d}"
    before = find_checkpoint(folder)
    if before != final:
        _write_checkpoint(final, progress, identity, before.name if before else "")
    write_progress(folder, progress.round, progress.run)
    _remove_before(final)


def write_progress(folder: Path, round: int, run: str, *, ended: bool = False) -> None:
    """Write down the round of the newest checkpoint; ``ended`` where the results of the run lie beside it."""
    write_sealed(folder / PROGRESS, {"round": round, **({"ended": True} if ended else {})}, run)


def remove_old_checkpoints(folder: Path) -> None:
    """Remove what a killed process left: a checkpoint that is half written, or an older one that is still there."""
    newest = find_checkpoint(folder)
    if newest is not None:
        _remove_before(newest)
    remove_folder(_place_aside(folder / "checkpoint"))


def _place_aside(parent: Path) -> Path:
    """Where a checkpoint is written before it is renamed. All rounds use one name, so that leftovers can be found."""
    return aside_of(parent / "new")


def _write_checkpoint(final: Path, progress: Progress, identity: dict[str, Any], before: str) -> None:
    """Write a new checkpoint, whole or not at all."""
    server = tree.leaves(progress.server)
    changes = progress.store.changes(progress.round)
    files = {
        SERVER: save({k: v.contiguous() for k, v in server.items() if isinstance(v, Tensor)}),
        INDEX: save({"changes": torch.from_numpy(changes)}),
    }
    state: dict[str, Any] = {
        "round": progress.round,
        "numbers": {k: v for k, v in server.items() if not isinstance(v, Tensor)},
        "ledger": progress.ledger.as_dict(),
        "dropped": progress.dropped,
        "identity": identity,
        "index": progress.store.digest(changes),
        "before": before,
    }
    if progress.in_transit is not None:
        state["in_transit"], tensors = pack_in_transit(progress.in_transit)
        files |= {name: save(each) for name, each in tensors.items()}
    if progress.privacy is not None:
        state["privacy"] = progress.privacy._asdict()
    state["files"] = {name: digest(content) for name, content in files.items()}
    with report_failure(final):
        with new_folder(final, _place_aside(final.parent)) as aside:
            for name, content in files.items():
                write_file(aside / name, content)
            write_sealed(aside / STATE, state, progress.run)
        # Only now may the index move: until the rename it had to match the older checkpoint.
        progress.store.settle(changes)


def _remove_before(path: Path) -> None:
    """Remove the checkpoint before this one: the files that moiety wrote, and the folder unless it holds others."""
    name = name_before(path)
    if name and ROUND.fullmatch(name) and name != path.name:
        remove_folder(path.parent / name, (SERVER, INDEX, *FILES, STATE))


def name_before(path: Path) -> str:
    """The name of the checkpoint before this one; empty for a run's first."""
    return str(read_json(path / STATE).get("before") or "")


def find_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint of a run folder, if there is one."""
    places = (folder / "checkpoint").glob("round-*")
    return max((place for place in places if ROUND.fullmatch(place.name)), default=None, key=round_of)


def check_newest(folder: Path, newest: Path | None, run: str) -> dict[str, Any]:
    """Refuse a folder whose last checkpoint was lost, or exchanged for an earlier one; return its ``progress.json``.

    A kill may have come before the last checkpoint was written down, so a later one is right.
    """
    if not (folder / PROGRESS).exists():
        return {}
    hint = "Remove it if the checkpoint is the newest: that has checksums of its own."
    note = read_sealed(folder / PROGRESS, run, ["round"], hint)
    last = note["round"]
    must(is_whole(last), PROGRESS, "as it was written", f"round {last!r:.40} in {folder}", hint)
    round = round_of(newest) if newest else 0
    fault = f"one of round {round} in {folder}" if newest else f"none in {folder}"
    must(round >= last, "checkpoint", f"of round {last}, which {PROGRESS} names", fault, START_AGAIN)
    return note


def round_of(path: Path) -> int:
    """The round of a checkpoint, by its name."""
    return int(path.name.removeprefix("round-"))


def load_checkpoint(path: Path, progress: Progress, identity: dict[str, Any]) -> None:
    """Read a checkpoint into ``progress``, which must be fresh and of the same problem."""
    state, files = read_checkpoint(path, progress.run)
    check_identity(state["identity"], identity, path)
    with report_unreadable(path / STATE, START_AGAIN, "checkpoint"):
        ledger, changes = Ledger(**state["ledger"]), files[INDEX]["changes"].numpy()
        server = tree.refill(progress.server, {**files[SERVER], **state["numbers"]})
        progress.privacy = PrivacyState.from_dict(state["privacy"]) if "privacy" in state else None
    if progress.in_transit is not None:
        device = next((x.device for x in tree.values(progress.server) if isinstance(x, Tensor)), None)
        tensors = {file: {name: x.to(device) for name, x in some.items()} for file, some in files.items()}
        unpack_in_transit(progress.in_transit, state.get("in_transit", {}), tensors, progress.store.first())
    # The run may have been killed while these were being settled; settling them again does no harm.
    progress.store.restart(state["round"], changes, state["index"])
    progress.server, progress.round = server, state["round"]
    progress.ledger, progress.dropped = ledger, list(state["dropped"])


def read_checkpoint(path: Path, run: str) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """The state and the tensors by file of a checkpoint of that run, each compared with its checksum."""
    state = read_sealed(path / STATE, run, (*KEYS, "index", "before"), START_AGAIN)
    odd = [key for key, kind in KEYS.items() if not isinstance(state[key], kind)]
    odd = odd or [f"ledger.{key}" for key in Ledger().as_dict().keys() ^ state["ledger"].keys()]
    must(not odd, "checkpoint", "as it was written", f"another {''.join(odd[:1])} in {path / STATE}", START_AGAIN)
    same = state["round"] == round_of(path)
    must(same, "checkpoint", f"of round {round_of(path)}", f"round {state['round']} in {path / STATE}", START_AGAIN)
    files = {name: read_tensors(path / name, checksum, START_AGAIN) for name, checksum in state["files"].items()}
    _check_content(state, files, path)
    return state, files


def _check_content(state: dict[str, Any], files: dict[str, dict[str, Tensor]], path: Path) -> None:
    """Refuse files whose checksums are right and that do not hold what a checkpoint holds."""
    changes = files.get(INDEX, {}).get("changes", torch.empty(0))
    laid_out = changes.dtype == torch.int64 and changes.dim() == 2 and changes.shape[1] == 4
    fits = {
        INDEX: laid_out and bool(((changes >= 0) & (changes < 2**32)).all()),
        SERVER: SERVER in files,
        "ledger": all(is_real(value) for value in state["ledger"].values()),
        "before": state["before"] is None or isinstance(state["before"], str),
    }
    odd = [name for name, fine in fits.items() if not fine]
    must(not odd, "checkpoint", "as it was written", f"another {', '.join(odd)} in {path}", START_AGAIN)


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
        progress.store.settle(progress.store.changes(0))


def read_tensors(path: Path, checksum: str, hint: str = "", name: str = "") -> dict[str, Tensor]:
    """The tensors of a file that must hash to ``checksum``; ``hint`` and ``name`` are for the error message."""
    with report_unreadable(path, hint, name):
        content = path.read_bytes()
        if digest(content) != checksum:
            raise ValueError(f"{len(content)} other bytes")
        return load(content)
