"""Runs on a table: models take raw rows, and clients that training never saw are tested as ``onboard`` says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch import nn

import moiety as mo

RNG = np.random.default_rng(5)
N = 240
SITE = np.array(["Bern", "Graz", "Lyon", "Oslo"])[np.arange(N) % 4]
FRAME = pd.DataFrame(
    {
        "site": SITE,
        "age": np.where(RNG.random(N) < 0.1, np.nan, RNG.normal(50, 10, N)),
        "ward": RNG.choice(["u", "v", "w"], N),
        "smoker": RNG.random(N) < 0.3,
    }
)
FRAME["outcome"] = np.where((FRAME["age"].fillna(50) > 50) ^ (SITE == "Lyon"), "ill", "well")
FRAME["cost"] = FRAME["age"].fillna(50) / 10 + (SITE == "Oslo")
FEATURES = ["age", "ward", "smoker"]
MODES: dict[str, dict[str, Any]] = {
    "filled, scaled": {"missing": "indicator", "standardise": True},
    "median, codes": {"missing": "median", "categories": "codes"},
    "float64": {"missing": "mean", "standardise": True, "dtype": "float64"},
}


def load(data: Any = FRAME, target: str = "outcome", **options: Any) -> mo.FederatedData:
    return mo.data.from_frame(data, client="site", target=target, features=FEATURES, **options)


def train(fed: mo.FederatedData, rounds: int = 6, **options: Any) -> mo.Run:
    model = mo.models.mlp(fed.columns["x"].shape[1], fed.classes or 1, hidden=(6,), seed=0)
    work = mo.sgd(0.1, batch_size=10)
    split = mo.split.output_layer(model)
    algorithm = mo.fedalt(shared=work, personal=work)
    return mo.fit(model, fed, algorithm, split=split, rounds=rounds, engine="sequential", **options)


def raw_rows(frame: pd.DataFrame, fed: mo.FederatedData) -> np.ndarray:
    """Raw rows of numbers: what a user without this library's readers would make."""
    return np.stack([frame["age"], frame["ward"].map({"u": 0, "v": 1, "w": 2}), frame["smoker"]], axis=1).astype(float)


@pytest.mark.parametrize("mode", MODES)
def test_export_takes_raw_rows_and_is_what_predict_says(mode: str) -> None:
    fed = load(**MODES[mode])
    run = train(fed)
    rows = FRAME[FRAME["site"] == "Lyon"].assign(site="left alone")
    raw = raw_rows(rows, fed)
    module = run.export("Lyon")
    with torch.no_grad():
        outputs = module(torch.from_numpy(raw)).numpy()
    # The same arithmetic by hand: the model alone on rows that are prepared apart.
    age = np.where(np.isnan(raw[:, 0]), fed.preprocessing.features[0].fill, raw[:, 0])  # type: ignore[union-attr]
    age = (age - fed.preprocessing.features[0].mean) / fed.preprocessing.features[0].scale  # type: ignore[union-attr]
    hot = raw[:, 1:2] == np.arange(3) if mode != "median, codes" else raw[:, 1:2]
    x = np.column_stack([age, hot, raw[:, 2], *([np.isnan(raw[:, 0])] if mode == "filled, scaled" else [])])
    with torch.no_grad():
        by_hand = module.model(torch.from_numpy(x).float()).numpy()  # type: ignore[operator]
    np.testing.assert_array_equal(outputs, by_hand)
    names = np.array(["ill", "well"])[outputs.argmax(1)]
    columns = rows[["smoker", "ward", "age"]]
    as_lists = {name: rows[name].tolist() for name in FEATURES}
    for table in (rows, pl.from_pandas(columns), raw, raw.tolist(), torch.from_numpy(raw), as_lists):
        np.testing.assert_array_equal(run.predict("Lyon", table), names)
    np.testing.assert_allclose(run.predictive("Lyon", rows).outputs[0], outputs, rtol=1e-6)
    tests = fed.client("Lyon", "test")  # the very rows that the run was tested on
    row = next(row for row in run.clients if row["client"] == "Lyon")
    with torch.no_grad():
        right = module.model(torch.from_numpy(tests["x"]).float()).argmax(1).numpy() == tests["y"]  # type: ignore[operator]
    assert row["metric"] == pytest.approx(right.mean())


