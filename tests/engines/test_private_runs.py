"""Runs with privacy: numbers by hand, engines, what a kill costs, what is refused, what a file and the command say."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
import torch
from engine_cases import StopHereError, federation, mlp, refused, reseal, same_runs, stop_after
from run_settings import with_settings
from torch import nn

import moiety as mo
from moiety.cli import main
from moiety.transport import accounting
from moiety.transport import privacy as noises

DATA = federation()
CLIENTS = 6


def gaussian(**options):
    arguments = {"clip": 0.2, "delta": 1e-3, "insecure_seed": 7, **options}
    return mo.privacy.gaussian(**arguments if "epsilon" in arguments else {"noise": 1.0, **arguments})


def fit(privacy, engine="sequential", how=None, data=DATA, **options):
    net = mlp()
    how = how or mo.fedalt(shared=mo.sgd(0.1, batch_size=5), personal=0.2, weighting="uniform")
    split = mo.split.by_name(net, personal=["head"]) if how.needs == "any" else None
    common = {"rounds": 4, "cohort": 3, "seed": 5, **options}
    return mo.fit(net, data, how, **with_settings(split=split, engine=engine, privacy=privacy, **common))


def resume(folder, **options):
    net = mlp()
    return mo.resume(folder, model=net, data=DATA, split=mo.split.by_name(net, personal=["head"]), **options)


def shared_after(run):
    """What the server has."""
    shared = run._loop.problem.split.shared
    return {name: p.double().numpy() for name, p in run.shared_parameters().items() if name in shared}


@pytest.mark.parametrize("participation", ["fixed", "bernoulli"])
def test_a_round_by_hand(participation):
    """Least squares, one full gradient step each: NumPy clips each client's step and divides by the fixed cohort.

    Clips are such that some steps are cut and some are not. Of four clients three are expected.
    """
    draw = np.random.default_rng(2)
    sizes, lr = (3, 5, 2, 7), 0.3
    rows = [{"x": draw.normal(size=(n, 2)), "y": 3 * draw.normal(size=(n, 1))} for n in sizes]
    data = mo.data.from_clients({f"c{i}": each for i, each in enumerate(rows)}, test=0.0)
    model = nn.Linear(2, 1).double()
    first = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    steps = []
    for each in rows:
        error = each["x"] @ first["weight"].T + first["bias"] - each["y"]
        n = len(error)
        steps.append({"weight": -lr * 2 / n * error.T @ each["x"], "bias": -lr * 2 / n * error.sum(0)})
    norms = [math.sqrt(sum((s**2).sum() for s in step.values())) for step in steps]
    clip = float(np.median(norms))
    picks = []
    run = mo.fit(
        model,
        data,
        mo.local_gd(shared=lr),
        rounds=1,
        cohort=3,
        engine="sequential",
        callbacks=[lambda run, record: picks.extend(record.cohort)],
        settings=mo.Settings(
            participation=participation,
            evaluate_on="train",
            privacy=mo.privacy.gaussian(clip=clip, noise=0.0, delta=1e-3, insecure_seed=4),
        ),
    )
    cut = [norms[i] > clip for i in picks]
    assert any(cut)
    assert not all(cut)
    for name, p in shared_after(run).items():
        total = sum(min(1.0, clip / norms[i]) * steps[i][name] for i in picks)
        np.testing.assert_allclose(p, first[name] + total / 3, rtol=1e-12)
    assert run.ledger["epsilon"] is None  # without noise


@pytest.mark.parametrize("where", ["central", "local"])
def test_the_noise_of_a_run_has_the_right_size(where):
    """Steps of nearly 0, so that the server moves by noise alone: of deviation z c / m, or local z c / sqrt(m).

    9,000 weights of one layer; six standard errors of a variance are 6 sqrt(2 / 9,000) = 9%.
    """
    net = nn.Linear(90, 100)
    draw = np.random.default_rng(0)
    data = mo.data.from_clients({f"c{i}": {"x": draw.normal(size=(2, 90)), "y": [0, 1]} for i in range(4)}, test=0.0)
    run = mo.fit(
        net,
        data,
        mo.fedavg(shared=1e-30, weighting="uniform"),
        rounds=1,
        engine="sequential",
        settings=mo.Settings(
            evaluate_on="train", privacy=mo.privacy.gaussian(clip=0.5, noise=2.0, delta=1e-3, where=where)
        ),
    )
    move = run.shared_parameters()["weight"] - net.weight.detach()
    deviation = 2.0 * 0.5 / (4 if where == "central" else 2)
    assert float(move.square().mean()) / deviation**2 == pytest.approx(1.0, abs=0.09)
    # Each way has its own unit: local, one upload in the place of any other.
    exact = accounting.spend_epsilon(2.0 if where == "central" else 1.0, 1, 1.0, 1e-3)
    assert run.ledger["epsilon"] == exact == run.history[-1]["epsilon"]


@pytest.mark.parametrize("options", [{}, {"where": "local"}, {"quantile": 0.5}], ids=["central", "local", "quantile"])
@pytest.mark.parametrize("participation", ["fixed", "bernoulli"])
def test_engines_agree(options, participation):
    runs = [
        fit(gaussian(**options), engine, participation=participation)
        for engine in ("sequential", "vectorised", "processes:sequential")
    ]
    a, *others = ({**shared_after(run), "clip": run.ledger["clip"]} for run in runs)
    for b in others:
        for name, value in a.items():
            np.testing.assert_allclose(b[name], value, rtol=1e-5, atol=1e-6)


def test_without_a_seed_no_two_runs_are_alike(tmp_path):
    a, b = (fit(gaussian(insecure_seed=None), out=tmp_path / name) for name in "ab")
    assert all((shared_after(a)[name] != p).any() for name, p in shared_after(b).items())
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and b"insecure" in p.read_bytes()]


def test_epsilon_grows_in_the_history_and_is_what_the_library_says(tmp_path):
    run = fit(gaussian(quantile=0.5), participation="bernoulli", evaluate_every=2, out=tmp_path / "run")
    z = 1 / math.sqrt(1 + 1 / 25)
    expected = [accounting.spend_epsilon(z, sums, 0.5, 1e-3) for sums in (2, 4)]
    assert [row["epsilon"] for row in run.history] == pytest.approx(expected, rel=1e-12)
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert {key: ledger[key] for key in ("epsilon", "delta", "noise", "noisy_sums")} == {
        "epsilon": run.history[-1]["epsilon"],
        "delta": 1e-3,
        "noise": 1.0,
        "noisy_sums": 4,
    }
    net = mlp()
    copy = mo.load(tmp_path / "run", model=net, split=mo.split.by_name(net, personal=["head"]))
    assert copy.ledger["epsilon"] == run.ledger["epsilon"]


def test_an_asked_epsilon_is_kept_to():
    run = fit(gaussian(epsilon=3.0), participation="bernoulli")
    assert 2.99 < run.ledger["epsilon"] <= 3.0
    assert run.history[-1]["noise"] > 0.5


def test_a_round_of_nobody_is_noise_all_the_same():
    """One of six is expected: of 12 rounds some are empty. The server must move in them, or it would tell."""
    moves, before = [], {}

    def watch(run, record):
        now = shared_after(run)
        moves.append((len(record.cohort), not before or all((now[name] != before[name]).any() for name in now)))
        before.update(now)

    fit(gaussian(), participation="bernoulli", cohort=1, rounds=12, callbacks=[watch])
    assert 0 in [count for count, _ in moves]
    assert all(changed for _, changed in moves)


def test_cohorts_are_drawn_in_secret_where_they_amplify():
    """Not from the run's seed: with it anyone could say who took part."""
    cohorts = []
    for _ in range(2):
        members = []
        fit(
            gaussian(insecure_seed=None),
            participation="bernoulli",
            rounds=20,
            evaluate_every=20,
            callbacks=[lambda run, record, members=members: members.append(record.cohort)],
        )
        cohorts.append(members)
    assert cohorts[0] != cohorts[1]


