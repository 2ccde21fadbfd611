"""Parts that several models are built from: group normalisation, He's first values, the transformer block."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from moiety.errors import must, number
from moiety.models.checks import positive

DEVIATION = 0.02
"""Of the first weights of the transformers' linear layers and embeddings."""


def group_norm(channels: int) -> nn.GroupNorm:
    """Group normalisation with 8 channels a group, or 16 where there are more than 64 channels.

    These are the 8, 8, 16 and 32 groups that Pillutla et al. (2022) use for 64, 128, 256 and 512 channels.

    >>> [group_norm(channels).num_groups for channels in (16, 64, 128, 256, 512)]
    [2, 8, 8, 16, 32]
    """
    return nn.GroupNorm(channels // (8 if channels <= 64 else 16), channels)


def he_normal(model: nn.Module) -> None:
    """Draw the convolutions of ``model`` from N(0, 2 / fan-out), as for ResNets; their biases become 0."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def small_normal(model: nn.Module) -> None:
    """Draw the linear layers and embeddings of ``model`` from N(0, 0.02^2); biases become 0."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=DEVIATION)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


class Attention(nn.Module):
    """Self-attention of several heads, projections without bias; gives what is added to the hidden state.

    With ``causal`` a position attends to itself and to earlier ones. The mask is made from the scores, not from the
    size of the input and not kept as a buffer: so it stays beside the scores when a model is cut for partial
    evaluation, and no split has to place it.
    """

    def __init__(self, width: int, *, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.scale = heads, causal, math.sqrt(width // heads)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """``x`` is [rows, positions, width]; ``bias``, [rows, positions], is added to every score of a position."""
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(-3, -2) for layer in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-2, -1) / self.scale
        if self.causal:
            later = torch.ones_like(scores[:1, :1]).triu(1)  # one mask for all rows and heads
            scores = scores.masked_fill(later == 1, -math.inf)
        if bias is not None:
            scores = scores + bias[:, None, None, :]
        weights = self.dropout(scores.softmax(-1))
        return self.dropout(self.output((weights @ v).transpose(-3, -2).flatten(-2)))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """Two linear layers with ReLU between them, for each position alone; gives what is added to the hidden state."""

    def __init__(self, width: int, hidden: int, *, dropout: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` is [rows, positions, width]."""
        return self.dropout(self.second(self.dropout(functional.relu(self.first(x)))))  # type: ignore[no-any-return]


class TransformerBlock(nn.Module):
    """A block of Vaswani et al. (2017): attention, then feed-forward, each added and then normalised."""

    def __init__(self, width: int, *, heads: int, feed_forward: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads=heads, dropout=dropout, causal=causal)
        self.norm1 = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, feed_forward, dropout=dropout)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """``x`` is [rows, positions, width]; ``bias`` is that of the attention."""
        u = self.norm1(x + self.attention(x, bias))
        return self.norm2(u + self.feed_forward(u))  # type: ignore[no-any-return]


def transformer_blocks(
    count: int, width: int, *, heads: int, feed_forward: int, dropout: float, causal: bool
) -> nn.ModuleList:
    """So many blocks, their sizes checked."""
    for name, value in {"blocks": count, "width": width, "heads": heads, "feed_forward": feed_forward}.items():
        positive(name, value)
    must(width % heads == 0, "heads", f"a divisor of `width`, {width}", heads)
    number("dropout", dropout, "a number from 0 to less than 1", lambda value: 0 <= value < 1)
    sizes = {"heads": heads, "feed_forward": feed_forward}
    return nn.ModuleList(TransformerBlock(width, **sizes, dropout=dropout, causal=causal) for _ in range(count))
