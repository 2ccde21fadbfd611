"""Turns that were measured are kept at once, so that a bench that was stopped goes on with the next turn.

They are kept in a file that git knows, so that it can go on in another checkout, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.source import source

Found = dict[str, Any]
Turn = dict[str, Found]
"""What was found in one turn, by row."""
KEPT = Path(__file__).parent / "turns.json"


def keep_turns(
    kept_as: str | None,
    who: Mapping[str, Any],
    turns: int,
    run: Callable[[int], Turn],
    after: Callable[[Sequence[Turn]], None] = lambda done: None,
) -> list[Turn]:
    """All turns. Those of the same code, rows and rounds (``who``) that were kept under a name are not run again.

    ``after`` gets the turns so far after each of them, and once where none is left to run.
    """
    done = find_turns(kept_as, who)[:turns] if kept_as else []
    if len(done) == turns:
        after(done)
    for turn in range(len(done), turns):
        done.append(run(turn))
        if kept_as:
            stored = {**read_kept(), kept_as: {"source": source(kept_as), **who, "turns": done}}
            beside = KEPT.with_suffix(".new")
            beside.write_text(json.dumps(stored, indent=1) + "\n")
            beside.replace(KEPT)
        after(done)
    return done


def find_turns(kept_as: str, who: Mapping[str, Any] = {}) -> list[Turn]:
    """The turns of the present code that were kept under a name; those in which a row failed are run again."""
    mine, wanted = read_kept().get(kept_as, {}), {"source": source(kept_as), **who}
    turns = mine["turns"] if {k: mine.get(k) for k in wanted} == wanted else []
    return [turn for turn in turns if not any("error" in row for row in turn.values())]


def read_kept() -> dict[str, Any]:
    """All that was kept, by name."""
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    return kept
