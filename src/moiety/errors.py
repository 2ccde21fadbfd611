"""One kind of error, one shape of message.

Every message a user can cause reads ``name must be <constraint>, got <value>. <what to do>``, on one line.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import numbers
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from numpy.typing import NDArray


class MoietyError(ValueError):
    """Bad input or a broken promise; the command shows it as one line and exits with 2.

    >>> import moiety as mo
    >>> try:
    ...     mo.sgd(-1.0)
    ... except mo.MoietyError as error:
    ...     print(error)
    `lr` must be > 0 and finite, got -1.0. A learning rate is a small positive number.
    """


def message(name: str, constraint: str, value: object, hint: str = "") -> str:
    """The one-line text of an error."""
    try:
        text = " ".join(str(value).split())
    except ValueError:  # Python refuses to write whole numbers of more than 4300 digits
        text = f"{type(value).__name__} of too many digits to write"
    text = text if len(text) <= 160 else text[:157] + "..."
    return " ".join(f"`{name}` must be {constraint}, got {text}. {hint}".split())


def refuse(name: str, constraint: str, value: object, hint: str = "") -> NoReturn:
    """Raise moiety's error. In an ``except`` block it takes the place of the error that was caught."""
    raise MoietyError(message(name, constraint, value, hint)) from None


def must(ok: bool, name: str, constraint: str, value: object, hint: str = "") -> None:
    """Raise moiety's error unless ``ok`` holds.

    >>> must(0.1 > 0, "lr", "> 0", 0.1)
    >>> must(-1 > 0, "lr", "> 0", -1, "Use a small positive number.")
    Traceback (most recent call last):
    moiety.errors.MoietyError: `lr` must be > 0, got -1. Use a small positive number.
    """
    if not ok:
        refuse(name, constraint, value, hint)


@contextlib.contextmanager
def report_errors(
    name: str,
    constraint: str,
    errors: type[BaseException] | tuple[type[BaseException], ...] = Exception,
    where: str = "",
    hint: str = "",
) -> Iterator[None]:
    """Turn what others' code raises within the block into moiety's error, which keeps it as its cause.

    >>> with report_errors("file", "one that can be read", OSError, " at notes.txt"):
    ...     raise FileNotFoundError(2, "No such file or directory")
    Traceback (most recent call last):
    moiety.errors.MoietyError: `file` must be one that can be read, got No such file or directory at notes.txt.
    """
    try:
        yield
    except MoietyError:
        raise
    except errors as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise MoietyError(message(name, constraint, f"{reason}{where}", hint)) from error


def tell_error(error: Exception, most: int = 300) -> str:
    """What an error says, in one line of at most so many characters; of others' errors the type too.

    >>> tell_error(OverflowError("int too large"))
    'OverflowError: int too large'
    """
    text = str(error) if isinstance(error, MoietyError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:most]


def near(name: str, names: Iterable[str], most: int | None = 12) -> str:
    """A hint that shows which of ``names`` are nearest to ``name``, or else the first ``most`` (None: all of them).

    >>> near("fedalt2", ["fedavg", "fedalt", "fedsim"])
    'Did you mean fedalt?'
    >>> near("zzz", ["fedavg", "fedalt"])
    'Known: fedalt, fedavg.'
    """
    choices = sorted(set(names))
    close = difflib.get_close_matches(name, choices, n=3, cutoff=0.75)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    if not choices:
        return ""
    rest = ["..."] if len(choices[:most]) < len(choices) else []
    return f"Known: {', '.join([*choices[:most], *rest])}."


def choice(name: str, value: object, names: Iterable[str]) -> None:
    """Raise unless ``value`` is one of ``names``; the message shows the nearest."""
    choices = list(names)
    if value not in choices:  # the nearest names take a while to find, and this check runs often
        refuse(name, "one of the known names", repr(value), near(str(value), choices))


def is_whole(value: object) -> bool:
    """Whether ``value`` is a whole number, NumPy's included; True and False are not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_real(value: object) -> bool:
    """Whether ``value`` is a real number, NumPy's included; True and False are not."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


