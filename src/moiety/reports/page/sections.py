"""The words and tables of the report, as HTML: a reader without scripts, or with a screen reader, has them all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moiety.reports.intervals import Interval
from moiety.reports.noise import ENDS, HELPED, HURT, UNKNOWN
from moiety.reports.page.content import GROUPS, MEASURES, Content, View, by_size, choose_clients
from moiety.reports.page.costs import write_configuration, write_costs, write_posterior
from moiety.reports.page.data import pair_rows, shorten, spread_rows
from moiety.reports.page.document import escape, figure, paragraph, section, table
from moiety.reports.page.headline import headline, mean_over_seeds, write_cards, write_progress
from moiety.reports.summary import SHARED_ALONE, unit
from moiety.reports.words import format_gain, format_metric, is_percentage, list_names, make_printable

QUANTILE_HEADS = ("lowest", "10%", "25%", "median", "75%", "90%", "highest")
NAMED = 8
"""How many of those who lost most are named."""
WHOLE = ("nothing", "full")
"""Splits with which the shared model alone is a whole model that all clients have trained."""


NO_SEED = "These runs share no seed, so no differences are paired."


def write_sections(content: Content) -> str:
    """All sections, in the order of the page."""
    header = f'<header class="top"><p class="kicker">{escape(_write_subject(content))}</p>'
    header += f"<h1>{escape(headline(content))}</h1>{write_progress(content)}"
    header += f"{_say_what_gains_are_over(content)}{write_cards(content)}</header>"
    parts = [header, _write_runs(content), _write_curves(content)]
    if content.scores:
        parts += [_write_choices(content), _write_helped(content), _write_clients(content), _write_spread(content)]
    parts += [write_posterior(content), write_costs(content), write_configuration(content)]
    return "".join(part for part in parts if part)


def _write_subject(content: Content) -> str:
    """What the page is about, above the headline."""
    first = content.first
    names = list_names([group.name for group in content.groups], 3)
    part = f", {first.last['part']} rows" if first.history else ""
    return f"{names} · {first.part_name('data')}{part}"


def _say_what_gains_are_over(content: Content) -> str:
    """Where the shared model alone is no model for all, the headline must not read as if it were one."""
    first = content.first
    is_whole = first.part_name("algorithm") == "finetune" or first.part_name("split") in WHOLE
    if not content.views or len(content.groups) > 1 or is_whole:
        return ""
    stand_in = "the centre of the prior"
    if first.part_name("algorithm") != "fedpop":
        stand_in = "first values that no client has trained"
    words = f"The shared model alone is not one model for all: in place of a client's personal part it has {stand_in}."
    words += " To see what personal parts gain over one model for all, train one with fedavg on the same data, and"
    words += " report both: run.report(path, against=fedavg_run), or moiety report FEDAVG_FOLDER THIS_FOLDER."
    return paragraph(words, "note")


def show_interval(span: Interval | None, metric: str, *, gain: bool = False) -> str:
    """A mean with its interval over seeds; a share's interval stays within 0 and 100%."""
    if span is None:
        return "-"
    write = format_gain if gain else format_metric
    if span.low is None or span.high is None:
        return write(span.mean, metric)
    low, high = span.low, span.high
    if is_percentage(metric):
        least = -1.0 if gain else 0.0
        low, high = max(low, least), min(high, 1.0)
    return f"{write(span.mean, metric)} [{write(low, metric)}, {write(high, metric)}]"


def _write_runs(content: Content) -> str:
    """Several runs side by side, and how they differ."""
    if len(content.groups) < 2 or not content.scores:
        return ""
    metric = content.metric
    heads = ["runs", metric, "mean over clients", "worst tenth", "shared alone", "seeds", "algorithm", "split"]
    rows = []
    for group in content.groups:
        runs = list(group.results.values())
        if not all(run.clients for run in runs):
            continue
        keys = ("metric", "metric_unweighted", "worst_decile")
        scores = [mean_over_seeds([float(run.personal[key]) for run in runs]) for key in keys]
        scores.append(mean_over_seeds([float(run.shared["metric"]) for run in runs]))
        names = [len(runs), runs[0].part_name("algorithm"), runs[0].part_name("split")]
        means = [format_metric(score.mean if score else None, metric) for score in scores[2:]]
        intervals = [show_interval(score, metric) for score in scores[:2]]
        rows.append([make_printable(group.name), *intervals, *means, *names])
    side = table(
        f"Means, with 95% intervals over seeds where there are several; {metric} is weighted by test rows",
        heads,
        rows,
        last_texts=2,
    )
    rows_of_pairs = pair_rows(content)
    pairs = table(
        f"Paired differences in {unit(metric)}, seed by seed; + is better",
        ["comparison", "seeds", "mean gain", "verdict"],
        [[row["label"], row["n"], _show_pair(row, metric), judge_pair(row)] for row in rows_of_pairs],
    )
    caption = "Mean gain of each comparison with its 95% interval over seeds. Right of zero is better; an interval that"
    caption += " holds zero decides nothing, and one seed has no interval."
    plot = figure("pairs", "Paired differences between runs", caption, pairs) if rows_of_pairs else paragraph(NO_SEED)
    few = len(content.groups) > GROUPS
    note = paragraph(f"Figures show the first {GROUPS} of {len(content.groups)} groups of runs.", "note") if few else ""
    return section("runs", "Runs side by side", side, plot, note)


