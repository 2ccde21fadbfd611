"""Early stopping: the best round's models come back, tensor by tensor, also after a kill at any round."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_cases import StopHereError, federation, mlp, stop_after, tree_hash

import moiety as mo
from moiety.cli import main
from moiety.errors import MoietyError

FED = federation()
ROUNDS, PATIENCE = 12, 3
Models = dict[str, Any]


def begin(callbacks: list[Any], out: Path | None = None, **options: Any) -> mo.Run:
    """Two of six clients a round, so that some are first asked after the best round."""
    settings = mo.Settings(evaluate_every=1, checkpoint_every=4)
    model = mlp()
    work = mo.sgd(0.3, epochs=2, batch_size=4)
    algorithm = mo.fedalt(shared=work, personal=work)
    arguments = {"rounds": ROUNDS, "cohort": 2, "seed": 2, "engine": "sequential", "settings": settings, **options}
    split = mo.split.output_layer(model)
    return mo.fit(model, FED, algorithm, split=split, out=out, callbacks=callbacks, **arguments)


def models_of(run: mo.Run) -> Models:
    """What the run holds: the model of every client, and who has a state of its own."""
    models: Models = {str(name): run.parameters(str(name)) for name in FED.ids}
    return {**models, "server": run.broadcast(), "owners": run._loop.progress.store.owners()}


@cache
def uninterrupted() -> tuple[list[Models], list[float]]:
    """The models after every round of a run without early stopping, and the losses on test rows."""
    models: list[Models] = []
    run = begin([lambda run, record: models.append(models_of(run))])
    return models, [row["loss"] for row in run.history]


def by_hand() -> tuple[int, int]:
    """The best round by test loss, and the round after which patience ends, from the losses alone."""
    losses = uninterrupted()[1]
    for stop in range(1, ROUNDS + 1):
        best = min(range(stop), key=lambda t: losses[t]) + 1
        if stop - best >= PATIENCE:
            return best, stop
    raise AssertionError("this run is of no use: it never gets worse")


def assert_same(one: Models, other: Models) -> None:
    assert one["owners"] == other["owners"]
    for name in (*map(str, FED.ids), "server"):
        assert one[name].keys() == other[name].keys()
        assert all(torch.equal(one[name][key], other[name][key]) for key in one[name]), name


def stopping() -> mo.callbacks.EarlyStopping:
    return mo.callbacks.EarlyStopping(PATIENCE, metric="loss")


def check_end(run: mo.Run) -> None:
    best, stop = by_hand()
    models, losses = uninterrupted()
    assert 1 < best < stop < ROUNDS
    assert models[best - 1]["owners"] != models[stop - 1]["owners"]  # else it would not show who had none then
    assert_same(models_of(run), models[best - 1])
    assert [row["loss"] for row in run.history] == losses[:stop]
    assert (run.restored, run.ledger["rounds"]) == (best, stop)
    assert f"since round {best}" in run.stopped
    rows = [row for row in run.clients if row["n_test"]]
    mean = sum(row["loss"] * row["n_test"] for row in rows) / sum(row["n_test"] for row in rows)
    assert mean == pytest.approx(losses[best - 1], rel=1e-12)  # rows per client are of the best round too


@pytest.mark.parametrize("kept", [True, False], ids=["folder", "memory"])
def test_the_best_round_comes_back(tmp_path, kept):
    run = begin([stopping()], tmp_path / "run" if kept else None)
    check_end(run)
    if kept:
        best, _ = by_hand()
        assert mo.verify(tmp_path / "run") == []
        for copy in (mo.load(tmp_path / "run", data=FED), mo.load(tmp_path / "run", best=True)):
            assert_same({**models_of(copy)}, uninterrupted()[0][best - 1])
        state = next((tmp_path / "run").glob("best/*/clients/states.bin"))
        state.write_bytes(bytes(b ^ 1 for b in state.read_bytes()))
        assert any("states.bin" in text for text in mo.verify(tmp_path / "run"))
        with pytest.raises(MoietyError, match=r"states\.bin"):
            mo.load(tmp_path / "run", data=FED)


@pytest.mark.parametrize("last", [1, 5, 7])
def test_a_kill_at_any_round_changes_nothing(tmp_path, last):
    """An error in a callback leaves what a kill leaves: the checkpoints so far. They are of every fourth round."""
    with pytest.raises(StopHereError):
        begin([stopping(), stop_after(last)], tmp_path / "run")
    check_end(mo.resume(tmp_path / "run", data=FED, callbacks=[stopping()]))


@pytest.mark.parametrize("moment", ["best", "checkpoint", "removed"])
def test_a_kill_while_the_best_round_is_kept(tmp_path, monkeypatch, moment):
    """Before its checkpoint is written, between it and the run's own, and before the one before is removed."""
    best, _ = by_hand()
    import moiety.run.best as module

    save, remove = module.save_checkpoint, module.discard_folder
    place = tmp_path / "run"

    def saving(folder: Path, progress: Any, identity: Any) -> None:
        if progress.round == best and (folder == place) == (moment == "checkpoint") and moment != "removed":
            raise StopHereError
        save(folder, progress, identity)

    def removing(folder: Path) -> None:
        if moment == "removed" and (place / "best" / f"round-{best:08d}" / "checkpoint").exists():
            raise StopHereError
        remove(folder)

    monkeypatch.setattr(module, "save_checkpoint", saving)
    monkeypatch.setattr(module, "discard_folder", removing)
    with pytest.raises(StopHereError):
        begin([stopping()], place)
    monkeypatch.undo()
    check_end(mo.resume(place, data=FED, callbacks=[stopping()]))


