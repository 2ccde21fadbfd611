"""Whether probabilities mean what they say: reliability, calibration error, proper scores, and what is out of place.

Functions of probabilities [examples, classes] and labels, for one client or for all together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from moiety.errors import MoietyError, kind, message, must, number, whole

Row = dict[str, Any]

ROUNDING = 1e-12
"""What sums of probabilities may be off by: 0.6 + 0.3 is a little less than 0.9."""


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
    place = np.searchsorted(np.arange(1, bins) / bins, confidence)  # not confidence * bins, which rounds
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
    kind("found", found, Mapping, "probabilities and labels by client")
    must(len(found) > 0, "found", "predictions of at least one client", "none")
    for client, both in found.items():
        must(isinstance(both, tuple | list) and len(both) == 2, f"found[{client!r}]", "(probabilities, labels)", both)
    known = {client: _checked(p, y) for client, (p, y) in found.items()}
    classes = {client: p.shape[1] for client, (p, _) in known.items()}
    must(len(set(classes.values())) == 1, "found", "probabilities of the same classes for all clients", classes)
    rows = [{"client": client, **scores(p, y, bins=bins)} for client, (p, y) in known.items()]
    heap = [np.concatenate(parts) for parts in zip(*known.values(), strict=True)]
    return rows, {"client": "all", **scores(heap[0], heap[1], bins=bins)}


def set_coverage(probabilities: np.ndarray, y: np.ndarray, *, level: float = 0.9) -> Row:
    """How often the smallest sets of classes that hold at least ``level`` of the probability hold the label.

    Classes are not divided, so sets hold more than ``level``: ``covered``, the share of labels within their sets, is to
    be judged by ``mass``, the mean probability of the sets, which it has where probabilities are right. ``size`` is
    the mean number of classes in a set.

    >>> found = set_coverage(np.array([[0.6, 0.35, 0.05], [0.97, 0.02, 0.01]]), np.array([1, 2]))
    >>> found["covered"], round(found["mass"], 2), found["size"]
    (0.5, 0.96, 1.5)
    """
    number("level", level, "> 0 and < 1", lambda x: 0 < x < 1)
    p, labels = _checked(probabilities, y)
    order = np.argsort(-p, axis=1, kind="stable")
    sorted_p = np.take_along_axis(p, order, axis=1)
    # A class is in where those before it do not suffice.
    taken = sorted_p.cumsum(1) - sorted_p < level - ROUNDING
    place = np.argmax(order == labels[:, None], axis=1)
    return {
        "covered": float(taken[np.arange(len(p)), place].mean()),
        "mass": float((sorted_p * taken).sum(1).mean()),
        "size": float(taken.sum(1).mean()),
    }


def coverage(low: np.ndarray, high: np.ndarray, y: np.ndarray) -> float:
    """The share of values that lie within their intervals, one interval for each value.

    All three have one shape, but a last axis of length 1 may be left out: a model with one output has intervals
    [examples, 1] and values [examples].

    >>> coverage(np.array([[0.0], [0.0]]), np.array([[1.0], [1.0]]), np.array([0.5, 2.0]))
    0.5
    """
    given = {"low": numbers("low", low), "high": numbers("high", high), "y": numbers("y", y)}
    axes = min(values.ndim for values in given.values())
    a, b, values = (v[..., 0] if v.ndim == axes + 1 and v.shape[-1] == 1 else v for v in given.values())
    for name, one in (("low", a), ("high", b)):
        must(one.shape == values.shape, name, f"of the shape of y, {values.shape}", one.shape)
    must(values.size > 0, "y", "at least one value", "none")
    must(bool((a <= b).all()), "low", "<= high everywhere", "others")
    return float(((a <= values) & (values <= b)).mean())


def out_of_distribution_auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    """The chance that a score (entropy, say) is larger for an example from elsewhere than for one of the client's.

    Ties count half: 0.5 is what a score that knows nothing has.
    """
    from sklearn.metrics import roc_auc_score

    given = {"inside": numbers("inside", inside), "outside": numbers("outside", outside)}
    for name, values in given.items():
        must(values.ndim == 1 and len(values) > 0, name, "one score for each example, and some", values.shape)
    labels = np.repeat([0, 1], [len(values) for values in given.values()])
    return float(roc_auc_score(labels, np.concatenate(list(given.values()))))


def _checked(probabilities: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    p, labels = numbers("probabilities", probabilities), _array("y", y)
    must(p.ndim == 2 and len(p) > 0, "probabilities", "a table [examples, classes] with rows", p.shape)
    must(p.shape[1] > 1, "probabilities", "of two classes or more", p.shape[1])
    must(labels.shape == p.shape[:1], "y", f"one label for each of {len(p)} examples", labels.shape)
    must(bool((p >= 0).all()), "probabilities", ">= 0", float(p.min()))
    must(bool(np.allclose(p.sum(1), 1, atol=1e-4)), "probabilities", "rows that sum to 1", "others")
    must(labels.dtype.kind in "iu", "y", "whole numbers", labels.dtype)
    must(bool((labels >= 0).all() and (labels < p.shape[1]).all()), "y", f"from 0 to {p.shape[1] - 1}", "others")
    return p, labels


def numbers(name: str, values: Any) -> np.ndarray:
    """The values as floating numbers, all of them finite."""
    array = _array(name, values)
    must(array.dtype.kind in "biuf", name, "numbers", array.dtype)
    array = array.astype(np.float64)
    odd = array[~np.isfinite(array)]
    must(odd.size == 0, name, "finite everywhere", odd[:1])
    return array


def _array(name: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise MoietyError(message(name, "an array", f"values that NumPy refuses ({error})")) from None
