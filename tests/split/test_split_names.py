from __future__ import annotations

import pytest
import torch
from example_models import SmallResNet, SmallTransformer, expect_error
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from moiety.errors import MoietyError
from moiety.models import mlp
from moiety.spec import build
from moiety.split import SPLITS, by_name, everything, nothing

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
RESNET_NORMS = ("stem.norm", "block.norm1", "block.norm2", "block.down.norm")
RESNET_STATISTICS = tuple(f"{norm}.{name}" for norm in RESNET_NORMS for name in STATISTICS)
RESNET_PARAMETERS = (
    "stem.conv.weight",
    "stem.norm.weight",
    "stem.norm.bias",
    "block.conv1.weight",
    "block.norm1.weight",
    "block.norm1.bias",
    "block.conv2.weight",
    "block.norm2.weight",
    "block.norm2.bias",
    "block.down.conv.weight",
    "block.down.norm.weight",
    "block.down.norm.bias",
    "head.weight",
    "head.bias",
)
TRANSFORMER_PARAMETERS = (
    "embed.weight",
    "attention.in_proj_weight",
    "attention.in_proj_bias",
    "attention.out_proj.weight",
    "attention.out_proj.bias",
    "norm.weight",
    "norm.bias",
    "head.weight",
)


def test_unnamed_parameters_are_shared_and_statistics_personal() -> None:
    """The small ResNet by hand.

    stem: conv 1*2*9 = 18, norm 2+2 = 4. block: conv1 2*3*9 = 54, norm1 6, conv2 3*3*9 = 81, norm2 6,
    down conv 2*3 = 6, norm 6. head: 3*4+4 = 16. Total 18+4+54+6+81+6+6+6+16 = 197, of it head 16.
    """
    split = by_name(SmallResNet(), personal=["head.*"])
    assert split.shared == RESNET_PARAMETERS[:-2]
    assert split.personal == ("head.weight", "head.bias", *RESNET_STATISTICS)
    assert split.frozen == ()
    assert split.trained_personal == ("head.weight", "head.bias")
    assert split.trained_shared == split.shared
    assert split.buffers == split.statistics == set(RESNET_STATISTICS)
    assert split.counts() == {"total": 197, "shared": 181, "personal": 16, "frozen": 0}
    assert split.sizes["block.conv1.weight"] == 54
    assert split.sizes["stem.norm.num_batches_tracked"] == 1


def test_running_statistics_can_be_shared() -> None:
    split = by_name(SmallResNet(), personal=["head.*"], running_stats="shared")
    assert split.personal == ("head.weight", "head.bias")
    assert split.shared == (*RESNET_PARAMETERS[:-2], *RESNET_STATISTICS)
    assert split.trained_shared == RESNET_PARAMETERS[:-2]


def test_a_pattern_comes_before_the_policy() -> None:
    model = SmallResNet()
    split = by_name(model, personal=["stem.norm.running_*"], running_stats="shared")
    assert split.personal == ("stem.norm.running_mean", "stem.norm.running_var")
    split = by_name(model, frozen=["stem"], shared=["block.norm1.*"])
    assert split.frozen == (*RESNET_PARAMETERS[:3], *RESNET_STATISTICS[:3])
    assert set(RESNET_STATISTICS[3:6]) < set(split.shared)
    assert split.personal == RESNET_STATISTICS[6:]


@pytest.mark.parametrize("norm", [nn.InstanceNorm1d(2, track_running_stats=True), nn.BatchNorm1d(2, affine=False)])
def test_all_norms_that_remember_follow_the_policy(norm: nn.Module) -> None:
    split = by_name(nn.Sequential(nn.Linear(2, 2), norm))
    assert split.personal == ("1.running_mean", "1.running_var", "1.num_batches_tracked")


@pytest.mark.parametrize("pattern", ["head", "head.*", "h?ad", "[gh]ead", ("head.weight", "head.bias"), ["head.[bw]*"]])
def test_patterns_for_the_same_thing(pattern: str | list[str]) -> None:
    assert by_name(SmallResNet(), personal=pattern).trained_personal == ("head.weight", "head.bias")


