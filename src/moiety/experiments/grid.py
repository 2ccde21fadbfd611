"""The points of a sweep: which values of a file they set, how they are called, and what ``moiety.fit`` gets there."""

from __future__ import annotations

import copy
import itertools
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moiety.errors import kind, must, refuse
from moiety.experiments.config import Config, Table, check_builders, check_tables, make_parts, put_value, read_value
from moiety.seals import digest
from moiety.spec import plain

Point = dict[str, Any]
"""The values of a point by their places in the file, as in ``{"algorithm.shared": 0.1}``."""
LONGEST = 100
"""How long the name of a folder may be."""


def read_grid(assignments: Sequence[str]) -> dict[str, list[Any]]:
    """The values of each ``section.key=value,value``. A value is TOML, or else a text.

    >>> read_grid(["algorithm.shared=0.03,0.1", "model.hidden=[32],[32, 16]", "algorithm.name=fedavg,fedalt"])
    {'algorithm.shared': [0.03, 0.1], 'model.hidden': [[32], [32, 16]], 'algorithm.name': ['fedavg', 'fedalt']}
    """
    grid: dict[str, list[Any]] = {}
    for assignment in assignments:
        name, equals, text = (part.strip() for part in assignment.partition("="))
        complete = bool(name and equals and text)
        must(complete, "--grid", "of the form section.key=value,value", assignment or "nothing")
        must(name not in grid, "--grid", "given once for each key", name)
        try:
            values = tomllib.loads(f"value = [{text}]")
            grid[name] = values["value"] if len(values) == 1 else [read_value(text)]
        except (ValueError, RecursionError):
            grid[name] = [read_value(part) for part in text.split(",")]
    return grid


def list_points(grid: Mapping[str, Sequence[Any]]) -> list[Point]:
    """All combinations of the values, the last key changing fastest; one point without values where there is no key."""
    kind("grid", grid, Mapping, "a mapping from keys, as in algorithm.shared, to lists of values")
    for name, values in grid.items():
        kind("grid", name, str, "a mapping from keys, as in algorithm.shared, to lists of values")
        hint = f"As in {{{name!r}: [0.03, 0.1]}}."
        kind("grid", values, (list, tuple), "a mapping from keys to lists of values", hint)
        must(len(values) > 0, "grid", f"at least one value of {name}", "none")
        each = [describe_value(name, value) for value in values]
        must(len(set(each)) == len(each), "grid", f"different values of {name}", ", ".join(each))
        must(name != "run.seed", "grid", "without run.seed", "run.seed", "Seeds have an option of their own.")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def describe_value(name: str, value: Any) -> str:
    """A value as JSON, by which it is told from others and found again."""
    try:
        json.dumps([name, value], default=plain, ensure_ascii=False).encode()
        return json.dumps(value, sort_keys=True, default=plain)
    except (TypeError, ValueError, RecursionError):  # also a text that UTF-8 cannot hold
        constraint = f"numbers, texts, lists, or values that moiety makes, for {name}"
        hint = "Give names, and make what they stand for in the function."
        refuse("grid", constraint, f"{value!r:.60} ({type(value).__name__})", hint)


def name_point(point: Point) -> str:
    """A point in one line.

    >>> name_point({"algorithm.shared": 0.1, "model.hidden": [32]}), name_point({})
    ('algorithm.shared=0.1, model.hidden=[32]', 'all')
    """
    texts = {name: value if isinstance(value, str) else describe_value(name, value) for name, value in point.items()}
    return ", ".join(f"{name}={text}" for name, text in texts.items()) or "all"


def name_folder(point: Point) -> str:
    """The folder of a point: its name, where files can be called so, else with a hash that tells it from others.

    >>> name_folder({"algorithm.shared": 0.1, "run.rounds": 5})
    'algorithm.shared=0.1,run.rounds=5'
    >>> name_folder({"model.hidden": [32]})
    'model.hidden=32~33900d27'
    """
    name = name_point(point).replace(", ", ",")
    safe = re.sub(r"[^\w.,=+-]+", "", name)[:LONGEST]
    return safe if safe == name else f"{safe}~{digest(name.encode())[:8]}"


def configure(tables: Table, point: Point, seed: int, option: str = "--grid") -> Config:
    """The checked configuration of one run: the file's tables with the values of the point, and the seed."""
    new_tables = copy.deepcopy(tables)
    for name, value in {**point, "run.seed": seed}.items():
        put_value(new_tables, name, copy.deepcopy(value), option)
    config = check_tables(new_tables)
    hint = "Run each by itself."
    must("stage" not in config.tables, "file", "one of a single run", "a pipeline with tables [[stage]]", hint)
    check_builders(config.tables)
    return config


def fit_arguments(config: Config, workers: int | None, **settings: Any) -> dict[str, Any]:
    """What ``moiety.fit`` takes, with so many workers where the file names no number, and some settings changed."""
    model, data, algorithm, split, _ = make_parts(config)
    options = {name: value for name, value in vars(config.options).items() if value is not None}
    now = replace(options["settings"], **settings)
    if workers is not None and now.workers is None:
        now = replace(now, workers=workers)
    return {"model": model, "data": data, "algorithm": algorithm, "split": split, **options, "settings": now}
