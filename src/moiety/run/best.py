"""The models of a run's best round, kept besides those of its last.

``best/round-00000007/`` is laid out as a run's folder is: ``clients/`` has the personal states, ``checkpoint/`` a
checkpoint. A run's own checkpoint of a later round, or of that one, is always there too, so what the history says
about the best round and what is kept agree after a kill at any moment.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moiety.clients import Store
from moiety.errors import must
from moiety.files import discard_folder, make_folder
from moiety.loop.round import Loop, Progress, begin_progress
from moiety.run import folder as files
from moiety.run.checkpoint import ROUND, check_newest, find_checkpoint, load_checkpoint, round_of, save_checkpoint

if TYPE_CHECKING:
    from moiety.run.result import Run

RESTORE = "Restore the folder from a copy, or train again."


def is_good(run: Run) -> bool:
    """Whether a checkpoint may be written now. A run that shows signs of divergence keeps the one it has."""
    loop = run._loop
    return loop.on_divergence == "warn" or not (loop.progress.barren or loop.has_large_loss(run.history))


def keep_round(run: Run) -> None:
    """Keep the models of the round that has just ended, in the place of those of an earlier one."""
    now = run._loop.progress
    if run.folder is None:
        run._best_models = {now.round: _copy_in_memory(now)}
        return
    place, identity = place_of(run.folder, now.round), files.read_identity(run.folder)
    discard_folder(place)  # left by a kill, or by training that was taken back
    make_folder(place.parent)
    make_folder(place)
    copy = begin_progress(run._loop.problem, run._loop.algorithm, place, run._loop.clock, now.run)
    for client in now.store.owners():
        copy.store.put([client], now.store.get([client]))
    copy = replace(now, store=copy.store)
    save_checkpoint(place, copy, identity)
    if is_good(run):
        save_checkpoint(run.folder, now, identity)
        for round in list_best_rounds(run):
            if round != now.round:
                discard_folder(place_of(run.folder, round))


def _copy_in_memory(now: Progress) -> Progress:
    """The same progress, which later rounds do not move: they replace states, and write into none."""
    store = Store(now.store.first)
    store.states = dict(now.store.states)
    transit = now.in_transit and now.in_transit.copy()
    return replace(now, store=store, ledger=replace(now.ledger), dropped=list(now.dropped), in_transit=transit)


def list_best_rounds(run: Run) -> list[int]:
    """The rounds whose models are kept."""
    return sorted(run._best_models) if run.folder is None else find_best_rounds(run.folder)


def find_best_rounds(folder: Path) -> list[int]:
    """The rounds whose models are kept in a run's folder, whole."""
    places = [place for place in (folder / "best").glob("round-*") if ROUND.fullmatch(place.name)]
    return sorted(round_of(place) for place in places if find_checkpoint(place) is not None)


def place_of(folder: Path, round: int) -> Path:
    """Where the models of a round are kept."""
    return folder / "best" / f"round-{round:08d}"


def check_best_round(place: Path, run: str) -> Path:
    """The checkpoint of a round that was kept; refuse a place that has lost it, or has that of another round."""
    newest = find_checkpoint(place)
    check_newest(place, newest, run)
    fault = f"{newest.name if newest else 'none'} in {place}"
    must(newest is not None and newest.name == place.name, "best", f"the models of {place.name}", fault, RESTORE)
    assert newest is not None
    return newest


def restore_round(run: Run, round: int) -> None:
    """Go back to the models of a round that was kept. The ledger and the cost of privacy still count all rounds."""
    now = run._loop.progress
    if run.folder is None:
        progress = run._best_models[round]
    else:
        progress = open_best_round(run._loop, place_of(run.folder, round), files.read_identity(run.folder))
    run._loop.progress = replace(progress, ledger=now.ledger, dropped=[], privacy=now.privacy)


def open_best_round(loop: Loop, place: Path, identity: dict[str, Any]) -> Progress:
    """What was kept in a place, read and compared with its checksums."""
    newest = check_best_round(place, loop.progress.run)
    progress = begin_progress(loop.problem, loop.algorithm, place, loop.clock, loop.progress.run, resumed=True)
    load_checkpoint(newest, progress, identity)
    progress.store.check_states()
    return progress
