"""Numbers and names as a reader wants them."""

from __future__ import annotations

import math
from collections.abc import Sequence

_SHARES = (
    "accuracy",
    "one_versus_all_accuracy",
    "token_accuracy",
    "word_error_rate",
)  # metrics from 0 to 1, shown in per cent
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def value(number: float | None, metric: str) -> str:
    """A metric's value; None is how a history has one that is not finite.

    >>> value(0.7938, "accuracy"), value(0.7938, "mse"), value(float("nan"), "mse"), value(None, "mse")
    ('79.4%', '0.7938', '-', '-')
    """
    if number is None or not math.isfinite(number):
        return "-"
    return f"{100 * number:.1f}%" if metric in _SHARES else f"{number:.4g}"


def per_cent(metric: str) -> bool:
    """Whether values of this metric are shown in per cent, and their differences in percentage points."""
    return metric in _SHARES


def gain(number: float, metric: str) -> str:
    """A gain with its sign, in percentage points where the metric is shown in per cent.

    >>> gain(0.135, "accuracy"), gain(-0.2, "mse"), gain(-0.0, "accuracy")
    ('+13.5', '-0.2', '0.0')
    """
    if not math.isfinite(number):
        return "-"
    shown = f"{100 * number:+.1f}" if metric in _SHARES else f"{number:+.4g}"
    return shown if float(shown) else shown[1:]


def names(found: Sequence[str], limit: int = 10) -> str:
    """The first few names, and how many more there are.

    >>> names(["3", "14", "15"]), names(["3", "14", "15"], limit=2)
    ('3, 14, 15', '3, 14 and 1 more')
    """
    shown = ", ".join(printable(name) for name in found[:limit])
    return shown if len(found) <= limit else f"{shown} and {len(found) - limit} more"


def printable(name: str) -> str:
    r"""The name without characters that would steer a terminal.

    >>> printable("ann \x1b[31m")
    'ann ?[31m'
    """
    return "".join(c if c.isprintable() else "?" for c in name)


def count(number: int, noun: str) -> str:
    """A number of things.

    >>> count(1, "client"), count(3, "client")
    ('1 client', '3 clients')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def amount(number: float, unit: str) -> str:
    """A large number with its unit, to three figures.

    >>> amount(55684, "B"), amount(3358400, "B"), amount(1.66e8, "FLOP"), amount(12, "B"), amount(999999, "B")
    ('55.7 kB', '3.36 MB', '166 MFLOP', '12 B', '1 MB')
    """
    power = 0
    while float(f"{number:.3g}") >= 1000 and power < len(_PREFIXES) - 1:
        number, power = number / 1000, power + 1
    return f"{number:.3g} {_PREFIXES[power]}{unit}"
