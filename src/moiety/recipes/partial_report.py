"""The head of a page."""

from __future__ import annotations

import datetime
import platform
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from moiety.recipes.base import ONLY_RUNS

Table = dict[str, Any]


def head(recipe: str, asked: Mapping[str, Any], tables: Sequence[Table], about: str) -> dict[str, Any]:
    """What was run, with what and when, and what it is about."""
    import numpy
    import torch

    from moiety import __version__

    words = ["moiety", "run", recipe, "--scale", asked["scale"]]
    words += [] if asked["rounds"] is None else ["--rounds", str(asked["rounds"])]
    words += ["--seed", str(asked["seed"])] if asked["seed"] else []
    versions = {"moiety": __version__, "torch": torch.__version__, "numpy": numpy.__version__}
    versions["Python"] = platform.python_version()
    date = datetime.date.today().isoformat()
    seconds = sum(table["seconds"] for table in tables)
    lines = [
        f"# {recipe}, scale {asked['scale']}",
        "",
        f"`{shlex.join(words)}`, {date}; {', '.join(f'{k} {v}' for k, v in versions.items())};"
        f" {seconds / 60:.1f} minutes in all.",
        "",
        *([ONLY_RUNS, ""] if asked["scale"] == "ci" else []),
        about,
    ]
    known = {"recipe": recipe, **asked, "command": shlex.join(words), "versions": versions, "date": date}
    return {**known, "page": "\n".join(lines)}
