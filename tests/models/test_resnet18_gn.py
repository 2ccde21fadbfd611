from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import moiety as mo
from moiety.models import resnet18_gn
from moiety.models.convolutional import ResidualBlock


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def make_meta_model(**sizes: object) -> nn.Module:
    """The model without its numbers, which take long to draw."""
    with torch.device("meta"):
        return resnet18_gn(**sizes)  # type: ignore[arg-type]


def test_counts_of_table_7() -> None:
    """1 x 28 x 28, 62 classes; for width w and c classes.

    Stem: 9 w + 2 w. Stage 1: 4 convolutions of 9 w^2, 4 norms of 2 w. A later stage with m channels from m / 2:
    9 m^2 / 2 + 3 * 9 m^2, the shortcut m^2 / 2, 5 norms of 2 m: 32 m^2 + 10 m, for m = 2 w, 4 w, 8 w. Head: 8 w c + c.
    Together 2,724 w^2 + 159 w + 8 w c + c, for w = 64: 11,157,504 + 10,176 + 31,806 = 11,199,486; for w = 16, 10
    classes: 697,344 + 2,544 + 1,290 = 701,178. Stem 576 + 128 = 704.
    """
    model = make_meta_model()
    assert size(model) == 11_199_486
    first, last = mo.split.input_layer(model), mo.split.output_layer(model)
    assert first.counts() == {"total": 11_199_486, "shared": 11_198_782, "personal": 704, "frozen": 0}
    assert first.personal == mo.split.by_name(model, personal=["stem"]).personal
    assert last.counts() == {"total": 11_199_486, "shared": 11_167_680, "personal": 31_806, "frozen": 0}
    assert size(make_meta_model(width=16, classes=10)) == 701_178


def test_counts_of_table_6() -> None:
    """3 x 224 x 224, 2,028 classes.

    The stem has 3 * 49 * 64 + 128 = 9,536 in place of 704, the head 512 * 2,028 + 2,028 = 1,040,364 in place of 31,806:
    11,199,486 + 8,832 + 1,008,558 = 12,216,876. The paper prints 0.01M and 12.2M, 1M and 11.2M.
    """
    model = make_meta_model(image=(3, 224, 224), classes=2028)
    assert size(model) == 12_216_876
    assert mo.split.input_layer(model).counts()["personal"] == 9_536
    assert mo.split.output_layer(model).counts()["personal"] == 1_040_364


def test_count_behind_the_table_of_fedspa() -> None:
    """Huang et al. (2022), Table 1: 897.6 GB for CIFAR-100, 4 bytes a number, 10 clients, both ways, 1,000 rounds."""
    assert f"{size(make_meta_model(image=(3, 32, 32), classes=100)) * 4 * 10 * 2 * 1000 / 1e9:.1f}" == "897.6"


def test_groups() -> None:
    """8, 8, 16 and 32 groups for 64, 128, 256 and 512 channels; 8 channels a group below that."""

    def groups(model: nn.Module) -> dict[int, set[int]]:
        counts: dict[int, set[int]] = {}
        for module in model.modules():
            if isinstance(module, nn.GroupNorm):
                counts.setdefault(module.num_channels, set()).add(module.num_groups)
        return counts

    assert groups(make_meta_model()) == {64: {8}, 128: {8}, 256: {16}, 512: {32}}
    assert groups(make_meta_model(width=16)) == {16: {2}, 32: {4}, 64: {8}, 128: {8}}


@pytest.mark.parametrize(
    ("image", "sides"),
    [
        ((1, 28, 28), [28, 28, 14, 7, 4]),
        ((3, 63, 80), [63, 63, 32, 16, 8]),
        ((3, 64, 64), [16, 16, 8, 4, 2]),
        ((3, 224, 224), [56, 56, 28, 14, 7]),
    ],
    ids=str,
)
def test_heights_after_stem_and_stages(image: tuple[int, int, int], sides: list[int]) -> None:
    """A stride of 2 leaves half, rounded up; the large stem halves twice."""
    model = resnet18_gn(width=8, image=image, classes=3)
    h, heights = torch.zeros(1, *image), []
    for part in (model.stem, model.stage1, model.stage2, model.stage3, model.stage4):  # type: ignore[union-attr]
        h = part(h)  # type: ignore[operator]
        heights.append(h.shape[-2])
    assert heights == sides
    assert h.shape[1] == 64


