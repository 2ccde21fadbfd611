"""Each client alone, against plain loops of torch."""

import numpy as np
import pytest
import torch
from oracle_problems import federated, image_clients
from torch import nn

import moiety as mo

DATA = federated(image_clients([5, 3]))


def model():
    return mo.models.mlp(4, 3, hidden=(5,), seed=2).double()


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("rule", ["sgd", "adagrad"])
@pytest.mark.parametrize(("steps", "rounds"), [(1, 12), (4, 3), (12, 1)])
def test_is_a_plain_loop_of_torch_over_the_rows(steps, rounds, rule, engine):
    """Twelve steps in data order, however they are dealt to rounds; Adagrad's sums go on from round to round."""
    algorithm = mo.independent(personal=mo.online(0.1, rule=rule, steps=steps, shuffle=False))
    losses = []
    run = mo.fit(
        model(),
        DATA,
        algorithm,
        rounds=rounds,
        engine=engine,
        settings=mo.Settings(evaluate_every=rounds),
        callbacks=[lambda run, record: losses.append(record.train_loss)],
    )
    torch_losses = []
    for client in range(2):
        net, own = model(), DATA.client(client)
        x, y = torch.tensor(own["x"], dtype=torch.float64), torch.tensor(own["y"])
        kind = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}[rule]
        optimiser = kind(net.parameters(), lr=0.1)
        torch_losses.append([])
        for t in range(12):
            k = t % len(y)
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(net(x[k : k + 1]), y[k : k + 1])
            loss.backward()
            optimiser.step()
            torch_losses[-1].append(loss.item())
        for name, p in net.named_parameters():
            torch.testing.assert_close(run.parameters(client)[name], p.detach(), rtol=1e-8, atol=1e-10)
    means = np.average(np.reshape(torch_losses, (2, rounds, steps)).mean(2), axis=0, weights=[5, 3])
    np.testing.assert_allclose(losses, means, rtol=1e-8)


def test_one_client_is_glocal_without_delay():
    """With P = 1, Glocal.SGD is SGD on both parts of the pair, which is one client's whole model."""
    data = federated(image_clients([6], dtype=np.float64))
    pair = mo.split.additive(model(), mo.models.linear(4, 3, seed=5).double())
    glocal = mo.glocal_sgd(
        shared=mo.online(0.1, rule="adagrad", shuffle=False), personal=mo.online(0.1, rule="adagrad")
    )
    one = mo.fit(model(), data, glocal, split=pair, rounds=9, engine="sequential")
    whole = mo.independent(personal=mo.online(0.1, rule="adagrad", shuffle=False, steps=9))
    joint = pair.model
    other = mo.fit(joint, data, whole, split=mo.split.everything(joint), rounds=1, engine="sequential")
    for name, p in other.parameters(0).items():
        torch.testing.assert_close(one.parameters(0)[name], p, rtol=1e-10, atol=1e-12)
