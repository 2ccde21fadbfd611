"""Configuration files: TOML, checked table by table, and from there to what ``moiety.fit`` takes."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import shlex
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from moiety.data import FederatedData, from_spec
from moiety.errors import choice, must, near, refuse
from moiety.experiments.registry import list_recipes
from moiety.files import read_toml
from moiety.models import MODELS
from moiety.run.build import algorithm_from, fill_sizes, model_from, split_from
from moiety.run.callbacks import CSV, MLflow, TensorBoard, WandB
from moiety.run.checks import check_inputs
from moiety.run.pipeline import Stage, check_stage_options, stage_from
from moiety.run.protocol import Callback
from moiety.run.settings import RUN_KEYS, SECTIONS, Options, check_part, read_options
from moiety.spec import check_arguments
from moiety.split import Split
from moiety.types import Algorithm

Table = dict[str, Any]
KNOWN = (*SECTIONS, "run", "stage", "track")
TRACKERS: dict[str, Callable[..., Callback]] = {
    "csv": CSV,
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}
"""The keys of ``[track]``: each is true, or a table of arguments."""
MAY_CHANGE = ("run.rounds", "run.engine", "run.engine_reason", "run.workers", "run.worker_timeout")


class Config(NamedTuple):
    """A checked file: its tables, and the options that ``[run]`` and others name."""

    tables: Table
    options: Options


class Parts(NamedTuple):
    """What a file describes: one run, or a pipeline of ``stages``."""

    model: nn.Module
    data: FederatedData
    algorithm: Algorithm | None = None
    split: Split | None = None
    stages: Sequence[Stage] = ()


def read_file(path: Path) -> Table:
    """The tables of a TOML file."""
    hint = "The config.toml in a run's folder is such a file."
    must(not path.is_dir(), "target", "a recipe or a TOML file", f"the folder {path}", hint)
    if not os.path.lexists(path):
        hint = near(str(path), list_recipes()).replace("Known:", "Recipes:")
        refuse("target", "a recipe or a TOML file", f"{path}, which is neither", hint)
    return read_toml(path)


def assign(tables: Table, assignment: str) -> None:
    """Put ``a.b=c`` into the tables; the value is TOML, or else a text.

    >>> tables = {"model": "mlp", "run": {"rounds": 5}}
    >>> for each in ("run.rounds=7", "model.hidden=[32, 16]", "run.engine=auto"):
    ...     assign(tables, each)
    >>> tables
    {'model': {'name': 'mlp', 'hidden': [32, 16]}, 'run': {'rounds': 7, 'engine': 'auto'}}
    """
    put_value(tables, *read_assignment(assignment, "section.key=value"))


def put_value(tables: Table, path: str, value: Any, option: str = "--set") -> None:
    """Put a value into the tables at a ``path`` such as ``run.rounds``; messages name the ``option``."""
    keys = [key.strip() for key in path.split(".")]
    must(all(keys), option, "of the form section.key=value", path)
    must(keys[0] in KNOWN, option, f"for one of the sections {', '.join(KNOWN)}", keys[0], near(keys[0], KNOWN))
    must(len(keys) > 1 or keys[0] != "run", option, "for a key of [run]", path, "As in run.rounds=100.")
    table, above = (_stage_table(tables, keys, option), 2) if keys[0] == "stage" else (tables, 0)
    for depth, key in enumerate(keys[above:-1], start=above + 1):
        inner = table.get(key, {})
        inner = {"name": inner} if isinstance(inner, str) and keys[0] != "run" else inner
        must(isinstance(inner, dict), option, "for a key of a table", f"{'.'.join(keys[:depth])}, which is none")
        table[key] = table = inner
    table[keys[-1]] = value


def _stage_table(tables: Table, keys: Sequence[str], option: str) -> Table:
    """The table of the stage that ``stage.N.key`` names, counted from 1 as the folders of stages are."""
    must(len(keys) > 2, option, "for a key of a stage", ".".join(keys), "As in stage.1.rounds=100.")
    stages = tables.get("stage")
    stages = stages if isinstance(stages, list) else []
    valid = keys[1].isdecimal() and 1 <= int(keys[1]) <= len(stages)
    must(valid, option, f"for one of {len(stages)} stages, counted from 1", f"stage.{keys[1]}")
    table = stages[int(keys[1]) - 1]
    must(isinstance(table, dict), option, "for a key of a table", f"stage.{keys[1]}, which is none")
    return table  # type: ignore[no-any-return]


def read_assignment(assignment: str, form: str = "name=value") -> tuple[str, Any]:
    """The name and the value of ``name=value``; the value is TOML, or else a text. Messages show the ``form``.

    >>> read_assignment("rounds=5"), read_assignment("source=mnist")
    (('rounds', 5), ('source', 'mnist'))
    """
    name, equals, text = assignment.partition("=")
    must(bool(equals) and bool(name.strip()), "--set", f"of the form {form}", assignment or "nothing")
    return name.strip(), read_value(text)


def read_value(text: str) -> Any:
    """A value of TOML, or else the text itself."""
    value = text.strip()
    with contextlib.suppress(ValueError, RecursionError):  # that is no TOML, or nested too deeply
        table = tomllib.loads(f"value = {value}")
        value = table["value"] if len(table) == 1 else value
    return value


def check_tables(tables: Table) -> Config:
    """The file as a checked configuration; a section that is only a name becomes a table with that name."""
    for key in tables:
        hint = f"It is a key of [run]: write run.{key}." if key in RUN_KEYS else near(key, KNOWN)
        must(key in KNOWN, "file", "one of known sections", key, hint)
    tables = {"run": {}, **_name_tables(tables, SECTIONS)}
    stages = tables.get("stage", [])
    must(isinstance(stages, list), "stage", "a list of tables, each headed [[stage]]", repr(stages))
    tables |= {"stage": [_name_tables(each, ("split", "algorithm")) for each in stages]} if "stage" in tables else {}
    for section in ("data", "model"):
        must(section in tables, section, "given", "nothing", f"Add a section [{section}] to the file.")
    sections = {key: tables[key] for key in SECTIONS if key in tables}
    for number, stage in enumerate(tables.get("stage", ()), 1):
        if isinstance(stage, dict):
            sections |= {f"stage.{number}.{key}": stage[key] for key in ("split", "algorithm") if key in stage}
    for name, table in sections.items():
        must(isinstance(table, dict), name, "a table", repr(table))
        hint = "Such a run can be repeated from Python only."
        must("own" not in table, name, "named in the file", f"the user's own {table.get('own')}", hint)
    make_trackers(tables)  # finds what is wrong with them
    config = Config(tables, read_options(tables))
    _check_stages(config)
    return config


def make_trackers(tables: Table) -> list[Callback]:
    """The callbacks that ``[track]`` names; a key is true or false, or a table of the callback's arguments."""
    section = tables.get("track", {})
    must(isinstance(section, dict), "track", "a table", repr(section), "As in [track] with tensorboard = true.")
    trackers = []
    for name, value in section.items():
        must(name in TRACKERS, "track", f"a table with keys of {', '.join(TRACKERS)}", name, near(name, TRACKERS))
        fits = isinstance(value, bool | dict)
        must(fits, f"track.{name}", "true, false, or a table of arguments", repr(value))
        arguments = value if isinstance(value, dict) else {}
        parameters = inspect.signature(TRACKERS[name]).parameters
        for key in arguments:
            must(
                key in parameters,
                f"track.{name}",
                f"a table with keys of {', '.join(parameters)}",
                key,
                near(key, parameters),
            )
        if value is not False:
            trackers.append(TRACKERS[name](**arguments))
    return trackers


