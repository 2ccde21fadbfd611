"""Metrics of a set of examples that are no mean over them: AUROC, F1, R2, and any metric of torchmetrics.

A metric takes the model's outputs and the columns of all rows of one client, or of all clients together. Where it is
not defined for these rows (AUROC of one class), it is NaN: missing, never 0.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from moiety.errors import choice, must, refuse, report_errors
from moiety.task.scores import IGNORED, METRICS
from moiety.types import Batch, Metric, SetMetric

MEANINGLESS = ("No positive samples", "No negative samples", "should be meaningless", "was `nan`")
"""What torchmetrics warns of where its value says nothing."""
OWN_DIRECTION = "Give moiety.SetMetric(name, higher_is_better, compute) with a function of (outputs, batch)."


def probabilities(output: Tensor) -> Tensor:
    """The probabilities of all classes, [rows, classes]; one output is the logit of the second of two classes."""
    output = output.double()
    if output.dim() == 1 or output.shape[-1] == 1:
        second = output.reshape(len(output)).sigmoid()
        return torch.stack([1 - second, second], dim=1)
    return output.softmax(-1)


def _take_real_rows(output: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Probabilities and labels of the rows that count; positions of sequences are rows of their own."""
    y = batch["y"]
    if y.dim() > 1:
        real = y != IGNORED
        return probabilities(output[real]), y[real]
    return probabilities(output), y.long()


def _mean_over_classes(
    output: Tensor, batch: Batch, compute: Callable[[Tensor, Tensor], Tensor], *, negatives: bool
) -> float:
    """The mean of a one-versus-rest number over the classes that have examples (and, of ``negatives``, others too).

    Of two classes, the second decides alone.
    """
    p, y = _take_real_rows(output, batch)
    classes = p.shape[1]
    counts = torch.bincount(y, minlength=classes)
    eligible = (counts > 0) & ((counts < len(y)) | (not negatives))
    labels = [1] if classes == 2 else range(classes)
    values = [float(compute(p[:, k], (y == k).long())) for k in labels if eligible[k]]
    return sum(values) / len(values) if values else math.nan


def auroc(output: Tensor, batch: Batch) -> float:
    """The area under the ROC curve; of several classes, the mean over those present, each against the rest."""
    from torchmetrics.functional.classification import binary_auroc

    return _mean_over_classes(output, batch, binary_auroc, negatives=True)


def average_precision(output: Tensor, batch: Batch) -> float:
    """The area under the precision-recall curve; of several classes, the mean over those present."""
    from torchmetrics.functional.classification import binary_average_precision

    return _mean_over_classes(output, batch, binary_average_precision, negatives=False)


def f1(output: Tensor, batch: Batch) -> float:
    """F1 of the second of two classes; of several classes, the mean over those that are present or predicted."""
    from torchmetrics.functional.classification import multiclass_f1_score

    p, y = _take_real_rows(output, batch)
    predictions, classes = p.argmax(1), p.shape[1]
    each = multiclass_f1_score(predictions, y, num_classes=classes, average="none")
    present = torch.bincount(torch.cat([predictions, y]), minlength=classes) > 0
    if classes == 2:
        return float(each[1]) if present[1] else math.nan
    return float(each[present].double().mean()) if bool(present.any()) else math.nan


def balanced_accuracy(output: Tensor, batch: Batch) -> float:
    """The mean over the classes present of the share of their examples that are recognised."""
    from torchmetrics.functional.classification import multiclass_recall

    p, y = _take_real_rows(output, batch)
    each = multiclass_recall(p.argmax(1), y, num_classes=p.shape[1], average="none")
    present = torch.bincount(y, minlength=p.shape[1]) > 0
    return float(each[present].double().mean()) if bool(present.any()) else math.nan


def calibration_error(output: Tensor, batch: Batch) -> float:
    """How far confidence lies from accuracy, in 15 bins of confidence (expected calibration error)."""
    from torchmetrics.functional.classification import multiclass_calibration_error

    p, y = _take_real_rows(output, batch)
    return float(multiclass_calibration_error(p, y, num_classes=p.shape[1], n_bins=15))


def perplexity(output: Tensor, batch: Batch) -> float:
    """The exponential of the mean cross-entropy over all labels: of words, how many the model hesitates between."""
    logits, y = output.reshape(-1, output.shape[-1]).double(), batch["y"].reshape(-1).long()
    if not bool((y != IGNORED).any()):
        return math.nan
    return float(functional.cross_entropy(logits, y, ignore_index=IGNORED).exp())


def r2(output: Tensor, batch: Batch) -> float:
    """The share of the variance of y that is explained, the mean over outputs; undefined where y does not vary."""
    y = batch["y"].reshape(len(batch["y"]), -1).double()
    residual = (output.reshape(y.shape).double() - y).square().sum(0)
    total = (y - y.mean(0)).square().sum(0)
    usable = total > 0
    return float((1 - residual[usable] / total[usable]).mean()) if len(y) > 1 and bool(usable.any()) else math.nan


