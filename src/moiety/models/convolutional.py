"""Convolutional models for images: a small convnet, LeNet-5 in two forms, VGG-11 and ResNet-18."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional

from moiety.errors import must, whole
from moiety.models.common import check_image, check_sizes, use_seed
from moiety.spec import recorded

LARGE = 64
"""Images of at least this many pixels on their shorter side get the large stem of ``resnet18_gn``."""
VGG_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""The channels of the convolutions of VGG-11; a pooling follows each stage."""


def group_norm(channels: int) -> nn.GroupNorm:
    """Group normalisation with 8 channels a group, or 16 where there are more than 64 channels.

    These are the 8, 8, 16 and 32 groups that Pillutla et al. (2022) use for 64, 128, 256 and 512 channels.

    >>> [group_norm(channels).num_groups for channels in (16, 64, 128, 256, 512)]
    [2, 8, 8, 16, 32]
    """
    return nn.GroupNorm(channels // _group_size(channels), channels)


def _group_size(channels: int) -> int:
    return 8 if channels <= 64 else 16


def finish_network(steps: OrderedDict[str, nn.Module], channels: int, classes: int) -> nn.Module:
    """The steps as a model, with pooling to one pixel and a linear head at the end.

    Convolutions are drawn from N(0, 2 / fan-out), as for ResNets; their biases become 0.
    """
    steps.update(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), head=nn.Linear(channels, classes))
    model = nn.Sequential(steps)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


