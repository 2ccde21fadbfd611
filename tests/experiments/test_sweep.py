"""Sweeps: against ``moiety.fit`` called by hand, killed and gone on, side by side, and what they refuse."""

from __future__ import annotations

import copy
import functools
import json
import os
import signal

import pytest
from waiting import wait_until

import moiety as mo
from moiety.errors import MoietyError
from moiety.experiments import parallel
from moiety.experiments import sweep as sweeps
from moiety.loop.divergence import DivergenceError

TABLES = {
    "model": {"name": "linear"},
    "data": {"name": "digits", "clients": 3, "partition": "iid", "per_client": 40, "validation": 0.25},
    "algorithm": {"name": "fedavg", "shared": {"name": "sgd", "lr": 0.1, "steps": 2}},
    "run": {"rounds": 2, "engine": "sequential"},
}
GRID = {"algorithm.shared.lr": [0.03, 0.3]}
T_OF_TWO = 12.706204736  # the 97.5% quantile of Student's t with one degree of freedom


@functools.cache
def fit_by_hand(lr, seed):
    fed = mo.data.load("digits", clients=3, partition=mo.data.iid(), per_client=40, validation=0.25)
    model, algorithm = mo.models.linear(64, 10), mo.fedavg(shared=mo.sgd(lr, steps=2))
    return fed, mo.fit(model, fed, algorithm, rounds=2, seed=seed, engine="sequential")


def by_hand(lr, seed, part):
    """The share of right rows of a part, from ``moiety.fit`` and the clients' own rows."""
    fed, run = fit_by_hand(lr, seed)
    rows = [fed.at(client, part) for client in range(3)]
    right = sum((run.predict(c, {"x": each["x"]}) == each["y"]).sum() for c, each in enumerate(rows))
    return right / sum(len(each["y"]) for each in rows)


@pytest.fixture(scope="module")
def whole():
    """The sweep without a break, in memory."""
    return mo.sweep(copy.deepcopy(TABLES), GRID, seeds=2, jobs=1)


def test_means_and_intervals_are_those_of_fit_by_hand(whole):
    for row, lr in zip(whole.rows, GRID["algorithm.shared.lr"], strict=True):
        for name, part in {"metric": "test", "validation": "validation"}.items():
            one, two = by_hand(lr, 0, part), by_hand(lr, 1, part)
            half = T_OF_TWO * abs(one - two) / 2  # t s / sqrt(2), with s = |one - two| / sqrt(2)
            assert row[name]["each"] == pytest.approx([one, two])
            assert row[name]["ours"] == pytest.approx((one + two) / 2)
            assert row[name]["interval"] == pytest.approx([(one + two) / 2 - half, (one + two) / 2 + half])
    assert whole.best["point"] == {"algorithm.shared.lr": 0.3}
    assert whole.sentence.startswith("Best on validation rows: algorithm.shared.lr=0.3, accuracy ")


def go_on(folder):
    """The sweep continued; the run of the killed one may hold its folder for a moment longer."""

    def try_again():
        try:
            return mo.sweep(copy.deepcopy(TABLES), GRID, seeds=2, out=folder, jobs=1)
        except MoietyError as error:
            if "in use" not in str(error):
                raise
            return None

    return wait_until(try_again, pause=0.1)


def test_a_sweep_that_was_killed_goes_on_and_runs_nothing_twice(tmp_path, whole):
    """Killed when the first of four runs has ended, with another under way in a process of its own."""
    child = os.fork()
    if child == 0:
        try:
            die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
            jobs = 2 if parallel.count_cores() > 1 else 1
            mo.sweep(copy.deepcopy(TABLES), GRID, seeds=2, out=tmp_path, jobs=jobs, on_result=die)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    before = {file: file.read_bytes() for file in tmp_path.glob("*/seed-*.json")}
    assert 1 <= len(before) < 4
    again = go_on(tmp_path)
    assert again.rows == whole.rows
    assert all(file.read_bytes() == content for file, content in before.items())
    assert mo.verify(tmp_path) == []
    assert len(list(tmp_path.glob("*/seed-*/ledger.json"))) == 4
    table = json.loads((tmp_path / "table.json").read_text())
    assert table["best"]["point"] == {"algorithm.shared.lr": 0.3}
    other = copy.deepcopy(TABLES)
    other["run"]["rounds"] = 3
    with pytest.raises(MoietyError, match=r"`target` must be what the sweep in .* began with, got another"):
        mo.sweep(other, GRID, seeds=2, out=tmp_path)


def row(name, validation, test, **more):
    scores = {"validation": validation, "metric": test}
    entries = {
        key: None if each is None else {"ours": each, "interval": None, "each": [each]} for key, each in scores.items()
    }
    return {"row": name, "seeds": 1, "failed": 0, "metric_name": "accuracy", "part": "test", **entries, **more}


def test_test_rows_never_choose():
    rows = [row("a", 0.7, 0.9, higher_is_better=True), row("b", 0.8, 0.6, higher_is_better=True)]
    rows.append(row("c", 0.9, 0.9, higher_is_better=True) | {"failed": 1})  # one of its runs diverged
    best, sentence = sweeps._choose_best(rows)
    assert best["row"] == "b"
    assert "ahead of a by +10.00 points" in sentence
    assert sweeps._choose_best([row("a", 3.0, 1.0, higher_is_better=False), row("b", 2.0, 1.0)])[0]["row"] == "b"
    best, sentence = sweeps._choose_best([row("a", None, 0.9, higher_is_better=True)])
    assert best is None
    assert sentence == sweeps.UNJUDGED


