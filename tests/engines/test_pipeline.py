"""Stages that go on from each other: numbers by hand, by plain fractions, by torch's own SGD, and limit cases."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import batch_norm_net, exact, federation, mlp, without_seconds
from flat_options import flat
from oracle_problems import federated, scalar_task, split_of
from run_settings import with_settings
from safetensors.torch import load_file
from torch import nn

import moiety as mo

BOTH, V = split_of(shared=("u", "v")), split_of(shared=("u",), personal=("v",))
FED = federation()


def rows(*values: tuple[float, float, float]) -> dict[str, np.ndarray]:
    return {name: np.array(column, dtype=float) for name, column in zip("aby", zip(*values, strict=True), strict=True)}


def uv(run: mo.Run, client: int) -> tuple[float, float]:
    values = run.parameters(client)
    return values["u"].item(), values["v"].item()


class Record(mo.callbacks.Callback):
    """Whom each stage asked."""

    def __init__(self) -> None:
        self.cohorts: dict[str, list[tuple[int, ...]]] = {}

    def on_start(self, run: mo.Run) -> None:
        self.cohorts[f"{len(self.cohorts) + 1}-{run.config['algorithm']['name']}"] = []

    def on_round(self, run: mo.Run, record: Any) -> None:
        list(self.cohorts.values())[-1].append(record.cohort)


def test_three_stages_by_hand():
    """f(u, v) = (a u + b v - y)^2 / 2; client 0 has the row (a, b, y) = (1, 1, 2), client 1 the row (1, 2, 8).

    (a) FedAvg, rate 1/2, one step from u = 0, v = 0. Residuals a u + b v - y: -2 and -8. Client 0: (u, v) =
        (1, 1); client 1: (4, 8). Mean: u = 5/2, v = 9/2.
    (b) FedAlt, v personal, rates 1/4, one step each, from there on both clients. Residuals 5/2 + 9/2 - 2 = 5 and
        5/2 + 9 - 8 = 7/2. v_0 = 9/2 - 5/4 = 13/4, v_1 = 9/2 - 2 (7/2) / 4 = 11/4. Then u: residuals
        5/2 + 13/4 - 2 = 15/4 and 5/2 + 11/2 - 8 = 0; u_0 = 5/2 - 15/16 = 25/16, u_1 = 5/2. Mean u = 65/32.
    (c) Finetuning of v, rate 1/2, one step, u fixed. Client 0 from its own 13/4: residual 65/32 + 13/4 - 2 = 105/32,
        v_0 = 13/4 - 105/64 = 103/64. Client 1 from its own 11/4: 65/32 + 11/2 - 8 = -15/32, v_1 = 11/4 + 15/32 =
        103/32.

    All are sums of powers of two, so the numbers are exact.
    """
    data = federated([rows((1, 1, 2)), rows((1, 2, 8))])
    stages = [
        mo.Stage(mo.fedavg(shared=mo.sgd(0.5, steps=1)), rounds=1, split=BOTH),
        mo.Stage(mo.fedalt(shared=mo.sgd(0.25, steps=1), personal=mo.sgd(0.25, steps=1)), rounds=1, split=V),
        mo.Stage(mo.finetune(personal=mo.sgd(0.5, steps=1)), rounds=1),
    ]
    a, b, c = mo.pipeline(stages, scalar_task(u=0.0), data, engine="sequential")
    assert uv(a, 0) == uv(a, 1) == (5 / 2, 9 / 2)
    assert (uv(b, 0), uv(b, 1)) == ((65 / 32, 13 / 4), (65 / 32, 11 / 4))
    assert (uv(c, 0), uv(c, 1)) == ((65 / 32, 103 / 64), (65 / 32, 103 / 32))
    # The shared model alone has v as (a) left it, in (c) too.
    assert {n: p.item() for n, p in c.shared_parameters().items()} == {"u": 65 / 32, "v": 9 / 2}
    # What is scored before any finetuning is what stage (b) ended with: f with those numbers, on the training rows.
    losses = [((Fraction(105, 32)) ** 2) / 2, (Fraction(-15, 32) ** 2) / 2]
    assert [row["loss"] for row in b.clients] == [float(each) for each in losses]


class Plain:
    """The three stages in fractions, one row per client, from the paper's pseudocode and nothing of ours."""

    def __init__(self, rows: list[tuple[int, int, int]]) -> None:
        self.rows = [tuple(Fraction(n) for n in row) for row in rows]
        self.u = self.v = Fraction(0)
        self.own: dict[int, Fraction] = {}

    def residual(self, i: int, u: Fraction, v: Fraction) -> Fraction:
        a, b, y = self.rows[i]
        return a * u + b * v - y

    def fedavg(self, cohort: tuple[int, ...], lr: Fraction) -> None:
        steps = [(self.rows[i][0], self.rows[i][1], self.residual(i, self.u, self.v)) for i in cohort]
        self.u -= lr * sum(a * r for a, _, r in steps) / len(cohort)
        self.v -= lr * sum(b * r for _, b, r in steps) / len(cohort)

    def fedalt(self, cohort: tuple[int, ...], lr: Fraction) -> None:
        total = Fraction(0)
        for i in cohort:
            self.finetune((i,), lr)
            total += self.rows[i][0] * self.residual(i, self.u, self.own[i])
        self.u -= lr * total / len(cohort)

    def finetune(self, cohort: tuple[int, ...], lr: Fraction) -> None:
        for i in cohort:
            v = self.own.get(i, self.v)
            self.own[i] = v - lr * self.rows[i][1] * self.residual(i, self.u, v)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("kept", [True, False], ids=["folder", "memory"])
