"""Splits by layer: the first, the last, all but the last, the normalisation layers.

A layer is the smallest module that owns parameters; multi-head attention and re-parametrised modules count as one.
Layers are in the order in which a model registers them, which is the order of its ``__init__``, not of its forward
pass: where these differ, use ``by_name``. Parameters that a module holds beside inner layers (a class token, a bias
on the outermost module) belong to no layer and are shared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.utils.parametrize import is_parametrized

from moiety.errors import must
from moiety.spec import recorded
from moiety.split.base import Split
from moiety.split.listing import Listing, Patterns, make, matched, read

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


class Layer(NamedTuple):
    """A module that is trained as one, and its dotted name."""

    name: str
    module: nn.Module


def is_norm(module: nn.Module) -> bool:
    """Whether a module is one of torch's normalisation layers, or made from one."""
    return isinstance(module, NORMS)


def layers(model: nn.Module) -> list[Layer]:
    """The layers that own parameters, in the order of registration, each once."""
    seen: set[int] = set()

    def visit(name: str, module: nn.Module) -> Iterator[Layer]:
        if id(module) in seen:
            return
        seen.add(id(module))
        inner = [(n, m) for n, m in module.named_children() if _owns(m)]
        if _owns(module) and (not inner or _one_piece(module)):
            yield Layer(name, module)
            return
        for child, below in inner:
            yield from visit(join(name, child), below)

    return list(visit("", model))


def join(module: str, name: str) -> str:
    """The dotted name of what a module calls ``name``."""
    return f"{module}.{name}" if module else name


