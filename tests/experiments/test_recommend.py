"""``recommend``: planted answers, the same answer twice and after a stop, the winner's file, and what it refuses."""

import json
import math
import re
import shutil
import tomllib
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from night import NIGHTLY
from planted_problems import ANSWERS, SEEDS, find_answer

import moiety as mo
from moiety import MoietyError
from moiety.analysis.recommendation import NO_DIFFERENCE, PERSONAL, SHARED
from moiety.experiments.config import check_tables, make_parts
from moiety.experiments.contest import Contest
from moiety.experiments.search import Search
from moiety.loop.divergence import DivergenceError


def make_clients():
    """Five clients whose labels are turned by as many places as the client's number: one model cannot serve them."""
    fed = mo.data.load("digits", clients=5, per_client=80, validation=0.3, test=0.3, seed=0)
    client = np.searchsorted(fed.bounds[:, 3], np.arange(fed.total), side="right")
    fed.columns["y"][:] = (fed.columns["y"] + client) % 10
    return fed, mo.models.mlp(64, 10, hidden=(8,), seed=0)


def ask(out=None, budget=100_000, **options):
    fed, model = make_clients()
    return mo.recommend(model, fed, budget, rates=(0.3,), work=mo.sgd(0.1, batch_size=16), out=out, **options)


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    return ask(tmp_path_factory.mktemp("recommend") / "out")


def test_clients_that_label_differently_get_something_personal(answer):
    assert answer.verdict == PERSONAL
    assert answer.best != "one model"
    assert answer.contrast.low > 0
    assert answer.test[answer.best] > answer.test["one model"]
    assert answer.evaluations <= answer.budget
    assert answer.sentence.endswith("will do.")
    names = [row["name"] for row in answer.rows]
    assert {"one model", "finetuning", "local only", "Ditto"} <= set(names)
    assert all(row["mean_low"] <= row["mean"] <= row["mean_high"] for row in answer.rows)
    assert answer.sentence in answer.page
    assert answer.markdown().count("\n") == len(names) + 1


def test_the_same_seed_and_number_give_the_same_answer_also_after_a_stop(answer, tmp_path, monkeypatch):
    last = 0

    def stop(name, row, number, total):
        nonlocal last
        last = number
        if number == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(tmp_path / "out", on_result=stop)
    assert last == 9
    fits = []
    fit = Search.fit
    monkeypatch.setattr(
        Search, "fit", lambda self, name, *rest, **more: fits.append(name) or fit(self, name, *rest, **more)
    )
    again = ask(tmp_path / "out")
    assert (again.sentence, again.rows, again.toml) == (answer.sentence, answer.rows, answer.toml)
    assert again.evaluations == answer.evaluations
    count = len(fits)
    third = ask(tmp_path / "out")
    assert len(fits) == count  # all of it was read
    assert third.page == again.page  # the time too: the runs took it, though this call did not


def test_where_the_clock_is_faster_the_last_steps_are_left_out_and_the_numbers_give_the_same_answer(
    answer, monkeypatch
):
    """A clock of the test's own: 100,000 evaluations are promised for a second, and the runs make 70,000."""
    monkeypatch.setattr(Search, "measure", lambda self, budget, example: {"budget": answer.budget})
    monkeypatch.setattr(Search, "foresee", lambda self, rounds: (self.evaluations + rounds * self.rows) / 70_000)
    short = ask(budget="1 s")
    assert all(count >= least for count, least in zip(short.steps, (3, 1, 1, 2), strict=True))
    assert all(count <= plan for count, plan in zip(short.steps, answer.steps, strict=True))
    assert sum(short.steps) < sum(answer.steps)
    assert short.evaluations <= 70_000
    assert any("Time ran short" in note for note in short.notes)
    monkeypatch.undo()
    again = ask(budget=short.budget, steps=short.steps)
    assert (again.sentence, again.steps, again.rows) == (short.sentence, short.steps, short.rows)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"seed": 1}, "`seed` must be what the recommend in .* began with, got 1 instead of 0"),
        ({"budget": 90_000}, "`budget` must be what the recommend in .* began with, got 90000 instead of 100000"),
        ({"steps": (3, 1, 1, 2)}, r"`steps` must be .*, got \[3, 1, 1, 2\] instead of null"),
        ({"also": {"mine": lambda rate: mo.apfl(shared=rate, personal=rate)}}, "`also` must be what the recommend in"),
    ],
)
def test_another_question_is_refused_in_the_same_folder_and_the_refusal_names_what_is_another(answer, change, text):
    with pytest.raises(MoietyError, match=text) as refusal:
        ask(answer.folder, **change)
    assert "\n" not in str(refusal.value)


