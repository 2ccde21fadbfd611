"""One kind of error, one shape of message.

Every message a user can cause reads ``name must be <constraint>, got <value>. <what to do>``, on one line.
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Callable, Iterable, Sequence


class MoietyError(ValueError):
    """Bad input or a broken promise; the command shows it as one line and exits with 2."""


def must(ok: bool, name: str, constraint: str, got: object, hint: str = "") -> None:
    """Raise the house's error unless ``ok`` holds.

    >>> must(0.1 > 0, "lr", "> 0", 0.1)
    >>> must(-1 > 0, "lr", "> 0", -1, "Use a small positive number.")
    Traceback (most recent call last):
    moiety.errors.MoietyError: `lr` must be > 0, got -1. Use a small positive number.
    """
    if not ok:
        raise MoietyError(message(name, constraint, got, hint))


def message(name: str, constraint: str, got: object, hint: str = "") -> str:
    """The one-line text of an error."""
    shown = " ".join(str(got).split())
    shown = shown if len(shown) <= 160 else shown[:157] + "..."
    return " ".join(f"`{name}` must be {constraint}, got {shown}. {hint}".split())


def near(name: str, known: Iterable[str], count: int = 3) -> str:
    """A hint that shows the known names nearest to ``name``.

    >>> near("fedalt2", ["fedavg", "fedalt", "fedsim"])
    'Did you mean fedalt?'
    >>> near("zzz", ["fedavg", "fedalt"])
    'Known: fedalt, fedavg.'
    """
    names = sorted(set(known))
    close: Sequence[str] = difflib.get_close_matches(name, names, n=count, cutoff=0.75)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    if not names:
        return ""
    shown = names[:12]
    return f"Known: {', '.join(shown)}{', ...' if len(names) > len(shown) else ''}."


def choice(name: str, value: object, known: Iterable[str]) -> None:
    """Raise unless ``value`` is one of the ``known`` names; the message shows the nearest."""
    names = list(known)
    if value not in names:  # the nearest names take a while to find, and this is asked often
        must(False, name, "one of the known names", repr(value), near(str(value), names))


def whole(name: str, value: object, least: int, most: float = math.inf) -> None:
    """Raise unless ``value`` is a whole number from ``least`` to ``most``."""
    ok = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    must(ok, name, "a whole number", repr(value))
    must(int(value) >= least, name, f">= {least}", value)  # type: ignore[call-overload]
    must(int(value) <= most, name, f"<= {most}", value)  # type: ignore[call-overload]


def number(name: str, value: object, constraint: str, holds: Callable[[float], bool], hint: str = "") -> None:
    """Raise unless ``value`` is a real number for which ``holds`` is true, as ``constraint`` says."""
    ok = isinstance(value, numbers.Real) and not isinstance(value, bool) and holds(float(value))
    must(ok, name, constraint, repr(value) if isinstance(value, str) else value, hint)


def kind(name: str, value: object, wanted: type | tuple[type, ...], described: str, hint: str = "") -> None:
    """Raise unless ``value`` is of one of the ``wanted`` types."""
    if not isinstance(value, wanted):  # the text of a large value takes a while to make
        must(False, name, described, f"{value!r:.60} ({type(value).__name__})", hint)
