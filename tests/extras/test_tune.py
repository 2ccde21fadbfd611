"""``moiety.tune`` with the real Optuna, on a problem that takes no time."""

from __future__ import annotations

import copy
import math
from statistics import median

import pytest

import moiety as mo
from moiety.errors import MoietyError

optuna = pytest.importorskip("optuna")

TABLES = {
    "model": {"name": "linear"},
    "data": {"name": "digits", "clients": 3, "partition": "iid", "per_client": 40, "validation": 0.25},
    "algorithm": {"name": "fedavg", "shared": {"name": "sgd", "lr": 0.1, "steps": 1}},
    "run": {"rounds": 4, "engine": "sequential", "evaluate_every": 1},
}
SPACE = {"algorithm.shared.lr": "0.001..1:log", "run.cohort": "1..3"}


def score(point):
    """The share of right validation rows, from ``moiety.fit`` by hand."""
    fed = mo.data.load("digits", clients=3, partition=mo.data.iid(), per_client=40, validation=0.25)
    algorithm = mo.fedavg(shared=mo.sgd(point["algorithm.shared.lr"], steps=1))
    options = {"rounds": 4, "cohort": point["run.cohort"], "engine": "sequential"}
    run = mo.fit(mo.models.linear(64, 10), fed, algorithm, **options)
    rows = [fed.at(client, "validation") for client in range(3)]
    right = sum((run.predict(c, {"x": each["x"]}) == each["y"]).sum() for c, each in enumerate(rows))
    return right / sum(len(each["y"]) for each in rows)


def without_times(rows):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_a_search_that_stopped_goes_on_as_if_it_had_not(tmp_path):
    """Twelve trials at once, and twelve in a folder with a break after five, one of them broken off in a round."""
    whole = mo.tune(copy.deepcopy(TABLES), SPACE, trials=12)
    states = [row["state"] for row in whole.rows]
    assert states.count("pruned") >= 1
    assert "failed" not in states

    def break_off(name, folder):
        def on_round(run, record):
            if name.startswith("trial-5") and record.round == 2:
                raise KeyboardInterrupt

        return on_round

    with pytest.raises(KeyboardInterrupt):
        mo.tune(copy.deepcopy(TABLES), SPACE, trials=12, out=tmp_path, watch=break_off)
    contents = {file: file.read_bytes() for file in tmp_path.glob("trial-*/*.json")}
    assert len(contents) == 5
    again = mo.tune(copy.deepcopy(TABLES), SPACE, trials=12, out=tmp_path)
    assert without_times(again.rows) == without_times(whole.rows)
    assert all(file.read_bytes() == content for file, content in contents.items())
    assert mo.verify(tmp_path) == []
    assert again.best["score"] == pytest.approx(score(again.best["point"]))
    assert again.best["score"] == max(row["score"] for row in again.rows if row["state"] == "ended")
    with pytest.raises(MoietyError, match="`target` must be what the tune in"):
        mo.tune(copy.deepcopy(TABLES), {"run.cohort": [1, 2]}, trials=1, out=tmp_path)


def test_a_trial_is_pruned_where_it_is_worse_than_the_median():
    """The rule of Optuna's median pruner, by hand: the best so far against the median of trials that ended."""
    rows = mo.tune(copy.deepcopy(TABLES), SPACE, trials=12).rows
    for at, row in enumerate(rows):
        reports = [dict(map(tuple, each["reports"])) for each in rows[:at] if each["state"] == "ended"]
        behind = []
        for count, (turn, _) in enumerate(row["reports"][:3], 1):  # after the last round there is nothing to stop
            middle = median(each[turn] for each in reports) if len(reports) >= 5 else math.inf
            behind.append(min(value for _, value in row["reports"][:count]) > middle)
        assert behind == [False] * len(behind) if row["state"] == "ended" else behind.index(True) == len(behind) - 1


def test_data_without_validation_rows_is_refused(tmp_path):
    tables = copy.deepcopy(TABLES)
    del tables["data"]["validation"]
    with pytest.raises(
        MoietyError, match=r"`data` must be of some validation rows, got none. Test rows must not choose"
    ):
        mo.tune(tables, SPACE, trials=1, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
