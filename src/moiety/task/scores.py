"""Losses and metrics by name: functions of a model's output and the batch that give one number per example.

In sequences a label of -100 marks a position that counts for nothing, such as padding. An example's loss is the mean
over its real positions, so that examples weigh alike in training whatever their length. A metric may weigh examples by
what they hold (``Metric.weight``): with the number of positions, the weighted mean is the share of all positions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from moiety.task import block
from moiety.types import Batch, Metric

IGNORED = -100
"""The label of a position that counts for nothing, as torch's ``ignore_index``."""
BLANK = 0
"""The output of CTC that stands for no label."""


def cross_entropy(output: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy of each example; for sequences (labels with more axes), the mean over real positions."""
    y = batch["y"]
    if y.dim() == 1:
        if block.in_block():
            return block.cross_entropy(output, y)
        return functional.cross_entropy(output, y, reduction="none")
    # Position by position, which is three times as fast as with the classes on the second axis.
    losses = functional.cross_entropy(output.flatten(0, -2), y.flatten(), reduction="none", ignore_index=IGNORED)
    return losses.reshape(len(y), -1).sum(1) / _count(y != IGNORED)


def next_labels(batch: Batch) -> Batch:
    """The batch of a causal language model with the label of every position in ``y``: the token that comes next.

    Tokens are those of ``y`` where there is one (with -100 for what is not to be learnt), else those of ``input_ids``,
    or of ``x``, where ``attention_mask`` is not 0. The last position has no next token.
    """
    if "y" in batch:
        tokens = batch["y"]
    else:
        tokens = batch["input_ids"] if "input_ids" in batch else batch["x"]
        if "attention_mask" in batch:
            tokens = torch.where(batch["attention_mask"] != 0, tokens, IGNORED)
    return {**batch, "y": functional.pad(tokens[:, 1:], (0, 1), value=IGNORED)}


def next_token(output: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy of each example's next tokens, the mean over real tokens."""
    return cross_entropy(output, next_labels(batch))


def squared_error(output: Tensor, batch: Batch) -> Tensor:
    """Squared error of each example, the mean over its outputs."""
    y = batch["y"]
    return (output.reshape(y.shape) - y).square().reshape(len(y), -1).mean(1)


def absolute_error(output: Tensor, batch: Batch) -> Tensor:
    """Absolute error of each example, the mean over its outputs."""
    y = batch["y"]
    return (output.reshape(y.shape) - y).abs().reshape(len(y), -1).mean(1)


def binary_accuracy(output: Tensor, batch: Batch) -> Tensor:
    """1 where a logit above 0 goes with label 1, and another with label 0; of several labels the mean."""
    y = batch["y"]
    return ((output.reshape(y.shape) > 0) == y.bool()).to(output.dtype).reshape(len(y), -1).mean(1)


def one_versus_all(output: Tensor, batch: Batch) -> Tensor:
    """Squared error of each example against its label, as one regression for every class, summed.

    With one output, labels 0 and 1 are regressed on themselves; with several, each output on 1 where the label is its
    class and on 0 where it is not (the one-versus-all reduction).
    """
    return (output - _make_indicators(output, batch["y"])).square().sum(-1)


def one_versus_all_accuracy(output: Tensor, batch: Batch) -> Tensor:
    """1 where the prediction is the label: the largest output, or with one output whether it is above 1/2."""
    if output.shape[-1] > 1:
        return accuracy(output, batch)
    return ((output.squeeze(-1) > 0.5) == batch["y"].bool()).to(output.dtype)


def _make_indicators(output: Tensor, y: Tensor) -> Tensor:
    classes = torch.arange(output.shape[-1]) if output.shape[-1] > 1 else torch.ones(1, dtype=y.dtype)
    return (y[..., None] == classes).to(output.dtype)


def ctc(output: Tensor, batch: Batch) -> Tensor:
    """Minus the log-likelihood of each example's labels over all alignments, divided by how many labels it has.

    Connectionist temporal classification (Graves et al. 2006): ``output`` are logits [examples, frames, labels] and
    output 0 is the blank; ``y`` holds labels from 1, padded with -100. Labels that no alignment fits, being too many
    for the frames, give no loss and no gradient instead of infinity: they would spoil the whole client's update.
    """
    y = batch["y"]
    labels = real_positions(batch)
    losses = functional.ctc_loss(
        output.log_softmax(-1).movedim(1, 0),
        y.clamp(min=BLANK),
        output_frames(output, batch),
        labels,
        blank=BLANK,
        reduction="none",
        zero_infinity=True,
    )
    return losses / labels.clamp(min=1)


def output_frames(output: Tensor, batch: Batch) -> Tensor:
    """How many of each example's output frames are real, where ``frames`` of the input's frames are.

    The input's share of real frames, rounded up. With strides and as much padding as keeps lengths at ceil(frames /
    stride), that is the number itself if the input's width is a multiple of the stride, and one more at the most if it
    is not; without padding in the convolutions it is never less than what the real frames alone would give.
    """
    width, frames = batch["x"].shape[1], output.shape[1]
    return (-(-batch["frames"] * frames // width)).clamp(1, frames)


def accuracy(output: Tensor, batch: Batch) -> Tensor:
    """1 where the largest output is the label, else 0; for sequences the mean over real positions."""
    return _share_right(output, batch["y"], batch["y"] != IGNORED)


def token_accuracy(output: Tensor, batch: Batch) -> Tensor:
    """The share of each example's counted positions whose largest output is the label."""
    return _share_right(output, batch["y"], _mark_counted_positions(batch))


def real_positions(batch: Batch) -> Tensor:
    """How many positions of each example are real."""
    return (batch["y"] != IGNORED).sum(1)


def counted_positions(batch: Batch) -> Tensor:
    """How many positions of each example count."""
    return _mark_counted_positions(batch).reshape(len(batch["y"]), -1).sum(1)


def word_error_rate(output: Tensor, batch: Batch) -> Tensor:
    """Words to insert, delete or replace in what is heard, over the words that were said; a label is a word.

    Heard is what greedy decoding gives: the largest output of each real frame, repeats joined, blanks dropped.
    """
    paths, frames = output.argmax(-1).tolist(), output_frames(output, batch).tolist()
    rates = []
    for path, length, labels in zip(paths, frames, batch["y"].tolist(), strict=True):
        guess = [label for label, _ in itertools.groupby(path[:length]) if label != BLANK]
        words = [label for label in labels if label != IGNORED]
        rates.append(edit_distance(guess, words) / max(1, len(words)))
    return torch.tensor(rates, dtype=torch.float64, device=output.device)


def edit_distance(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """The least number of insertions, deletions and replacements that make one sequence the other (Levenshtein).

    >>> edit_distance([1, 3, 3], [1, 2, 3, 4])
    2
    """
    row = list(range(len(theirs) + 1))
    for i, a in enumerate(ours, start=1):
        before, row[0] = row[0], i
        for j, b in enumerate(theirs, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


LOSSES: dict[str, Callable[[Tensor, Batch], Tensor]] = {
    "cross_entropy": cross_entropy,
    "ctc": ctc,
    "mse": squared_error,
    "next_token": next_token,
    "one_versus_all": one_versus_all,
}
METRICS: dict[str, Metric] = {
    "accuracy": Metric("accuracy", True, accuracy),
    "binary_accuracy": Metric("binary_accuracy", True, binary_accuracy),
    "log_perplexity": Metric("log_perplexity", False, cross_entropy, real_positions),
    "mae": Metric("mae", False, absolute_error),
    "mse": Metric("mse", False, squared_error),
    "one_versus_all_accuracy": Metric("one_versus_all_accuracy", True, one_versus_all_accuracy),
    "token_accuracy": Metric("token_accuracy", True, token_accuracy, counted_positions),
    "word_error_rate": Metric("word_error_rate", False, word_error_rate, real_positions),
}
METRIC_OF_LOSS = {
    "cross_entropy": "accuracy",
    "ctc": "word_error_rate",
    "mse": "mse",
    "next_token": "log_perplexity",
    "one_versus_all": "one_versus_all_accuracy",
}
OF_LABELS_ALONE = (cross_entropy, squared_error, one_versus_all)
"""The losses that look at no other column than ``y``."""
UNVECTORISED: dict[Callable[[Tensor, Batch], Tensor], str] = {
    ctc: "CTC, which torch computes for one client at a time",
    word_error_rate: "word error rates, which are counted one example at a time",
}
"""What cannot be computed for many clients at once, in words."""


def _mark_counted_positions(batch: Batch) -> Tensor:
    """The positions that a metric counts: real ones, and of these the ones in column ``counted`` where there is one."""
    real = batch["y"] != IGNORED
    return real & batch["counted"].bool() if "counted" in batch else real


def _share_right(output: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    hits = ((output.argmax(-1) == y) & mask).to(output.dtype)
    return hits.reshape(len(y), -1).sum(1) / _count(mask)


def _count(positions: Tensor) -> Tensor:
    """How many positions of each example, at least 1 so that one may divide by it."""
    return positions.reshape(len(positions), -1).sum(1).clamp(min=1)
