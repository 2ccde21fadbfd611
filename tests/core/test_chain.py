"""Chains of linear layers, trained without autograd, against ``torch.optim.SGD`` on the module, client by client."""

from contextlib import contextmanager, nullcontext

import pytest
import torch
from step_cases import CLASSES, FEATURES, LR, SIZES, WIDTH, make_batches, train_block, train_by_torch, train_single
from step_cases import mlp as deep
from torch import nn
from torch.func import vmap
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook

import moiety as mo
from moiety.local.descent import train
from moiety.local.verbs import autograd_gradient
from moiety.loop.costs import OperationCounter
from moiety.task import block, from_module
from moiety.task.chain import Chain, train_chain
from moiety.task.steps import Rate
from moiety.types import Work


def linear():
    return nn.Linear(FEATURES, CLASSES)


def nested():
    inner = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.Sigmoid())
    return nn.Sequential(nn.Flatten(), inner, nn.Sequential(), nn.Linear(WIDTH, CLASSES), nn.Flatten())


def pictures():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, CLASSES))


def one_output():
    return nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def squared_error(module, batch):
    return functional.mse_loss(module(batch["x"]).reshape(batch["y"].shape), batch["y"])


MODELS = {
    "linear": (linear, {}),
    "deep": (deep, {}),
    "nested": (nested, {}),
    "pictures": (pictures, {"shape": (1, 3, 4)}),
    "regression": (deep, {"labels": (CLASSES,), "loss": "mse"}),
    "one number": (one_output, {"labels": (), "loss": "mse"}),
}
"""Chains; the shapes of rows and labels, and the loss."""


def make_model(build):
    torch.manual_seed(2)
    return build().double()


def names_of(module):
    return tuple(n for n, _ in module.named_parameters())


def agree(actual, expected):
    for name, p in expected.items():
        torch.testing.assert_close(actual[name], p, rtol=1e-12, atol=1e-13)
        assert not actual[name].requires_grad


@pytest.fixture
def count_steps(monkeypatch):
    """How many steps were taken by chains."""
    count, step = [0], Chain.step

    def count_step(*args, **options):
        result = step(*args, **options)
        count[0] += result is not None
        return result

    monkeypatch.setattr(Chain, "step", count_step)
    return lambda: count[0]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_steps_are_those_of_torch(name, decay, count_steps):
    build, options = MODELS[name]
    module, how = make_model(build), mo.sgd(LR, weight_decay=decay)
    names = names_of(module)
    block, block_losses = train_block(module, names, how, **options)
    assert count_steps() == 3
    rows = {"shape": options.get("shape", (FEATURES,)), "labels": options.get("labels")}
    loss_of = squared_error if "loss" in options else None
    for c, sizes in enumerate(SIZES):
        batches, losses = make_batches(sizes, c, **rows), []

        def record_loss(module, batch, losses=losses):
            loss = (loss_of or (lambda m, b: functional.cross_entropy(m(b["x"]), b["y"])))(module, batch)
            losses.append(loss.detach())
            return loss

        expected = train_by_torch(module, batches, names, decay=decay, loss_of=record_loss)
        single, loss = train_single(module, batches, names, how, loss=options.get("loss", "cross_entropy"))
        agree(single, expected)
        agree({n: p[c] for n, p in block.items()}, expected)
        torch.testing.assert_close(loss, torch.stack(losses).mean(), rtol=1e-12, atol=0)
        torch.testing.assert_close(block_losses[c], loss, rtol=1e-12, atol=0)
    assert count_steps() == 3 + sum(map(len, SIZES))


@pytest.mark.parametrize("names", [("0.weight",), ("0.bias",), ("2.weight", "4.bias"), ("4.weight", "4.bias")])
def test_what_is_not_trained_stays(names, count_steps):
    module, batches = make_model(deep), make_batches(SIZES[0], 0)
    expected = train_by_torch(module, batches, names, decay=0.1)
    block, _ = train_block(module, names, mo.sgd(LR, weight_decay=0.1))
    agree(train_single(module, batches, names, mo.sgd(LR, weight_decay=0.1))[0], expected)
    agree({n: p[0] for n, p in block.items()}, expected)
    assert count_steps() == 6


class Subclass(nn.Sequential):
    """It computes something of its own."""

    def forward(self, x):
        return 2 * super().forward(x)


