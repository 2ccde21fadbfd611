"""Splits by layer: the first, the last, all but the last, the normalisation layers, transformer blocks.

A layer is the smallest module that owns parameters; multi-head attention and re-parametrised modules count as one.
Layers are in the order in which a model registers them, which is the order of its ``__init__``, not of its forward
pass: where these differ, use ``by_name``. Parameters that a module holds next to inner layers (a class token, a bias
on the outermost module) belong to no layer and are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.utils.parametrize import is_parametrized

from moiety.errors import must
from moiety.spec import recorded
from moiety.split.base import Split
from moiety.split.names import Listing, Patterns, read_names

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


class Layer(NamedTuple):
    """A module that is trained as one, and its dotted name."""

    name: str
    module: nn.Module


def is_norm(module: nn.Module) -> bool:
    """Whether a module is one of torch's normalisation layers, derived from one, or a library's own (LlamaRMSNorm)."""
    own = type(module).__name__.endswith(("RMSNorm", "LayerNorm")) and not any(True for _ in module.children())
    return isinstance(module, NORMS) or (own and _has_parameters(module))


def list_layers(model: nn.Module) -> list[Layer]:
    """The layers that own parameters, in the order of registration, each once."""
    ids: set[int] = set()

    def visit(name: str, module: nn.Module) -> Iterator[Layer]:
        if id(module) in ids:
            return
        ids.add(id(module))
        inner = [(n, m) for n, m in module.named_children() if _has_parameters(m)]
        if _has_parameters(module) and (not inner or _is_one_layer(module)):
            yield Layer(name, module)
            return
        for child, below in inner:
            yield from visit(join_names(name, child), below)

    return list(visit("", model))


def is_conv1d(module: nn.Module) -> bool:
    """Whether a module is the linear layer of GPT-2, whose weight is [inputs, outputs]."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def join_names(module: str, name: str) -> str:
    """The dotted name of what a module calls ``name``."""
    return f"{module}.{name}" if module else name


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _is_one_layer(module: nn.Module) -> bool:
    """Whether the parameters of inner modules are only a way to store this module's own."""
    return is_norm(module) or isinstance(module, nn.MultiheadAttention) or is_parametrized(module)


ATTENTION = ("attention", "attn", "self_attn", "self_attention")
"""What libraries call the attention of a transformer block."""
FEED_FORWARD = ("feed_forward", "ffn", "mlp")
"""What they call its feed-forward part, where that is one module."""
HEADS = ("classifier", "score", "fc", "head", "lm_head", "qa_outputs")
"""What they call the last layer, or the small module that holds it."""


class TransformerBlock(NamedTuple):
    """A transformer block: the names of the modules whose outputs are those of its two parts, seen from the block.

    ``feed_forward`` names what holds the second part, which is the whole block where it is no module by itself.
    """

    name: str
    module: nn.Module
    attention: str
    last: str
    feed_forward: str


def find_transformer_blocks(model: nn.Module) -> list[TransformerBlock]:
    """The transformer blocks of torch, moiety, transformers, timm and torchvision, in the order of registration.

    A block has a child called as in ``ATTENTION``, and for its feed-forward part one called as in ``FEED_FORWARD``, or
    ``intermediate`` and ``output`` (BERT, ViT), or two linear layers (``linear2`` of torch, ``fc2`` of OPT).
    """
    blocks = (_read_block(name, module) for name, module in model.named_modules())
    return [block for block in blocks if block is not None]


def _read_block(name: str, module: nn.Module) -> TransformerBlock | None:
    children = {child for child, inside in module.named_children() if _has_parameters(inside)}
    attention = next((child for child in ATTENTION if child in children), None)
    if attention is None:
        return None
    if hasattr(getattr(module.get_submodule(attention), "output", None), "dense"):  # BERT adds and normalises there
        attention += ".output.dense"
    whole = next((child for child in FEED_FORWARD if child in children), None)
    if whole is not None:
        return TransformerBlock(name, module, attention, whole, whole)
    if {"intermediate", "output"} <= children:
        return TransformerBlock(name, module, attention, "output.dense", "output")
    pairs = (("linear1", "linear2"), ("fc1", "fc2"))
    last = next((second for first, second in pairs if {first, second} <= children), None)
    return None if last is None else TransformerBlock(name, module, attention, last, "")


def find_head(model: nn.Module) -> list[Layer]:
    """The last layer that is no normalisation, within the head where the model has one of a known name."""
    every = _list_proper_layers(model)
    heads = [name for name, _ in model.named_children() if name in HEADS]
    within = [layer for layer in every if heads and layer.name.split(".")[0] == heads[-1]]
    layers = [layer for layer in within if not is_norm(layer.module)]
    return (layers or [layer for layer in every if not is_norm(layer.module)])[-1:]


