"""The guard at a client's door: nothing leaves but what the algorithm declares as shared."""

from __future__ import annotations

from moiety.errors import MoietyError
from moiety.types import Params


class PrivacyError(MoietyError):
    """An upload or a broadcast held something that must not cross."""


def check(payload: Params, declared: Params, *, where: str, what: str = "upload") -> None:
    """Raise unless ``payload`` has exactly the names, shapes and types of ``declared``.

    Args:
        payload: what is about to cross.
        declared: the shared part as the server holds it; only names, shapes and types are looked at.
        where: client and round, for the message.
        what: ``upload`` or ``broadcast``, likewise.
    """
    extra, missing = sorted(payload.keys() - declared.keys()), sorted(declared.keys() - payload.keys())
    if extra:
        raise PrivacyError(f"`{what}` must be the declared shared parameters alone, got {extra[0]} too ({where}).")
    if missing:
        raise PrivacyError(f"`{what}` must be all declared shared parameters, got none named {missing[0]} ({where}).")
    for name, tensor in payload.items():
        wanted = declared[name]
        if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
            got = f"{name} of shape {tuple(tensor.shape)}, {tensor.dtype}"
            layout = f"of shape {tuple(wanted.shape)}, {wanted.dtype}"
            raise PrivacyError(f"`{what}` must be {layout}, got {got} ({where}).")
