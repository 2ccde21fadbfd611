"""A transformer for speech recognition."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from moiety.errors import must
from moiety.models.blocks import small_normal, transformer_blocks
from moiety.models.checks import positive, seeded
from moiety.spec import recorded

Count = TypeVar("Count", int, Tensor)
UNHEARD = -1e9
"""Added to the scores of padding. Finite, so that a row of nothing but padding still gives numbers."""


def speech_frames(frames: Count) -> Count:
    """How many frames ``speech_transformer`` gives for so many: each of two convolutions halves them, rounding up.

    >>> [speech_frames(n) for n in (1, 4, 5, 1000)]
    [1, 1, 2, 250]
    """
    return (frames + 3) // 4


@fx.wrap
def placed(hidden: Tensor) -> Tensor:
    """The hidden states with sines and cosines of their positions added, as in Vaswani et al. (2017), section 3.5.

    One operation to ``torch.fx``, and no buffer: neither a cut nor a split has to know of it.
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
        small_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` is [rows, frames, mels]."""
        ahead = x.abs().sum(-1).flip(-1).cumsum(-1).flip(-1)  # of sound, from each frame on
        real = (ahead > 0).type_as(x)
        bias = (1 - real[:, ::4]) * UNHEARD
        h = placed(self.subsampler(x, real) * self.scale)
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

    Frames of nothing but zeros at the end are padding: the other frames do not see them, and their logits are those of
    the utterance without them.

    Table 8 of the paper fixes the convolutions to 0.8 million parameters, not their layout. Here it is the one of
    Synnaeve et al., kernels of 3 and gated units, for which ``channels`` lies between 589 and 667. The paper's text
    speaks of 15 million parameters; its table adds up to 13.4 million, which this model has. It does not say how
    positions are told: here by sines and cosines, which have no parameters; the table leaves no room for the learned
    ones of Synnaeve et al.

    Linear layers start from N(0, 0.02^2) with biases 0, normalisations as the identity, convolutions as torch draws
    them.

    Args:
        vocabulary: columns of the output; by default 5,000 subwords and the blank of CTC.
        mels: coefficients per frame.
        channels: of the first convolution, an even number; its gated unit leaves half of them.
        width: numbers per frame in the blocks.
        blocks: number of blocks.
        heads: of each attention; a divisor of ``width``.
        feed_forward: width of each block's hidden layer.
        dropout: rate inside the blocks: of attention weights, of hidden layers, and of what each part adds.
        seed: of the first weights.

    Returns:
        A module with ``subsampler`` (``conv1``, ``conv2``), ``blocks.0``, ``blocks.1``, ... (``attention``, ``norm1``,
        ``feed_forward`` of ``first`` and ``second``, ``norm2``) and ``head``.

    >>> small = speech_transformer(vocabulary=30, mels=8, channels=12, width=16, blocks=2, heads=4, feed_forward=32)
    >>> small(torch.ones(3, 50, 8)).shape
    torch.Size([3, 13, 30])
    """
    positive("vocabulary", vocabulary)
    positive("mels", mels)
    must(positive("channels", channels) % 2 == 0, "channels", "an even number", channels)
    sizes = {"heads": heads, "feed_forward": feed_forward}
    with seeded(seed):
        made = transformer_blocks(blocks, width, **sizes, dropout=dropout, causal=False)
        return SpeechTransformer(vocabulary, mels, channels, width, made)
