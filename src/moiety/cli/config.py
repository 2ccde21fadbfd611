"""Configuration files: TOML, checked section by section; what is unknown is refused with the nearest known."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from moiety.errors import MoietyError, message, must, near

Table = dict[str, Any]
_KINDS = {
    "int_type": "a whole number",
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
}


class RunSection(BaseModel):
    """``[run]``: the options of ``moiety.fit``. What is left out is decided there."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rounds: int | None = None
    cohort: int | None = None
    seed: int = 0
    engine: str = "auto"
    evaluate_on: str | None = None
    evaluate_every: int | None = None
    evaluate_clients: int | None = None
    checkpoint_every: int | None = None
    device: str = "cpu"
    workers: int | None = None
    partial: bool = True
    loss: str | None = None
    metric: str | None = None
    inputs: list[str] = ["x"]
    engine_reason: str | None = None
    """Written into run folders; says nothing to a new run."""


class Config(BaseModel):
    """A whole file. The sections that name a builder are checked by that builder."""

    model_config = ConfigDict(extra="forbid", strict=True)

    data: Table
    model: Table
    algorithm: Table
    run: RunSection
    split: Table | None = None


def read(path: Path) -> Table:
    """The tables of a TOML file."""
    hint = "The config.toml in a run's folder is such a file."
    must(not path.is_dir(), "target", "a recipe or a TOML file", f"the folder {path}", hint)
    try:
        return tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        raise _no_such(path) from None
    except UnicodeDecodeError as error:
        raise MoietyError(message(str(path), "TOML, a text in UTF-8", f"other bytes at {error.start}")) from None
    except tomllib.TOMLDecodeError as error:
        raise MoietyError(message(str(path), "TOML", f"an error in it: {error}")) from None
    except OSError as error:
        raise MoietyError(message(str(path), "a file that can be read", error.strerror or error)) from None


def _no_such(path: Path) -> MoietyError:
    from moiety.recipes import RECIPES

    hint = near(str(path), RECIPES).replace("Known:", "Recipes:")
    return MoietyError(message("target", "a recipe or a TOML file", f"{path}, which is neither", hint))


def assign(tables: Table, assignment: str) -> None:
    """Put ``a.b=c`` into the tables; the value is TOML, or else a text.

    >>> tables = {"model": "mlp", "run": {"rounds": 5}}
    >>> for each in ("run.rounds=7", "model.hidden=[32, 16]", "run.engine=auto"):
    ...     assign(tables, each)
    >>> tables
    {'model': {'name': 'mlp', 'hidden': [32, 16]}, 'run': {'rounds': 7, 'engine': 'auto'}}
    """
    path, equals, text = assignment.partition("=")
    keys = [key.strip() for key in path.split(".")]
    must(bool(equals) and all(keys), "--set", "of the form section.key=value", assignment or "nothing")
    known = Config.model_fields
    must(keys[0] in known, "--set", f"for one of the sections {', '.join(known)}", keys[0], near(keys[0], known))
    must(len(keys) > 1 or keys[0] != "run", "--set", "for a key of [run]", assignment, "As in run.rounds=100.")
    at = tables
    for depth, key in enumerate(keys[:-1], start=1):
        inner = at.get(key, {})
        inner = {"name": inner} if isinstance(inner, str) and keys[0] != "run" else inner
        must(isinstance(inner, dict), "--set", "for a key of a table", f"{'.'.join(keys[:depth])}, which is none")
        at[key] = at = inner
    at[keys[-1]] = _value(text.strip())


def _value(text: str) -> Any:
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return read["value"] if len(read) == 1 else text


def check(tables: Table) -> Config:
    """The file as a checked configuration; a section that is only a name becomes a table with that name."""
    whole = {k: {"name": v} if isinstance(v, str) and k != "run" else v for k, v in tables.items()}
    if "run" not in whole:
        whole["run"] = {}
    try:
        config = Config.model_validate(whole)
    except ValidationError as error:
        raise _one_line(error) from None
    for section in ("data", "model", "split", "algorithm"):
        own = (getattr(config, section) or {}).get("own")
        hint = "Such a run can be repeated from Python only."
        must(own is None, section, "named in the file", f"the user's own {own}", hint)
    for section, key in (("data", "partition"), ("algorithm", "server"), ("algorithm", "schedule")):
        value = getattr(config, section).get(key, "")
        must(isinstance(value, str | dict), f"{section}.{key}", "a name or a table with a name", repr(value))
    return config


def _one_line(error: ValidationError) -> MoietyError:
    # An unknown key first: where one is misspelt, the right one is missing too.
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    place = [str(part) for part in first["loc"]]
    where, key = ".".join(place), place[-1]
    if first["type"] == "extra_forbidden":
        known = [k for k in (RunSection if len(place) > 1 else Config).model_fields if k != "engine_reason"]
        kind = "a known key" if len(place) > 1 else "a known section"
        return MoietyError(message(where, kind, "another", near(key, known)))
    if first["type"] == "missing":
        return MoietyError(message(where, "given", "nothing", f"Add a section [{where}] to the file."))
    constraint = _KINDS.get(first["type"], first["msg"].lower())
    return MoietyError(message(where, constraint, repr(first["input"])))


def check_same(given: Table, begun: Table, folder: Path, where: Sequence[str] = ()) -> None:
    """Refuse what a file says otherwise than the run that is to be continued began.

    The number of rounds, the engine and its workers may change. What the file leaves out was filled in at the start.
    """
    free = {"rounds", "engine", "engine_reason", "workers"} if list(where) == ["run"] else set()
    for key, value in given.items():
        was = begun.get(key, False)  # a switch that is off need not be written down
        if isinstance(value, dict) or isinstance(was, dict):
            ours, theirs = ({"name": v} if isinstance(v, str) else v for v in (value, was))
            if isinstance(ours, dict) and isinstance(theirs, dict):
                check_same(ours, theirs, folder, [*where, key])
                continue
        name = ".".join([*where, key])
        shown = "left out" if key not in begun else repr(was)
        hint = "Only rounds, engine and workers may change; begin another run for the rest."
        must(key in free or value == was, name, f"{shown}, as {folder} began", repr(value), hint)
