"""What the page's script draws from: numbers by column, cut to what fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from moiety.reports.noise import HELPED, HURT, UNCLEAR, UNKNOWN
from moiety.reports.page.content import ACROSS, GROUPS, MEASURES, NAME, Content, View, choose_clients, quantiles
from moiety.reports.summary import unit
from moiety.reports.words import is_percentage, make_printable

VERDICTS = (HELPED, UNCLEAR, HURT, UNKNOWN)


def make_data(content: Content) -> dict[str, Any]:
    """All numbers of the figures and of the table of clients."""
    metric = {"name": content.metric, "percent": is_percentage(content.metric), "higher": content.higher}
    present = {key for curve in content.curves for key in curve["columns"]}
    clients = choose_clients(content.drawn_views, len(content.scores[0].names)) if content.scores else np.arange(0)
    return {
        "metric": {**metric, "unit": unit(content.metric)},
        "curves": {
            "groups": content.curves,
            "measures": [_measure(key, content.metric) for key in MEASURES if key in present],
            "across": [{"key": key, "label": label} for key, label in ACROSS.items() if key in present],
        },
        "clients": _list_clients(content, clients),
        "verdicts": VERDICTS,
        "views": [_cut(view, clients) for view in content.drawn_views],
        "helped": [count_gains(view) for view in content.drawn_views],
        "spread": spread_rows(content),
        "pairs": pair_rows(content),
        "reliability": [{"label": label, "bins": bins} for label, bins in content.reliability],
        "draws": draw_columns(content),
    }


def _measure(key: str, metric: str) -> dict[str, Any]:
    label = MEASURES[key] if key in ("loss", "train_loss", "epsilon") else f"{metric}: {MEASURES[key]}"
    is_score = key in ("metric", "shared_metric", "worst_decile")
    return {"key": key, "label": label, "percent": is_score and is_percentage(metric)}


def _list_clients(content: Content, clients: np.ndarray) -> dict[str, Any]:
    if not content.scores:
        return {"names": [], "n": [], "n_test": [], "of": 0}
    scores = content.scores[0]
    names = [shorten(scores.names[at]) for at in clients]
    columns = {"n": scores.n[clients].tolist(), "n_test": scores.n_test[clients].tolist()}
    return {"names": names, **columns, "of": len(scores.names)}


def shorten(name: str) -> str:
    """A name as far as it fits: its beginning and its end."""
    text = make_printable(name)
    return text if len(text) <= NAME else f"{text[: NAME - 16]}…{text[-15:]}"


def _cut(view: View, clients: np.ndarray) -> dict[str, Any]:
    """A comparison with the clients that are drawn."""
    columns: dict[str, Any] = {"new": view.values, "old": view.base, "gain": view.gains}
    columns |= {} if view.low is None else {"low": view.low, "high": view.high}
    cut = {name: column[clients].tolist() for name, column in columns.items()}
    verdicts = [VERDICTS.index(view.verdicts[at]) for at in clients]
    return {"label": view.label, "names": [view.new, view.old], **cut, "verdict": verdicts}


def count_gains(view: View) -> dict[str, Any]:
    """How many clients are hurt beyond noise, worse, the same, better, helped beyond noise."""
    verdicts, gains = np.array(view.verdicts), view.gains
    hurt, helped = verdicts == HURT, verdicts == HELPED
    kinds = [hurt, (gains < 0) & ~hurt, gains == 0, (gains > 0) & ~helped, helped]
    return {"label": view.label, "counts": [int(kind.sum()) for kind in kinds]}


def spread_rows(content: Content) -> list[dict[str, Any]]:
    """How the metric is spread over clients, for each model on the page."""
    rows = []
    groups = [group for group in content.groups if all(result.clients for result in group.results.values())]
    several = len(groups) > 1
    for at, (group, scores) in enumerate(list(zip(groups, content.scores, strict=True))[:GROUPS]):
        models = {"personal": scores.own, "shared alone": scores.shared}
        if np.array_equal(scores.own, scores.shared, equal_nan=True):
            models = {"": scores.shared}
        for words, values in models.items():
            own = {"personal": "personal models", "": "the shared model"}
            label = ", ".join(filter(None, (group.name, words))) if several else own.get(words, words)
            row = {"label": label, "group": at, "shared": words == "shared alone"}
            rows.append({**row, **quantiles(values.mean(0), higher=content.higher)})
    return rows


def pair_rows(content: Content) -> list[dict[str, Any]]:
    """The mean gain of each comparison of two runs, with its interval over seeds.

    Gains over a shared model alone are not among them: where that is no model for all, they would dwarf the others.
    """
    rows = []
    for view in content.drawn_views:
        span = view.over_seeds
        if span is not None and view.old == content.groups[0].name:
            rows.append({"label": view.label, "mean": span.mean, "low": span.low, "high": span.high, "n": span.seeds})
    return rows


def draw_columns(content: Content) -> list[dict[str, Any]]:
    """What the draws of each group's posterior are worth, client by client, where there is one."""
    groups = []
    for group in content.groups[:GROUPS]:
        rows = [row for result in group.results.values() for row in result.clients]
        chains = [row for row in rows if is_drawn(row)]
        if chains:
            step = max(1, len(chains) // 2000)
            draws, rhats = ([float(row[key]) for row in chains[::step]] for key in ("effective_draws", "rhat"))
            groups.append({"label": group.name, "effective": draws, "rhat": rhats})
    return groups


def is_drawn(row: Mapping[str, Any]) -> bool:
    """Whether a client's row says what its draws are worth."""
    values = [row.get("effective_draws"), row.get("rhat")]
    return all(isinstance(value, float) and np.isfinite(value) for value in values)
