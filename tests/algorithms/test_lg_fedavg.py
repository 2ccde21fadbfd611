"""LG-FedAvg from its pseudocode in NumPy, its equal, and its defaults."""

import numpy as np
import oracle_bilinear as bilinear
import pytest
import torch
from flat_options import flat
from oracle_problems import federated, image_clients

import moiety as mo
from moiety.errors import MoietyError

SIZES = (2, 9, 5)
DATA = federated(image_clients(SIZES))


def network():
    return mo.models.mlp(4, 3, hidden=(5,), seed=2).double()


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_trajectory_in_numpy(engine):
    """Algorithm 1: the local B and the global h step together, h is averaged by N_m / N. Three rounds of one epoch."""
    clients = bilinear.clients(SIZES, seed=3)
    algorithm = mo.lg_fedavg(shared=mo.sgd(0.2, batch_size=4, shuffle=False))
    split = bilinear.split("B")
    run = mo.fit(bilinear.task(), federated(clients), algorithm, split=split, rounds=3, engine=engine)
    top, local = bilinear.START["h"], [bilinear.START["B"]] * len(SIZES)
    for _ in range(3):
        total = np.zeros(2)
        for i, data in enumerate(clients):
            w = {"B": local[i], "h": top}
            for at in range(0, SIZES[i], 4):
                g = bilinear.gradient(w, data, slice(at, at + 4))
                w = {"B": w["B"] - 0.2 * g["B"], "h": w["h"] - 0.2 * g["h"]}
            local[i] = w["B"]
            total += SIZES[i] * w["h"]
        top = total / sum(SIZES)
    bilinear.agree(run, {"h": top}, [{"B": body} for body in local])


def test_it_equals_fedsim_at_one_learning_rate():
    options = {"steps": 3, "batch_size": 4, "momentum": 0.5, "weight_decay": 0.1, "clip": 0.5, "weighting": "uniform"}
    net = network()
    split = mo.split.representation(net)
    one, other = (
        mo.fit(net, DATA, algorithm, split=split, rounds=3, cohort=2, engine="sequential")
        for algorithm in (
            flat(mo.lg_fedavg, lr=0.1, **options),
            flat(mo.fedsim, shared_lr=0.1, personal_lr=0.1, **options),
        )
    )
    for i in range(len(SIZES)):
        mine, theirs = one.parameters(i), other.parameters(i)
        assert all(torch.equal(p, theirs[n]) for n, p in mine.items())


def test_the_last_layer_alone_is_shared_by_default():
    """6 * 3 = 18 numbers of 8 bytes go up from each of three clients, and the rest stays."""
    run = mo.fit(network(), DATA, mo.lg_fedavg(shared=0.1), rounds=1, engine="sequential")
    ann, bob = run.parameters(1), run.parameters(2)
    assert [n for n in ann if torch.equal(ann[n], bob[n])] == ["head.weight", "head.bias"]
    assert run.ledger["up_values"] == 3 * 18 * 8


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("shared", lambda: mo.lg_fedavg(shared=-1)),
        ("lr", lambda: mo.lg_fedavg(shared=mo.sgd(-1))),
        ("weighting", lambda: mo.lg_fedavg(shared=0.1, weighting="size")),
    ],
)
def test_wrong_hyper_parameters_are_one_line(name, build):
    with pytest.raises(MoietyError, match=rf"^`{name}` must be [^\n]*, got [^\n]*$"):
        build()