def tied():
    again = nn.Linear(FEATURES, FEATURES)
    return nn.Sequential(again, nn.Tanh(), again, nn.Linear(FEATURES, CLASSES))


def shared_weight():
    module = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh(), nn.Linear(FEATURES, FEATURES))
    module[2].weight = module[0].weight
    return nn.Sequential(module, nn.Linear(FEATURES, CLASSES))


def hooked(where):
    module = deep()
    (module if where == "all" else module[0]).register_forward_hook(lambda layer, inputs, output: 2 * output)
    return module


def backward_hooked():
    module = deep()
    module[2].register_full_backward_hook(lambda layer, inputs, outputs: (2 * inputs[0],))
    return module


def patch_linear():
    module = linear()
    module.forward = lambda x: 2 * functional.linear(x, module.weight, module.bias)
    return module


def with_buffer():
    module = deep()
    module.register_buffer("seen", torch.zeros(3))
    return module


ORDINARY = {
    "a layer used twice": tied,
    "a weight used twice": shared_weight,
    "a hook of a layer": lambda: hooked("first"),
    "a hook of the model": lambda: hooked("all"),
    "a hook of a backward pass": backward_hooked,
    "a class of its own": lambda: Subclass(linear()),
    "a buffer": with_buffer,
    "dropout": lambda: nn.Sequential(linear(), nn.Dropout(0.0)),
    "another function": lambda: nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.GELU(), nn.Linear(WIDTH, CLASSES)),
    "another flattening": lambda: nn.Sequential(nn.Flatten(0, -1), nn.Unflatten(0, (-1, FEATURES)), linear()),
    "a normalisation": lambda: nn.Sequential(linear(), nn.LayerNorm(CLASSES)),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_other_models_take_the_ordinary_way(name, count_steps):
    module, batches = make_model(ORDINARY[name]), make_batches(SIZES[0], 0)
    names = names_of(module)
    expected = train_by_torch(module, batches, names)
    agree(train_single(module, batches, names, mo.sgd(LR))[0], expected)
    assert not count_steps()


def test_a_forward_that_a_user_has_replaced(count_steps):
    module, batches = make_model(patch_linear), make_batches(SIZES[0], 0)
    assert not isinstance(from_module(module, loss="cross_entropy").loss, Chain)
    train_single(module, batches, names_of(module), mo.sgd(LR))
    assert not count_steps()


def absolute(output, batch):
    return (output - batch["y"].unsqueeze(1)).abs().sum(1)


def weighted(module, batch):
    return (functional.cross_entropy(module(batch["x"]), batch["y"], reduction="none") * batch["w"]).mean()


def classes_weighted(module, batch):
    each = functional.cross_entropy(module(batch["x"]), batch["y"], reduction="none")
    return (each * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)[batch["y"]]).mean()


def penalised(module, batch):
    return functional.cross_entropy(module(batch["x"]), batch["y"]) + module[0].weight.square().sum()


