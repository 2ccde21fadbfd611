from __future__ import annotations

import pytest
import torch
from torch import nn

from moiety.models import vgg11_gn


def make_meta_model(**sizes: object) -> nn.Module:
    with torch.device("meta"):
        return vgg11_gn(**sizes)  # type: ignore[arg-type]


def test_count_behind_the_table_of_fedspa() -> None:
    """Huang et al. (2022), Table 1, CIFAR-10: 738.5 GB dense and 369.2 GB at half density.

    4 bytes a number, 10 clients, both ways, 1,000 rounds. Weights of the convolutions: 9 * (3 * 64 + 64 * 128 +
    128 * 256 + 256^2 + 256 * 512 + 3 * 512^2) = 9,217,728; their biases 64 + 128 + 2 * 256 + 4 * 512 = 2,752; norms
    twice that, 5,504; head 512 * 10 + 10 = 5,130. Together 9,231,114, which is 738.49 GB, and half of it 369.24 GB.
    """
    count = sum(p.numel() for p in make_meta_model().parameters())
    assert count == 9_231_114
    gigabytes = count * 4 * 10 * 2 * 1000 / 1e9
    assert (f"{gigabytes:.1f}", f"{gigabytes / 2:.1f}") == ("738.5", "369.2")


def test_layout() -> None:
    """Configuration A of Simonyan and Zisserman (2014), Table 1, each convolution with its norm and ReLU; 32 -> 1."""
    model = make_meta_model()
    h = torch.empty(1, 3, 32, 32, device="meta")
    sides = []
    for name, part in model.named_children():
        h = part(h)
        if name.startswith("pool") and name != "pool":
            sides.append(h.shape[-1])
    assert sides == [16, 8, 4, 2, 1]
    order = [name for name, _ in model.named_children()]
    block = [[f"conv{i}", f"norm{i}", f"relu{i}"] for i in range(1, 9)]
    stages = [block[0], block[1], block[2] + block[3], block[4] + block[5], block[6] + block[7]]
    layers = [name for i, stage in enumerate(stages, start=1) for name in [*stage, f"pool{i}"]]
    assert order == [*layers, "pool", "flatten", "head"]
    assert [m.num_groups for m in model.modules() if isinstance(m, nn.GroupNorm)] == [8, 8, 16, 16, 32, 32, 32, 32]


@pytest.mark.parametrize(("height", "width"), [(32, 63), (64, 96)])
def test_larger_images_have_the_same_parameters(height: int, width: int) -> None:
    model = make_meta_model(image=(3, height, width))
    assert model(torch.empty(2, 3, height, width, device="meta")).shape == (2, 10)
    assert sum(p.numel() for p in model.parameters()) == 9_231_114


def test_first_values() -> None:
    """Convolutions from N(0, 2 / (9 * outputs)) with biases 0; norms 1 and 0."""
    model = vgg11_gn()
    assert float(model.conv8.weight.detach().std()) == pytest.approx((2 / (9 * 512)) ** 0.5, rel=0.003)  # type: ignore[union-attr, operator]
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.GroupNorm):
            assert torch.all(module.bias == 0)  # type: ignore[arg-type]
        if isinstance(module, nn.GroupNorm):
            assert torch.all(module.weight == 1)