@pytest.mark.parametrize("where", ["central", "local"])
def test_a_clean_resume_is_the_same_bit_for_bit(where, tmp_path):
    privacy = gaussian(where=where, **({"quantile": 0.4} if where == "central" else {}))
    whole = fit(privacy)
    fit(privacy, rounds=2, out=tmp_path / "run", evaluate_every=1)
    same_runs(replace_history(whole, fit(privacy, evaluate_every=1)), resume(tmp_path / "run", rounds=4))


def replace_history(run, other):
    """The run, with rows as often as the other has them: how often is no part of the draws."""
    run.history = other.history
    return run


@pytest.mark.parametrize("where", ["central", "local"])
@pytest.mark.parametrize("every", [2, 10], ids=["checkpoint", "none"])
def test_no_draw_serves_two_sums_after_a_kill(where, every, tmp_path, monkeypatch):
    """Killed after round 3, a run goes on from round 2, or from the start. Rounds that it does again count twice."""
    names = []
    plain = noises.draw_normal
    monkeypatch.setattr(noises, "draw_normal", lambda privacy, n, *draw: names.append(draw) or plain(privacy, n, *draw))
    with pytest.raises(StopHereError):
        fit(
            gaussian(where=where),
            out=tmp_path / "run",
            checkpoint_every=every,
            evaluate_every=1,
            callbacks=[stop_after(3)],
        )
    assert json.loads((tmp_path / "run" / "privacy.json").read_text())["sums"] == 3
    run = resume(tmp_path / "run")
    sums = 3 + (2 if every == 2 else 4)
    assert run.ledger["noisy_sums"] == sums
    z = 1.0 if where == "central" else 0.5
    assert run.ledger["epsilon"] == accounting.spend_epsilon(z, sums, 1.0, 1e-3)
    assert len(names) == len(set(names))
    assert len({draw[1] for draw in names}) == sums
    assert mo.verify(tmp_path / "run") == []