def test_with_clients_that_are_never_asked(tmp_path, engine, kept):
    """Of 5 clients 2 a round: who was not asked in (b) starts (c) with v as (a) left it, the others with their own."""
    values = [(1, 1, 2), (2, 1, -3), (1, 2, 5), (1, -1, 4), (-1, 2, 1)]
    lr = Fraction(1, 16)
    rates = {"shared_lr": 1 / 16, "personal_lr": 1 / 16, "shared_steps": 1, "personal_steps": 1}
    stages = [
        mo.Stage(mo.fedavg(shared=mo.sgd(1 / 16, steps=1)), rounds=3, cohort=3, split=BOTH),
        mo.Stage(flat(mo.fedalt, **rates), rounds=2, cohort=2, split=V),
        mo.Stage(mo.finetune(personal=mo.sgd(1 / 16, steps=1)), rounds=2, cohort=4),
    ]
    record, plain = Record(), Plain(values)
    data = federated([rows(row) for row in values])
    out = tmp_path / "out" if kept else None
    runs = mo.pipeline(stages, scalar_task(u=0.0), data, engine=engine, seed=4, out=out, callbacks=[record])
    assert list(record.cohorts) == ["1-fedavg", "2-fedalt", "3-finetune"]
    for run, name, train in zip(runs, record.cohorts, (plain.fedavg, plain.fedalt, plain.finetune), strict=True):
        for cohort in record.cohorts[name]:
            train(cohort, lr)
        for i in range(5):
            assert uv(run, i) == pytest.approx((float(plain.u), float(plain.own.get(i, plain.v))), rel=1e-12), name
    clients = {i for cohort in record.cohorts["2-fedalt"] for i in cohort}
    assert 0 < len(clients) < 5  # else the test would not see what it is about


def plain(run: mo.Run) -> list[dict[str, Any]]:
    return [exact(run.parameters(i)) for i in range(len(FED))]


