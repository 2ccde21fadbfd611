"""The rows that a run gives, by hand."""

import json
from fractions import Fraction as Q

import numpy as np
import pytest
import torch
from oracle_problems import federated, image_clients, split_of
from torch import nn

import moiety as mo
from moiety.task import from_functions
from moiety.types import Metric

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorised"])


def columns(*rows):
    return dict(zip("aby", np.array(rows, dtype=float).T, strict=True))


TRAIN = [
    columns((1, 2, 3)),
    columns((2, 1, 1), (0, 1, 3), (2, 1, 1), (0, 1, 3)),
    columns((0, 0, 0)),
]
TEST = [columns((1, 1, 1)), columns((1, 0, 0), (0, 1, 1)), None]


def task():
    def predict(p, d):
        return d["a"] * p["u"] + d["b"] * p["v"]

    init = {"u": torch.tensor(1.0, dtype=torch.float64), "v": torch.tensor(0.0, dtype=torch.float64)}
    error = Metric("error", False, lambda output, d: (output - d["y"]).abs())
    return from_functions(init, lambda p, d: (predict(p, d) - d["y"]).square() / 2, predict, error)


@ENGINES
def test_rows_and_summary_by_hand(engine):
    """One round of FedAlt on the two clients of tests/oracles/test_hand_rounds.py and a third that pulls nowhere.

    There: u_1 = 39/32, v_1 = 3/4, u_2 = 275/512, v_2 = 15/64; the third keeps u = 1, v = 0. Weights 1 : 4 : 1 give
    u = (624 + 1100 + 512) / 512 / 6 = 559/768. The metric is the absolute error, so less is better.

    Client 1, test row (1, 1, 1): personal |559/768 + 576/768 - 1| = 367/768, shared alone (v = 0) 209/768: gain
    -158/768, hurt. Client 2, rows (1, 0, 0) and (0, 1, 1): personal 559/768 and 49/64 = 588/768, mean 1147/1536;
    shared alone 559/768 and 1, mean 1327/1536: gain 180/1536. Client 3 has no test rows.
    """
    algorithm = mo.fedalt(
        shared=mo.sgd(1 / 4, steps=2, batch_size=4, shuffle=False),
        personal=mo.sgd(1 / 8, steps=2, batch_size=4, shuffle=False),
    )
    data = federated(TRAIN, TEST, names=["ann", "bob", "eve"])
    run = mo.fit(task(), data, algorithm, split=split_of(["u"], ["v"]), rounds=1, engine=engine)
    one, two, three = run.clients
    exact = {"rel": 1e-12}
    assert (one["client"], one["n"], one["n_test"]) == ("ann", 1, 1)
    assert one["metric"] == pytest.approx(float(Q(367, 768)), **exact)
    assert one["loss"] == pytest.approx(float(Q(367, 768) ** 2 / 2), **exact)
    assert one["shared_metric"] == pytest.approx(float(Q(209, 768)), **exact)
    assert one["shared_loss"] == pytest.approx(float(Q(209, 768) ** 2 / 2), **exact)
    assert one["gain"] == pytest.approx(float(Q(-158, 768)), **exact)
    assert one["hurt"] is True
    assert (two["client"], two["n"], two["n_test"]) == ("bob", 4, 2)
    assert two["metric"] == pytest.approx(float(Q(1147, 1536)), **exact)
    assert two["loss"] == pytest.approx(float((Q(559, 768) ** 2 + Q(588, 768) ** 2) / 4), **exact)
    assert two["shared_metric"] == pytest.approx(float(Q(1327, 1536)), **exact)
    assert two["gain"] == pytest.approx(float(Q(180, 1536)), **exact)
    assert two["hurt"] is False
    assert (three["client"], three["n"], three["n_test"], three["hurt"]) == ("eve", 1, 0, False)
    assert all(np.isnan(three[k]) for k in ("loss", "metric", "shared_loss", "shared_metric", "gain"))
    row = run.history[-1]
    assert row["part"] == "test"
    assert row["metric_name"] == "error"
    assert row["metric"] == pytest.approx(float((Q(367, 768) + 2 * Q(1147, 1536)) / 3), **exact)
    assert row["metric_unweighted"] == pytest.approx(float((Q(734, 1536) + Q(1147, 1536)) / 2), **exact)
    assert row["worst_decile"] == pytest.approx(float(Q(1147, 1536)), **exact)
    assert (row["hurt"], row["helped"], row["clients"]) == (1, 1, 2)


