"""What an algorithm must become in a limit."""

import numpy as np
import pytest
import torch
from flat_options import flat
from oracle_problems import federated, image_clients
from torch import nn

import moiety as mo

SIZES = (1, 13, 6, 40)
DATA = federated(image_clients(SIZES))
COMMON = {"batch_size": 8, "shuffle": False}


def model():
    return mo.models.mlp(4, 3, hidden=(5,), seed=2).double()


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize(
    ("weighting", "options", "server"),
    [
        ("examples", {}, None),
        ("batches", {"momentum": 0.9, "weight_decay": 0.1, "clip": 0.5}, None),
        ("uniform", {"momentum": 0.9, "weight_decay": 0.1, "clip": 0.5}, "adam"),
    ],
    ids=["plain", "options", "adam"],
)
def test_nothing_personal_makes_fedalt_and_fedsim_fedavg(engine, weighting, options, server):
    net = model()
    common = {**COMMON, **options, "weighting": weighting, "server": mo.server.adam(lr=0.05) if server else None}
    both = {"shared_lr": 0.1, "personal_lr": 0.7}
    algorithms = [
        flat(mo.fedavg, lr=0.1, epochs=2, **common),
        flat(mo.fedalt, **both, shared_epochs=2, personal_epochs=3, **common),
        flat(mo.fedsim, **both, epochs=2, **common),
    ]
    fits = [
        mo.fit(
            net,
            DATA,
            a,
            split=mo.split.nothing(net),
            rounds=3,
            cohort=3,
            engine=engine,
            settings=mo.Settings(evaluate_every=3),
        )
        for a in algorithms
    ]
    for other in fits[1:]:
        for name, p in fits[0].shared_parameters().items():
            torch.testing.assert_close(other.shared_parameters()[name], p, rtol=1e-12, atol=1e-14)
        assert other.history[-1]["train_loss"] == pytest.approx(fits[0].history[-1]["train_loss"], rel=1e-12)


def plain_sgd(net, client, epochs, lr, momentum=0.0, weight_decay=0.0, clip=None):
    """Ordinary PyTorch training of a module on one client's rows in order."""
    optimiser = torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    columns = DATA.client(client)
    x, y = torch.tensor(columns["x"], dtype=torch.float64), torch.tensor(columns["y"])
    for _ in range(epochs):
        for at in range(0, len(y), 8):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x[at : at + 8]), y[at : at + 8]).backward()
            if clip:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimiser.step()
    return {n: p.detach() for n, p in net.named_parameters()}


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1, "clip": 0.5}], ids=["plain", "all"])
def test_local_only_is_plain_sgd_and_k_rounds_of_e_epochs_are_ke_epochs(engine, options):
    algorithm = flat(mo.local_only, lr=0.1, epochs=2, **COMMON, **options)
    run = mo.fit(model(), DATA, algorithm, rounds=3, engine=engine, settings=mo.Settings(evaluate_every=3))
    for client in range(len(SIZES)):
        expected = plain_sgd(model(), client, epochs=6, lr=0.1, **options)
        for name, p in run.parameters(client).items():
            torch.testing.assert_close(p, expected[name], rtol=1e-10, atol=1e-12)


def test_local_only_with_momentum_is_plain_sgd_within_a_round():
    options = {"momentum": 0.9, "weight_decay": 0.1}
    run = mo.fit(
        model(), DATA, flat(mo.local_only, lr=0.1, epochs=4, **COMMON, **options), rounds=1, engine="sequential"
    )
    for client in range(len(SIZES)):
        expected = plain_sgd(model(), client, epochs=4, lr=0.1, **options)
        for name, p in run.parameters(client).items():
            torch.testing.assert_close(p, expected[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("build", [mo.fedalt, mo.fedsim], ids=["fedalt", "fedsim"])
def test_everything_personal_makes_fedalt_and_fedsim_local_training(build):
    """With u empty only the v-steps remain: plain SGD at personal_lr on each client."""
    net = model()
    algorithm = flat(build, shared_lr=0.7, personal_lr=0.1, **COMMON)
    run = mo.fit(net, DATA, algorithm, split=mo.split.everything(net), rounds=3, engine="sequential")
    for client in range(len(SIZES)):
        expected = plain_sgd(model(), client, epochs=3, lr=0.1)
        for name, p in run.parameters(client).items():
            torch.testing.assert_close(p, expected[name], rtol=1e-10, atol=1e-12)


def test_everything_personal_still_reports_a_training_loss():
    """The clients did train, on a loss of about log 3; a record of 0 would be a lie."""
    net = model()
    algorithm = flat(mo.fedalt, shared_lr=0.1, personal_lr=0.1, **COMMON)
    run = mo.fit(net, DATA, algorithm, split=mo.split.everything(net), rounds=1, engine="sequential")
    loss = run.history[-1]["train_loss"]
    assert loss is None or 0.5 < loss < 3


def test_everything_personal_with_an_adaptive_server_has_nothing_to_move_at_the_server():
    """The server holds nothing, so which optimiser it would use does not matter."""
    net = model()
    plain, adam = (
        mo.fit(
            net,
            DATA,
            flat(mo.fedsim, shared_lr=0.1, personal_lr=0.1, server=server, **COMMON),
            split=mo.split.everything(net),
            rounds=2,
            engine="sequential",
        )
        for server in (None, mo.server.adam(lr=0.1))
    )
    for name, p in plain.parameters(1).items():
        torch.testing.assert_close(adam.parameters(1)[name], p, rtol=0, atol=0)


@pytest.mark.parametrize("build", [mo.fedalt, mo.fedsim], ids=["fedalt", "fedsim"])
def test_one_client_and_full_batches_is_centralised_training(build):
    """A federation of one: FedSim is SGD on both layers at their own rates, FedAlt alternates them."""
    data = federated(image_clients([13], seed=3))
    net = model()
    split = mo.split.by_name(net, personal=["head"])
    run = mo.fit(
        net,
        data,
        flat(build, shared_lr=0.1, personal_lr=0.3, batch_size=13),
        split=split,
        rounds=4,
        engine="sequential",
    )
    x, y = torch.tensor(data.columns["x"], dtype=torch.float64), torch.tensor(data.columns["y"])
    mine = model()
    head, body = list(mine.head.parameters()), list(mine.hidden1.parameters())
    both = [{"params": head, "lr": 0.3}, {"params": body, "lr": 0.1}]
    turns = [[both[0]], [both[1]]] if build is mo.fedalt else [both]
    for _ in range(4):
        for groups in turns:
            mine.zero_grad()
            nn.functional.cross_entropy(mine(x), y).backward()
            torch.optim.SGD(groups).step()
    for name, p in mine.named_parameters():
        torch.testing.assert_close(run.parameters(0)[name], p.detach(), rtol=1e-10, atol=1e-12)
    assert not np.allclose(run.parameters(0)["head.weight"], model().head.weight.detach())
