"""What a recipe was asked for, kept in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from moiety.errors import MoietyError, choice, message, must
from moiety.recipes.base import RECIPE
from moiety.recipes.setting import SCALES


def asked_for(out: Path | None, asked: dict[str, Any], resume: bool) -> dict[str, Any]:
    """What was asked for, settled: as given, else as it began, else by default."""
    file = None if out is None else out / RECIPE
    begun = file is not None and file.is_file()
    must(resume or not begun, "out", "a folder that holds no run yet", out, "Resume it, or choose another folder.")
    was = _read(file) if begun and file is not None else {"scale": "laptop", "rounds": None, "seed": 0}
    settled = {key: was.get(key) if value is None else value for key, value in asked.items()}
    if begun:
        for key, value in settled.items():
            hint = "Leave it out, or begin in another folder."
            must(value == was.get(key), key, f"{was.get(key)}, as the recipe began", value, hint)
    choice("scale", settled["scale"], SCALES)
    return settled


def keep_asked(out: Path | None, asked: dict[str, Any]) -> None:
    """Keep what was asked for; where nothing is new, the file's time still says when the recipe was continued."""
    from moiety.files import report_failure, write_file

    if out is not None:
        with report_failure(out):
            out.mkdir(parents=True, exist_ok=True)
        write_file(out / RECIPE, (json.dumps(asked, indent=1) + "\n").encode())


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise MoietyError(message(file.name, "as it was written", f"{file}: {error}")) from None
    must(isinstance(found, dict), file.name, "a table", f"another in {file}")
    return dict(found)
