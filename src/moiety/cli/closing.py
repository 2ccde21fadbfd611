"""The end of a run in a table and a sentence: what was gained, by whom, at what cost."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from moiety.analysis.versus import Versus
from moiety.cli.output import table
from moiety.cli.results import Result
from moiety.reports.words import amount, count, gain, names, printable, value

SHOWN = 10


def scores(result: Result) -> Table:
    """The metric of the personal models and of the shared model alone."""
    personal, shared, metric = result.personal, result.shared, result.metric
    sign = 1 if result.higher else -1
    kinds = {"metric": f"all {result.last['part']} examples", "metric_unweighted": "mean over clients"}
    rows = [
        [
            f"{metric}, {words}",
            value(personal[key], metric),
            value(shared[key], metric),
            gain(sign * (personal[key] - shared[key]), metric),
        ]
        for key, words in kinds.items()
    ]
    worst = value(personal["worst_decile"], metric), value(shared["worst_decile"], metric)
    rows.append([f"{metric}, worst tenth of clients", *worst, ""])
    return table(["", "personal", "shared alone", "gain"], rows)


def costs(result: Result) -> Table:
    """Who was helped and hurt, and what the run cost."""
    found, cost = result.versus_shared, result.ledger
    untested = len(result.clients) - found.clients
    lost = result.dropped
    seconds = f"{result.last['seconds']:.1f} s, engine {result.config['run'].get('engine', '-')}"
    rows = [
        ["clients helped", f"{len(found.helped)} of {found.clients}, against the shared model alone"],
        ["clients unchanged", str(len(found.unchanged))],
        ["clients hurt", f"{len(found.hurt)}{_named(found, result.metric, ': ')}"],
        *([["clients not tested", str(untested)]] if untested else []),
        *([["updates dropped", f"{len(lost)}, as round:client {names(lost, SHOWN)}"]] if lost else []),
        ["sent down, up", f"{amount(cost['down_payload'], 'B')}, {amount(cost['up_payload'], 'B')}"],
        ["local training", amount(cost["flops"], "FLOP")],
        ["memory per device", amount(cost["device_memory"], "B")],
        ["time in rounds", seconds],
    ]
    return table(["", ""], rows, text=(0, 1))


def sentence(result: Result) -> str:
    """The whole run in one sentence."""
    found, metric = result.versus_shared, result.metric
    values = [value(found_by["metric_unweighted"], metric) for found_by in (result.personal, result.shared)]
    told = f"{printable(result.named('algorithm'))} on {printable(result.named('data'))}, {metric} on average over "
    told += f"{count(found.clients, 'client')}: "
    if not found.helped and not found.hurt:
        same = "for every client the same with its own model as with the shared model alone"
        return f"{told}{values[0]}, {same}{dropped([result])}."
    told += f"{values[0]} with personal models, {values[1]} with the shared model alone; against that "
    changed = f"{len(found.helped)} helped, {len(found.unchanged)} unchanged, {len(found.hurt)} hurt"
    return f"{told}{changed}{_named(found, metric, ': ')}{dropped([result])}."


def dropped(results: Sequence[Result]) -> str:
    """How many updates never reached the server, if any: a run that came apart must not end as one that did not."""
    number = sum(len(result.dropped) for result in results)
    if not number:
        return ""
    return f"; {count(number, 'update')} {'was' if number == 1 else 'were'} dropped"


def _named(found: Versus, metric: str, before: str) -> str:
    """The clients that lost most, with what they lost."""
    if not found.hurt:
        return ""
    return before + names([f"{printable(name)} ({gain(change, metric)})" for name, change in found.hurt], SHOWN)
