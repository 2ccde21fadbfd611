"""Aggregators and attacks as options of a run: by hand, in limit cases, refused, resumed, and from files."""

from __future__ import annotations

import tomllib
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_cases import (
    StopHereError,
    exact,
    federation,
    mlp,
    refused,
    same_folders,
    same_runs,
    stop_after,
)
from oracle_problems import federated, scalar_task, split_of
from run_settings import with_settings

import moiety as mo
from moiety import tree
from moiety.clients import uniform_cohort
from moiety.run.folder import read_config
from moiety.task import from_functions

ENGINES = ["sequential", "vectorised", "processes:sequential"]
FED = federation()


def numbers(targets):
    """Clients of f(u, v) = (u - y)^2 / 2, one row each; with rate 1/2 and from u = 0 client i sends y_i / 2."""
    return federated([{"a": np.ones(1), "b": np.zeros(1), "y": np.array([float(y)])} for y in targets])


def one_round(targets, **options):
    """u after a round of FedAvg."""
    algorithm = mo.fedavg(shared=mo.sgd(0.5, steps=1, batch_size=9))
    options = {"engine": "sequential", "rounds": 1, **options}
    run = mo.fit(
        scalar_task(u=0.0), numbers(targets), algorithm, **with_settings(split=split_of(["u", "v"]), **options)
    )
    return run, float(run.shared_parameters()["u"])


MEDIAN, TRIMMED = mo.aggregator.median(), mo.aggregator.trimmed_mean(byzantine=1)


@pytest.mark.parametrize(
    ("attack", "aggregator", "expected"),
    [
        # Honest clients send 1, 2, 3, 6, of mean 3; the attacker's own is 4.
        (None, None, 16 / 5),
        (mo.attack.sign_flip(scale=2.0), None, (12 - 8) / 5),
        (mo.attack.inner_product_manipulation(epsilon=4.0), None, 0.0),
        (mo.attack.a_little_is_enough(z=2.0), None, (12 + 3 - 2 * np.sqrt(14 / 4)) / 5),
        (mo.attack.mimic(client=3), None, (12 + 6) / 5),
        (mo.attack.label_flip(), None, (12 - 4) / 5),
        (mo.attack.not_finite(), None, 3.0),
        (mo.attack.sign_flip(scale=2.0), MEDIAN, 2.0),
        (mo.attack.mimic(client=3), MEDIAN, 3.0),
        (mo.attack.label_flip(), TRIMMED, 2.0),
        (mo.attack.not_finite(), TRIMMED, 3.0),
        (mo.attack.not_finite(), MEDIAN, 2.5),
    ],
    ids=lambda value: value.spec["name"] if hasattr(value, "spec") else None,
)
def test_a_round_by_hand(attack, aggregator, expected):
    options = {} if attack is None else {"attack": attack, "attackers": ["client-4"]}
    run, u = one_round([2, 4, 6, 12, 8], aggregator=aggregator, **options)
    assert u == pytest.approx(expected, abs=1e-14)
    names = ["1:client-4"] if attack and attack.spec["name"] == "not_finite" else []
    assert run.history[-1]["dropped"] == names


def test_a_share_of_attackers_is_drawn_by_the_seed():
    flip = {"attack": mo.attack.sign_flip(), "attackers": 0.4}
    attackers = {seed: one_round([1] * 10, seed=seed, **flip)[0].config["run"]["attackers"] for seed in range(5)}
    assert all(len(names) == 4 for names in attackers.values())
    assert len({tuple(names) for names in attackers.values()}) > 1
    again = one_round([1] * 10, seed=3, attack=mo.attack.sign_flip(), attackers=attackers[3])[0]
    same_runs(again, one_round([1] * 10, seed=3, **flip)[0])


def two_parts(**options):
    model = mlp()
    algorithm = mo.fedalt(shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.2, batch_size=5))
    options = {"rounds": 1, "seed": 1, "engine": "sequential", **options}
    return mo.fit(model, FED, algorithm, **with_settings(split=mo.split.by_name(model, personal=["head"]), **options))


def states(run):
    store = run._loop.progress.store
    return [exact(tree.leaves(*store.get([c]))) for c in range(len(FED))]


def test_an_attack_does_not_touch_personal_states():
    """In the first round all start from the same: what is personal is then as without an attack, bit for bit."""
    plain, other = two_parts(), two_parts(attack=mo.attack.gaussian(std=5.0), attackers=["c1", "c4"])
    assert states(plain) == states(other)
    assert exact(plain.shared_parameters()) != exact(other.shared_parameters())
    nan_run = two_parts(attack=mo.attack.not_finite(), attackers=[1, 4])
    honest, attackers = [0, 2, 3, 5], [1, 4]
    assert [states(nan_run)[c] for c in honest] == [states(plain)[c] for c in honest]
    assert all(states(nan_run)[c] != states(plain)[c] for c in attackers)  # left out of the round, with all they did


