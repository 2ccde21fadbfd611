"""The recipe ffgg-async: what it writes at scale ci is what its runs show, and the larger scales are as said."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
import torch

import moiety as mo
from moiety.errors import MoietyError
from moiety.experiments import CI_NOTICE
from moiety.reports import courses
from moiety.run.folder import read_clients, read_config, read_history
from moiety_recipes import ffgg_async as module
from moiety_recipes.ffgg_async import FORMS, METHODS, ffgg_async, judge, plan, write_sentence

needs_data = pytest.mark.skipif("MOIETY_DATA" not in os.environ, reason="MOIETY_DATA is not set")
T_2 = 12.7062
"""The 97.5% point of Student's t with one degree of freedom, from a printed table."""


@pytest.fixture(scope="module")
def record(recipe_run):
    run = recipe_run("ffgg-async")
    return run.folder, run.printed, run.table


def test_runs_are_what_their_names_say(record):
    """The same times, at work and updates in both forms; the server of one takes a third of an upload."""
    folder, _, _ = record
    for seed in (0, 1):
        for method in METHODS:
            waits, goes = (read_config(folder / f"seed-{seed}" / method / form) for form in FORMS)
            assert (waits["clock"].pop("name"), goes["clock"].pop("name")) == FORMS
            assert goes["clock"].pop("active") == waits["run"]["cohort"] == 3
            assert waits["clock"] == goes["clock"]
            assert goes["run"]["rounds"] == 3 * waits["run"]["rounds"] == 12
            assert goes["algorithm"].pop("server") == {"name": "sgd", "lr": 1 / 3}
            assert waits["algorithm"] == goes["algorithm"]
            assert waits["split"]["name"] == ("output_layer" if method == "ffgg" else "nothing")


def test_the_table_is_what_histories_say(record):
    """Two seeds: the standard deviation is |a - b| / sqrt(2), and that of their mean |a - b| / 2."""
    folder, _, table = record
    rows = {row["row"]: row for row in table["rows"]}
    for method, title in (("ffgg", "FFGG"), ("fedavg", "FedAvg")):
        histories = {f: [read_history(folder / f"seed-{s}" / method / f) for s in (0, 1)] for f in FORMS}
        for form in FORMS:
            row = rows[f"{title}, {form}: accuracy (%)"]
            a, b = (100 * history[-1]["metric"] for history in histories[form])
            half = T_2 * abs(a - b) / 2
            np.testing.assert_allclose(
                [row["ours"], row["low"], row["high"]], (a + b) / 2 + half * np.array([0, -1, 1]), atol=1e-3
            )
        ratios = []
        for waits, goes in zip(*(histories[form] for form in FORMS), strict=True):
            target = 0.95 * waits[-1]["metric"]
            first = [next((r["time"] for r in h if r["metric"] >= target), None) for h in (waits, goes)]
            ratios.append(None if None in first else first[0] / first[1])
        row = rows[f"{title}: times sooner, above 1"]
        if None in ratios:
            assert (row["ours"], row["verdict"]) == (None, "does not hold")
            continue
        logs = np.log(ratios)
        assert row["ours"] == pytest.approx(np.exp(logs.mean()))
        half = T_2 * abs(logs[0] - logs[1]) / 2
        low, high = logs.mean() - half, logs.mean() + half
        assert row["verdict"] == ("holds" if low > 0 else "does not hold" if high < 0 else "not decided at this scale")


def course(times, scores, slow=0.5):
    rows = [{"client": "a", "n_test": 2, "metric": 1.0}, {"client": "b", "n_test": 2, "metric": slow}]
    return {"time": times, "accuracy": scores, "staleness": [0.0] * len(times), "clients": rows}