def test_a_module_pattern_takes_all_below_it_and_no_namesake() -> None:
    split = by_name(SmallResNet(), personal=["*.norm"], running_stats="shared")
    assert split.trained_personal == tuple(
        f"{n}.{p}" for n in ("stem.norm", "block.down.norm") for p in ("weight", "bias")
    )
    layers = nn.ModuleDict({f"layer{i}": nn.Linear(1, 1, bias=False) for i in (1, 10)})
    assert by_name(layers, personal="layer1").personal == ("layer1.weight",)
    assert by_name(layers, personal="layer1*").personal == ("layer1.weight", "layer10.weight")
    assert by_name(nn.ModuleDict({"Head": nn.Linear(1, 1)}), personal="H*").trained_personal == (
        "Head.weight",
        "Head.bias",
    )


def test_constants_are_frozen_without_being_named() -> None:
    """Whole numbers, booleans, and what is not in the state dict (the module reads it all the same)."""
    model = SmallTransformer()
    model.register_buffer("positions", torch.arange(3))
    model.register_buffer("angles", torch.ones(2), persistent=False)
    assert "mask" not in model.state_dict()
    split = by_name(model)
    constants = ("mask", "positions", "angles")
    assert (split.shared, split.personal, split.frozen) == (TRANSFORMER_PARAMETERS, (), constants)
    assert split.buffers == set(constants)
    assert split.statistics == frozenset()
    assert nothing(model).frozen == everything(model).frozen == constants
    assert by_name(model, personal=["mask"]).personal == ("mask",)
    assert nothing(model, shared="mask").shared == (*TRANSFORMER_PARAMETERS, "mask")


def test_other_buffers_have_to_be_named() -> None:
    model = nn.Linear(1, 1)
    model.register_buffer("scale", torch.ones(1))
    text = "`frozen` must be set for floating buffers that are no running statistics, got nothing for scale."
    for split in (by_name, nothing):
        with expect_error(f"{text} Add frozen=['scale'], or share them."):
            split(model)
    assert by_name(model, frozen=["scale"]).frozen == ("scale",)
    assert everything(model).personal == ("weight", "bias", "scale")


def test_many_unnamed_buffers_make_a_short_message() -> None:
    model = nn.Linear(1, 1)
    for place in range(6):
        model.register_buffer(f"b{place}", torch.zeros(1))
    text = "`frozen` must be set for floating buffers that are no running statistics, got nothing for"
    with expect_error(f"{text} b0, b1, b2, b3 and 2 more. Add frozen=['b0', 'b1', 'b2', ...], or share them."):
        by_name(model)


def test_a_tied_parameter_is_one_parameter_under_any_of_its_names() -> None:
    """Embedding 5*4 = 20, used by the head too.

    Attention: in 12*4+12 = 60, out 4*4+4 = 20; norm 8: total 20+60+20+8 = 108 (untied: 128).
    """
    model = SmallTransformer(tied=True)
    for pattern in ("embed.*", "head.*"):
        split = by_name(model, personal=[pattern], frozen="mask")
        assert split.personal == ("embed.weight",)
        assert split.counts() == {"total": 108, "shared": 88, "personal": 20, "frozen": 0}
    text = "`personal` must be free of names that `frozen` has too, got embed.weight. Leave each in one of the two."
    with expect_error(text):
        by_name(model, personal=["head.weight"], frozen=["mask", "embed.weight"])
    assert nothing(SmallTransformer(), frozen="mask").counts()["total"] == 128


def test_a_pattern_without_a_match_shows_the_nearest_names() -> None:
    start = "`personal` must be patterns that each match a parameter, a buffer or a module, got"
    with expect_error(f"{start} 'haed.*'. Did you mean head?"):
        by_name(SmallResNet(), personal=["haed.*"])
    with expect_error(f"{start} 'head.wieght'. Did you mean head.weight?"):
        by_name(SmallResNet(), personal=["head", "head.wieght"])
    with expect_error(f"{start} ''. Known: bias, weight."):
        by_name(nn.Linear(1, 1), personal="")
    with pytest.raises(MoietyError, match=r"^`frozen` must be patterns .* got 'zzz'\. Known: block, "):
        by_name(SmallResNet(), frozen="zzz")


