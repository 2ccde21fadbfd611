"""A small transformer that predicts the next word."""

from __future__ import annotations

import math

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from moiety.errors import must
from moiety.models.blocks import DEVIATION, small_normal, transformer_blocks
from moiety.models.checks import positive, seeded
from moiety.spec import recorded


@fx.wrap
def placed(hidden: Tensor, positions: Tensor) -> Tensor:
    """The hidden states with their positions added; one operation to ``torch.fx``, so that no size crosses a cut."""
    length, most = hidden.shape[-2], len(positions)
    must(length <= most, "x", f"sequences of at most {most} tokens", length, "Build the model with a larger `length`.")
    return hidden + positions[:length]


class TransformerLM(nn.Module):
    """See ``transformer_lm``."""

    def __init__(self, vocabulary: int, length: int, width: int, blocks: nn.ModuleList) -> None:
        super().__init__()
        self.scale = math.sqrt(width)
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.empty(length, width))
        self.blocks = blocks
        self.head = nn.Linear(width, vocabulary)
        self.head.weight = self.embedding.weight
        small_normal(self)
        nn.init.normal_(self.positions, std=DEVIATION)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` is [rows, positions], whole numbers below the vocabulary's size."""
        h = functional.relu(placed(self.embedding(x) * self.scale, self.positions))
        for block in self.blocks:
            h = block(h)
        return self.head(h)  # type: ignore[no-any-return]


@recorded
def transformer_lm(
    *,
    vocabulary: int = 10_004,
    length: int = 20,
    width: int = 256,
    blocks: int = 4,
    heads: int = 4,
    feed_forward: int = 1024,
    dropout: float = 0.0,
    seed: int = 0,
) -> nn.Module:
    """A transformer that predicts the next word from those before it.

    The model of Pillutla et al. (2022) for Stack Overflow, of the size of BERT mini. Tokens [rows, positions] become
    logits [rows, positions, vocabulary]; the logits of a position depend on it and on earlier ones alone. The word
    embedding times the square root of ``width``, with learned positions added, goes through a ReLU and the blocks; each
    block is u = norm1(x + attention(x)), norm2(u + feed_forward(u)), its attention without bias. The output layer's
    weight is the word embedding's, one parameter under the name ``embedding.weight``; its bias is ``head.bias``.

    Linear layers, embedding and positions start from N(0, 0.02^2), biases at 0, normalisations as the identity.

    Args:
        vocabulary: number of tokens; by default 10,000 words, and those for other words, padding, begin and end.
        length: the most tokens in a sequence; shorter ones need no padding.
        width: numbers per position.
        blocks: number of blocks.
        heads: of each attention; a divisor of ``width``.
        feed_forward: width of each block's hidden layer.
        dropout: rate inside the blocks: of attention weights, of hidden layers, and of what each part adds.
        seed: of the first weights.

    Returns:
        A module with ``embedding``, ``positions``, ``blocks.0``, ``blocks.1``, ... (``attention``, ``norm1``,
        ``feed_forward``, ``norm2``) and ``head``.

    >>> small = transformer_lm(vocabulary=50, length=8, width=16, blocks=2, feed_forward=32)
    >>> small(torch.zeros(3, 5, dtype=torch.long)).shape
    torch.Size([3, 5, 50])
    """
    positive("vocabulary", vocabulary)
    positive("length", length)
    sizes = {"heads": heads, "feed_forward": feed_forward}
    with seeded(seed):
        made = transformer_blocks(blocks, width, **sizes, dropout=dropout, causal=True)
        return TransformerLM(vocabulary, length, width, made)