def _show_pair(row: Mapping[str, Any], metric: str) -> str:
    span = Interval(row["mean"], None, row["low"], row["high"], row["n"])
    return show_interval(span, metric, gain=True)


def judge_pair(row: Mapping[str, Any]) -> str:
    """What the interval of a paired difference says."""
    if row["low"] is None:
        return "one seed: not decided"
    return "better" if row["low"] > 0 else "worse" if row["high"] < 0 else "not decided"


def _write_curves(content: Content) -> str:
    if not content.curves:
        return section("curves", "While training", paragraph("No evaluation has been written yet."))
    metric = content.metric
    rows = []
    for curve in content.curves:
        columns = curve["columns"]
        for at, (place, *_) in enumerate(columns["round"]):
            scores = [columns[key][at][0] if key in columns else None for key in ("metric", "shared_metric")]
            losses = [columns[key][at][0] if key in columns else None for key in ("loss", "train_loss")]
            cells = [format_metric(value, metric) for value in scores]
            cells += [format_metric(value, "loss") for value in losses]
            rows.append([make_printable(curve["name"]), f"{place:g}", *cells])
    heads = [
        "runs",
        "round",
        f"{metric}, personal",
        f"{metric}, shared alone",
        MEASURES["loss"],
        MEASURES["train_loss"],
    ]
    numbers = table("The course of training", heads, rows)
    several = any(curve["seeds"] > 1 for curve in content.curves)
    caption = "One seed each." if len(content.curves) > 1 else "One seed."
    if several:
        caption = "Lines are means over seeds, bands go from the lowest to the highest seed."
    caption += (
        " Thin and dotted: the shared model alone."
        if any("shared_metric" in c["columns"] for c in content.curves)
        else ""
    )
    return section("curves", "While training", figure("curves", "The course of training", caption, numbers))


def _write_choices(content: Content) -> str:
    """Which model clients chose, where they have chosen one with a safeguard."""
    rows = []
    for group in content.groups:
        clients = [row for result in group.results.values() for row in result.clients if "personal_share" in row]
        if clients:
            shares = [float(row["personal_share"]) for row in clients]
            counts = [sum(s == 1 for s in shares), sum(0 < s < 1 for s in shares), sum(s == 0 for s in shares)]
            risk = max((float(row["risk"]) for row in clients if float(row["personal_share"])), default=0.0)
            rows.append([make_printable(group.name), len(clients), *counts, f"{risk:.0%}"])
    if not rows:
        return ""
    heads = ["runs", "clients", "its own", "a mixture", "the one model", "largest risk taken"]
    words = (
        "With the safeguard each client chose, on its own rows, between its personal model, the one model for all and"
    )
    words += (
        " mixtures of both. On this page, personal means the model that a client chose. Its risk is the probability"
    )
    words += " that its next 200 rows show a loss."
    numbers = table("Clients by the model that they chose", heads, rows)
    return section("choices", "Which model clients chose", paragraph(words), numbers)


def _write_helped(content: Content) -> str:
    """Who is helped and hurt, beyond noise, and by what."""
    if not content.views:
        same = "Every client has the shared model, so nobody is helped or hurt by a model of its own."
        return section("helped", "Who is helped, who is hurt", paragraph(same))
    heads = ["comparison", "clients", "helped beyond noise", "better", "the same", "worse", "hurt beyond noise"]
    rows = [[view.label, *_count(view), format_gain(_mean(view), content.metric)] for view in content.views]
    numbers = table("Clients by their gain", [*heads, "mean gain"], rows)
    caption = "Clients of each comparison, from those hurt to those helped; full colours are beyond noise."
    counts = figure("helped", "Who is helped and who is hurt", caption, numbers)
    sizes = [
        [view.label, row["rows"], row["clients"], format_gain(row["mean"], content.metric), row["helped"], row["hurt"],
         row["helped_beyond"] if row["known"] else "-", row["hurt_beyond"] if row["known"] else "-"]
        for view in content.drawn_views
        for row in by_size(view, content.scores[0].n)
    ]  # fmt: skip
    heads = ["comparison", "training rows", "clients", "mean gain", "better", "worse"]
    heads += ["helped beyond noise", "hurt beyond noise"]
    differ = len(sizes) > len(content.drawn_views)  # else all clients have as many rows
    several = len(content.drawn_views) > 1
    first = 0 if several else 1  # of one comparison the name is not repeated
    small = "By size of a client's data"
    numbers = table(small, heads[first:], [row[first:] for row in sizes], texts=2 - first)
    small = f"<details><summary>{small}</summary>{numbers}</details>" if several else numbers
    small = small if differ else ""
    return section("helped", "Who is helped, who is hurt", counts, *_name_hurt(content), _explain(content), small)