def test_numbers_to_predict_and_unknown_categories() -> None:
    fed = load(target="cost", missing="mean", standardise=True)
    run = train(fed)
    rows = FRAME.head(3).assign(ward=["u", "new", None])
    with pytest.warns(UserWarning, match="Column 'ward': 1 row has a category that no training row has"):
        predictions = run.predict("Bern", rows)
    assert (predictions.shape, predictions.dtype.kind) == ((3,), "f")
    raw = raw_rows(FRAME.head(3), fed)
    raw[:, 1] = 0, 7, np.nan  # 7 is no position of a category, and a missing one
    with torch.no_grad():
        np.testing.assert_allclose(run.export("Bern")(torch.from_numpy(raw))[:, 0].numpy(), predictions, rtol=1e-6)


def test_unseen_clients_are_tested_with_the_model_that_onboard_makes(tmp_path: Path) -> None:
    fed = load(missing="mean", standardise=True, unseen_clients=0.25, test=0.4)
    run = train(fed, out=tmp_path / "run")
    (row,) = run.unseen
    unseen = fed.unseen
    assert unseen is not None
    assert row["client"] == str(unseen.ids[0]) not in [each["client"] for each in run.clients]
    # Its training rows as they stand in the table: found by their values, which are all different.
    everything = load(missing="mean", standardise=True, unseen_clients=0.25, test=0.4, dtype="float64").unseen
    assert everything is not None
    frame = FRAME[FRAME["site"] == row["client"]]
    keys = {tuple(x): at for at, x in enumerate(everything.preprocessing.transform(raw_rows(frame, fed)).tolist())}  # type: ignore[union-attr]
    first = [keys[tuple(x)] for x in everything.at(0, "train")["x"].tolist()]
    last = [keys[tuple(x)] for x in everything.at(0, "test")["x"].tolist()]
    model = run.onboard(frame.iloc[first])
    with torch.no_grad():
        labels = model(torch.from_numpy(raw_rows(frame.iloc[last], fed))).argmax(1).numpy()
    right = np.array(["ill", "well"])[labels] == frame.iloc[last]["outcome"].to_numpy()
    assert row["metric"] == pytest.approx(right.mean())
    assert (row["n"], row["n_test"]) == (len(first), len(last))
    twin = run.onboard({"x": raw_rows(frame.iloc[first], fed), "y": frame.iloc[first]["outcome"].tolist()})
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    again = mo.resume(tmp_path / "run", data=fed)
    assert again.unseen == run.unseen
    assert mo.verify(tmp_path / "run") == []
    with (tmp_path / "run/unseen.parquet").open("ab") as file:
        file.write(b"x")
    assert "unseen.parquet" in mo.verify(tmp_path / "run")[0]


def test_weights_are_as_rows_that_come_several_times() -> None:
    rng = np.random.default_rng(6)
    x, counts = rng.normal(size=(12, 2)), rng.integers(1, 4, 12)
    frame = pd.DataFrame({"c": ["a"] * 12, "p": x[:, 0], "q": x[:, 1], "y": x @ [1.0, -2.0] + 0.3, "w": 5.0 * counts})
    copies = frame.loc[np.repeat(np.arange(12), counts)].drop(columns="w")
    runs = []
    for data, options in ((frame, {"weights": "w"}), (copies, {})):
        fed = mo.data.from_frame(data, client="c", target="y", test=0, dtype="float64", **options)
        model = nn.Linear(2, 1, dtype=torch.float64)
        nn.init.ones_(model.weight)
        nn.init.zeros_(model.bias)
        work = mo.sgd(0.1, batch_size=100, epochs=3)
        runs.append(mo.fit(model, fed, mo.fedavg(shared=work), rounds=4, engine="sequential"))
    weighted, plain = (run.shared_parameters() for run in runs)
    for name, value in plain.items():
        torch.testing.assert_close(weighted[name], value, rtol=1e-12, atol=1e-12)
    assert runs[0].clients[0]["metric"] == pytest.approx(runs[1].clients[0]["metric"], rel=1e-10)


def test_engines_agree_on_weights() -> None:
    rng = np.random.default_rng(6)
    fed = load(FRAME.assign(w=rng.random(N)), missing="mean", weights="w")
    model = mo.models.mlp(fed.columns["x"].shape[1], 2, hidden=(6,), seed=0)
    algorithm = mo.fedalt(shared=mo.sgd(0.1, batch_size=7), personal=mo.sgd(0.1, batch_size=7, epochs=2))
    split = mo.split.output_layer(model)  # the personal part is trained on features that are computed once
    runs = [mo.fit(model, fed, algorithm, split=split, rounds=3, engine=each) for each in ("sequential", "vectorised")]
    for name, value in runs[0].parameters("Lyon").items():
        torch.testing.assert_close(runs[1].parameters("Lyon")[name], value, rtol=1e-4, atol=1e-5)
    for one, other in zip(runs[0].clients, runs[1].clients, strict=True):
        assert one["metric"] == pytest.approx(other["metric"])
        assert one["weight"] == pytest.approx(other["weight"])