def test_a_kill_may_use_up_an_asked_epsilon(tmp_path):
    with pytest.raises(StopHereError):
        fit(gaussian(epsilon=3.0), out=tmp_path / "run", checkpoint_every=2, callbacks=[stop_after(3)])
    text = refused(lambda: resume(tmp_path / "run"), "`rounds` must be at most 3 for epsilon 3")
    assert "3 noisy sums were drawn for 2 rounds" in text
    run = resume(tmp_path / "run", rounds=3)
    assert run.ledger["epsilon"] <= 3.0
    refused(lambda: resume(tmp_path / "run", rounds=5), "`rounds` must be at most 3")


@pytest.mark.parametrize(("where", "unit"), [("central", 1), ("local", 2)])
def test_the_noise_for_an_epsilon_is_that_of_the_rounds_that_a_run_began_with(where, unit, tmp_path):
    """Four rounds are asked for. Three cost less, by dp-accounting's own numbers; more than four are refused."""
    privacy = gaussian(epsilon=3.0, where=where)
    with pytest.raises(StopHereError):
        fit(privacy, out=tmp_path / "run", checkpoint_every=2, callbacks=[stop_after(2)])
    ledger = resume(tmp_path / "run", rounds=3).ledger
    cost = [dp_accounting.get_epsilon_gaussian(ledger["noise"] / unit / math.sqrt(n), 1e-3) for n in (3, 4)]
    assert ledger["epsilon"] == pytest.approx(cost[0], rel=1e-9)
    assert cost[1] == pytest.approx(3.0, rel=1e-3)
    refused(lambda: resume(tmp_path / "run", rounds=5), "`rounds` must be at most 4 for epsilon 3")
    assert resume(tmp_path / "run", rounds=4).ledger["epsilon"] == pytest.approx(cost[1], rel=1e-9)


def test_a_lost_or_changed_count_is_refused(tmp_path):
    fit(gaussian(), out=tmp_path / "run")
    count = tmp_path / "run" / "privacy.json"
    content = count.read_text()
    count.write_text(content.replace('"sums": 4', '"sums": 1'))
    assert "privacy.json" in mo.verify(tmp_path / "run")[0]
    refused(lambda: resume(tmp_path / "run", rounds=6), "privacy.json")
    count.write_text(content.replace('"sums": 4', '"sums": "a"'))
    reseal(count)
    refused(lambda: resume(tmp_path / "run", rounds=6), "`privacy.json` must be as it was written")
    count.unlink()
    refused(lambda: resume(tmp_path / "run", rounds=6), "`privacy.json` must be there")


def test_best_models_do_not_give_back_what_was_spent():
    keep = mo.callbacks.EarlyStopping(patience=1, metric="train_loss")
    run = fit(gaussian(noise=8.0, clip=3.0), rounds=8, evaluate_every=1, callbacks=[keep])
    assert run.ledger["noisy_sums"] == run.history[-1]["round"]


def test_a_codec_changes_nothing_about_the_clip():
    """rand-k multiplies what it keeps by d / k: the server clips what arrives."""
    run = fit(gaussian(noise=0.0, clip=1e-3), codec=mo.codec.rand_k(k=0.1), cohort=6)
    first = {name: p.detach().double().numpy() for name, p in mlp().named_parameters()}
    far = math.sqrt(sum(((p - first[name]) ** 2).sum() for name, p in shared_after(run).items()))
    assert 0 < far <= 4 * 1e-3 * (1 + 1e-6)


