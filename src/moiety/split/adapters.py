"""Adapters and low-rank updates: small personal modules inside a shared model."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import TypeVar, cast

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from moiety.errors import must, near, positive, whole
from moiety.spec import recorded
from moiety.split.base import Split, list_first
from moiety.split.grafts import (
    CONVS,
    Bottleneck,
    Conv,
    LowRank,
    Residual,
    Spot,
    adapt_output,
    add_branch,
    graft,
    layer_sides,
)
from moiety.split.layers import Layer, find_head, find_transformer_blocks, is_conv1d, is_norm, join_names, list_layers
from moiety.split.names import Patterns, as_list, matches, read_names

M = TypeVar("M", bound=nn.Module)


@recorded
def adapters(
    model: nn.Module,
    *,
    width: int = 16,
    targets: Patterns = (),
    norms: bool = True,
    seed: int = 0,
    frozen: Patterns = (),
    shared: Patterns = (),
    running_stats: str = "personal",
) -> Split:
    """Put personal adapters into a shared transformer or residual network.

    Figure 2a and the adapter rows of Tables 5 to 8 of Pillutla et al. (2022). The model is copied and the adapters are
    put into the copy, ``split.model``; names and values of the model's own parameters stay as they are. Give ``fit``
    the model itself, or ``split.model``.

    - Transformer blocks get two bottleneck adapters of Houlsby et al. (2019), each before what the part gives is added
      to its input: one on the output of attention, one on that of the feed-forward part. In blocks with a child
      ``feed_forward``, as moiety's own, the second is parallel to it, on the same input. Known are the blocks of torch,
      transformers (BERT, RoBERTa, DistilBERT, GPT-2, Llama, ViT and their like), timm and torchvision.
    - Residual blocks get a residual adapter of Rebuffi et al. (2017) after every 3 x 3 convolution. Its normalisation
      is like the one that follows the convolution; where none follows, it has one group.

    Adapters start from weights drawn once from ``seed``, the same for all clients, so small that the model's outputs
    hardly change.

    Args:
        model: the module to split; it is not changed.
        width: hidden units of bottleneck adapters; residual adapters are square.
        targets: globs on the names of modules to adapt, instead of the blocks above. Convolutions get residual
            adapters; other modules with an output of known width get bottleneck adapters on that output.
        norms: whether the normalisation layers are personal too, but for those on the shortcuts of residual blocks.
        seed: seed of the adapters' first weights.
        frozen: what nobody trains, by patterns on the given model's names; with ``*`` only the adapters are trained.
        shared: what is shared (a norm, a buffer), likewise.
        running_stats: ``personal`` or ``shared``, as in ``by_name``.

    >>> net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    >>> adapters(net, width=3, targets="0").personal
    ('0.adapter.down.weight', '0.adapter.down.bias', '0.adapter.up.weight', '0.adapter.up.bias')
    """
    whole("width", width, 1)

    def find(clone: nn.Module) -> list[Spot]:
        if targets:
            return _find_spots(clone, targets, width)
        spots = [*_find_in_transformer_blocks(clone, width), *_find_in_residual_blocks(clone)]
        constraint = "a module with transformer blocks, or with residual blocks of 3 x 3 convolutions and norms"
        hint = f"Name the modules to adapt with targets=[...], for instance {_list_candidates(clone, CONVS)}."
        must(bool(spots), "model", constraint, type(model).__name__, hint)
        return spots

    patterns = {"frozen": frozen, "shared": shared}
    personal = _find_personal_norms if norms else lambda clone: set()
    return graft(model, find, seed, "adapters", **patterns, running_stats=running_stats, personal=personal)


@recorded
def lora(
    model: nn.Module,
    *,
    rank: int,
    targets: Patterns = "*",
    alpha: float | None = None,
    seed: int = 0,
    frozen: Patterns = (),
    shared: Patterns = (),
    running_stats: str = "personal",
) -> Split:
    """Give layers a personal update of low rank: W x + (alpha / rank) B A x.

    Hu et al. (2021). A starts from N(0, 1/inputs) and B at 0, so the model's outputs do not change at first. The model
    is copied and the updates are put into the copy, ``split.model``; names and values of the model's own parameters
    stay as they are, and these are shared: the shared phase of an algorithm trains them. With ``frozen="*"`` nobody
    does, which is LoRA as published.

    Args:
        model: the module to split; it is not changed.
        rank: rank of the update. A layer whose smaller side is less gets an update of that rank, with a warning.
        targets: globs on the names of layers or of modules that hold some; by default all linear layers (``nn.Linear``,
            and ``Conv1D`` of GPT-2), of which some must be no output layer. ``nn.Conv2d`` layers are adapted only where
            named: A is then a convolution of the same kernel to ``rank`` channels and B one of 1 x 1. The layers inside
            ``nn.MultiheadAttention`` are not adapted, since torch uses their weights without calling them.
        alpha: the update is scaled by alpha / rank; by default by 1.
        seed: seed of the first A.
        frozen: what nobody trains, by patterns on the given model's names.
        shared: buffers to share, likewise.
        running_stats: ``personal`` or ``shared``, as in ``by_name``.

    >>> net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    >>> lora(net, rank=2, targets="0").personal
    ('0.adapter.down.weight', '0.adapter.up.weight')
    """
    whole("rank", rank, 1)
    if alpha is not None:
        positive("alpha", alpha)

    def find(clone: nn.Module) -> Iterator[Spot]:
        small: dict[str, int] = {}
        for name, layer in _find_low_rank_layers(clone, targets).items():
            own = min(rank, *layer_sides(layer))
            if own < rank:
                small[name] = own
            yield Spot(name, layer, add_branch, partial(LowRank, layer, own, 1.0 if alpha is None else alpha / own))
        if small:
            layers = list_first([f"{name} {own}" for name, own in small.items()])
            warnings.warn(
                f"`rank` {rank} is more than the smaller side of some layers, which get less: {layers}.", stacklevel=4
            )

    return graft(model, find, seed, "lora", frozen=frozen, shared=shared, running_stats=running_stats)


def _find_in_transformer_blocks(model: nn.Module, width: int) -> Iterator[Spot]:
    """The two places for adapters in every transformer block."""
    for block in find_transformer_blocks(model):
        size = _get_output_width(join_names(block.name, block.last), block.module.get_submodule(block.last))
        hooks = {block.attention: adapt_output, block.last: adapt_output}
        if block.last == "feed_forward":
            hooks[block.last] = add_branch
        for child, hook in hooks.items():
            place = join_names(block.name, child)
            yield Spot(place, block.module.get_submodule(child), hook, partial(Bottleneck, size, width))


def _find_in_residual_blocks(model: nn.Module) -> Iterator[Spot]:
    """The 3 x 3 convolutions of residual blocks."""
    order = list_layers(model)
    for name, block in _find_residual_blocks(model):
        for child, conv in block.named_children():
            if isinstance(conv, nn.Conv2d) and conv.kernel_size == (3, 3):
                yield _make_residual_spot(join_names(name, child), conv, order)


def _make_residual_spot(name: str, conv: Conv, order: list[Layer]) -> Spot:
    return Spot(name, conv, adapt_output, partial(Residual, conv, _make_norm_like(order, conv)))


def _find_residual_blocks(model: nn.Module) -> list[Layer]:
    """Modules inside the model with two or more convolutions, one of them 3 x 3, and as many norms, as children.

    ``nn.Sequential`` adds nothing to its output, so it is no such block: neither the stem of a network nor a chain of
    convolutions counts as one.
    """

    def is_block(module: nn.Module) -> bool:
        convs = [child for child in module.children() if isinstance(child, nn.Conv2d)]
        norms = [child for child in module.children() if is_norm(child)]
        small = any(conv.kernel_size == (3, 3) for conv in convs)
        return not isinstance(module, nn.Sequential) and small and len(norms) >= len(convs) >= 2

    return [Layer(name, module) for name, module in model.named_modules() if name and is_block(module)]


def _make_norm_like(order: list[Layer], conv: Conv) -> nn.Module:
    """A new norm like the first one after the convolution, if that has as many channels."""
    channels = conv.out_channels
    at = next((place for place, layer in enumerate(order) if layer.module is conv), len(order))
    neighbour = next((layer.module for layer in order[at:] if is_norm(layer.module)), None)
    if isinstance(neighbour, nn.GroupNorm) and neighbour.num_channels == channels:
        return nn.GroupNorm(neighbour.num_groups, channels, eps=neighbour.eps)
    if isinstance(neighbour, _NormBase) and neighbour.num_features == channels:
        norm = copy.deepcopy(neighbour).requires_grad_()
        norm.reset_parameters()
        return norm
    return nn.GroupNorm(1, channels)


def _find_spots(model: nn.Module, targets: Patterns, width: int) -> list[Spot]:
    """The modules that the user's globs name, each once."""
    order, modules = list_layers(model), {name: module for name, module in model.named_modules() if name}
    spots = []
    for name, module in _match_targets(modules, targets, fnmatchcase, "a module").items():
        if isinstance(module, CONVS):
            spots.append(_make_residual_spot(name, module, order))
        else:
            spots.append(Spot(name, module, adapt_output, partial(Bottleneck, _get_output_width(name, module), width)))
    return spots