def _name_tables(table: Any, keys: Sequence[str]) -> Any:
    """The table with a table in the place of a mere name."""
    if not isinstance(table, dict):
        return table
    return {k: {"name": v} if isinstance(v, str) and k in keys else v for k, v in table.items()}


def _check_stages(config: Config) -> None:
    """Check that a file has an algorithm, or stages with one each."""
    if "stage" not in config.tables:
        hint = "Add a section [algorithm], or tables [[stage]] with one each, to the file."
        must("algorithm" in config.tables, "algorithm", "given", "nothing", hint)
        return
    must(len(config.tables["stage"]) > 0, "stage", "at least one table [[stage]]", "none")
    for section in ("algorithm", "split"):
        hint = f"Each [[stage]] has its own {section}."
        present = section in config.tables
        must(not present, section, "left out where there are stages", f"a section [{section}]", hint)
    check_stage_options(config.options, "run.")


def make_parts(config: Config) -> Parts:
    """Make what the file describes; what is quickly checked comes first, since data may take long to load."""
    tables, options = config.tables, config.options
    algorithm, stages = None, []
    if "stage" in tables:
        stages = [stage_from(number, table) for number, table in enumerate(tables["stage"], 1)]
    else:
        hint = "Write it into the file or use --rounds."
        must(options.rounds is not None, "run.rounds", "given", "nothing", hint)
        algorithm = algorithm_from(tables["algorithm"])
        hint = 'As in [split] with name = "output_layer".'
        complete = "split" in tables or algorithm.default_split is not None
        must(complete, "split", f"given for {algorithm.name}", "nothing", hint)
    choice("model.name", tables["model"].get("name"), MODELS)
    data = from_spec(tables["data"])
    check_part(data, options.settings.evaluate_on)
    check_inputs(options.settings.inputs or ("x",), data.columns)
    model = model_from(fill_sizes(tables["model"], data, options))
    split = split_from(tables["split"], model) if "split" in tables else None
    return Parts(model, data, algorithm, split, stages)


