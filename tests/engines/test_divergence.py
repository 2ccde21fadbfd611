"""Runs that cannot be right: they stop, say in which round and why, and leave a checkpoint to go on from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import exact, federation, mlp
from oracle_problems import federated, scalar_task, split_of

import moiety as mo
from moiety.loop.divergence import DivergenceError, explain_losses
from moiety.types import Schedule

FED = federation((4, 9, 12, 7))
WARN = mo.Settings(on_divergence="warn", evaluate_every=1)
EACH = mo.Settings(evaluate_every=1)


def checkpoints(folder: Path) -> list[str]:
    return [path.name for path in (folder / "checkpoint").glob("*")]


def numbers(*targets: float) -> mo.FederatedData:
    """Clients of f(u) = (u - y)^2 / 2, one row each."""
    return federated([{"a": np.ones(1), "b": np.zeros(1), "y": np.array([float(y)])} for y in targets])


def descend(lr: float, rounds: int, **options: Any) -> mo.Run:
    """FedAvg from u = 0 with one client of target 1: u - 1 is multiplied by 1 - lr in every round."""
    algorithm = mo.fedavg(shared=mo.sgd(lr, steps=1))
    options = {"settings": EACH, "engine": "sequential", "split": split_of(["u", "v"]), **options}
    return mo.fit(scalar_task(u=0.0), numbers(1.0), algorithm, rounds=rounds, **options)


def test_a_loss_that_rises_without_end_stops_the_run(tmp_path):
    """With lr = 101 the loss of round t is 1e4^(t - 1) / 2; 500 is the limit, and round 4 is the third above it."""
    message = (
        r"^`train_loss` must be at most 5e\+02, 1000 times the first, got 5e\+03, 5e\+07, 5e\+11 in rounds 2, 3, 4\. "
        r"Try smaller .* There is a checkpoint of round 1 in "
    )
    with pytest.raises(DivergenceError, match=message) as error:
        descend(101.0, 10, out=tmp_path / "run")
    assert "\n" not in str(error.value)
    assert checkpoints(tmp_path / "run") == ["round-00000001"]
    arguments = {"model": scalar_task(u=0.0), "data": numbers(1.0), "split": split_of(["u", "v"])}
    with pytest.warns(UserWarning, match="^`train_loss` must be at most"):
        again = mo.resume(tmp_path / "run", settings=WARN, rounds=6, **arguments)
    assert float(again.shared_parameters()["u"]) == pytest.approx(1 - 1e12, rel=1e-12)


def test_a_loss_that_was_told_to_go_on_goes_on():
    with pytest.warns(UserWarning, match="^`train_loss` must be at most") as records:
        run = descend(101.0, 8, settings=WARN)
    assert len(records) == 1
    assert float(run.shared_parameters()["u"]) == pytest.approx(1 - 1e16, rel=1e-12)
    assert "e+3" in repr(run)
    assert len(repr(run)) < 80


def rows(*losses: float | None) -> list[dict[str, Any]]:
    return [{"round": 10 * i, "train_loss": loss} for i, loss in enumerate(losses, 1)]


@pytest.mark.parametrize(
    ("losses", "stops"),
    [
        ((1.0, 1001, 1002, 1003), True),
        ((1.0, 1000, 1002, 1003), False),  # not above
        ((1.0, 1001, 1003, 1002), False),  # not rising
        ((1.0, 1001, 1001, 1002), False),
        ((1.0, 1001, 1002), False),  # two
        ((1.0, 1001, 1002, 3, 1003, 1004), False),
        ((1e-9, 1.001, 1.002, 1.003), True),  # a first loss that is small counts as 1e-3
        ((1e-9, 0.9, 0.95, 0.99), False),
        ((1.0, -1, 1001, 1002, 1003), False),  # a loss that may be negative has no scale
        ((1.0, 1001, None, 1002, 1003), False),
        ((None, 1.0, 1001, 1002, 1003), True),
        ((5.0, 4.0, 3.0, 2.0), False),
        ((), False),
    ],
)
def test_the_rule_for_losses(losses, stops):
    assert (explain_losses(rows(*losses)) is not None) == stops


CLOCKS = {
    "none": None,
    "synchronous": mo.clock.synchronous(compute=mo.clock.exponential(1.0)),
    "asynchronous": mo.clock.asynchronous(active=2),
    "dispatch": mo.clock.delayed(down=1, up=1),
    "arrival": mo.clock.delayed(up=2, at="arrival"),
}


def spoil(algorithm: mo.Algorithm, at: int, part: str) -> mo.Algorithm:
    """The algorithm with an aggregate or a server that is not finite the ``at``-th time it moves."""
    count = 0

    def spoil_once(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        good = getattr(algorithm, part)(*arguments)
        shared = good.shared if part == "server_update" else good
        shared["hidden1.bias"] = shared["hidden1.bias"] + (torch.inf if count == at else 0)
        return good

    return replace(algorithm, **{part: spoil_once})


@pytest.mark.parametrize("part", ["aggregator", "server_update"])
@pytest.mark.parametrize("clock", CLOCKS)
def test_a_server_that_is_not_finite_stops_the_run_before_it_moves(tmp_path, clock, part):
    """The checkpoint is of the last good round: what goes on from there is as if nothing had happened."""
    model = mlp()
    how = mo.fedalt(shared=mo.sgd(0.1, steps=2), personal=mo.sgd(0.1, steps=2))
    settings = mo.Settings(clock=CLOCKS[clock], checkpoint_every=100, evaluate_every=2)
    cohort = None if clock == "asynchronous" else 2
    options = {"split": mo.split.output_layer(model), "engine": "sequential", "cohort": cohort, "settings": settings}
    fine = mo.fit(model, FED, how, rounds=9, **options)
    late = {"dispatch": 1, "arrival": 2}.get(clock, 0)  # rounds in which nothing arrives
    name = {"aggregator": "aggregate", "server_update": "server"}[part]
    with pytest.raises(DivergenceError) as error:
        mo.fit(model, FED, spoil(how, 6 - late, part), rounds=9, **options, out=tmp_path / "run")
    text = str(error.value)
    assert text.startswith(f"`{name}` must be finite, got a NaN or an infinity in ")
    assert "hidden1.bias in round 6 (largest upload: " in text
    assert ", of client c" in text
    assert f"There is a checkpoint of round 5 in {tmp_path / 'run'}." in text
    run = mo.resume(tmp_path / "run", model=model, data=FED)
    assert exact(run.shared_parameters()) == exact(fine.shared_parameters())
    assert [exact(run.parameters(c)) for c in range(4)] == [exact(fine.parameters(c)) for c in range(4)]
    assert run.ledger == fine.ledger
    assert [{**row, "seconds": 0} for row in run.history] == [{**row, "seconds": 0} for row in fine.history]


def test_half_precision_with_adam_on_the_server_stops_in_its_first_round(tmp_path):
    """The epsilon of Adam, 1e-8, is 0 in float16, and 0 / 0 is no number."""
    model = mlp().half()
    algorithm = mo.fedavg(shared=0.1, server=mo.server.adam(lr=0.1))
    with pytest.raises(DivergenceError, match=r"^`server` must be finite, .* in round 1 .* There is no checkpoint in "):
        mo.fit(model, FED, algorithm, rounds=3, engine="sequential", out=tmp_path / "run")
    with pytest.warns(UserWarning, match="^`server` must be finite"):
        mo.fit(model, FED, algorithm, rounds=1, engine="sequential", settings=WARN)


def blow_up(*rounds: int) -> mo.Algorithm:
    """FedAvg whose clients overflow in these rounds, counted from 1."""
    schedule = Schedule(lambda t, total: 1e300 if t + 1 in rounds else 1.0)
    return mo.fedavg(shared=mo.sgd(0.5, steps=2), schedule=schedule)


@pytest.mark.filterwarnings("ignore:.updates. must be finite for some client")
def test_three_rounds_without_anybody_stop_the_run(tmp_path):
    options = {"split": split_of(["u", "v"]), "engine": "sequential", "settings": EACH}
    task, data = scalar_task(u=0.0), numbers(1.0, 3.0)
    message = (
        r"^`updates` must be finite for some client of a round, got none in rounds 3 to 5 "
        r"\(client-0 not finite: .*loss, client-1 not finite: .*\)\. Try smaller .* "
        r"There is a checkpoint of round 4 with the models of round 2 in "
    )
    with pytest.raises(DivergenceError, match=message):
        mo.fit(task, data, blow_up(1, 3, 4, 5), rounds=9, out=tmp_path / "run", **options)
    # The rounds that came to nothing changed nothing: the server is that of round 2, in which u went to 2 * 3/4.
    assert checkpoints(tmp_path / "run") == ["round-00000004"]
    again = mo.resume(tmp_path / "run", model=task, data=data, split=options["split"], algorithm=blow_up(), rounds=5)
    assert float(again.shared_parameters()["u"]) == 2 * (1 - 1 / 4**2)
    mo.fit(task, data, blow_up(1, 2, 4, 5), rounds=6, **options)


@pytest.mark.filterwarnings("ignore:.updates. must be finite for some client")
def test_no_checkpoint_is_written_while_it_may_be_about_to_stop(tmp_path):
    """So that a run that is killed then stops in the same round as one that is not."""
    listings = []

    def watch(run, record):
        listings.append(checkpoints(tmp_path / "run"))

    options = {"split": split_of(["u", "v"]), "engine": "sequential", "settings": EACH}
    data = numbers(1.0, 3.0)
    mo.fit(scalar_task(u=0.0), data, blow_up(2, 3, 5), rounds=5, out=tmp_path / "run", callbacks=[watch], **options)
    assert listings == [[f"round-{r:08d}"] for r in (1, 1, 1, 4, 5)]


@pytest.mark.filterwarnings("ignore:.updates. must be finite for some client")
def test_attackers_that_send_nan_do_not_stop_a_run():
    """Three of four clients attack: rounds of one client often have no other."""
    settings = mo.Settings(attack=mo.attack.not_finite(), attackers=[0, 1, 2])
    run = mo.fit(mlp(), FED, mo.fedavg(shared=0.1), rounds=12, cohort=1, engine="sequential", settings=settings)
    assert sum(len(row["dropped"]) for row in run.history) > 6


def test_who_was_dropped_and_why_is_in_the_record(tmp_path):
    records = []
    clients = [{"a": np.ones(1), "b": np.zeros(1), "y": np.array([y])} for y in (1.0, 1e200)]
    mo.fit(
        scalar_task(u=0.0),
        federated(clients, names=["ann", "eve"]),
        mo.fedavg(shared=mo.sgd(0.5, steps=2)),
        split=split_of(["u", "v"]),
        rounds=2,
        engine="sequential",
        callbacks=[lambda run, record: records.append(record)],
        out=tmp_path / "run",
    )
    assert [(r.dropped, r.reasons, r.left_out) for r in records] == [(("eve",), ("not finite: loss",), False)] * 2
    lines = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert [row["dropped"] for row in lines] == [["1:eve"], ["2:eve"]]
    assert [row["dropped_reasons"] for row in lines] == [["not finite: loss"]] * 2


FILE = """
model = "linear"
split = "nothing"
[data]
name = "digits"
clients = 4
partition = "iid"
[algorithm]
name = "fedavg"
shared = {name = "sgd", lr = 1e30, steps = 3}
[run]
rounds = 5
loss = "mse"
engine = "sequential"
"""


@pytest.mark.filterwarnings("ignore:.updates. must be finite for some client")
def test_the_command_exits_with_2(capsys, tmp_path, monkeypatch):
    from moiety.cli import main

    monkeypatch.chdir(tmp_path)
    Path("wild.toml").write_text(FILE)
    assert main(["run", "wild.toml", "--quiet"]) == 2
    error = capsys.readouterr().err
    assert "`updates` must be finite for some client of a round, got none in rounds 1 to 3" in error
    assert error.count("\n") == 1
