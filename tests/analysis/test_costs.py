"""The bill of Huang et al. 2022, Table 1, without training anything."""

import numpy as np
import pytest
import torch
from oracle_problems import federated, image_clients, problem_of
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import moiety as mo
from moiety.analysis.costs import bytes_of_run, flops_of_run, layer_flops, search_share
from moiety.loop.costs import OperationCounter, flops_per_example
from moiety.split.masks import layer_counts
from moiety.task import from_module

VGG = mo.models.vgg11_gn()
IMAGE = torch.zeros(1, 3, 32, 32)
RUN = {"rounds": 1000, "clients": 10}
WORK = {**RUN, "epochs": 5, "examples": 500}


def test_bytes_of_table_1():
    """9,231,114 parameters of 4 bytes to and from 10 clients in 1,000 rounds; the paper rounds to 0.1 GB."""
    assert sum(p.numel() for p in VGG.parameters()) == 9_231_114
    assert bytes_of_run(VGG, **RUN)["total"] == 9_231_114 * 4 * 2 * 10_000
    assert round(bytes_of_run(VGG, **RUN)["total"] / 1e9, 1) == 738.5
    assert round(bytes_of_run(VGG, density=0.5, **RUN)["total"] / 1e9, 1) == 369.2
    assert round(bytes_of_run(VGG, up_density=0.5, **RUN)["total"] / 1e9, 1) == 553.9  # subsampling
    params = dict(VGG.named_parameters())
    active = {name: p.numel() for name, p in params.items()} | layer_counts(params, 0.5, "erk")
    assert 8 * 10_000 * sum(active.values()) == bytes_of_run(VGG, density=0.5, **RUN)["total"]


def test_flops_of_table_1():
    dense = flops_of_run(VGG, IMAGE, **WORK)
    assert dense["total"] == pytest.approx(229.3e14, rel=0.005)
    assert dense["search"] == 0
    sparse = flops_of_run(VGG, IMAGE, density=0.5, search_batch=128, **WORK)
    assert sparse["total"] == pytest.approx(172.9e14, rel=0.005)
    assert sparse["total"] == sparse["training"] + sparse["search"]


def test_flops_of_vgg_by_hand():
    """A 3x3 convolution of n to m channels on s x s pixels is 2 * 9 n m s^2 operations, the head 2 * 512 * 10."""
    layers = [(3, 64, 32), (64, 128, 16), (128, 256, 8), (256, 256, 8), (256, 512, 4), (512, 512, 4)]
    layers += [(512, 512, 2)] * 2
    flops = {f"conv{i}": 18.0 * n * m * s * s for i, (n, m, s) in enumerate(layers, start=1)} | {"head": 10240.0}
    assert layer_flops(VGG, IMAGE) == flops
    assert flops_of_run(VGG, IMAGE, **WORK)["training"] == 3 * sum(flops.values()) * 10_000 * 2500
    search = flops_of_run(VGG, IMAGE, density=0.5, search_batch=128, **WORK)["search"]
    assert search == 3 * sum(flops.values()) * 10_000 * 128


def test_a_model_that_computes_with_weights_of_its_own():
    """x [1, 4] times w [4, 6] is 48 operations, the head 36; a layer alone is a model too."""

    class Bare(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(4, 6))
            self.head = torch.nn.Linear(6, 3)

        def forward(self, x):
            return self.head(x @ self.w)

    assert layer_flops(Bare(), torch.zeros(1, 4)) == {"": 48.0, "head": 36.0}
    model = Bare()
    model.more = torch.nn.ModuleList([model.head])
    assert sum(layer_flops(model, torch.zeros(1, 4)).values()) == 84.0
    assert layer_flops(torch.nn.Linear(6, 3), torch.zeros(1, 6)) == {"": 36.0}
    run = {"rounds": 1, "clients": 1, "epochs": 1, "examples": 1}
    # 45 numbers, half of them are 23, 20 of them weights: 11 of 24 and 9 of 18.
    flops = flops_of_run(Bare(), torch.zeros(1, 4), density=0.5, densities="uniform", **run)
    assert flops["training"] == pytest.approx(3 * (48 * 11 / 24 + 36 * 9 / 18))


