"""Federated data from tables, against scikit-learn and by hand."""

from __future__ import annotations

import tracemalloc
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from moiety.data import FederatedData, Preprocessing, from_arrays, from_frame, open_folder
from moiety.data.preprocess import add_sums, sum_rows
from moiety.data.roles import read_roles
from moiety.errors import MoietyError

RNG = np.random.default_rng(1)
N = 300
NUMBERS = pd.DataFrame(
    {
        "site": RNG.choice(["a", "b", "c", "d", "e"], N),
        "row": np.arange(N, dtype=float),
        "small": 1e-6 * RNG.normal(size=N),
        "large": 1e6 * RNG.normal(size=N),
        "far": 1e9 + RNG.normal(size=N),
        "constant": np.full(N, 0.1),
        "y": RNG.normal(size=N),
    }
)


def load(data: Any, **options: Any) -> FederatedData:
    return from_frame(data, **{"client": "site", "target": "y", "dtype": "float64", **options})


def test_standardising_from_client_sums_is_that_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moiety.data.tables.ROWS_AT_ONCE", 37)  # sums of many blocks
    raw, fed = load(NUMBERS), load(NUMBERS, standardise=True)
    train = raw.columns["x"][raw.all_rows("train")]
    oracle = StandardScaler().fit(train)
    assert fed.preprocessing is not None
    means = [feature.mean for feature in fed.preprocessing.features]
    scales = [feature.scale for feature in fed.preprocessing.features]
    np.testing.assert_allclose(means, oracle.mean_, rtol=1e-12, atol=0)
    np.testing.assert_allclose(scales, oracle.scale_, rtol=1e-12, atol=0)
    near = [0, 1, 2, 4]  # "far" has 16 digits less 9 after the subtraction, whoever does it
    expected, actual = oracle.transform(raw.columns["x"]), fed.columns["x"]
    np.testing.assert_allclose(actual[:, near], expected[:, near], rtol=0, atol=1e-12)
    np.testing.assert_allclose(actual[:, 3], expected[:, 3], rtol=0, atol=1e-6)
    guess = raw.at(0)["x"].mean(axis=0)
    by_client = add_sums([sum_rows(raw.at(k)["x"], guess) for k in range(len(raw))])
    np.testing.assert_allclose(by_client.mean, oracle.mean_, rtol=1e-12, atol=0)
    np.testing.assert_allclose(by_client.scale, oracle.scale_, rtol=1e-12, atol=0)


def test_rows_are_those_that_from_arrays_makes_of_the_same_columns() -> None:
    names = ["row", "small", "large", "far", "constant"]
    columns = {"x": NUMBERS[names].to_numpy(), "y": (NUMBERS["y"] > 0).to_numpy().astype(int)}
    expected = from_arrays(columns, client=NUMBERS["site"].to_numpy(dtype=str), test=0.3, validation=0.1, seed=4)
    fed = load(NUMBERS.assign(y=columns["y"]), test=0.3, validation=0.1, seed=4)
    for name, column in expected.columns.items():
        np.testing.assert_array_equal(fed.columns[name], column)
    np.testing.assert_array_equal(fed.bounds, expected.bounds)
    assert list(fed.ids) == list(expected.ids)


