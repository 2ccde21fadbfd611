"""The first and the last transformer block, and the last feed-forward layer."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import moiety as mo
from moiety.errors import MoietyError
from moiety.split import first_block, last_block, last_feed_forward


def words() -> nn.Module:
    return mo.models.transformer_lm(vocabulary=9, length=4, width=8, blocks=3, heads=2, feed_forward=6)


def test_first_and_last() -> None:
    """A block: attention 4*64, feed-forward 8*6 + 6 + 6*8 + 8, two norms of 16."""
    first, last = first_block(words()), last_block(words())
    assert {n.split(".")[1] for n in first.personal} == {"0"}
    assert {n.split(".")[1] for n in last.personal} == {"2"}
    assert all(n.startswith("blocks.") for n in first.personal + last.personal)
    for split in (first, last):
        assert split.model is None
        assert split.counts()["personal"] == 256 + 110 + 32
    assert last_feed_forward(words()).personal == (
        "blocks.2.feed_forward.second.weight",
        "blocks.2.feed_forward.second.bias",
    )


def test_the_speech_model_of_table_8() -> None:
    """1536 * 384 + 384 = 590,208: 0.6M on the device and 12.8M shared."""
    with torch.device("meta"):
        model = mo.models.speech_transformer()
    summary = last_feed_forward(model).summary()
    assert "590,208 (0.6M)" in summary
    assert "(12.8M)" in summary


def test_torchs_own_encoder() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 6, batch_first=True), 2)
    model = nn.Sequential(nn.Linear(3, 4), encoder, nn.Linear(4, 2))
    assert {n[:11] for n in first_block(model).personal} == {"1.layers.0."}
    assert {n[:11] for n in last_block(model).personal} == {"1.layers.1."}
    assert last_feed_forward(model).personal == ("1.layers.1.linear2.weight", "1.layers.1.linear2.bias")


def test_a_block_with_a_tied_parameter_is_refused() -> None:
    model = words()
    model.head.weight = model.blocks[2].feed_forward.second.weight
    text = (
        "`model` must be one whose chosen layer has its parameters to itself, got blocks.2.feed_forward.second.weight "
        "tied to head.weight. Say with by_name what is personal instead of last_block."
    )
    with pytest.raises(MoietyError, match="^" + re.escape(text) + "$"):
        last_block(model)


@pytest.mark.parametrize("builder", [first_block, last_block, last_feed_forward])
def test_a_model_without_blocks(builder) -> None:  # type: ignore[no-untyped-def]
    text = (
        "`model` must be a module with transformer blocks (with children such as attention and feed_forward, or attn "
        "and mlp), got Sequential. Say with by_name what is personal."
    )
    with pytest.raises(MoietyError, match="^" + re.escape(text) + "$"):
        builder(nn.Sequential(nn.Linear(2, 2)))


def test_a_feed_forward_without_a_linear_layer() -> None:
    block = nn.ModuleDict({"attention": nn.Linear(2, 2), "feed_forward": nn.Conv1d(2, 2, 1)})
    with pytest.raises(
        MoietyError, match=r"^`model` must be one with a linear layer in 0\.feed_forward, got Sequential"
    ):
        last_feed_forward(nn.Sequential(block))