COUNT = 10**9
"""The largest count, where nothing narrower is said: more would never end, or fill the memory."""
SEED = 2**63
"""The largest seed; the smallest is as far below 0 where seeds may be negative."""


def whole(name: str, value: object, least: float = -math.inf, most: float = COUNT) -> None:
    """Raise unless ``value`` is a whole number from ``least`` to ``most``."""
    if not is_whole(value):  # the text of a large value takes a while to make
        refuse(name, "a whole number", f"{value!r:.200}")
    must(int(value) >= least, name, f">= {least}", value)  # type: ignore[call-overload]
    must(int(value) <= most, name, f"<= {most}", value)  # type: ignore[call-overload]


def number(name: str, value: object, constraint: str, holds: Callable[[float], bool], hint: str = "") -> None:
    """Raise unless ``value`` is a real number for which ``holds`` is true, as ``constraint`` says."""
    try:
        ok = is_real(value) and holds(float(value))  # type: ignore[arg-type]
    except OverflowError:  # a whole number that no float can hold
        ok = False
    must(ok, name, constraint, repr(value) if isinstance(value, str) else value, hint)


def positive(name: str, value: object) -> None:
    """Raise unless ``value`` is a finite number above 0."""
    number(name, value, "> 0 and finite", lambda x: 0 < x < math.inf)


def proper_fraction(name: str, value: object) -> None:
    """Raise unless ``value`` is a number between 0 and 1, both excluded."""
    number(name, value, "> 0 and < 1", lambda x: 0 < x < 1)


def kind(name: str, value: object, types: type | tuple[type, ...], constraint: str, hint: str = "") -> None:
    """Raise unless ``value`` is of one of these types."""
    if not isinstance(value, types):  # the text of a large value takes a while to make
        refuse(name, constraint, f"{value!r:.60} ({type(value).__name__})", hint)


def as_array(
    name: str,
    values: object,
    constraint: str = "an array",
    where: str = "",
    place: Callable[[int], str] = "row {}".format,
) -> NDArray[Any]:
    """The values as a NumPy array; raise where NumPy refuses them, and where values are masked.

    ``where`` ends messages, as in " in client 'ann'"; ``place`` says where a row is.
    """
    import numpy as np  # here, so that the command's help need not load it

    rows = values if isinstance(values, list | tuple) else ()
    try:
        partly = any(isinstance(row, np.ma.MaskedArray) for row in rows)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that a masked element becomes NaN, which is refused as well
            array: NDArray[Any] = np.ma.array(values) if partly else np.asanyarray(values)
        # A masked value is missing: NumPy would show what lies under the mask, -9999 for instance.
        gaps = np.argwhere(np.ma.getmaskarray(array)) if isinstance(array, np.ma.MaskedArray) else np.empty((0, 0))
        array = np.asarray(array)
        lists = [(row, value) for row, value in enumerate(rows) if isinstance(value, list | tuple)]
        if hidden := [row for row, value in lists if _hides(value, np.ma.MaskedArray)]:
            gaps = np.array(hidden)[:, None]
    except (ValueError, TypeError, RuntimeError, OverflowError, RecursionError, MemoryError) as error:
        refuse(name, constraint, f"values that NumPy refuses{where} ({error})")
    if len(gaps):
        row, *rest = gaps[0].tolist() or [0]
        at = f"{place(row)}, place {rest}" if rest else place(row)
        refuse(name, "without missing values", f"{len(gaps)} masked, the first at {at}{where}", FILL)
    return array


def _hides(values: list[Any] | tuple[Any, ...], masked: type[Any]) -> bool:
    """Whether a list has a masked value in it, however deep."""
    if not any(issubclass(each, (list, tuple, masked)) for each in set(map(type, values))):  # as most lists
        return False
    return any(
        _hides(each, masked) if isinstance(each, list | tuple) else isinstance(each, masked) and each.mask.any()
        for each in values
    )


FILL = "Remove or fill such rows."
"""What to do about values that are missing or not finite."""