class LayerSplit(Protocol):
    """A builder that makes some layers personal; its options are those of ``by_name``."""

    __name__: str

    def __call__(
        self, model: nn.Module, *, frozen: Patterns = (), shared: Patterns = (), running_stats: str = "personal"
    ) -> Split:
        """The split of ``model``."""


def keep_personal(choose: Callable[[nn.Module], list[Layer]]) -> LayerSplit:
    """Make a builder of a function that says which layers are personal; it takes the function's name and docstring."""

    def split(
        model: nn.Module, *, frozen: Patterns = (), shared: Patterns = (), running_stats: str = "personal"
    ) -> Split:
        listing = read_names(model)
        return _split_layers(listing, choose(model), choose.__name__, frozen, shared, running_stats)

    split.__name__ = split.__qualname__ = choose.__name__
    split.__doc__, split.__module__ = choose.__doc__, choose.__module__
    return recorded(split)


def _split_layers(
    listing: Listing, personal: list[Layer], builder: str, frozen: Patterns, shared: Patterns, running_stats: str
) -> Split:
    """The split in which the parameters of some layers are personal."""
    check_not_tied(listing.module, personal, builder)
    names = listing.names_of(value for layer in personal for value in layer.module.parameters())
    return listing.split({**listing.match(frozen=frozen, shared=shared), "personal": names}, running_stats)


def check_not_tied(model: nn.Module, personal: list[Layer], builder: str) -> None:
    """Raise where another layer uses a parameter of the personal ones too."""
    inside = {id(module) for layer in personal for module in layer.module.modules()}
    outside = [(name, module) for name, module in model.named_modules() if id(module) not in inside]
    names = {id(value): join_names(name, p) for name, module in outside for p, value in module._parameters.items()}
    for layer in personal:
        for name, value in layer.module.named_parameters():
            elsewhere = names.get(id(value))
            fault = f"{join_names(layer.name, name)} tied to {elsewhere}"
            hint = f"Say with by_name what is personal instead of {builder}."
            must(elsewhere is None, "model", "one whose chosen layer has its parameters to itself", fault, hint)


@keep_personal
def output_layer(model: nn.Module) -> list[Layer]:
    """Keep the last layer that is no normalisation personal, and share what comes before.

    Output-layer personalisation of Collins et al. (2021) and Table 7 of Pillutla et al. (2022). Where the model has a
    child called ``classifier``, ``score``, ``fc``, ``head``, ``lm_head`` or ``qa_outputs``, it is the last layer in
    there. ``frozen``, ``shared`` and ``running_stats`` are as in ``by_name``.

    >>> output_layer(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))).personal
    ('2.weight', '2.bias')
    """
    return find_head(model)


@keep_personal
def input_layer(model: nn.Module) -> list[Layer]:
    """Keep the first layer personal, with a normalisation right after it, and share the rest.

    Input-layer personalisation of Liang et al. (2019) and Table 7 of Pillutla et al. (2022). ``frozen``, ``shared``
    and ``running_stats`` are as in ``by_name``.

    >>> input_layer(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))).personal
    ('0.weight', '0.bias', '1.weight', '1.bias')
    """
    every = _list_proper_layers(model)
    first = next(place for place, layer in enumerate(every) if not is_norm(layer.module))
    return [every[first], *(layer for layer in every[first + 1 : first + 2] if is_norm(layer.module))]


def _list_proper_layers(model: nn.Module) -> list[Layer]:
    """The layers of a model; raise where all of them are normalisations."""
    every = list_layers(model)
    proper = not all(is_norm(layer.module) for layer in every)
    must(proper, "model", "a module with a layer that is no normalisation", type(model).__name__)
    return every


@keep_personal
def first_block(model: nn.Module) -> list[Layer]:
    """Keep the first transformer block personal, and share the rest.

    Input-layer personalisation of a language model, whose embedding is too large for it (Table 5 of Pillutla et al.
    2022). ``frozen``, ``shared`` and ``running_stats`` are as in ``by_name``.

    >>> import moiety as mo
    >>> net = mo.models.transformer_lm(vocabulary=9, length=4, width=4, blocks=2, heads=1, feed_forward=8)
    >>> mo.split.first_block(net).personal[0]
    'blocks.0.attention.query.weight'
    """
    return [Layer(*block[:2]) for block in _require_blocks(model)[:1]]


@keep_personal
def last_block(model: nn.Module) -> list[Layer]:
    """Keep the last transformer block personal, and share the rest.

    Output-layer personalisation of a language model (Table 5 of Pillutla et al. 2022). ``frozen``, ``shared`` and
    ``running_stats`` are as in ``by_name``.

    >>> import moiety as mo
    >>> net = mo.models.transformer_lm(vocabulary=9, length=4, width=4, blocks=2, heads=1, feed_forward=8)
    >>> mo.split.last_block(net).personal[0]
    'blocks.1.attention.query.weight'
    """
    return [Layer(*block[:2]) for block in _require_blocks(model)[-1:]]


