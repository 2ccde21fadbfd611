"""The input layer split sideways: what private features can reach, and what can leave a client."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from example_models import get_model
from torch import Tensor, nn

import moiety as mo
from moiety.errors import MoietyError
from moiety.split import horizontal

PRIVATE = [1, 4]
PUBLIC = [0, 2, 3]


def net(seed: int = 2) -> nn.Module:
    return mo.models.mlp(5, 3, hidden=(6,), seed=seed).double()


def rows(count: int = 8, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = np.random.default_rng(seed)
    return torch.from_numpy(draw.normal(size=(count, 5))), torch.from_numpy(draw.integers(0, 3, count))


def test_it_is_figure_1c() -> None:
    """[W_s x_public + b_s, W_p x_private + b_p], then the upper layers; blocks of the given weights, in NumPy."""
    model = net()
    split = horizontal(model, private=PRIVATE, units=2)
    w = {n: p.detach().numpy() for n, p in model.named_parameters()}
    x, _ = rows()
    shared = x.numpy()[:, PUBLIC] @ w["hidden1.weight"][:4][:, PUBLIC].T + w["hidden1.bias"][:4]
    personal = x.numpy()[:, PRIVATE] @ w["hidden1.weight"][4:][:, PRIVATE].T + w["hidden1.bias"][4:]
    h = np.maximum(np.concatenate([shared, personal], 1), 0)
    expected = h @ w["head.weight"].T + w["head.bias"]
    np.testing.assert_allclose(get_model(split)(x).detach().numpy(), expected, rtol=1e-12)
    assert split.personal == ("hidden1.personal.weight", "hidden1.personal.bias")
    assert split.counts() == {
        "total": 4 * 3 + 4 + 2 * 2 + 2 + 21,
        "shared": 4 * 3 + 4 + 21,
        "personal": 2 * 2 + 2,
        "frozen": 0,
    }
    assert [n for n, _ in model.named_parameters()] == ["hidden1.weight", "hidden1.bias", "head.weight", "head.bias"]


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    own = copy.deepcopy(model)
    nn.functional.cross_entropy(own(x), y).backward()
    return {n: p.grad for n, p in own.named_parameters() if p.grad is not None}


def test_shared_input_weights_never_multiply_a_private_feature() -> None:
    """Their units do not move with it, and their gradient is the error times the public features: sum_n d_n x_n^T.

    The errors d are taken at the units themselves. Where the personal units are constant, so that nothing else brings
    the private features up, no gradient of a shared parameter holds any of them, bit for bit.
    """
    split = horizontal(net(), private=PRIVATE, units=2)
    model = get_model(split)
    x, y = rows()
    layer = model.get_submodule("hidden1")
    shifts = x.clone()
    shifts[:, PRIVATE] += 100.0
    assert torch.equal(layer(x)[:, :4], layer(shifts)[:, :4])
    assert not torch.equal(layer(x)[:, 4:], layer(shifts)[:, 4:])
    units = layer(x).detach().requires_grad_()
    nn.functional.cross_entropy(model.get_submodule("head")(units.relu()), y).backward()
    slopes = gradients(model, x, y)
    assert units.grad is not None
    torch.testing.assert_close(slopes["hidden1.shared.weight"], units.grad[:, :4].T @ x[:, PUBLIC])
    torch.testing.assert_close(slopes["hidden1.personal.weight"], units.grad[:, 4:].T @ x[:, PRIVATE])
    with torch.no_grad():
        model.get_parameter("hidden1.personal.weight").zero_()
    one, other = gradients(model, x, y), gradients(model, shifts, y)
    assert all(torch.equal(one[n], other[n]) for n in split.shared)
    assert not torch.equal(one["hidden1.personal.weight"], other["hidden1.personal.weight"])


def test_uploads_hold_no_weight_of_a_private_feature() -> None:
    """Three of five features are public: the only input weight that is sent has three columns."""
    model = net().float()
    x, y = rows(24)
    clients = {f"c{i}": {"x": x[i::3].float().numpy(), "y": y[i::3].numpy()} for i in range(3)}
    split = horizontal(model, private=PRIVATE, units=2)
    inner = mo.fedsim(shared=0.2, personal=0.2)
    shapes: list[dict[str, tuple[int, ...]]] = []

    def aggregator(updates: Any) -> Any:
        shapes.extend({n: tuple(t.shape) for n, t in u.upload.items()} for u in updates)
        return inner.aggregator(updates)

    fed = mo.data.from_clients(clients, test=0.25)
    mo.fit(model, fed, replace(inner, aggregator=aggregator), split=split, rounds=2, engine="sequential")
    assert len(shapes) == 6
    expected = {"hidden1.shared.weight": (4, 3), "hidden1.shared.bias": (4,), "head.weight": (3, 6), "head.bias": (3,)}
    assert all(each == expected for each in shapes)


def test_how_many_units() -> None:
    """By default in proportion, at least one on each side: 6 * 2/5 = 2.4 gives 2, 6 * 4/5 = 4.8 gives 5."""

    def personal(**arguments: Any) -> tuple[int, ...]:
        model = get_model(horizontal(net(), **arguments))
        return tuple(model.get_parameter("hidden1.personal.weight").shape)

    assert personal(private=PRIVATE) == (2, 2)
    assert personal(private=range(4)) == (5, 4)
    assert personal(private=(3,), units=5) == (5, 1)
    wide = mo.models.mlp(100, 3, hidden=(4,))
    assert horizontal(wide, private=[7]).sizes["hidden1.personal.weight"] == 1
    assert horizontal(wide, private=range(99)).sizes["hidden1.shared.weight"] == 1


def test_a_range_can_be_written_down() -> None:
    assert horizontal(net(), private=range(2)).spec == {"name": "horizontal", "private": [0, 1]}


def test_images_are_flattened_first() -> None:
    model = mo.models.mlp(4, 2, hidden=(3,))
    split = horizontal(model, private=[0])
    x = torch.arange(8.0).reshape(2, 1, 2, 2)
    assert get_model(split)(x).shape == (2, 2)


def test_frozen_layers_stay_frozen() -> None:
    split = horizontal(net(), private=PRIVATE, frozen=["head", "hidden1.personal.bias"])
    assert split.frozen == ("hidden1.personal.bias", "head.weight", "head.bias")
    model = net()
    model.get_parameter("hidden1.bias").requires_grad_(False)
    assert horizontal(model, private=PRIVATE).frozen == ("hidden1.shared.bias", "hidden1.personal.bias")
    assert horizontal(nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 1)), private=[0]).personal == (
        "0.personal.weight",
    )


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    return model


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "out of range": (net, {"private": [5]}, "`private` must be <= 4, got 5."),
    "negative": (net, {"private": [-1]}, "`private` must be >= 0, got -1."),
    "no number": (net, {"private": ["x"]}, "`private` must be a whole number, got 'x'."),
    "one number": (net, {"private": 3}, "`private` must be a list of feature indices or a range, got 3."),
    "none": (net, {"private": []}, "`private` must be at least one feature, got none."),
    "twice": (net, {"private": [2, 1, 2]}, "`private` must be features that are named once each, got 2."),
    "all": (net, {"private": range(5)}, "`private` must be fewer than all 5 features, got 5. Use input_layer."),
    "no units": (net, {"private": [0], "units": 0}, "`units` must be >= 1, got 0."),
    "all units": (net, {"private": [0], "units": 6}, "`units` must be <= 5, got 6."),
    "convolution": (
        lambda: mo.models.cnn(),
        {"private": [0]},
        "`model` must be one whose first layer is an nn.Linear on a flat input, got conv1 (Conv2d).",
    ),
    "one layer": (
        lambda: mo.models.linear(4, 2),
        {"private": [0]},
        "`model` must be one with layers above the first, got head (Linear) alone.",
    ),
    "norm first": (
        lambda: nn.Sequential(nn.LayerNorm(4, elementwise_affine=False), nn.Linear(4, 2), nn.Linear(2, 1)),
        {"private": [0]},
        "`model` must be one without a norm before 1, which would mix features, got 0.",
    ),
    "tied": (
        tied,
        {"private": [0]},
        "`model` must be one whose chosen layer has its parameters to itself, got 0.weight tied to 1.weight. "
        "Say with by_name what is personal instead of horizontal.",
    ),
    "one unit": (
        lambda: nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 1)),
        {"private": [0]},
        "`model` must be one whose first layer has two units or more, got 1.",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_in_one_line(case: str) -> None:
    build, arguments, text = BAD[case]
    with pytest.raises(MoietyError, match="^" + re.escape(text) + "$"):
        horizontal(build(), **arguments)