@pytest.mark.parametrize("missing", ["mean", "median", "indicator"])
def test_filling_is_that_of_scikit_learn_on_training_rows(missing: str) -> None:
    rng = np.random.default_rng(2)
    frame = NUMBERS[["site", "row", "y"]].assign(age=rng.normal(size=N), ward=rng.choice(["u", "v", "w"], N))
    age, ward = frame["age"].to_numpy().copy(), frame["ward"].to_numpy(dtype=object)
    age[rng.random(N) < 0.3], ward[rng.random(N) < 0.2] = np.nan, None
    frame = frame.assign(age=age, ward=ward)
    order = load(frame, features=["row"]).columns["x"][:, 0].astype(int)  # where each row of the table went
    fed = load(frame, features=["age", "ward"], missing=missing, standardise=True)
    trains = fed.all_rows("train")
    numbers, words = age[order, None], ward[order, None]
    fill = SimpleImputer(strategy="median" if missing == "median" else "mean").fit(numbers[trains])
    scale = StandardScaler().fit(fill.transform(numbers[trains]))
    commonest = SimpleImputer(strategy="most_frequent", missing_values=None).fit(words[trains])
    hot = OneHotEncoder(sparse_output=False).fit(commonest.transform(words[trains]))
    blocks = [scale.transform(fill.transform(numbers)), hot.transform(commonest.transform(words))]
    if missing == "indicator":
        blocks += [MissingIndicator(features="all").fit_transform(numbers), (words == None)]  # noqa: E711
    np.testing.assert_allclose(fed.columns["x"], np.hstack(blocks), rtol=0, atol=1e-12)
    assert fed.preprocessing is not None
    assert [each.missing for each in fed.preprocessing.features] == [
        int(np.isnan(numbers[trains]).sum()),
        int((words[trains] == None).sum()),  # noqa: E711
    ]


def test_categories_by_hand() -> None:
    frame = pa.table(
        {
            "site": [1, 1, 1, 30, 30],
            "ward": ["u", "v", "u", "v", "w"],
            "code": [10, 9, 10, 9, 9],
            "smoker": [True, False, True, True, False],
            "held": [False, False, True, False, True],
            "y": [2, 10, 2, 2, 10],
        }
    )
    options: dict[str, Any] = {"client": "site", "target": "y", "test": "held"}
    with pytest.warns(UserWarning, match="Column 'ward': 1 row has a category that no training row has"):
        fed = from_frame(frame, **options, categories={"code": "one-hot"})
    assert fed.preprocessing is not None
    assert fed.preprocessing.names == ["ward=u", "ward=v", "code=9", "code=10", "smoker"]
    expected = [[1, 0, 0, 1, 1], [0, 1, 1, 0, 0], [1, 0, 0, 1, 1], [0, 1, 1, 0, 1], [0, 0, 1, 0, 0]]
    assert fed.columns["x"].tolist() == expected
    assert fed.class_names == ("2", "10")
    assert (fed.columns["y"].tolist(), [str(name) for name in fed.ids]) == ([0, 1, 0, 0, 1], ["1", "30"])
    mask = np.array([False, False, True, False, True])
    with pytest.warns(UserWarning, match="unknown"):
        assert from_frame(frame, **{**options, "test": mask}, drop=["held"]).sizes("test").tolist() == [1, 1]
    with pytest.warns(UserWarning, match="unknown"):
        coded = from_frame(frame, **options, categories="codes", features=["ward", "code"])
    assert coded.columns["x"].tolist() == [[0, 10], [1, 9], [0, 10], [1, 9], [2, 9]]  # 2: none of u, v


def test_columns_that_are_left_out_may_hold_anything() -> None:
    frame = NUMBERS.assign(odd=[1, "x", [2]] * 100, date=pd.Timestamp("2024-01-01"), names=range(N))
    fingerprint = load(NUMBERS).fingerprint()
    assert load(frame, drop=["odd", "date", "names"]).fingerprint() == fingerprint
    assert load(frame, features=["row", "small", "large", "far", "constant"]).fingerprint() == fingerprint


def test_categories_of_several_pieces_and_of_numbers() -> None:
    pieces = [pa.array(values).dictionary_encode() for values in (["v", "u"], ["w", "v"])]
    columns = {"site": ["a"] * 4, "ward": pa.chunked_array(pieces), "y": [1.5, 2.5, 3.5, 4.5]}
    assert load(pa.table(columns), test=0).columns["x"].argmax(1).tolist() == [1, 0, 2, 1]
    coded = pd.DataFrame({"site": "a", "ward": pd.Categorical([10, 9, 10]), "y": [0.5, 1.5, 2.5]})
    fed = load(coded, test=0)
    assert fed.preprocessing is not None
    assert (fed.preprocessing.names, fed.columns["x"].argmax(1).tolist()) == (["ward=9", "ward=10"], [1, 0, 1])