@pytest.mark.parametrize(
    ("algorithm", "split", "model"),
    [
        (lambda: mo.fedavg(shared=mo.sgd(0.1, epochs=2, batch_size=5, shuffle=False)), None, mlp),
        (lambda: mo.fedavg(shared=mo.sgd(0.1, batch_size=5, shuffle=False)), None, batch_norm_net),
        (
            lambda: mo.fedalt(shared=mo.sgd(0.1, shuffle=False), personal=mo.sgd(0.2, shuffle=False)),
            "output_layer",
            mlp,
        ),
        (lambda: mo.fedsim(shared=mo.sgd(0.1, shuffle=False), personal=0.2), "norms", batch_norm_net),
        (lambda: mo.local_only(personal=mo.sgd(0.1, shuffle=False)), None, mlp),
    ],
    ids=["fedavg", "fedavg, own running statistics", "fedalt", "fedsim, own norms", "local"],
)
def test_k_and_k_rounds_are_2k(algorithm, split, model):
    """Nothing but cohorts, shuffles, schedules and server optimisers knows the number of a round: all absent here."""
    options = {"engine": "sequential", "seed": 1}
    half = mo.Stage(algorithm(), rounds=2, split=split)
    _, second = mo.pipeline([half, half], model(), FED, **with_settings(**options))
    (whole,) = mo.pipeline([mo.Stage(algorithm(), rounds=4, split=split)], model(), FED, **with_settings(**options))
    assert plain(second) == plain(whole)
    last, expected = second.clients, whole.clients
    assert [(r["client"], r["loss"], r["metric"]) for r in last] == [
        (r["client"], r["loss"], r["metric"]) for r in expected
    ]


def test_one_stage_is_a_fit():
    algorithm = mo.fedalt(shared=0.1, personal=0.2)
    options = {"rounds": 2, "cohort": 3, "evaluate_every": 1}
    (run,) = mo.pipeline(
        [mo.Stage(algorithm, split="output_layer", **options)], mlp(), FED, seed=2, engine="sequential"
    )
    split = mo.split.output_layer(mlp())
    single = mo.fit(mlp(), FED, algorithm, **with_settings(split=split, seed=2, engine="sequential", **options))
    assert plain(run) == plain(single)
    assert without_seconds(run.history) == without_seconds(single.history)


def body() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def test_adapters_are_put_on_the_trained_model_the_same_for_all_and_go_on(tmp_path):
    """The paper's (b) with adapters, and (c) against torch's own SGD on each client's exported model."""
    spec = {"name": "adapters", "width": 3, "targets": ["0"]}
    stages = [
        mo.Stage(mo.fedavg(shared=mo.sgd(0.3, epochs=2)), rounds=2),
        mo.Stage(mo.fedalt(shared=0.1, personal=0.3), rounds=1, cohort=3, split=spec),
        mo.Stage(mo.finetune(personal=mo.sgd(0.2, epochs=3, batch_size=100)), rounds=1),
    ]
    a, b, c = mo.pipeline(stages, body(), FED, seed=1, engine="sequential", out=tmp_path / "out")
    values, fresh = a.shared_parameters(), mo.split.adapters(body(), **{k: spec[k] for k in ("width", "targets")})
    first = load_file(tmp_path / "out/2-fedalt/initial.safetensors")
    assert not torch.equal(values["0.weight"], dict(body().named_parameters())["0.weight"])
    assert exact({n: first[n] for n in values}) == exact(values)
    adapters = {n: p for n, p in fresh.model.named_parameters() if n not in values}
    assert len(adapters) == 4
    assert exact({n: first[n] for n in adapters}) == exact(adapters)
    # One value for all before they were trained, and then each its own, for the three clients that were asked.
    assert not (tmp_path / "out/2-fedalt/start.safetensors").exists()
    own = load_file(tmp_path / "out/3-finetune/start.safetensors")
    assert len(own["clients"]) == 3
    for i in range(len(FED)):
        module = b.export(i).train()
        trainable = [p for n, p in module.named_parameters() if "adapter" in n]
        optimiser = torch.optim.SGD(trainable, lr=0.2)
        data = FED.client(i)
        for _ in range(3):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(module(torch.from_numpy(data["x"])), torch.from_numpy(data["y"]))
            loss.backward()
            optimiser.step()
        parameters = dict(c.export(i).named_parameters())
        for name, expected in module.named_parameters():
            torch.testing.assert_close(parameters[name], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("split", "names"),
    [
        ({"name": "additive", "local_model": {"name": "linear", "inputs": 4, "outputs": 3}}, "shared.{}"),
        ({"name": "full", "pull": 0.1}, "{}"),
        ({"name": "full", "pull": 0.1}, "centre/{}"),
        ({"name": "lora", "rank": 2}, "{}"),
    ],
    ids=["additive", "full", "centre", "lora"],
)
def test_a_split_with_a_module_of_its_own_begins_with_the_trained_values(tmp_path, split, names):
    """Whatever a split calls the parameters of the model it was made from; what is new is the same for all clients."""
    stages = [
        mo.Stage(mo.fedavg(shared=0.3), rounds=1),
        mo.Stage(mo.fedalt(shared=0.1, personal=0.3), rounds=1, cohort=2, split=split),
        mo.Stage(mo.finetune(personal=0.1), rounds=1, split=split),
    ]
    a, b, c = mo.pipeline(stages, mlp(), FED, engine="sequential", out=tmp_path / "out")
    first = load_file(tmp_path / "out/2-fedalt/initial.safetensors")
    for name, value in a.shared_parameters().items():
        key = names.format(name.replace(".", "/") if "/" in names else name)
        assert torch.equal(first[key], value)
    owners = b._loop.progress.store.owners()
    assert len(owners) == 2
    assert load_file(tmp_path / "out/3-finetune/start.safetensors")["clients"].tolist() == owners
    assert plain(mo.resume(tmp_path / "out", data=FED)[2]) == plain(c)


