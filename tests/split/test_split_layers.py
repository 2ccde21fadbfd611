from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from example_models import ResNet18, SmallResNet, SmallTransformer, expect_error
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from moiety.models import cnn
from moiety.spec import build
from moiety.split import SPLITS, input_layer, norms, output_layer
from moiety.split.layers import list_layers

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def test_resnet_18_has_the_counts_of_table_7() -> None:
    """FACTS.md, ResNet-18-GN on 1 x 28 x 28 with 62 classes.

    stem: 1*64*9 + 2*64 = 576 + 128 = 704. head: 512*62 + 62 = 31,806. Stages, each 3x3 convolutions and norms:
    64: 4*64*64*9 + 4*128 = 147,968; 128: 9*(64*128 + 3*128*128) + 64*128 + 5*256 = 525,568;
    256: 9*(128*256 + 3*256*256) + 128*256 + 5*512 = 2,099,712; 512: 9*(256*512 + 3*512*512) + 256*512 + 5*1024 =
    8,393,728. Total 704 + 147,968 + 525,568 + 2,099,712 + 8,393,728 + 31,806 = 11,199,486.
    """
    with torch.device("meta"):
        model = ResNet18()
    first, last = input_layer(model), output_layer(model)
    assert first.personal == ("conv.weight", "norm.weight", "norm.bias")
    assert first.counts() == {"total": 11_199_486, "shared": 11_198_782, "personal": 704, "frozen": 0}
    assert last.personal == ("head.weight", "head.bias")
    assert last.counts() == {"total": 11_199_486, "shared": 11_167_680, "personal": 31_806, "frozen": 0}


def test_norms_of_resnet_18() -> None:
    """Two numbers a channel: stem 64; stages 4*64, 5*128, 5*256, 5*512 (two blocks and a down path).

    64 + 256 + 640 + 1280 + 2560 = 4800, so 9,600 parameters.
    """
    with torch.device("meta"):
        assert norms(ResNet18()).counts()["personal"] == 9_600


def test_statistics_follow_the_policy_and_not_the_layer() -> None:
    model = SmallResNet()
    everywhere = {
        f"{n}.{s}" for n in ("stem.norm", "block.norm1", "block.norm2", "block.down.norm") for s in STATISTICS
    }
    split = input_layer(model)
    assert split.trained_personal == ("stem.conv.weight", "stem.norm.weight", "stem.norm.bias")
    assert set(split.personal) - set(split.trained_personal) == everywhere
    split = input_layer(model, running_stats="shared")
    assert split.personal == ("stem.conv.weight", "stem.norm.weight", "stem.norm.bias")
    assert everywhere < set(split.shared)


def test_norms_with_statistics_both_ways() -> None:
    """Channels 2, 3, 3, 3, two numbers each: 22."""
    model = SmallResNet()
    names = ("stem.norm", "block.norm1", "block.norm2", "block.down.norm")
    split = norms(model)
    assert split.trained_personal == tuple(f"{n}.{p}" for n in names for p in ("weight", "bias"))
    assert set(split.personal) - set(split.trained_personal) == {f"{n}.{s}" for n in names for s in STATISTICS}
    assert split.counts() == {"total": 197, "shared": 175, "personal": 22, "frozen": 0}
    split = norms(model, running_stats="shared")
    assert split.personal == split.trained_personal


def test_norms_without_weights_still_have_statistics() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False))
    assert norms(model).personal == tuple(f"1.{s}" for s in STATISTICS)
    text = (
        "`model` must be a module with BatchNorm, InstanceNorm, GroupNorm, LayerNorm or RMSNorm to keep, got none in "
    )
    for bare, arguments in ((model, {"running_stats": "shared"}), (nn.Sequential(nn.Linear(2, 2)), {})):
        with expect_error(text + "Sequential. Name a normalisation of another kind with by_name."):
            norms(bare, **arguments)  # type: ignore[arg-type]


def test_a_norm_at_either_end_is_no_input_or_output_layer() -> None:
    model = nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 3), nn.ReLU(), nn.RMSNorm(3), nn.Linear(3, 1), nn.LayerNorm(1))
    assert input_layer(model).personal == ("1.weight", "1.bias", "3.weight")
    assert output_layer(model).personal == ("4.weight", "4.bias")
    assert norms(model).personal == ("0.weight", "0.bias", "3.weight", "5.weight", "5.bias")