@pytest.mark.parametrize("pattern", [3, None, [1], {"head"}, (name for name in ["head"])])
def test_patterns_are_texts(pattern: object) -> None:
    with pytest.raises(MoietyError, match=r"^`personal` must be a name pattern or a list of them, got "):
        by_name(SmallResNet(), personal=pattern)  # type: ignore[arg-type]


def test_a_name_stands_in_one_group() -> None:
    with expect_error(
        "`personal` must be free of names that `shared` has too, got head.bias. Leave each in one of the two."
    ):
        by_name(SmallResNet(), personal=["head"], shared=["head.bias"])
    with expect_error(
        "`frozen` must be free of names that `shared` has too, got head.bias. Leave each in one of the two."
    ):
        by_name(SmallResNet(), frozen=["head"], shared=["head.bias"])


def test_parameters_without_gradient_are_frozen() -> None:
    """Head 3*4 = 12 and 4: only the weight asks for no gradient."""
    model = SmallResNet()
    model.head.weight.requires_grad_(False)
    split = by_name(model, personal="head.bias")
    assert split.frozen == ("head.weight",)
    assert split.counts() == {"total": 197, "shared": 181, "personal": 4, "frozen": 12}
    assert by_name(model, frozen="head").frozen == ("head.weight", "head.bias")
    assert everything(model).frozen == nothing(model).frozen == ("head.weight",)
    for group in ("personal", "shared"):
        with expect_error(
            f"`{group}` must be parameters that ask for a gradient, got head.weight with requires_grad=False. "
            "Call requires_grad_(True) on it, or leave it frozen with by_name."
        ):
            by_name(model, **{group: ["head"]})  # type: ignore[arg-type]


def test_an_integer_parameter_is_frozen() -> None:
    model = nn.Linear(1, 1)
    model.register_parameter("steps", nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False))
    assert by_name(model).frozen == ("steps",)


def test_what_is_no_model() -> None:
    hint = "Give the module itself, not its class or its values."
    with expect_error(f"`model` must be a torch.nn.Module, got a dict. {hint}"):
        by_name({"weight": torch.zeros(1)})  # type: ignore[arg-type]
    with expect_error(f"`model` must be a torch.nn.Module, got a type. {hint}"):
        nothing(nn.Linear)  # type: ignore[arg-type]
    with expect_error("`model` must be a torch.nn.Module with parameters, got a Flatten without any."):
        everything(nn.Flatten())


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_lazy_model() -> None:
    with expect_error(
        "`model` must be of known sizes, got Sequential with 0.weight, 0.bias unset. Pass one batch through it first."
    ):
        by_name(nn.Sequential(nn.LazyLinear(2)))


def test_running_stats_is_one_of_two() -> None:
    with expect_error("`running_stats` must be one of the known names, got 'local'. Known: personal, shared."):
        by_name(SmallResNet(), running_stats="local")
    with expect_error("`running_stats` must be one of the known names, got 'share'. Did you mean shared?"):
        nothing(nn.Linear(1, 1), running_stats="share")


def test_everything_and_nothing() -> None:
    model = SmallResNet()
    split = everything(model)
    assert (split.shared, split.personal, split.frozen) == ((), (*RESNET_PARAMETERS, *RESNET_STATISTICS), ())
    assert everything(model, running_stats="shared").shared == RESNET_STATISTICS
    split = everything(model, frozen="stem")
    assert split.frozen == (*RESNET_PARAMETERS[:3], *RESNET_STATISTICS[:3])
    assert split.shared == ()
    split = nothing(model)
    assert (split.shared, split.personal, split.frozen) == (RESNET_PARAMETERS, RESNET_STATISTICS, ())
    assert nothing(model, running_stats="shared").personal == ()
    split = by_name(model)
    assert (split.shared, split.personal) == (RESNET_PARAMETERS, RESNET_STATISTICS)


