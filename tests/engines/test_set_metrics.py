"""Runs with metrics of sets: each client's and the pooled value against scikit-learn, from exported models."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn
from torch import nn

import moiety as mo
from moiety.engines.processes import Processes

NAMES = ["auroc", "accuracy", "f1"]


def make_data(one_class=True):
    """Six clients with 24 rows each; the last has one class alone."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(144, 3))
    sites = np.repeat(np.arange(6), 24)
    y = ((x[:, 0] + rng.normal(size=144) > 0) ^ (sites % 2 == 1)).astype(int)
    if one_class:
        y[sites == 5] = 0
    return mo.data.from_arrays({"x": x, "y": y}, client=sites, test=0.5, seed=0)


def train(engine, fed=None, **options):
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    split = mo.split.by_name(model, personal=["bias"])
    algorithm = mo.fedalt(shared=0.3, personal=0.3)
    return mo.fit(
        model,
        fed or make_data(),
        algorithm,
        **{"split": split, "rounds": 3, "metric": NAMES, "engine": engine, **options},
    )


@pytest.fixture(scope="module")
def run():
    return train("sequential")


def outputs_of(run, client):
    rows = make_data().at(client, "test")
    with torch.no_grad():
        return run.export(client)(torch.from_numpy(rows["x"])), rows["y"]


def test_every_client_and_all_rows_together(run):
    pooled = []
    for client, row in enumerate(run.clients):
        output, y = outputs_of(run, client)
        p, guess = output.softmax(1)[:, 1], output.argmax(1)
        pooled.append((p, guess, torch.from_numpy(y)))
        assert row["accuracy"] == pytest.approx(sklearn.accuracy_score(y, guess))
        if client == 5:
            assert math.isnan(row["auroc"])
            assert math.isnan(row["metric"])
            assert row["weight"] == 0
        else:
            assert row["auroc"] == row["metric"] == pytest.approx(sklearn.roc_auc_score(y, p), abs=1e-6)
            assert row["f1"] == pytest.approx(sklearn.f1_score(y, guess), abs=1e-6)
            assert row["gain"] == row["auroc"] - row["shared_auroc"]
    p, guess, y = (torch.cat(parts) for parts in zip(*pooled, strict=True))
    last = run.history[-1]
    assert last["auroc_pooled"] == pytest.approx(sklearn.roc_auc_score(y, p), abs=1e-6)
    assert last["f1_pooled"] == pytest.approx(sklearn.f1_score(y, guess), abs=1e-6)
    assert last["metric_name"] == "auroc"
    assert last["auroc_undefined"] == 1
    assert last["clients"] == 5
    assert last["metric"] == pytest.approx(np.mean([row["auroc"] for row in run.clients[:5]]))


def test_the_shared_model_is_scored_alike(run):
    rows = make_data().at(2, "test")
    with torch.no_grad():
        output = run.export()(torch.from_numpy(rows["x"]))
    auroc = sklearn.roc_auc_score(rows["y"], output.softmax(1)[:, 1])
    assert run.clients[2]["shared_auroc"] == run.clients[2]["shared_metric"] == pytest.approx(auroc, abs=1e-6)


@pytest.mark.parametrize("engine", ["vectorised", "processes:vectorised"])
def test_engines_agree(run, engine):
    other = train(engine)
    for row, twin in zip(run.clients, other.clients, strict=True):
        for name in ("auroc", "f1", "shared_auroc"):
            assert row[name] == pytest.approx(twin[name], abs=1e-12, nan_ok=True)


def test_workers_predict_with_both_models(monkeypatch, run):
    """To the last bit as one process does; the leading process runs neither model by itself."""
    calls = []
    serve = Processes.map

    def watch(self, function, jobs, *rest):
        calls.append((function, len(jobs)))
        return serve(self, function, jobs, *rest)

    monkeypatch.setattr(Processes, "map", watch)
    other = train("processes:sequential", settings=mo.Settings(workers=2))
    assert {("predict", 6), ("predict_shared", 6)} <= set(calls)
    assert str(other.clients) == str(run.clients)  # NaN is equal to NaN there
    assert other.history[-1]["shared_auroc_pooled"] == run.history[-1]["shared_auroc_pooled"]


def test_many_rows_are_predicted_batch_by_batch(monkeypatch, run):
    monkeypatch.setattr("moiety.loop.sets.ROWS_AT_ONCE", 5)
    assert train("vectorised").clients[0]["auroc"] == run.clients[0]["auroc"]


def test_a_folder_keeps_metrics_and_losses_with_options(tmp_path):
    loss = mo.loss.cross_entropy(weight=mo.data.class_weights(make_data()))
    whole = train("sequential", rounds=4, loss=loss)
    train("sequential", loss=loss, out=tmp_path / "run")
    model = nn.Linear(3, 2).double()
    again = mo.resume(tmp_path / "run", model=model, data=make_data(), rounds=4)
    assert again.clients[:5] == whole.clients[:5]
    assert again.config["run"]["metric"] == NAMES
    with pytest.raises(mo.MoietyError, match="metric"):
        mo.resume(tmp_path / "run", model=model, data=make_data(), rounds=5, metric="accuracy")