def test_no_norm_right_after_the_first_layer() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.LayerNorm(2))
    assert input_layer(model).personal == ("0.weight", "0.bias")


def test_a_model_of_norms_only() -> None:
    for builder in (input_layer, output_layer):
        with expect_error("`model` must be a module with a layer that is no normalisation, got LayerNorm."):
            builder(nn.LayerNorm(2))


def test_a_model_that_is_one_layer() -> None:
    model = nn.Linear(3, 2)
    assert output_layer(model).personal == input_layer(model).personal == ("weight", "bias")


def test_the_transformer() -> None:
    """Attention is one layer, its output projection included; a norm follows it, not the embedding."""
    model = SmallTransformer(bias=True)
    assert [layer.name for layer in list_layers(model)] == ["embed", "attention", "norm", "head"]
    assert input_layer(model, frozen="mask").personal == ("embed.weight",)
    assert output_layer(model, shared="mask").personal == ("head.weight", "head.bias")
    assert output_layer(model).frozen == ("mask",)


def test_parametrised_layers_are_whole() -> None:
    model = nn.Sequential(nn.Linear(2, 2), weight_norm(nn.Linear(2, 1)))
    assert output_layer(model).personal == (
        "1.bias",
        "1.parametrizations.weight.original0",
        "1.parametrizations.weight.original1",
    )


@pytest.mark.parametrize("bias", [False, True])
def test_a_tied_layer_cannot_be_personal_alone(bias: bool) -> None:
    """The embedding's values are the output's too: neither can be personal without the other."""
    model = SmallTransformer(tied=True, bias=bias)
    start = "`model` must be one whose chosen layer has its parameters to itself, got"
    with expect_error(
        f"{start} head.weight tied to embed.weight. Say with by_name what is personal instead of output_layer."
    ):
        output_layer(model, frozen="mask")
    with expect_error(
        f"{start} embed.weight tied to head.weight. Say with by_name what is personal instead of input_layer."
    ):
        input_layer(model, frozen="mask")


def test_a_module_held_under_two_names_is_not_tied() -> None:
    body, head = nn.Linear(2, 2), nn.Linear(2, 1)
    model = nn.Sequential(OrderedDict(body=body, head=head, all=nn.Sequential(body, head)))
    assert [layer.name for layer in list_layers(model)] == ["body", "head"]
    assert output_layer(model).personal == ("head.weight", "head.bias")
    assert input_layer(model).personal == ("body.weight", "body.bias")


def test_parameters_that_belong_to_no_layer_are_shared() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model.register_parameter("token", nn.Parameter(torch.zeros(2)))
    assert "token" in output_layer(model).shared
    assert "token" in input_layer(model).shared


def test_a_frozen_layer_cannot_be_personal() -> None:
    model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1))
    with expect_error(
        "`personal` must be parameters that ask for a gradient, got 0.weight, 0.bias with requires_grad=False. "
        "Call requires_grad_(True) on it, or leave it frozen with by_name."
    ):
        input_layer(model)
    assert output_layer(model).frozen == ("0.weight", "0.bias")
    text = "`personal` must be free of names that `frozen` has too, got 1.bias. Leave each in one of the two."
    with expect_error(text):
        output_layer(model, frozen="1.bias")


def test_names_with_glob_characters() -> None:
    model = nn.ModuleDict({"a[0]": nn.Linear(1, 1), "a0": nn.Linear(1, 1)})
    assert input_layer(model).personal == ("a[0].weight", "a[0].bias")


def test_specs() -> None:
    """A model of the house has a spec of its own; it must not stand in the split's."""
    model = cnn(image=(1, 4, 4), classes=2, hidden=3)
    assert output_layer(model).spec == {"name": "output_layer"}
    split = input_layer(model, frozen=["head"], running_stats="shared")
    assert split.spec == {"name": "input_layer", "frozen": ["head"], "running_stats": "shared"}
    again = build("split", SPLITS, split.spec, extra={"model": model})
    assert (again.shared, again.personal, again.frozen) == (split.shared, split.personal, split.frozen)
