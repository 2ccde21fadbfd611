"""Configuration files: TOML, checked section by section; what is unknown is refused with the nearest known."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from moiety.errors import MoietyError, message, must, near
from moiety.spec import nearest, one_line

Table = dict[str, Any]

SECTIONS = ("data", "model", "split", "algorithm", "aggregator", "codec", "attack", "clock")
"""The sections that name a builder."""


class RunSection(BaseModel):
    """``[run]``: the options of ``moiety.fit``. What is left out is decided there."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rounds: int | None = None
    cohort: int | None = None
    participation: str | None = None
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
    start: str | None = None
    attackers: Any = None
    """A share or a list of clients; checked with the data at hand."""
    engine_reason: str | None = None
    """Written into run folders; says nothing to a new run."""


class StageSection(BaseModel):
    """``[[stage]]``: the options of ``moiety.stage``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    algorithm: Table
    rounds: int
    cohort: int | None = None
    split: Table | None = None
    evaluate_every: int | None = None
    checkpoint_every: int | None = None


class Config(BaseModel):
    """A whole file, of one run or of a pipeline's stages. Sections that name a builder are checked by that builder."""

    model_config = ConfigDict(extra="forbid", strict=True)

    data: Table
    model: Table
    run: RunSection
    algorithm: Table | None = None
    split: Table | None = None
    aggregator: Table | None = None
    codec: Table | None = None
    attack: Table | None = None
    clock: Table | None = None
    stage: list[StageSection] | None = None

    def named(self) -> dict[str, Table]:
        """The tables that name a builder, by where they stand."""
        found = {key: getattr(self, key) for key in SECTIONS}
        for number, each in enumerate(self.stage or (), 1):
            found |= {f"stage.{number}.split": each.split, f"stage.{number}.algorithm": each.algorithm}
        return {where: table for where, table in found.items() if table is not None}


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
    from moiety.experiments.registry import list_recipes

    hint = near(str(path), list_recipes()).replace("Known:", "Recipes:")
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
    at, done = (_stage(tables, keys, assignment), 2) if keys[0] == "stage" else (tables, 0)
    for depth, key in enumerate(keys[done:-1], start=done + 1):
        inner = at.get(key, {})
        inner = {"name": inner} if isinstance(inner, str) and keys[0] != "run" else inner
        must(isinstance(inner, dict), "--set", "for a key of a table", f"{'.'.join(keys[:depth])}, which is none")
        at[key] = at = inner
    at[keys[-1]] = _value(text.strip())


def _stage(tables: Table, keys: Sequence[str], assignment: str) -> Table:
    """The table of the stage that ``stage.N.key`` names, counted from 1 as the folders of stages are."""
    must(len(keys) > 2, "--set", "for a key of a stage", assignment, "As in stage.1.rounds=100.")
    stages = tables.get("stage")
    count = len(stages) if isinstance(stages, list) else 0
    known = keys[1].isdecimal() and 1 <= int(keys[1]) <= count
    must(known, "--set", f"for one of {count} stages, counted from 1", f"stage.{keys[1]}")
    assert isinstance(stages, list)
    found = stages[int(keys[1]) - 1]
    must(isinstance(found, dict), "--set", "for a key of a table", f"stage.{keys[1]}, which is none")
    return found  # type: ignore[no-any-return]


def read_assignment(assignment: str) -> tuple[str, Any]:
    """The name and the value of ``name=value``; the value is TOML, or else a text.

    >>> read_assignment("rounds=5"), read_assignment("source=mnist")
    (('rounds', 5), ('source', 'mnist'))
    """
    name, equals, text = assignment.partition("=")
    must(bool(equals) and bool(name.strip()), "--set", "of the form name=value", assignment or "nothing")
    return name.strip(), _value(text.strip())


def _value(text: str) -> Any:
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return read["value"] if len(read) == 1 else text


def check(tables: Table) -> Config:
    """The file as a checked configuration; a section that is only a name becomes a table with that name."""
    whole = {"run": {}, **_named(tables, SECTIONS)}
    if isinstance(whole.get("stage"), list):
        whole["stage"] = [_named(each, ("split", "algorithm")) for each in whole["stage"]]
    try:
        config = Config.model_validate(whole)
    except ValidationError as error:
        raise _one_line(error) from None
    _one_or_many(config)
    for where, table in config.named().items():
        own = table.get("own")
        hint = "Such a run can be repeated from Python only."
        must(own is None, where, "named in the file", f"the user's own {own}", hint)
        for key in ("partition", "server", "schedule", "solver", "then"):
            value = table.get(key, "")
            must(isinstance(value, str | dict), f"{where}.{key}", "a name or a table with a name", repr(value))
    return config