def test_what_is_not_finite_never_reaches_an_aggregator():
    """Not what attackers send, nor what honest clients whose training overflows do."""
    batches = []

    def join(vectors, generator):
        batches.append(vectors.clone())
        return vectors.mean(0)

    own = mo.aggregator.Aggregator(join)
    _, u = one_round([2, 4, 1e308, 8], aggregator=own, attack=mo.attack.not_finite(), attackers=[3])
    # f is infinite for client 2, whose loss overflows
    assert [tuple(v.shape) for v in batches] == [(2, 2)]
    assert bool(torch.isfinite(batches[0]).all())
    assert u == 1.5


def test_a_dropped_upload_is_a_known_byzantine():
    """The smallest cohort that trimming one at either end allows, and one client that always sends NaN.

    Honest clients send (y - u) / 2, so their mean takes u half of the way to the mean of 4 and 6 in every round.
    """
    run, u = one_round([2, 4, 6], rounds=3, attack=mo.attack.not_finite(), attackers=[0], aggregator=TRIMMED)
    assert u == pytest.approx(5 * (1 - 1 / 2**3), abs=1e-14)
    assert run.history[-1]["dropped"] == ["3:client-0"]
    assert run.history[-1]["dropped_reasons"] == ["not finite: upload"]


def test_a_round_with_too_few_uploads_is_left_out():
    """Multi-Krum that keeps three, of a cohort of four: two that attack leave two, too few for the mean of three.

    A round with one attacker loses it alone. One with both is left out: nothing moves, and the attackers alone are
    named as dropped.
    """
    rule = mo.aggregator.multi_krum(byzantine=0, keep=3)
    attack = {"attack": mo.attack.not_finite(), "attackers": [0, 1], "aggregator": rule}
    with pytest.warns(UserWarning, match="Round 1 is left out: 2 finite uploads, 3 are needed"):
        run, u = one_round([2, 4, 6, 8], **attack)
    assert u == 0
    assert run.history[-1]["dropped"] == ["1:client-0", "1:client-1"]
    assert run.history[-1]["train_loss"] is None
    records, expected, senders = [], [], set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = two_parts(rounds=8, cohort=4, callbacks=[lambda run, record: records.append(record)], **attack)
    for t in range(8):
        cohort = [int(c) for c in uniform_cohort(6, 4, seed=1, round=t)]
        evil = [c for c in cohort if c in (0, 1)]
        expected.append((tuple(f"c{c}" for c in evil), len(evil) == 2))
        senders |= set() if len(evil) == 2 else set(cohort) - set(evil)
    assert [(record.dropped, record.left_out) for record in records] == expected
    assert {left_out for _, left_out in expected} == {True, False}
    assert set(other._loop.progress.store.owners()) == senders


@pytest.mark.parametrize("engine", ENGINES)
def test_flipped_labels_are_those_of_data_that_had_them(engine):
    """As if the attackers' training labels had been 2 - y from the start; test labels stay."""
    y = FED.columns["y"].copy()
    for client in (0, 3):
        start, stop = FED.rows(client, "train")
        y[start:stop] = 2 - y[start:stop]
    model, algorithm = mlp(), mo.fedalt(shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.2, batch_size=5))
    how = {"split": mo.split.by_name(model, personal=["head"]), "rounds": 2, "cohort": 4, "engine": engine}
    if engine.startswith("processes"):
        how["workers"] = 2
    one = mo.fit(model, replace(FED, columns={**FED.columns, "y": y}), algorithm, **with_settings(**how))
    other = mo.fit(
        model, FED, algorithm, **with_settings(**how, attack=mo.attack.label_flip(classes=3), attackers=["c0", "c3"])
    )
    same_runs(one, other)


CASES = {
    "gaussian, buckets": (
        mo.attack.gaussian(std=2.0),
        mo.aggregator.bucketing(size=2, then=mo.aggregator.geometric_median()),
    ),
    "flipped, mixed": (
        mo.attack.label_flip(classes=3),
        mo.aggregator.nearest_neighbour_mixing(byzantine=1, then=mo.aggregator.krum(byzantine=0)),
    ),
}


