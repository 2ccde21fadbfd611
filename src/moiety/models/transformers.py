"""Transformers: their block, a language model and a speech model."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from moiety.errors import must, number
from moiety.models.common import check_sizes, use_seed
from moiety.spec import recorded

Count = TypeVar("Count", int, Tensor)
DEVIATION = 0.02
"""Of the first weights of the transformers' linear layers and embeddings."""
PADDING_SCORE = -1e9
"""Added to the scores of padding. Finite, so that a row of nothing but padding still gives numbers."""


def draw_small_weights(model: nn.Module) -> None:
    """Draw the linear layers and embeddings of ``model`` from N(0, 0.02^2); biases become 0."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=DEVIATION)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


class Attention(nn.Module):
    """Self-attention of several heads, projections without bias; its output is added to the hidden state.

    With ``causal`` a position attends to itself and to earlier ones. The mask is computed from the scores, not from the
    size of the input, and it is no buffer: so it stays next to the scores when a model is cut for partial evaluation,
    and no split has to place it.
    """

    def __init__(self, width: int, *, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.scale = heads, causal, math.sqrt(width // heads)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))
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
    """Two linear layers with ReLU between them, position by position; their output is added to the hidden state."""

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


def make_blocks(
    count: int, width: int, *, heads: int, feed_forward: int, dropout: float, causal: bool
) -> nn.ModuleList:
    """``count`` blocks, after a check of their sizes."""
    check_sizes(blocks=count, width=width, heads=heads, feed_forward=feed_forward)
    must(width % heads == 0, "heads", f"a divisor of `width`, {width}", heads)
    number("dropout", dropout, "a number from 0 to less than 1", lambda value: 0 <= value < 1)
    return nn.ModuleList(
        TransformerBlock(width, heads=heads, feed_forward=feed_forward, dropout=dropout, causal=causal)
        for _ in range(count)
    )


@fx.wrap
def add_positions(hidden: Tensor, positions: Tensor) -> Tensor:
    """Add learned positions to the hidden states. One operation to ``torch.fx``, so that no size crosses a cut."""
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
        draw_small_weights(self)
        nn.init.normal_(self.positions, std=DEVIATION)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` is [rows, positions], whole numbers below the vocabulary's size."""
        h = functional.relu(add_positions(self.embedding(x) * self.scale, self.positions))
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
    logits [rows, positions, vocabulary]; the logits of a position depend only on it and on earlier ones. The word
    embedding times the square root of ``width``, with learned positions added, goes through a ReLU and the blocks; each
    block is u = norm1(x + attention(x)), norm2(u + feed_forward(u)), its attention without bias. The output layer's
    weight is the word embedding's, one parameter under the name ``embedding.weight``; its bias is ``head.bias``.

    Linear layers, embedding and positions start from N(0, 0.02^2), biases at 0, normalisations as the identity.

    Args:
        vocabulary: number of tokens; by default 10,000 words, and those for other words, padding, begin and end.
        length: the most tokens in a sequence; shorter ones need no padding.
        width: numbers per position.
        blocks: number of blocks.
        heads: heads of each attention; a divisor of ``width``.
        feed_forward: width of each block's hidden layer.
        dropout: rate inside the blocks: of attention weights, of hidden layers, and of what each part adds.
        seed: seed of the first weights.

    Returns:
        A module with ``embedding``, ``positions``, ``blocks.0``, ``blocks.1``, ... (``attention``, ``norm1``,
        ``feed_forward``, ``norm2``) and ``head``.

    >>> small = transformer_lm(vocabulary=50, length=8, width=16, blocks=2, feed_forward=32)
    >>> small(torch.zeros(3, 5, dtype=torch.long)).shape
    torch.Size([3, 5, 50])
    """
    check_sizes(vocabulary=vocabulary, length=length)
    with use_seed(seed):
        stack = make_blocks(blocks, width, heads=heads, feed_forward=feed_forward, dropout=dropout, causal=True)
        return TransformerLM(vocabulary, length, width, stack)


def speech_frames(frames: Count) -> Count:
    """How many frames ``speech_transformer`` gives for ``frames``: two convolutions halve them, rounding up.

    >>> [speech_frames(n) for n in (1, 4, 5, 1000)]
    [1, 1, 2, 250]
    """
    return (frames + 3) // 4


@fx.wrap
def add_sinusoids(hidden: Tensor) -> Tensor:
    """Add sines and cosines of the positions to the hidden states, as in Vaswani et al. (2017), section 3.5.

    It is one operation to ``torch.fx`` and no buffer, so neither a cut nor a split has to know about it.
    """
    length, width = hidden.shape[-2:]
    place = torch.arange(length, dtype=hidden.dtype, device=hidden.device)
    even = torch.arange(0, width, 2, dtype=hidden.dtype, device=hidden.device)
    angles = place[:, None] * 10_000 ** (-even / width)
    return hidden + torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)[:, :width]


class Subsampler(nn.Module):
    """Two convolutions over time, each of stride 2 and followed by a gated linear unit, which halves the channels."""

    def __init__(self, mels: int, channels: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(mels, channels, 3, stride=2, padding=1)
        self.conv2 = nn.Conv1d(channels // 2, 2 * width, 3, stride=2, padding=1)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """``x`` is [rows, frames, mels]; ``real``, [rows, frames], is 1 up to where padding begins."""
        h = functional.glu(self.conv1(x.transpose(-2, -1)), dim=-2)
        h = h * real[:, None, ::2]  # what the second convolution sees past the end is 0, as without padding
        return functional.glu(self.conv2(h), dim=-2).transpose(-2, -1)


class SpeechTransformer(nn.Module):
    """See ``speech_transformer``."""

    def __init__(self, vocabulary: int, mels: int, channels: int, width: int, blocks: nn.ModuleList) -> None:
        super().__init__()
        self.scale = math.sqrt(width)
        self.subsampler = Subsampler(mels, channels, width)
        self.blocks = blocks
        self.head = nn.Linear(width, vocabulary)
        draw_small_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` is [rows, frames, mels]."""
        sound_left = x.abs().sum(-1).flip(-1).cumsum(-1).flip(-1)  # from each frame to the last one
        real = (sound_left > 0).type_as(x)
        bias = (1 - real[:, ::4]) * PADDING_SCORE
        h = add_sinusoids(self.subsampler(x, real) * self.scale)
        for block in self.blocks:
            h = block(h, bias)
        return self.head(h)  # type: ignore[no-any-return]


