"""A federation from a TOML file: the tables of ``moiety run``, and ``[deploy]`` for what only devices have.

``[data]`` says where a device finds its rows. The name of a data set (``name = "digits"``) is for trials: every device
deals it in the same way and takes the client at its ``partition-id``. With ``target = "..."`` each device reads a CSV
or Parquet file of its own, and the other keys are those of ``moiety.deploy.table``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from moiety.data import FederatedData, from_spec
from moiety.deploy.tables import table as make_table
from moiety.errors import is_whole, must, near
from moiety.files import read_toml
from moiety.run.build import algorithm_from, fill_sizes, model_from, split_from
from moiety.run.settings import SECTIONS, read_options

KNOWN = (*SECTIONS, "run", "deploy")
NEEDED = ("data", "model", "algorithm", "run")


def read_file(path: str | Path) -> dict[str, Any]:
    """The arguments of ``moiety.deploy.app`` that a file describes.

    Args:
        path: a file with ``[data]``, ``[model]``, ``[split]``, ``[algorithm]``, ``[run]`` and, where wanted,
            ``[deploy]`` with ``deadline``, ``least``, ``share_metrics`` and other arguments of ``moiety.deploy.app``.

    >>> import tempfile
    >>> text = '''
    ... data = {target = "outcome", standardise = true}
    ... model = {name = "linear", inputs = 4, outputs = 2}
    ... algorithm = {name = "fedavg", shared = 0.5}
    ... run = {rounds = 10}
    ... deploy = {least = 2}
    ... '''
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(f"{folder}/federation.toml").write_text(text)
    ...     arguments = read_file(f"{folder}/federation.toml")  # then deploy.app(**arguments)
    >>> arguments["rounds"], arguments["least"], arguments["algorithm"].name
    (10, 2, 'fedavg')
    """
    file = read_toml(Path(path))
    for key in file:
        must(key in KNOWN, "file", "one with known sections", key, near(key, KNOWN))
    tables = {key: {"name": value} if isinstance(value, str) else value for key, value in file.items()}
    for key in NEEDED:
        must(isinstance(tables.get(key), dict), key, "a table of the file", repr(tables.get(key))[:60])
    options = read_options(tables)
    must(options.rounds is not None, "run.rounds", "given", "nothing", "Write it into the file.")
    must(options.start is None, "run.start", "left out on devices", options.start)
    algorithm, table = algorithm_from(tables["algorithm"]), tables["data"]
    own_files = "target" in table
    data = make_table(**table) if own_files else partial(load_part, table)
    model = model_from(tables["model"] if own_files else fill_sizes(tables["model"], from_spec(table), options))
    arguments = {
        "model": model,
        "algorithm": algorithm,
        "split": split_from(tables["split"], model) if "split" in tables else None,
        "data": data,
        "settings": options.settings,
        "safeguard": bool(options.safeguard),
        **{name: getattr(options, name) for name in ("rounds", "cohort", "seed", "loss", "metric")},
    }
    more = tables.get("deploy", {})
    must(isinstance(more, dict), "deploy", "a table", repr(more)[:60])
    both = sorted(more.keys() & arguments.keys())
    must(not both, "deploy", "a table without what other sections say", ", ".join(both))
    return {**arguments, **more}


def load_part(table: Mapping[str, Any], config: Mapping[str, Any]) -> FederatedData:
    """The rows of the client at a node's ``partition-id``, of data that all nodes deal in the same way: for trials."""
    data = from_spec(dict(table))
    position = config.get("partition-id")
    fits = is_whole(position) and 0 <= int(str(position)) < len(data)
    hint = "As in --node-config 'partition-id=0'."
    must(fits, "partition-id", f"a whole number from 0 to {len(data) - 1}", repr(position), hint)
    at = int(str(position))
    first, last = int(data.bounds[at, 0]), int(data.bounds[at, -1])
    columns = {name: column[first:last] for name, column in data.columns.items()}
    return replace(data, columns=columns, bounds=data.bounds[[at]] - first, ids=[str(data.ids[at])], spec={})