@pytest.mark.parametrize(
    ("y", "task", "names", "expected"),
    [
        ([True, False, True], None, ("False", "True"), [1, 0, 1]),
        (["b", "a", "b"], None, ("a", "b"), [1, 0, 1]),
        ([10, 9, 10], None, ("9", "10"), [1, 0, 1]),
        ([10, 9, 10], "regression", (), [10.0, 9.0, 10.0]),
        ([1.0, 0.0, 1.0], "regression", (), [1.0, 0.0, 1.0]),
        ([1.5, 0.0, 1.0], None, (), [1.5, 0.0, 1.0]),
        ([1.0, 0.0, 1.0], "classification", ("0", "1"), [1, 0, 1]),
        (pd.Categorical(["b", "a", "b"], categories=["b", "zz", "a"]), None, ("a", "b"), [1, 0, 1]),
    ],
)
def test_targets(y: Any, task: str | None, names: tuple[str, ...], expected: list[float]) -> None:
    fed = from_frame(pd.DataFrame({"c": ["p"] * 3, "x": [1, 2, 3], "y": y}), client="c", target="y", task=task, test=0)
    assert fed.class_names == names
    assert fed.columns["y"].tolist() == expected
    assert fed.classes == (len(names) or None)


@pytest.mark.parametrize("most", [50, 130, 299])
def test_clients_are_split_alike_however_many_at_a_time(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    frame = NUMBERS.assign(y=rng.choice(["ill", "well"], N, p=[0.7, 0.3]))
    whole = load(frame, test=0.3, validation=0.2)
    monkeypatch.setattr("moiety.data.parts.ROWS_AT_ONCE", most)
    some = load(frame, test=0.3, validation=0.2)
    np.testing.assert_array_equal(some.bounds, whole.bounds)  # as many rows in each part
    for client in range(len(whole)):
        for part in ("train", "validation", "test"):  # and labels in the same proportion, but for ties by lot
            one, other = (np.bincount(fed.at(client, part)["y"], minlength=2) for fed in (whole, some))
            assert np.abs(one - other).max() <= 1
        rows = [
            np.sort(np.concatenate([fed.at(client, p)["x"][:, 0] for p in ("train", "validation", "test")]))
            for fed in (whole, some)
        ]
        np.testing.assert_array_equal(*rows)


def test_by_time_every_client_is_tested_on_its_last_rows() -> None:
    rng = np.random.default_rng(2)
    when = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.permutation(N), unit="h")
    frame = NUMBERS.assign(when=when, hours=(when - pd.Timestamp("2024-01-01")) / pd.Timedelta("1h"))
    fed = load(frame, features=["hours"], time="when", test=0.3, validation=0.2)
    for client in range(len(fed)):
        parts = [fed.at(client, part)["x"][:, 0] for part in ("train", "validation", "test")]
        times = np.concatenate(parts)
        assert (np.diff(times) > 0).all()  # and rows lie in the order of time
        total = len(times)
        assert [len(part) for part in parts[1:]] == [np.floor(total * 0.2 + 0.5), np.floor(total * 0.3 + 0.5)]


def test_by_group_no_group_of_a_client_is_in_two_parts() -> None:
    rng = np.random.default_rng(2)
    frame = NUMBERS.assign(patient=rng.integers(40, size=N))
    fed = load(frame.assign(copy=frame["patient"]), features=["copy"], group="patient", test=0.25, validation=0.25)
    for client in range(len(fed)):
        groups = [set(fed.at(client, part)["x"][:, 0]) for part in ("train", "validation", "test")]
        assert sum(map(len, groups)) == len(set.union(*groups))
    shares = [fed.sizes(part).sum() / fed.total for part in ("train", "validation", "test")]
    np.testing.assert_allclose(shares, [0.5, 0.25, 0.25], atol=0.05)
    one = load(frame.assign(patient=1), features=["row"], group="patient")
    assert one.sizes("test").sum() == 0