@keep_personal
def last_feed_forward(model: nn.Module) -> list[Layer]:
    """Keep the second feed-forward layer of the last transformer block personal, and share the rest.

    Output-layer personalisation of a speech model (Table 8 of Pillutla et al. 2022). The layer is the last linear one
    in ``feed_forward``, in the order of registration. ``frozen``, ``shared`` and ``running_stats`` are as in
    ``by_name``.

    >>> import moiety as mo
    >>> net = mo.models.transformer_lm(vocabulary=9, length=4, width=4, blocks=2, heads=1, feed_forward=8)
    >>> mo.split.last_feed_forward(net).personal
    ('blocks.1.feed_forward.second.weight', 'blocks.1.feed_forward.second.bias')
    """
    name, block, _, _, part = _require_blocks(model)[-1]
    inside = [Layer(join_names(join_names(name, part), n), m) for n, m in block.get_submodule(part).named_modules()]
    linear = [layer for layer in inside if isinstance(layer.module, nn.Linear) or is_conv1d(layer.module)]
    must(bool(linear), "model", f"one with a linear layer in {join_names(name, part)}", type(model).__name__)
    return linear[-1:]


def _require_blocks(model: nn.Module) -> list[TransformerBlock]:
    """The transformer blocks; raise where there are none."""
    blocks = find_transformer_blocks(model)
    kinds = "with children such as attention and feed_forward, or attn and mlp"
    hint = "Say with by_name what is personal."
    must(bool(blocks), "model", f"a module with transformer blocks ({kinds})", type(model).__name__, hint)
    return blocks


@recorded
def representation(
    model: nn.Module, *, frozen: Patterns = (), shared: Patterns = (), running_stats: str = "personal"
) -> Split:
    """Share the last layer that is no normalisation, and keep all that comes before personal.

    The opposite of ``output_layer``: local representations of Liang et al. (2020). ``frozen``, ``shared`` and
    ``running_stats`` are as in ``by_name``.

    >>> representation(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))).shared
    ('2.weight', '2.bias')
    """
    head = output_layer(model, frozen=frozen, shared=shared, running_stats=running_stats).trained_personal
    listing = read_names(model)
    personal = set(listing.trainable).difference(head)
    split = listing.split_personal(personal, frozen=frozen, shared=shared, running_stats=running_stats)
    must(bool(split.trained_personal), "model", "one with trained layers before the last", type(model).__name__)
    return split


@recorded
def norms(model: nn.Module, *, frozen: Patterns = (), shared: Patterns = (), running_stats: str = "personal") -> Split:
    """Keep the normalisation layers personal, and share all others.

    With ``running_stats="shared"`` their weights and biases are personal but not what they have seen. ``frozen`` and
    ``shared`` are as in ``by_name``.

    >>> norms(nn.Sequential(nn.Linear(4, 3), nn.GroupNorm(1, 3), nn.Linear(3, 2))).personal
    ('1.weight', '1.bias')
    """
    kinds = "BatchNorm, InstanceNorm, GroupNorm, LayerNorm or RMSNorm"
    return _split_norms(model, is_norm, kinds, frozen, shared, running_stats)


@recorded
def fedbn(model: nn.Module, *, frozen: Patterns = (), shared: Patterns = ()) -> Split:
    """Keep BatchNorm layers personal, their running statistics included, and share all others.

    FedBN (Li, Jiang, Zhang, Kamp, Dou 2021) is this split with ``moiety.fedsim`` at one learning rate and
    ``weighting="uniform"``: clients train the whole model, and all but BatchNorm is averaged without weights. Unlike in
    ``norms``, normalisation layers of other kinds are shared. ``frozen`` and ``shared`` are as in ``by_name``.

    >>> fedbn(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.LayerNorm(3))).trained_personal
    ('1.weight', '1.bias')
    """
    return _split_norms(model, _is_batch_norm, "BatchNorm", frozen, shared, "personal")


def _is_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm)


def _split_norms(
    model: nn.Module,
    is_one: Callable[[nn.Module], bool],
    what: str,
    frozen: Patterns,
    shared: Patterns,
    running_stats: str,
) -> Split:
    """The split in which the normalisation layers of these kinds are personal."""
    listing = read_names(model)
    norms = [Layer(name, module) for name, module in model.named_modules() if is_one(module)]
    split = _split_layers(listing, norms, "this split", frozen, shared, running_stats)
    fault, hint = f"none in {type(model).__name__}", "Name a normalisation of another kind with by_name."
    must(bool(norms and split.personal), "model", f"a module with {what} to keep", fault, hint)
    return split
