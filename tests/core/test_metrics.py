"""Metrics of sets against scikit-learn and torchmetrics; losses with options against torch's own."""

import math

import numpy as np
import pytest
import torch
import torchmetrics
from sklearn import metrics as sklearn
from torch.nn import functional

import moiety as mo
from moiety.errors import MoietyError
from moiety.task.losses import EVERY_LOSS, find_loss
from moiety.task.metrics import SET_METRICS, as_set, find_metric, find_metrics
from moiety.task.scores import METRICS


def draw(rows, classes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    output = torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return output, torch.randint(classes, (rows,), generator=generator)


def compute(name, output, y):
    return SET_METRICS[name].compute(output, {"y": y})


def test_of_two_classes_as_scikit_learn_has_them():
    output, y = draw(60, 2)
    p = output.softmax(1)[:, 1].numpy()
    guess = output.argmax(1)
    assert compute("auroc", output, y) == pytest.approx(sklearn.roc_auc_score(y, p), abs=1e-6)
    assert compute("average_precision", output, y) == pytest.approx(sklearn.average_precision_score(y, p), abs=1e-6)
    assert compute("f1", output, y) == pytest.approx(sklearn.f1_score(y, guess), abs=1e-6)
    assert compute("balanced_accuracy", output, y) == pytest.approx(sklearn.balanced_accuracy_score(y, guess), abs=1e-6)
    one = output[:, 1:] - output[:, :1]  # the logit of the second class alone
    assert compute("auroc", one, y) == compute("auroc", output, y)


def test_of_five_classes_as_scikit_learn_has_them():
    output, y = draw(80, 5, seed=1)
    p, guess = output.softmax(1).numpy(), output.argmax(1)
    assert compute("auroc", output, y) == pytest.approx(sklearn.roc_auc_score(y, p, multi_class="ovr"), abs=1e-6)
    assert compute("f1", output, y) == pytest.approx(sklearn.f1_score(y, guess, average="macro"), abs=1e-6)
    assert compute("balanced_accuracy", output, y) == pytest.approx(sklearn.balanced_accuracy_score(y, guess), abs=1e-6)
    each = [sklearn.average_precision_score(y == k, p[:, k]) for k in range(5)]
    assert compute("average_precision", output, y) == pytest.approx(np.mean(each), abs=1e-6)


def test_absent_classes_do_not_count_as_zero():
    """A client with classes 1 and 3 of five: the mean is over the two, where torchmetrics' own would count three 0."""
    output, y = draw(40, 5, seed=2)
    y = torch.where(y % 2 == 1, 1, 3)
    p = output.softmax(1)
    each = [sklearn.roc_auc_score(y == k, p[:, k]) for k in (1, 3)]
    assert compute("auroc", output, y) == pytest.approx(np.mean(each), abs=1e-6)


@pytest.mark.parametrize("name", ["auroc", "f1", "r2"])
def test_what_is_not_defined_is_missing(name):
    output, _ = draw(6, 1 if name == "r2" else 2)
    output = output if name == "r2" else torch.tensor([[1.0, 0.0]] * 6)
    y = torch.zeros(6, dtype=torch.float64 if name == "r2" else torch.int64)
    assert math.isnan(compute(name, output, y))


def test_average_precision_of_a_class_without_positives_is_missing():
    output, _ = draw(6, 2)
    assert math.isnan(compute("average_precision", output, torch.zeros(6, dtype=torch.int64)))


def test_r2_perplexity_and_calibration_error():
    generator = torch.Generator().manual_seed(3)
    output, y = torch.randn(2, 30, generator=generator, dtype=torch.float64)
    assert compute("r2", output[:, None], y) == pytest.approx(sklearn.r2_score(y, output), abs=1e-12)
    logits, labels = draw(30, 4, seed=4)
    losses = sklearn.log_loss(labels, logits.softmax(1), labels=range(4))
    assert compute("perplexity", logits, labels) == pytest.approx(math.exp(losses), rel=1e-9)
    p, hits = logits.softmax(1).max(1).values.numpy(), (logits.argmax(1) == labels).numpy()
    bins = np.ceil(p * 15).astype(int)
    ece = sum(abs(p[bins == k].sum() - hits[bins == k].sum()) for k in np.unique(bins)) / 30
    assert compute("calibration_error", logits, labels) == pytest.approx(ece, abs=1e-6)


def test_a_metric_of_torchmetrics_by_name_and_by_instance():
    output, y = draw(50, 3, seed=5)
    kappa = sklearn.cohen_kappa_score(y, output.argmax(1))
    for metric in ("CohenKappa", torchmetrics.classification.MulticlassCohenKappa(num_classes=3)):
        assert find_metric(metric).compute(output, {"y": y}) == pytest.approx(kappa, abs=1e-6)
    numbers = torch.arange(4.0).double()
    mae = find_metric("MeanAbsoluteError")
    assert (mae.compute(numbers[:, None], {"y": numbers + 0.5}), mae.higher_is_better) == (0.5, False)


def test_torchmetrics_that_warns_of_a_meaningless_value_is_undefined():
    output, _ = draw(6, 2)
    metric = find_metric(torchmetrics.classification.BinaryAUROC())
    assert math.isnan(metric.compute(output, {"y": torch.zeros(6, dtype=torch.int64)}))


@pytest.mark.parametrize(
    ("metric", "line"),
    [
        ("accurcy", "accuracy"),
        ([], "at least one"),
        (["auroc", "auroc"], "auroc twice"),
        (3, "a name, a Metric"),
        (torchmetrics.classification.MulticlassConfusionMatrix(num_classes=3), "direction"),
    ],
)
def test_what_is_no_metric_is_one_line(metric, line):
    with pytest.raises(MoietyError, match=line) as error:
        find_metrics(metric)
    assert "\n" not in str(error.value)


def test_a_mean_over_examples_as_a_metric_of_a_set_keeps_its_weights():
    metric = mo.Metric("older", True, lambda output, batch: output[:, 0], lambda batch: batch["age"])
    batch = {"age": torch.tensor([1.0, 3.0, 0.0])}
    assert as_set(metric).compute(torch.tensor([[1.0], [2.0], [math.nan]]), batch) == pytest.approx(7 / 4)
    assert METRICS["mae"].per_example(torch.tensor([[1.0], [4.0]]), {"y": torch.tensor([2.0, 2.0])}).tolist() == [1, 2]


def test_losses_are_those_of_torch():
    output, _ = draw(20, 1, seed=6)
    numbers = torch.randn(20, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    flat = output[:, 0]
    binary = (numbers > 0).long()
    cases = [
        (mo.loss.huber(delta=0.3), functional.huber_loss(flat, numbers, reduction="none", delta=0.3), numbers),
        (mo.loss.poisson(), functional.poisson_nll_loss(flat, numbers.abs(), reduction="none"), numbers.abs()),
        (
            mo.loss.binary_cross_entropy(pos_weight=3.0),
            functional.binary_cross_entropy_with_logits(
                flat, binary.double(), reduction="none", pos_weight=torch.tensor(3.0)
            ),
            binary,
        ),
    ]
    for loss, expected, labels in cases:
        torch.testing.assert_close(loss(output, {"y": labels}), expected, rtol=1e-12, atol=1e-12)
    logits, labels = draw(20, 3, seed=8)
    expected = functional.cross_entropy(logits, labels, torch.tensor([1.0, 0.0, 5.0]).double(), reduction="none")
    weighted = mo.loss.cross_entropy(weight=[1, 0, 5])
    torch.testing.assert_close(weighted(logits, {"y": labels}), expected, rtol=1e-12, atol=1e-12)
    pinball = sklearn.mean_pinball_loss(numbers, flat, alpha=0.9)
    assert float(mo.loss.quantile(0.9)(output, {"y": numbers}).mean()) == pytest.approx(pinball, abs=1e-12)


def test_weighted_cross_entropy_of_sequences_leaves_padding_out():
    torch.manual_seed(0)
    output, y = torch.randn(2, 3, 4).double(), torch.tensor([[1, 3, -100], [0, -100, -100]])
    weight = torch.tensor([2.0, 0.5, 1.0, 4.0]).double()
    expected = []
    for logits, labels in zip(output, y, strict=True):
        real = labels[labels >= 0]
        losses = functional.cross_entropy(logits[: len(real)], real, reduction="none")
        expected.append((losses * weight[real]).mean())
    torch.testing.assert_close(mo.loss.cross_entropy(weight=weight.tolist())(output, {"y": y}), torch.stack(expected))


def test_every_loss_has_a_name_and_a_wrong_option_is_one_line():
    assert all(callable(find_loss(name)) for name in EVERY_LOSS)
    for make in (lambda: mo.loss.huber(delta=0), lambda: mo.loss.quantile(1.5), lambda: mo.loss.cross_entropy([0, 0])):
        with pytest.raises(MoietyError):
            make()


def test_class_weights_are_scikit_learns_balanced_ones():
    from sklearn.utils.class_weight import compute_class_weight

    rng = np.random.default_rng(0)
    y = rng.choice(3, size=200, p=[0.7, 0.2, 0.1])
    fed = mo.data.from_arrays({"x": rng.normal(size=(200, 2)), "y": y}, client=np.arange(200) % 5, seed=0)
    train = np.concatenate([fed.at(client, "train")["y"] for client in range(5)])
    weights = compute_class_weight("balanced", classes=np.arange(3), y=train)
    np.testing.assert_allclose(mo.data.class_weights(fed), weights, rtol=1e-12)