def _owns(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _one_piece(module: nn.Module) -> bool:
    """Whether the parameters of inner modules are only a way of holding this module's own."""
    return is_norm(module) or isinstance(module, nn.MultiheadAttention) or is_parametrized(module)


@recorded
def output_layer(
    model: nn.Module, *, frozen: Patterns = (), shared: Patterns = (), running_stats: str = "personal"
) -> Split:
    """Keep the last layer that is no normalisation personal, and share what comes before.

    Output-layer personalisation of Collins et al. (2021) and Table 7 of Pillutla et al. (2022). ``frozen``,
    ``shared`` and ``running_stats`` are as in ``by_name``.

    >>> output_layer(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))).personal
    ('2.weight', '2.bias')
    """
    listing = read(model)
    proper = [layer for layer in layers(model) if not is_norm(layer.module)]
    must(bool(proper), "model", "a module with a layer that is no normalisation", type(model).__name__)
    return personal_layers("output_layer", model, listing, proper[-1:], frozen, shared, running_stats)


@recorded
def representation(
    model: nn.Module, *, frozen: Patterns = (), shared: Patterns = (), running_stats: str = "personal"
) -> Split:
    """Share the last layer that is no normalisation, and keep all that comes before personal.

    The other way round than ``output_layer``: local representations of Liang et al. (2020). ``frozen``, ``shared`` and
    ``running_stats`` are as in ``by_name``.

    >>> representation(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))).shared
    ('2.weight', '2.bias')
    """
    head = output_layer(model, frozen=frozen, shared=shared, running_stats=running_stats).trained_personal
    listing = read(model)
    named = _groups(listing, set(), frozen, shared)
    personal = set(listing.trainable).difference(head, named["frozen"], named["shared"])
    must(bool(personal), "model", "one with trained layers before the last", type(model).__name__)
    return make(listing, {**named, "personal": personal}, running_stats)


@recorded
def input_layer(
    model: nn.Module, *, frozen: Patterns = (), shared: Patterns = (), running_stats: str = "personal"
) -> Split:
    """Keep the first layer personal, with a normalisation right after it, and share the rest.

    Input-layer personalisation of Liang et al. (2019) and Table 7 of Pillutla et al. (2022). ``frozen``, ``shared``
    and ``running_stats`` are as in ``by_name``.

    >>> input_layer(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))).personal
    ('0.weight', '0.bias', '1.weight', '1.bias')
    """
    listing = read(model)
    found = layers(model)
    first = next((place for place, layer in enumerate(found) if not is_norm(layer.module)), None)
    must(first is not None, "model", "a module with a layer that is no normalisation", type(model).__name__)
    start = first or 0
    after = [layer for layer in found[start + 1 : start + 2] if is_norm(layer.module)]
    return personal_layers("input_layer", model, listing, [found[start], *after], frozen, shared, running_stats)


@recorded
def norms(model: nn.Module, *, frozen: Patterns = (), shared: Patterns = (), running_stats: str = "personal") -> Split:
    """Keep the normalisation layers personal, and share all others.

    With ``running_stats="shared"`` their weights and biases are personal but not what they have seen. ``frozen`` and
    ``shared`` are as in ``by_name``.

    >>> norms(nn.Sequential(nn.Linear(4, 3), nn.GroupNorm(1, 3), nn.Linear(3, 2))).personal
    ('1.weight', '1.bias')
    """
    kinds = "BatchNorm, InstanceNorm, GroupNorm, LayerNorm or RMSNorm"
    return _kept(model, NORMS, kinds, _groups(read(model), set(), frozen, shared), running_stats)


@recorded
def fedbn(model: nn.Module, *, frozen: Patterns = (), shared: Patterns = ()) -> Split:
    """Keep BatchNorm layers personal, their running statistics included, and share all others.

    FedBN (Li, Jiang, Zhang, Kamp, Dou 2021) is this split with ``moiety.fedsim`` at one learning rate and
    ``weighting="uniform"``: clients train the whole model, and the plain mean is taken of all but BatchNorm. Unlike in
    ``norms``, normalisation layers of other kinds are shared. ``frozen`` and ``shared`` are as in ``by_name``.

    >>> fedbn(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.LayerNorm(3))).trained_personal
    ('1.weight', '1.bias')
    """
    return _kept(model, (_BatchNorm,), "BatchNorm", _groups(read(model), set(), frozen, shared), "personal")


def _kept(
    model: nn.Module, kinds: tuple[type[nn.Module], ...], text: str, named: dict[str, set[str]], running_stats: str
) -> Split:
    """Make the normalisation layers of these kinds personal."""
    listing = read(model)
    own = {id(value): name for name, value in listing.parameters.items()}
    layers = [module for module in model.modules() if isinstance(module, kinds)]
    inside = [value for module in layers for value in module.parameters()]
    split = make(listing, {**named, "personal": {own[id(value)] for value in inside}}, running_stats)
    hint = "Name a normalisation of another kind with by_name."
    must(
        bool(layers and split.personal),
        "model",
        f"a module with {text} to keep",
        f"none in {type(model).__name__}",
        hint,
    )
    return split


def _groups(listing: Listing, personal: set[str], frozen: Patterns, shared: Patterns) -> dict[str, set[str]]:
    still, common = matched(listing, "frozen", frozen), matched(listing, "shared", shared)
    return {"personal": personal, "frozen": still, "shared": common}


def personal_layers(
    builder: str,
    model: nn.Module,
    listing: Listing,
    chosen: list[Layer],
    frozen: Patterns,
    shared: Patterns,
    running_stats: str,
) -> Split:
    """Make the chosen layers personal; a parameter that another layer uses too cannot be."""
    own = {id(value): name for name, value in listing.parameters.items()}
    inside = {id(module) for layer in chosen for module in layer.module.modules()}
    outside = [(name, module) for name, module in model.named_modules() if id(module) not in inside]
    used = {id(value): join(name, p) for name, module in outside for p, value in module._parameters.items()}
    personal: set[str] = set()
    for layer in chosen:
        for name, value in layer.module.named_parameters():
            elsewhere = used.get(id(value))
            got = f"{join(layer.name, name)} tied to {elsewhere}"
            hint = f"Say with by_name what is personal instead of {builder}."
            must(elsewhere is None, "model", "one whose chosen layer has its parameters to itself", got, hint)
            personal.add(own[id(value)])
    return make(listing, _groups(listing, personal, frozen, shared), running_stats)
