"""``moiety run`` with a file of stages: begun or continued, and what each stage gained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moiety.analysis.versus import column, higher_is_better, mean, versus
from moiety.cli.closing import SHOWN, dropped, sentence
from moiety.cli.commands import Request
from moiety.cli.comparing import unit
from moiety.cli.config import Config, Table, check_same
from moiety.cli.output import say, show, table
from moiety.cli.results import Result, of_run
from moiety.experiments import Watch
from moiety.reports.words import amount, count, gain, names, printable, value

if TYPE_CHECKING:
    from moiety.engines import Run


def run(request: Request, folder: Path, config: Config, tables: Table, asked: Table, watch: Watch) -> list[Run]:
    """All stages, from the file or from where they were left."""
    from moiety.cli.building import options, staged
    from moiety.engines.folder import PIPELINE, read_config
    from moiety.engines.pipeline import pipeline, resume_pipeline

    if request.resume:
        check_same(tables, read_config(folder, PIPELINE), folder)
        free = {key: asked.get(key) for key in ("engine", "workers")}
        return resume_pipeline(folder, **free, watch=watch)
    made = staged(config)
    return pipeline(made.stages, made.model, made.data, out=folder, watch=watch, **options(config.run))


def close(runs: Sequence[Run], folder: Path, *, quiet: bool) -> None:
    """What each stage gained, and who was helped and hurt from the first to the last."""
    results = [of_run(each.folder.name if each.folder else "", each) for each in runs]
    if not quiet:
        say()
        show_stages(results)
        say()
    say(told(results))
    say(f"results in {folder}")


def show_stages(results: Sequence[Result]) -> None:
    """A row for each stage: its scores, and client by client what it changed since the stage before."""
    metric = results[0].metric
    higher = higher_is_better(metric, *(result.clients for result in results))
    rows = []
    for at, result in enumerate(results):
        personal, cost = result.personal, result.ledger
        scores = [value(personal[key], metric) for key in ("metric", "metric_unweighted", "worst_decile")]
        changed = ["", "", "", ""]
        if at:
            found = versus(column(result.clients), column(results[at - 1].clients), higher_is_better=higher)
            sizes = (len(found.helped), len(found.unchanged), len(found.hurt))
            changed = [gain(found.mean, metric), *map(str, sizes)]
        sent = amount(cost["down_payload"] + cost["up_payload"], "B")
        what = [printable(each) for each in (result.name, result.named("split"))]
        rows.append([*what, str(result.last["round"]), *scores, *changed, sent])
    heads = ["stage", "split", "rounds", metric, "client\nmean", "worst\ntenth"]
    show(table([*heads, "gain", "better", "equal", "worse", "sent"], rows, text=(0, 1)))
    say(f"gain, better, equal, worse: client by client against the stage before, in {unit(metric)} (+ is better)")


def told(results: Sequence[Result]) -> str:
    """The whole pipeline in one sentence.

    >>> def ended(name, *metrics):
    ...     rows = [{"client": c, "n_test": 5, "metric": m} for c, m in zip("abc", metrics, strict=True)]
    ...     config = {"data": {"name": "digits"}, "algorithm": {"name": name}}
    ...     return Result(name, config, [{"metric_name": "accuracy", "part": "test"}], rows, {})
    >>> print(told([ended("fedavg", 0.5, 0.5, 0.8), ended("finetune", 0.7, 0.5, 0.6)]))
    2 stages on digits, accuracy on average over 3 clients: fedavg 60.0%, finetune 60.0%; from the first to the last
    1 helped, 1 unchanged, 1 hurt: c (-20.0).
    """
    first, last = results[0], results[-1]
    if first is last:
        return sentence(first)
    metric = first.metric
    found = versus(column(last.clients), column(first.clients), higher_is_better=last.higher)
    means = [f"{printable(r.named('algorithm'))} {value(mean(column(r.clients).values()), metric)}" for r in results]
    who = [f"{printable(name)} ({gain(change, metric)})" for name, change in found.hurt]
    changed = f"{len(found.helped)} helped, {len(found.unchanged)} unchanged, {len(found.hurt)} hurt"
    return (
        f"{count(len(results), 'stage')} on {printable(first.named('data'))}, {metric} on average over "
        f"{count(found.clients, 'client')}: {', '.join(means)}; from the first to the last {changed}"
        f"{': ' + names(who, SHOWN) if who else ''}{dropped(results)}."
    )
