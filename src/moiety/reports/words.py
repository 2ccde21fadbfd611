"""Numbers and names as a reader wants them."""

from __future__ import annotations

import math
from collections.abc import Sequence

_SHARES = ("accuracy", "one_versus_all_accuracy", "token_accuracy", "word_error_rate")
"""Metrics from 0 to 1, which are shown in per cent."""
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def format_metric(number: float | None, metric: str) -> str:
    """A metric's value; None is how a history has one that is not finite.

    >>> format_metric(0.7938, "accuracy"), format_metric(0.7938, "mse")
    ('79.4%', '0.7938')
    >>> format_metric(float("nan"), "mse"), format_metric(None, "mse")
    ('-', '-')
    """
    if number is None or not math.isfinite(number):
        return "-"
    return f"{100 * number:.1f}%" if is_percentage(metric) else f"{number:.4g}"


def is_percentage(metric: str) -> bool:
    """Whether values of this metric are shown in per cent, and their differences in percentage points.

    >>> is_percentage("accuracy"), is_percentage("mse")
    (True, False)
    """
    return metric in _SHARES


def format_gain(number: float, metric: str) -> str:
    """A gain with its sign, in percentage points where the metric is shown in per cent.

    >>> format_gain(0.135, "accuracy"), format_gain(-0.2, "mse"), format_gain(-0.0, "accuracy")
    ('+13.5', '-0.2', '0.0')
    """
    if not math.isfinite(number):
        return "-"
    text = f"{100 * number:+.1f}" if is_percentage(metric) else f"{number:+.4g}"
    return text if float(text) else text[1:]


def list_names(names: Sequence[str], limit: int = 10) -> str:
    """The first few names, and how many more there are.

    >>> list_names(["3", "14", "15"]), list_names(["3", "14", "15"], limit=2)
    ('3, 14, 15', '3, 14 and 1 more')
    """
    text = ", ".join(make_printable(name) for name in names[:limit])
    return text if len(names) <= limit else f"{text} and {len(names) - limit} more"


def make_printable(name: str) -> str:
    r"""The name without characters that would steer a terminal.

    >>> make_printable("ann \x1b[31m")
    'ann ?[31m'
    """
    return "".join(c if c.isprintable() else "?" for c in name)


def format_count(number: int, noun: str) -> str:
    """A number of things.

    >>> format_count(1, "client"), format_count(10_000, "client")
    ('1 client', '10,000 clients')
    """
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_amount(number: float, unit: str) -> str:
    """A large number with its unit, to three figures.

    >>> [format_amount(number, "B") for number in (12, 55684, 999999, 3358400)]
    ['12 B', '55.7 kB', '1 MB', '3.36 MB']
    >>> format_amount(1.66e8, "FLOP")
    '166 MFLOP'
    """
    power = 0
    while float(f"{number:.3g}") >= 1000 and power < len(_PREFIXES) - 1:
        number, power = number / 1000, power + 1
    return f"{number:.3g} {_PREFIXES[power]}{unit}"


def format_score(number: float | None, missing: str = "-", digits: int = 4) -> str:
    """A number for a reader, with ``digits`` decimals while it is small; ``missing`` where it is not finite.

    >>> format_score(0.5), format_score(1234.5678), format_score(2.6e46), format_score(None)
    ('0.5000', '1234.5678', '2.6e+46', '-')
    """
    if number is None or not math.isfinite(number):
        return missing
    return f"{number:.{digits}f}" if abs(number) < 1e6 else f"{number:.4g}"