def _match_targets(
    modules: Mapping[str, M], targets: Patterns, matches: Callable[[str, str], bool], what: str
) -> dict[str, M]:
    """The modules that the globs match, each once; raise where a glob matches none."""
    layers: dict[str, M] = {}
    for pattern in as_list("targets", targets):
        matching = {name: module for name, module in modules.items() if matches(name, pattern)}
        must(bool(matching), "targets", f"globs that each match {what}", repr(pattern), near(pattern, modules))
        layers |= matching
    return layers


def _get_output_width(name: str, module: nn.Module) -> int:
    """The width of a module's output: that of its last linear layer, embedding or layer norm, as registered."""
    kinds = (nn.Linear, nn.Embedding, nn.LayerNorm)
    layers = [m for m in module.modules() if isinstance(m, kinds) or is_conv1d(m)]
    hint = "Give a convolution, or a module with a linear layer."
    must(bool(layers), "targets", "modules with an output of known width", f"{name} ({type(module).__name__})", hint)
    last = layers[-1]
    if isinstance(last, nn.Linear):
        return last.out_features
    if is_conv1d(last):
        return layer_sides(last)[1]
    return last.embedding_dim if isinstance(last, nn.Embedding) else int(cast(nn.LayerNorm, last).normalized_shape[-1])


