"""One preprocessing recipe for tables whose rows stay with their owners.

Each owner gives the names of columns, categories and classes, and for each column the count, the sum and the squares of
its training rows; one side adds them up. This determines all that ``from_frame`` would fit on all rows together, except
medians.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from moiety.data.fitting import Fitter
from moiety.data.frame import Frame, collect_rows, trained_rows
from moiety.data.preprocess import Feature, Preprocessing, Sums, add_sums, sort_labels
from moiety.data.values import as_label
from moiety.errors import is_real, is_whole, must, refuse, report_errors

KINDS = "the same kind on all devices"
LARGEST, LONGEST = 1e150, 4000
"""The largest sum of a column, whose square is finite, and the most letters of a name."""


def summarise_table(frame: Frame, options: Mapping[str, Any]) -> dict[str, Any]:
    """What an owner says of its table, as JSON holds it: no row."""
    fitter = collect_rows(frame, missing=options["missing"], standardise=options["standardise"])
    training, rows = trained_rows(frame.split), frame.rows
    counts = {
        name: {as_label(value): int(fitter.counts[name][code]) for value, code in words.codes.items()}
        for name, words in fitter.words.items()
    }
    sums = fitter.sums
    if sums is not None:  # around 0, which all owners know
        sums = Sums(sums.rows, sums.total + sums.around * sums.rows, sums.squares, np.zeros_like(sums.around))
    return {
        "features": [[each.name, each.kind, each.encoding] for each in frame.features],
        "rows": int(training.sum()),
        "sums": None if sums is None else [part.tolist() for part in sums[:3]],
        "absent": dict(fitter.absent),
        "categories": counts,
        "classes": list(rows.class_names),
        "weight": None if rows.weight is None else float(rows.weight[training].sum()),
    }


def check_summary(summary: Any, size: int) -> None:
    """Refuse what is no summary of a table of ``size`` rows: it came from elsewhere, and is added up with others."""
    with report_errors("table", "sums and names of a table"):
        names = [name for name, kind, encoding in summary["features"] if isinstance(kind + encoding, str)]
        numbers = [name for name, kind, _ in summary["features"] if kind != "category"]
        sums = summary["sums"] or [[], [], []]
        counts = [count for each in summary["categories"].values() for count in each.values()]
        labels = [*summary["classes"], *(label for each in summary["categories"].values() for label in each)]
        values = np.array([*sums, [0.0] * len(numbers)], dtype=np.float64)
        fits = bool((abs(values) <= LARGEST).all()) and (sums == [[], [], []] or values.shape == (4, len(numbers)))
        fits = (
            fits
            and set(summary["absent"]) == set(names)
            and all(isinstance(label, str) and len(label) <= LONGEST for label in labels)
        )
        fits = fits and set(summary["categories"]) == set(names) - set(numbers)
        whole = [summary["rows"], *counts, *summary["absent"].values()]
        fits = fits and all(is_whole(count) and 0 <= count <= size for count in whole)
        weight = summary["weight"]
        fits = fits and (weight is None or (is_real(weight) and 0 <= weight <= LARGEST))
    must(fits, "table", "sums and names of a table", "others")


def agree_on_recipe(summaries: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Preprocessing:
    """The recipe that all owners apply, from what each of them says."""
    first = summaries[0]
    for each in summaries:
        for one, other in zip(first["features"], each["features"], strict=False):
            must(one == other, f"column {one[0]!r}", KINDS, f"{one[1]} and {other[1]} ({other[0]!r})")
        must(len(first["features"]) == len(each["features"]), "features", "the same on all devices", "others")
        hint = 'Say task="classification" or task="regression".'
        must(bool(first["classes"]) == bool(each["classes"]), "target", KINDS, "labels and numbers", hint)
    features = [Feature(name, kind, encoding) for name, kind, encoding in first["features"]]
    fitter = Fitter(
        features, missing=options["missing"], standardise=options["standardise"], rows=0, room=lambda shape: np.zeros(0)
    )
    sums = [_read_sums(each["sums"]) for each in summaries if each["sums"] is not None]
    fitter.sums = add_sums(sums) if sums else None
    for feature in features:
        fitter.absent[feature.name] = sum(each["absent"][feature.name] for each in summaries)
        if feature.kind == "category":
            _add_labels(fitter, feature.name, [each["categories"][feature.name] for each in summaries])
    classes = sort_labels(list({label for each in summaries for label in each["classes"]}))
    weights = [each["weight"] for each in summaries if each["weight"] is not None]
    mean = sum(weights) / sum(each["rows"] for each in summaries) if weights else 1.0
    must(mean > 0, "weights", "above 0 in some training row", "0 in all of them")
    return Preprocessing(
        fitter.finish(), options["target"], tuple(classes), options["weights"] or "", mean, options["dtype"]
    )


def _read_sums(parts: Sequence[Sequence[float]]) -> Sums:
    rows, total, squares = (np.asarray(part, dtype=np.float64) for part in parts)
    return Sums(rows, total, squares, np.zeros_like(rows))


def _add_labels(fitter: Fitter, name: str, counts: Sequence[Mapping[str, int]]) -> None:
    labels = sort_labels(list({label for each in counts for label in each}))
    fitter.words[name].codes.update({label: code for code, label in enumerate(labels)})
    fitter.counts[name] = np.array([sum(each.get(label, 0) for each in counts) for label in labels], dtype=np.int64)


def match_recipe(frame: Frame, recipe: Preprocessing) -> Frame:
    """The table with its labels counted as in the recipe; one with other columns or classes is refused."""
    for feature, own in zip(recipe.features, frame.features, strict=False):
        same = (feature.name, feature.kind) == (own.name, own.kind)
        must(same, f"column {own.name!r}", f"{feature.kind} {feature.name!r}, as on other devices", own.kind)
    count = len(recipe.features)
    must(len(frame.features) == count, "features", f"the {count} that others have", len(frame.features))
    rows = frame.rows
    if bool(rows.class_names) != bool(recipe.class_names):
        refuse("target", KINDS, "labels here or there alone")
    if not rows.class_names:
        return frame
    unknown = [name for name in rows.class_names if name not in recipe.class_names]
    must(not unknown, "target", f"one of the {len(recipe.class_names)} agreed classes", ", ".join(unknown[:3]))
    places = np.array([recipe.class_names.index(name) for name in rows.class_names], dtype=np.int64)
    return frame._replace(rows=rows._replace(y=places[rows.y], class_names=recipe.class_names))
