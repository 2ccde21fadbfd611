"""Adapters: small personal modules inside a shared model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import NamedTuple

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from moiety.errors import must, near, whole
from moiety.random import torch_seed
from moiety.spec import recorded
from moiety.split.base import Split, fingerprint
from moiety.split.blocks import transformer_blocks
from moiety.split.grafts import CONVS, Bottleneck, Conv, Hook, Residual, after, attach, beside
from moiety.split.layers import Layer, is_norm, join, layers
from moiety.split.listing import Patterns, listed, make, matched, read


class Spot(NamedTuple):
    """A module to adapt, the hook that does it, and the maker of the adapter."""

    name: str
    module: nn.Module
    hook: Hook
    make: Callable[[], nn.Module]


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

    - Transformer blocks (modules with children ``attention`` and ``feed_forward``) get two bottleneck adapters of
      Houlsby et al. (2019): one on the output of ``attention``, one beside ``feed_forward``, from the same input.
      ``nn.TransformerEncoderLayer`` has no such module for the second: there it follows ``linear2``.
    - Residual blocks get a residual adapter of Rebuffi et al. (2017) after every 3 x 3 convolution. Its normalisation
      is like the one that follows the convolution; where none follows, it has one group.

    Adapters start from weights drawn once from ``seed``, the same for all clients, so small that the model does
    almost what it did.

    Args:
        model: the module to split; it is not changed.
        width: hidden units of bottleneck adapters; residual adapters are square.
        targets: globs on the names of modules to adapt, instead of the blocks above. Convolutions get residual
            adapters; other modules with an output of known width get bottleneck adapters on that output.
        norms: whether the normalisation layers are personal too, but for those on the shortcuts of residual blocks.
        seed: of the adapters' first weights.
        frozen: what nobody trains, by patterns on the given model's names; ``*`` leaves the adapters alone to train.
        shared: likewise what is shared (a norm, a buffer).
        running_stats: ``personal`` or ``shared``, as in ``by_name``.

    >>> net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    >>> adapters(net, width=3, targets="0").personal
    ('0.adapter.down.weight', '0.adapter.down.bias', '0.adapter.up.weight', '0.adapter.up.bias')
    """
    whole("width", width, 1)
    whole("seed", seed, 0)
    base = read(model)
    named = {"frozen": matched(base, "frozen", frozen), "shared": matched(base, "shared", shared)}
    grown = copy.deepcopy(model)
    kept = _personal_norms(grown) - named["frozen"] - named["shared"] if norms else set()
    spots = _targeted(grown, targets, width) if targets else [*_transformer(grown, width), *_convolutional(grown)]
    blocks = "transformer blocks (with attention and feed_forward, or nn.TransformerEncoderLayer) or residual blocks"
    hint = "Name the modules to adapt with targets=[...]."
    must(bool(spots), "model", f"a module with {blocks} of 3 x 3 convolutions and norms", type(model).__name__, hint)
    like = next(grown.parameters())
    with torch_seed(seed, "adapters"):
        for spot in spots:
            attach(spot.module, spot.name, spot.make(), spot.hook, like)
    listing = read(grown)
    new = set(listing.parameters) - set(base.parameters)
    split = make(listing, {"personal": new | kept, **named}, running_stats)
    return replace(split, model=grown, source=fingerprint(model))


def _transformer(model: nn.Module, width: int) -> Iterator[Spot]:
    """The two places in every transformer block."""
    for name, block in transformer_blocks(model):
        if isinstance(block, nn.TransformerEncoderLayer):
            places = [("self_attn", after), ("linear2", after)]
            size = block.linear2.out_features
        else:
            places = [("attention", after), ("feed_forward", beside)]
            size = _size(join(name, "feed_forward"), block.get_submodule("feed_forward"))
        for child, hook in places:
            make = partial(Bottleneck, size, width)
            yield Spot(join(name, child), block.get_submodule(child), hook, make)


def _convolutional(model: nn.Module) -> Iterator[Spot]:
    """The 3 x 3 convolutions of residual blocks."""
    order = layers(model)
    for name, block in _residual_blocks(model):
        for child, conv in block.named_children():
            if isinstance(conv, nn.Conv2d) and conv.kernel_size == (3, 3):
                yield Spot(join(name, child), conv, after, partial(Residual, conv, _norm_like(order, conv)))


def _residual_blocks(model: nn.Module) -> list[Layer]:
    """Modules inside the model with two or more convolutions, one of them 3 x 3, and as many norms, as children.

    ``nn.Sequential`` adds nothing to its output, so it is no such block: neither the stem of a network nor a chain of
    convolutions is taken for one.
    """
    found = []
    for name, module in model.named_modules():
        convs = [child for child in module.children() if isinstance(child, nn.Conv2d)]
        norms = [child for child in module.children() if is_norm(child)]
        small = any(conv.kernel_size == (3, 3) for conv in convs)
        if name and not isinstance(module, nn.Sequential) and small and len(norms) >= len(convs) >= 2:
            found.append(Layer(name, module))
    return found


def _norm_like(order: list[Layer], conv: Conv) -> nn.Module:
    """A fresh norm like the first that comes after the convolution, if that has as many channels."""
    channels = conv.out_channels
    at = next((place for place, layer in enumerate(order) if layer.module is conv), len(order))
    following = next((layer.module for layer in order[at:] if is_norm(layer.module)), None)
    if isinstance(following, nn.GroupNorm) and following.num_channels == channels:
        return nn.GroupNorm(following.num_groups, channels, eps=following.eps)
    if isinstance(following, _NormBase) and following.num_features == channels:
        fresh = copy.deepcopy(following).requires_grad_()
        fresh.reset_parameters()
        return fresh
    return nn.GroupNorm(1, channels)


def _targeted(model: nn.Module, targets: Patterns, width: int) -> list[Spot]:
    """The modules that the user's globs name, each once."""
    order, modules = layers(model), {name: module for name, module in model.named_modules() if name}
    spots: dict[str, Spot] = {}
    for pattern in listed("targets", targets):
        hits = [name for name in modules if fnmatchcase(name, pattern)]
        must(bool(hits), "targets", "globs that each match a module", repr(pattern), near(pattern, modules))
        for name in hits:
            module = modules[name]
            if isinstance(module, CONVS):
                spots[name] = Spot(name, module, after, partial(Residual, module, _norm_like(order, module)))
            else:
                spots[name] = Spot(name, module, after, partial(Bottleneck, _size(name, module), width))
    return list(spots.values())


def _size(name: str, module: nn.Module) -> int:
    """How wide a module's output is: as its last linear layer, embedding or layer norm in order of registration."""
    known = [m for m in module.modules() if isinstance(m, nn.Linear | nn.Embedding | nn.LayerNorm)]
    hint = "Give a convolution, or a module with a linear layer."
    must(bool(known), "targets", "modules with an output of known width", f"{name} ({type(module).__name__})", hint)
    last = known[-1]
    if isinstance(last, nn.Linear):
        return last.out_features
    return last.embedding_dim if isinstance(last, nn.Embedding) else int(last.normalized_shape[-1])


def _personal_norms(model: nn.Module) -> set[str]:
    """The parameters of all normalisation layers but those on the shortcuts of residual blocks."""
    aside = {
        id(module)
        for _, block in _residual_blocks(model)
        for child in block.children()
        for module in child.modules()
        if not is_norm(child)
    }
    kept = [m for m in model.modules() if is_norm(m) and id(m) not in aside]
    own = {id(value): name for name, value in model.named_parameters()}
    return {own[id(value)] for norm in kept for value in norm.parameters() if value.requires_grad}