def test_what_unseen_clients_have_changes_nothing_for_training() -> None:
    options = {"standardise": True, "unseen_clients": 0.4, "seed": 3}
    fed = load(NUMBERS, **options)
    assert fed.unseen is not None
    hidden = [str(name) for name in fed.unseen.ids]
    assert (len(fed), len(hidden)) == (3, 2)
    assert sorted([*map(str, fed.ids), *hidden]) == ["a", "b", "c", "d", "e"]
    other = NUMBERS.assign(small=np.where(NUMBERS["site"].isin(hidden), 5.0, NUMBERS["small"]))
    second = load(other, **options)
    assert second.unseen is not None
    assert replace(second, unseen=None).fingerprint() == replace(fed, unseen=None).fingerprint()
    assert second.explain_difference(fed.digest()) == "other clients that training never sees"
    raw = load(NUMBERS, **{**options, "standardise": False})
    assert fed.preprocessing is not None
    means = [feature.mean for feature in fed.preprocessing.features]
    np.testing.assert_allclose(means, raw.columns["x"][raw.all_rows("train")].mean(axis=0), rtol=1e-12)


def test_files_frames_blocks_and_places_of_storage_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    frame = NUMBERS.assign(ward=rng.choice(["u", "v"], N), w=rng.random(N)).drop(columns="far")
    frame.loc[::7, "small"] = np.nan
    options: dict[str, Any] = {"missing": "median", "weights": "w", "unseen_clients": 0.2, "validation": 0.1}
    fingerprint = load(frame, **options).fingerprint()
    for name, part in (("a", frame[:100]), ("b", frame[100:])):
        part.to_csv(tmp_path / f"{name}.csv", index=False)
        part.to_parquet(tmp_path / f"{name}.parquet", row_group_size=30)
    monkeypatch.setattr("moiety.data.tables.ROWS_AT_ONCE", 17)
    monkeypatch.setattr("moiety.data.tables.BLOCK_BYTES", 1000)
    paths = [tmp_path / "b.csv", tmp_path / "a.csv"]
    for data in (tmp_path / "*.csv", str(tmp_path / "*.parquet"), paths[::-1], frame):
        assert load(data, **options).fingerprint() == fingerprint
    assert load(tmp_path / "*.csv", on_disk=True, **options).fingerprint() == fingerprint
    assert load(paths, **options).fingerprint() != fingerprint  # other rows come first