def test_uniform_densities_cost_about_half_and_erk_more():
    """As the paper's Table 4: small layers, which ERK keeps dense, see large images."""
    erk, uniform = (flops_of_run(VGG, IMAGE, density=0.5, densities=d, **WORK)["training"] for d in ("erk", "uniform"))
    dense = flops_of_run(VGG, IMAGE, **WORK)["training"]
    assert uniform == pytest.approx(dense / 2, rel=2e-3)
    assert 0.65 * dense < erk < 0.75 * dense


def test_the_share_of_the_search_is_a_number():
    data = federated(image_clients([30, 20]))
    work = mo.sgd(0.1, epochs=2, batch_size=8)
    share = search_share(mo.models.mlp(4, 3, hidden=(6,)), data, clients=2, repeats=1, shared=work)
    assert share >= 0


def test_to_try_the_cut_of_a_model_is_not_counted():
    """Features are 2 * 4 * 6 operations, once for a row; the head's output, and its gradient, 2 * 6 * 3 each time.

    The personal head is cut off, which the first count tries on a few rows; a second count knows the cut.
    """
    net = mo.models.mlp(4, 3, hidden=(6,))
    task = from_module(net, loss="cross_entropy")
    problem = problem_of(task, federated(image_clients([30, 20])), mo.split.output_layer(net))
    algorithm = mo.finetune(personal=mo.sgd(0.1, epochs=2, batch_size=8))
    received, state = problem.broadcast(algorithm, problem.first_server(algorithm)), problem.first_state(algorithm)
    first, again = (flops_per_example(problem, algorithm, received, state) for _ in range(2))
    assert first == again
    assert [(cost.once, cost.each) for cost in first.values()] == [(48, 72)]


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (torch.nn.Linear(5, 3), (7, 5)),
        (mo.models.resnet18_gn(), (2, 1, 32, 32)),
        (torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (3, 5, 8)),
        (torch.nn.Sequential(torch.nn.Conv1d(4, 6, 3, groups=2), torch.nn.ConvTranspose1d(6, 2, 2)), (3, 4, 9)),
    ],
    ids=["linear", "resnet18", "attention", "convolutions"],
)
@pytest.mark.parametrize("mode", ["training", "no gradient", "inference"])
def test_operations_are_those_that_pytorch_counts(model, shape, mode):
    """Forwards and backwards; in inference mode, operations arrive before they are taken apart."""
    x = torch.randn(shape)
    modes = {"training": torch.enable_grad, "no gradient": torch.no_grad, "inference": torch.inference_mode}
    model.train(mode == "training")
    with modes[mode](), FlopCounterMode(display=False) as theirs, OperationCounter() as ours:
        out = model(x)
        if mode == "training":
            out.sum().backward()
    assert ours.total == theirs.get_total_flops()
    assert ours.total > 0 or (isinstance(model, torch.nn.TransformerEncoderLayer) and mode != "training")  # one kernel


def test_memory_of_a_sparse_device_by_hand():
    """A layer of 6 x 4 and biases of 6, float32, at half of 30 numbers: 15 are active, 6 of them biases.

    Dense: 3 x 120 bytes. Sparse: 3 x 60, and a mask of 24 bits. Held: dense, the mask as wide as the weights (96), and
    two masks of 24 bytes. What autograd keeps is the same for all.
    """
    batch = {"x": torch.zeros(1, 4), "y": torch.zeros(1, dtype=torch.int64)}
    memory = mo.analysis.sparse_memory(nn.Linear(4, 6), batch, density=0.5)
    assert memory["dense"] - memory["sparse"] == 360 - (180 + 3)
    assert memory["held"] - memory["dense"] == 96 + 48
    fed = mo.data.from_arrays({"x": np.zeros((8, 4), "float32"), "y": np.arange(8) % 6}, client=np.arange(8) // 4)
    options = {"rounds": 1, "engine": "sequential"}
    run = mo.fit(nn.Linear(4, 6), fed, mo.fedspa(shared=0.1, density=0.5), **options)
    dense = mo.fit(nn.Linear(4, 6), fed, mo.fedavg(shared=0.1), **options)
    assert dense.ledger["device_memory"] - run.ledger["device_memory"] == 360 - (180 + 3)