def test_a_run_that_diverges_is_counted_and_the_others_go_on():
    points = []

    def arguments(point):
        points.append(point)
        raise DivergenceError("the server is not finite")

    result = mo.sweep(arguments, {"lr": [1, 2]}, seeds=[4], jobs=1)
    assert points == [{"lr": 1}, {"lr": 2}]
    assert [each["failed"] for each in result.rows] == [1, 1]
    assert (result.best, result.rows[0]["metric"]) == (None, None)


def test_runs_side_by_side_share_the_cores(monkeypatch):
    for place in (parallel, sweeps):
        monkeypatch.setattr(place, "count_cores", lambda: 6)
    assert [parallel.count_jobs(None, cells) for cells in (1, 4, 10)] == [1, 4, 6]
    workers = [sweeps.Plan.of(TABLES, {}, 0, jobs).make()["settings"].workers for jobs in (1, 2, 4)]
    assert workers == [None, 3, 1]
    tables = copy.deepcopy(TABLES)
    tables["run"] |= {"workers": 4, "engine": "processes:sequential"}
    with pytest.raises(
        MoietyError, match="`workers` must be such that all runs together use at most 6 cores, got 4 for"
    ):
        sweeps.Plan.of(tables, {}, 0, 2)


def refuse(path, message, **options):
    arguments = {"grid": GRID, "seeds": 2, "jobs": 1, **options}
    with pytest.raises(MoietyError, match=message):
        mo.sweep(copy.deepcopy(TABLES), arguments.pop("grid"), out=path, **arguments)
    assert not path.exists()


def test_bad_input_is_refused_before_anything_is_written(tmp_path):
    out = tmp_path / "sweep"
    refuse(out, "`grid` must be without run.seed", grid={"run.seed": [1]})
    refuse(out, "`grid` must be different values of run.rounds", grid={"run.rounds": [1, 1]})
    refuse(out, "`shared` must be .* got -1", grid={"algorithm.shared": [0.1, -1]})
    refuse(out, "--grid` must be for one of the sections", grid={"algoritm.shared": [0.1]})
    refuse(out, "`seeds` must be >= 1, got 0", seeds=0)
    refuse(out, "`jobs` must be <= ", jobs=10**6)


def small_arguments(point, **more):
    fed = mo.data.load("digits", clients=3, partition=mo.data.iid(), per_client=20)
    algorithm = point.get("algorithm") or mo.fedavg(shared=0.1)
    return {"model": mo.models.linear(64, 10), "data": fed, "algorithm": algorithm, "rounds": 3, **more}


def test_a_function_is_taken_at_its_word(tmp_path):
    """Its engine, its callbacks and its objects count."""
    runs = []

    def arguments(point):
        engine = "vectorised" if point["algorithm"].spec["shared"] == 0.2 else "sequential"
        return small_arguments(point, engine=engine, callbacks=[lambda run, record: runs.append(run)])

    grid = {"algorithm": [mo.fedavg(shared=0.1), mo.fedavg(shared=0.2)]}
    result = mo.sweep(arguments, grid, seeds=1, out=tmp_path / "sweep", jobs=1)
    assert len(runs) == 6
    assert [run.engine for run in runs] == ["sequential"] * 3 + ["vectorised"] * 3
    names = ['algorithm={"name": "fedavg", "shared": 0.1}', 'algorithm={"name": "fedavg", "shared": 0.2}']
    assert [row["row"] for row in result.rows] == names
    again = mo.sweep(arguments, grid, seeds=1, out=tmp_path / "sweep", jobs=1)
    assert len(runs) == 6, "what has ended was run again"
    assert again.rows == result.rows
    other = lambda point: small_arguments({})  # noqa: E731
    for values in ([object()], [{(1, 2): 3}], ["\ud800"], [lambda: 0]):
        with pytest.raises(MoietyError, match="`grid` must be numbers, texts, lists, or values that moiety makes"):
            mo.sweep(other, {"x": values}, seeds=1, jobs=1)


def test_what_a_function_gives_must_be_arguments_of_fit():
    def check_refusal(value, message):
        with pytest.raises(MoietyError, match=message):
            mo.sweep(lambda point: value, seeds=1, jobs=1)

    check_refusal(3, r"`target` must be a function that gives the arguments of moiety.fit, got 3 \(int\)")
    check_refusal({"model": 1, "data": 2}, "got one that gives no algorithm, rounds")
    check_refusal(small_arguments({}, out="x"), "and no folder, got one that gives out")
    check_refusal(small_arguments({}, round=1, learning_rate=2), "got one that gives learning_rate, round")
    check_refusal(small_arguments({}, settings={}), r"`settings` must be moiety.Settings\(...\), got {} \(dict\)")


def test_a_run_goes_on_with_the_engine_that_it_began_with(tmp_path):
    """Though the sweep leaves it open, and another may be quicker now."""

    def watch(label, place):
        def stop(run, record):
            raise KeyboardInterrupt

        return stop

    def engine():
        return next(tmp_path.glob("*/seed-0/config.toml")).read_text().partition('engine = "')[2].partition('"')[0]

    with pytest.raises(KeyboardInterrupt):
        mo.sweep(lambda point: small_arguments(point, engine="sequential"), seeds=1, out=tmp_path, jobs=1, watch=watch)
    assert engine() == "sequential"
    mo.sweep(lambda point: small_arguments(point, engine="processes"), seeds=1, out=tmp_path, jobs=1)
    assert engine() == "sequential"
