"""The end of a run or of a pipeline in tables and a sentence: what was gained, by whom, at what cost."""

from __future__ import annotations

import html
from collections.abc import Sequence

from rich.table import Table

from moiety.evaluation.per_client import SHARED
from moiety.reports.console import print_plain, table
from moiety.reports.result import Result
from moiety.reports.versus import Versus, column, higher_is_better, mean, versus
from moiety.reports.words import (
    format_amount,
    format_count,
    format_gain,
    format_metric,
    is_percentage,
    list_names,
    make_printable,
)

SHOWN = 10
SHARED_ALONE = (
    "shared alone: the shared model with the first values of the personal part (FedPop: the centre of its prior)"
)


def summarise_end(result: Result) -> str:
    """How a run ended, as the command prints it."""
    caption = f"{SHARED_ALONE}; a gain above 0 is for the better"
    return "\n".join([print_plain(scores(result)), f"{caption}\n", print_plain(costs(result)), "", sentence(result)])


def html_of(result: Result) -> str:
    """The run in a small table for a notebook; every text is escaped."""
    rows = [["", "personal", "shared alone", "gain"], *score_rows(result)]
    cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    table = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table>{table}</table><p>{html.escape(sentence(result))}</p>"


def scores(result: Result) -> Table:
    """The metric of the personal models and of the shared model alone."""
    return table(["", "personal", "shared alone", "gain"], score_rows(result))


def score_rows(result: Result) -> list[list[str]]:
    """The rows of ``scores``."""
    personal, shared, metric = result.personal, result.shared, result.metric
    sign = 1 if result.higher else -1
    examples = f"all {result.last['part']} examples"
    weighted = "mean over clients by their examples" if metric in sets_of(result) else examples
    kinds = {"metric": weighted, "metric_unweighted": "mean over clients"}
    rows = [
        [
            f"{metric}, {words}",
            format_metric(personal[key], metric),
            format_metric(shared[key], metric),
            format_gain(sign * (personal[key] - shared[key]), metric),
        ]
        for key, words in kinds.items()
    ]
    for name in sets_of(result):
        values = [result.last[f"{name}_pooled"], result.last[f"{SHARED}{name}_pooled"]]
        texts = ["-" if value is None else format_metric(value, name) for value in values]
        rows.append([f"{name}, {examples} together", *texts, ""])
    worst = format_metric(personal["worst_decile"], metric), format_metric(shared["worst_decile"], metric)
    rows.append([f"{metric}, worst tenth of clients", *worst, ""])
    return rows


def costs(result: Result) -> Table:
    """Who was helped and hurt, and what the run cost."""
    change, cost, drops = result.versus_shared, result.ledger, result.dropped
    without_test = len(result.clients) - change.clients
    hurt = name_hurt(change, result.metric)
    undefined = [(name, result.last[f"{name}_undefined"]) for name in sets_of(result)]
    newcomers = []
    if result.newcomers is not None:
        count, personal, shared = result.newcomers
        words = f"{result.metric} {format_metric(personal, result.metric)} on average with models made for them"
        words = f"{words}, {format_metric(shared, result.metric)} with the shared model alone"
        newcomers = [["clients never seen", f"{count} of {len(result.unseen)} tested, {words}"]]
    rows = [
        ["clients helped", f"{len(change.helped)} of {change.clients}, against the shared model alone"],
        ["clients unchanged", str(len(change.unchanged))],
        ["clients hurt", f"{len(change.hurt)}{': ' + hurt if hurt else ''}"],
        *_show_choices(result),
        *([["clients not tested", str(without_test)]] if without_test else []),
        *([f"{name} not defined", f"for {format_count(count, 'client')}"] for name, count in undefined if count),
        *newcomers,
        *([["classes", _show_classes(result)]] if result.class_names else []),
        *([["updates dropped", f"{len(drops)}, as round:client {list_names(drops, SHOWN)}"]] if drops else []),
        ["sent down, up", f"{format_amount(cost['down_payload'], 'B')}, {format_amount(cost['up_payload'], 'B')}"],
        ["local training", format_amount(cost["flops"], "FLOP")],
        ["memory per device", format_amount(cost["device_memory"], "B")],
        *([["privacy", describe_privacy(result)]] if "epsilon" in cost else []),
        *([["stopped", f"after round {result.history[-1]['round']}: {result.stopped}"]] if result.stopped else []),
        *([["models", f"those of round {result.restored}, the best"]] if result.restored else []),
        ["time in rounds", f"{result.history[-1]['seconds']:.1f} s, engine {result.config['run'].get('engine', '-')}"],
    ]
    return table(["", ""], rows, text=(0, 1))


def describe_privacy(result: Result) -> str:
    """What the run cost in privacy, and whose."""
    cost, local = result.ledger, result.config.get("privacy", {}).get("where") == "local"
    epsilon = "infinite" if cost["epsilon"] is None else f"{cost['epsilon']:.3g}"
    unit = "all that one client sends replaced" if local else "one client added or removed"
    insecure = "; noise from a seed: for tests alone" if "insecure_seed" in result.config.get("privacy", {}) else ""
    return f"epsilon {epsilon} at delta {cost['delta']:g}, {unit}{insecure}"