def test_another_candidate_of_the_same_name_is_another_question(tmp_path):
    """What it is counts, and not its name alone: else a search would go on with the runs of another algorithm."""
    first, second = (
        partial(lambda pull, rate: mo.ditto(personal=mo.sgd(rate, pull=pull), form="finetune"), pull)
        for pull in (0.5, 2)
    )
    folder = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        ask(folder, budget=300_000, also={"mine": first}, on_result=stop)
    with pytest.raises(MoietyError, match="`also` must be what the recommend in"):
        ask(folder, budget=300_000, also={"mine": second})
    with pytest.raises(KeyboardInterrupt):
        ask(folder, budget=300_000, also={"mine": first}, on_result=stop)


def stop(*result):
    raise KeyboardInterrupt


OTHER = mo.models.mlp(64, 10, hidden=(8, 8), seed=0)


@pytest.mark.parametrize(
    ("also", "text"),
    [
        ([mo.split.output_layer(OTHER)], "`also` must be splits, or functions of a learning rate, by name"),
        ({1: mo.split.output_layer(OTHER)}, "`also` must be names of candidates that are text, got 1"),
        ({" ": mo.split.output_layer(OTHER)}, "`also` must be names with a letter or a digit, got ' '"),
        (
            {"mine": mo.split.output_layer(OTHER)},
            "`also` must be candidates that can be trained here, got mine: `split` must be made for this model",
        ),
        (
            {"mine": lambda rate: mo.fedalt(shared=rate, personal=rate)},
            "`also` must be candidates that can be trained here, got mine: `split` must be given for fedalt",
        ),
        (
            {"mine": lambda rate: 1 / 0},
            r"`also` must be functions of a learning rate, got ZeroDivisionError: .*\(mine\)",
        ),
        ({"mine": lambda: None}, r"`also` must be functions of a learning rate, got TypeError: .*\(mine\)"),
        ({"mine": lambda rate: ()}, "`also` must be functions that give an algorithm, or one and its split"),
        ({"mine": lambda rate: (mo.fedavg(shared=rate), 3)}, "`also` must be functions that give an algorithm, or one"),
        (
            {name: lambda rate: mo.fedavg(shared=rate) for name in ("A b", "a-b")},
            "`also` must be names that no other candidate has, got A b, a-b",
        ),
    ],
)
def test_a_candidate_of_the_users_that_cannot_be_trained_is_refused_at_once(also, text, tmp_path):
    with pytest.raises(MoietyError, match=text) as refusal:
        ask(tmp_path / "out", also=also)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "out").exists()


def test_the_winners_stages_give_what_the_final_comparison_measured(answer):
    """Their length is the median of the seeds' best rounds, so one seed at least was trained just so."""
    last, place = answer.stages[-1], re.sub(r"[^\w.-]+", "-", answer.best).strip("-").lower()
    rows = [json.loads(file.read_text())["result"] for file in sorted((answer.folder / "final" / place).iterdir())]
    assert len(rows) == answer.contrast.seeds
    (seed,) = [k for k, row in enumerate(rows, 1) if row["best_round"] == last.rounds][:1]
    fed, model = make_clients()
    end = mo.pipeline(answer.stages, model, fed, seed=seed, engine="vectorised")[-1]
    measured = {row["client"]: row["metric"] for row in rows[seed - 1]["clients"]}
    assert {row["client"]: row["metric"] for row in end.evaluate("test")} == pytest.approx(measured)


def test_the_folder_has_table_figure_and_the_file_of_the_winner(answer):
    names = {path.name for path in answer.folder.iterdir()}
    assert {"table.json", "table.md", "winner.toml"} <= names
    tables = tomllib.loads((answer.folder / "winner.toml").read_text())
    assert tables["stage"][0]["algorithm"]["name"] in ("fedavg", "local_only")
    assert "No file" not in answer.toml  # digits and mlp can be named, though these labels were changed
    parts = make_parts(check_tables(tables))
    assert [stage.rounds for stage in parts.stages] == [stage.rounds for stage in answer.stages]


