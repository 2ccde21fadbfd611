"""The models of the papers in parts (``torch.fx``), under ``torch.func.vmap``, and in whole rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import moiety as mo
from moiety.models import resnet18_gn, speech_transformer, transformer_lm
from moiety.task import from_module
from moiety.types import Partial


def word_model() -> nn.Module:
    return transformer_lm(vocabulary=9, length=6, width=8, blocks=2, heads=2, feed_forward=12)


def speech_model() -> nn.Module:
    return speech_transformer(vocabulary=5, mels=3, channels=6, width=8, blocks=2, heads=2, feed_forward=12)


def image_model() -> nn.Module:
    return resnet18_gn(width=8, classes=4, image=(1, 8, 8))


def large_image_model() -> nn.Module:
    return resnet18_gn(width=8, classes=4, image=(2, 64, 64))


def inputs(build: Any, rows: int) -> Tensor:
    if build is word_model:
        return torch.randint(0, 9, (rows, 5))
    if build is speech_model:
        x = torch.randn(rows, 11, 3, dtype=torch.float64)
        x[0, 7:] = 0
        return x
    shape = (1, 8, 8) if build is image_model else (2, 64, 64)
    return torch.randn(rows, *shape, dtype=torch.float64)


def draw_values(model: nn.Module, times: int) -> list[dict[str, Tensor]]:
    """Values that are not the first ones, so many times."""
    return [
        {n: p.detach() + 0.3 * torch.randn(p.shape, dtype=p.dtype) for n, p in model.named_parameters()}
        for _ in range(times)
    ]


CUTS = [
    (image_model, ["head"]),
    (image_model, ["stage4", "head"]),
    (image_model, ["*norm*"]),
    (large_image_model, ["head"]),
    (word_model, ["blocks.0"]),
    (word_model, ["blocks.1"]),
    (word_model, ["blocks.1.attention.query"]),
    (word_model, ["blocks.1.attention.value", "blocks.1.norm2"]),
    (word_model, ["blocks.1.feed_forward.second", "head.bias"]),
    (word_model, ["positions"]),
    (speech_model, ["subsampler.conv2"]),
    (speech_model, ["blocks.1"]),
    (speech_model, ["blocks.1.feed_forward.second"]),
    (speech_model, ["head"]),
]


@pytest.mark.parametrize("rows", [4, 1], ids=["four rows", "one row"])
@pytest.mark.parametrize(("build", "personal"), CUTS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_the_parts_give_what_the_whole_gives(build: Any, personal: list[str], rows: int) -> None:
    """The module itself, by plain autograd, against the two parts, at values where the cut was not tried."""
    model = build().double()
    block = mo.split.by_name(model, personal=personal).trained_personal
    task = from_module(model, loss=lambda output, batch: output.flatten(1).square().mean(1))
    x = inputs(build, 6)
    cut = task.partial(frozenset(block), task.init, {"x": x[:rows]})
    assert isinstance(cut, Partial), cut
    (params,) = draw_values(model, 1)
    leaf = {n: params[n].clone().requires_grad_() for n in block}
    whole = functional_call(model, {**params, **leaf}, (x,)).flatten(1).square().mean(1)
    other = {n: params[n].clone().requires_grad_() for n in block}
    parts, _ = cut.loss({**params, **other}, {"x": x, **cut.features(params, {"x": x})})
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
    gradients = [
        torch.autograd.grad(losses.mean(), list(at.values())) for losses, at in ((whole, leaf), (parts, other))
    ]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("build", [image_model, large_image_model, word_model, speech_model])
def test_many_models_at_once_are_one_after_another(build: Any) -> None:
    """Outputs and gradients of three models with other values, each with rows of its own."""
    model = build().double()
    many, x = draw_values(model, 3), torch.stack([inputs(build, 2) for _ in range(3)])
    stacks = {n: torch.stack([one[n] for one in many]) for n in many[0]}

    def objective(params: dict[str, Tensor], rows: Tensor) -> Tensor:
        return functional_call(model, params, (rows,)).square().mean()

    outputs = vmap(lambda params, rows: functional_call(model, params, (rows,)))(stacks, x)
    gradients = vmap(grad(objective))(stacks, x)
    for place, params in enumerate(many):
        torch.testing.assert_close(outputs[place], functional_call(model, params, (x[place],)), rtol=1e-9, atol=1e-10)
        leaf = {n: p.clone().requires_grad_() for n, p in params.items()}
        slopes = torch.autograd.grad(objective(leaf, x[place]), list(leaf.values()))
        for name, slope in zip(leaf, slopes, strict=True):
            torch.testing.assert_close(gradients[name][place], slope, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    ("build", "personal"), [(word_model, ["blocks.1"]), (image_model, ["head"])], ids=["words", "images"]
)
def test_rounds_of_fedalt_in_either_engine(build: Any, personal: list[str]) -> None:
    """Uneven clients, so that the vectorised engine pads; partial evaluation is used in both."""
    model = build().double()
    x, draw = inputs(build, 9).numpy(), np.random.default_rng(0)
    y = draw.integers(0, 4, size=x.shape if build is word_model else 9)
    data = mo.data.from_arrays({"x": x, "y": y}, client=[0] * 4 + [1] * 2 + [2] * 3)
    algorithm = mo.fedalt(shared=mo.sgd(0.1, batch_size=2), personal=mo.sgd(0.1, epochs=2, batch_size=2))
    split = mo.split.by_name(model, personal=personal)
    runs = [mo.fit(model, data, algorithm, split=split, rounds=2, engine=e) for e in ("sequential", "vectorised")]
    for client in range(3):
        one, other = (run.parameters(client) for run in runs)
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=1e-9, atol=1e-10)
        assert any(not torch.equal(one[name], runs[0].parameters((client + 1) % 3)[name]) for name in split.personal)