def test_an_attacker_moves_the_server_by_no_more_than_anyone():
    attack = {"attack": mo.attack.sign_flip(scale=1e6), "attackers": ["c0", "c1"]}
    run = fit(gaussian(noise=0.0, clip=1e-3), cohort=6, **attack)
    first = {name: p.detach().double().numpy() for name, p in mlp().named_parameters()}
    far = math.sqrt(sum(((p - first[name]) ** 2).sum() for name, p in shared_after(run).items()))
    assert far <= 4 * 1e-3 * (1 + 1e-6)


def test_local_noise_leaves_no_mask_on_the_wire():
    """FedSpa's uploads are whole where they have noise, and so are its broadcasts: no mask crosses."""
    how = mo.fedspa(shared=0.1, density=0.5)
    sizes = {name: p.numel() for name, p in mlp().named_parameters()}
    sparse, local = (fit(privacy, how=how).ledger for privacy in (gaussian(), gaussian(where="local")))
    assert local["up_values"] == local["down_values"] == 4 * 3 * 4 * sum(sizes.values())
    assert sparse["up_values"] < local["up_values"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"how": mo.fedavg(shared=0.1)}, "`weighting` must be uniform with privacy, got examples"),
        ({"how": mo.local_only(personal=0.1)}, "`privacy` must be left out for local_only"),
        ({"how": mo.sub_fedavg(shared=0.1)}, "`privacy` must be left out for sub_fedavg"),
        ({"aggregator": mo.aggregator.median()}, "`aggregator` must be left out with central privacy"),
        ({"clock": mo.clock.asynchronous(active=2), "cohort": None}, "`clock` must be synchronous, or left out"),
        ({"clock": mo.clock.delayed(up=1)}, "`clock` must be synchronous, or left out"),
        ({"privacy": gaussian(delta=0.5)}, "`delta` must be below 1 / 6"),
    ],
)
def test_what_privacy_cannot_be_kept_with_is_refused(options, words, tmp_path):
    arguments = {"privacy": gaussian(), **options}
    refused(lambda: fit(arguments.pop("privacy"), out=tmp_path / "run", **arguments), words)
    assert not (tmp_path / "run").exists()


def test_weights_of_an_own_algorithm_are_looked_at():
    how = replace(mo.fedavg(shared=0.1), spec={})
    text = refused(lambda: fit(gaussian(), how=how), "`weight` must be 1 for every client with privacy")
    assert "client c" in text


def test_whole_numbers_cannot_be_hidden():
    how = mo.fedavg(shared=0.1, weighting="uniform")
    odd = lambda shared, personal: (shared, {**shared, "count": torch.zeros(1, dtype=torch.int64)})  # noqa: E731
    how = replace(how, wire=how.wire._replace(layout=odd))
    refused(lambda: fit(gaussian(), how=how), "`privacy` must be left out where whole numbers go up, got count")


def test_robust_aggregates_of_local_noise():
    run = fit(gaussian(where="local"), aggregator=mo.aggregator.median(), cohort=6)
    assert math.isfinite(run.history[-1]["loss"])


FILE = """
[data]
name = "digits"
clients = 12
[model]
name = "mlp"
hidden = [8]
[split]
name = "output_layer"
[algorithm]
name = "fedalt"
shared = 0.1
personal = 0.1
weighting = "uniform"
[privacy]
name = "gaussian"
clip = 0.5
epsilon = 4.0
delta = 1e-3
[run]
rounds = 2
cohort = 4
engine = "sequential"
participation = "bernoulli"
"""


def test_a_file_names_it_and_the_command_says_what_it_cost(tmp_path, capsys):
    path, out = tmp_path / "private.toml", tmp_path / "run"
    path.write_text(FILE)
    assert main(["run", str(path), "--out", str(out)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "epsilon 4 at delta 0.001, one client added or removed" in text
    assert main(["run", str(path), "--out", str(out), "--resume"]) == 0
    assert main(["list", "privacy"]) == 0
    assert "Clip uploads and add Gaussian noise" in capsys.readouterr().out
    path.write_text(FILE.replace("clip = 0.5", "clip = 0.0"))
    assert main(["run", str(path), "--out", str(tmp_path / "wrong")]) == 2
    assert "`clip` must be > 0" in capsys.readouterr().err