def test_a_run_that_went_on_after_it_had_stopped(tmp_path):
    """What is opened then has the models of the last checkpoint, and no results of the earlier end."""
    stop = by_hand()[1]
    begin([stopping()], tmp_path / "run")
    models: list[Models] = []
    watch = lambda run, record: models.append(models_of(run))  # noqa: E731
    warning = pytest.warns(UserWarning, match=f"ended after round {stop} with")
    with warning, pytest.raises(StopHereError):
        mo.resume(tmp_path / "run", data=FED, rounds=stop + 6, callbacks=[watch, stop_after(stop + 5)])
    assert mo.verify(tmp_path / "run") == []
    copy = mo.load(tmp_path / "run", data=FED)
    now = copy._loop.progress.round
    assert (now > stop, copy.restored, copy.stopped, copy.clients) == (True, None, "", [])
    assert_same(models_of(copy), models[now - stop - 1])


def test_a_lost_best_round_is_refused(tmp_path):
    best, _ = by_hand()
    begin([stopping()], tmp_path / "run")
    place = tmp_path / "run/best" / f"round-{best:08d}"
    shutil.copytree(place, tmp_path / "copy")
    damages = {
        "gone": lambda: shutil.rmtree(place.parent),
        "no checkpoint": lambda: shutil.rmtree(place / "checkpoint"),
        "another round": lambda: os.rename(place / "checkpoint" / place.name, place / "checkpoint/round-00000099"),
        "progress": lambda: (place / "progress.json").write_bytes(b"x"),
    }
    for name, damage in damages.items():
        damage()
        assert mo.verify(tmp_path / "run"), name
        with pytest.raises(MoietyError):
            mo.load(tmp_path / "run", data=FED)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(tmp_path / "copy", place)
        assert mo.verify(tmp_path / "run") == []


def test_the_best_round_is_not_sought_in_a_history_with_lost_rows(tmp_path):
    with pytest.raises(StopHereError):
        begin([stopping(), stop_after(5)], tmp_path / "run")
    file = tmp_path / "run/history.jsonl"
    first, *rows = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first.replace(b'"loss"', b'"lost"') + b"".join(rows))
    before = tree_hash(tmp_path / "run")
    with pytest.raises(MoietyError, match=r"^`history.jsonl` must be whole, for EarlyStopping goes by it, got none of"):
        mo.resume(tmp_path / "run", data=FED, callbacks=[stopping()])
    assert tree_hash(tmp_path / "run") == before
    with pytest.warns(UserWarning, match="has lost the rows of round 1"):
        mo.resume(tmp_path / "run", data=FED)


def test_an_ended_run_that_has_lost_the_row_of_its_best_round(tmp_path, capsys):
    best, _ = by_hand()
    begin([stopping()], tmp_path / "run")
    file = tmp_path / "run/history.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[best:]))
    assert main(["compare", str(tmp_path / "run"), str(tmp_path / "run")]) == 2
    message = f"moiety: `history.jsonl` must be whole in its row of round {best}, got none in "
    assert capsys.readouterr().err.startswith(message)
    with pytest.warns(UserWarning, match="has lost the rows of"):
        run = mo.load(tmp_path / "run", data=FED)
    assert_same(models_of(run), uninterrupted()[0][best - 1])
    assert "not evaluated" in repr(run)
    with pytest.raises(MoietyError, match=rf"`history` must be one with a row up to round {best}, got none"):
        run.last  # noqa: B018


@pytest.mark.parametrize("name", ["history.jsonl", "clients/states.bin", "config.toml", "", "best/x.csv"])
def test_a_csv_is_no_file_of_the_run(tmp_path, name):
    with pytest.raises(MoietyError, match=r"^`path` must be another file than those of the run, got .*history.csv"):
        begin([mo.callbacks.CSV(tmp_path / "run" / name)], tmp_path / "run")