@ENGINES
def test_scores_are_those_of_the_exported_models(engine):
    """More test rows than fit one batch of evaluation: the means over a client's rows by the plain module."""
    sizes = (300, 1, 2000, 40)
    net = mo.models.mlp(4, 3, hidden=(6,), seed=1)
    data = federated(image_clients([5, 3, 8, 2]), image_clients(sizes, seed=5))
    algorithm = mo.fedalt(shared=0.5, personal=0.5)
    run = mo.fit(net, data, algorithm, split=mo.split.output_layer(net), rounds=2, engine=engine)
    shared = run.export()
    for client, row in enumerate(run.clients):
        test = data.client(client, "test")
        x, y = torch.tensor(test["x"]), torch.tensor(test["y"])
        for module, prefix in ((run.export(client), ""), (shared, "shared_")):
            with torch.no_grad():
                output = module(x)
            assert row[f"{prefix}loss"] == pytest.approx(float(nn.functional.cross_entropy(output, y)), rel=1e-4)
            right = float((output.argmax(1) == y).float().mean())
            assert row[f"{prefix}metric"] == pytest.approx(right, abs=1.5 / len(y) * (len(y) > 1))
        assert row["n_test"] == sizes[client]


def test_the_shared_model_alone_has_the_first_personal_part():
    net = mo.models.mlp(4, 3, hidden=(6,), seed=1)
    data = federated(image_clients([5, 3]))
    run = mo.fit(
        net,
        data,
        mo.fedsim(shared=0.5, personal=0.5),
        split=mo.split.output_layer(net),
        rounds=2,
        engine="sequential",
    )
    shared, mine, other = run.shared_parameters(), run.parameters(0), run.parameters(1)
    for name, first in net.named_parameters():
        if name.startswith("head"):
            assert torch.equal(shared[name], first)
            assert not torch.equal(mine[name], first)
            assert not torch.equal(mine[name], other[name])
        else:
            assert torch.equal(shared[name], mine[name])
            assert torch.equal(mine[name], other[name])
            assert not torch.equal(shared[name], first)


@ENGINES
def test_a_client_never_asked_is_scored_with_the_first_personal_part(engine):
    """Its personal model is the shared model alone, so its gain is 0."""
    data = federated(TRAIN[:2], TEST[:2])
    algorithm = mo.fedalt(shared=1 / 4, personal=1 / 8)
    records = []
    run = mo.fit(
        task(),
        data,
        algorithm,
        split=split_of(["u"], ["v"]),
        rounds=1,
        cohort=1,
        engine=engine,
        callbacks=[lambda run, record: records.append(record)],
    )
    (client,) = records[0].cohort
    other = run.clients[1 - client]
    assert other["gain"] == 0.0
    assert other["metric"] == other["shared_metric"]
    assert run.clients[client]["gain"] != 0.0


def test_what_is_evaluated_on():
    data = federated(TRAIN[:2])
    run = mo.fit(task(), data, mo.fedavg(shared=0.1), split=split_of(["u", "v"]), rounds=1, engine="sequential")
    assert run.history[-1]["part"] == "train"
    assert [row["n_test"] for row in run.clients] == [1, 4]


def test_a_client_is_scored_on_its_own_rows_only():
    """BatchNorm without running statistics normalises by the batch even in evaluation mode.

    A client's score must come from its own rows, not from a batch that it shares with others. x is 0, 2 for one
    client and 10, 12 for the other: each is normalised to -1, 1 within its client (eps aside), so predictions -1, 1
    have error 0.
    """
    net = nn.Sequential(
        nn.BatchNorm1d(1, affine=False, track_running_stats=False), nn.Linear(1, 1, bias=False)
    ).double()
    with torch.no_grad():
        net[1].weight.fill_(1.0)
    clients = [{"x": np.array([[0.0], [2]]) + k, "y": np.array([[-1.0], [1]])} for k in (0, 10)]
    run = mo.fit(net, federated(clients, clients), mo.fedavg(shared=1e-9), rounds=1, engine="sequential")
    assert [row["shared_loss"] for row in run.clients] == pytest.approx([0, 0], abs=1e-6)


def overflowing(engine, metric, **options):
    """A run whose first client has a test row of infinite loss.

    The second has more rows, so that the vectorised engine pads.
    """
    huge, fine = columns((1, 1, 1e200)), columns((1, 1, 1), (1, 1, 1), (1, 1, 1))
    work = task() if metric == "error" else from_functions(task().init, lambda p, d: task().loss(p, d)[0])
    algorithm = mo.fedalt(shared=0.1, personal=0.1)
    split, data = split_of(["u"], ["v"]), federated([fine, fine], [huge, fine])
    return mo.fit(work, data, algorithm, split=split, rounds=1, engine=engine, **options)


@ENGINES
def test_a_loss_that_overflows_is_infinite_with_either_engine(engine):
    run = overflowing(engine, "error")
    assert run.clients[0]["loss"] == run.clients[0]["shared_loss"] == float("inf")
    assert np.isfinite(run.clients[1]["loss"])


def test_a_metric_that_overflows_is_no_reason_for_a_warning():
    """Infinity minus infinity has no sign: the gain is NaN, silently."""
    run = overflowing("sequential", "loss")
    assert np.isnan(run.clients[0]["gain"])
    assert run.clients[0]["hurt"] is False


def test_the_history_of_a_loss_that_overflows_is_json(tmp_path):
    """JSON has no NaN and no Infinity."""
    overflowing("sequential", "error", out=tmp_path / "run")

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
