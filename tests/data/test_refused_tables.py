"""A table of malformed frames and files: each is refused in one line that names the column and the row."""

from __future__ import annotations

import datetime
import gzip
import lzma
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from moiety.data import from_frame, from_spec
from moiety.errors import MoietyError

GOOD: dict[str, Any] = {
    "site": ["a", "a", "b", "b"],
    "age": [1.0, 2.0, 3.0, 4.0],
    "ward": ["u", "v", "u", "v"],
    "y": ["no", "yes", "no", "yes"],
}
DAYS = [datetime.date(2024, 1, day) for day in (1, 2, 3, 4)]
MANY = {"site": ["a", "b"] * 600, "y": [0, 1] * 600}
TEXT = "site,age,ward,y\na,1,u,no\na,2,v,yes\nb,3,u,no\nb,4,v,yes\n"


def table(**changes: Any) -> pa.Table:
    """The good table with some columns changed; None takes one away."""
    return pa.table({k: v for k, v in {**GOOD, **changes}.items() if v is not None})


def panda(**changes: Any) -> pd.DataFrame:
    return pd.DataFrame({**GOOD, **changes})


def twice() -> pd.DataFrame:
    return pd.concat([panda(), panda()[["age"]]], axis=1)


# What it is called, the data, the options besides client and target, and what the message must say.
FRAMES: list[tuple[str, Callable[[], Any], dict[str, Any], str]] = [
    ("nothing", lambda: None, {}, "a data frame of pandas, polars or pyarrow.*NoneType"),
    ("a dict", lambda: GOOD, {}, "a data frame.*dict.*from_arrays"),
    ("an array", lambda: np.zeros((3, 2)), {}, "a data frame.*ndarray"),
    ("a list", lambda: [1, 2], {}, "a data frame.*list"),
    ("an empty list", list, {}, "a data frame.*list"),
    ("a number", lambda: 5, {}, "a data frame.*int"),
    ("a series", lambda: pd.Series([1, 2]), {}, "a data frame.*Series"),
    ("no columns", pd.DataFrame, {}, "at least one, got none in the data frame"),
    ("no rows", lambda: table().slice(0, 0), {}, "`data` must be at least one row"),
    ("no rows, polars", lambda: pl.DataFrame(GOOD).clear(), {}, "`data` must be at least one row"),
    ("no rows, pandas", lambda: panda().iloc[:0], {}, "(at least one row|no value at all)"),
    ("one column", lambda: table(age=None, ward=None, y=None), {}, "`target` must be a column of the table, got 'y'"),
    ("two columns", lambda: table(age=None, ward=None), {}, "`features` must be at least one column"),
    ("no client", lambda: table(site=None), {}, "`client` must be a column of the table, got 'site'"),
    ("client misspelt", lambda: table(), {"client": "sitee"}, "'sitee'. Did you mean site"),
    ("client a number", lambda: table(), {"client": 3}, "`client` must be the name of a column, got 3"),
    ("client missing", lambda: table(site=["a", None, "b", "b"]), {}, "'site'` must be given.*row 1"),
    ("client missing, pandas", lambda: panda(site=["a", "a", np.nan, "b"]), {}, "'site'` must be given.*row 2"),
    ("client NaN", lambda: panda(site=[1, 2, np.nan, 1]), {}, "'site'` must be texts or whole numbers.*double"),
    ("client floating", lambda: table(site=[0.5, 1, 2, 3]), {}, "'site'` must be texts or whole.*double"),
    ("client boolean", lambda: table(site=[True, False, True, True]), {}, "'site'` must be texts or whole.*bool"),
    ("client a date", lambda: table(site=DAYS), {}, "'site'` must be texts or whole.*date"),
    ("client nested", lambda: table(site=[["a"]] * 4), {}, "'site'` must be texts or whole.*list"),
    ("client nowhere", lambda: table(site=pa.nulls(4)), {}, "'site'` must be given in every row, got nothing at all"),
    ("client with 0", lambda: table(site=["a", "a\0", "b", "b"]), {}, "`client` must be names of valid Unicode"),
    ("target missing", lambda: table(y=["no", "yes", None, "no"]), {}, "'y'` must be given in every row.*row 2"),
    ("target NaN", lambda: table(y=[0.5, float("nan"), 1, 2]), {}, "'y'` must be given in every row.*row 1"),
    ("target infinite", lambda: table(y=[0.5, 1, 2, float("inf")]), {}, "'y'` must be finite, got inf at row 3"),
    ("target a date", lambda: table(y=DAYS), {}, "'y'` must be of numbers, booleans or texts.*date32"),
    ("target nested", lambda: table(y=[[1]] * 4), {}, "'y'` must be of numbers, booleans or texts.*list"),
    ("target nowhere", lambda: table(y=pa.nulls(4)), {}, "'y'` must be of numbers, booleans.*no value at all"),
    (
        "target mixed",
        lambda: table(y=["1", "2", "3", "oops"]),
        {},
        "'y'` must be all numbers, or all texts.*'oops' at row 3",
    ),
    ("texts to regress", lambda: table(), {"task": "regression"}, "'y'` must be numbers for a regression"),
    ("halves as classes", lambda: table(y=[0.5, 1, 2, 3]), {"task": "classification"}, "'y'` must be whole numbers"),
    (
        "too many labels",
        lambda: pa.table({**MANY, "age": [1.0] * 1200, "y": list(range(1200))}),
        {},
        "'y'` must be labels with at most 100 different values, got 1200.*task=",
    ),
    ("age NaN", lambda: panda(age=[1, np.nan, 3, 4]), {}, "'age'` must be given.*row 1.*missing="),
    (
        "age NaN, polars",
        lambda: pl.DataFrame({**GOOD, "age": [1.0, 2.0, 3.0, float("nan")]}),
        {},
        "'age'` must be.*row 3",
    ),
    ("age null", lambda: table(age=[1, 2, None, 4]), {}, "'age'` must be given in every row.*row 2"),
    ("age infinite", lambda: table(age=[1, float("inf"), 3, 4]), {}, "'age'` must be finite, got inf at row 1"),
    ("age infinite, filled", lambda: table(age=[-np.inf, 2, 3, 4]), {"missing": "mean"}, "'age'` must be fin.*row 0"),
    ("ward null", lambda: table(ward=["u", "v", "u", None]), {"test": 0}, "'ward'` must be given.*row 3"),
    ("ward None, pandas", lambda: panda(ward=["u", None, "u", "v"]), {"test": 0}, "'ward'` must be given.*row 1"),
    ("boolean null", lambda: table(age=[True, None, False, True]), {}, "'age'` must be given in every row.*row 1"),
    ("a date", lambda: table(age=DAYS), {}, "'age'` must be of numbers.*date32.*time="),
    ("a date, pandas", lambda: panda(age=pd.to_datetime(DAYS)), {}, "'age'` must be of numbers.*timestamp.*time="),
    ("a duration", lambda: table(age=[datetime.timedelta(1)] * 4), {}, "'age'` must be of numbers.*duration"),
    ("a time of day", lambda: table(age=[datetime.time(1)] * 4), {}, "'age'` must be of numbers.*time64"),
    ("nested lists", lambda: table(age=[[1, 2]] * 4), {}, "'age'` must be of numbers.*list.*a column for each number"),
    ("nested lists, pandas", lambda: panda(age=[[1], [2], [3], [4]]), {}, "'age'` must be of numbers.*list"),
    ("records", lambda: table(age=[{"a": 1}] * 4), {}, "'age'` must be of numbers.*struct"),
    ("a map", lambda: table(age=pa.array([[("a", 1)]] * 4, pa.map_(pa.string(), pa.int64()))), {}, "'age'` must.*map"),
    ("bytes", lambda: table(age=[b"x"] * 4), {}, "'age'` must be of numbers.*binary"),
    ("complex numbers", lambda: panda(age=[1j] * 4), {}, "'age'` must be of numbers.*complex"),
    ("objects", lambda: panda(age=[object()] * 4), {}, "'age'` must be of numbers.*object"),
    ("mixed types", lambda: panda(age=[1, 2, "x", 4]), {}, "'age'` must be of values of one type.*'x'.*row 2"),
    ("mixed, text first", lambda: panda(age=["x", 2, 3, 4]), {}, "'age'` must be of values of one type.*row 1"),
    ("objects, polars", lambda: pl.DataFrame({**GOOD, "age": [object()] * 4}), {}, "'age'` must be of numbers"),
    ("numbers with a text", lambda: table(age=["1", "2", "3", "x"]), {"test": 0}, "'age'` must be all.*'x' at row 3"),
    (
        "a text in a test row",
        lambda: table(age=["1", "x", "3", "4"]),
        {"test": [False, True, False, False]},
        "'x' at row 1",
    ),
    ("decimal commas", lambda: table(age=["1,5", "2,5", "3,5", "4,0"]), {}, "'age'` must be.*decimal point.*at row"),
    ("a target of commas", lambda: table(y=["1,5", "2,5", "3,5", "4,0"]), {}, "'y'` must be.*decimal point.*row 0"),
    (
        "dates as texts",
        lambda: table(age=["1.2.2024", "31.1.2024", "3.2.2024", "4.2.2024"]),
        {"test": 0},
        "the date '1.2.2024' at row 0.*drop=.*time=",
    ),
    (
        "ISO dates as texts",
        lambda: panda(age=list(map(str, DAYS))),
        {"test": 0},
        "the date '2024-01-01' at row 0.*time=",
    ),
    (
        "times as texts",
        lambda: table(t=["2024-01-01", "2024-01-02", "3.1.24", "x"]),
        {"time": "t"},
        "'t'` must be of dates.*'3.1.24' at row 2",
    ),
    (
        "per cent",
        lambda: table(age=["1%", "2.5%", "3%", "4%"]),
        {"test": 0},
        "'age'` must be of numbers without a sign, got '1%' at row 0",
    ),
    (
        "clients with spaces",
        lambda: table(site=["a", "a ", "b", "b"]),
        {},
        "'site'` must be of names that differ in more than spaces, got 'a' and 'a ' at row 1",
    ),
    (
        "labels with spaces",
        lambda: table(y=["no", "yes", " no", "yes"]),
        {},
        "'y'` must be of names that differ in more than spaces.*at row",
    ),
    (
        "categories with spaces",
        lambda: table(ward=["u", "v", "u ", "v"]),
        {"test": 0},
        "'ward'` must be of names that.*at row 2",
    ),
    (
        "beyond float32",
        lambda: table(age=[1, 2, 1e39, 4]),
        {},
        "'age'` must be within the range of float32, got 1e.39 at row 2.*float64",
    ),
    (
        "a target beyond float32",
        lambda: table(y=[0.5, 2, -1e39, 4]),
        {"test": 0},
        "'y'` must be within the range of float32, got 1e.39.*float64",
    ),
    (
        "a name with spaces",
        lambda: table(site=None, **{" site": GOOD["site"]}),
        {},
        "`client` must be a column.*Its name is ' site', with spaces",
    ),
    ("test of others", lambda: table(), {"test": [True]}, "`test` must be a share, a column, or 4 booleans"),
    (
        "1,200 numbers and a text",
        lambda: pa.table({**MANY, "id": [*map(str, range(1199)), "x"]}),
        {"test": 0},
        "'id'` must be of at most 1,000 categories.*most are numbers. Look for",
    ),
    ("no value", lambda: table(age=pa.nulls(4)), {}, "'age'` must be of numbers.*no value at all"),
    ("no value, filled", lambda: table(age=[np.nan] * 4), {"missing": "mean"}, "'age'` must be given in some training"),
    (
        "no category, filled",
        lambda: table(ward=pa.array([None] * 4, pa.string())),
        {"missing": "indicator"},
        "'ward'` must be given in some training row",
    ),
    ("a column twice", twice, {}, "`columns` must be of different names, got 'age' twice"),
    ("a column twice, Arrow", lambda: pa.table([[1], [2]], names=["a", "a"]), {}, "of different names, got 'a' twice"),
    ("numbered columns", lambda: pd.DataFrame([[1, 2]]), {}, "`columns` must be named by texts.*got 0"),
    ("nested columns", lambda: pd.DataFrame({("a", "b"): [1]}), {}, "`columns` must be named by texts"),
    (
        "a column without a name",
        lambda: pa.table({**GOOD, " ": [1] * 4}),
        {},
        "named in the heading, got no name for column 5",
    ),
    (
        "a hundred thousand categories",
        lambda: pa.table({"site": ["a"] * 10**5, "y": [0, 1] * 50_000, "id": [f"n{i}" for i in range(10**5)]}),
        {},
        "'id'` must be of at most 1,000 categories for one-hot, got more by row.*drop=",
    ),
    (
        "1,001 categories",
        lambda: pa.table({**MANY, "id": [f"n{i % 1001}" for i in range(1200)]}),
        {"test": 0},
        "'id'` must be of at most 1,000 categories",
    ),
    ("client is target", lambda: table(), {"target": "site"}, r"of one use each.*site.*client.*target"),
    ("time is client", lambda: table(), {"time": "site"}, "of one use each.*site.*client.*time"),
    ("features with target", lambda: table(), {"features": ["age", "y"]}, "without another use, got 'y', the target"),
    ("features unknown", lambda: table(), {"features": ["agee"]}, "`features` must be.*'agee'. Did you mean age"),
    ("features a text", lambda: table(), {"features": "age"}, "`features` must be a list of columns"),
    ("drop a number", lambda: table(), {"drop": 3}, "`drop` must be a list of columns, got 3"),
    ("features twice", lambda: table(), {"features": ["age", "age"]}, "`features` must be columns that differ"),
    ("drop unknown", lambda: table(), {"drop": ["x"]}, "`drop` must be columns of the table, got 'x'"),
    ("drop all", lambda: table(), {"drop": ["age", "ward"]}, "`features` must be at least one column"),
    ("categories unknown", lambda: table(), {"categories": "onehot"}, "`categories` must be one of.*one-hot"),
    ("categories of none", lambda: table(), {"categories": {"x": "codes"}}, "`categories` must be columns.*'x'"),
    ("categories wrong", lambda: table(), {"categories": {"ward": 3}}, "`categories` must be one of.*got 3"),
    ("categories of y", lambda: table(), {"categories": {"y": "codes"}}, "without another use, got 'y', the target"),
    ("missing unknown", lambda: table(), {"missing": "zero"}, "`missing` must be one of the known names, got 'zero'"),
    ("standardise a text", lambda: table(), {"standardise": "yes"}, "`standardise` must be true or false"),
    ("test too large", lambda: table(), {"test": 1.5}, "`test` must be a share from 0 to below 1, got 1.5"),
    ("test negative", lambda: table(), {"test": -0.1}, "`test` must be a share from 0 to below 1, got -0.1"),
    ("test no column", lambda: table(), {"test": "held"}, "`test` must be a column of the table, got 'held'"),
    ("test a text column", lambda: table(), {"test": "ward"}, "'ward'` must be booleans for test, got string"),
    ("test has all", lambda: table(t=[True, True, False, True]), {"test": "t"}, "keeps a training row.*client 'a'"),
    ("test and validation", lambda: table(), {"test": 0.6, "validation": 0.5}, "`test . validation` must be below 1"),
    ("unseen all", lambda: table(), {"unseen_clients": 1.0}, "`unseen_clients` must be a share from 0 to below 1"),
    ("unseen nobody", lambda: table(), {"unseen_clients": 0.1}, "`unseen_clients` must be.*some of the 2 clients"),
    ("unseen true", lambda: table(), {"unseen_clients": True}, "`unseen_clients` must be a share"),
    ("seed a text", lambda: table(), {"seed": "1"}, "`seed` must be a whole number"),
    ("dtype half", lambda: table(), {"dtype": "float16"}, "`dtype` must be one of"),
    ("task unknown", lambda: table(), {"task": "ranking"}, "`task` must be one of.*ranking"),
    ("time and group", lambda: table(), {"time": "age", "group": "ward"}, "`group` must be left out.*by time"),
    ("time a text", lambda: table(), {"time": "ward"}, "'ward'` must be of dates, times or numbers.*2024-01-31"),
    ("time missing", lambda: table(t=[*DAYS[:3], None]), {"time": "t"}, "'t'` must be given in every row.*row 3"),
    ("group missing", lambda: table(g=[1, None, 2, 3]), {"group": "g"}, "'g'` must be given in every row.*row 1"),
    ("weights negative", lambda: table(w=[1, 1, -1, 1]), {"weights": "w"}, "'w'` must be >= 0, got -1.0 at row 2"),
    ("weights a text", lambda: table(), {"weights": "ward"}, "'ward'` must be of numbers, got 'u' at row 0"),
    ("weights missing", lambda: table(w=[1, None, 1, 1]), {"weights": "w"}, "'w'` must be given in every row.*row 1"),
    ("weights 0", lambda: table(w=[0] * 4), {"weights": "w"}, "'w'` must be above 0 in some training row"),
    ("too large", lambda: table(age=[1.0, 2, 1e300, 4]), {}, "'age'` must be within the range of float32, got 1e"),
    (
        "too far",
        lambda: table(age=[1.0, 2, 1e300, 4]),
        {"standardise": True},
        "'age'` must be within the range of float32",
    ),
    (
        "target too large",
        lambda: table(y=[1.0, 2, 1.5, 1e300], ward=None),
        {},
        "'y'` must be within the range of float32",
    ),
    ("client too large", lambda: panda(site=[2**63] * 4), {}, "`client` must be numbers within the range of int64"),
    ("client None", lambda: table(), {"client": None}, "`client` must be the name of a column, got None"),
    ("target None", lambda: table(), {"target": None}, "`target` must be the name of a column, got None"),
    ("on disk a text", lambda: table(), {"on_disk": "x"}, "`on_disk` must be true or false"),
]