def _find_personal_norms(model: nn.Module) -> set[str]:
    """The parameters of all normalisation layers but those on the shortcuts of residual blocks."""
    shortcuts = {
        id(module)
        for _, block in _find_residual_blocks(model)
        for child in block.children()
        for module in child.modules()
        if not is_norm(child)
    }
    norms = [module for module in model.modules() if is_norm(module) and id(module) not in shortcuts]
    return read_names(model).names_of(value for norm in norms for value in norm.parameters() if value.requires_grad)


def _find_low_rank_layers(model: nn.Module, targets: Patterns) -> dict[str, nn.Module]:
    """The layers that the globs match. By default all linear ones, where these are more than the output layer."""
    attention = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    inside = {id(m) for module in attention for m in module.modules()}
    modules = {n: m for n, m in model.named_modules() if id(m) not in inside}
    linear = {n: m for n, m in modules.items() if isinstance(m, nn.Linear) or is_conv1d(m)}
    convs = {n: m for n, m in modules.items() if isinstance(m, nn.Conv2d) and m.groups == 1}
    if targets != "*":
        layers = _match_targets({**linear, **convs}, targets, matches, "a linear layer or an nn.Conv2d that is called")
        must(bool(layers), "targets", "at least one glob", repr(targets))
        return layers
    head = {id(layer.module) for layer in find_head(model)}
    hint = f"Name the layers to adapt, for instance targets=[{_list_candidates(model, (nn.Conv2d,))}]."
    fault = f"{', '.join(linear) or 'no linear layer'} alone in {type(model).__name__}"
    others = [layer for layer in list_layers(model) if not is_norm(layer.module) and id(layer.module) not in head]
    enough = not others or any(id(layer) not in head for layer in linear.values())
    must(bool(linear) and enough, "targets", "given where only an output layer is linear, or nothing", fault, hint)
    return linear


def _list_candidates(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> str:
    """Names of layers that could be adapted, the first few."""
    names = [n for n, m in model.named_modules() if isinstance(m, (nn.Linear, *kinds)) and getattr(m, "groups", 1) == 1]
    return list_first([repr(name) for name in names if name], 6) or "none"
