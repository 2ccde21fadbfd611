"""What the command line set when a run began, kept in its folder so that --resume need not be told again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moiety.errors import MoietyError, message, must
from moiety.experiments import Watch

if TYPE_CHECKING:
    from moiety.engines.training import OnRound
    from moiety.types import RoundRecord

COMMAND = "command.json"


def remembered(folder: Path) -> list[str]:
    """The assignments that the run in this folder began with, beyond its file; none where it does not say."""
    file = folder / COMMAND
    if not file.is_file():
        return []
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise MoietyError(message(COMMAND, "as it was written", f"{file}: {error}")) from None
    sets = found.get("set") if isinstance(found, dict) else None
    whole = isinstance(sets, list) and all(isinstance(each, str) for each in sets)
    must(whole, COMMAND, "as it was written", f"another in {file}")
    return list(sets or ())


def remembering(watch: Watch, folder: Path, sets: Sequence[str]) -> Watch:
    """The same, but write the assignments down after the first round: only then is it sure that there is a run."""
    file = folder / COMMAND
    if not sets and not file.exists():
        return watch
    written = False

    def watched(name: str, place: Path | None) -> OnRound:
        shown = watch(name, place)

        def on_round(record: RoundRecord, rounds: int) -> None:
            nonlocal written
            if not written:
                from moiety.engines.checkpoint import write_file

                write_file(file, (json.dumps({"set": list(sets)}, indent=1) + "\n").encode())
                written = True
            if shown is not None:
                shown(record, rounds)

        return on_round

    return watched