def test_stages_train_the_winner():
    """On the user's own model and data, which a file cannot name."""
    rng = np.random.default_rng(0)
    site, x = np.repeat(np.arange(6), 40), rng.normal(size=(240, 3)).astype(np.float32)
    fed = mo.data.from_arrays(
        {"x": x, "y": (x.sum(1) + 3 * site).astype(np.float32)}, client=site, validation=0.2, seed=0
    )
    model = torch.nn.Linear(3, 1)
    answer = mo.recommend(
        model, fed, 100_000, rates=(0.1,), also={"offset": mo.split.by_name(model, personal=["bias"])}
    )
    assert answer.verdict == PERSONAL
    assert answer.toml.startswith("# No file can name your own data and the model")
    runs = mo.pipeline(answer.stages, model, fed)
    assert runs[-1].history[-1]["metric"] < 0.5


def test_costs_follow_from_what_is_sent(answer):
    rows = {row["name"]: row for row in answer.rows}
    assert rows["local only"]["bytes"] == 0
    assert rows["one model"]["bytes"] > rows["output layer, FedAlt"]["bytes"] > 0
    assert rows["Ditto"]["personal"] == rows["finetuning"]["personal"] == 64 * 8 + 8 + 8 * 10 + 10


@pytest.mark.parametrize(
    ("change", "options", "text"),
    [
        ({"validation": 0.0}, {}, "`data` must be of some validation rows, got none. As in validation=0.2"),
        ({"test": 0.0}, {}, "`data` must be of some test rows, got none"),
        ({"clients": 3}, {}, "`data` must be those of at least 4 clients, got 3"),
        ({}, {"budget": 5_000}, r"`budget` must be at least [\d,]+ gradient evaluations here, got 5,000"),
        ({}, {"budget": "soon"}, "`budget` must be a time, or a whole number of gradient evaluations, got 'soon'"),
        ({}, {"steps": (3, 1, 1)}, "`steps` must be four whole numbers, at least 3, 1, 1, 2, got"),
        ({}, {"budget": "1 s", "steps": (3, 1, 1, 2)}, "`steps` must be left out where the budget is a time"),
        ({}, {"rates": (0.1, 0.1)}, "`rates` must be at least one, and different ones"),
        ({}, {"cohort": 7}, "`cohort` must be <= 6"),
        (
            {},
            {"settings": mo.Settings(codec=mo.codec.qsgd(levels=4))},
            "`codec` must be left out where there are stages",
        ),
    ],
)
def test_bad_input_is_one_line(change, options, text):
    fed = mo.data.load("digits", **{"clients": 6, "per_client": 30, "validation": 0.2, "seed": 0, **change})
    model = mo.models.mlp(64, 10, hidden=(8,), seed=0)
    with pytest.raises(MoietyError, match=text) as refusal:
        mo.recommend(model, fed, **{"budget": 200_000, **options})
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("kind", ["input", "nothing"])
def test_the_planted_answer_is_found_in_a_short_search(kind):
    """A sample of the next two tests for the gate."""
    answer = find_answer(kind, 0, budget=400_000, rates=(0.16,))
    assert answer.best.startswith(ANSWERS[kind])


@pytest.mark.skipif(not NIGHTLY, reason="takes minutes")
@pytest.mark.parametrize("kind", ["input", "middle"])
def test_the_planted_answer_is_recommended(kind):
    best = [find_answer(kind, seed).best for seed in SEEDS[kind]]
    assert sum(name.startswith(ANSWERS[kind]) for name in best) >= 9, best


@pytest.mark.skipif(not NIGHTLY, reason="takes minutes")
def test_clients_that_differ_in_nothing_get_one_model():
    verdicts = [find_answer("nothing", seed).verdict for seed in SEEDS["nothing"]]
    assert sum(verdict in (NO_DIFFERENCE, SHARED) for verdict in verdicts) >= 19, verdicts


def test_a_rival_that_fails_in_the_end_is_not_recommended(answer, tmp_path, monkeypatch):
    """All is read but what fails: a seed that diverges, or a client whose score is not finite."""
    run_final = Search.run_final

    def diverge(self, candidate, trial):
        row = run_final(self, candidate, trial)
        return row if candidate.name == "one model" or trial.seed != 2 else {"score": None, "failed": "not finite"}

    def spoil(self, candidate, trial):
        row = run_final(self, candidate, trial)
        if candidate.name != "one model" and trial.seed == 2:
            row = {**row, "clients": [{**row["clients"][0], "metric": math.inf}, *row["clients"][1:]]}
        return row

    for change, note in [
        (diverge, f"{answer.best} is not recommended: it diverged with 1 of {answer.contrast.seeds} seeds in the end."),
        (spoil, f"{answer.best} is not recommended: clients without a finite score by it: 0."),
    ]:
        with monkeypatch.context() as changed:
            changed.setattr(Search, "run_final", change)
            again = ask(shutil.copytree(answer.folder, tmp_path / change.__name__))
        assert (again.verdict, again.best, again.rival) == (NO_DIFFERENCE, "one model", answer.best)
        assert again.notes[0] == note
        assert all(map(math.isfinite, again.test.values()))
        assert " - " not in again.sentence


