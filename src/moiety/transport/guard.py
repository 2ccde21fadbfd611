"""The guard at a client's door: nothing leaves but what the algorithm declares as shared.

It looks at the layout: names, shapes, types and memory. It does not look at values: no check of this kind can tell a
shared number from a personal one that an algorithm wrote in its place.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from torch import Tensor

from moiety import tree
from moiety.errors import MoietyError
from moiety.task.block import fills_memory
from moiety.types import ClientUpdate, Params


class PrivacyError(MoietyError):
    """An upload or a broadcast held something that must not cross."""


def check(payload: Params, layout: Params, *, where: str, what: str = "upload") -> None:
    """Raise unless ``payload`` has exactly the names, shapes and types of ``layout``.

    Args:
        payload: what is about to cross.
        layout: the shared part as the server holds it; only names, shapes and types are looked at.
        where: client and round, for the message.
        what: ``upload`` or ``broadcast``, likewise.
    """
    if payload.keys() != layout.keys():
        extra, missing = sorted(payload.keys() - layout.keys()), sorted(layout.keys() - payload.keys())
        constraint = "the declared shared parameters alone" if extra else "all declared shared parameters"
        problem = f"{extra[0]} too" if extra else f"none named {missing[0]}"
        raise PrivacyError(f"`{what}` must be {constraint}, got {problem} ({where}).")
    for name, tensor in payload.items():
        like = layout[name]
        if not isinstance(tensor, Tensor) or tensor.shape != like.shape or tensor.dtype != like.dtype:
            raise PrivacyError(f"`{what}` must be {_describe(like)}, got {name} {_describe(tensor)} ({where}).")


def check_result(result: object) -> None:
    """Raise unless ``client_update`` gave an update, made of tensors alone, and a state."""
    constraint = "give ClientUpdate(upload, weight, info), made of tensors by name, and the client's state"
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], ClientUpdate)):
        inner = f" of {', '.join(type(each).__name__ for each in result)}" if isinstance(result, tuple) else ""
        raise MoietyError(f"`client_update` must {constraint}, got {type(result).__name__}{inner}.")
    upload, weight, info = result[0]
    for what, table in {"upload": upload, "info": info}.items():
        if not isinstance(table, Mapping):
            raise MoietyError(f"`client_update` must {constraint}, got {what} {_describe(table)}.")
    for name, value in {**upload, "weight": weight, **info}.items():
        if not isinstance(value, Tensor):
            raise MoietyError(f"`client_update` must {constraint}, got {name} {_describe(value)}.")


def check_numbers(update: ClientUpdate, *, where: str) -> None:
    """Raise unless what goes with an upload is single numbers: a weight that is not negative, and ``info``."""
    if "loss" not in update.info:
        raise MoietyError(f"`info` must be numbers for the record with a loss among them, got none ({where}).")
    for name, number in {"weight": update.weight, **update.info}.items():
        if not isinstance(number, Tensor) or number.dim():
            problem = f"{name} {_describe(number)}"
            raise PrivacyError(
                f"`info` and `weight` must be single numbers, tensors without axes, got {problem} ({where})."
            )
    weight = float(update.weight)
    # One that is not finite is dropped with its upload, as any number that is not finite.
    if weight < 0 and math.isfinite(weight):
        raise MoietyError(f"`weight` must be >= 0, got {weight:g} ({where}).")


def fits(updates: ClientUpdate, layout: Params, count: int) -> bool:
    """Whether ``count`` updates, which come as one with a leading axis over clients, are all laid out as declared."""
    return (
        updates.upload.keys() == layout.keys()
        and "loss" in updates.info
        and all(x.shape == (count,) for x in (updates.weight, *updates.info.values()))
        and all(
            x.dtype is layout[name].dtype and x.shape[0] == count and x.shape[1:] == layout[name].shape
            for name, x in updates.upload.items()
        )
    )


def check_layout(layout: Params, personal: Collection[str], what: str) -> None:
    """Raise where what an algorithm declares for a crossing has the name of a personal parameter or buffer."""
    names = sorted(layout.keys() & set(personal))
    if names:
        text = f"`wire.layout` must be without names of the personal part, got {names[0]} in what goes {what}."
        raise PrivacyError(f"{text} Leave it out, or make it shared.")


def check_message(packed: Params, upload: Params, names: tuple[str, ...], *, where: str) -> None:
    """Raise where a codec's message holds a tensor that is neither of the upload nor among its declared ``names``."""
    for name in packed:
        if name not in upload and not name.startswith(names):
            text = f"`codec` must be one that adds no tensor but those it declares, got {name} ({where})."
            raise PrivacyError(f"{text} Codec(names=...) declares them.")


def copy_out(update: ClientUpdate) -> ClientUpdate:
    """The update in memory of its own: a view would carry along whatever else lies in its storage."""
    copy: ClientUpdate = tree.map_leaves(
        lambda x: x.clone() if isinstance(x, Tensor) and not fills_memory(x) else x, update
    )
    return copy


def _describe(value: object) -> str:
    return (
        f"of shape {tuple(value.shape)}, {value.dtype}" if isinstance(value, Tensor) else f"of {type(value).__name__}"
    )