@pytest.mark.parametrize("attackers", [0.3, ["c1", "c2"], [2, 1]], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_resumed_bit_for_bit(tmp_path, case, attackers):
    attack, aggregator = CASES[case]
    how = {"attack": attack, "attackers": attackers, "aggregator": aggregator, "rounds": 4, "cohort": 4}
    whole = two_parts(out=tmp_path / "whole", checkpoint_every=1, **how)
    with pytest.raises(StopHereError):
        two_parts(out=tmp_path / "parts", checkpoint_every=1, callbacks=[stop_after(2)], **how)
    config = read_config(tmp_path / "parts")
    assert config["attack"] == attack.spec
    assert config["aggregator"] == aggregator.spec
    assert len(config["run"]["attackers"]) == 2
    # The model and data are of the test's own; what joins and attacks is in the file.
    model = mlp()
    parts = {"data": FED, "split": mo.split.by_name(model, personal=["head"])}
    same_runs(mo.resume(tmp_path / "parts", **with_settings(**parts, attackers=attackers)), whole)
    same_folders(tmp_path / "parts", tmp_path / "whole")
    refused(
        lambda: mo.resume(tmp_path / "parts", **with_settings(**parts, attackers=[0])),
        "`attackers` must be those that the run",
    )
    refused(
        lambda: mo.resume(tmp_path / "parts", **with_settings(**parts, aggregator=MEDIAN)),
        "`aggregator` must be as the run began",
    )


def test_what_is_of_ones_own_is_given_again(tmp_path):
    how = {"aggregator": mo.aggregator.Aggregator(lambda vectors, generator: vectors[0]), "rounds": 2}
    whole = two_parts(**how)
    with pytest.raises(StopHereError):
        two_parts(out=tmp_path / "run", checkpoint_every=1, callbacks=[stop_after(1)], **how)
    model = mlp()
    parts = {"data": FED, "split": mo.split.by_name(model, personal=["head"])}
    refused(
        lambda: mo.resume(tmp_path / "run", **with_settings(**parts)), "`aggregator` must be given again, got nothing"
    )
    same_runs(mo.resume(tmp_path / "run", **with_settings(**parts, aggregator=how["aggregator"])), whole)


FLIP = mo.attack.sign_flip()
WRONG = {
    "too few for trimming": ({"aggregator": mo.aggregator.trimmed_mean(byzantine=3)}, "join 6 uploads.*at least 7"),
    "too few in a cohort": ({"aggregator": mo.aggregator.krum(byzantine=1), "cohort": 4}, "join 4 .*krum, which needs"),
    "too few buckets": ({"aggregator": mo.aggregator.bucketing(size=3, then=TRIMMED)}, "at least 7. Ask more clients"),
    "a name for an aggregator": ({"aggregator": "median"}, "`aggregator` must be what moiety.aggregator makes"),
    "an attack without attackers": ({"attack": FLIP}, "`attackers` must be given with an attack, and only then"),
    "attackers without an attack": ({"attackers": 0.5}, "`attackers` must be given with an attack, and only then"),
    "all of them": ({"attack": FLIP, "attackers": range(6)}, "`attackers` must be some of the clients, got all 6"),
    "a share of all": ({"attack": FLIP, "attackers": 1.0}, "`attackers` must be a share >= 0 and < 1"),
    "a share of none": ({"attack": FLIP, "attackers": 0.05}, "some of the 6 clients, got 0.05, or 0 of them"),
    "a single name": ({"attack": FLIP, "attackers": "c1"}, "got 'c1'. Names and positions make a list"),
    "an unknown name": ({"attack": FLIP, "attackers": ["c9"]}, "the name of a client, got 'c9'"),
    "a position beyond": ({"attack": FLIP, "attackers": [6]}, "a position from 0 to 5, got 6"),
    "labels without classes": ({"attack": mo.attack.label_flip(), "attackers": [0]}, "`classes` must be given"),
    "too few classes": ({"attack": mo.attack.label_flip(classes=2), "attackers": [3]}, "got 2 with "),
}


@pytest.mark.parametrize("case", WRONG)
def test_refused_before_anything_is_written(tmp_path, case):
    options, text = WRONG[case]
    refused(lambda: two_parts(**options, out=tmp_path / "run"), text)
    assert not (tmp_path / "run").exists()


def test_refused_where_nothing_is_sent():
    model = mlp()
    wrong = {"aggregator": MEDIAN, "attack": FLIP}
    for name, value in wrong.items():
        options = {name: value} | ({"attackers": [0]} if name == "attack" else {})
        refused(
            lambda options=options: mo.fit(
                model, FED, mo.local_only(personal=0.1), **with_settings(rounds=1, **options)
            ),
            f"`{name}` must be left out for local_only, whose clients send nothing",
        )
    bare = federated([{"z": np.ones(2)}] * 2)
    task = from_functions({"u": torch.zeros(())}, lambda p, d: (p["u"] - d["z"]).square())
    call = {"split": split_of(["u"]), "rounds": 1, "attack": mo.attack.label_flip(), "attackers": [0]}
    refused(
        lambda: mo.fit(task, bare, mo.fedavg(shared=0.1), **with_settings(**call)),
        "`attack` must be one on uploads where data have no",
    )


SMALL = """
model = {name = "mlp", hidden = [8]}
split = "output_layer"

[data]
name = "digits"
clients = 6
partition = "iid"

[algorithm]
name = "fedalt"
shared = 0.5
personal = {name = "sgd", lr = 0.5, steps = 2}

[aggregator]
name = "bucketing"
size = 2

[aggregator.then]
name = "nearest_neighbour_mixing"
byzantine = 1
then = "median"

[attack]
name = "label_flip"
classes = 10

[run]
rounds = 2
engine = "sequential"
attackers = ATTACKERS
"""


def command(capsys, *words):
    from moiety.cli import main

    capsys.readouterr()
    code = main([str(word) for word in words])
    return code, capsys.readouterr()


@pytest.mark.parametrize("attackers", ["0.2", '["2"]', "[2]"])
def test_a_file_says_it(capsys, tmp_path: Path, monkeypatch, attackers):
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(SMALL.replace("ATTACKERS", attackers))
    code, output = command(capsys, "run", "small.toml", "--quiet")
    assert (code, output.err) == (0, "")
    folder = tmp_path / "runs/small"
    config = tomllib.loads((folder / "config.toml").read_text())
    inner = {"name": "nearest_neighbour_mixing", "byzantine": 1, "then": {"name": "median"}}
    assert config["aggregator"] == {"name": "bucketing", "size": 2, "then": inner}
    assert config["attack"] == {"name": "label_flip", "classes": 10}
    (name,) = config["run"]["attackers"]
    # What the folder says, run again, is the same run; and so is the file, resumed to more rounds.
    for file, out in ((folder / "config.toml", "again"), ("small.toml", "longer")):
        assert command(capsys, "run", file, "--out", out, "--quiet")[0] == 0
    same_folders(tmp_path / "again", folder)
    more = ["run", "small.toml", "--resume", "--out", "longer", "--rounds", "3"]
    assert command(capsys, *more)[0] == 0
    assert tomllib.loads(Path("longer/config.toml").read_text())["run"]["attackers"] == [name]
    code, output = command(capsys, *more, "--set", "run.attackers=[0, 1]")
    assert code == 2
    assert "`attackers` must be those that the run began with, got [0, 1]" in output.err


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("aggregator.then.then=3", "`aggregator.then.then` must be a name or a table with a name, got 3."),
        ("aggregator.then=3", "`aggregator.then` must be a name or a table with a name, got 3."),
        ("aggregator.then.then=medan", "`aggregator.then.then.name` must be one of the known names, got 'medan'."),
        ("aggregator.then.byzantin=1", "Did you mean byzantine?"),
        ("aggregator.size=0", "`size` must be >= 1, got 0."),
        ("aggregator=kurm", "`aggregator.name` must be one of the known names, got 'kurm'. Did you mean krum?"),
        ("attack.name=lable_flip", "Did you mean label_flip?"),
        ("run.attackers=nobody", "`attackers` must be a share >= 0 and < 1, or a list of clients, got 'nobody'."),
        ("run.attackers=[9]", "`client` must be a position from 0 to 5, got 9."),
        ("aggregator={name = 'trimmed_mean', byzantine = 3}", "trimmed_mean, which needs at least 7."),
    ],
)
def test_a_wrong_file_is_one_line(capsys, tmp_path, monkeypatch, change, text):
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(SMALL.replace("ATTACKERS", "0.2"))
    code, output = command(capsys, "run", "small.toml", "--set", change)
    assert code == 2
    assert text in output.err
    assert output.err.count("\n") == 1
    assert not Path("runs/small/config.toml").exists()


def test_stages_know_no_aggregator(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    head, rest = SMALL.split("[algorithm]")[0].replace('split = "output_layer"', ""), "[[stage]]\nrounds = 1\n"
    stage = rest + 'algorithm = {name = "fedavg", shared = 0.1}\n'
    for section, key in (('aggregator = "median"', "aggregator"), ("run = {attackers = 0.2}", "run.attackers")):
        Path("staged.toml").write_text(f"{section}\n{head}\n{stage}")
        code, output = command(capsys, "run", "staged.toml")
        assert code == 2
        assert f"`{key}` must be left out where there are stages" in output.err
