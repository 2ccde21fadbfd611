"""Tables as spreadsheets and hospitals write them: what can be read is read right, what is doubtful is said."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import moiety as mo
from moiety.data import FederatedData, from_frame, from_spec
from moiety.errors import MoietyError

ROWS = [("A", "1.5", "u", "no"), ("A", "2.5", "v", "yes"), ("B", "3.5", "u", "no"), ("B", "4.5", "v", "yes")]
HEADING = ("site", "age", "ward", "y")


def write(rows: list[tuple[str, ...]] = ROWS, mark: str = ",", heading: tuple[str, ...] = HEADING) -> str:
    return "".join(mark.join(row) + "\n" for row in [heading, *rows])


def load(path: Path, content: str | bytes, **options: Any) -> FederatedData:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return from_frame(path, **{"client": "site", "target": "y", "test": 0, **options})


WAYS: dict[str, tuple[str, str | bytes]] = {
    "a byte order mark": ("a.csv", "\ufeff" + write()),
    "a byte order mark and quotes": ("a.csv", "\ufeff" + write(heading=('"site"', '"age"', '"ward"', '"y"'))),
    "lines that end in CR LF": ("a.csv", write().replace("\n", "\r\n")),
    "lines that end in CR": ("a.csv", write().replace("\n", "\r")),
    "semicolons": ("a.csv", write(mark=";")),
    "tabs": ("a.txt", write(mark="\t")),
    "bars": ("a.csv", write(mark="|")),
    "empty lines at the end": ("a.csv", write() + "\n\n"),
    "all in quotes": ("a.csv", write([tuple(f'"{v}"' for v in row) for row in ROWS])),
    "gzip": ("a.csv.gz", gzip.compress(write().encode())),
    "bzip2": ("a.csv.bz2", bz2.compress(write().encode())),
    "Zstandard": ("a.csv.zst", pa.Codec("zstd").compress(write().encode(), asbytes=True)),
    "an ending in capitals": ("A.CSV", write()),
}


@pytest.mark.parametrize(("name", "content"), WAYS.values(), ids=WAYS)
def test_ways_to_write_one_table(name: str, content: str | bytes, tmp_path: Path) -> None:
    fed = load(tmp_path / name, content)
    assert [str(each) for each in fed.ids] == ["A", "B"]
    assert fed.columns["x"].tolist() == [[1.5, 1, 0], [2.5, 0, 1], [3.5, 1, 0], [4.5, 0, 1]]
    assert fed.columns["y"].tolist() == [0, 1, 0, 1]
    assert fed.class_names == ("no", "yes")


def test_a_comma_within_a_name_does_not_hide_semicolons(tmp_path: Path) -> None:
    fed = load(tmp_path / "a.csv", write(mark=";", heading=("site", "age, years", "ward", "y")))
    assert fed.preprocessing is not None
    assert fed.preprocessing.names == ["age, years", "ward=u", "ward=v"]


def test_a_line_break_within_quotes_is_part_of_a_value(tmp_path: Path) -> None:
    rows = [(site, age, f'"{ward}\n;x"', y) for site, age, ward, y in ROWS]
    fed = load(tmp_path / "a.csv", write(rows))
    assert fed.preprocessing is not None
    assert fed.preprocessing.features[1].categories == ("u\n;x", "v\n;x")


@pytest.mark.parametrize("word", ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "null"])
def test_words_for_a_missing_value(word: str, tmp_path: Path) -> None:
    rows = [("A", word, "u", "no"), *ROWS]
    fed = load(tmp_path / "a.csv", write(rows), missing="mean", features=["age"])
    assert fed.columns["x"].ravel().tolist() == [3.0, 1.5, 2.5, 3.5, 4.5]


def test_booleans_of_a_spreadsheet(tmp_path: Path) -> None:
    rows = [(a, b, "TRUE" if c == "u" else "FALSE", "TRUE" if d == "yes" else "FALSE") for a, b, c, d in ROWS]
    fed = load(tmp_path / "a.csv", write(rows), features=["ward"])
    assert fed.columns["x"].ravel().tolist() == [1, 0, 1, 0]
    assert fed.class_names == ("False", "True")


@pytest.mark.parametrize(
    ("sites", "names"),
    [
        (["10", "9", "10", "9"], ["9", "10"]),  # whole numbers, in their order
        (["007", "010", "007", "010"], ["007", "010"]),  # names keep their zeros
        (["7", '"7"', "8", "8"], ["7", "8"]),  # quotes are none of the value
        (["12345678901234567891", "12345678901234567892"] * 2, ["12345678901234567891", "12345678901234567892"]),
        (["P1", "2", "P1", "2"], ["2", "P1"]),
        (["1e5", "2e5", "ab", "cd"], ["1e5", "2e5", "ab", "cd"]),  # hexadecimal
        (["TRUE", "FALSE", "TRUE", "FALSE"], ["FALSE", "TRUE"]),
    ],
)
def test_clients_are_named_as_they_are_written(sites: list[str], names: list[str], tmp_path: Path) -> None:
    rows = [(site, *row[1:]) for site, row in zip(sites, ROWS, strict=True)]
    fed = load(tmp_path / "a.csv", write(rows), features=["age"])
    assert [str(each) for each in fed.ids] == names
    ages = {name: [float(row[1]) for row in rows if row[0].strip('"') == name] for name in names}
    assert {name: fed.client(name)["x"].ravel().tolist() for name in names} == ages


def test_numbered_clients_of_csv_and_parquet_go_together(tmp_path: Path) -> None:
    table = {"site": [1, 2], "age": [5.0, 6.0], "ward": ["u", "v"], "y": ["no", "yes"]}
    pq.write_table(pa.table(table), tmp_path / "b.parquet")
    (tmp_path / "a.csv").write_text(write([("2" if a == "A" else "10", *rest) for a, *rest in ROWS]))
    both = [tmp_path / "a.csv", tmp_path / "b.parquet"]
    for paths in (both, both[::-1]):
        fed = from_frame(paths, client="site", target="y", features=["age"], test=0)
        assert [str(each) for each in fed.ids] == ["1", "2", "10"]
        assert sorted(fed.client("2")["x"].ravel().tolist()) == [1.5, 2.5, 6.0]


@pytest.mark.parametrize(
    "moments",
    [
        ["2024-03-01", "2024-01-01", "2024-02-01"],
        ["2024-03-01T10:00:00Z", "2024-03-01T10:00:00+02:00", "2024-03-01T09:30:00Z"],
    ],
)
def test_dates_that_a_frame_has_as_texts_order_rows(moments: list[str]) -> None:
    frame = pd.DataFrame({"site": ["a"] * 3, "when": moments, "age": [3.0, 1.0, 2.0], "y": [0, 1, 0]})
    fed = from_frame(frame, client="site", target="y", time="when", test=0.34)
    assert fed.client("a", "train")["x"].ravel().tolist() == [1.0, 2.0]
    assert fed.client("a", "test")["x"].ravel().tolist() == [3.0]


def test_few_whole_floating_numbers_are_a_regression_with_a_warning(tmp_path: Path) -> None:
    rows = [(a, b, c, "1.0" if d == "yes" else "0.0") for a, b, c, d in ROWS]
    with pytest.warns(UserWarning, match=r"'y': 0, 1 are taken for numbers to predict. Say task=") as records:
        fed = load(tmp_path / "a.csv", write(rows))
    assert fed.class_names == ()
    assert records[0].filename == __file__


def test_one_class_is_said(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="all rows have the label 'no', so there is nothing to tell apart"):
        load(tmp_path / "a.csv", write([(*row[:3], "no") for row in ROWS]))


def test_all_options_in_a_file_are_those_in_python(tmp_path: Path) -> None:
    rows = [(f"s{k % 6}", str(k), "uv"[k % 2], "no" if k % 3 else "yes", str(k % 5), str(1 + k % 2)) for k in range(60)]
    (tmp_path / "a.csv").write_text(write(rows, heading=(*HEADING, "day", "w")))
    options: dict[str, Any] = {"client": "site", "target": "y", "drop": ["ward"], "time": "day", "weights": "w"}
    options |= {"missing": "median", "standardise": True, "unseen_clients": 0.34, "validation": 0.2, "dtype": "float64"}
    fed = from_frame(tmp_path / "a.csv", **options)
    again = from_spec({"name": "table", "path": str(tmp_path / "a.csv"), **options})
    assert again.fingerprint() == fed.fingerprint()
    assert fed.unseen is not None
    assert len(fed.unseen) == 2
    assert not {*map(str, fed.ids)} & {*map(str, fed.unseen.ids)}


def test_rows_to_predict_come_from_a_file_too(tmp_path: Path) -> None:
    fed = load(tmp_path / "a.csv", write(), standardise=True)
    model = mo.models.mlp(3, 2, hidden=(4,), seed=0)
    run = mo.fit(model, fed, mo.fedavg(shared=0.1), rounds=1)
    labels = run.predict("A", pd.read_csv(tmp_path / "a.csv")).tolist()
    assert run.predict("A", str(tmp_path / "a.csv")).tolist() == labels
    assert run.predict("A", tmp_path / "a.csv").tolist() == labels
    with pytest.raises(MoietyError, match=r"`column 'age'` must be of numbers, got '61,5' at row 1\."):
        run.predict("A", pd.DataFrame({"age": ["61", "61,5"], "ward": ["u", "v"]}))


def test_rows_that_are_dealt_anew_keep_their_preprocessing_and_names(tmp_path: Path) -> None:
    rows = [("A", str(10 * k), "uv"[k % 2], ["no", "yes"][k % 2]) for k in range(20)]
    fed = load(tmp_path / "a.csv", write(rows), standardise=True)
    data = mo.data.load(fed, clients=4, partition=mo.data.iid(), seed=0)
    assert data.class_names == ("no", "yes")
    assert list(data.describe().labels) == ["no", "yes"]
    model = mo.models.mlp(3, 2, hidden=(4,), seed=0)
    run = mo.fit(model, data, mo.fedavg(shared=0.5), rounds=30)
    assert run.predict("0", tmp_path / "a.csv").tolist() == [row[3] for row in rows]  # raw rows: the ward tells