@recorded
def cnn(image: tuple[int, int, int] = (1, 28, 28), classes: int = 62, *, hidden: int = 512, seed: int = 0) -> nn.Module:
    """Two 5 x 5 convolutions with pooling, one hidden layer: the convnet for handwriting (FEMNIST).

    With 10 classes it is the CNN of McMahan et al. (2017), 1,663,370 parameters; LEAF's has ``hidden=2048``.

    Args:
        image: channels, height and width.
        classes: number of classes.
        hidden: width of the hidden layer.
        seed: seed of the first weights.

    Returns:
        A module with the layers ``conv1``, ``conv2``, ``hidden`` and ``head``.

    >>> sum(p.numel() for p in cnn(classes=10).parameters())
    1663370
    """
    channels, height, width = check_image(image, 4, "Each of two poolings halves it.")
    check_sizes(classes=classes, hidden=hidden)
    with use_seed(seed):
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
        seed: seed of the first weights.

    Returns:
        A module with the layers ``conv1``, ``conv2``, ``hidden1``, ``hidden2`` and ``head``.

    >>> sum(p.numel() for p in lenet5().parameters())
    61706
    """
    whole("padding", padding, 0)
    channels, height, width = check_image(image, 16 - 2 * padding, "Each layer makes it smaller.")
    check_sizes(classes=classes)
    # Two convolutions that cut 4 pixels, each followed by a pooling that halves the side.
    high, wide = (((side + 2 * padding - 4) // 2 - 4) // 2 for side in (height, width))
    with use_seed(seed):
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


@recorded
def caffe_lenet5(image: tuple[int, int, int] = (1, 28, 28), classes: int = 10, *, seed: int = 0) -> nn.Module:
    """LeNet-5 as Caffe has it, the network of Huang et al. (2022) for letters: 20 and 50 channels, 500 hidden units.

    It has no padding, and ReLU after the hidden layer alone.

    Args:
        image: channels, height and width.
        classes: number of classes.
        seed: seed of the first weights.

    Returns:
        A module with the layers ``conv1``, ``conv2``, ``hidden`` and ``head``.

    >>> sum(p.numel() for p in caffe_lenet5(classes=26).parameters())
    439096
    """
    channels, height, width = check_image(image, 16, "Each layer makes it smaller.")
    check_sizes(classes=classes)
    high, wide = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    with use_seed(seed):
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 20, 5),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(20, 50, 5),
                pool2=nn.MaxPool2d(2),
                flatten=nn.Flatten(),
                hidden=nn.Linear(50 * high * wide, 500),
                relu=nn.ReLU(),
                head=nn.Linear(500, classes),
            )
        )


@recorded
def vgg11_gn(*, classes: int = 10, image: tuple[int, int, int] = (3, 32, 32), seed: int = 0) -> nn.Module:
    """VGG-11 with group normalisation and one linear layer, as FedSpa uses it for CIFAR-10.

    The eight convolutions of Simonyan and Zisserman's (2014) configuration A, normalised as Huang et al. (2022) say.
    The rest follows from their table: 738.5 GB over 1,000 rounds with 10 clients, both ways, 4 bytes a number, are
    9.2306 to 9.2319 million parameters. Convolutions with bias, normalisations with weight and bias, and one linear
    layer have 9,231,114; without the biases of the convolutions it would be 738.3 GB. Groups have no parameters: they
    are those of ``resnet18_gn``.

    Convolutions start from N(0, 2 / fan-out) with biases 0, normalisations as the identity, the head as torch draws it.

    Args:
        classes: number of classes.
        image: channels, height and width, at least 32 x 32; the output of the last pooling is averaged.
        seed: seed of the first weights.

    Returns:
        A module with the layers ``conv1`` and ``norm1`` to ``conv8`` and ``norm8``, and ``head``.

    >>> sum(p.numel() for p in vgg11_gn().parameters())
    9231114
    """
    channels, _, _ = check_image(image, 32, "Each of five poolings halves it.")
    check_sizes(classes=classes)
    steps: OrderedDict[str, nn.Module] = OrderedDict()
    layer = 0
    with use_seed(seed):
        for stage, widths in enumerate(VGG_STAGES, start=1):
            for width in widths:
                layer += 1
                steps[f"conv{layer}"] = nn.Conv2d(channels, width, 3, padding=1)
                steps[f"norm{layer}"] = group_norm(width)
                steps[f"relu{layer}"] = nn.ReLU()
                channels = width
            steps[f"pool{stage}"] = nn.MaxPool2d(2)
        return finish_network(steps, channels, classes)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions whose output is added to the input; a 1 x 1 convolution adapts it where sizes change."""

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
        seed: seed of the first weights.

    Returns:
        A module with ``stem`` (``conv``, ``norm``), ``stage1`` to ``stage4`` of two blocks each (``conv1``, ``norm1``,
        ``conv2``, ``norm2``; ``shortcut`` where a stage begins with other sizes) and ``head``.

    >>> sum(p.numel() for p in resnet18_gn(width=8).parameters())
    179638
    """
    channels, height, across = check_image(image)
    check_sizes(classes=classes, width=width)
    must(width % _group_size(width) == 0, "width", "a multiple of 8, or of 16 above 64", width)
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    with use_seed(seed):
        steps: OrderedDict[str, nn.Module] = OrderedDict(stem=_make_stem(channels, width, min(height, across) >= LARGE))
        for stage in range(1, 5):
            inputs, outputs = widths[stage - 1 : stage + 1]
            first = ResidualBlock(inputs, outputs, stride=1 if stage == 1 else 2)
            steps[f"stage{stage}"] = nn.Sequential(first, ResidualBlock(outputs, outputs, stride=1))
        return finish_network(steps, 8 * width, classes)


def _make_stem(channels: int, width: int, large: bool) -> nn.Module:
    """The first convolution with its normalisation; for large images a quarter of the height and width is left."""
    kernel, stride, padding = (7, 2, 3) if large else (3, 1, 1)
    conv = nn.Conv2d(channels, width, kernel, stride=stride, padding=padding, bias=False)
    steps: OrderedDict[str, nn.Module] = OrderedDict(conv=conv, norm=group_norm(width), relu=nn.ReLU())
    if large:
        steps["pool"] = nn.MaxPool2d(3, stride=2, padding=1)
    return nn.Sequential(steps)