def test_a_split_on_top_of_adapters_keeps_them(tmp_path):
    """The second stage personalises the output layer of the model with adapters in it; only the pipeline knows how."""
    algorithm = mo.fedalt(shared=0.1, personal=0.3)
    stages = [
        mo.Stage(algorithm, rounds=1, split=lambda model: mo.split.adapters(model, targets=["hidden1"])),
        mo.Stage(algorithm, rounds=1, split="output_layer"),
    ]
    model = mlp()
    first, second = mo.pipeline(stages, model, FED, engine="sequential", out=tmp_path / "out")
    assert first.parameters(0).keys() == second.parameters(0).keys()
    assert any("adapter" in name for name in second.parameters(0))
    assert second.config["model"] == {"own": type(model).__name__}
    again = mo.resume(tmp_path / "out", data=FED, stages=stages)
    assert plain(again[1]) == plain(second)
    with pytest.raises(mo.MoietyError, match="stages"):
        mo.resume(tmp_path / "out", data=FED)


@pytest.mark.parametrize("where", ["nothing before", "its own", "the same table"])
def test_which_split_a_stage_has(where):
    """Without a split: that of the stage before where it has something personal that the algorithm can train."""
    alt = mo.fedalt(shared=0.1, personal=0.1)
    avg = mo.fedavg(shared=0.1)
    if where == "nothing before":
        with pytest.raises(mo.MoietyError, match=r"`stage.2.split` must be given for fedalt, got nothing"):
            mo.pipeline([mo.Stage(avg, rounds=1), mo.Stage(alt, rounds=1)], mlp(), FED)
        return
    third = {"its own": mo.Stage(avg, rounds=1), "the same table": mo.Stage(alt, rounds=1, split={"name": "norms"})}
    split = "output_layer" if where == "its own" else "norms"
    model = mlp() if where == "its own" else batch_norm_net()
    stages = [mo.Stage(alt, rounds=1, split=split), mo.Stage(mo.finetune(personal=0.1), rounds=1), third[where]]
    runs = mo.pipeline(stages, model, FED, engine="sequential")
    splits = [run._loop.problem.split for run in runs]
    assert splits[0] is splits[1]
    assert (splits[2] is splits[1]) == (where == "the same table")
    assert splits[2].spec["name"] == ("nothing" if where == "its own" else "norms")


def test_the_model_given_is_not_changed():
    model = mlp()
    before = exact(dict(model.named_parameters()))
    mo.pipeline([mo.Stage(mo.fedavg(shared=0.5), rounds=1)] * 2, model, FED, engine="sequential")
    assert exact(dict(model.named_parameters())) == before
