"""The splits of FedBN and of local representations: what they hold, and FedBN's Algorithm 1 by ordinary PyTorch."""

import copy
import re

import numpy as np
import pytest
import torch
from example_models import SmallResNet, SmallTransformer
from oracle_problems import federated, image_clients
from torch import nn

import moiety as mo
from moiety.errors import MoietyError
from moiety.spec import build
from moiety.split import SPLITS

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
SIZES = (6, 10)


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.LayerNorm(5), nn.Linear(5, 3)).double()


def test_batchnorm_is_personal_with_its_statistics_and_nothing_else_is():
    split = mo.split.fedbn(network())
    assert split.personal == ("1.weight", "1.bias", *(f"1.{s}" for s in STATISTICS))
    assert split.shared == ("0.weight", "0.bias", "3.weight", "3.bias", "4.weight", "4.bias")
    assert mo.split.norms(network()).trained_personal == ("1.weight", "1.bias", "3.weight", "3.bias")


def test_where_all_norms_are_batchnorm_it_is_the_split_norms():
    one, other = mo.split.fedbn(SmallResNet()), mo.split.norms(SmallResNet())
    assert (one.personal, one.shared) == (other.personal, other.shared)


def test_fedbn_is_made_again_from_a_file():
    split = mo.split.fedbn(network(), frozen=["0"])
    assert split.spec == {"name": "fedbn", "frozen": ["0"]}
    again = build("split", SPLITS, split.spec, extra={"model": network()})
    assert (again.personal, again.frozen) == (split.personal, ("0.weight", "0.bias"))


@pytest.mark.parametrize("norm", [nn.LayerNorm(3), nn.InstanceNorm1d(3, track_running_stats=True), nn.ReLU()])
def test_a_model_without_batchnorm_is_refused(norm):
    text = "`model` must be a module with BatchNorm to keep, got none in Sequential."
    with pytest.raises(MoietyError, match="^" + re.escape(text)):
        mo.split.fedbn(nn.Sequential(nn.Linear(2, 3), norm))


def test_algorithm_1_by_ordinary_pytorch():
    """Li et al. 2021: every client trains its whole model; then each layer that is no BatchNorm becomes the mean.

    Two rounds of two passes; the mean is plain, 1/K each, although one client has more examples.
    """
    clients = image_clients(SIZES, dtype=np.float64)
    models = [network() for _ in SIZES]
    for _ in range(2):
        for model, data in zip(models, clients, strict=True):
            optimiser = torch.optim.SGD(model.train().parameters(), lr=0.1)
            for _pass in range(2):
                optimiser.zero_grad()
                loss = nn.functional.cross_entropy(model(torch.tensor(data["x"])), torch.tensor(data["y"]))
                loss.backward()
                optimiser.step()
        before = copy.deepcopy(models)
        for model in models:
            for name, p in model.named_parameters():
                if not name.startswith("1."):
                    values = [dict(m.named_parameters())[name] for m in before]
                    p.data = sum(values).detach() / len(SIZES)
    net = network()
    algorithm = mo.fedsim(shared=mo.sgd(0.1, epochs=2, batch_size=10, shuffle=False), personal=0.1, weighting="uniform")
    run = mo.fit(net, federated(clients), algorithm, split=mo.split.fedbn(net), rounds=2, engine="sequential")
    for i, model in enumerate(models):
        for name, value in model.state_dict().items():
            torch.testing.assert_close(run.parameters(i)[name], value, rtol=1e-10, atol=1e-12)


def test_all_but_the_last_layer_is_the_representation():
    model = network()
    split = mo.split.representation(model)
    assert split.shared == ("4.weight", "4.bias")
    assert set(split.personal) == set(model.state_dict()) - {"4.weight", "4.bias"}
    one, other = mo.split.representation(model, running_stats="shared"), mo.split.output_layer(model)
    assert one.trained_personal == other.trained_shared
    assert set(one.shared) - set(one.trained_shared) == {f"1.{s}" for s in STATISTICS}
    common = mo.split.representation(model, shared=["3"], frozen=["0"])
    assert common.trained_personal == ("1.weight", "1.bias")
    assert common.frozen == ("0.weight", "0.bias")


def test_a_representation_needs_a_layer_of_its_own():
    with pytest.raises(MoietyError, match=r"^`model` must be one with trained layers before the last, got Linear\.$"):
        mo.split.representation(nn.Linear(3, 2))
    with pytest.raises(MoietyError, match=r"tied to embed\.weight"):
        mo.split.representation(SmallTransformer(tied=True), frozen="mask")