OPTIONS = {
    "a loss of one's own": ({"loss": absolute}, lambda module, batch: absolute(module(batch["x"]), batch).mean()),
    "weights of rows": ({"weight": "w"}, weighted),
    "weights of classes": ({"loss": mo.loss.cross_entropy([1, 2, 3])}, classes_weighted),
    "a penalty": ({"penalty": lambda params: params["0.weight"].square().sum()}, penalised),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_other_losses_take_the_ordinary_way(name, count_steps):
    options, loss_of = OPTIONS[name]
    module, batches = make_model(deep), make_batches(SIZES[0], 0)
    batches = [batch | {"w": torch.rand(len(batch["y"]), dtype=torch.float64)} for batch in batches]
    expected = train_by_torch(module, batches, names_of(module), loss_of=loss_of)
    agree(train_single(module, batches, names_of(module), mo.sgd(LR), **options)[0], expected)
    assert not count_steps()


def test_the_loss_by_its_function_is_the_loss_by_its_name(count_steps):
    module, batches = make_model(deep), make_batches(SIZES[0], 0)
    expected = train_by_torch(module, batches, names_of(module))
    agree(train_single(module, batches, names_of(module), mo.sgd(LR), loss=mo.loss.cross_entropy())[0], expected)
    assert count_steps() == 3


@pytest.mark.parametrize("how", [{"momentum": 0.9}, {"pull": 0.3, "weight_decay": 0.1}])
def test_other_steps_take_the_ordinary_way(how, count_steps):
    module, batches = make_model(deep), make_batches(SIZES[0], 0)
    oracle = {"decay" if name == "weight_decay" else name: value for name, value in how.items()}
    expected = train_by_torch(module, batches, names_of(module), **oracle)
    agree(train_single(module, batches, names_of(module), mo.sgd(LR, **how))[0], expected)
    block, _ = train_block(module, names_of(module), mo.sgd(LR, **how))
    agree({n: p[0] for n, p in block.items()}, expected)
    assert not count_steps()


@pytest.mark.parametrize("how", [{"clip": 0.1}, {"accumulate": 2, "batch_size": 3}, {"lr_decay": "linear", "steps": 3}])
def test_what_needs_the_gradient_takes_the_ordinary_way(how, count_steps):
    module = make_model(deep)
    train_single(module, make_batches(SIZES[0], 0), names_of(module), mo.sgd(LR, **how))
    assert not count_steps()


@contextmanager
def watching():
    with register_module_forward_hook(lambda module, inputs, output: None):
        yield


@pytest.mark.parametrize("place", [watching, torch.enable_grad, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_places_where_the_ordinary_way_is_taken(place, count_steps):
    """Where all modules are watched, where steps may be differentiated, and in other precision."""
    module, batches = make_model(deep).float(), make_batches(SIZES[0], 0)
    batches = [batch | {"x": batch["x"].float()} for batch in batches]
    task = from_module(module, loss="cross_entropy")
    common = {"shared": (), "personal": (), "compose": None, "parts": None, "batches": None, "scale": 1.0}
    work = Work(task=task, gradient=autograd_gradient, examples=torch.tensor(1.0, dtype=torch.float64), **common)
    for around, steps in ((place, 0), (nullcontext, 3)):
        with torch.no_grad(), around():
            train(work, task.init, batches, {names_of(module): mo.sgd(LR)})
        assert count_steps() == steps


def test_no_chain_within_other_transforms():
    """A block within a block, and a gradient of what was trained."""
    answers = []

    def note(x):
        answers.append(block.open_block() is None)
        return x.sum()

    note(torch.ones(2))
    vmap(note)(torch.ones(2, 2))
    vmap(vmap(note))(torch.ones(2, 2, 2))
    torch.func.grad(note)(torch.ones(2))
    vmap(torch.func.grad(note))(torch.ones(2, 2))
    assert answers == [False, False, True, True, True]


def test_batches_that_do_not_fit_go_the_ordinary_way(count_steps):
    """A label of -100 counts for nothing, as in torch; the steps before it are the chain's."""
    module, batches = make_model(deep), make_batches([6, 6, 6], 0)
    batches[1]["y"][2] = -100

    def loss_of(module, batch):
        return functional.cross_entropy(module(batch["x"]), batch["y"], reduction="none").mean()

    expected = train_by_torch(module, batches, names_of(module), loss_of=loss_of)
    agree(train_single(module, batches, names_of(module), mo.sgd(LR))[0], expected)
    assert count_steps() == 1


def test_a_label_that_is_no_class_raises_as_ever():
    module, batches = make_model(deep), make_batches([6], 0)
    batches[0]["y"][2] = CLASSES
    with pytest.raises(IndexError, match="out of bounds"):
        train_single(module, batches, names_of(module), mo.sgd(LR))


def test_labels_of_another_shape_raise_as_ever():
    module, batches = make_model(deep), make_batches([6], 0, labels=())
    with pytest.raises(RuntimeError, match="invalid for input"):
        train_single(module, batches, names_of(module), mo.sgd(LR), loss="mse")


def test_parameters_that_no_layer_has(count_steps):
    """One that reaches no output has no gradient, and decays."""
    module, batches = make_model(deep), make_batches(SIZES[0], 0)
    module.register_parameter("idle", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    names = names_of(module)
    params, _ = train_single(module, batches, names, mo.sgd(LR, weight_decay=0.1))
    module.idle.data.zero_()
    expected = train_by_torch(module, batches, names[1:] if names[0] == "idle" else names[:-1], decay=0.1)
    agree(params | {"idle": params["idle"] - (1 - LR * 0.1) ** 3}, expected)
    assert not count_steps()


class Net(nn.Module):
    """A convolution, and layers after it that are called as modules, functions and methods."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 2, 2)
        self.first, self.second, self.head = nn.Linear(12, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.first(torch.flatten(self.body(x).relu(), 1))
        return self.head(self.second(functional.relu(x)).tanh())


@pytest.mark.parametrize("first", [1, 2, 3])
def test_the_rest_of_a_model_that_is_cut_may_be_a_chain(first, count_steps):
    module, batches = make_model(Net), make_batches(SIZES[0], 0, (1, 3, 4))
    names = names_of(module)[2 * first :]
    task = from_module(module, loss="cross_entropy")
    assert not isinstance(task.loss, Chain)
    cut = task.partial(frozenset(names), task.init, batches[0])
    features = [{"y": batch["y"], **cut.features(task.init, batch)} for batch in batches]
    common = {"shared": (), "personal": (), "compose": None, "parts": None, "batches": None, "scale": 1.0}
    common["reuse"] = lambda model, names, batches: (cut.loss, features)
    work = Work(task=task, gradient=autograd_gradient, examples=torch.tensor(1.0).double(), **common)
    with torch.no_grad():
        params, _ = train(work, task.init, batches, {names: mo.sgd(LR)})
    agree(params, train_by_torch(module, batches, names))
    assert count_steps() == 3


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_heads_in_an_engine_are_chains(engine, count_steps):
    """Two epochs in batches of four, in the order of the data; the body is fixed."""
    sizes = [10, 8, 3]
    (whole,) = make_batches([sum(sizes)], 0, (1, 3, 4))
    columns = {name: column.numpy() for name, column in whole.items()}
    data = mo.data.from_arrays(columns, client=[c for c, n in enumerate(sizes) for _ in range(n)], test=0.0)
    module = make_model(Net)
    algorithm = mo.finetune(personal=mo.sgd(LR, epochs=2, batch_size=4, shuffle=False))
    split = mo.split.by_name(module, personal=["head"])
    run = mo.fit(module, data, algorithm, rounds=1, cohort=3, engine=engine, split=split)
    assert count_steps() >= 6
    for c, n in enumerate(sizes):
        own = {name: column[sum(sizes[:c]) :][:n] for name, column in whole.items()}
        epoch = [{name: column[at : at + 4] for name, column in own.items()} for at in range(0, n, 4)]
        agree(run.parameters(c), train_by_torch(module, epoch + epoch, ("head.weight", "head.bias")))


def test_operations_are_counted_as_ever(count_steps):
    """Two steps of B = 6 rows. A product with an m by n weight takes 2 B m n operations.

    There is one forward and one for the step; one more, for the gradient of the input, in all layers but the first.
    """
    module = make_model(deep)
    with OperationCounter() as counter:
        train_single(module, make_batches([6, 6], 0), names_of(module), mo.sgd(LR))
    first, second, last = FEATURES * WIDTH, WIDTH * WIDTH, WIDTH * CLASSES
    assert counter.total == 2 * 2 * 6 * (2 * first + 3 * second + 3 * last)
    assert count_steps() == 2


def place(tensor, offset):
    """A copy that begins ``offset`` numbers after a multiple of 64 bytes."""
    memory, size = torch.empty(tensor.numel() + 32, dtype=tensor.dtype), tensor.element_size()
    start = -(memory.data_ptr() // size) % (64 // size) + offset
    return memory[start : start + tensor.numel()].view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_do_not_depend_on_where_memory_begins(dtype):
    """Products of matrices differ in their last bits by the place of their first number."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 3)).to(dtype)
    loss = from_module(module, loss="cross_entropy").loss
    batch = {"x": torch.randn(7, 20, dtype=dtype), "y": torch.randint(3, (7,))}
    params = {name: p.detach() for name, p in module.named_parameters()}
    rates = {name: Rate(0.1, 0.0) for name in params}

    def train_at(offset):
        copies = {name: place(p, offset) for name, p in params.items()}
        with torch.no_grad():
            return train_chain(loss, copies, rates, [{"x": place(batch["x"], offset), "y": batch["y"]}] * 3)[0]

    for offset in (1, 3, 8):
        assert all(torch.equal(p, train_at(0)[name]) for name, p in train_at(offset).items())
