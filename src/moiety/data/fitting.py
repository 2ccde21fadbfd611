"""From blocks of a table to raw rows, and what training rows say about features: categories, fills, means, scales."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from moiety.data.federated import Array
from moiety.data.preprocess import Feature, Floats, Sums, add_sums, sort_labels, sum_rows
from moiety.data.tables import Table
from moiety.data.values import DATE, Place, Vocabulary, as_label, is_number_text, look_up, read_numbers, refuse_missing
from moiety.errors import refuse

MOST_CATEGORIES = {"one-hot": 1_000, "codes": 1_000_000}


class Fitter:
    """Collects what training rows say about features, block by block, without keeping the rows.

    Only medians need the values of their columns, in the array that ``room(shape)`` makes for them.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        *,
        missing: str | None,
        standardise: bool,
        rows: int,
        room: Callable[[tuple[int, int]], Array],
    ):
        self.features, self.missing, self.standardise = features, missing, standardise
        self.numbers = [each for each in features if each.kind != "category"]
        self.words = {each.name: Vocabulary() for each in features if each.kind == "category"}
        self.counts: dict[str, Array] = {name: np.zeros(0, dtype=np.int64) for name in self.words}
        self.absent = dict.fromkeys((each.name for each in features), 0)
        self.sums: Sums | None = None
        self.values = room((len(self.numbers), rows)) if missing == "median" else np.zeros((0, 0))
        self.rows = 0

    def add(self, columns: Mapping[str, pa.Array], place: Place) -> None:
        """Take in a block of training rows."""
        may = self.missing is not None
        numbers = [read_numbers(each.name, columns[each.name], place, missing=may) for each in self.numbers]
        rows = np.stack(numbers, axis=1) if numbers else np.zeros((0, 0))
        for each, values in zip(self.numbers, numbers, strict=True):
            self.absent[each.name] += int(np.isnan(values).sum())
        if numbers and self.sums is None:  # the first block gives the point that all sums are around
            self.sums = sum_rows(rows, sum_rows(rows).mean)
        elif numbers and self.sums is not None:
            self.sums = add_sums([self.sums, sum_rows(rows, self.sums.around)])
        if self.missing == "median":
            self.values[:, self.rows : self.rows + len(rows)] = rows.T
        self.rows += len(rows)
        for each in self.features:
            if each.kind == "category":
                self._add_category(each, columns[each.name], place)

    def _add_category(self, feature: Feature, column: pa.Array, place: Place) -> None:
        name, words = feature.name, self.words[feature.name]
        codes = words.encode(column)
        absent = codes < 0
        self.absent[name] += int(absent.sum())
        if self.missing is None and absent.any():
            refuse_missing(name, place(int(np.argmax(absent))))
        counts = np.bincount(codes[~absent], minlength=len(words.codes))
        counts[: len(self.counts[name])] += self.counts[name]
        self.counts[name] = counts
        most = MOST_CATEGORIES[feature.encoding]
        if len(words.codes) > most:
            hint = 'Leave it out with drop=, or say categories="codes".'
            constraint, problem = (
                f"of at most {most:,} categories for {feature.encoding}",
                f"more by {place(len(column) - 1)}",
            )
            if sum(is_number_text(as_label(value)) for value in words.codes) > most / 2:
                problem, hint = (
                    f"{problem}, and most are numbers",
                    "Look for a value that is none, or leave the column out with drop=.",
                )
            refuse(f"column {name!r}", constraint, problem, hint)

    def finish(self) -> tuple[Feature, ...]:
        """The features with what was fitted."""
        return tuple(
            self._finish_category(each)
            if each.kind == "category"
            else self._finish_number(each, [number.name for number in self.numbers].index(each.name))
            for each in self.features
        )

    def _finish_category(self, feature: Feature) -> Feature:
        name, counts = feature.name, self.counts[feature.name]
        labels = {as_label(value): int(counts[code]) for value, code in self.words[name].codes.items()}
        if not labels:
            _refuse_empty(name)
        categories = sort_labels(list(labels))
        fill = None
        if self.missing is not None:
            fill = float(np.argmax([labels[label] for label in categories]))
        return replace(feature, categories=tuple(categories), fill=fill, **self._note_missing(name))

    def _finish_number(self, feature: Feature, k: int) -> Feature:
        assert self.sums is not None  # there is a training row
        present, absent = self.sums.rows[k], self.absent[feature.name]
        if present == 0:
            _refuse_empty(feature.name)
        column = Sums(*(part[k : k + 1] for part in self.sums))
        fill = None
        if self.missing is not None:
            fill = float(column.mean[0])
            if self.missing == "median":
                values = np.array(self.values[k, : self.rows])
                fill = float(np.median(values[~np.isnan(values)]))
            fills = sum_rows(np.full((absent, 1), fill), column.around)
            column = add_sums([column, fills])
        if self.standardise and feature.kind == "number":
            feature = replace(feature, mean=float(column.mean[0]), scale=float(column.scale[0]))
        return replace(feature, fill=fill, **self._note_missing(feature.name))

    def _note_missing(self, name: str) -> dict[str, Any]:
        absent = self.absent[name]
        return {"missing": absent, "indicator": self.missing == "indicator" and absent > 0}