SET_METRICS: dict[str, SetMetric] = {
    "auroc": SetMetric("auroc", True, auroc),
    "average_precision": SetMetric("average_precision", True, average_precision),
    "balanced_accuracy": SetMetric("balanced_accuracy", True, balanced_accuracy),
    "calibration_error": SetMetric("calibration_error", False, calibration_error),
    "f1": SetMetric("f1", True, f1),
    "perplexity": SetMetric("perplexity", False, perplexity),
    "r2": SetMetric("r2", True, r2),
}
EVERY_METRIC: dict[str, Metric | SetMetric] = {**METRICS, **SET_METRICS}
"""All metrics by name."""
REGRESSION = ("r2",)
"""The metrics by name of numbers that are predicted; the others are of classes."""


def find_metric(metric: object) -> Metric | SetMetric:
    """The metric that was given: by name, as a ``Metric`` or ``SetMetric``, or as a metric of torchmetrics."""
    if isinstance(metric, Metric | SetMetric):
        return metric
    if isinstance(metric, str):
        return EVERY_METRIC[metric] if metric in EVERY_METRIC else _make_torchmetric(metric)
    if type(metric).__module__.startswith("torchmetrics."):
        return _wrap_torchmetric(metric)
    return refuse("metric", "a name, a Metric, a SetMetric, a metric of torchmetrics, or a list", type(metric).__name__)


def find_metrics(metric: object) -> list[Metric | SetMetric]:
    """All metrics that were given, one or a list of them; no two of one name."""
    single = isinstance(metric, str | Metric | SetMetric) or not isinstance(metric, Sequence)
    items = [metric] if single else list(metric)  # type: ignore[call-overload]
    must(len(items) > 0, "metric", "at least one", "an empty list")
    metrics = [find_metric(each) for each in items]
    names = [each.name for each in metrics]
    twice = next((name for name in names if names.count(name) > 1), None)
    must(twice is None, "metric", "a list of different metrics", f"{twice} twice")
    return metrics


def as_set(metric: Metric | SetMetric) -> SetMetric:
    """A metric of single examples as one of sets: their weighted mean."""
    if isinstance(metric, SetMetric):
        return metric

    def compute(output: Tensor, batch: Batch) -> float:
        values = metric.per_example(output, batch).double()
        weight = torch.ones_like(values) if metric.weight is None else metric.weight(batch).double()
        total = weight.sum()
        return float(torch.where(weight > 0, weight * values, 0).sum() / total) if total > 0 else math.nan

    return SetMetric(metric.name, metric.higher_is_better, compute)


def _wrap_torchmetric(metric: Any) -> SetMetric:
    """A metric of torchmetrics that a user made."""
    name = type(metric).__name__
    return SetMetric(name, _read_direction(metric, name), lambda output, batch: _compute(metric, output, batch))


def _make_torchmetric(name: str) -> SetMetric:
    """A metric of torchmetrics by the name of its class, made when the number of classes is known.

    ``CohenKappa`` stands for ``BinaryCohenKappa`` or ``MulticlassCohenKappa``, by the model's outputs.
    """
    import torchmetrics

    kinds: dict[str, Any] = {
        kind: getattr(torchmetrics.classification, kind + name, None) for kind in ("Binary", "Multiclass")
    }
    whole: Any = getattr(torchmetrics.regression, name, None) or getattr(torchmetrics.classification, name, None)
    of_classes = all(kinds.values())
    if not of_classes and not isinstance(whole, type):
        choice("metric", name, EVERY_METRIC)

    @functools.cache
    def make(classes: int) -> Any:
        if of_classes:
            return kinds["Binary"]() if classes <= 2 else kinds["Multiclass"](num_classes=classes)
        with report_errors("metric", f"one that can be made without arguments, or {name}(...) itself"):
            return whole(num_classes=classes) if name.startswith("Multiclass") else whole()

    def compute(output: Tensor, batch: Batch) -> float:
        return _compute(make(output.shape[-1] if output.dim() > 1 else 1), output, batch)

    return SetMetric(name, _read_direction(kinds["Multiclass"] if of_classes else whole, name), compute)


def _read_direction(metric: Any, name: str) -> bool:
    """Whether more is better, as torchmetrics says."""
    higher = metric.higher_is_better
    if not isinstance(higher, bool):
        refuse("metric", "one whose direction (more is better, or less) torchmetrics knows", name, OWN_DIRECTION)
    return higher


def _compute(metric: Any, output: Tensor, batch: Batch) -> float:
    """The value of a metric of torchmetrics; NaN where it warns that the value is meaningless."""
    kind, name = type(metric).__module__.split(".")[1], type(metric).__name__
    preds, target = output.double(), batch["y"]
    if kind == "classification":
        preds, target = _take_real_rows(output, batch)
        preds = preds[:, 1] if name.startswith("Binary") else preds
    elif kind == "regression":
        preds = preds.reshape(target.shape)
        target = target.double()
    metric.reset()
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        value = metric(preds, target)
    one = isinstance(value, Tensor) and value.numel() == 1
    must(one, "metric", "one number", f"{name}, which gives {_describe_shape(value)}", OWN_DIRECTION)
    if any(text in str(each.message) for each in notices for text in MEANINGLESS):
        return math.nan
    return float(value) if math.isfinite(float(value)) else math.nan


def _describe_shape(value: object) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
