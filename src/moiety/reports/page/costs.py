"""What runs cost, what their draws are worth, and how they were set up: the later sections of the report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from moiety.evaluation.calibration import calibration_error
from moiety.evaluation.chains import AGREE
from moiety.reports.page.content import Content
from moiety.reports.page.data import is_drawn
from moiety.reports.page.document import escape, figure, paragraph, section, table
from moiety.reports.result import Result
from moiety.reports.versus import mean
from moiety.reports.words import format_amount, format_count, list_names, make_printable

LONG = 300
"""The most characters of a value of the configuration."""
TIMED = "run.engine_reason"
"""What is in the configuration, but is measured, so that it differs between equal runs."""


def write_costs(content: Content) -> str:
    """Bytes, FLOPs, memory, time, and epsilon where the history has it."""
    every = [(group.name, [run for run in group.results.values() if run.history]) for group in content.groups]
    groups = [(name, runs) for name, runs in every if runs]
    if not groups:
        return ""
    columns = {make_printable(name): _list_costs(runs) for name, runs in groups}
    names = list(dict.fromkeys(row for rows in columns.values() for row in rows))
    rows = [[name, *(rows.get(name, "-") for rows in columns.values())] for name in names]
    several = any(len(runs) > 1 for _, runs in groups)
    caption = "Cost of a run, mean over seeds" if several else "Cost of the run"
    costs = table(caption, ["cost", *columns] if len(columns) > 1 else ["", ""], rows)
    words = (
        "Bytes are those of all messages. FLOPs are those of all clients' local training, and memory is what one device"
    )
    words += " needs for it: both are computed from the model, not measured."
    notes = [paragraph(words, "note")]
    if "privacy spent, epsilon" in names:
        words = "Epsilon and delta limit what the shared model and all broadcasts reveal about any one client: the"
        words += " smaller, the more private. They do not cover personal parts, nor the scores and names on this page."
        notes.append(paragraph(words, "note"))
    return section("cost", "What it cost", costs, *notes)


def _list_costs(runs: Sequence[Result]) -> dict[str, str]:
    last = [run.history[-1] for run in runs]

    def average(key: str) -> float | None:
        values = [row.get(key) for row in last]
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        return mean(numbers) if numbers and len(numbers) == len(values) else None

    amounts = {
        "sent down": ("down_payload", "B"),
        "sent up": ("up_payload", "B"),
        "local training": ("flops", "FLOP"),
        "memory per device": ("device_memory", "B"),
    }
    rows: dict[str, str] = {}
    for name, key in {"rounds": "round", "updates of clients": "client_updates"}.items():
        value = average(key)
        rows |= {} if value is None else {name: f"{value:,.0f}"}
    for name, (key, unit) in amounts.items():
        value = average(key)
        rows |= {} if value is None else {name: format_amount(value, unit)}
    if all("epsilon" in row for row in last):
        epsilon, delta = average("epsilon"), average("delta")
        rows["privacy spent, epsilon"] = "infinite" if epsilon is None else f"{epsilon:.4g}"
        rows |= {} if delta is None else {"at delta": f"{delta:.4g}"}
    seconds = average("seconds")
    rows |= {} if seconds is None else {"time in rounds": f"{seconds:.1f} s"}
    rows["engine"] = list_names(sorted({str(run.config.get("run", {}).get("engine", "-")) for run in runs}), 3)
    drops = sum(len(run.dropped) for run in runs)
    return rows | ({"updates dropped": format_count(drops, "update")} if drops else {})


def write_posterior(content: Content) -> str:
    """Calibration and effective draws, where there is a posterior."""
    parts = []
    if content.reliability:
        rows = [[make_printable(name), *_show_bin(row)] for name, bins in content.reliability for row in bins]
        heads = ["runs", "confidence between", "examples", "mean confidence", "accuracy"]
        numbers = table("Reliability", heads, rows, texts=2)
        errors = [f"{make_printable(name)} {calibration_error(bins):.3f}" for name, bins in content.reliability]
        caption = (
            "On the diagonal, a model that is 80% sure is right 80% of the time; points are larger where there are"
        )
        caption += f" more examples. Calibration error: {', '.join(errors)}."
        parts.append(figure("reliability", "Accuracy against confidence", caption, numbers))
    groups = [(group.name, [row for run in group.results.values() for row in run.clients]) for group in content.groups]
    rows = [[make_printable(name), *_judge_draws(some)] for name, some in groups if any(map(is_drawn, some))]
    if rows:
        heads = ["runs", "clients", "median effective draws", "fewest", "median split R-hat", f"above {AGREE}"]
        numbers = table("What the draws are worth", [*heads, "left their density"], rows)
        caption = "Each point is a client. Effective draws: how many independent draws its kept draws are worth. Split"
        caption += f" R-hat: whether the halves of its chain agree; above {AGREE} (the line) they do not."
        parts.append(figure("draws", "Effective draws and split R-hat", caption, numbers))
    return section("posterior", "What the models do not know", *parts) if parts else ""


def _show_bin(row: Mapping[str, Any]) -> list[object]:
    ends = f"{row['low']:.2f} to {row['high']:.2f}"
    return [ends, row["n"], f"{row['confidence']:.3f}", f"{row['accuracy']:.3f}"]


def _judge_draws(rows: Sequence[Mapping[str, Any]]) -> list[object]:
    chains = [row for row in rows if is_drawn(row)]
    draws, rhats = ([float(row[key]) for row in chains] for key in ("effective_draws", "rhat"))
    far = sum(value > AGREE for value in rhats)
    divergences = sum(bool(row.get("diverges")) for row in chains)
    return [len(chains), f"{median(draws):.1f}", f"{min(draws):.1f}", f"{median(rhats):.3f}", far, divergences]


def write_configuration(content: Content) -> str:
    """The configuration of each group, what differs, versions, and which checks were passed."""
    configs = {make_printable(group.name): _flatten(_get_first(group.results).config) for group in content.groups}
    keys = list(dict.fromkeys(key for config in configs.values() for key in config))
    same = [key for key in keys if len({config.get(key) for config in configs.values()}) == 1]
    first = next(iter(configs.values()))
    parts = []
    if len(configs) > 1:
        differ = [key for key in keys if key not in (*same, TIMED)]
        rows = [[key, *(config.get(key, "-") for config in configs.values())] for key in differ]
        parts.append(table("What differs", ["setting", *configs], rows, texts=len(configs) + 1))
    common = table(
        "Configuration" if len(configs) == 1 else "The same in all", ["", ""], [[k, first[k]] for k in same], texts=2
    )
    parts.append(f"<details><summary>Configuration</summary>{common}</details>")
    results = [result for group in content.groups for result in group.results.values()]
    versions = {json.dumps(result.versions, sort_keys=True): result.versions for result in results if result.versions}
    rows = [[name, value] for each in versions.values() for name, value in each.items()]
    parts += [table("Versions", ["", ""], rows, texts=2)] if rows else []
    if content.scores:
        parts.append(f'<h3>Checks</h3><ul class="checks">{"".join(map(_write_check, list_checks(results)))}</ul>')
    return section("setup", "How it was set up", *parts)


def _get_first(results: Mapping[int, Result]) -> Result:
    return next(iter(results.values()))


def _write_check(check: tuple[bool, str]) -> str:
    """A check with its mark; a reader who does not see the mark hears the word."""
    held, words = check
    return f"<li>{escape(words)}</li>" if held else f'<li class="not"><b>Attention:</b> {escape(words)}</li>'


def list_checks(results: Sequence[Result]) -> list[tuple[bool, str]]:
    """What was checked on the way to this page: whether all is well, and what was seen."""
    drops = sum(len(result.dropped) for result in results)
    updates = sum(int(result.ledger.get("client_updates", 0)) for result in results)
    checks = [(True, f"All {updates:,} uploads had the declared layout: a guard compared each.")]
    if drops:
        verb = "was" if drops == 1 else "were"
        checks.append((False, f"{format_count(drops, 'update')} {verb} dropped; the history names the clients."))
    else:
        checks.append((True, "No update was dropped."))
    if all(result.config.get("run", {}).get("on_divergence", "stop") == "stop" for result in results):
        checks.append((True, "The server's parameters were finite after every round, and no training loss ran away."))
    if all(_is_whole(result) for result in results):
        checks.append((True, "Every evaluation is in the history, up to the last round."))
    if any(result.checked for result in results):
        words = "Configuration, history, rows of clients and ledger are as they were written, by their checksums."
        checks.append((True, words))
    if len(results) > 1:
        checks.append((True, "All runs have the same data, clients, metric and evaluated rows."))
    chains = [row for result in results for row in result.clients if is_drawn(row)]
    far = sum(float(row["rhat"]) > AGREE for row in chains)
    if far:
        words = (
            f"The halves of the chains of {far:,} of {format_count(len(chains), 'client')} disagree (split R-hat above"
        )
        words += f" {AGREE}), as is usual for the few draws that training keeps. Intervals need more:"
        checks.append((False, f"{words} run.predictive(client, x, draws=100)."))
    stops = [result for result in results if result.stopped]
    return checks + [
        (False, f"{make_printable(run.name)} stopped early: {make_printable(run.stopped)}.") for run in stops
    ]


def _is_whole(result: Result) -> bool:
    """Whether every round that was due has its row in the history."""
    rounds, options = {row["round"] for row in result.history}, result.config.get("run", {})
    last, every = max(rounds), int(options.get("evaluate_every") or 1)
    return set(range(every, last + 1, every)) <= rounds


def _flatten(config: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Tables as one, with dotted names."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{before}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            flat[f"{before}{key}"] = text if len(text) <= LONG else f"{text[: LONG - 1]}…"
    return flat
