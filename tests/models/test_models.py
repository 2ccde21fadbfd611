from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from moiety.errors import MoietyError
from moiety.models import (
    MODELS,
    caffe_lenet5,
    cnn,
    lenet5,
    linear,
    mlp,
    resnet18_gn,
    speech_transformer,
    transformer_lm,
    vgg11_gn,
)
from moiety.spec import build
from moiety.split import output_layer

BLOCKS = {"width": 8, "blocks": 1, "heads": 2, "feed_forward": 5}
SMALL: dict[str, tuple[nn.Module, torch.Tensor]] = {
    "cnn": (cnn((2, 8, 4), 3, hidden=5), torch.zeros(3, 2, 8, 4)),
    "lenet5": (lenet5((3, 12, 16), 4), torch.zeros(3, 3, 12, 16)),
    "caffe_lenet5": (caffe_lenet5((3, 16, 16), 4), torch.zeros(3, 3, 16, 16)),
    "linear": (linear(6, 2), torch.zeros(3, 2, 3)),
    "mlp": (mlp(6, 2, hidden=(5, 4)), torch.zeros(3, 2, 3)),
    "resnet18_gn": (resnet18_gn(classes=3, image=(2, 8, 4), width=8), torch.zeros(3, 2, 8, 4)),
    "speech_transformer": (speech_transformer(vocabulary=6, mels=3, channels=4, **BLOCKS), torch.zeros(3, 4, 3)),
    "transformer_lm": (transformer_lm(vocabulary=6, length=4, **BLOCKS), torch.zeros(3, 4, dtype=torch.long)),
    "vgg11_gn": (vgg11_gn(classes=3, image=(1, 32, 32)), torch.zeros(3, 1, 32, 32)),
}


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def expect_error(text: str):  # type: ignore[no-untyped-def]
    return pytest.raises(MoietyError, match="^" + re.escape(text) + "$")


def test_linear_counts() -> None:
    """64*10 + 10 = 650; without bias 640."""
    assert size(linear(64, 10)) == 650
    assert size(linear(64, 10, bias=False)) == 640


def test_mlp_counts() -> None:
    """784*128 + 128 = 100,480 and 128*10 + 10 = 1,290: 101,770. 2NN of McMahan et al. (2017): 199,210."""
    assert size(mlp(784, 10)) == 101_770
    assert size(mlp(784, 10, hidden=[200, 200])) == 199_210
    assert size(mlp(64, 10, hidden=())) == 650


def test_cnn_counts() -> None:
    """McMahan et al. (2017) give 1,663,370 for 10 classes.

    1*32*25 + 32 = 832; 32*64*25 + 64 = 51,264; 7*7*64*512 + 512 = 1,606,144; 512*62 + 62 = 31,806: 1,690,046.
    Small: 2*32*25 + 32 = 1,632; 51,264; 2*1*64*5 + 5 = 645; 5*3 + 3 = 18: 53,559.
    """
    assert size(cnn(classes=10)) == 1_663_370
    assert size(cnn()) == 1_690_046
    assert size(SMALL["cnn"][0]) == 53_559


def test_lenet5_counts() -> None:
    """1*6*25 + 6 = 156; 6*16*25 + 16 = 2,416; 5*5*16*120 + 120 = 48,120; 120*84 + 84 = 10,164; 850: 61,706.

    3 x 32 x 32 unpadded has the same 5 x 5 at the end and 2*6*25 = 300 more: 62,006. Small, 3 x 12 x 16 padded: sides
    12, 6, 2, 1 and 16, 8, 4, 2, so 456 + 2,416 + 32*120 + 120 + 10,164 + 84*4 + 4 = 17,336.
    """
    assert size(lenet5()) == 61_706
    assert size(lenet5((3, 32, 32), padding=0)) == 62_006
    assert size(SMALL["lenet5"][0]) == 17_336


@pytest.mark.parametrize("name", sorted(MODELS))
def test_output_has_a_column_per_class_and_comes_from_head(name: str) -> None:
    model, x = SMALL[name]
    output = model(x)
    assert (output.shape[0], output.shape[-1]) == (3, model.head.out_features)  # type: ignore[union-attr, operator]
    if name != "transformer_lm":  # whose output layer is tied
        assert output_layer(model).personal == ("head.weight", "head.bias")


@pytest.mark.parametrize("name", sorted(MODELS))
def test_weights_come_from_the_seed_alone(name: str) -> None:
    """The same seed gives the same weights whatever was drawn before, and draws nothing from torch's own stream."""
    spec: dict[str, Any] = dict(SMALL[name][0].spec)  # type: ignore[arg-type]
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, other, default = (build("model", MODELS, {**spec, **seed}) for seed in ({"seed": 1}, {"seed": 2}, {}))
    assert torch.equal(before, torch.random.get_rng_state())
    torch.rand(3)
    again = build("model", MODELS, {**spec, "seed": 1})
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert not torch.equal(one.head.weight, other.head.weight)
    assert torch.equal(default.head.weight, build("model", MODELS, {**spec, "seed": 0}).head.weight)


def test_weights_are_those_of_torch_under_the_same_seed() -> None:
    torch.manual_seed(7)
    plain = nn.Linear(4, 3)
    assert torch.equal(linear(4, 3, seed=7).head.weight, plain.weight)  # type: ignore[union-attr, arg-type]


