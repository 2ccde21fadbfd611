"""LeNet-5."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from moiety.errors import must
from moiety.models.checks import image_size, positive, seeded
from moiety.spec import recorded


@recorded
def lenet5(
    image: tuple[int, int, int] = (1, 28, 28), classes: int = 10, *, padding: int = 2, seed: int = 0
) -> nn.Module:
    """LeNet-5 with ReLU and max-pooling: two small convolutions and three fully connected layers.

    After LeCun et al. (1998), with full connections between the convolutions and a linear head.

    Args:
        image: channels, height and width.
        classes: number of classes.
        padding: around the image; 2 makes 28 x 28 into the 32 x 32 of the original, which itself wants 0.
        seed: of the first weights.

    Returns:
        A module with the layers ``conv1``, ``conv2``, ``hidden1``, ``hidden2`` and ``head``.

    >>> sum(p.numel() for p in lenet5().parameters())
    61706
    """
    channels, height, width = image_size(image)
    positive("classes", classes)
    whole = isinstance(padding, int) and not isinstance(padding, bool) and padding >= 0
    must(whole, "padding", "an int >= 0", repr(padding))
    high, wide = (_side(side, padding) for side in (height, width))
    least = 16 - 2 * padding
    big = min(high, wide) >= 1
    must(big, "image", f"at least {least} x {least}", f"{height} x {width}", "Each layer makes it smaller.")
    with seeded(seed):
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 6, 5, padding=padding),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(6, 16, 5),
                relu2=nn.ReLU(),
                pool2=nn.MaxPool2d(2),
                flatten=nn.Flatten(),
                hidden1=nn.Linear(16 * high * wide, 120),
                relu3=nn.ReLU(),
                hidden2=nn.Linear(120, 84),
                relu4=nn.ReLU(),
                head=nn.Linear(84, classes),
            )
        )


def _side(side: int, padding: int) -> int:
    """A side of the image after both convolutions, each followed by a pooling that halves it."""
    return ((side + 2 * padding - 4) // 2 - 4) // 2
