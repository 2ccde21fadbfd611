"""FedRep from its pseudocode in NumPy, on the model of its theory, its equal, and its defaults."""

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
    """Algorithm 1: tau = 5 steps on h with phi fixed, then one on phi with the new h; the plain mean. Three rounds."""
    clients = bilinear.clients(SIZES, seed=1)
    algorithm = mo.fedrep(
        shared=mo.sgd(0.1, steps=1, batch_size=9, shuffle=False),
        personal=mo.sgd(0.1, steps=5, batch_size=9, shuffle=False),
    )
    split = bilinear.split("h")
    run = mo.fit(bilinear.task(), federated(clients), algorithm, split=split, rounds=3, engine=engine)
    phi, heads = bilinear.START["B"], [bilinear.START["h"]] * len(SIZES)
    for _ in range(3):
        uploads = []
        for i, data in enumerate(clients):
            for _s in range(5):
                heads[i] = heads[i] - 0.1 * bilinear.gradient({"B": phi, "h": heads[i]}, data, slice(None))["h"]
            uploads.append(phi - 0.1 * bilinear.gradient({"B": phi, "h": heads[i]}, data, slice(None))["B"])
        phi = np.mean(uploads, axis=0)
    bilinear.agree(run, {"B": phi}, [{"h": head} for head in heads])


def test_many_steps_on_the_head_end_at_its_least_squares_solution():
    """Algorithm 2 solves for the head: with h = (X B')^+ y its gradient is 0, and B makes one step from there."""
    data = bilinear.clients([9], seed=2)[0]
    algorithm = mo.fedrep(shared=mo.sgd(0.2, steps=1, batch_size=9), personal=mo.sgd(0.2, steps=3000, batch_size=9))
    run = mo.fit(
        bilinear.task(), federated([data]), algorithm, split=bilinear.split("h"), rounds=1, engine="sequential"
    )
    body = bilinear.START["B"]
    head = np.linalg.lstsq(data["x"] @ body.T, data["y"], rcond=None)[0]
    step = body - 0.2 * bilinear.gradient({"B": body, "h": head}, data, slice(None))["B"]
    np.testing.assert_allclose(run.parameters(0)["h"].numpy(), head, atol=1e-9)
    np.testing.assert_allclose(run.parameters(0)["B"].numpy(), step, atol=1e-9)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_it_equals_fedalt_with_its_defaults(engine):
    """Ten epochs on the head, one on the rest, one learning rate, the plain mean; bit for bit."""
    options = {"batch_size": 4, "momentum": 0.5, "weight_decay": 0.1, "clip": 0.5}
    net = network()
    split = mo.split.output_layer(net)
    fedalt = flat(mo.fedalt, shared_lr=0.1, personal_lr=0.1, personal_epochs=10, weighting="uniform", **options)
    one, other = (
        mo.fit(net, DATA, algorithm, split=split, rounds=2, cohort=2, engine=engine)
        for algorithm in (flat(mo.fedrep, lr=0.1, **options), fedalt)
    )
    new = {k: column[:5] for k, column in DATA.columns.items()}
    pairs = [(one.parameters(i), other.parameters(i)) for i in range(len(SIZES))]
    pairs.append((dict(one.onboard(new).named_parameters()), dict(other.onboard(new).named_parameters())))
    for mine, theirs in pairs:
        assert all(torch.equal(p, theirs[n]) for n, p in mine.items())


def test_the_last_layer_is_personal_by_default():
    run = mo.fit(network(), DATA, mo.fedrep(shared=0.1), rounds=1, engine="sequential")
    ann, bob = run.parameters(1), run.parameters(2)
    assert [n for n in ann if not torch.equal(ann[n], bob[n])] == ["head.weight", "head.bias"]


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("shared", lambda: mo.fedrep(shared=0)),
        ("lr", lambda: mo.fedrep(shared=mo.sgd(0))),
        ("epochs", lambda: mo.fedrep(shared=0.1, personal=mo.sgd(0.1, epochs=2, steps=2))),
    ],
)
def test_wrong_hyper_parameters_are_one_line(name, build):
    with pytest.raises(MoietyError, match=rf"^`{name}` must be [^\n]*, got [^\n]*$"):
        build()