def test_a_run_that_diverges_in_the_end_is_kept_as_failed(answer, tmp_path, monkeypatch):
    folder = shutil.copytree(answer.folder, tmp_path / "out")
    place = re.sub(r"[^\w.-]+", "-", answer.best).strip("-").lower()
    next((folder / "final" / place).glob("*2.json")).unlink()
    train = Search._train

    def diverge(self, candidate, trial):
        if candidate.name == answer.best:
            raise DivergenceError("`updates` must be finite")
        return train(self, candidate, trial)

    monkeypatch.setattr(Search, "_train", diverge)
    again = ask(folder)
    assert again.contrast.seeds == answer.contrast.seeds - 1
    assert again.best == "one model"
    assert "it diverged with 1 of" in again.notes[0]


def test_a_rate_that_diverges_later_than_short_runs_show_is_one_line():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(320, 4)).astype(np.float32)
    fed = mo.data.from_arrays(
        {"x": x, "y": (x.sum(1) > 0).astype(int)}, np.repeat(np.arange(8), 40), validation=0.2, test=0.2, seed=0
    )
    model = mo.models.mlp(4, 2, hidden=(8,), seed=0)
    with pytest.raises(MoietyError, match="`rates` must be ones that do not diverge, got") as refusal:
        mo.recommend(model, fed, 100_000, rates=(1e6,), rounds=30, work=mo.sgd(0.1, batch_size=8))
    assert "\n" not in str(refusal.value)


def test_a_line_is_printed_for_each_run_that_has_ended(answer, capsys):
    """Counted by hand: starts of both kinds at one rate, the runs of the rungs, and two for each seed of the end."""
    again = ask(answer.folder, progress=True)
    lines = capsys.readouterr().err.splitlines()
    rungs = sum(rivals + 1 for rivals in again.steps[:3])
    assert len(lines) == 2 + rungs + 2 * again.steps[3]
    assert [line.split()[0] for line in lines] == [f"{i}/{len(lines)}" for i in range(1, len(lines) + 1)]
    assert re.fullmatch(r" 1/\d+  common start, rate 0.3: validation accuracy \d+\.\d%", lines[0])
    assert lines[-1].endswith(f"final comparison, {again.rival}, seed {again.steps[3]}")
    assert {row["name"] for row in again.rows} == {
        re.split(r", rate", line.split("  ", 1)[1])[0] for line in lines if ", rate" in line and "start" not in line
    }
    ask(answer.folder, progress=False)
    assert capsys.readouterr().err == ""


def test_ties_of_the_mean_go_to_the_better_worst_tenth_and_then_to_fewer_hurt():
    """Clients have 0.5 with one model. All rivals have the mean 0.6, but for the first."""

    def rows(*metrics):
        clients = [{"client": str(i), "n_test": 10, "metric": m} for i, m in enumerate(metrics)]
        return {"score": float(np.mean(metrics)), "clients": clients}

    best = {
        "one model": rows(0.5, 0.5, 0.5, 0.5),
        "better mean": rows(0.1, 0.9, 0.9, 0.9),
        "bad tail": rows(0.3, 0.7, 0.7, 0.7),
        "two hurt": rows(0.45, 0.45, 0.75, 0.75),
        "one hurt": rows(0.45, 0.65, 0.65, 0.65),
    }
    best |= {name: {**row, "score": 0.6} for name, row in best.items() if name not in ("one model", "better mean")}
    search = SimpleNamespace(higher_is_better=True)
    rivals = [SimpleNamespace(name=name) for name in ("bad tail", "two hurt", "one hurt", "better mean")]
    order = Contest._rank(SimpleNamespace(search=search, best=best), rivals)
    assert [each.name for each in order] == ["better mean", "one hurt", "two hurt", "bad tail"]