def test_a_run_on_a_file_goes_on_and_notices_a_changed_file(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    FRAME.to_csv(path, index=False)
    fed = load(path, missing="median", validation=0.1)
    model = mo.models.mlp(fed.columns["x"].shape[1], 2, hidden=(4,), seed=0)
    out = tmp_path / "run"
    whole = mo.fit(model, fed, mo.fedavg(shared=0.1), rounds=4, engine="sequential")
    mo.fit(model, fed, mo.fedavg(shared=0.1), rounds=2, engine="sequential", out=out)
    run = mo.resume(out, rounds=4)  # without data: the folder names the file
    for name, value in whole.shared_parameters().items():
        torch.testing.assert_close(run.shared_parameters()[name], value, rtol=0, atol=0)
    table = json.loads((out / "preprocessing.json").read_text())
    assert [feature["name"] for feature in table["features"]] == FEATURES
    assert table["class_names"] == ["ill", "well"]
    FRAME.assign(age=FRAME["age"].where(FRAME.index != 8, 51.5)).to_csv(path, index=False)
    with pytest.raises(mo.MoietyError, match=r"`data` must be as the run in .* began, got other values in column x"):
        mo.resume(out, rounds=5)
    FRAME.replace({"well": "hale"}).to_csv(path, index=False)
    with pytest.raises(mo.MoietyError, match=r"`data` must be as the run in .* began"):
        mo.resume(out, rounds=5)
    FRAME.to_csv(path, index=False)
    content = (out / "preprocessing.json").read_text()
    (out / "preprocessing.json").write_text(content.replace('"ill"', '"all"'))
    assert "preprocessing.json" in mo.verify(out)[0]
    with pytest.raises(mo.MoietyError, match=r"preprocessing\.json"):
        mo.resume(out, rounds=5)


BAD: list[tuple[str, Any, str]] = [
    ("a column too few", [[1.0, 2.0]], "of shape .rows, 3., a number for each of age, ward, smoker"),
    ("no age", FRAME.drop(columns="age"), "a table with the columns age, ward, smoker, got none called age"),
    ("texts in an array", [["a", "b", "c"]], "numbers for the 3 features"),
    ("an infinite age", FRAME.assign(age=np.inf), "column 'age'` must be finite, got inf at row 0"),
    ("an age of text", FRAME.assign(age="old"), "column 'age'` must be of numbers, got 'old' at row 0"),
    ("no rows", FRAME.head(0), "at least one example"),
    ("nothing", None, "`x`"),
]


@pytest.fixture(scope="module")
def run() -> mo.Run:
    return train(load(missing="mean"), rounds=1)


@pytest.mark.parametrize(("x", "says"), [each[1:] for each in BAD], ids=[each[0] for each in BAD])
def test_what_predict_refuses(run: mo.Run, x: Any, says: str) -> None:
    with pytest.raises(mo.MoietyError, match=says):
        run.predict("Bern", x)


def test_what_onboard_and_fit_refuse(run: mo.Run) -> None:
    with pytest.raises(mo.MoietyError, match="'outcome'` must be one of the classes ill, well, got 'odd' at row 0"):
        run.onboard(FRAME.assign(outcome="odd"))
    with pytest.raises(mo.MoietyError, match=r"a table with the column .outcome."):
        run.onboard(FRAME.drop(columns="outcome"))
    with pytest.raises(mo.MoietyError, match="got one for raw rows"):
        mo.fit(run.export(), load(missing="mean"), mo.fedavg(shared=0.1), rounds=1)


def test_arrays_have_predictions_too() -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=(40, 3)).astype("float32")
    fed = mo.data.from_arrays({"x": x, "y": (x[:, 0] > 0).astype(int)}, client=np.arange(40) % 2)
    model = mo.models.linear(3, 2)
    run = mo.fit(model, fed, mo.fedavg(shared=0.5), rounds=3, engine="sequential")
    with torch.no_grad():
        labels = run.export()(torch.from_numpy(x)).argmax(1).numpy()
    np.testing.assert_array_equal(run.predict(0, x), labels)
    data = replace(fed, preprocessing=mo.data.Preprocessing(class_names=("low", "high")))
    run = mo.fit(model, data, mo.fedavg(shared=0.5), rounds=3, engine="sequential")
    np.testing.assert_array_equal(run.predict(0, x), np.array(["low", "high"])[labels])
    assert isinstance(run.export(), type(model))