def test_relu_and_flatten() -> None:
    """x = (1, -2) as a 1 x 2 image; hidden weights identity, head (1, 1): relu(1) + relu(-2) = 1."""
    model = mlp(2, 1, hidden=[2])
    values = {
        "hidden1.weight": torch.eye(2),
        "hidden1.bias": torch.zeros(2),
        "head.weight": torch.ones(1, 2),
        "head.bias": torch.zeros(1),
    }
    assert torch.func.functional_call(model, values, torch.tensor([[[1.0, -2.0]]])).item() == 1.0


def test_specs_make_the_model_again() -> None:
    model = cnn((1, 8, 8), classes=3)
    assert model.spec == {"name": "cnn", "image": [1, 8, 8], "classes": 3}
    assert size(build("model", MODELS, model.spec)) == size(model)  # type: ignore[arg-type]
    assert mlp(4, 2, hidden=(3,)).spec == {"name": "mlp", "inputs": 4, "outputs": 2, "hidden": [3]}
    assert "spec" not in model.state_dict()


def test_the_table_holds_every_builder_under_its_name() -> None:
    paper = ["resnet18_gn", "speech_transformer", "transformer_lm", "vgg11_gn"]
    assert list(MODELS) == ["caffe_lenet5", "cnn", "lenet5", "linear", "mlp", *paper]
    assert all(builder.__name__ == name and builder.__doc__ for name, builder in MODELS.items())


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: linear(0, 1), "`inputs` must be >= 1, got 0."),
        (lambda: linear(1, -1), "`outputs` must be >= 1, got -1."),
        (
            lambda: linear(1, True),
            "`outputs` must be a whole number, got True.",
        ),
        (
            lambda: mlp(4, 2.0),
            "`outputs` must be a whole number, got 2.0.",
        ),
        (lambda: mlp(4, 2, hidden=3), "`hidden` must be a list of widths, got 3. One layer is hidden=[128]."),
        (lambda: mlp(4, 2, hidden=[3, 0]), "`hidden` must be >= 1, got 0."),
        (
            lambda: cnn((28, 28)),
            "`image` must be (channels, height, width), got (28, 28). A grey image of 28 x 28 is (1, 28, 28).",
        ),
        (lambda: cnn((1, 28, 0)), "`image` must be >= 1, got 0."),
        (lambda: cnn((1, 28, 3)), "`image` must be at least 4 x 4, got 28 x 3. Each of two poolings halves it."),
        (lambda: cnn(classes=0), "`classes` must be >= 1, got 0."),
        (lambda: cnn(hidden=0), "`hidden` must be >= 1, got 0."),
        (lambda: lenet5((1, 11, 28)), "`image` must be at least 12 x 12, got 11 x 28. Each layer makes it smaller."),
        (
            lambda: lenet5((1, 28, 15), padding=0),
            "`image` must be at least 16 x 16, got 28 x 15. Each layer makes it smaller.",
        ),
        (lambda: lenet5(padding=-1), "`padding` must be >= 0, got -1."),
        (lambda: resnet18_gn(classes=0), "`classes` must be >= 1, got 0."),
        (lambda: resnet18_gn(width=12), "`width` must be a multiple of 8, or of 16 above 64, got 12."),
        (lambda: resnet18_gn(width=72), "`width` must be a multiple of 8, or of 16 above 64, got 72."),
        (
            lambda: resnet18_gn(image=(28, 28)),
            "`image` must be (channels, height, width), got (28, 28). A grey image of 28 x 28 is (1, 28, 28).",
        ),
        (
            lambda: vgg11_gn(image=(1, 28, 32)),
            "`image` must be at least 32 x 32, got 28 x 32. Each of five poolings halves it.",
        ),
        (lambda: transformer_lm(vocabulary=0), "`vocabulary` must be >= 1, got 0."),
        (lambda: transformer_lm(length=-1), "`length` must be >= 1, got -1."),
        (lambda: transformer_lm(blocks=0), "`blocks` must be >= 1, got 0."),
        (lambda: transformer_lm(heads=3), "`heads` must be a divisor of `width`, 256, got 3."),
        (lambda: transformer_lm(feed_forward=0), "`feed_forward` must be >= 1, got 0."),
        (lambda: transformer_lm(dropout=1.0), "`dropout` must be a number from 0 to less than 1, got 1.0."),
        (lambda: speech_transformer(dropout="no"), "`dropout` must be a number from 0 to less than 1, got 'no'."),
        (lambda: speech_transformer(mels=0), "`mels` must be >= 1, got 0."),
        (lambda: speech_transformer(channels=5), "`channels` must be an even number, got 5."),
        (lambda: linear(1, 1, seed=-1), "`seed` must be >= 0, got -1."),
        (lambda: linear(1, 1, seed=0.5), "`seed` must be a whole number, got 0.5."),
    ],
)
def test_errors(make: Any, text: str) -> None:
    with expect_error(text):
        make()


def test_sizes_may_be_numbers_of_numpy_and_are_recorded_as_ints() -> None:
    model = mlp(np.int64(4), np.int64(2), seed=np.int64(3))
    assert model.spec == {"name": "mlp", "inputs": 4, "outputs": 2, "seed": 3}
    assert {type(value) for value in model.spec.values()} == {str, int}
    for mine, other in zip(model.parameters(), mlp(4, 2, seed=3).parameters(), strict=True):
        assert torch.equal(mine, other)


def test_smallest_images() -> None:
    assert cnn((1, 4, 4))(torch.zeros(1, 1, 4, 4)).shape == (1, 62)
    assert lenet5((1, 12, 12))(torch.zeros(1, 1, 12, 12)).shape == (1, 10)
    assert lenet5((1, 16, 16), padding=0)(torch.zeros(1, 1, 16, 16)).shape == (1, 10)
