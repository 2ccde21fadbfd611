"""Finds runs whose result can no longer be right, and says why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from moiety import tree
from moiety.errors import MoietyError, message
from moiety.types import ClientUpdate, Params, Tree

BARREN_ROUNDS = 3
"""A run stops after this many rounds in a row without one client whose update is finite."""
LOSS_FACTOR, LEAST_LOSS, EVALUATIONS = 1000, 1e-3, 3
"""It stops where the training loss rises above this factor times the first one (or times the least loss, if that is
larger) in so many evaluations in a row."""
ADVICE = (
    "Try smaller learning rates, or clip gradients as in mo.sgd(0.1, clip=1.0). "
    'Settings(on_divergence="warn") goes on regardless.'
)


class DivergenceError(MoietyError):
    """The run cannot be right any more."""


def explain_drop(update: ClientUpdate, state: Tree) -> str:
    """Why an upload is left out of its round."""
    parts = {"upload": update.upload, "weight": update.weight, "state": state, **update.info}
    names = [name for name, part in parts.items() if not bool(tree.is_finite(part))]
    # Uploads that are under way no longer have the state that they were computed with.
    return f"not finite: {', '.join(names or ['state'])}"


def explain_server(aggregate: Params, server: Tree, largest: Mapping[str, float], round: int) -> str:
    """What to say where the aggregate or the server is not finite; ``largest`` has each upload's largest number."""
    name, whole = ("server", server) if bool(tree.is_finite(aggregate)) else ("aggregate", aggregate)
    spoilt = next(path for path, x in tree.leaves(whole).items() if not bool(tree.is_finite(x)))
    fault = f"a NaN or an infinity in {spoilt} in round {round}"
    if largest:
        client = max(largest, key=lambda each: largest[each])
        fault += f" (largest upload: {largest[client]:.2g}, of client {client})"
    return message(name, "finite", fault, ADVICE)


def explain_barren(reasons: Mapping[str, str], round: int, count: int) -> str:
    """What to say where no update of ``count`` rounds up to this one was finite; ``reasons`` are those of the last."""
    clients = ", ".join(f"{client} {why}" for client, why in list(reasons.items())[:3])
    rounds = f"round {round}" if count == 1 else f"rounds {round - count + 1} to {round}"
    return message("updates", "finite for some client of a round", f"none in {rounds} ({clients})", ADVICE)


def loss_limit(history: Sequence[Mapping[str, Any]]) -> float:
    """How large the training loss may become; no limit where some loss is negative, as a log-likelihood may be."""
    losses = [row["train_loss"] for row in history if row["train_loss"] is not None]
    return LOSS_FACTOR * max(losses[0], LEAST_LOSS) if losses and min(losses) >= 0 else math.inf


def is_too_large(history: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last training loss is above the limit."""
    return bool(history) and (history[-1]["train_loss"] or 0.0) > loss_limit(history)


def explain_losses(history: Sequence[Mapping[str, Any]]) -> str | None:
    """What to say where the last few training losses are above the limit and rise; None where they are not."""
    last, limit = [row["train_loss"] for row in history[-EVALUATIONS:]], loss_limit(history)
    if len(last) < EVALUATIONS or None in last or min(last) <= limit or last != sorted(set(last)):
        return None
    rounds = ", ".join(str(row["round"]) for row in history[-EVALUATIONS:])
    losses = f"{', '.join(f'{loss:.2g}' for loss in last)} in rounds {rounds}"
    return message("train_loss", f"at most {limit:.2g}, {LOSS_FACTOR} times the first", losses, ADVICE)
