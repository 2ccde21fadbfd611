"""Whether probabilities are right: reliability, calibration error, proper scores, coverage, out-of-distribution.

Functions of probabilities [examples, classes] and labels, for one client or for all together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from moiety.errors import as_array, kind, must, proper_fraction, whole

Row = dict[str, Any]

ROUNDING = 1e-12
"""The rounding error that sums of probabilities may have: 0.6 + 0.3 is a little less than 0.9."""


def reliability(probabilities: np.ndarray, y: np.ndarray, *, bins: int = 15) -> list[Row]:
    """A row for each bin of confidence that has examples (a reliability diagram).

    The confidence of an example is its largest probability; bins are ((k - 1) / bins, k / bins]. ``confidence`` and
    ``accuracy`` are means over the bin's examples, ``n`` how many there are.

    >>> p = np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]])
    >>> [(row["n"], row["accuracy"]) for row in reliability(p, np.array([0, 1, 1]), bins=2)]
    [(3, 0.6666666666666666)]
    """
    whole("bins", bins, 1)
    p, labels = _check(probabilities, y)
    confidence = p.max(1)
    right = p.argmax(1) == labels
    place = np.searchsorted(np.arange(1, bins) / bins, confidence)  # not confidence * bins, which rounds
    rows = []
    for k in np.unique(place).tolist():
        inside = place == k
        means = {"confidence": float(confidence[inside].mean()), "accuracy": float(right[inside].mean())}
        rows.append({"low": k / bins, "high": (k + 1) / bins, "n": int(inside.sum()), **means})
    return rows


def expected_calibration_error(probabilities: np.ndarray, y: np.ndarray, *, bins: int = 15) -> float:
    """The mean distance between confidence and accuracy over bins, weighted by their examples (Guo et al. 2017)."""
    return calibration_error(reliability(probabilities, y, bins=bins))


def calibration_error(bins: Sequence[Mapping[str, Any]]) -> float:
    """The calibration error of the rows that ``reliability`` gives."""
    total = sum(row["n"] for row in bins)
    return float(sum(row["n"] * abs(row["confidence"] - row["accuracy"]) for row in bins) / total)


def brier(probabilities: np.ndarray, y: np.ndarray) -> float:
    """The mean over examples of the squared distance between the probabilities and the label: from 0 to 2."""
    p, labels = _check(probabilities, y)
    return float(np.square(p - np.eye(p.shape[1])[labels]).sum(1).mean())


def negative_log_likelihood(probabilities: np.ndarray, y: np.ndarray) -> float:
    """The mean of -log of the label's probability; a probability of 0 counts as the smallest positive number."""
    p, labels = _check(probabilities, y)
    return float(-np.log(np.maximum(p[np.arange(len(p)), labels], np.finfo(float).tiny)).mean())


def scores(probabilities: np.ndarray, y: np.ndarray, *, bins: int = 15) -> Row:
    """Accuracy, calibration error, Brier score and negative log-likelihood of some examples, and how many there are."""
    p, labels = _check(probabilities, y)
    return {
        "n": len(labels),
        "accuracy": float((p.argmax(1) == labels).mean()),
        "ece": expected_calibration_error(p, labels, bins=bins),
        "brier": brier(p, labels),
        "nll": negative_log_likelihood(p, labels),
    }


def calibration_rows(
    predictions: Mapping[str, tuple[np.ndarray, np.ndarray]], *, bins: int = 15
) -> tuple[list[Row], Row]:
    """The scores of every client, and of all their examples together.

    The calibration error of all examples together is not the mean of the clients': errors of opposite sign cancel in
    it, and a client with few examples in a bin has a large error by chance.
    """
    kind("predictions", predictions, Mapping, "probabilities and labels by client")
    must(len(predictions) > 0, "predictions", "those of at least one client", "none")
    for client, both in predictions.items():
        pair = isinstance(both, tuple | list) and len(both) == 2
        must(pair, f"predictions[{client!r}]", "(probabilities, labels)", both)
    pairs = {client: _check(p, y) for client, (p, y) in predictions.items()}
    classes = {client: p.shape[1] for client, (p, _) in pairs.items()}
    must(len(set(classes.values())) == 1, "predictions", "probabilities of the same classes for all clients", classes)
    rows = [{"client": client, **scores(p, y, bins=bins)} for client, (p, y) in pairs.items()]
    p, labels = (np.concatenate(parts) for parts in zip(*pairs.values(), strict=True))
    return rows, {"client": "all", **scores(p, labels, bins=bins)}