def test_a_file_is_read_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, width = 60_000, 40
    monkeypatch.setattr("moiety.data.tables.ROWS_AT_ONCE", 2_000)
    columns = {f"x{k}": np.random.default_rng(k).random(rows) for k in range(width)}
    table = pa.table({**columns, "site": np.arange(rows) % 50, "y": columns["x0"]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2_000)
    del table, columns
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    fed = load(tmp_path / "a.parquet", standardise=True, on_disk=True, dtype="float32")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    whole = rows * width * 8
    assert fed.columns["x"].nbytes == whole / 2
    assert peak < whole / 2  # of which 6 numbers a row for clients, labels and places: 3 MB of 19
    assert pa.total_allocated_bytes() - before < whole / 10


@pytest.mark.parametrize("rows", [4, 40])
def test_a_file_that_changes_while_it_is_read_is_refused(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    NUMBERS[:20].to_parquet(path)

    def read_and_change(*arguments: Any) -> Any:
        roles = read_roles(*arguments)
        NUMBERS[:rows].to_parquet(path)
        return roles

    monkeypatch.setattr("moiety.data.frame.read_roles", read_and_change)
    with pytest.raises(MoietyError, match="the same while it is read, got another number of rows"):
        load(path)


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(call: Any, *arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("moiety.files.system_call", fail)
    with pytest.raises(
        MoietyError, match="`data` must be such that the folder for temporary files can hold it, got No space"
    ):
        load(NUMBERS, on_disk=True)


def test_a_folder_keeps_what_was_fitted_and_who_is_unseen(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    frame = NUMBERS.assign(y=rng.choice(["ill", "well"], N))
    fed = load(frame, standardise=True, unseen_clients=0.2)
    fed.save(tmp_path / "saved")
    again = open_folder(tmp_path / "saved")
    assert again.preprocessing == fed.preprocessing
    assert again.class_names == ("ill", "well")
    assert again.unseen is not None
    assert again.fingerprint() == fed.fingerprint()
    meta = tmp_path / "saved/meta.json"
    meta.write_text(meta.read_text().replace('"ill"', '"hale"'))
    with pytest.raises(MoietyError, match=r"other names of classes|as it was written"):
        open_folder(tmp_path / "saved")


def test_a_renamed_class_is_another_data_set() -> None:
    rng = np.random.default_rng(2)
    frame = NUMBERS.assign(y=rng.choice(["ill", "well"], N))
    old, new = load(frame), load(frame.replace({"well": "yell"}))
    assert new.explain_difference(old.digest()).startswith("other names of classes")


def test_preprocessing_goes_through_json() -> None:
    recipe = load(NUMBERS.assign(w=1.0, ward=list("uv") * 150), standardise=True, weights="w").preprocessing
    assert recipe is not None
    assert Preprocessing.from_dict(recipe.as_dict()) == recipe


def test_describe_by_hand() -> None:
    fed = from_frame(
        pa.table(
            {
                "site": ["a"] * 4 + ["b"] * 4 + ["c"],
                "age": [1.0, 2.0, 3.0, 3.0, 1.0, 6.0, 7.0, None, 9.0],
                "t": [False, False, False, True, False, False, False, False, False],
                "y": ["no", "no", "yes", "yes", "no", "no", "no", "no", "yes"],
            }
        ),
        client="site",
        target="y",
        test="t",
        missing="mean",
    )
    description = fed.describe()
    assert [row["train"] for row in description.rows] == [3, 4, 1]
    assert description.labels == {"no": 0.75, "yes": 0.25}
    assert [row["commonest"] for row in description.rows] == ["no", "no", "yes"]
    np.testing.assert_allclose([row["label_drift"] for row in description.rows], [1 / 12, 1 / 4, 3 / 4])
    ages = np.array([1, 2, 3, 1, 6, 7, 29 / 7, 9])  # the mean of the seven training rows that have an age
    means = np.array([2, (14 + 29 / 7) / 4, 9])
    np.testing.assert_allclose(
        [row["feature_drift"] for row in description.rows], np.abs(means - ages.mean()) / ages.std(), rtol=1e-6
    )
    assert description.missing == {"age": 1}
    assert description.warnings == (
        "2 clients of one label alone: b (no), c (yes).",
        "2 clients with too few rows to test: b, c.",
        "Different rows that several clients have: 1.",  # age 1, no
        "Different rows both for training and for testing or validation: 1.",  # age 3, yes
    )
    text = str(description)
    assert "no 75.0%, yes 25.0%" in text
    assert "3 (commonest label to rarest)" in text
    assert description._repr_html_().count("<tr>") == len(description.lines())


def test_duplicates_are_those_of_a_set_of_rows() -> None:
    rng = np.random.default_rng(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frame = pd.DataFrame({"site": rng.integers(6, size=200), "p": rng.integers(8, size=200), "q": -0.5, "y": 1.5})
        fed = from_frame(frame, client="site", target="y", test=0.5)
    where: dict[Any, set[Any]] = {}
    for client in range(len(fed)):
        for part in ("train", "test"):
            for row in fed.at(client, part)["x"].tolist():
                where.setdefault(tuple(row), set()).add((client, part))
    several = sum(len({client for client, _ in places}) > 1 for places in where.values())
    both = sum(len({part for _, part in places}) > 1 for places in where.values())
    texts = " ".join(fed.describe().warnings)
    assert f"several clients have: {several}." in texts
    assert f"testing or validation: {both}." in texts