def test_a_stopped_run_that_is_resumed(tmp_path):
    """With its callback it stays; without, it says so and goes on as if it had never been stopped."""
    best, stop = by_hand()
    begin([stopping()], tmp_path / "run")
    rounds: list[Any] = []
    again = mo.resume(tmp_path / "run", data=FED, callbacks=[stopping(), lambda run, record: rounds.append(record)])
    check_end(again)
    assert rounds == []
    with pytest.warns(UserWarning, match=f"ended after round {stop} with the models of round {best}"):
        whole = mo.resume(tmp_path / "run", data=FED)
    assert_same(models_of(whole), uninterrupted()[0][-1])
    assert [row["loss"] for row in whole.history] == uninterrupted()[1]
    assert (whole.restored, whole.stopped) == (None, "")


def test_a_run_that_is_not_stopped_ends_with_its_best_round_too():
    best, stop = by_hand()
    run = begin([stopping()], rounds=stop - 1)
    assert_same(models_of(run), uninterrupted()[0][best - 1])
    assert (run.restored, run.stopped) == (best, "")
    last = begin([mo.callbacks.EarlyStopping(PATIENCE, "loss", restore_best=False)])
    assert_same(models_of(last), uninterrupted()[0][stop - 1])


def test_the_best_checkpoint_is_beside_the_last(tmp_path):
    run = begin([mo.callbacks.BestCheckpoint("loss")], tmp_path / "run")
    models, losses = uninterrupted()
    best = losses.index(min(losses)) + 1
    assert_same(models_of(run), models[-1])
    assert_same(models_of(mo.load(tmp_path / "run", data=FED)), models[-1])
    assert_same(models_of(mo.load(tmp_path / "run", data=FED, best=True)), models[best - 1])
    assert [place.name for place in (tmp_path / "run/best").iterdir()] == [f"round-{best:08d}"]


def test_a_callback_stops_cleanly_between_evaluations(tmp_path):
    """The round is evaluated and has a checkpoint; resumed, the run ends as one that was never stopped."""
    settings = mo.Settings(evaluate_every=5)
    trace: list[str] = []

    class Watcher(mo.callbacks.Callback):
        def on_start(self, run: mo.Run) -> None:
            trace.append("start")

        def on_evaluate(self, run: mo.Run, row: dict[str, Any]) -> None:
            trace.append(f"evaluate {row['round']}")

        def on_end(self, run: mo.Run) -> None:
            assert run.clients
            assert (tmp_path / "run/ledger.json").exists()
            trace.append("end")

    stop = lambda run, record: record.round == 7  # noqa: E731
    run = begin([Watcher(), stop], tmp_path / "run", settings=settings)
    assert trace == ["start", "evaluate 5", "evaluate 7", "end"]
    assert_same(models_of(run), uninterrupted()[0][6])
    assert [place.name for place in (tmp_path / "run/checkpoint").iterdir()] == ["round-00000007"]
    with pytest.warns(UserWarning, match="ended after round 7"):
        whole = mo.resume(tmp_path / "run", data=FED)
    assert_same(models_of(whole), uninterrupted()[0][-1])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: begin([3]), "`callbacks` must be a list of moiety.callbacks.Callback or of functions"),
        (lambda: begin(3), "`callbacks` must be a list"),
        (lambda: begin([mo.callbacks.EarlyStopping(2, "lss")]), "`metric` must be a column of the history, got lss"),
        (lambda: begin([mo.callbacks.EarlyStopping(2, "round")]), "`metric` must be a column of the history that can"),
        (lambda: mo.callbacks.EarlyStopping(0), "`patience` must be >= 1, got 0"),
        (lambda: begin([], progress="yes"), "`progress` must be True, False or None"),
    ],
)
def test_bad_callbacks(make, words):
    with pytest.raises(MoietyError) as error:
        make()
    assert words in str(error.value)


def test_a_stage_that_was_stopped_stays_so(tmp_path):
    """The next stage starts from its best round; resumed without the callback, the pipeline trains nothing again."""
    work = mo.sgd(0.3, epochs=2, batch_size=4)
    stages = [
        mo.Stage(mo.fedalt(shared=work, personal=work), ROUNDS, 2, "output_layer", evaluate_every=1),
        mo.Stage(mo.finetune(personal=0.1), rounds=1, cohort=1),
    ]
    runs = mo.pipeline(stages, mlp(), FED, seed=2, engine="sequential", out=tmp_path / "out", callbacks=[stopping()])
    check_end(runs[0])
    before = {path: path.read_bytes() for path in (tmp_path / "out/1-fedalt").rglob("*") if path.is_file()}
    again = mo.resume(tmp_path / "out", data=FED, callbacks=[lambda run, record: pytest.fail("it trains")])
    check_end(again[0])
    assert {path: path.read_bytes() for path in before} == before
    best, _ = by_hand()
    server = uninterrupted()[0][best - 1]["server"]  # finetuning leaves the shared part alone
    assert all(torch.equal(again[1].shared_parameters()[name], value) for name, value in server.items())
