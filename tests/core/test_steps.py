"""Steps inside the backward pass against ``torch.optim.SGD`` on ordinary modules, one client at a time."""

import pytest
import torch
from step_cases import CLASSES, FEATURES, LR, SIZES, WIDTH, make_batches, mlp, train_block, train_by_torch, train_single
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import moiety as mo
from moiety.local import descent
from moiety.task import steps


class Tied(nn.Module):
    """One layer used twice, and one used once."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.head = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):  # as where they are kept elsewhere
            return self.head(self.again(torch.tanh(self.again(x))))


class Reused(nn.Module):
    """Weights that also enter in other ways: before their layer, and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.early, self.late = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES, bias=False)

    def forward(self, x):
        x = self.early(x * self.early.weight.square().sum())
        return self.head(torch.tanh(self.late(x)) * self.late.bias.exp())


class Words(nn.Module):
    """Inputs with three axes, and a layer that is called as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.plain = nn.Linear(1, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = torch.relu(self.first(x.unsqueeze(-1)))
        return self.head(torch.tanh(functional.linear(x, self.plain.weight, self.plain.bias)).mean(-2))


MODELS = {
    "mlp": (mlp, {"0.weight", "0.bias", "2.weight", "4.weight", "4.bias"}),
    "tied": (Tied, {"head.weight", "head.bias"}),
    "reused": (Reused, {"early.bias", "late.weight", "head.weight"}),
    "words": (Words, {"first.weight", "first.bias", "head.weight", "head.bias"}),
}
"""Models, and the parameters of theirs whose steps are taken inside the backward pass of a single client."""


def make_model(name: str) -> nn.Module:
    torch.manual_seed(2)
    return MODELS[name][0]().double()


@pytest.fixture
def list_names(monkeypatch):
    """The names of the parameters that were stepped inside a backward pass, whatever their size; chains have none."""
    instances = []

    class Watched(steps.Steps):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            instances.append(self)

    monkeypatch.setattr(descent, "Steps", Watched)
    monkeypatch.setattr(descent, "train_chain", lambda loss_of, model, rates, batches: (model, [], [], batches))
    monkeypatch.setattr(steps, "LEAST", 0)
    return lambda: set().union(*(each.new for each in instances))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("decay", "pull"), [(0.0, 0.0), (0.2, 0.0), (0.2, 0.3)])
def test_steps_are_those_of_torch(name, decay, pull, list_names):
    module = make_model(name)
    names = tuple(n for n, _ in module.named_parameters())
    how = mo.sgd(LR, weight_decay=decay, pull=pull)
    block, _ = train_block(module, names, how)
    assert list_names() == MODELS[name][1] - {"first.weight", "first.bias"}  # its input is a block of sequences
    for c, sizes in enumerate(SIZES):
        batches = make_batches(sizes, c)
        expected = train_by_torch(module, batches, names, decay=decay, pull=pull)
        single, _ = train_single(module, batches, names, how)
        for n in names:
            torch.testing.assert_close(single[n], expected[n], rtol=1e-12, atol=1e-13)
            torch.testing.assert_close(block[n][c], expected[n], rtol=1e-12, atol=1e-13)
            assert not single[n].requires_grad
            assert not block[n].requires_grad
    assert list_names() == MODELS[name][1]


@pytest.mark.parametrize("names", [("0.weight",), ("0.bias",), ("2.weight", "4.bias"), ("4.weight", "4.bias")])
def test_what_is_not_trained_stays(names, list_names):
    """A layer whose bias alone is trained takes the ordinary way."""
    module, batches = make_model("mlp"), make_batches(SIZES[0], 0)
    expected = train_by_torch(module, batches, names, decay=0.1, pull=0.0)
    block, _ = train_block(module, names, mo.sgd(LR, weight_decay=0.1))
    single, _ = train_single(module, batches, names, mo.sgd(LR, weight_decay=0.1))
    for n, p in expected.items():
        torch.testing.assert_close(single[n], p, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(block[n][0], p, rtol=1e-12, atol=1e-13)
    assert list_names() == {n for n in names if n.endswith("weight") or n.replace("bias", "weight") in names}


@pytest.mark.parametrize("how", [{"momentum": 0.9}, {"clip": 0.1}])
def test_momentum_and_clipping_take_the_ordinary_way(how, list_names):
    module = make_model("mlp")
    train_single(module, make_batches([6, 6], 0), ("0.weight", "4.bias"), mo.sgd(LR, **how))
    train_block(module, ("0.weight", "4.bias"), mo.sgd(LR, **how))
    assert not list_names()


def test_a_penalty_is_another_use_of_a_weight(list_names):
    """The penalty |W|^2 / 2 on one weight is weight decay of 1 on it, by torch."""
    module, batches = make_model("mlp"), make_batches([6, 6], 0)
    name = ("0.weight",)
    expected = train_by_torch(module, batches, name, decay=1.0, pull=0.0)
    penalty = {"penalty": lambda params: params["0.weight"].square().sum() / 2}
    new, _ = train_single(module, batches, name, mo.sgd(LR), **penalty)
    torch.testing.assert_close(new["0.weight"], expected["0.weight"], rtol=1e-12, atol=1e-13)
    assert not list_names()


def test_small_models_of_single_clients_take_the_ordinary_way(list_names, monkeypatch):
    monkeypatch.setattr(steps, "LEAST", FEATURES * WIDTH + 1)
    train_single(make_model("mlp"), make_batches([6, 6], 0), ("0.weight",), mo.sgd(LR))
    assert not list_names()


def test_operations_are_counted_as_ever(list_names):
    """Two steps of B = 6 rows. A product with an m by n weight takes 2 B m n operations.

    There is one forward and one for the step; one more, for the gradient of the input, in all layers but the first.
    """
    module = make_model("mlp")
    with FlopCounterMode(display=False) as counter:
        train_single(module, make_batches([6, 6], 0), tuple(n for n, _ in module.named_parameters()), mo.sgd(LR))
    first, second, last = FEATURES * WIDTH, WIDTH * WIDTH, WIDTH * CLASSES
    assert list_names()
    assert counter.get_total_flops() == 2 * 2 * 6 * (2 * first + 3 * second + 3 * last)
