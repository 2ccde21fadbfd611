"""FedPer from its pseudocode in NumPy, its equal, and its defaults."""

import numpy as np
import oracle_bilinear as bilinear
import pytest
import torch
from flat_options import flat
from oracle_problems import federated, image_clients

import moiety as mo
from moiety.errors import MoietyError

SIZES = (1, 7, 3, 12)
DATA = federated(image_clients(SIZES))


def network():
    return mo.models.mlp(4, 3, hidden=(5,), seed=2).double()


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_trajectory_in_numpy(engine):
    """The paper's procedure: two epochs in batches of 4 on (W_B, W_P) together, bases averaged by n_j / n."""
    clients = bilinear.clients(SIZES)
    algorithm = mo.fedper(shared=mo.sgd(0.1, epochs=2, batch_size=4, shuffle=False))
    split = bilinear.split("h")
    run = mo.fit(bilinear.task(), federated(clients), algorithm, split=split, rounds=3, engine=engine)
    base, heads = bilinear.START["B"], [bilinear.START["h"]] * len(SIZES)
    for _ in range(3):
        bases, after = [], []
        for data, head in zip(clients, heads, strict=True):
            w = {"B": base, "h": head}
            for _epoch in range(2):
                for at in range(0, len(data["y"]), 4):
                    g = bilinear.gradient(w, data, slice(at, at + 4))
                    w = {k: w[k] - 0.1 * g[k] for k in w}
            bases.append(w["B"])
            after.append(w["h"])
        base, heads = np.average(bases, axis=0, weights=SIZES), after
    bilinear.agree(run, {"B": base}, [{"h": head} for head in heads])


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_it_equals_fedsim_at_one_learning_rate(engine):
    """Bit for bit, with every option, half of the clients a round, and for a client never seen."""
    options = {"epochs": 2, "batch_size": 4, "momentum": 0.5, "weight_decay": 0.1, "clip": 0.5, "weighting": "batches"}
    options |= {"server": mo.server.adam(lr=0.1), "schedule": mo.schedule.linear()}
    net = network()
    split = mo.split.output_layer(net)
    one, other = (
        mo.fit(net, DATA, algorithm, split=split, rounds=3, cohort=2, engine=engine)
        for algorithm in (
            flat(mo.fedper, lr=0.1, **options),
            flat(mo.fedsim, shared_lr=0.1, personal_lr=0.1, **options),
        )
    )
    new = {k: column[:5] for k, column in DATA.columns.items()}
    pairs = [(one.parameters(i), other.parameters(i)) for i in range(len(SIZES))]
    pairs.append((dict(one.onboard(new).named_parameters()), dict(other.onboard(new).named_parameters())))
    for mine, theirs in pairs:
        assert all(torch.equal(p, theirs[n]) for n, p in mine.items())


def test_the_last_layer_is_personal_by_default():
    run = mo.fit(network(), DATA, mo.fedper(shared=0.1), rounds=1, engine="sequential")
    ann, bob = run.parameters(1), run.parameters(3)
    assert [n for n in ann if not torch.equal(ann[n], bob[n])] == ["head.weight", "head.bias"]


def test_personal_layers_begin_alike():
    """Those of clients that were never asked are the given model's."""
    run = mo.fit(network(), DATA, mo.fedper(shared=0.1), rounds=1, cohort=1, engine="sequential")
    heads = [run.parameters(i)["head.weight"] for i in range(4)]
    assert sum(torch.equal(head, network().head.weight) for head in heads) == 3


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("shared", lambda: mo.fedper(shared=0)),
        ("lr", lambda: mo.fedper(shared=mo.sgd(0))),
        ("steps", lambda: mo.fedper(shared=mo.sgd(0.1, steps=0))),
        ("clip", lambda: mo.fedper(shared=mo.sgd(0.1, clip=-1.0))),
    ],
)
def test_wrong_hyper_parameters_are_one_line(name, build):
    with pytest.raises(MoietyError, match=rf"^`{name}` must be [^\n]*, got [^\n]*$"):
        build()