def test_smallest_image() -> None:
    assert resnet18_gn(width=8, image=(1, 1, 1), classes=2)(torch.zeros(2, 1, 1, 1)).shape == (2, 2)


def convolve(x: np.ndarray, weight: np.ndarray, stride: int, padding: int) -> np.ndarray:
    """Cross-correlation of [channels, height, width], place by place."""
    kernel = weight.shape[-1]
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding)))
    rows, columns = ((side - kernel) // stride + 1 for side in x.shape[1:])
    output = np.zeros((len(weight), rows, columns))
    for i in range(rows):
        for j in range(columns):
            patch = x[:, i * stride : i * stride + kernel, j * stride : j * stride + kernel]
            output[:, i, j] = (weight * patch).sum((1, 2, 3))
    return output


def normalise(x: np.ndarray, groups: int, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Wu and He (2018): every group of channels of one image has mean 0 and variance 1."""
    parts = [(part - part.mean()) / np.sqrt(part.var() + 1e-5) for part in np.split(x, groups)]
    return np.concatenate(parts) * weight[:, None, None] + bias[:, None, None]


@pytest.mark.parametrize(("inputs", "outputs", "stride"), [(8, 16, 2), (16, 16, 1)])
def test_a_residual_block_is_that_of_numpy(inputs: int, outputs: int, stride: int) -> None:
    """relu(norm2(conv2(relu(norm1(conv1(x))))) + shortcut(x)), 16 channels in two groups of 8."""
    draw = np.random.default_rng(0)
    block = ResidualBlock(inputs, outputs, stride=stride).double()
    for value in block.parameters():
        value.data.copy_(torch.from_numpy(draw.normal(size=tuple(value.shape))))
    p = {name: value.detach().numpy() for name, value in block.named_parameters()}
    images = draw.normal(size=(2, inputs, 5, 4))
    expected = []
    for x in images:
        h = normalise(convolve(x, p["conv1.weight"], stride, 1), 2, p["norm1.weight"], p["norm1.bias"])
        h = convolve(np.maximum(h, 0), p["conv2.weight"], 1, 1)
        h = normalise(h, 2, p["norm2.weight"], p["norm2.bias"])
        if stride == 2:
            x = convolve(x, p["shortcut.conv.weight"], 2, 0)
            x = normalise(x, 2, p["shortcut.norm.weight"], p["shortcut.norm.bias"])
        expected.append(np.maximum(h + x, 0))
    np.testing.assert_allclose(block(torch.from_numpy(images)).detach().numpy(), np.stack(expected), rtol=0, atol=1e-11)


def test_the_head_sees_the_mean_over_the_image() -> None:
    model = resnet18_gn(width=8, image=(1, 9, 9), classes=3)
    x = torch.randn(2, 1, 9, 9, generator=torch.Generator().manual_seed(0))
    h = x
    for part in ("stem", "stage1", "stage2", "stage3", "stage4"):
        h = model.get_submodule(part)(h)
    expected = h.mean((2, 3)) @ model.head.weight.T + model.head.bias  # type: ignore[union-attr, operator]
    torch.testing.assert_close(model(x), expected)


def test_first_values() -> None:
    """Convolutions from N(0, 2 / (outputs * kernel^2)), norms 1 and 0."""
    model = resnet18_gn(width=32, image=(3, 64, 64))
    for name, outputs, kernel in (("stem.conv", 32, 7), ("stage4.1.conv2", 256, 3), ("stage4.0.shortcut.conv", 256, 1)):
        weight = model.get_submodule(name).weight.detach()  # type: ignore[operator, union-attr]
        error = 4 / np.sqrt(2 * weight.numel())  # four standard errors of a standard deviation
        assert float(weight.std()) == pytest.approx(np.sqrt(2 / (outputs * kernel**2)), rel=error)
    for module in model.modules():
        if isinstance(module, nn.GroupNorm):
            assert torch.all(module.weight == 1)
            assert torch.all(module.bias == 0)
