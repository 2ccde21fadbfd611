"""The files and commands that stand on the pages of the documentation."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
FENCED = re.compile(r"^```(python|toml|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    """The kind and the text of each block of code."""
    return FENCED.findall(page.read_text(encoding="utf-8"))


def commands(text: str) -> list[str]:
    """The commands of a block for the shell, each on one line."""
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]


def words_of(command: str) -> list[str]:
    """The words of a command without its comment."""
    return shlex.split(command, comments=True)


def first_file() -> dict[str, Any]:
    """The tables of ``first.toml`` on docs/command.md."""
    return tomllib.loads(next(text for kind, text in blocks(DOCS / "command.md") if kind == "toml"))


def complete(text: str, whole: dict[str, Any]) -> dict[str, Any]:
    """A file's tables; a part of a file takes what it lacks from a whole one. Trainings are cut to two rounds."""
    config = tomllib.loads(text)
    few = "clock" in config or "data" in config  # no cohort, or fewer clients than the cohort of a whole file
    if not {"data", "model"} <= config.keys():
        config = {**whole, **config}
        config["run"] = {key: value for key, value in config["run"].items() if not (few and key == "cohort")}
    for stage in config.get("stage", [config["run"]]):
        stage["rounds"] = 2
    return config