def test_rows_by_hand(monkeypatch):
    """The target is 0.95 * 0.8 = 0.76, reached at 30 and 60 s by rounds that wait and at 10 s by the other form.

    Ratios 3 and 6: geometric mean sqrt(18); logarithms 1.0986 and 1.7918, and half of the interval of their mean is
    12.706 ln(2) / 2: not decided. Client b is the slow one: it goes from 0.5 to 0.6 in both seeds, 10 points, certainly
    not within 2.
    """
    monkeypatch.setattr(module, "work_times", lambda plan: mo.clock.constant([1.0, 9.0]))
    small = plan("ci")
    courses = {
        (0, "ffgg", "synchronous"): course([10, 20, 30], [0.2, 0.7, 0.8]),
        (1, "ffgg", "synchronous"): course([20, 40, 60], [0.2, 0.7, 0.8]),
        (0, "ffgg", "asynchronous"): course([5, 10], [0.7, 0.77], slow=0.6),
        (1, "ffgg", "asynchronous"): course([5, 10], [0.7, 0.79], slow=0.6),
    }
    rows = judge(small, (0, 1), courses, "ffgg")
    by = {row["row"].partition(": ")[2].partition(",")[0]: row for row in rows}
    assert by["asynchronous less synchronous (points)"]["ours"] == pytest.approx(-2.0)
    assert by["asynchronous less synchronous (points)"]["verdict"] == "not decided at this scale"
    assert by["the same for the slowest quarter"]["ours"] == pytest.approx(10.0)
    assert by["the same for the slowest quarter"]["verdict"] == "does not hold"
    sooner, half = by["times sooner"], 12.7062 * np.log(2) / 2
    assert sooner["ours"] == pytest.approx(18**0.5)
    bounds = 18**0.5 * np.exp([-half, half])
    np.testing.assert_allclose([sooner["low"], sooner["high"]], bounds, rtol=1e-4)
    assert by["times sooner"]["verdict"] == "not decided at this scale"
    courses[1, "ffgg", "asynchronous"] = course([5, 10], [0.7, 0.75])
    last = judge(small, (0, 1), courses, "ffgg")[-1]
    assert (last["ours"], last["seeds"], last["verdict"]) == (None, 1, "does not hold")


def test_the_page_shows_them(record):
    folder, out, table = record
    page = (folder / "table.md").read_text()
    assert page.strip() in out
    for row in table["rows"]:
        assert f"| {row['row']} |" in page
    for words in (
        "# ffgg-async, scale ci",
        "`moiety run ffgg-async --scale ci --engine sequential`",
        mo.__version__,
        table["date"],
    ):
        assert words in page
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert out.splitlines()[-2] == CI_NOTICE
    text = write_sentence(table["rows"])
    for title in METHODS.values():
        (row,) = [row for row in table["rows"] if row["row"].startswith(f"{title}: times sooner")]
        assert f"asynchronous {title} " in text
        assert f"({row['verdict']})" in text
    assert len(table["curves"]) == 8


def test_what_has_ended_is_not_run_again(record, tmp_path):
    folder, _, table = record
    folder = shutil.copytree(folder, tmp_path / "run")
    (folder / "seed-1/ffgg/asynchronous.json").unlink()
    names = []
    ffgg_async.run(out=folder, resume=True, watch=lambda name, place: names.append(name))
    assert names == ["seed 1 ffgg asynchronous"]
    assert json.loads((folder / "table.json").read_text())["rows"] == table["rows"]
    assert len(read_clients(folder / "seed-1/ffgg/asynchronous")) == 6
    (folder / "seed-1/ffgg/asynchronous.json").write_text("{")  # the run is there: it is read, not trained again
    times = {file: file.stat().st_mtime_ns for file in (folder / "seed-1/ffgg/asynchronous/checkpoint").rglob("*")}
    with pytest.warns(UserWarning, match=r"asynchronous.json is not as it was written: the cell .* is run again"):
        ffgg_async.run(out=folder, resume=True)
    assert times == {file: file.stat().st_mtime_ns for file in times}
    assert json.loads((folder / "table.json").read_text())["rows"] == table["rows"]


@needs_data
def test_the_larger_scales():
    laptop = plan("laptop")
    data = laptop.pictures.load(0)
    assert len(data) == 20
    assert laptop.active <= len(data)
    assert laptop.pictures.model(0)(torch.as_tensor(data.columns["x"][:2])).shape == (2, 10)
    assert plan("paper").active < 100


def test_courses_of_nothing_are_refused():
    with pytest.raises(MoietyError, match="`series` must be at least one"):
        courses({}, across="", label="")
    with pytest.raises(MoietyError, match="`series` must be at most 5"):
        courses({str(i): [([0.0], [0.0])] for i in range(6)}, across="", label="")


def test_courses_of_very_different_lengths_have_a_logarithmic_axis():
    def scale(*ends):
        return courses({str(end): [([1.0, end], [0.0, 1.0])] for end in ends}, across="", label="").axes[0].get_xscale()

    assert (scale(2.0, 20.0), scale(2.0, 21.0)) == ("linear", "log")
