"""Losses and metrics of sequences, against counting by hand, sums over all alignments, and a library of word errors."""

import itertools
import math

import jiwer
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import moiety as mo
from moiety.task.scores import LOSSES, METRICS, edit_distance, output_frames


def logits_of(labels, classes, height=2.0):
    """Logits whose largest entry is at the given labels."""
    return functional.one_hot(torch.tensor(labels), classes).double() * height


def test_cross_entropy_is_the_mean_over_real_positions():
    """Three sequences of 3, 1 and 4 real positions: each is what torch gives for the sequence cut to its length."""
    torch.manual_seed(0)
    output = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[1, 0, 4, -100], [2, -100, -100, -100], [3, 3, 0, 1]])
    losses = LOSSES["cross_entropy"](output, {"y": y})
    lengths = [3, 1, 4]
    expected = [functional.cross_entropy(output[i, :n], y[i, :n]) for i, n in enumerate(lengths)]
    torch.testing.assert_close(losses, torch.stack(expected))
    (gradient,) = torch.autograd.grad(losses.sum(), output)
    for i, n in enumerate(lengths):
        assert (gradient[i, n:] == 0).all()
        assert (gradient[i, :n] != 0).all()


def test_cross_entropy_of_indifferent_outputs_is_log_classes():
    """Whatever the padding; and nothing at all costs nothing, without a gradient that is not a number."""
    output = torch.zeros(3, 4, 7, requires_grad=True)
    y = torch.tensor([[1, 2, 3, 4], [6, -100, -100, -100], [-100, -100, -100, -100]])
    losses = LOSSES["cross_entropy"](output, {"y": y})
    assert losses.tolist() == pytest.approx([math.log(7), math.log(7), 0.0])
    (gradient,) = torch.autograd.grad(losses.sum(), output)
    assert gradient.isfinite().all()
    assert (gradient[2] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_padding_nothing_changed(dtype):
    """The plain mean over positions, for labels, rows of labels and planes of labels; hits bit for bit."""
    torch.manual_seed(1)
    for shape in ((9,), (9, 80), (9, 7, 3)):
        output, y = torch.randn(*shape, 6, dtype=dtype), torch.randint(0, 6, shape)
        hits = (output.argmax(-1) == y).to(dtype).reshape(9, -1).mean(1)
        for name in ("accuracy", "token_accuracy"):
            assert torch.equal(METRICS[name].per_example(output, {"y": y}), hits)
        losses = functional.cross_entropy(output.movedim(-1, 1), y, reduction="none").reshape(9, -1).mean(1)
        torch.testing.assert_close(LOSSES["cross_entropy"](output, {"y": y}), losses)


def test_token_accuracy_by_hand():
    """Predicted 1 2 3 / 0 0 0 / 4 4 4; labels 1 0 3 / 0 2 - / 4 - -, of which the 3 and the 4 are not to be counted.

    Counted: 2, 2 and 0 positions, of which right 1, 1 and none: shares 1/2, 1/2 and 0, and over all of them 2/4.
    Without the column 3, 2 and 1 positions count, 2, 1 and 1 of them right: 2/3, 1/2, 1, over all 4/6.
    """
    output = logits_of([[1, 2, 3], [0, 0, 0], [4, 4, 4]], 5)
    y = torch.tensor([[1, 0, 3], [0, 2, -100], [4, -100, -100]])
    metric = METRICS["token_accuracy"]
    batch = {"y": y, "counted": torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 0]])}
    assert metric.per_example(output, batch).tolist() == [0.5, 0.5, 0.0]
    assert metric.weight(batch).tolist() == [2, 2, 0]
    assert metric.per_example(output, {"y": y}).tolist() == pytest.approx([2 / 3, 1 / 2, 1])
    assert metric.weight({"y": y}).tolist() == [3, 2, 1]
    assert METRICS["accuracy"].per_example(output, batch).tolist() == pytest.approx([2 / 3, 1 / 2, 1])
    assert METRICS["accuracy"].weight is None


