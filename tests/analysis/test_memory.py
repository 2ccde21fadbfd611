"""Table 10 of Pillutla et al. (2022): bytes by hand for a small model, and the paper's megabytes for the paper's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import moiety as mo
from moiety.analysis.costs import memory_rows
from moiety.errors import MoietyError


def test_a_small_model_by_hand():
    """4 -> 3 -> 2 with ReLU in single precision: 15 + 8 = 23 parameters of 4 bytes.

    For one row autograd keeps the input (4 numbers), the hidden units before or after ReLU (3), and what the
    cross-entropy keeps: the two log-probabilities, the label (8 bytes) and a total weight (4 bytes). No parameters.
    Without a personal part 3 * 23 * 4 = 276, with the output layer 3 * 15 * 4 + 2 * 8 * 4 = 244, in full
    5 * 23 * 4 = 460.
    """
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    batch = {"x": torch.randn(1, 4), "y": torch.tensor([1])}
    rows = memory_rows(net, {"output layer": mo.split.output_layer(net)}, batch)
    assert [row["row"] for row in rows] == ["no personalisation", "output layer", "full personalisation"]
    backprop = 4 * 4 + 3 * 4 + 2 * 4 + 8 + 4
    assert [row["backprop"] for row in rows] == [backprop] * 3
    assert [row["bytes"] - backprop for row in rows] == [276, 244, 460]
    assert [(row["shared"], row["personal"]) for row in rows] == [(23, 0), (15, 8), (23, 23)]
    assert rows[1]["saving"] == pytest.approx(1 - (244 + backprop) / (460 + backprop))
    assert rows[0]["megabytes"] == pytest.approx((276 + backprop) / 1e6)


PAPER = {
    "StackOverflow": (71, 67, 67, 72, 116),
    "GLDv2": (186, 186, 174, 222, 263),
    "EMNIST": (142, 142, 142, 159, 232),
}
"""Megabytes of Table 10: none, input layer, output layer, adapter, full."""
COUNTS = {
    "StackOverflow": ((5_731_092, 0), (4_942_356, 788_736), (4_942_356, 788_736), (5_726_996, 71_808)),
    "GLDv2": ((12_216_876, 0), (12_207_340, 9_536), (11_176_512, 1_040_364), (12_209_068, 1_408_128)),
    "EMNIST": ((11_199_486, 0), (11_198_782, 704), (11_167_680, 31_806), (11_191_678, 1_408_128)),
}
"""Shared and personal parameters of the same rows (Tables 5 to 7)."""


def papers_model(task: str):
    if task == "StackOverflow":
        model, rows = mo.models.transformer_lm(), {"x": torch.zeros(1, 20, dtype=torch.long)}
        return model, {**rows, "y": rows["x"]}, mo.split.first_block, mo.split.last_block
    image, classes = ((1, 28, 28), 62) if task == "EMNIST" else ((3, 224, 224), 2028)
    batch = {"x": torch.zeros(1, *image), "y": torch.zeros(1, dtype=torch.long)}
    return mo.models.resnet18_gn(classes=classes, image=image), batch, mo.split.input_layer, mo.split.output_layer


@pytest.mark.parametrize(
    ("task", "off"),
    # How far the paper's megabytes may be from ours. Parameters are the same; the difference is in what backpropagation
    # keeps, of which the paper does not say how it was counted. For the transformer it is 2 MB, and all rows agree to
    # the megabyte. For the ResNets the paper's numbers leave 18 to 64 MB (GLDv2) and 7 to 13 MB (EMNIST) for it, about
    # twice of what autograd keeps here, and not the same for rows of one model: 39 and 19 MB without and with full
    # personalisation of GLDv2.
    [("StackOverflow", 1.0), ("GLDv2", 30.1), ("EMNIST", 6.8)],
)
def test_the_papers_models(task, off):
    model, batch, first, last = papers_model(task)
    splits = {"input": first(model), "output": last(model), "adapter": mo.split.adapters(model)}
    rows = memory_rows(model, splits, batch)
    counts = (*COUNTS[task], 2 * COUNTS[task][0][:1])
    assert [(row["shared"], row["personal"]) for row in rows] == list(counts)
    for row, (u, v), megabytes in zip(rows, counts, PAPER[task], strict=True):
        assert row["bytes"] - row["backprop"] == 4 * (3 * u + 2 * v)
        assert abs(row["megabytes"] - megabytes) <= off
    # The saving that the table ends with: 42%, 34% and 39%, by the smallest of the three partial ones.
    best = max(row["saving"] for row in rows[1:-1])
    assert best == pytest.approx({"StackOverflow": 0.42, "GLDv2": 0.34, "EMNIST": 0.39}[task], abs=0.045)


def test_bad_input():
    net = nn.Sequential(nn.Linear(4, 2))
    batch = {"x": torch.randn(2, 4), "y": torch.tensor([1, 0])}
    with pytest.raises(MoietyError, match="`batch` must be one row"):
        memory_rows(net, {}, batch)
    other = mo.split.output_layer(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)))
    with pytest.raises(MoietyError, match="made for this model"):
        memory_rows(net, {"other": other}, {name: column[:1] for name, column in batch.items()})