@pytest.mark.parametrize(("make", "options", "says"), [row[1:] for row in FRAMES], ids=[row[0] for row in FRAMES])
def test_a_malformed_frame_is_refused_in_one_line(make: Any, options: Any, says: str) -> None:
    with pytest.raises(MoietyError, match=says) as error:
        from_frame(make(), **{"client": "site", "target": "y", **options})
    check_line(str(error.value))


def check_line(text: str) -> None:
    assert "\n" not in text
    assert text.startswith("`")
    assert text.endswith((".", "?"))
    assert len(text) < 420


def parquet(**changes: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table(**changes), sink)
    return bytes(sink.getvalue().to_pybytes())


def spoilt_page() -> bytes:
    content = bytearray(parquet())
    content[8:40] = b"\xff" * 32
    return bytes(content)


def lines(*changes: str, also: bytes = b"") -> bytes:
    """The good CSV file with texts replaced, each as "old/new", and lines added."""
    text = TEXT
    for change in changes:
        text = text.replace(*change.split("/"))
    return text.encode() + also


DATED = lines("age/when", ",1,/,2024-01-01,", ",2,/,2024-01-02,", ",3,/,2024-01-03,", ",4,/,2024-01-04,")
FILES: list[tuple[str, dict[str, bytes], str, str]] = [
    ("no file", {}, "a.csv", "`path` must be that of a file.*where there is none"),
    ("no file fits", {"a.csv": b"x"}, "*.parquet", "`path` must be that of a file, or a pattern"),
    ("a folder", {"in/a.csv": b"x"}, "in", "`path` must be a file.*the folder.*parquet"),
    ("another ending", {"a.xlsx": b"x"}, "a.xlsx", "`path` must be a file that ends in .csv.*Save the sheet"),
    ("a workbook called CSV", {"a.csv": b"PK\x03\x04" + b"\0" * 90}, "a.csv", "which is a workbook.*Save the sheet"),
    ("an old workbook", {"a.csv": b"\xd0\xcf\x11\xe0" + b"\0" * 90}, "a.csv", "which is a workbook.*Save the sheet"),
    ("gzip called CSV", {"a.csv": gzip.compress(lines())}, "a.csv", "a.csv, which is compressed. Call it .csv.gz"),
    ("Parquet called CSV", {"a.csv": parquet()}, "a.csv", "which is a file of Parquet. Call it .parquet"),
    ("xz", {"a.csv.xz": lzma.compress(lines())}, "a.csv.xz", "`path` must be a file that ends in"),
    (
        "what Excel puts first",
        {"a.csv": b"sep=;\n" + lines().replace(b",", b";")},
        "a.csv",
        "'sep=;' in .*Remove that line",
    ),
    (
        "a title",
        {"a.csv": b"Visits of 2024\n\n" + lines()},
        "a.csv",
        "Expected 1 columns, got 4.*must name the columns",
    ),
    (
        "clients 1 and 1.0",
        {"a.csv": lines("\na/\n1", "\nb/\n1.0")},
        "a.csv",
        "'site'` must be texts or whole.*'1.0' at line 4.*not 1.0",
    ),
    (
        "clients 7 and 007",
        {"a.csv": lines("\na/\n7", "\nb/\n007")},
        "a.csv",
        "'site'` must be of clients.*'7' and '007' at line 4",
    ),
    (
        "clients 7 and 007 in two",
        {"a.csv": lines("\na/\n7"), "b.csv": lines("\na/\n007")},
        "*.csv",
        "'7' and '007' at line 2 of .*b.csv",
    ),
    ("empty", {"a.csv": b""}, "a.csv", "`path` must be a file of CSV that can be read.*Empty CSV file"),
    ("heading alone", {"a.csv": b"site,age,ward,y\n"}, "a.csv", "`data` must be at least one row"),
    ("a value too few", {"a.csv": lines(also=b"a,1\n")}, "a.csv", "Expected 4 columns, got 2.*line 6 of"),
    ("a value too many", {"a.csv": lines(also=b"a,1,u,no,5\n")}, "a.csv", "Expected 4 columns, got 5.*line 6"),
    ("UTF-16", {"a.csv": TEXT.encode("utf-16")}, "a.csv", "`path` must be a CSV file in UTF-8"),
    ("Latin-1 heading", {"a.csv": lines().replace(b"age", b"\xe5ge")}, "a.csv", "a CSV file in UTF-8.*heading"),
    ("Latin-1 values", {"a.csv": lines().replace(b"u", b"\xfc")}, "a.csv", "'ward'` must be text in UTF-8"),
    ("Latin-1 late", {"a.csv": lines(also=b"a,5,u,no\n" * 30 + b"a,5,\xfc,no\n")}, "a.csv", "'ward'` must be text in"),
    ("no text", {"a.csv": b"\x00\x01\x02"}, "a.csv", "`path` must be a CSV file in UTF-8"),
    ("a column twice", {"a.csv": lines("ward/age")}, "a.csv", "'age' twice in .*a.csv"),
    ("a nameless column", {"a.csv": lines("ward/")}, "a.csv", "named in the heading, got no name for column 3.*index"),
    ("a missing number", {"a.csv": lines("3/")}, "a.csv", "'age'` must be given.*line 4 of .*a.csv"),
    ("a missing label", {"a.csv": lines("no/NA")}, "a.csv", "'y'` must be given.*line 2 of"),
    ("a text among numbers", {"a.csv": lines("3/x")}, "a.csv", "'age'` must be all.*'x' at line 4"),
    ("a text, late", {"a.csv": lines(also=b"a,7,u,no\n" * 30 + b"a,x,u,no\n")}, "a.csv", "'age'.*'x' at line 36"),
    ("an infinite number", {"a.csv": lines("3/inf")}, "a.csv", "'age'` must be finite.*line 4"),
    ("dates", {"a.csv": DATED}, "a.csv", "'when'` must be of numbers.*date32.*time="),
    ("a page of HTML", {"a.csv": b"<html>\n<body>Not found</body>\n</html>\n"}, "a.csv", "`client` must be a column"),
    ("no gzip", {"a.csv.gz": b"site,age,y\n"}, "a.csv.gz", "`path` must be a file of CSV that can be read"),
    ("gzip cut short", {"a.csv.gz": gzip.compress(lines() * 500)[:60]}, "a.csv.gz", "`path` must be a file of CSV"),
    ("text as Parquet", {"a.parquet": lines()}, "a.parquet", "`path` must be a file of Parquet that can be read"),
    ("Parquet cut short", {"a.parquet": parquet()[:-20]}, "a.parquet", "`path` must be a file of Parquet"),
    ("Parquet spoilt", {"a.parquet": spoilt_page()}, "a.parquet", "`path` must be a file of Parquet|'site'` must be"),
    ("empty Parquet", {"a.parquet": b""}, "a.parquet", "`path` must be a file of Parquet"),
    ("Parquet with a null", {"a.parquet": parquet(age=[1, None, 2, 3])}, "a.parquet", "'age'.*row 1 of .*a.parquet"),
    (
        "other columns",
        {"a.csv": lines(), "b.csv": lines("age/old")},
        "*.csv",
        "the same in every file, got no 'age' in .*b.csv",
    ),
    ("more columns", {"a.csv": lines(), "b.csv": b"site,age,ward,y,z\na,1,u,no,3\n"}, "*.csv", "got no 'z' in .*a.csv"),
    ("other types", {"a.csv": lines(), "b.csv": lines("1/p", "2/q")}, "*.csv", "'age'.*int64 as in .*a.csv.*b.csv"),
    ("in the second file", {"a.csv": lines(), "b.csv": lines("2/NaN")}, "?.csv", "'age'.*line 3 of .*b.csv"),
]