def check_same(new: Table, old: Table, folder: Path) -> None:
    """Refuse what a file says otherwise than the run that is to be continued began.

    The number of rounds, the engine and its workers may change. What the file leaves out was filled in at the start.
    """
    stages, old_stages = (len(tables.get("stage", ())) for tables in (new, old))
    must(stages == old_stages, "stage", f"{old_stages} stages, as {folder} began", stages)
    old_values = _flatten(old)
    for place, value in _flatten(new).items():
        name = f"{place}.name" if f"{place}.name" in old_values else place  # a mere name stands for a table with it
        before = old_values.get(name, False)  # a switch that is off need not be written down
        expected, hint = "left out", "Only rounds, engine and workers may change; begin another run for the rest"
        if name.startswith("stage."):
            hint = "Begin another pipeline for that"
        if name in old_values:
            expected = repr(before)
            hint += f", or keep it with --set {shlex.quote(f'{name}={json.dumps(before)}')}"
        same = value == before and isinstance(value, bool) == isinstance(before, bool)
        must(name in MAY_CHANGE or same, name, f"{expected}, as {folder} began", repr(value), f"{hint}.")


def check_builders(tables: Table) -> None:
    """Refuse what the builders that a file names do not take: a run that goes on makes nothing from the file."""
    if "algorithm" in tables:
        algorithm_from(tables["algorithm"])
    for number, table in enumerate(tables.get("stage", ()), 1):
        stage_from(number, table)
    arguments = dict(tables["model"])
    name = arguments.pop("name", None)
    choice("model.name", name, MODELS)
    check_arguments("model", MODELS[name], arguments, {}, complete=False)


def _flatten(table: Table, above: str = "") -> Table:
    """The values of nested tables by their places, as in ``algorithm.shared.lr``; stages count from 1.

    >>> _flatten({"run": {"rounds": 5}, "stage": [{"cohort": 2}]})
    {'run.rounds': 5, 'stage.1.cohort': 2}
    """
    flat: Table = {}
    for key, value in table.items():
        inner = {str(n): each for n, each in enumerate(value, 1)} if key == "stage" else value
        flat |= _flatten(inner, f"{above}{key}.") if isinstance(inner, dict) else {above + key: value}
    return flat
