"""Arrow columns as NumPy arrays: numbers, times, and texts as codes; what cannot be used is refused with its row."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from moiety.data.federated import Array, Ints
from moiety.data.tables import is_number, is_text, is_time
from moiety.errors import refuse

Place = Callable[[int], str]
Floats = NDArray[np.float64]

DATE = "Leave it out with drop=, name it as time=, or make it a number first, such as an age in days."
NESTED = "Give it a column for each number, or leave it out with drop=."


def check_feature(name: str, type_: pa.DataType) -> str:
    """The kind of a feature with this type: ``number``, ``boolean`` or ``category``; other types are refused."""
    if pa.types.is_boolean(type_):
        return "boolean"
    if is_number(type_):
        return "number"
    if is_text(type_) or pa.types.is_dictionary(type_):
        return "category"
    hint = DATE if is_time(type_) else NESTED if pa.types.is_nested(type_) else "Leave it out with drop=."
    problem = "no value at all" if pa.types.is_null(type_) else str(type_)
    return refuse(f"column {name!r}", "of numbers, booleans or texts to be a feature", problem, hint)


REMOVE = "Remove such rows."


def read_numbers(name: str, column: pa.Array, place: Place, *, missing: bool = False, hint: str = "") -> Floats:
    """A column of numbers or booleans as float64, NaN where a value is missing, if values may be ``missing``.

    Else the ``hint`` says what to do about one that is.
    """
    try:
        values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    except (pa.ArrowException, ValueError):
        texts = column.to_pylist() if is_text(column.type) else []
        first = next((row for row, text in enumerate(texts) if text is not None and not is_number_text(text)), None)
        problem = f"{column.type} ({place(0)})" if first is None else f"{texts[first]!r:.40} at {place(first)}"
        refuse(f"column {name!r}", "of numbers", problem)
    numbers = np.asarray(values, dtype=np.float64)
    odd = np.isinf(numbers) if missing else ~np.isfinite(numbers)
    if odd.any():
        row = int(np.argmax(odd))
        if np.isnan(numbers[row]):
            refuse_missing(name, place(row), hint)
        refuse(f"column {name!r}", "finite", f"{numbers[row]} at {place(row)}", "Remove or correct that row.")
    return numbers


def refuse_missing(name: str, where: str, hint: str = "") -> None:
    """Raise for a value that is missing."""
    fill = 'Remove or fill such rows, or say missing="mean", "median" or "indicator".'
    refuse(f"column {name!r}", "given in every row", f"nothing at {where}", hint or fill)


def check_complete(name: str, column: pa.Array, place: Place) -> None:
    """Raise where a value of a column that must be complete (a client, a label) is missing."""
    missing = column.null_count > 0 or pa.types.is_null(column.type)
    if pa.types.is_floating(column.type):
        column = _without_nan(column)
        missing = column.null_count > 0
    if missing:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        refuse_missing(name, place(row), REMOVE)


def _without_nan(column: pa.Array) -> pa.Array:
    """A column of floating-point numbers in which NaN is missing."""
    import pyarrow.compute as pc  # not above: it takes 0.1 s, and runs on arrays do without

    return pc.if_else(pc.is_nan(column), None, column)


def read_integers(name: str, column: pa.Array, place: Place) -> Ints:
    """A complete column of whole numbers as int64."""
    check_complete(name, column, place)
    try:
        return np.asarray(column.cast(pa.int64()).to_numpy(zero_copy_only=False), dtype=np.int64)
    except (pa.ArrowException, ValueError):
        refuse(f"column {name!r}", "whole numbers within the range of int64", str(column.type))


def read_times(name: str, column: pa.Array, place: Place) -> Array:
    """A complete column of dates, times or numbers, as numbers that grow with time."""
    check_complete(name, column, place)
    if is_number(column.type):
        return read_numbers(name, column, place)
    hint, constraint = "Write dates as 2024-01-31, or as numbers.", "of dates, times or numbers to order rows by"
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type) or is_text(column.type):
        for zone in (getattr(column.type, "tz", None), "UTC"):  # a text may name its zone, as in 2024-01-31T12:00Z
            try:
                moments = column.cast(pa.timestamp("us", tz=zone), safe=False)
                return np.asarray(moments.cast(pa.int64()).to_numpy(zero_copy_only=False), dtype=np.int64)
            except (pa.ArrowException, ValueError):
                pass
    if is_text(column.type):
        row = next((row for row in range(len(column)) if not _is_moment(column[row].as_py())), 0)
        return refuse(f"column {name!r}", constraint, f"{column[row].as_py()!r:.40} at {place(row)}", hint)
    return refuse(f"column {name!r}", constraint, str(column.type), hint)


def _is_moment(text: str) -> bool:
    try:
        pa.scalar(text).cast(pa.timestamp("us"))
    except (pa.ArrowException, ValueError):
        return False
    return True


def is_number_text(label: str) -> bool:
    """Whether a text is that of a number."""
    try:
        float(label)
    except ValueError:
        return False
    return True


def as_label(value: object) -> str:
    """A value as the name of a category or class: whole numbers without a point."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


class Vocabulary:
    """The distinct values of a column so far, each with a code: the order in which they came."""

    def __init__(self) -> None:
        self.codes: dict[object, int] = {}

    def encode(self, column: pa.Array) -> Ints:
        """The codes of a column's values, -1 where one is missing; new values get new codes."""
        return _translate(column, lambda value: self.codes.setdefault(value, len(self.codes)))


def look_up(column: pa.Array, codes: Mapping[str, int], missing: int, unknown: int) -> Ints:
    """The codes of values by their names; other numbers stand for those that are missing or unknown."""
    return _translate(column, lambda value: codes.get(as_label(value), unknown), missing)


def _translate(column: pa.Array, code: Callable[[object], int], missing: int = -1) -> Ints:
    """The code of each value of a column; ``code`` is asked once for each distinct value that occurs."""
    if pa.types.is_null(column.type):
        return np.full(len(column), missing, dtype=np.int64)
    if pa.types.is_floating(column.type):
        column = _without_nan(column)
    array = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    places = array.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    values = array.dictionary.to_pylist()
    table = np.full(len(values) + 1, missing, dtype=np.int64)  # the last one is for -1
    for place in _list_distinct(places):
        if values[place] is not None:
            table[place] = code(values[place])
    return np.asarray(table[places])


def _list_distinct(places: Ints) -> list[int]:
    """The distinct places that occur, in the order in which they first do; -1 is left out."""
    distinct, first = np.unique(places, return_index=True)
    return [int(place) for place in distinct[np.argsort(first)] if place >= 0]