def _count(view: View) -> list[object]:
    gains = view.gains
    finite = [bool(part) for part in gains == gains]
    has_verdicts = UNKNOWN not in {word for word, is_finite in zip(view.verdicts, finite, strict=True) if is_finite}
    sides = [int((gains > 0).sum()), int((gains == 0).sum()), int((gains < 0).sum())]
    return [sum(finite), view.count(HELPED) if has_verdicts else "-", *sides, view.count(HURT) if has_verdicts else "-"]


def _mean(view: View) -> float:
    gains = view.gains[view.gains == view.gains]
    return float(gains.mean()) if len(gains) else float("nan")


def _name_hurt(content: Content) -> list[str]:
    """The clients that lose most beyond noise, for each comparison that has some."""
    lines = []
    for view in content.drawn_views:
        hurt = sorted((gain, at) for at, gain in enumerate(view.gains.tolist()) if view.verdicts[at] == HURT)
        if hurt:
            names = content.scores[0].names
            entries = [f"{shorten(names[at])} ({format_gain(gain, content.metric)})" for gain, at in hurt]
            lines.append(paragraph(f"Hurt beyond noise, {view.label}: {list_names(entries, NAMED)}."))
    return lines


def _explain(content: Content) -> str:
    """What noise means here."""
    alone = len(content.groups) == len(content.groups[0].results) == 1  # else intervals are not those of the rows
    exact = alone and any(end in row for row in content.first.clients[:1] for end in ENDS)
    if all(UNKNOWN in view.verdicts and view.low is None for view in content.views):
        words = f"Whether a gain is more than noise is not known here: {content.metric} needs every test row of a"
        words += " client, as run.report() has them, or at least three seeds."
    elif content.views[0].low is not None and is_percentage(content.metric):
        how = "from the test rows on which two models disagree" if exact else (
            "the widest that both scores allow: compared are scores of clients, not of single rows"
        )  # fmt: skip
        words = (
            f"Beyond noise: the 95% interval of a client's gain lies wholly on one side of zero. Intervals are {how}."
        )
        words += (
            " With seven test rows, one answer is 14 points; a difference of fewer than six answers is within noise."
        )
    else:
        how = "computed from the differences between two models on its test rows" if exact else "over seeds"
        words = f"Beyond noise: the 95% interval of a client's gain, {how}, lies wholly on one side of zero."
    words += " By chance alone, at most one client in forty is called hurt, and one in forty helped."
    return paragraph(f"{words} {SHARED_ALONE[0].upper()}{SHARED_ALONE[1:]}.", "note")


def _write_clients(content: Content) -> str:
    """Every client as a point, and the table that can be sorted and searched."""
    if not content.views:
        return ""
    total, count = len(content.scores[0].names), len(choose_clients(content.drawn_views, len(content.scores[0].names)))
    caption = (
        "Each point is a client: above zero it gains, below it loses. Filled points are beyond noise. Click one, or"
    )
    caption += " use the arrow keys, to select it; points that would hide each other are moved apart sideways."
    note = ""
    if count < total:
        note = f"Shown are {count:,} of {total:,} clients: those who gain and lose most, and others evenly between. All"
        note = paragraph(f"{note} counts and means on this page are over all clients.", "note")
    plot = figure("clients", "Gain of every client against its training rows", caption, "")
    return section("clients", "Every client", plot, note, '<div id="client-table"></div>')


def _write_spread(content: Content) -> str:
    metric = content.metric
    rows = [
        [row["label"], row["clients"], *(format_metric(value, metric) for value in (*row["quantiles"], row["worst"]))]
        for row in spread_rows(content)
    ]
    heads = ["model", "clients", *QUANTILE_HEADS, "mean of the worst tenth"]
    numbers = table(f"How {metric} is spread over clients", heads, rows)
    caption = (
        "The thin line goes from the lowest to the highest client, the bar from 10% to 90% of clients. The thick bar"
    )
    caption += " holds the middle half; the line in it is the median. The diamond is the mean of the worst tenth."
    return section("spread", "How it is spread", figure("spread", f"Spread of {metric} over clients", caption, numbers))