def all_alignments(probabilities, labels):
    """-log of the summed probability of every path that reads as ``labels`` (Graves et al. 2006, eqs. 2 and 3)."""
    frames, outputs = probabilities.shape
    total = 0.0
    for path in itertools.product(range(outputs), repeat=frames):
        runs = [k for i, k in enumerate(path) if i == 0 or k != path[i - 1]]
        if [k for k in runs if k != 0] == list(labels):
            total += math.prod(probabilities[t, k] for t, k in enumerate(path))
    return -math.log(total) if total else math.inf


def test_ctc_is_the_sum_over_all_alignments():
    """Five output frames of ten input frames: examples with 10, 7, 8 and 3 real ones have 5, 4, 4 and 2 of them."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4, 5, 3))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    labels, real = [(1, 2, 1), (2, 2), (1,), (2, 1)], [5, 4, 4, 2]
    batch = {
        "x": torch.zeros(4, 10, 8),
        "frames": torch.tensor([10, 7, 8, 3]),
        "y": torch.tensor([[*row, *[-100] * (3 - len(row))] for row in labels]),
    }
    losses = LOSSES["ctc"](torch.tensor(logits), batch)
    expected = [all_alignments(p[i, : real[i]], labels[i]) / len(labels[i]) for i in range(4)]
    np.testing.assert_allclose(losses.numpy(), expected, rtol=1e-10)


def test_ctc_of_labels_that_cannot_fit_teaches_nothing():
    """Two equal labels need a blank between them: three frames. In two they have no alignment, and infinite loss."""
    output = torch.zeros(2, 4, 3, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[1, 1], [1, 2]])
    assert all_alignments(np.full((2, 3), 1 / 3), (1, 1)) == math.inf
    losses = LOSSES["ctc"](output, {"x": torch.zeros(2, 4, 1), "frames": torch.tensor([2, 2]), "y": y})
    assert losses.tolist() == pytest.approx([0.0, math.log(9) / 2])
    (gradient,) = torch.autograd.grad(losses.sum(), output)
    assert gradient.isfinite().all()
    assert (gradient[0] == 0).all()
    assert (gradient[1, 2:] == 0).all()


@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (5, 2), (3, 3), (1, 1)])
@pytest.mark.parametrize("same", [True, False])
def test_output_frames_are_those_of_the_convolutions(kernel, stride, same):
    """Two convolutions on sequences of the real length alone give the number of output frames that are real.

    Padded so that lengths become ceil(frames / stride), the rule is exact for widths that are multiples of both strides
    and one too many at the most for others; without padding it is never too few.
    """
    padding = kernel // 2 if same else 0
    layers = nn.Sequential(*[nn.Conv1d(1, 1, kernel, stride, padding) for _ in range(2)])
    least = 1 if same else kernel + stride * (kernel - 1)  # shorter sequences give no output at all
    for width in (stride * stride * 7, stride * stride * 7 + 1, stride * stride * 8 - 1):
        output = layers(torch.zeros(1, 1, width)).movedim(1, 2)
        for frames in range(least, width + 1):
            exact = layers(torch.zeros(1, 1, frames)).shape[-1]
            batch = {"x": torch.zeros(1, width, 1), "frames": torch.tensor([frames])}
            count = int(output_frames(output, batch))
            assert exact <= count <= output.shape[1]
            if same:
                assert count <= exact + (width % stride**2 > 0)


def test_word_errors_by_hand():
    """Three utterances of 4, 1 and 2 words with 2 errors each.

    Said "one two three four" (1 2 3 4), heard "one three three" (1 3 3): two is heard as three, four is not heard: 2
    errors in 4 words. Said "two" (2), heard "two two four": 2 insertions in 1 word, 200%. Said "four one", heard
    nothing: 2 in 2.

    Frames: 1 1 - 3 - 3 3 | 4, the last beyond the 7 of 8 that are real; 2 - 2 4 4 - -; and blanks. Over all, 6 errors
    in 7 words: weighted by words, (4 * 2/4 + 1 * 2 + 2 * 1) / 7.
    """
    output = logits_of([[1, 1, 0, 3, 0, 3, 3, 4], [2, 0, 2, 4, 4, 0, 0, 0], [0] * 8], 5)
    batch = {
        "x": torch.zeros(3, 16, 1),
        "frames": torch.tensor([14, 16, 16]),
        "y": torch.tensor([[1, 2, 3, 4], [2, -100, -100, -100], [4, 1, -100, -100]]),
    }
    metric = METRICS["word_error_rate"]
    rates, words = metric.per_example(output, batch), metric.weight(batch)
    assert rates.tolist() == [0.5, 2.0, 1.0]
    assert words.tolist() == [4, 1, 2]
    assert float((rates * words).sum() / words.sum()) == pytest.approx(6 / 7)
    assert not metric.higher_is_better


def test_word_errors_are_those_of_jiwer():
    """Paths of random labels: per example, and over the corpus by the weighted mean."""
    rng = np.random.default_rng(0)
    paths, lengths = rng.integers(0, 5, (40, 9)), rng.integers(1, 7, 40)
    y = np.where(np.arange(6) < lengths[:, None], rng.integers(1, 5, (40, 6)), -100)
    batch = {"x": torch.zeros(40, 9, 1), "frames": torch.full((40,), 9), "y": torch.tensor(y)}
    metric = METRICS["word_error_rate"]
    rates, words = metric.per_example(logits_of(paths, 5), batch), metric.weight(batch)
    references = [" ".join(f"w{k}" for k in row if k != -100) for row in y]
    hypotheses = [" ".join(f"w{k}" for i, k in enumerate(row) if k and (i == 0 or k != row[i - 1])) for row in paths]
    assert rates.tolist() == pytest.approx([jiwer.wer(a, b) for a, b in zip(references, hypotheses, strict=True)])
    assert float((rates * words).sum() / words.sum()) == pytest.approx(jiwer.wer(references, hypotheses))


def test_edit_distance_at_its_edges():
    """Nothing and n words are n apart; one is at most the longer length, and no less than the difference of both."""
    assert edit_distance([], []) == 0
    assert edit_distance([], [1, 1]) == edit_distance([1, 2], []) == 2
    assert edit_distance([1, 2, 3], [1, 2, 3]) == 0
    assert edit_distance([1, 2, 3], [4, 5]) == 3
    assert edit_distance([1, 2, 3, 4], [2, 3, 4, 5]) == 2


def test_one_versus_all_is_one_regression_for_every_class():
    """Outputs (0.5, 0.25, 1) with label 2 are to be (0, 0, 1): 1/4 + 1/16 + 0; with label 0, 1/4 + 1/16 + 1."""
    output = torch.tensor([[0.5, 0.25, 1.0], [0.5, 0.25, 1.0]])
    batch = {"y": torch.tensor([2, 0])}
    assert LOSSES["one_versus_all"](output, batch).tolist() == [0.3125, 1.3125]
    assert METRICS["one_versus_all_accuracy"].per_example(output, batch).tolist() == [1, 0]


def test_with_one_output_labels_are_regressed_on_themselves():
    """(0.25 - 0)^2 = 1/16, (0.25 - 1)^2 = 9/16, (2 - 1)^2 = 1; above 1/2 means 1."""
    output = torch.tensor([[0.25], [0.25], [2.0]])
    batch = {"y": torch.tensor([0, 1, 1])}
    assert LOSSES["one_versus_all"](output, batch).tolist() == [0.0625, 0.5625, 1.0]
    assert METRICS["one_versus_all_accuracy"].per_example(output, batch).tolist() == [1, 0, 1]


@pytest.mark.parametrize(("outputs", "label"), [(1, 2), (3, 3)])
def test_a_label_without_an_output_is_refused_in_one_line(outputs, label):
    data = mo.data.from_arrays({"x": np.ones((4, 2)), "y": [0, 1, 1, label]}, client=[0, 0, 1, 1], test=0)
    words = f"`y` must be a label from 0 to {label - 1}, the model's outputs, got {label} for client 1."
    with pytest.raises(mo.MoietyError) as error:
        mo.fit(mo.models.linear(2, outputs), data, mo.central(shared=0.1), rounds=1, loss="one_versus_all")
    assert str(error.value) == words
