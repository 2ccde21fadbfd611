"""Blocks of clients against one client at a time with ordinary autograd and torch's own functions."""

import pickle
import sys

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional

import moiety as mo
from moiety import tree
from moiety.task import block
from moiety.task.block import block_gradient, cross_entropy, for_blocks, in_block
from moiety.task.cut import Call

CLIENTS, ROWS, FEATURES, CLASSES = 4, 7, 5, 3


@pytest.fixture
def numbers():
    draw = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    return normal


def loss(params, x, y):
    hidden = torch.tanh(x @ params["v"].t())
    return functional.cross_entropy(hidden @ params["w"].t(), y)


def run_one(params, x, y):
    leaves = {n: p.clone().requires_grad_() for n, p in params.items()}
    value = loss(leaves, x, y)
    return dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True)), value.detach()


@pytest.mark.parametrize("common", [(), ("v",), ("v", "w")], ids=["own", "one in common", "all in common"])
def test_every_client_gets_the_gradient_of_its_own_loss(numbers, common):
    """Parameters that all clients have in common (the broadcast, in the first step) have a gradient for each, too."""
    x, y = numbers(CLIENTS, ROWS, FEATURES), torch.randint(CLASSES, (CLIENTS, ROWS))
    shapes = {"v": (6, FEATURES), "w": (CLASSES, 6)}
    params = {n: numbers(*shape) if n in common else numbers(CLIENTS, *shape) for n, shape in shapes.items()}

    def one(params, x, y):
        return block_gradient(lambda block: (loss(block, x, y), {"seen": x.mean()}), params)

    axes = {n: None if n in common else 0 for n in params}
    with torch.no_grad():
        gradients, losses, buffers = vmap(one, in_dims=(axes, 0, 0))(params, x, y)
    for i in range(CLIENTS):
        own = {n: p if n in common else p[i] for n, p in params.items()}
        expected, value = run_one(own, x[i], y[i])
        for name, gradient in expected.items():
            torch.testing.assert_close(gradients[name][i], gradient)
        torch.testing.assert_close(losses[i], value)
        torch.testing.assert_close(buffers["seen"][i], x[i].mean())
    assert not any(t.requires_grad for t in tree.values((gradients, losses, buffers)))


def test_what_the_loss_does_not_depend_on_has_gradient_zero(numbers):
    params = {"a": numbers(CLIENTS, 2), "idle": numbers(CLIENTS, 3)}

    def one(params, reached):
        return block_gradient(lambda block: ((block["a"] if reached else params["a"]).square().sum(), {}), params)

    with torch.no_grad():
        some, _, _ = vmap(lambda p: one(p, True))(params)
        none, losses, _ = vmap(lambda p: one(p, False))(params)
    torch.testing.assert_close(some["a"], 2 * params["a"])
    assert not some["idle"].any()
    assert not none["a"].any()
    torch.testing.assert_close(losses, params["a"].square().sum(1))


def test_clients_along_another_axis(numbers):
    a = numbers(3, CLIENTS)
    with torch.no_grad():
        gradient = vmap(lambda p: block_gradient(lambda q: (q["a"].pow(3).sum(), {}), {"a": p})[0]["a"], in_dims=1)(a)
    torch.testing.assert_close(gradient, 3 * a.square().t())


