"""Whether probabilities mean what they say: reliability, calibration error, proper scores, and what is out of place.

Functions of probabilities [examples, classes] and labels, for one client or for all together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from moiety.errors import must, number, whole

Row = dict[str, Any]


def reliability(probabilities: np.ndarray, y: np.ndarray, *, bins: int = 15) -> list[Row]:
    """A row for each bin of confidence that has examples (a reliability diagram).

    The confidence of an example is its largest probability; bins are ((k - 1) / bins, k / bins]. ``confidence`` and
    ``accuracy`` are means over the bin's examples, ``n`` how many there are.

    >>> p = np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]])
    >>> [(row["n"], row["accuracy"]) for row in reliability(p, np.array([0, 1, 1]), bins=2)]
    [(3, 0.6666666666666666)]
    """
    whole("bins", bins, 1)
    p, labels = _checked(probabilities, y)
    confidence = p.max(1)
    right = p.argmax(1) == labels
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    found = []
    for k in range(bins):
        some = place == k
        if some.any():
            means = {"confidence": float(confidence[some].mean()), "accuracy": float(right[some].mean())}
            found.append({"low": k / bins, "high": (k + 1) / bins, "n": int(some.sum()), **means})
    return found


def expected_calibration_error(probabilities: np.ndarray, y: np.ndarray, *, bins: int = 15) -> float:
    """The mean distance between confidence and accuracy over bins, weighted by their examples (Guo et al. 2017)."""
    rows = reliability(probabilities, y, bins=bins)
    total = sum(row["n"] for row in rows)
    return float(sum(row["n"] * abs(row["confidence"] - row["accuracy"]) for row in rows) / total)


def brier(probabilities: np.ndarray, y: np.ndarray) -> float:
    """The mean over examples of the squared distance between the probabilities and the label: from 0 to 2."""
    p, labels = _checked(probabilities, y)
    return float(np.square(p - np.eye(p.shape[1])[labels]).sum(1).mean())


def negative_log_likelihood(probabilities: np.ndarray, y: np.ndarray) -> float:
    """The mean of minus the logarithm of the label's probability; probabilities of 0 count as the least number."""
    p, labels = _checked(probabilities, y)
    return float(-np.log(np.maximum(p[np.arange(len(p)), labels], np.finfo(float).tiny)).mean())


def scores(probabilities: np.ndarray, y: np.ndarray, *, bins: int = 15) -> Row:
    """Accuracy, calibration error, Brier score and negative log-likelihood of some examples, and how many there are."""
    p, labels = _checked(probabilities, y)
    return {
        "n": len(labels),
        "accuracy": float((p.argmax(1) == labels).mean()),
        "ece": expected_calibration_error(p, labels, bins=bins),
        "brier": brier(p, labels),
        "nll": negative_log_likelihood(p, labels),
    }


def calibration_rows(found: Mapping[str, tuple[np.ndarray, np.ndarray]], *, bins: int = 15) -> tuple[list[Row], Row]:
    """The scores of every client, and of all their examples as one heap.

    The calibration error of the heap is not the mean of the clients': errors of opposite sign cancel in it, and a few
    examples in a bin make a client's own error large by chance.
    """
    must(len(found) > 0, "found", "predictions of at least one client", "none")
    rows = [{"client": client, **scores(p, y, bins=bins)} for client, (p, y) in found.items()]
    heap = [np.concatenate(parts) for parts in zip(*found.values(), strict=True)]
    return rows, {"client": "all", **scores(heap[0], heap[1], bins=bins)}


def set_coverage(probabilities: np.ndarray, y: np.ndarray, *, level: float = 0.9) -> tuple[float, float]:
    """The share of labels within the smallest sets of classes that hold ``level`` of the probability; the mean size.

    >>> set_coverage(np.array([[0.6, 0.35, 0.05], [0.95, 0.03, 0.02]]), np.array([1, 2]))
    (0.5, 1.5)
    """
    number("level", level, "> 0 and < 1", lambda x: 0 < x < 1)
    p, labels = _checked(probabilities, y)
    order = np.argsort(-p, axis=1, kind="stable")
    before = np.take_along_axis(p, order, axis=1).cumsum(1) - np.take_along_axis(p, order, axis=1)
    taken = before < level  # a class is in where those before it do not suffice
    place = np.argmax(order == labels[:, None], axis=1)
    return float(taken[np.arange(len(p)), place].mean()), float(taken.sum(1).mean())


def coverage(low: np.ndarray, high: np.ndarray, y: np.ndarray) -> float:
    """The share of values that lie within their intervals."""
    a, b, values = np.broadcast_arrays(low, high, y)
    must(values.size > 0, "y", "at least one value", "none")
    return float(((a <= values) & (values <= b)).mean())


def out_of_distribution_auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    """The chance that a score (entropy, say) is larger for an example from elsewhere than for one of the client's.

    Ties count half: 0.5 is what a score that knows nothing has.
    """
    from sklearn.metrics import roc_auc_score

    must(len(inside) > 0 and len(outside) > 0, "scores", "some inside and some outside", "none on one side")
    labels = np.repeat([0, 1], [len(inside), len(outside)])
    return float(roc_auc_score(labels, np.concatenate([inside, outside])))


def _checked(probabilities: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    p, labels = np.asarray(probabilities, dtype=np.float64), np.asarray(y)
    must(p.ndim == 2 and len(p) > 0, "probabilities", "a table [examples, classes] with rows", p.shape)
    must(labels.shape == p.shape[:1], "y", f"one label for each of {len(p)} examples", labels.shape)
    must(bool(np.isfinite(p).all() and (p >= 0).all()), "probabilities", ">= 0 and finite", "others")
    must(bool(np.allclose(p.sum(1), 1, atol=1e-4)), "probabilities", "rows that sum to 1", "others")
    must(labels.dtype.kind in "iu", "y", "whole numbers", labels.dtype)
    must(bool((labels >= 0).all() and (labels < p.shape[1]).all()), "y", f"from 0 to {p.shape[1] - 1}", "others")
    return p, labels
