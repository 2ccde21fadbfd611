"""What all model builders share: checks of sizes, and first weights from a seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from moiety.errors import must, whole


def check_sizes(**sizes: int) -> None:
    """Raise unless every size is a whole number of at least 1."""
    for name, size in sizes.items():
        whole(name, size, 1)


def check_image(image: Sequence[int], least: int = 1, hint: str = "") -> tuple[int, int, int]:
    """Channels, height and width of an image whose sides are at least ``least``."""
    three = isinstance(image, list | tuple) and len(image) == 3
    must(three, "image", "(channels, height, width)", repr(image), "A grey image of 28 x 28 is (1, 28, 28).")
    for size in image:
        whole("image", size, 1)
    channels, height, width = image
    must(min(height, width) >= least, "image", f"at least {least} x {least}", f"{height} x {width}", hint)
    return channels, height, width


@contextmanager
def use_seed(seed: int) -> Iterator[None]:
    """Draw weights from ``seed`` inside the block, and then restore torch's own stream of random numbers."""
    whole("seed", seed, 0, 2**63 - 1)
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: that would reseed accelerators too, whose state is not restored.
        torch.default_generator.manual_seed(int(seed))
        yield
