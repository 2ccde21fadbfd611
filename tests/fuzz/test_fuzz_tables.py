"""Tables for ``from_frame`` and folders of ``moiety data``, mutated: refused in one line, or as they were given."""

from __future__ import annotations

import datetime
import decimal
import math
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import small_originals as small
from folder_mutations import damage_bytes
from fuzz_classes import CASES, SLOW_CASES, call_command, classify, counted, fuzzed, slowly_fuzzed
from hypothesis import given, reject
from hypothesis import strategies as st
from local_server import serve

import moiety as mo
from moiety.data import fetch
from moiety.data.catalogue import DATA_SETS
from moiety.data.sources.files import read_npz
from moiety.data.sources.provenance import digest_arrays

ROWS = 12
GOOD: dict[str, list[Any]] = {
    "site": [f"s{i % 3}" for i in range(ROWS)],
    "age": [40.5 + i for i in range(ROWS)],
    "dose": [i % 4 for i in range(ROWS)],
    "y": ["ill" if i % 2 else "well" for i in range(ROWS)],
}
ODD: list[Any] = [
    None,
    math.nan,
    math.inf,
    "",
    "x",
    "\0",
    "\ud800",
    "1",
    -1,
    2**63,
    10**30,
    1e300,
    True,
    b"x",
    [],
    {},
    1j,
    decimal.Decimal("1.5"),
    datetime.date(2024, 1, 1),
    object(),
]
MAKERS: dict[str, Any] = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.table}
OPTIONS: dict[str, list[Any]] = {
    "features": [["age"], ["dose", "age"], [], ["site"], ["nonsense"], "age", 3],
    "drop": [["dose"], ["y"], ["nonsense"], "dose", None],
    "time": ["age", "dose", "y", "nonsense", 3],
    "group": ["dose", "site", "nonsense"],
    "weights": ["dose", "age", "y", "nonsense"],
    "task": ["classification", "regression", "x", 3],
    "categories": ["codes", "one-hot", {"dose": "one-hot"}, {"age": "x"}, "x", 3],
    "missing": ["mean", "median", "indicator", "x", True],
    "standardise": [True, False, 1, None],
    "unseen_clients": [0.34, 0, 1, -1, math.nan, "x", True],
    "test": [0, 0.5, 0.9, 1, -1, math.nan, "dose", "nonsense", [True] * ROWS, [True, False] * (ROWS // 2), None],
    "validation": [0, 0.3, 1, -1, math.nan, "x", None],
    "dtype": ["float64", "float32", "int8", None],
    "on_disk": [True, False, 1],
    "seed": [3, -1, 10**30, 1.5, None],
    "client": ["dose", "age", "y", "nonsense", 3],
    "target": ["age", "dose", "site", "nonsense", None],
}
KEEPS_NUMBERS = ("client", "seed", "dtype", "on_disk", "validation", "test", "group", "time", "drop", "unseen_clients")


@counted("tables", 0.8 * CASES)  # no table can hold some of them
@fuzzed
@given(st.data())
def test_tables(data: st.DataObject) -> None:
    draw, columns = data.draw, {name: list(values) for name, values in GOOD.items()}
    for _ in range(draw(st.integers(0, 2))):
        name, odd = draw(st.sampled_from(sorted(GOOD))), draw(st.sampled_from(ODD))
        whole = draw(st.booleans())
        columns[name] = [odd] * ROWS if whole else [*columns[name][:3], odd, *columns[name][4:]]
    keys = draw(st.lists(st.sampled_from(sorted(OPTIONS)), max_size=2, unique=True))
    options = {"client": "site", "target": "y"} | {name: draw(st.sampled_from(OPTIONS[name])) for name in keys}
    try:
        frame = MAKERS[draw(st.sampled_from(sorted(MAKERS)))](columns)
    except Exception:  # each library has its own; no table can hold it, so nobody can give it
        reject()
    place = Path(tempfile.mkdtemp())
    kind = draw(st.sampled_from(["frame", "frame", "frame", "csv", "parquet"]))
    if kind != "frame" and isinstance(frame, pd.DataFrame):
        try:
            (frame.to_csv if kind == "csv" else frame.to_parquet)(place / f"t.{kind}", index=False)
        except Exception:
            shutil.rmtree(place)
            reject()
        frame = place / f"t.{kind}"

    def is_right(fed: mo.FederatedData) -> bool:
        """All numbers are finite; where they are taken as they are, each client has its own, and every row once."""
        x, y = np.asarray(fed.columns["x"]), np.asarray(fed.columns["y"])
        finite = bool(np.isfinite(x).all() and np.isfinite(y.astype(float)).all())
        if columns != GOOD or not {*keys} <= {*KEEPS_NUMBERS}:
            return finite and sum(fed.sizes(part).sum() for part in ("train", "validation", "test")) <= ROWS
        names = [n for n in ("age", "dose") if n not in (options.get("drop") or []) and n not in options.values()]
        numbers = [fed.preprocessing.names.index(name) for name in names] if hasattr(fed.preprocessing, "names") else []
        own = options["client"]
        expected = sorted((str(c), *(float(columns[n][i]) for n in names)) for i, c in enumerate(columns[own]))
        if own in ("age", "y") or not numbers:
            return finite
        rows = [
            (str(fed.ids[at]), *map(float, row[numbers]))
            for at in range(len(fed))
            for part in ("train", "validation", "test")
            for row in fed.at(at, part)["x"]
        ]
        clients = set(map(str, fed.ids))
        return finite and sorted(rows) == [row for row in expected if row[0] in clients]

    try:
        classify("tables", lambda: mo.data.from_frame(frame, **options), is_right)
    finally:
        shutil.rmtree(place)


NAME = "pendigits"


@pytest.fixture(scope="module")
def data_set(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, np.ndarray]]]:
    """A data set that was fetched from the publisher's small files into the folder that ``MOIETY_DATA`` names."""
    folder = tmp_path_factory.mktemp("data")
    files, arrays = small.MAKERS[NAME]()
    with pytest.MonkeyPatch.context() as patch, serve() as publisher:
        patch.setitem(DATA_SETS, NAME, publisher.publish(NAME, files))
        patch.setenv("MOIETY_DATA", str(folder))
        path = fetch(NAME)
        yield path, arrays


@counted("folders of data sets", SLOW_CASES)
@slowly_fuzzed
@given(st.data())
def test_folders_of_data_sets(data_set: tuple[Path, dict[str, np.ndarray]], data: st.DataObject) -> None:
    """``moiety data check`` never calls a file known or made whose arrays are others; ``fetch`` makes it again."""
    path, arrays = data_set
    draw, before = data.draw, {file: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    file = draw(st.sampled_from(sorted(before)))
    content = damage_bytes(bytearray(before[file]), data.draw(st.randoms(use_true_random=False)))
    file.write_bytes(content) if content is not None else file.unlink()
    again = draw(st.booleans())

    def call() -> tuple[str, list[str], int]:
        if again:
            call_command(["data", "fetch", NAME])
        code, out, lines = call_command(["data", "check"])
        if code == 2:
            raise mo.MoietyError(lines[0])
        return out, lines, code

    def is_right(result: tuple[str, list[str], int]) -> bool:
        out, _, _ = result
        trusted = f"{NAME}: known" in out or f"{NAME}: made" in out
        same = path.exists() and digest_arrays(read_npz(path)) == digest_arrays(arrays)
        return (same or not trusted) and (not again or (same and trusted))

    try:
        classify("folders of data sets", call, is_right)
    finally:
        for each, text in before.items():
            each.write_bytes(text)
