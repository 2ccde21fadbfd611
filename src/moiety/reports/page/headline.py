"""What the page says first: one sentence, and the numbers that one remembers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from moiety.reports.intervals import Interval, interval
from moiety.reports.noise import HELPED, HURT, UNKNOWN
from moiety.reports.page.content import Content, View
from moiety.reports.page.document import escape
from moiety.reports.result import Result
from moiety.reports.summary import unit
from moiety.reports.versus import mean
from moiety.reports.words import (
    format_amount,
    format_count,
    format_gain,
    format_metric,
    is_percentage,
    list_names,
    make_printable,
)


def mean_over_seeds(values: Sequence[float]) -> Interval | None:
    """The mean and its interval; None where a value is not finite."""
    return interval(values) if values and all(math.isfinite(value) for value in values) else None


def headline(content: Content) -> str:
    """The page in one sentence."""
    if not content.scores:
        return _describe_progress(content)
    groups, metric = content.groups, content.metric
    if len(groups) > 1:
        return _compare_runs(content)
    runs = list(groups[0].results.values())
    score = mean(float(run.personal["metric_unweighted"]) for run in runs)
    clients = _count_clients(int(runs[0].personal["clients"]))
    if not content.views:
        return f"One model for all: {format_metric(score, metric)} {metric} on average over {clients}."
    view = content.views[0]
    gains = view.gains[view.gains == view.gains]
    average = float(gains.mean()) if len(gains) else math.nan
    words = f"Personal models reach {format_metric(score, metric)} {metric} on average over {clients},"
    words += f" {_describe_gain(average, metric)} the shared model alone."
    if UNKNOWN not in view.verdicts or view.low is not None:
        return f"{words} {_describe_verdicts(view.count(HELPED), view.count(HURT))}"
    return f"{words} {_count_clients(int((gains < 0).sum()))} lose."


def _count_clients(number: int) -> str:
    return format_count(number, "client")


def _describe_verdicts(helped: int, hurt: int) -> str:
    if helped == hurt == 0:
        return "No single client gains or loses beyond the noise of its test rows."
    gain = f"{_count_clients(helped)} {'gains' if helped == 1 else 'gain'} beyond noise"
    lose = "none loses" if hurt == 0 else f"{hurt:,} {'loses' if hurt == 1 else 'lose'}"
    return f"{gain}, {lose}."


def _describe_gain(gain: float, metric: str) -> str:
    """How a gain reads in a sentence."""
    if not math.isfinite(gain):
        return "which cannot be compared with"
    size = format_gain(abs(gain), metric).lstrip("+")
    if float(size) == 0:
        return "the same as"
    what = f"{size} points" if is_percentage(metric) else size
    return f"{what} {'better' if gain > 0 else 'worse'} than"


def _compare_runs(content: Content) -> str:
    """The best of several runs against the first, decided or not."""
    pairs = [view for view in content.views if view.old == content.groups[0].name and view.over_seeds is not None]
    base = make_printable(content.groups[0].name)
    if not pairs:
        return f"{format_count(len(content.groups), 'group')} of runs that share no seed, side by side."
    if len(pairs) > 1:
        return _list_decided(pairs, base, content.metric)
    view = pairs[0]
    span, metric = view.over_seeds, content.metric
    assert span is not None
    words = f"{make_printable(view.new)} is {_describe_gain(span.mean, metric)} {base} in {metric}"
    verdicts = _describe_verdicts(view.count(HELPED), view.count(HURT)) if view.low is not None else ""
    if span.low is None or span.high is None:
        return f"{words}, with one seed: how far seeds differ is not known. {verdicts}".rstrip()
    if span.low <= 0 <= span.high:
        ends = f"{format_gain(span.low, metric)} to {format_gain(span.high, metric)}"
        return f"{words}, but the interval over {span.seeds} seeds, {ends}, decides nothing."
    return f"{words}, beyond the noise of {span.seeds} seeds. {verdicts}".rstrip()


def _list_decided(pairs: Sequence[View], base: str, metric: str) -> str:
    """Which of several runs are better or worse than the first, by how much, and how many are not decided."""
    spans = [(view, view.over_seeds) for view in pairs if view.over_seeds is not None]
    if all(span.low is None for _, span in spans):
        return f"{len(pairs)} runs against {base}, with one seed each: differences are not decided."
    sides: dict[str, list[str]] = {"better": [], "worse": []}
    for view, span in spans:
        if span.low is not None and span.high is not None and not span.low <= 0 <= span.high:
            gain = f"{format_gain(span.mean, metric)}{' points' if is_percentage(metric) else ''}"
            sides["better" if span.mean > 0 else "worse"].append(f"{make_printable(view.new)} ({gain})")
    parts = [f"{word} than {base}: {list_names(names, 3)}" for word, names in sides.items() if names]
    if not parts:
        return f"None of {len(pairs)} runs differs from {base} beyond the noise of seeds."
    rest = len(pairs) - sum(map(len, sides.values()))
    parts += [f"not decided: {rest}"] if rest else []
    return f"Beyond the noise of seeds, {'; '.join(parts)}."


def _describe_progress(content: Content) -> str:
    """How far runs have come that have not ended."""
    results, rounds, total = _count_rounds(content)
    words = (
        f"Round {rounds:,} of {total:,}"
        if len(results) == 1
        else f"{rounds:,} of {total:,} rounds in {len(results)} runs"
    )
    last = next((result.last for result in reversed(results) if result.history), None)
    if last is None:
        return f"{words}: nothing has been evaluated yet."
    metric = str(last["metric_name"])
    return f"{words}: {metric} {format_metric(last['metric'], metric)} on {last['part']} rows."


def _count_rounds(content: Content) -> tuple[list[Result], int, int]:
    """All runs, how many rounds of theirs have been evaluated, and how many there will be."""
    results = [result for group in content.groups for result in group.results.values()]
    rounds = sum(int(result.history[-1]["round"]) for result in results if result.history)
    return results, rounds, sum(int(result.config.get("run", {}).get("rounds", 0)) for result in results)


def write_progress(content: Content) -> str:
    """A bar that shows how far runs have come that have not ended."""
    _, rounds, total = _count_rounds(content)
    if content.scores or not total:
        return ""
    return f'<progress aria-label="Rounds that are done" max="{total}" value="{rounds}"></progress>'


def write_cards(content: Content) -> str:
    """The numbers that one remembers."""
    if not content.scores:
        return ""
    metric, runs = content.metric, list(content.groups[0].results.values())
    several = len(content.groups) > 1
    cards = []
    score = "metric" if several else "metric_unweighted"  # of what the headline speaks of
    for group in content.groups[:4]:
        results = [result for result in group.results.values() if result.clients]
        span = mean_over_seeds([float(result.personal[score]) for result in results])
        if span is not None:
            name = make_printable(group.name) if several else "personal models" if content.views else "the shared model"
            rows = "all test rows" if several else "mean over clients"
            note = _spread(span, metric, rows)
            if several:
                worst = mean([float(result.personal["worst_decile"]) for result in results])
                note += f"; worst tenth of clients {format_metric(worst, metric)}"
            cards.append((format_metric(span.mean, metric), f"{metric}, {name}", note))
    if not several and content.views:
        shared = mean([float(run.shared["metric_unweighted"]) for run in runs])
        cards.append((format_metric(shared, metric), f"{metric}, shared alone", ""))
        worst = mean([float(run.personal["worst_decile"]) for run in runs])
        cards.append((format_metric(worst, metric), "worst tenth of clients", "mean, personal models"))
    if content.views and content.views[0].low is not None:
        view = content.views[0]
        words = f"of {_count_clients(int((view.gains == view.gains).sum()))} beyond noise"
        words += f", {view.label}" if several else ""
        cards.append((f"{view.count(HELPED):,} / {view.count(HURT):,}", "helped / hurt", words))
    traffic = mean([float(run.ledger["down_payload"] + run.ledger["up_payload"]) for run in runs])
    cards.append(
        (format_amount(traffic, "B"), "sent in all", make_printable(content.groups[0].name) if several else "")
    )
    last = [run.history[-1] for run in runs if run.history]
    if not several and last and all(row.get("epsilon") is not None for row in last):
        epsilon, delta = (mean([float(row[key]) for row in last]) for key in ("epsilon", "delta"))
        cards.append((f"{epsilon:.4g}", "epsilon, the privacy spent", f"at delta {delta:.4g}"))
    inner = "".join(
        f"<div><dt>{_let_break(what)}{_add_note(note)}</dt><dd>{escape(number)}</dd></div>"
        for number, what, note in cards
    )
    return f'<dl class="cards">{inner}</dl>'


def _add_note(note: str) -> str:
    return f"<small>{_let_break(note)}</small>" if note else ""


def _let_break(text: str) -> str:
    """A text that may go on in a new line after an equals sign: names of a sweep's runs are long words."""
    return escape(text).replace("=", "=&#8203;")


def _spread(span: Interval, metric: str, rows: str) -> str:
    """How far seeds differ; with one seed, what the number is of."""
    if span.low is None or span.high is None:
        return f"{rows}, one seed"
    half = format_gain(span.high - span.mean, metric).lstrip("+")
    return f"± {half} {'points' if is_percentage(metric) else unit(metric)}, {span.seeds} seeds"
