"""Parameters stay in their places until the backward pass is over.

A module that checkpoints its activations (``torch.utils.checkpoint``) runs parts of itself again in the backward pass,
with what is then in the place of its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

_held: ContextVar[ExitStack | None] = ContextVar("held", default=None)


@contextmanager
def hold_parameters() -> Iterator[None]:
    """Within it, a module keeps the tensors that it was last called with. The backward pass must be within it, too."""
    with ExitStack() as stack:
        token = _held.set(stack)
        try:
            yield
        finally:
            _held.reset(token)


def after_backward(restore: Callable[[Any], None], before: Any) -> None:
    """Call ``restore(before)`` where the backward pass is over; at once where there is none."""
    stack = _held.get()
    if stack is None:
        restore(before)
    else:
        stack.callback(restore, before)