@pytest.mark.parametrize(("files", "path", "says"), [row[1:] for row in FILES], ids=[row[0] for row in FILES])
def test_a_malformed_file_is_refused_in_one_line(
    files: dict[str, bytes], path: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moiety.data.tables.BLOCK_BYTES", 128)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(MoietyError, match=says) as error:
        from_frame(tmp_path / path, client="site", target="y", test=0)
    check_line(str(error.value).replace(str(tmp_path), ""))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"client": "site", "target": "y"}, "`data.path` must be the path of CSV or Parquet files, got None"),
        ({"path": "a.csv", "target": "y"}, "`data.client` must be the name of a column, got None"),
        ({"path": "a.csv", "client": "site", "target": 3}, "`data.target` must be the name of a column, got 3"),
        ({"path": "a.csv", "client": "site", "target": "y", "standardize": True}, "`data`.*Did you mean standardise"),
        ({"path": [], "client": "site", "target": "y"}, "a data frame.*list"),
        ({"path": "a.csv", "client": "s", "target": "y", "validation_in_train": 1}, "`data.validation_in_train` must"),
    ],
)
def test_a_malformed_table_of_a_file_is_refused(table: dict[str, Any], says: str) -> None:
    with pytest.raises(MoietyError, match=says) as error:
        from_spec({"name": "table", **table})
    check_line(str(error.value))


def test_there_are_a_hundred_cases_and_the_good_ones_pass(tmp_path: Path) -> None:
    assert len(FRAMES) + len(FILES) > 130
    assert len({row[0] for row in FRAMES}) == len(FRAMES)
    (tmp_path / "a.csv").write_text(TEXT)
    (tmp_path / "b.tsv").write_text(TEXT.replace(",", "\t"))
    (tmp_path / "c.csv").write_text(TEXT.replace(",", ";"))
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress(TEXT.encode()))
    (tmp_path / "e.parquet").write_bytes(parquet())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a ward that no training row has
        prints = {
            from_frame(data, client="site", target="y").fingerprint()
            for data in (table(), panda(), pl.DataFrame(GOOD), pl.LazyFrame(GOOD), *sorted(tmp_path.iterdir()))
        }
    assert len(prints) == 1


def test_a_client_of_one_row_trains_and_is_not_tested() -> None:
    fed = from_frame(table(site=["a", "a", "a", "b"]), client="site", target="y")
    assert fed.sizes("train").tolist() == [2, 1]
    assert fed.sizes("test").tolist() == [1, 0]
