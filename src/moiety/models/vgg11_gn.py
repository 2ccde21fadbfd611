"""VGG-11 with group normalisation."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from moiety.errors import must
from moiety.models.blocks import group_norm, he_normal
from moiety.models.checks import image_size, positive, seeded
from moiety.spec import recorded

STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""The channels of the convolutions; a pooling follows each stage."""


@recorded
def vgg11_gn(*, classes: int = 10, image: tuple[int, int, int] = (3, 32, 32), seed: int = 0) -> nn.Module:
    """VGG-11 with group normalisation and one linear layer, as FedSpa uses it for CIFAR-10.

    The eight convolutions of Simonyan and Zisserman's (2014) configuration A, normalised as Huang et al. (2022) say.
    They do not say how the rest is; their table does: 738.5 GB sent over 1,000 rounds by 10 clients, both ways, 4 bytes
    a number, are 9.2306 to 9.2319 million parameters. Convolutions with bias, normalisations with weight and bias, and
    one linear layer have 9,231,114; without the biases of the convolutions it would be 738.3 GB. Groups cost no
    parameters: they are those of ``resnet18_gn``.

    Convolutions start from N(0, 2 / fan-out) with biases 0, normalisations as the identity, the head as torch draws it.

    Args:
        classes: number of classes.
        image: channels, height and width, at least 32 x 32; what is left of a larger one is averaged.
        seed: of the first weights.

    Returns:
        A module with the layers ``conv1`` and ``norm1`` to ``conv8`` and ``norm8``, and ``head``.

    >>> sum(p.numel() for p in vgg11_gn().parameters())
    9231114
    """
    channels, height, width = image_size(image)
    positive("classes", classes)
    big = min(height, width) >= 32
    must(big, "image", "at least 32 x 32", f"{height} x {width}", "Each of five poolings halves it.")
    steps: OrderedDict[str, nn.Module] = OrderedDict()
    place = 0
    with seeded(seed):
        for stage, outputs in enumerate(STAGES, start=1):
            for after in outputs:
                place += 1
                steps[f"conv{place}"] = nn.Conv2d(channels, after, 3, padding=1)
                steps[f"norm{place}"] = group_norm(after)
                steps[f"relu{place}"] = nn.ReLU()
                channels = after
            steps[f"pool{stage}"] = nn.MaxPool2d(2)
        steps.update(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), head=nn.Linear(channels, classes))
        model = nn.Sequential(steps)
        he_normal(model)
    return model
