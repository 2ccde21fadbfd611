"""The convolutional network of the first federated image experiments."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from moiety.errors import must
from moiety.models.checks import image_size, positive, seeded
from moiety.spec import recorded


@recorded
def cnn(image: tuple[int, int, int] = (1, 28, 28), classes: int = 62, *, hidden: int = 512, seed: int = 0) -> nn.Module:
    """Two 5 x 5 convolutions with pooling, one hidden layer: the convnet for handwriting (FEMNIST).

    With 10 classes it is the CNN of McMahan et al. (2017), 1,663,370 parameters; LEAF's has ``hidden=2048``.

    Args:
        image: channels, height and width.
        classes: number of classes.
        hidden: width of the hidden layer.
        seed: of the first weights.

    Returns:
        A module with the layers ``conv1``, ``conv2``, ``hidden`` and ``head``.

    >>> sum(p.numel() for p in cnn(classes=10).parameters())
    1663370
    """
    channels, height, width = image_size(image)
    positive("classes", classes)
    positive("hidden", hidden)
    must(min(height, width) >= 4, "image", "at least 4 x 4", f"{height} x {width}", "Each of two poolings halves it.")
    with seeded(seed):
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 32, 5, padding=2),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(32, 64, 5, padding=2),
                relu2=nn.ReLU(),
                pool2=nn.MaxPool2d(2),
                flatten=nn.Flatten(),
                hidden=nn.Linear(64 * (height // 4) * (width // 4), hidden),
                relu3=nn.ReLU(),
                head=nn.Linear(hidden, classes),
            )
        )
