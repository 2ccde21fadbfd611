"""The only place where chance comes from.

``generator`` makes NumPy generators. Every draw belongs to a purpose, and its seed is a hash of (run seed, purpose,
round, client). So results depend neither on the engine, nor on the number of workers, nor on the order of clients.

``uniform`` and ``normal`` draw inside a client's local work, where a generator's state may not be kept. Each number is
the hash of a key (the client's), of words (the turn, the purpose, the step) and of its place, so that it is the same in
every engine, also under ``torch.func.vmap``.

``secret_uniform`` and ``secret_normal`` are the exception: they follow from no seed. Noise that is to hide something
comes from them.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


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


def passing_generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """The same generator, for draws that are made before the next call; it is seeded anew by that call.

    To make a generator takes ten times as long.

    >>> bool(passing_generator(0, "a", 3).integers(1 << 40) == generator(0, "a", 3).integers(1 << 40))
    True
    """
    key = np.frombuffer(_digest(seed, purpose), dtype=np.uint64)
    if not hasattr(_per_thread, "draw"):
        _per_thread.draw = np.random.Generator(np.random.Philox(key=key))
        _per_thread.first = _per_thread.draw.bit_generator.state
    _per_thread.first["state"]["key"] = key
    _per_thread.draw.bit_generator.state = _per_thread.first
    draw: np.random.Generator = _per_thread.draw
    return draw


_per_thread = threading.local()
"""A generator of each thread, and the state in which one begins."""


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


def hash_words(*words: str | int) -> int:
    """A whole number of 64 bits with its sign, from words.

    >>> hash_words("mask", 1) == hash_words("mask", 1) != hash_words("mask", 2)
    True
    """
    return int.from_bytes(hashlib.blake2b(repr(words).encode(), digest_size=8).digest(), "little", signed=True)


def uniform(key: Tensor, shape: tuple[int, ...], *words: str | int) -> Tensor:
    """Numbers between 0 and 1, neither included, in float64.

    >>> import torch
    >>> u = uniform(torch.tensor(7), (100_000,), "a purpose")
    >>> bool(((u > 0) & (u < 1)).all()), abs(float(u.mean()) - 0.5) < 0.01
    (True, True)
    """
    import torch

    places = torch.arange(1, math.prod(shape) + 1, device=key.device)
    bits = _mix(_mix(key + hash_words(*words)) + places * _to_signed(_GOLDEN))
    whole: Tensor = ((bits >> 11) & ((1 << 53) - 1)).double()
    # The largest of them would be rounded to 1.
    return ((whole + 0.5) * 2.0**-53).clamp(max=1 - 2.0**-53).reshape(shape)


def normal(key: Tensor, like: Tensor, *words: str | int) -> Tensor:
    """Standard normal numbers in the shape and the type of ``like``."""
    import torch

    quantiles: Tensor = torch.special.ndtri(uniform(key, tuple(like.shape), *words))
    return quantiles.to(like.dtype)


def secret_uniform(count: int) -> np.ndarray:
    """Numbers between 0 and 1, neither included, of 53 bits each from the operating system's generator.

    >>> u = secret_uniform(10_000)
    >>> bool(((u > 0) & (u < 1)).all()), bool(abs(u.mean() - 0.5) < 0.05)
    (True, True)
    """
    bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)
    # The largest of them would be rounded to 1.
    numbers: np.ndarray = np.minimum((bits + 0.5) * 2.0**-53, 1 - 2.0**-53)
    return numbers


def secret_normal(count: int) -> np.ndarray:
    """Standard normal numbers from the operating system's generator."""
    from scipy.special import ndtri

    quantiles: np.ndarray = ndtri(secret_uniform(count))
    return quantiles


def _to_signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits


def _mix(z: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014); int64 products wrap round as its unsigned ones do."""
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _to_signed(_FIRST)
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _to_signed(_SECOND)
    return z ^ ((z >> 31) & ((1 << 33) - 1))
