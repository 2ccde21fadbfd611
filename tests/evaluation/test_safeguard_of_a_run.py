"""A run with a safeguard: its folder, its rows, its new clients, and what its report says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import moiety as mo
from moiety.analysis import judge_clients, report_harm
from moiety.analysis.safeguard import summarise_harm
from moiety.evaluation import worst_decile
from moiety.evaluation.paired import RowScores
from moiety.run.safeguard import Chooser, take_one_model

UNEVEN = mo.data.dirichlet(0.3, balanced=False, min_examples=12)
DIGITS = mo.data.load("digits", clients=12, partition=UNEVEN, validation=0.2, seed=0)
PARTIAL = "the shared part of fedalt, which may be worse than one model for all"
ALGORITHM = mo.fedalt(shared=0.1, personal=mo.sgd(0.1, batch_size=8))


def train(fed=DIGITS, rounds=4, **options):
    model = mo.models.mlp(64, 10, hidden=(8,), seed=0)
    how = {"split": mo.split.output_layer(model), "engine": "vectorised", **options}
    return mo.fit(model, fed, ALGORITHM, rounds=rounds, **how)


@pytest.fixture(scope="module")
def one_model():
    model = mo.models.mlp(64, 10, hidden=(8,), seed=0)
    return mo.fit(model, DIGITS, mo.fedavg(shared=mo.sgd(0.1, batch_size=8)), rounds=6, engine="vectorised")


@pytest.fixture(scope="module")
def guarded(one_model):
    run = train()
    run.safeguard(one_model=one_model)
    return run


def test_rows_are_of_the_models_that_clients_chose(guarded, one_model):
    """Against NumPy: the mixture of what the personal model of another run and the one model say."""
    plain = train()
    shares = set()
    for row, before in zip(guarded.clients, plain.clients, strict=True):
        client, test = row["client"], DIGITS.client(row["client"], "test")
        shares.add(row["personal_share"])
        x = torch.as_tensor(test["x"])
        one, own = (
            run.softmax(-1).detach().double().numpy() for run in (one_model.export()(x), plain.export(client)(x))
        )
        p = (1 - row["personal_share"]) * one + row["personal_share"] * own
        assert row["metric"] == pytest.approx((p.argmax(1) == test["y"]).mean())
        assert row["loss"] == pytest.approx(-np.log(p[np.arange(len(p)), test["y"]]).mean(), rel=1e-5)
        assert row["shared_metric"] == pytest.approx((one.argmax(1) == test["y"]).mean())
        assert row["gain"] == pytest.approx(row["metric"] - row["shared_metric"])
        assert np.allclose(guarded.export(client)(x).softmax(-1).detach().numpy(), p, atol=1e-6)
        assert guarded.score_rows(personal=True)[client].metric.mean() == pytest.approx(before["metric"])
    assert len(shares) > 1


def test_gains_are_of_right_answers_and_of_how_probable_they_are(one_model):
    """Against NumPy, on the validation rows of a client, for each mixture."""
    run = train()
    chooser = Chooser(run._loop, run._loss, "predictions", take_one_model(run._loop.problem, one_model))
    gains = chooser.pair_of(0).measure_gains(chooser.columns(0, "validation"))
    rows = DIGITS.at(0, "validation")
    at, y = np.arange(len(rows["y"])), rows["y"]
    shared = one_model.export()(torch.as_tensor(rows["x"])).detach().double().softmax(-1).numpy()
    own = run.predict_proba(str(DIGITS.ids[0]), rows["x"])
    for k, weight in enumerate((0.25, 0.5, 0.75, 1.0)):
        mixture = (1 - weight) * shared + weight * own
        assert np.array_equal(gains[0, k], (mixture.argmax(1) == y) * 1.0 - (shared.argmax(1) == y))
        assert np.allclose(gains[1, k], mixture[at, y] - shared[at, y], atol=1e-5)
    assert gains.shape == (2, 4, len(y))


def test_test_rows_are_never_looked_at(guarded, one_model):
    x = DIGITS.columns["x"].copy()
    for at in range(len(DIGITS)):
        start, stop = DIGITS.rows(at, "test")
        x[start:stop] = 1 - x[start:stop]
    other = train(replace(DIGITS, columns={**DIGITS.columns, "x": x}, spec={}))
    assert other.safeguard(one_model=one_model).choices == guarded._guard.choices
    assert other.clients != guarded.clients


def test_a_folder_keeps_choices_and_a_resumed_run_chooses_again(tmp_path, one_model):
    run = train(out=tmp_path / "run")
    guard = run.safeguard(alpha=0.3, one_model=one_model)
    back = mo.load(tmp_path / "run")
    assert back._guard.choices == guard.choices
    assert back._guard.population == guard.population
    assert back.clients == run.clients
    client = DIGITS.ids[3]
    assert np.array_equal(
        back.predict_proba(client, DIGITS.at(3, "test")["x"]), run.predict_proba(client, DIGITS.at(3, "test")["x"])
    )
    assert mo.verify(tmp_path / "run") == []
    more = mo.resume(tmp_path / "run", rounds=6)
    assert more._guard.round == 6
    assert more._guard.alpha == 0.3
    whole = train(rounds=6)
    whole.safeguard(alpha=0.3, one_model=one_model)
    assert more._guard.choices == whole._guard.choices
    assert mo.load(tmp_path / "run").clients == more.clients
    file = tmp_path / "run" / "safeguard.json"
    file.write_text(file.read_text().replace('"alpha": 0.3', '"alpha": 0.9'))
    assert any("safeguard.json" in problem for problem in mo.verify(tmp_path / "run"))
    with pytest.raises(mo.MoietyError, match=r"safeguard\.json"):
        mo.load(tmp_path / "run")


def test_a_stop_while_clients_choose_again_leaves_their_earlier_choices(tmp_path, one_model, monkeypatch):
    """The file of the other one model is written first; the earlier choices must still have theirs."""
    run = train(out=tmp_path / "run")
    earlier = run.safeguard(alpha=0.3, one_model=one_model)
    other = mo.fit(mo.models.mlp(64, 10, hidden=(8,), seed=0), DIGITS, mo.fedavg(shared=0.1), rounds=1)

    def fail(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr("moiety.run.safeguard_folder.write_sealed", fail)
        with pytest.raises(KeyboardInterrupt):
            run.safeguard(alpha=0.3, one_model=other)
    back = mo.load(tmp_path / "run")
    assert back.choices == earlier.choices
    assert all(torch.equal(back._guard.one_model[name], p) for name, p in one_model.shared_parameters().items())
    for again in (other, one_model):
        guard = run.safeguard(alpha=0.3, one_model=again)
        back = mo.load(tmp_path / "run")
        assert back.choices == guard.choices
        assert all(torch.equal(back._guard.one_model[name], p) for name, p in again.shared_parameters().items())
        assert len(list((tmp_path / "run").glob("one_model*"))) == 1
    with pytest.warns(UserWarning, match=PARTIAL):
        run.safeguard()
    assert not list((tmp_path / "run").glob("one_model*"))
    assert mo.verify(tmp_path / "run") == []


def test_fit_can_be_told(tmp_path):
    with pytest.warns(UserWarning, match=PARTIAL):
        run = train(safeguard=True, out=tmp_path / "run")
    assert run.config["run"]["safeguard"] is True
    own = train()
    with pytest.warns(UserWarning, match=PARTIAL):
        own.safeguard()
    assert own._guard.choices == run._guard.choices == mo.load(tmp_path / "run")._guard.choices
    assert {row["client"] for row in run.clients} == set(run._guard.choices)


def test_a_new_client_chooses_on_folds_of_its_rows(guarded):
    """The same rows give the same model; one row, which cannot be held out, is enough to be served."""
    rows = DIGITS.at(0)
    model = guarded.onboard(rows)
    again = guarded.onboard(rows)
    x = torch.as_tensor(DIGITS.at(0, "test")["x"])
    assert torch.equal(model(x), again(x))
    assert np.allclose(model(x).softmax(-1).detach().numpy(), guarded.predict_proba(rows, x.numpy()), atol=1e-6)
    assert guarded.predict({name: column[:1] for name, column in rows.items()}, x.numpy()).shape == (len(x),)


def test_mixtures_of_parameters_and_one_line_errors(one_model):
    run = train()
    with pytest.warns(UserWarning, match=PARTIAL):
        guard = run.safeguard(mix="parameters", alpha=0.4)
    plain = train()
    for client, each in guard.choices.items():
        parameters, own, shared = run.parameters(client), plain.parameters(client), plain.shared_parameters()
        for name in parameters:
            expected = (1 - each.weight) * shared[name].numpy() + each.weight * own[name].numpy()
            assert np.allclose(parameters[name].numpy(), expected, atol=1e-6)
    with pytest.raises(mo.MoietyError, match="`safeguard` must be left out for an algorithm without a personal part"):
        mo.fit(mo.models.mlp(64, 10), DIGITS, mo.fedavg(shared=0.1), rounds=1, safeguard=True)
    with pytest.raises(mo.MoietyError, match="`mix` must be one of the known names"):
        run.safeguard(mix="both")
    with pytest.raises(mo.MoietyError, match="`one_model` must be a run on the same model"):
        run.safeguard(one_model=mo.fit(mo.models.mlp(64, 10, seed=0), DIGITS, mo.fedavg(shared=0.1), rounds=1))
    other = train()
    choices = other.safeguard(one_model=one_model, alpha=0.4).choices
    client = next(name for name, each in choices.items() if 0 < each.weight < 1)
    with pytest.raises(mo.MoietyError, match="`client` must be one that chose no mixture of predictions"):
        other.parameters(client)
    with pytest.raises(mo.MoietyError, match="`run` must be one in which clients have chosen"):
        report_harm(train())


def test_a_report_on_other_clients_or_on_rows_that_nobody_has_is_refused_in_one_line(guarded):
    model = mo.models.mlp(64, 10, hidden=(8,), seed=0)
    few = mo.data.load("digits", clients=4, seed=0)
    other = mo.fit(model, few, mo.fedavg(shared=0.1), rounds=1)
    whole = mo.data.load("digits", clients=4, test=0.0, seed=0)
    untested = mo.fit(model, whole, mo.finetune(personal=0.1), split=mo.split.everything(model), rounds=1)
    untested.safeguard()
    for run, options, text in [
        (guarded, {"one_model": other}, "`one_model` must be a run on the same clients, got one without"),
        (guarded, {"local_run": other}, "`local_run` must be a run on the same clients, got one without"),
        (guarded, {"level": 1.5}, "`level` must be > 0 and < 1, got 1.5"),
        (untested, {}, "`part` must be a part of the data that has rows, got test"),
        (None, {}, "`run` must be one in which clients have chosen"),
    ]:
        with pytest.raises(mo.MoietyError, match=text) as refusal:
            report_harm(run, **options)
        assert "\n" not in str(refusal.value)
    with pytest.raises(mo.MoietyError, match=r"`one_model` must be a run, as .* gives it, got Sequential"):
        untested.safeguard(one_model=torch.nn.Sequential())


def test_scores_that_are_infinite_are_reported_too():
    """A target of 1e20 has an infinite squared error in float32: worse for one client, better for another."""
    weight, fine = np.ones(3), np.array([1.0, 2.0, 3.0])
    wild = np.array([1.0, np.inf, 3.0])
    finite, infinite = (RowScores(each, each, weight) for each in (fine, wild))
    new, old = {"a": infinite, "b": finite, "c": infinite}, {"a": finite, "b": infinite, "c": infinite}
    row = summarise_harm(new, old, ["a", "b", "c"], higher_is_better=False)
    assert (row["clients"], row["hurt_count"], row["beyond_noise_count"], row["mean"]) == (3, 1, 0, np.inf)
    assert np.isnan(row["spread"])


def test_regression_without_validation_rows():
    """Slopes are 1 and 3, so one model is wrong for everyone: 28 training rows, held out in folds, show it."""
    rng = np.random.default_rng(0)
    clients = {}
    for i in range(10):
        x = rng.normal(size=(40, 1)).astype(np.float32)
        clients[f"c{i}"] = {"x": x, "y": (x * (3 if i % 2 else 1) + 0.1 * rng.normal(size=x.shape)).astype(np.float32)}
    fed = mo.data.from_clients(clients, test=0.3, seed=0)
    model = mo.models.linear(1, 1, seed=0)
    split = mo.split.everything(model)
    one = mo.fit(model, fed, mo.fedavg(shared=0.1), rounds=20)
    run = mo.fit(model, fed, mo.finetune(personal=mo.sgd(0.2, epochs=20)), split=split, rounds=1, start=one)
    guard = run.safeguard()
    assert all(each.weight == 1 and each.rows == 28 for each in guard.choices.values())
    assert "mse" in str(report_harm(run))


def test_the_report_counts_as_the_definition_does(guarded, one_model):
    local_run = mo.fit(mo.models.mlp(64, 10, hidden=(8,), seed=0), DIGITS, mo.local_only(personal=0.1), rounds=4)
    report = report_harm(guarded, local_run=local_run)
    first = report.rows[0]
    rows = judge_clients(guarded.score_rows(personal=True), one_model.score_rows(shared=True))
    assert (first["against"], first["models"], first["clients"]) == ("one model", "personal", len(rows))
    assert first["hurt"] == np.mean([row["hurt"] for row in rows])
    assert first["beyond_noise"] == np.mean([row["hurt_beyond_noise"] for row in rows])
    means = np.array([scores.metric.mean() for scores in guarded.score_rows(personal=True).values()])
    assert first["mean"] == pytest.approx(means.mean())
    assert first["worst_decile"] == pytest.approx(worst_decile(means, higher_is_better=True))
    assert first["spread"] == pytest.approx(means.std())
    halves = [row for row in report.rows if row["against"] == "alone" and row["models"] == "chosen"]
    assert len(halves) == 3
    assert halves[0]["clients"] == sum(row["clients"] for row in halves[1:])
    assert "false discovery rate 5%" in str(report)