def test_everything_leaves_constants_frozen() -> None:
    model = SmallTransformer()
    assert everything(model).personal == TRANSFORMER_PARAMETERS
    assert everything(model).frozen == ("mask",)


def test_the_spec_makes_the_split_again() -> None:
    """A model of the house has a spec of its own; it must not stand in the split's."""
    model = mlp(4, 2, hidden=[3])
    split = by_name(model, personal=("head",), running_stats="shared")
    assert split.spec == {"name": "by_name", "personal": ["head"], "running_stats": "shared"}
    assert by_name(model=model, personal="head").spec == {"name": "by_name", "personal": "head"}
    assert nothing(model).spec == {"name": "nothing"}
    again = build("split", SPLITS, split.spec, extra={"model": model})
    assert (again.shared, again.personal, again.spec) == (split.shared, split.personal, split.spec)
    assert build("split", SPLITS, "everything", extra={"model": model}).shared == ()
    with expect_error("`split` must be a table of known keys for by_name, got personel. Did you mean personal?"):
        build("split", SPLITS, {"name": "by_name", "personel": ["head"]}, extra={"model": model})


def test_the_table_holds_every_builder_under_its_name() -> None:
    assert list(SPLITS) == sorted(SPLITS)
    assert set(SPLITS) == {
        *("adapters", "additive", "by_name", "everything", "fedbn", "first_block", "full", "horizontal"),
        *(
            "input_layer",
            "last_block",
            "last_feed_forward",
            "lora",
            "norms",
            "nothing",
            "output_layer",
            "peft",
            "representation",
        ),
    }
    assert all(builder.__name__ == name and builder.__doc__ for name, builder in SPLITS.items())


@st.composite
def models(draw: st.DrawFn) -> nn.Module:
    """Nested modules with norms, buffers of both kinds, frozen and tied parameters."""
    leaves = {
        "linear": lambda: nn.Linear(2, 2),
        "frozen": lambda: nn.Linear(2, 2).requires_grad_(False),
        "batch": lambda: nn.BatchNorm1d(2),
        "layer": lambda: nn.LayerNorm(2),
        "relu": nn.ReLU,
    }
    kinds = st.lists(st.sampled_from(sorted(leaves)), min_size=1, max_size=4)
    stages = [[leaves[kind]() for kind in draw(kinds)] for _ in range(draw(st.integers(1, 3)))]
    model = nn.Sequential(nn.Linear(2, 2), *[nn.Sequential(*stage) for stage in stages])
    if draw(st.booleans()):
        last = nn.Linear(2, 2)
        last.weight = model[0].weight
        model.append(last)
    for name in draw(st.lists(st.sampled_from(["b0", "b1"]), unique=True)):
        model.register_buffer(name, torch.zeros(3), persistent=draw(st.booleans()))
    return model


@settings(max_examples=80, deadline=None)
@given(model=models(), data=st.data())
def test_groups_are_disjoint_and_cover_the_model(model: nn.Module, data: st.DataObject) -> None:
    """Whatever is named personal is personal, and nothing is lost or doubled."""
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    free = sorted([n for n, p in parameters.items() if p.requires_grad] + list(buffers))
    group_of = {name: data.draw(st.sampled_from(["personal", "frozen", "shared", None])) for name in free}
    group_of |= {n: g or "frozen" for n, g in group_of.items() if n in ("b0", "b1")}
    names_of = {g: [n for n, group in group_of.items() if group == g] for g in ("personal", "frozen", "shared")}
    split = by_name(model, **names_of, running_stats=data.draw(st.sampled_from(["personal", "shared"])))
    groups = [split.shared, split.personal, split.frozen]
    assert sorted(n for group in groups for n in group) == sorted([*parameters, *buffers])
    for group, names in names_of.items():
        assert set(names) <= set(getattr(split, group))
    counts = split.counts()
    assert counts["total"] == sum(p.numel() for p in parameters.values())
    assert counts["total"] == counts["shared"] + counts["personal"] + counts["frozen"]
    values = {**parameters, **buffers}
    again = split.compose(*split.parts(values), split.select(values, split.frozen))
    assert again.keys() == values.keys()
    assert all(again[name] is values[name] for name in values)
