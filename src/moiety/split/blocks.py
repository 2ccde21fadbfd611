"""Splits by transformer block: the first, the last, the last feed-forward layer."""

from __future__ import annotations

from torch import nn

from moiety.errors import must
from moiety.spec import recorded
from moiety.split.base import Split
from moiety.split.layers import Layer, join, personal_layers
from moiety.split.listing import Patterns, read


def transformer_blocks(model: nn.Module) -> list[Layer]:
    """The modules with children ``attention`` and ``feed_forward``, and torch's own, in the order of registration."""

    def is_block(module: nn.Module) -> bool:
        children = {name for name, _ in module.named_children()}
        return isinstance(module, nn.TransformerEncoderLayer) or {"attention", "feed_forward"} <= children

    return [Layer(name, module) for name, module in model.named_modules() if is_block(module)]


def _blocks(model: nn.Module) -> list[Layer]:
    read(model)
    found = transformer_blocks(model)
    kinds = "with children attention and feed_forward, or nn.TransformerEncoderLayer"
    hint = "Say with by_name what is personal."
    must(bool(found), "model", f"a module with transformer blocks ({kinds})", type(model).__name__, hint)
    return found


@recorded
def first_block(
    model: nn.Module, *, frozen: Patterns = (), shared: Patterns = (), running_stats: str = "personal"
) -> Split:
    """Keep the first transformer block personal, and share the rest.

    Input-layer personalisation of a language model, whose embedding is too large for it (Table 5 of Pillutla et al.
    2022). ``frozen``, ``shared`` and ``running_stats`` are as in ``by_name``.
    """
    chosen = _blocks(model)[:1]
    return personal_layers("first_block", model, read(model), chosen, frozen, shared, running_stats)


@recorded
def last_block(
    model: nn.Module, *, frozen: Patterns = (), shared: Patterns = (), running_stats: str = "personal"
) -> Split:
    """Keep the last transformer block personal, and share the rest.

    Output-layer personalisation of a language model (Table 5 of Pillutla et al. 2022). ``frozen``, ``shared`` and
    ``running_stats`` are as in ``by_name``.
    """
    chosen = _blocks(model)[-1:]
    return personal_layers("last_block", model, read(model), chosen, frozen, shared, running_stats)


@recorded
def last_feed_forward(
    model: nn.Module, *, frozen: Patterns = (), shared: Patterns = (), running_stats: str = "personal"
) -> Split:
    """Keep the second feed-forward layer of the last transformer block personal, and share the rest.

    Output-layer personalisation of a speech model (Table 8 of Pillutla et al. 2022). The layer is the last linear one
    in ``feed_forward``, in the order of registration. ``frozen``, ``shared`` and ``running_stats`` are as in
    ``by_name``.
    """
    name, block = _blocks(model)[-1]
    part = "" if isinstance(block, nn.TransformerEncoderLayer) else "feed_forward"
    inside = [Layer(join(join(name, part), n), m) for n, m in block.get_submodule(part).named_modules()]
    linear = [layer for layer in inside if isinstance(layer.module, nn.Linear)]
    must(bool(linear), "model", f"one with a linear layer in {join(name, part)}", type(model).__name__)
    return personal_layers("last_feed_forward", model, read(model), linear[-1:], frozen, shared, running_stats)
