"""ResNet-18 with group normalisation."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional

from moiety.errors import must
from moiety.models.blocks import group_norm, he_normal
from moiety.models.checks import image_size, positive, seeded
from moiety.spec import recorded

LARGE = 64
"""Images of at least so many pixels on their shorter side get the large stem."""


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions, and the input added to what they give; by a 1 x 1 convolution where sizes change."""

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = group_norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = group_norm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(OrderedDict(conv=conv, norm=group_norm(outputs)))

    def forward(self, x: Tensor) -> Tensor:
        """``x`` is [rows, channels, height, width]."""
        h = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


@recorded
def resnet18_gn(
    *, classes: int = 62, image: tuple[int, int, int] = (1, 28, 28), width: int = 64, seed: int = 0
) -> nn.Module:
    """ResNet-18 with group normalisation, for small and for large images.

    The model of Pillutla et al. (2022) for handwriting (1 x 28 x 28, 62 classes) and landmarks (3 x 224 x 224, 2,028
    classes): He et al. (2016), normalised as Hsieh et al. (2020) advise for clients that differ. Images smaller than
    64 pixels on their shorter side get a stem of 3 x 3 and stride 1 without pooling; others that of He et al., 7 x 7
    and stride 2 with max-pooling. A group has 8 channels, or 16 where there are more than 64: 8, 8, 16 and 32 groups in
    the four stages of the default width, 2, 4, 8 and 8 with ``width=16``.

    Convolutions have no bias and start from N(0, 2 / fan-out), normalisations as the identity, the head as torch
    draws it.

    Args:
        classes: number of classes.
        image: channels, height and width.
        width: channels of the first stage; each later stage doubles them. A multiple of 8, or of 16 above 64.
        seed: of the first weights.

    Returns:
        A module with ``stem`` (``conv``, ``norm``), ``stage1`` to ``stage4`` of two blocks each (``conv1``, ``norm1``,
        ``conv2``, ``norm2``; ``shortcut`` where a stage begins with other sizes) and ``head``.

    >>> sum(p.numel() for p in resnet18_gn(width=8).parameters())
    179638
    """
    channels, height, across = image_size(image)
    positive("classes", classes)
    positive("width", width)
    must(width % (8 if width <= 64 else 16) == 0, "width", "a multiple of 8, or of 16 above 64", width)
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    with seeded(seed):
        steps: OrderedDict[str, nn.Module] = OrderedDict(stem=_stem(channels, width, min(height, across) >= LARGE))
        for stage in range(1, 5):
            inputs, outputs = widths[stage - 1 : stage + 1]
            first = ResidualBlock(inputs, outputs, stride=1 if stage == 1 else 2)
            steps[f"stage{stage}"] = nn.Sequential(first, ResidualBlock(outputs, outputs, stride=1))
        steps.update(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), head=nn.Linear(8 * width, classes))
        model = nn.Sequential(steps)
        he_normal(model)
    return model


def _stem(channels: int, width: int, large: bool) -> nn.Module:
    """The first convolution with its normalisation; for large images a quarter of the height and width is left."""
    kernel, stride, padding = (7, 2, 3) if large else (3, 1, 1)
    conv = nn.Conv2d(channels, width, kernel, stride=stride, padding=padding, bias=False)
    steps: OrderedDict[str, nn.Module] = OrderedDict(conv=conv, norm=group_norm(width), relu=nn.ReLU())
    if large:
        steps["pool"] = nn.MaxPool2d(3, stride=2, padding=1)
    return nn.Sequential(steps)
