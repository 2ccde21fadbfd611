"""The only place that makes random generators.

Every draw belongs to a purpose, and its seed is a hash of (run seed, purpose, round, client): so results depend
neither on the engine, nor on the number of workers, nor on the order in which clients are served.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def _digest(seed: int, words: tuple[str | int, ...]) -> bytes:
    return hashlib.blake2b(repr((int(seed), *words)).encode(), digest_size=16).digest()


def generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """A NumPy generator of its own for ``(seed, *purpose)``.

    >>> a, b = generator(0, "cohort", 3), generator(0, "cohort", 3)
    >>> bool(a.integers(1 << 40) == b.integers(1 << 40))
    True
    """
    key = np.frombuffer(_digest(seed, purpose), dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


@contextmanager
def torch_seed(seed: int, *purpose: str | int) -> Iterator[None]:
    """Within the block, torch's own generator (which dropout draws from) is seeded for ``(seed, *purpose)``."""
    import torch

    # The generator itself: torch.manual_seed would seed other devices too, and keeps a stack trace for each call.
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(int.from_bytes(_digest(seed, purpose)[:8], "little"))
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
