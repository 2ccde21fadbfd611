"""Small modules with everything that a split has to tell apart, and helpers of the tests that use them."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from moiety.errors import MoietyError
from moiety.split import Split


def expect_error(text: str) -> Any:
    """A block that must end in moiety's error with exactly this text."""
    return pytest.raises(MoietyError, match="^" + re.escape(text) + "$")


def get_model(split: Split) -> nn.Module:
    """The module that a split made."""
    assert split.model is not None
    return split.model


class Block(nn.Module):
    """A residual block; GroupNorm with ``groups``, BatchNorm with none."""

    def __init__(self, before: int, after: int, stride: int, groups: int | None) -> None:
        super().__init__()

        def norm() -> nn.Module:
            return nn.BatchNorm2d(after) if groups is None else nn.GroupNorm(groups, after)

        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = norm()
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = norm()
        self.down: nn.Module | None = None
        if stride != 1 or before != after:
            self.down = nn.Sequential(
                OrderedDict(conv=nn.Conv2d(before, after, 1, stride, bias=False), norm=norm()),
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (y + (x if self.down is None else self.down(x))).relu()


class ResNet18(nn.Module):
    """ResNet-18 with group normalisation for small grey images, as FACTS.md gives it."""

    def __init__(self, classes: int = 62) -> None:
        super().__init__()
        widths, groups = (64, 128, 256, 512), (8, 8, 16, 32)
        self.conv = nn.Conv2d(1, 64, 3, 1, 1, bias=False)
        self.norm = nn.GroupNorm(8, 64)
        blocks: list[nn.Module] = []
        before = 64
        for stage, (width, group) in enumerate(zip(widths, groups, strict=True)):
            for place in range(2):
                blocks.append(Block(before, width, 2 if stage > 0 and place == 0 else 1, group))
                before = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(self.norm(self.conv(x)).relu())
        return self.head(y.mean((2, 3)))


class SmallResNet(nn.Module):
    """One stem, one block, one head, with batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(OrderedDict(conv=nn.Conv2d(1, 2, 3, bias=False), norm=nn.BatchNorm2d(2)))
        self.block = Block(2, 3, 1, None)
        self.head = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.stem(x)).mean((2, 3)))


class SmallTransformer(nn.Module):
    """Embedding, one attention block, a head; a mask that is a buffer outside the state dict."""

    def __init__(self, *, tied: bool = False, bias: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 5, bias=bias)
        if tied:
            self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(3, 3).triu(1).bool(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        return self.head(self.norm(h + self.attention(h, h, h, attn_mask=self.mask, need_weights=False)[0]))
