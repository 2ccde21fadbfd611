"""What all small models check and share: sizes, and weights from a seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from moiety.errors import must


def positive(name: str, value: int) -> int:
    """The value, if it is a whole number of at least one.

    >>> positive("classes", 10)
    10
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    # NumPy's integers are refused rather than turned: a run folder could not record them.
    hint = "" if whole else "Use int(...) on a number from an array."
    must(whole and value >= 1, name, "a positive int", repr(value), hint)
    return value


def image_size(image: Sequence[int]) -> tuple[int, int, int]:
    """Channels, height and width, if that is what was given."""
    three = isinstance(image, list | tuple) and len(image) == 3
    must(three, "image", "(channels, height, width)", repr(image), "A grey image of 28 x 28 is (1, 28, 28).")
    channels, height, width = (positive("image", side) for side in image)
    return channels, height, width


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw weights from ``seed`` inside, and leave torch's own stream of random numbers as it was."""
    whole = isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**63
    must(whole, "seed", "an int from 0 to 2**63 - 1", repr(seed))
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: that would reseed accelerators too, whose state is not put back.
        torch.default_generator.manual_seed(seed)
        yield