def _refuse_empty(name: str) -> None:
    refuse(f"column {name!r}", "given in some training row", "nothing in all of them", "Leave it out with drop=.")


def read_raw(features: Sequence[Feature], columns: Mapping[str, pa.Array], place: Place) -> Floats:
    """A block as raw rows [rows, features]: the position of each category, -1 for an unknown one; NaN for missing."""
    raw = []
    for feature in features:
        column, may = columns[feature.name], feature.fill is not None
        if feature.kind != "category":
            raw.append(read_numbers(feature.name, column, place, missing=may))
            continue
        positions = {category: code for code, category in enumerate(feature.categories)}
        codes = look_up(column, positions, missing=-2, unknown=-1)
        absent = codes == -2
        if absent.any() and not may:
            refuse_missing(feature.name, place(int(np.argmax(absent))))
        raw.append(np.where(absent, np.nan, codes))
    return np.stack(raw, axis=1).astype(np.float64)


def count_unknown(features: Sequence[Feature], raw: Floats) -> Array:
    """How many raw rows have an unknown category, for each feature."""
    words = np.array([feature.kind == "category" for feature in features])
    return np.asarray(((raw == -1) & words).sum(axis=0))


def warn_of_unknown(features: Sequence[Feature], counts: Array) -> None:
    """Say which columns have categories that no training row has."""
    for feature, count in zip(features, counts.tolist(), strict=True):
        if count:
            rows = "1 row has a category" if count == 1 else f"{count} rows have categories"
            text = f"Column {feature.name!r}: {rows} that no training row has, and which count as unknown."
            warnings.warn(text, stacklevel=4)


def check_texts(table: Table, name: str, labels: Sequence[str], way_out: str) -> None:
    """Refuse a column of texts that was meant to hold numbers or dates.

    Most are numbers, or all are but for a decimal comma or a per cent sign, or all are dates.
    """
    odd = looks_mixed(labels)
    if odd is not None:
        problem, hint = (
            f"{odd!r} at {find_row(table, name, odd)}",
            f"Correct that row, or {way_out} where these are names.",
        )
        refuse(f"column {name!r}", "all numbers, or all texts", problem, hint)
    if labels and all("," in label and is_number_text(label.replace(",", ".", 1)) for label in labels):
        problem = f"{labels[0]!r} at {find_row(table, name, labels[0])}"
        advice = 'Write a point (pandas.read_csv has decimal=",")'
        refuse(f"column {name!r}", "of numbers with a decimal point", problem, f"{advice}, or {way_out}.")
    if labels and all(label.endswith("%") and is_number_text(label[:-1]) for label in labels):
        problem = f"{labels[0]!r} at {find_row(table, name, labels[0])}"
        refuse(f"column {name!r}", "of numbers without a sign", problem, f"Write 12.5 and not 12.5%, or {way_out}.")
    if labels and all(map(DATED.fullmatch, labels)):
        problem = f"the date {labels[0]!r} at {find_row(table, name, labels[0])}"
        refuse(f"column {name!r}", "of numbers or names", problem, f"{DATE} Where these are names, {way_out}.")


DATED = re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}([ T].*)?")
"""A date as people write it: 31.1.2024, 1/31/2024, 2024-01-31 12:00."""


def check_spaces(table: Table, name: str, labels: Sequence[str]) -> None:
    """Refuse names that differ in spaces alone: they are meant to be one."""
    spellings: dict[str, str] = {}
    for label in labels:
        first = spellings.setdefault(" ".join(label.split()), label)
        if first != label:
            pair = f"{first!r} and {label!r} at {find_row(table, name, label)}"
            refuse(f"column {name!r}", "of names that differ in more than spaces", pair, "Make them alike.")


def find_row(table: Table, name: str, label: str | None) -> str:
    """The first row of a column with this label; without a label, the first text that is no number, and its row."""
    for block in table.read([name]):
        for row, value in enumerate(block.columns[name].to_pylist()):
            text = as_label(value)
            if text == label or (label is None and value is not None and not is_number_text(text)):
                return f"{block.place(row)}" if label is not None else f"{text!r} at {block.place(row)}"
    return ""


def looks_mixed(labels: Sequence[str]) -> str | None:
    """The first name that is no number where most names are numbers; None where all are, or few.

    >>> looks_mixed(["1", "2.5", "3", "oops"]), looks_mixed(["1", "2"]), looks_mixed(["a", "1"])
    ('oops', None, None)
    """
    odd = [label for label in labels if not is_number_text(label)]
    return odd[0] if odd and 2 * len(odd) < len(labels) else None
