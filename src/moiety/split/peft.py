"""Splits of models that PEFT made: what PEFT trains is personal, or shared."""

from __future__ import annotations

from torch import nn

from moiety.errors import choice, must
from moiety.spec import recorded
from moiety.split.base import Split
from moiety.split.names import Patterns, read_names


@recorded
def peft(
    model: nn.Module,
    *,
    trained: str = "personal",
    frozen: Patterns = (),
    shared: Patterns = (),
    running_stats: str = "personal",
) -> Split:
    """Keep what PEFT trains personal, or share it; all else in a model that PEFT made is frozen.

    ``run.export(client)`` is such a model again, and its ``save_pretrained(folder)`` writes that client's adapters.

    Args:
        model: what ``peft.get_peft_model`` made.
        trained: ``personal`` or ``shared``: what becomes of the parameters that PEFT trains.
        frozen: of these, what nobody trains, by patterns as in ``by_name``.
        shared: of these, what is shared where the others are personal (a classifier, say).
        running_stats: ``personal`` or ``shared``, as in ``by_name``.
    """
    listing = read_names(model)
    choice("trained", trained, ("personal", "shared"))
    hint = "Make it with peft.get_peft_model, or use moiety.split.lora."
    must(hasattr(model, "peft_config"), "model", "one that PEFT made", type(model).__name__, hint)
    must(bool(listing.trainable), "model", "one with parameters that PEFT trains", f"{type(model).__name__} with none")
    personal = set(listing.trainable) if trained == "personal" else set()
    return listing.split_personal(personal, frozen=frozen, shared=shared, running_stats=running_stats)
