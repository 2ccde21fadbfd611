"""``moiety compare``: ended runs side by side, and client by client against the first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from moiety.cli.groups import tabulate_groups, tabulate_pairs
from moiety.cli.output import say, show
from moiety.cli.results import read_result
from moiety.errors import must
from moiety.reports.console import table
from moiety.reports.groups import Group, check_alike, group_results
from moiety.reports.result import Result
from moiety.reports.summary import SHARED_ALONE, count_changes, name_hurt, unit
from moiety.reports.versus import column, higher_is_better, versus
from moiety.reports.words import format_amount, format_count, format_gain, format_metric, make_printable
from moiety.run.folder import LEDGER
from moiety.run.verify import list_runs
from moiety.seals import CONFIG


def compare_folders(folders: Sequence[Path]) -> None:
    """Read the folders and print both tables."""
    runs = [run for folder in folders for run in list_ended(folder)]
    must(len(runs) >= 2, "folders", "at least two", len(runs), "As in: moiety compare runs/a runs/b.")
    groups = read_groups(runs)
    if any(len(group.results) > 1 for group in groups):
        show_groups(groups)
    else:
        show_results([result for group in groups for result in group.results.values()])


def list_ended(folder: Path) -> list[Path]:
    """The folder itself, or the ended runs in folders below it."""
    if (folder / CONFIG).exists():
        return [folder]
    runs = list_runs(folder)
    ended_runs = [run for run in runs if (run / LEDGER).is_file()]
    if ended_runs and len(ended_runs) < len(runs):
        say(f"{format_count(len(runs) - len(ended_runs), 'run')} in {folder} left out: not ended yet")
    return ended_runs or [folder]


def read_groups(folders: Sequence[Path]) -> list[Group]:
    """The results of runs, those of one configuration together."""
    labels = [folder.resolve().name for folder in folders]
    unique = len(set(labels)) == len(labels)
    results = [read_result(f, label if unique else str(f)) for f, label in zip(folders, labels, strict=True)]
    return group_results(folders, results)


def show_groups(groups: Sequence[Group]) -> None:
    """Print one row per configuration, with intervals over seeds, and the others against the first, seed by seed."""
    results = [result for group in groups for result in group.results.values()]
    for other in results[1:]:
        check_alike(results[0], other)
    metric = results[0].metric
    show(tabulate_groups(groups, metric))
    say(f"means over seeds with 95% intervals; {SHARED_ALONE}")
    if len(groups) > 1:
        say()
        first = make_printable(groups[0].name)
        say(f"against {first} on the same seeds, gains in {unit(metric)} (+ is better), clients by their mean gain:")
        show(tabulate_pairs(groups, metric))


def show_results(results: Sequence[Result]) -> None:
    """Print one row per run, and the others client by client against the first."""
    for other in results[1:]:
        check_alike(results[0], other)
    higher = higher_is_better(results[0].metric, *(result.clients for result in results))
    show(_side_by_side(results))
    say(SHARED_ALONE)
    say("below shared: clients whose own model is worse than that")
    say()
    say(
        f"client by client against {make_printable(results[0].name)}, gains in {unit(results[0].metric)} (+ is better):"
    )
    show(_against_first(results, higher))


def _side_by_side(results: Sequence[Result]) -> Table:
    metric = results[0].metric
    rows = []
    for result in results:
        personal, shared, cost = result.personal, result.shared, result.ledger
        scores = (personal["metric"], personal["metric_unweighted"], personal["worst_decile"], shared["metric"])
        rows.append(
            [
                make_printable(result.name),
                result.part_name("algorithm"),
                result.part_name("split"),
                str(result.last["round"]),
                *(format_metric(score, metric) for score in scores),
                str(len(result.versus_shared.hurt)),
                format_amount(cost["down_payload"] + cost["up_payload"], "B"),
            ]
        )
    columns = [metric, "client\nmean", "worst\ntenth", "shared\nalone"]
    return table(["run", "algorithm", "split", "rounds", *columns, "below\nshared", "sent"], rows, text=(0, 1, 2))


def _against_first(results: Sequence[Result], higher: bool) -> Table:
    metric, base = results[0].metric, column(results[0].clients)
    rows = []
    for result in results[1:]:
        change = versus(column(result.clients), base, higher_is_better=higher)
        worst = name_hurt(change, metric) or "none"
        rows.append([make_printable(result.name), *count_changes(change), format_gain(change.mean, metric), worst])
    return table(["run", "better", "equal", "worse", "mean gain", "worst off"], rows, text=(0, 5))