def _named(table: Any, keys: Sequence[str]) -> Any:
    """The table with a table in the place of a mere name."""
    if not isinstance(table, dict):
        return table
    return {k: {"name": v} if isinstance(v, str) and k in keys else v for k, v in table.items()}


def _one_or_many(config: Config) -> None:
    """A file has an algorithm, or stages with one each."""
    if config.stage is None:
        hint = "Add a section [algorithm], or tables [[stage]] with one each, to the file."
        must(config.algorithm is not None, "algorithm", "given", "nothing", hint)
        return
    must(len(config.stage) > 0, "stage", "at least one table [[stage]]", "none")
    apart = "left out where there are stages"
    for section in ("algorithm", "split"):
        hint = f"Each [[stage]] has its own {section}."
        must(getattr(config, section) is None, section, apart, f"a section [{section}]", hint)
    for section in ("aggregator", "codec", "attack", "clock"):
        hint = "Stages know none; run them one after the other with start in [run]."
        must(getattr(config, section) is None, section, apart, f"a section [{section}]", hint)
    must(config.run.attackers is None, "run.attackers", apart, config.run.attackers)
    for key in ("rounds", "cohort", "evaluate_every", "checkpoint_every", "start"):
        value = getattr(config.run, key)
        hint = "Stages start from each other."
        if key != "start":
            hint = f"Each [[stage]] has its own, to be set with --set stage.1.{key}={value}."
        must(value is None, f"run.{key}", apart, value, hint)


def _one_line(error: ValidationError) -> MoietyError:
    # An unknown key first: where one is misspelt, the right one is missing too.
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    place = [str(part + 1) if isinstance(part, int) else part for part in first["loc"]]
    where = ".".join(place)
    if first["type"] == "extra_forbidden":
        return _unknown(place)
    if first["type"] == "missing":
        hint = f"Add a section [{where}] to the file." if len(place) == 1 else "Add it to that [[stage]]."
        return MoietyError(message(where, "given", "nothing", hint))
    if where == "stage":
        return MoietyError(message(where, "a list of tables, each headed [[stage]]", repr(first["input"])))
    return one_line([first])


def _unknown(place: Sequence[str]) -> MoietyError:
    """A key that is not known where it stands, but may be elsewhere."""
    *above, key = place
    if not above:
        hint = (
            f"It is a key of [run]: write run.{key}."
            if key in RunSection.model_fields
            else near(key, Config.model_fields)
        )
        return MoietyError(message("file", "one of known sections", key, hint))
    shape = StageSection if above[0] == "stage" else RunSection
    known = [k for k in shape.model_fields if k != "engine_reason"]
    hint = f"It is a section of its own, [{key}]." if key in SECTIONS else nearest(key, known)
    return MoietyError(message(".".join(above), "a table of known keys", key, hint))


def check_same(given: Table, begun: Table, folder: Path, where: Sequence[str] = ()) -> None:
    """Refuse what a file says otherwise than the run that is to be continued began.

    The number of rounds, the engine and its workers may change. What the file leaves out was filled in at the start.
    """
    free = {"rounds", "engine", "engine_reason", "workers"} if list(where) == ["run"] else set()
    for key, value in given.items():
        was = begun.get(key, False)  # a switch that is off need not be written down
        if key == "stage" and isinstance(value, list) and isinstance(was, list):
            counts = len(value), len(was)
            must(counts[0] == counts[1], "stage", f"{counts[1]} stages, as {folder} began", counts[0])
            for number, (ours, theirs) in enumerate(zip(value, was, strict=True), 1):
                check_same(ours, theirs, folder, ["stage", str(number)])
            continue
        if isinstance(value, dict) or isinstance(was, dict):
            ours, theirs = ({"name": v} if isinstance(v, str) else v for v in (value, was))
            if isinstance(ours, dict) and isinstance(theirs, dict):
                check_same(ours, theirs, folder, [*where, key])
                continue
        name = ".".join([*where, key])
        shown = "left out" if key not in begun else repr(was)
        hint = "Only rounds, engine and workers may change; begin another run for the rest"
        hint = "Begin another pipeline for that" if where and where[0] == "stage" else hint
        if key in begun and not isinstance(was, dict):
            hint += f", or keep it with --set {shlex.quote(f'{name}={json.dumps(was)}')}"
        must(key in free or value == was, name, f"{shown}, as {folder} began", repr(value), f"{hint}.")
