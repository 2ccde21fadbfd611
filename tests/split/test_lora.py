"""Low-rank updates: the formula, neutrality at the start, which layers, bad input."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from example_models import get_model
from torch import Tensor, nn

import moiety as mo
from moiety.errors import MoietyError
from moiety.split import lora
from moiety.task import from_module
from moiety.types import Partial


def net() -> nn.Module:
    return mo.models.mlp(5, 3, hidden=(4, 6), seed=1)


def randomise(model: nn.Module) -> nn.Module:
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=draw))
    return model


@pytest.mark.parametrize(("alpha", "scale"), [(None, 1.0), (3.0, 1.5)])
def test_a_layer_is_as_if_its_weight_had_moved(alpha: float | None, scale: float) -> None:
    """W x + b + s B A x = (W + s B A) x + b, with s = alpha / rank, in NumPy."""
    model = randomise(get_model(lora(net(), rank=2, alpha=alpha))).double()
    w = {n: p.detach().numpy() for n, p in model.named_parameters()}
    x = np.random.default_rng(0).normal(size=(7, 5))
    h = x
    for name in ("hidden1", "hidden2", "head"):
        weight = w[f"{name}.weight"] + scale * w[f"{name}.adapter.up.weight"] @ w[f"{name}.adapter.down.weight"]
        h = h @ weight.T + w[f"{name}.bias"]
        h = h if name == "head" else np.maximum(h, 0)
    np.testing.assert_allclose(model(torch.from_numpy(x)).detach().numpy(), h, rtol=1e-10)


def test_it_starts_as_the_model_it_was() -> None:
    model, x = net(), torch.linspace(-1, 1, 30).reshape(6, 5)
    before = torch.get_rng_state()
    split = lora(model, rank=3)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(get_model(split)(x), model(x))
    for name in split.personal:
        value = get_model(split).get_parameter(name)
        assert bool(value.any()) == name.endswith("down.weight")
    again = get_model(lora(model, rank=3, seed=1)).get_parameter("head.adapter.down.weight")
    assert not torch.equal(again, get_model(split).get_parameter("head.adapter.down.weight"))


def test_the_first_a_keeps_the_scale_of_its_input() -> None:
    """N(0, 1/400): 40,000 draws lie within 2 per cent."""
    model = nn.Sequential(nn.Linear(400, 100))
    weight = get_model(lora(model, rank=100)).get_parameter("0.adapter.down.weight")
    assert float(weight.detach().std()) == pytest.approx(1 / 20, rel=0.02)


def test_which_layers_and_how_many_numbers() -> None:
    """rank (inputs + outputs) for each layer."""
    model = net()
    split = lora(model, rank=2, targets=["hidden?"])
    assert split.counts() == {"total": 75 + 38, "shared": 75, "personal": 2 * (5 + 4) + 2 * (4 + 6), "frozen": 0}
    assert {n.split(".")[0] for n in split.personal} == {"hidden1", "hidden2"}
    frozen = lora(model, rank=2, frozen="*")
    assert (frozen.shared, len(frozen.frozen), len(frozen.personal)) == ((), 6, 6)
    words = mo.models.transformer_lm(vocabulary=9, length=4, width=8, blocks=2, heads=2, feed_forward=6)
    names = lora(words, rank=1, targets=["blocks.*.query", "blocks.1.feed_forward"]).personal
    assert [n.removesuffix(".adapter.down.weight") for n in names if "down" in n] == [
        "blocks.0.attention.query",
        "blocks.1.attention.query",
        "blocks.1.feed_forward.first",
        "blocks.1.feed_forward.second",
    ]


def test_layers_that_torch_does_not_call_are_left_out() -> None:
    """The output projection of nn.MultiheadAttention is used by its weight alone: a hook there would do nothing."""
    encoder = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
    split = lora(nn.Sequential(encoder), rank=1)
    assert {n.partition(".adapter")[0] for n in split.personal} == {"0.linear1", "0.linear2"}
    x = torch.linspace(-1, 1, 24).reshape(2, 3, 4)
    model = randomise(get_model(split))
    with torch.no_grad():
        torch.testing.assert_close(model.train()(x), model.eval()(x))
    text = "`targets` must be globs that each match a linear layer or an nn.Conv2d that is called, got '0.self_attn'."
    with pytest.raises(MoietyError, match="^" + re.escape(text)):
        lora(nn.Sequential(encoder), rank=1, targets="0.self_attn")


def test_a_model_that_is_one_layer() -> None:
    split = lora(nn.Linear(3, 2), rank=1)
    assert split.personal == ("adapter.down.weight", "adapter.up.weight")
    model, x = randomise(get_model(split)), torch.eye(3)
    weight = model.weight + model.adapter.up.weight @ model.adapter.down.weight
    torch.testing.assert_close(model(x), weight.T + model.bias)
    task = from_module(model, loss="mse")
    batch = {"x": x, "y": torch.zeros(3, 2)}
    for names in (split.personal, split.shared):  # torch.fx does not see a hook of the whole model
        assert not isinstance(task.partial(frozenset(names), task.init, batch), Partial)


def test_partial_evaluation_and_vmap() -> None:
    split = lora(net(), rank=2, targets="head")
    task = from_module(randomise(get_model(split)), loss="cross_entropy")
    batch = {"x": torch.linspace(-1, 1, 20).reshape(4, 5), "y": torch.tensor([0, 1, 2, 0])}
    part = task.partial(frozenset(split.personal), task.init, batch)
    assert isinstance(part, Partial)
    values = {n: p * 1.5 if n in split.personal else p for n, p in task.init.items()}
    whole = task.loss(values, batch)[0]
    features = part.features(task.init, batch)
    torch.testing.assert_close(part.loss(values, {"y": batch["y"], **features})[0], whole)

    def loss(own: dict[str, Tensor]) -> Tensor:
        return task.loss({**task.init, **own}, batch)[0]

    two = {n: torch.stack([task.init[n], values[n]]) for n in split.personal}
    together = torch.func.vmap(loss)(two)
    torch.testing.assert_close(together, torch.stack([task.loss(task.init, batch)[0], whole]))


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "rank": ({"rank": 0}, "`rank` must be >= 1, got 0."),
    "alpha": ({"rank": 1, "alpha": 0}, "`alpha` must be > 0 and finite, got 0."),
    "seed": ({"rank": 1, "seed": -3}, "`seed` must be >= 0, got -3."),
    "no layer": (
        {"rank": 1, "targets": "hed"},
        "`targets` must be globs that each match a linear layer or an nn.Conv2d that is called, got 'hed'. "
        "Did you mean head?",
    ),
    "no glob": ({"rank": 1, "targets": ()}, "`targets` must be at least one glob, got ()."),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_in_one_line(case: str) -> None:
    arguments, text = BAD[case]
    with pytest.raises(MoietyError, match="^" + re.escape(text) + "$"):
        lora(net(), **arguments)


def test_ranks_are_capped_and_said() -> None:
    with pytest.warns(UserWarning, match="^`rank` 5 is more than the smaller side of some layers, which get less: "):
        split = lora(net(), rank=5)
    shapes = {n: tuple(p.shape) for n, p in get_model(split).named_parameters() if n.endswith("adapter.up.weight")}
    assert shapes["hidden1.adapter.up.weight"][1] == 4


def test_a_head_alone_is_refused() -> None:
    """Convolutions are adapted where they are named: (W + B A) * x, as one convolution."""
    convolution = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(16, 3))
    text = "`targets` must be given where only an output layer is linear, or nothing, got 2 alone in Sequential."
    with pytest.raises(
        MoietyError, match="^" + re.escape(f"{text} Name the layers to adapt, for instance targets=['0'")
    ):
        lora(convolution, rank=1)
    split = lora(convolution, rank=2, targets="0", alpha=3.0)
    model = randomise(get_model(split))
    update = model[0].adapter
    weight = model[0].weight + 1.5 * torch.einsum("orij,rchw->ochw", update.up.weight, update.down.weight)
    x = torch.linspace(-1, 1, 32).reshape(1, 2, 4, 4)
    expected = nn.functional.conv2d(x, weight, model[0].bias, stride=2, padding=1)
    torch.testing.assert_close(model[0](x), expected)


def test_exports_are_scripted_and_merged() -> None:
    """The client's model without hooks, and with the update in its weights, gives what the run's model gives."""
    rng = np.random.default_rng(0)
    columns = {"x": rng.normal(size=(12, 4)).astype(np.float32), "y": rng.integers(0, 2, 12)}
    fed = mo.data.from_arrays(columns, client=np.repeat([0, 1], 6))
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    x = torch.from_numpy(columns["x"])
    splits = {
        "lora": lora(model, rank=2),
        "apart": mo.split.additive(model, nn.Linear(2, 2), local_features=[0, 2]),
        "mixed": mo.split.additive(model, nn.Linear(2, 2), local_features=[1, 2], mixture="convex"),
    }
    for name, split in splits.items():
        run = mo.fit(model, fed, mo.fedalt(shared=0.5, personal=0.5), split=split, rounds=2, engine="sequential")
        exported = run.export(1)
        output = torch.func.functional_call(get_model(split).eval(), run.parameters(1), (x,))
        torch.testing.assert_close(exported(x), output)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls its own scripts deprecated
            scripted, traced = torch.jit.script(exported), torch.jit.trace(exported, x)
        torch.testing.assert_close(scripted(x), output)
        torch.testing.assert_close(traced(x), output)
        if name == "lora":
            merged = run.export(1, merge=True)
            assert merged.state_dict().keys() == model.state_dict().keys()
            torch.testing.assert_close(merged(x), output)
            again = mo.fit(
                exported, fed, mo.fedalt(shared=0.5, personal=0.5), split=split, rounds=1, engine="sequential"
            )
            assert again.parameters(0).keys() == run.parameters(0).keys()  # an exported model is a warm start
        else:
            with pytest.raises(MoietyError, match=r"^`merge` must be false for a model without"):
                run.export(1, merge=True)
