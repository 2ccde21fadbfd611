"""SGD at the server, against a plain loop of torch over the sum of one example of each client."""

import pytest
import torch
from oracle_problems import federated, image_clients
from torch import nn

import moiety as mo

DATA = federated(image_clients([5, 3, 4]))


def model():
    return mo.models.mlp(4, 3, hidden=(5,), seed=2).double()


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("rule", ["sgd", "adagrad"])
def test_is_a_plain_loop_of_torch_over_sums(rule, weighting, engine):
    algorithm = mo.central(shared=mo.online(0.05, rule=rule, shuffle=False), weighting=weighting)
    run = mo.fit(model(), DATA, algorithm, rounds=11, engine=engine, settings=mo.Settings(evaluate_every=11))
    net = model()
    kind = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}[rule]
    optimiser = kind(net.parameters(), lr=0.05)
    for t in range(11):
        optimiser.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for client in range(3):
            own = DATA.client(client)
            k = t % len(own["y"])
            x, y = torch.tensor(own["x"][k : k + 1], dtype=torch.float64), torch.tensor(own["y"][k : k + 1])
            weight = len(own["y"]) if weighting == "examples" else 1
            total = total + weight * nn.functional.cross_entropy(net(x), y)
        total.backward()
        optimiser.step()
    for name, p in net.named_parameters():
        torch.testing.assert_close(run.shared_parameters()[name], p.detach(), rtol=1e-8, atol=1e-10)


def test_is_glocal_with_nothing_personal():
    """Under delay too: then only the server's side is left."""
    clock = mo.clock.delayed(down=[2, 0, 1], up=[1, 1, 0])
    net = model()
    glocal = mo.glocal_sgd(shared=mo.online(0.05, radius=2.0), personal=0.7, longest_round_trip=3)
    runs = [
        mo.fit(
            net,
            DATA,
            each,
            split=mo.split.nothing(net),
            rounds=9,
            engine="sequential",
            settings=mo.Settings(clock=clock),
        )
        for each in (glocal, mo.central(shared=mo.online(0.05, radius=2.0)))
    ]
    for name, p in runs[0].shared_parameters().items():
        torch.testing.assert_close(runs[1].shared_parameters()[name], p, rtol=1e-12, atol=0)
    norm = torch.stack([p.square().sum() for p in runs[0].shared_parameters().values()]).sum().sqrt()
    assert float(norm) <= 2.0 + 1e-9