def set_coverage(probabilities: np.ndarray, y: np.ndarray, *, level: float = 0.9) -> Row:
    """How often the smallest sets of classes that hold at least ``level`` of the probability hold the label.

    Sets hold whole classes, so more than ``level``. Compare ``covered``, the share of labels within their sets, with
    ``mass``, the mean probability of the sets: they are equal where probabilities are right. ``size`` is the mean
    number of classes in a set.

    >>> row = set_coverage(np.array([[0.6, 0.35, 0.05], [0.97, 0.02, 0.01]]), np.array([1, 2]))
    >>> row["covered"], round(row["mass"], 2), row["size"]
    (0.5, 0.96, 1.5)
    """
    proper_fraction("level", level)
    p, labels = _check(probabilities, y)
    order = np.argsort(-p, axis=1, kind="stable")
    sorted_p = np.take_along_axis(p, order, axis=1)
    # A class is in the set where the classes before it do not suffice.
    in_set = sorted_p.cumsum(1) - sorted_p < level - ROUNDING
    place = np.argmax(order == labels[:, None], axis=1)
    return {
        "covered": float(in_set[np.arange(len(p)), place].mean()),
        "mass": float((sorted_p * in_set).sum(1).mean()),
        "size": float(in_set.sum(1).mean()),
    }


def coverage(low: np.ndarray, high: np.ndarray, y: np.ndarray) -> float:
    """The share of values that lie within their intervals, one interval for each value.

    All three have one shape, but a last axis of length 1 may be left out: a model with one output has intervals
    [examples, 1] and values [examples].

    >>> coverage(np.array([[0.0], [0.0]]), np.array([[1.0], [1.0]]), np.array([0.5, 2.0]))
    0.5
    """
    arrays = [as_numbers("low", low), as_numbers("high", high), as_numbers("y", y)]
    axes = min(array.ndim for array in arrays)
    a, b, values = (v[..., 0] if v.ndim == axes + 1 and v.shape[-1] == 1 else v for v in arrays)
    for name, end in (("low", a), ("high", b)):
        must(end.shape == values.shape, name, f"of the shape of y, {values.shape}", end.shape)
    must(values.size > 0, "y", "at least one value", "none")
    must(bool((a <= b).all()), "low", "<= high everywhere", "others")
    return float(((a <= values) & (values <= b)).mean())


def out_of_distribution_auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    """The chance that a score (entropy, say) is larger for an example from elsewhere than for one of the client's.

    Ties count half: a score without information has 0.5.
    """
    from sklearn.metrics import roc_auc_score

    scores_of = {"inside": as_numbers("inside", inside), "outside": as_numbers("outside", outside)}
    for name, values in scores_of.items():
        must(values.ndim == 1 and len(values) > 0, name, "one score for each example, and some", values.shape)
    labels = np.repeat([0, 1], [len(values) for values in scores_of.values()])
    return float(roc_auc_score(labels, np.concatenate(list(scores_of.values()))))


def _check(probabilities: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    p, labels = as_numbers("probabilities", probabilities), as_array("y", y)
    must(p.ndim == 2 and len(p) > 0, "probabilities", "a table [examples, classes] with rows", p.shape)
    must(p.shape[1] > 1, "probabilities", "of two classes or more", p.shape[1])
    must(labels.shape == p.shape[:1], "y", f"one label for each of {len(p)} examples", labels.shape)
    must(bool((p >= 0).all()), "probabilities", ">= 0", float(p.min()))
    must(bool(np.allclose(p.sum(1), 1, atol=1e-4)), "probabilities", "rows that sum to 1", "others")
    must(labels.dtype.kind in "iu", "y", "whole numbers", labels.dtype)
    must(bool((labels >= 0).all() and (labels < p.shape[1]).all()), "y", f"from 0 to {p.shape[1] - 1}", "others")
    return p, labels


def as_numbers(name: str, values: Any) -> np.ndarray:
    """The values as floating numbers; raise unless all of them are finite."""
    array = as_array(name, values)
    must(array.dtype.kind in "biuf", name, "numbers", array.dtype)
    array = array.astype(np.float64)
    odd = array[~np.isfinite(array)]
    must(odd.size == 0, name, "finite everywhere", odd[:1])
    return array