def _show_choices(result: Result) -> list[list[str]]:
    """How many clients chose which model, where they did: the scores are then of what they chose."""
    shares = [row["personal_share"] for row in result.clients if "personal_share" in row]
    own, shared = sum(share == 1 for share in shares), sum(share == 0 for share in shares)
    words = f"{own} personal, {len(shares) - own - shared} mixed, {shared} shared: scores are of these"
    return [["models chosen", words]] if shares else []


OF_ONE_CLASS = ("auroc", "average_precision", "f1")
"""Metrics that, of two classes, are those of the second."""


def _show_classes(result: Result) -> str:
    """The names of the classes, and of two of them the one that some metrics are about."""
    names = [make_printable(name) for name in result.class_names]
    about = [metric for metric in sets_of(result) if metric in OF_ONE_CLASS and len(names) == 2]
    return list_names(names, SHOWN) + (f"; {', '.join(about)} of {names[1]!r}" if about else "")


def sets_of(result: Result) -> list[str]:
    """The metrics of sets that the run has."""
    return [key.removesuffix("_undefined") for key in result.last if key.endswith("_undefined")]


def sentence(result: Result) -> str:
    """The whole run in one sentence."""
    change, metric = result.versus_shared, result.metric
    personal, shared = (format_metric(each["metric_unweighted"], metric) for each in (result.personal, result.shared))
    what = f"{result.part_name('algorithm')} on {result.part_name('data')}, {metric} on average over"
    what = f"{what} {format_count(change.clients, 'client')}: {personal}"
    if not change.helped and not change.hurt:
        same = "for every client the same with its own model as with the shared model alone"
        return f"{what}, {same}{_mention_dropped_updates([result])}."
    versus_shared = f"{shared} with the shared model alone; against that {_describe_changes(change, metric)}"
    return f"{what} with personal models, {versus_shared}{_mention_dropped_updates([result])}."


def stages_table(results: Sequence[Result]) -> Table:
    """A row for each stage: its scores, and client by client what it changed since the stage before."""
    metric = results[0].metric
    higher = higher_is_better(metric, *(result.clients for result in results))
    rows = []
    for at, result in enumerate(results):
        personal, cost = result.personal, result.ledger
        values = [format_metric(personal[key], metric) for key in ("metric", "metric_unweighted", "worst_decile")]
        changes = ["", "", "", ""]
        if at:
            change = versus(column(result.clients), column(results[at - 1].clients), higher_is_better=higher)
            changes = [format_gain(change.mean, metric), *count_changes(change)]
        traffic = format_amount(cost["down_payload"] + cost["up_payload"], "B")
        rows.append(
            [
                make_printable(result.name),
                result.part_name("split"),
                str(result.last["round"]),
                *values,
                *changes,
                traffic,
            ]
        )
    heads = ["stage", "split", "rounds", metric, "client\nmean", "worst\ntenth"]
    return table([*heads, "gain", "better", "equal", "worse", "sent"], rows, text=(0, 1))


def stages_sentence(results: Sequence[Result]) -> str:
    """The whole pipeline in one sentence.

    >>> def ended(name, *metrics):
    ...     rows = [{"client": c, "n_test": 5, "metric": m} for c, m in zip("abc", metrics, strict=True)]
    ...     config = {"data": {"name": "digits"}, "algorithm": {"name": name}}
    ...     return Result(name, config, [{"metric_name": "accuracy", "part": "test"}], rows, {})
    >>> print(stages_sentence([ended("fedavg", 0.5, 0.5, 0.8), ended("finetune", 0.7, 0.5, 0.6)]))
    2 stages on digits, accuracy on average over 3 clients: fedavg 60.0%, finetune 60.0%; from the first to the last
    1 helped, 1 unchanged, 1 hurt: c (-20.0).
    """
    first, last = results[0], results[-1]
    if first is last:
        return sentence(first)
    metric = first.metric
    change = versus(column(last.clients), column(first.clients), higher_is_better=last.higher)
    means = [f"{r.part_name('algorithm')} {format_metric(mean(column(r.clients).values()), metric)}" for r in results]
    what = f"{format_count(len(results), 'stage')} on {first.part_name('data')}, {metric} on average over"
    return (
        f"{what} {format_count(change.clients, 'client')}: {', '.join(means)}; from the first to the last"
        f" {_describe_changes(change, metric)}{_mention_dropped_updates(results)}."
    )


def _mention_dropped_updates(results: Sequence[Result]) -> str:
    """How many updates never reached the server, if any: a run that came apart must not end as one that did not."""
    number = sum(len(result.dropped) for result in results)
    return f"; {format_count(number, 'update')} {'was' if number == 1 else 'were'} dropped" if number else ""


def _describe_changes(change: Versus, metric: str) -> str:
    """How many clients were helped and hurt, and who was hurt."""
    helped, unchanged, hurt = count_changes(change)
    who = name_hurt(change, metric)
    return f"{helped} helped, {unchanged} unchanged, {hurt} hurt{': ' + who if who else ''}"


def count_changes(change: Versus) -> list[str]:
    """How many clients were helped, unchanged and hurt."""
    return [str(len(each)) for each in (change.helped, change.unchanged, change.hurt)]


def name_hurt(change: Versus, metric: str) -> str:
    """The clients that lost most, with what they lost."""
    return list_names([f"{make_printable(name)} ({format_gain(loss, metric)})" for name, loss in change.hurt], SHOWN)


def unit(metric: str) -> str:
    """What gains in a metric are counted in."""
    return "percentage points" if is_percentage(metric) else metric
