"""Parameters stay in their places until the backward pass is over.

A module that checkpoints its activations (``torch.utils.checkpoint``) runs parts of itself again in the backward pass,
with what is then in the place of its parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any

Restore = tuple[Callable[[Any], None], Any]
_restores: ContextVar[list[Restore] | None] = ContextVar("restores", default=None)


class HeldParameters:
    """Within it, a module keeps the tensors that it was last called with. The backward pass must be within it, too.

    (A class, since every step enters it: a generator takes three times as long.)
    """

    __slots__ = ("restores", "token")

    def __enter__(self) -> None:
        """Begin to hold."""
        self.restores: list[Restore] = []
        self.token: Token[list[Restore] | None] = _restores.set(self.restores)

    def __exit__(self, *error: object) -> None:
        """Put everything back, the last first."""
        _restores.reset(self.token)
        for restore, before in reversed(self.restores):
            restore(before)


def after_backward(restore: Callable[[Any], None], before: Any) -> None:
    """Call ``restore(before)`` where the backward pass is over; at once where there is none."""
    restores = _restores.get()
    if restores is None:
        restore(before)
    else:
        restores.append((restore, before))
