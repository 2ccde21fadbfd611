"""Where personal states live between rounds. Only engines call it, and nothing in it ever goes to the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from moiety.types import Tree


class MemoryStore:
    """States in memory, each made when its client is first asked."""

    def __init__(self, first: Callable[[], Tree]) -> None:
        self.first = first
        self.states: dict[int, Tree] = {}

    def get(self, clients: Iterable[int]) -> list[Tree]:
        """The states of ``clients``; one never seen has the first state."""
        return [self.states[c] if c in self.states else self.first() for c in map(int, clients)]

    def put(self, clients: Iterable[int], states: Iterable[Tree]) -> None:
        """Keep the new states of ``clients``."""
        self.states.update(zip(map(int, clients), states, strict=True))