@recorded
def speech_transformer(
    *,
    vocabulary: int = 5_001,
    mels: int = 40,
    channels: int = 640,
    width: int = 384,
    blocks: int = 6,
    heads: int = 6,
    feed_forward: int = 1536,
    dropout: float = 0.0,
    seed: int = 0,
) -> nn.Module:
    """A transformer on filterbank coefficients, for speech recognition with the CTC loss.

    The model of Pillutla et al. (2022) for LibriSpeech: two convolutions over time with gated linear units (Synnaeve et
    al., 2019), then blocks as in ``transformer_lm`` in which each frame attends to all. Coefficients [rows, frames,
    mels] become logits [rows, ``speech_frames(frames)``, vocabulary].

    Frames of zeros at the end are padding: they do not affect the logits of the other frames.

    Table 8 of the paper fixes the convolutions to 0.8 million parameters, not their layout. Here it is the one of
    Synnaeve et al., kernels of 3 and gated units, for which ``channels`` lies between 589 and 667. The paper's text
    speaks of 15 million parameters; its table adds up to 13.4 million, which this model has. It does not say how
    positions are encoded: here by sines and cosines, which have no parameters; the table leaves no room for the
    learned ones of Synnaeve et al.

    Linear layers start from N(0, 0.02^2) with biases 0, normalisations as the identity, convolutions as torch draws
    them.

    Args:
        vocabulary: columns of the output; by default 5,000 subwords and the blank of CTC.
        mels: coefficients per frame.
        channels: channels of the first convolution, an even number; its gated unit leaves half of them.
        width: numbers per frame in the blocks.
        blocks: number of blocks.
        heads: heads of each attention; a divisor of ``width``.
        feed_forward: width of each block's hidden layer.
        dropout: rate inside the blocks: of attention weights, of hidden layers, and of what each part adds.
        seed: seed of the first weights.

    Returns:
        A module with ``subsampler`` (``conv1``, ``conv2``), ``blocks.0``, ``blocks.1``, ... (``attention``, ``norm1``,
        ``feed_forward`` of ``first`` and ``second``, ``norm2``) and ``head``.

    >>> small = speech_transformer(vocabulary=30, mels=8, channels=12, width=16, blocks=2, heads=4, feed_forward=32)
    >>> small(torch.ones(3, 50, 8)).shape
    torch.Size([3, 13, 30])
    """
    check_sizes(vocabulary=vocabulary, mels=mels, channels=channels)
    must(channels % 2 == 0, "channels", "an even number", channels)
    with use_seed(seed):
        stack = make_blocks(blocks, width, heads=heads, feed_forward=feed_forward, dropout=dropout, causal=False)
        return SpeechTransformer(vocabulary, mels, channels, width, stack)