def test_inside_another_transform_it_can_be_differentiated(numbers):
    """d/da sum(grad of sum a^3) = 6 a, through torch.func, for one client and for a block."""

    def slope(a):
        return block_gradient(lambda q: (q["a"].pow(3).sum(), {}), {"a": a})[0]["a"].sum()

    a = numbers(CLIENTS, 2)
    torch.testing.assert_close(torch.func.grad(slope)(a[0]), 6 * a[0])
    torch.testing.assert_close(vmap(torch.func.grad(slope))(a), 6 * a)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_are_the_same_function_in_a_block(numbers, bias):
    """Values and gradients of nn.Linear, for two and for three axes, and the gradient lies as the weight does."""
    layer = nn.Linear(FEATURES, CLASSES, bias=bias, dtype=torch.float64)
    copy = for_blocks(nn.Sequential(nn.Linear(FEATURES, CLASSES, bias=bias, dtype=torch.float64)))
    call = Call(copy)
    shapes = {f"0.{n}": p.shape for n, p in layer.named_parameters()}
    params = {n: numbers(CLIENTS, *shape) for n, shape in shapes.items()}
    for rows in ((ROWS,), (ROWS, 2)):
        x, up = numbers(CLIENTS, *rows, FEATURES), numbers(CLIENTS, *rows, CLASSES)

        def one(params, x, up):
            return block_gradient(lambda block, x=x, up=up: ((call(block, [x])[0] * up).sum(), {}), params)[0]

        with torch.no_grad():
            gradients = vmap(one)(params, x, up)
            outputs = vmap(lambda p, x: call(p, [x])[0])(params, x)
        for i in range(CLIENTS):
            own = {n.removeprefix("0."): p[i].clone().requires_grad_() for n, p in params.items()}
            expected = functional.linear(x[i], own["weight"], own.get("bias"))
            torch.testing.assert_close(outputs[i], expected)
            slopes = torch.autograd.grad((expected * up[i]).sum(), list(own.values()))
            for name, gradient in zip(own, slopes, strict=True):
                torch.testing.assert_close(gradients[f"0.{name}"][i], gradient)
        if len(rows) == 1:
            assert gradients["0.weight"].is_contiguous()


def test_outside_a_block_a_linear_layer_is_as_it_was(numbers):
    layer = nn.Linear(FEATURES, CLASSES, dtype=torch.float64)
    x = numbers(ROWS, FEATURES)
    expected = layer(x)
    assert torch.equal(for_blocks(layer)(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), expected)


def test_cross_entropy_is_that_of_torch(numbers):
    output, y = 30 * numbers(CLIENTS, ROWS, CLASSES), torch.randint(CLASSES, (CLIENTS, ROWS))
    losses = vmap(cross_entropy)(output, y)
    for i in range(CLIENTS):
        torch.testing.assert_close(losses[i], functional.cross_entropy(output[i], y[i], reduction="none"))


def test_in_block_is_true_in_blocks_alone():
    answers = []
    vmap(lambda x: (answers.append(in_block()), x)[1])(torch.zeros(2))
    assert (in_block(), answers) == (False, [True])


def test_is_finite_of_each_client_of_a_block():
    rows = torch.tensor([[1.0, 3e38, 3e38], [1.0, float("inf"), -float("inf")], [float("nan"), 0.0, 0.0]])
    assert vmap(tree.is_finite)({"a": rows, "n": torch.arange(3)}).tolist() == [True, False, False]
    wide = torch.tensor([[1.7e308, 1.7e308], [1.0, float("inf")]], dtype=torch.float64)
    assert vmap(tree.is_finite)(wide).tolist() == [True, False]


def test_without_the_private_functions_of_torch_the_numbers_are_the_same(monkeypatch):
    """Blocks by ``torch.func`` alone, for a whole run: dense layers, cross-entropy, a part that is held fixed."""
    model = mo.models.mlp(4, 3, hidden=(6,), seed=3).double()
    draw = torch.Generator().manual_seed(1)
    data = mo.data.from_clients(
        {
            f"c{i}": {"x": torch.randn(n, 4, generator=draw).double().numpy(), "y": (torch.arange(n) % 3).numpy()}
            for i, n in enumerate((5, 9, 12))
        },
        test=0.25,
    )

    def run() -> mo.Run:
        algorithm = mo.fedalt(shared=mo.sgd(0.1, batch_size=4), personal=mo.sgd(0.2, epochs=2, batch_size=4))
        return mo.fit(model, data, algorithm, split=mo.split.output_layer(model), rounds=3, engine="vectorised")

    fast = run()
    monkeypatch.setattr(block, "functorch", None)
    assert not vmap(lambda x: torch.tensor(block.in_block()) & (x == x))(torch.zeros(2)).any()
    plain = run()
    for client in range(3):
        for name, p in fast.parameters(client).items():
            torch.testing.assert_close(plain.parameters(client)[name], p, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("module", block.PRIVATE)
def test_private_functions_that_a_torch_does_not_have(module, monkeypatch):
    assert block.find_private() is not None
    with monkeypatch.context() as patch:
        patch.setitem(block.PRIVATE, module, ("no_such_function",))
        assert block.find_private() is None
    monkeypatch.setitem(sys.modules, module, None)  # cannot be imported
    assert block.find_private() is None
