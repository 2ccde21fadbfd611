"""The tables of Pillutla et al. 2022 as sections of a page, the paper's numbers beside ours, and the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import moiety as mo
from moiety.experiments import FAILS, HOLDS, UNDECIDED, Page, Results, Row, Section
from moiety_recipes.fedalt_claims import BASELINES, COLUMNS, Comparison, flatten, summarise
from moiety_recipes.fedalt_stages import FULL, Plan, list_families
from moiety_recipes.pages import Figures, Part, join_parts, show_mean
from moiety_recipes.tuning import is_end

ABOUT = (
    'Pillutla et al. 2022, "Federated Learning with Partial Model Personalization", Tables 2 to 4 and 10 to 13. All'
    " runs of a seed start from the same run of FedAvg. A score is the mean over clients, weighted by their test"
    " rows, or by the words in these where words are counted; in brackets is the 95% interval of its mean over"
    " seeds (Student's t). The paper's numbers are of another data set, named in brackets. Rates are chosen on"
    " validation rows of the first seed, from grids that were narrowed before, like the sizes, by validation scores"
    " of wider ones. What is called the best split, the best full personalisation or the best value of a sweep is"
    " so by the test scores shown here, which favours it."
)
HURT = "Clients whose test score is worse than with FedAvg in the same seed; the last three columns count clients."
ONE_DEAL = "One deal of the data serves all seeds, as in the paper; they differ in first weights, cohorts and shuffles."
LONGER_AND_SWEPT = (
    "FedAvg, longer: as many rounds more as FedAlt and FedSim have, which the paper does not show. What it gains"
    " on FedAvg, FedAlt and FedSim may gain by longer training of the shared part alone.",
    "What is swept is the finetuning from FedAvg, not FedAlt's own training.",
)


def page(plan: Plan, seeds: Sequence[int], results: Results) -> Page:
    """A part for each setting."""
    comparisons = [Comparison(setting, setting.seeds(seeds), results) for setting in plan.settings]
    tables = [summarise(comparison, list_families(comparison.setting)) for comparison in comparisons]
    parts = [
        Part(flatten(table, comparison), show_setting(table, comparison), list_figures(comparison))
        for table, comparison in zip(tables, comparisons, strict=True)
    ]
    if len(tables) > 1:
        parts.append(Part([], [compare_settings(tables)], {}))
    return join_parts(ABOUT, parts, {"settings": tables})


def show_setting(table: Row, comparison: Comparison) -> list[Section]:
    """One setting: its tables, claims and notes."""
    setting = comparison.setting
    tables: dict[str, Iterable[Row]] = {
        "Claims": _show_claims(table, comparison.scale),
        "Before the final finetuning (Table 12)": _show_final(table, comparison),
        "Clients without state (Table 13)": _show_stateless(table, comparison),
        "Memory on one device (Table 10)": show_memory(table, comparison),
        "Who is hurt": show_hurt(table, comparison),
        **{
            f"{option}, finetuning of {sweep['split']} (Figure 10)": show_sweep(sweep["rows"], comparison.scale)
            for option, sweep in table["sweeps"].items()
        },
        "Learning rates": show_rates(table, comparison.scale),
    }
    details = [
        Section(title=title, rows=list(rows), level=3, text=HURT if title == "Who is hurt" else "")
        for title, rows in tables.items()
    ]
    return [
        Section(title=setting.name, text=describe(table, comparison), rows=list(show_splits(table, comparison))),
        Section(rows=show_baselines(table, comparison)),
        *(section for section in details if section.rows),
        Section(title="Notes", notes=setting.notes(setting.stages), level=3),
    ]


def describe(table: Row, comparison: Comparison) -> str:
    """What a setting is, and what its numbers are, in words."""
    unit = "per cent" if comparison.scale == 100 else "its own unit"
    better = "higher" if comparison.sign == 1 else "lower"
    seeds, name = ", ".join(map(str, table["seeds"])), table["metric"].replace("_", " ")
    return f"{table['title']} {table['clients']} clients; seeds {seeds}; {name} in {unit}, {better} is better."


def show_splits(table: Row, comparison: Comparison) -> Iterator[Row]:
    """Table 4."""
    sizes, paper = {row["row"]: row for row in table["memory"]}, comparison.setting.paper
    for split in comparison.setting.splits:
        personal, shared = sizes[split]["personal"], sizes[split]["shared"]
        row = {"personal part": split, "personal parameters": f"{personal:,} ({personal / (personal + shared):.2%})"}
        theirs = paper.table.get(split, (None, None, None))
        for (column, step), number in zip(COLUMNS.items(), theirs, strict=True):
            row[column] = show_mean(table["scores"][step.format(split)], scale=comparison.scale)
            row |= {f"{column}, paper ({paper.task})": show_number(number)} if paper.table else {}
        yield row


def show_baselines(table: Row, comparison: Comparison) -> list[Row]:
    """Table 2."""
    paper, scores = comparison.setting.paper, table["scores"]
    ours = {name: show_mean(scores[step], scale=comparison.scale) for name, step in BASELINES.items()}
    theirs = {name: show_number(paper.baselines.get(name.lower())) for name in BASELINES}
    return [{"": "here", **ours}, {"": f"paper ({paper.task})", **theirs}]


def _show_claims(table: Row, scale: float) -> Iterator[Row]:
    for claim in table["claims"]:
        rule = claim.get("share", "> 0")
        if "within" in claim:
            rule = f"within ±{scale * claim['within']:.2f}"
        elif "above" in claim:
            rule = f"> {scale * claim['above']:.2f}"
        yield {
            "claim": claim["claim"],
            "verdict": f"**{claim['verdict']}**",
            "difference, or share": show_share(claim) if "share" in claim else show_mean(claim, scale=scale, sign="+"),
            "claimed": rule,
        }


def _show_final(table: Row, comparison: Comparison) -> Iterator[Row]:
    paper, claims = comparison.setting.paper, {claim["claim"]: claim for claim in table["claims"]}
    for split in comparison.setting.splits:
        row = {"personal part": split}
        theirs = paper.final.get(split, (None, None))
        for method, number in zip(("FedAlt", "FedSim"), theirs, strict=True):
            change = claims[f"final finetuning changes {method} little: {split}"]
            before = table["scores"][f"{split}-{method.lower()}"]
            row |= {
                f"{method} before": show_mean(before, scale=comparison.scale),
                f"change of {method} by finetuning": show_mean(change, scale=comparison.scale, sign="+"),
                f"change of {method}, paper ({paper.task})": show_number(number),
            }
        yield row


def _show_stateless(table: Row, comparison: Comparison) -> list[Row]:
    split, paper = comparison.setting.stages.stateless, comparison.setting.paper
    if split is None:
        return []
    steps = {name: step.replace("-final", "-stateless-final") for name, step in COLUMNS.items()}
    scores = [show_mean(table["scores"][step.format(split)], scale=comparison.scale) for step in steps.values()]
    theirs = map(show_number, paper.stateless.get(split, (None, None, None)))
    return [
        {"": f"{split}, here", **dict(zip(steps, scores, strict=True))},
        {"": f"{split}, paper ({paper.task})", **dict(zip(steps, theirs, strict=True))},
    ]


def show_memory(table: Row, comparison: Comparison) -> list[Row]:
    """Table 10."""
    paper, names = comparison.setting.paper, {"no personalisation": "none", "full personalisation": FULL}
    return [
        {
            "personal part": row["row"],
            "megabytes": f"{row['megabytes']:.2f}",
            "saved against full": f"{row['saving']:.0%}",
            **(
                {f"megabytes, paper ({paper.task})": f"{paper.memory.get(names.get(row['row'], row['row']), '-')}"}
                if paper.memory
                else {}
            ),
        }
        for row in table["memory"]
    ]


def show_hurt(table: Row, comparison: Comparison) -> Iterator[Row]:
    """How many clients each step hurts, and in how many seeds."""
    splits = comparison.setting.splits
    steps = {
        **{f"{column}, {split}": step.format(split) for split in splits for column, step in COLUMNS.items()},
        **{name: step for name, step in BASELINES.items() if step != "fedavg"},
    }
    for name, step in steps.items():
        score, when = table["scores"][step], table["scores"][step]["hurt_when"]
        counts = {"in all seeds": when["always"], "in some": when["sometimes"], "in none": when["never"]}
        yield {"": name, "share hurt": show_share(score["hurt"]), **counts}


def show_sweep(rows: Sequence[Row], scale: float) -> list[Row]:
    """What each value of an option does to the clients."""
    return [
        {
            "value": f"{float(row['value']):g}",
            "mean change against FedAvg": show_mean(_pick(row, "mean"), scale=scale, sign="+"),
            "spread over clients": f"{scale * row['spread']:.2f}",
            "share hurt": show_share(_pick(row, "share_hurt")),
        }
        for row in rows
    ]


def _pick(row: Row, name: str) -> Row:
    return {"mean": row[name], "low": row[f"{name}_low"], "high": row[f"{name}_high"]}


def show_rates(table: Row, scale: float, *, seeds: str = "first seed") -> Iterator[Row]:
    """The rate of each run, and what it was chosen by."""
    heading = f"values tried, and their scores on validation rows ({seeds})"
    for step, rate in table["rates"].items():
        scores = table["tried"].get(step, {})
        lines = [f"{lr}: {show_number(s if s is None else scale * s)}" for lr, s in scores.items()]
        end = " (end of the grid)" if is_end(rate, scores) else ""
        yield {"run": step, "rate": f"{rate:g}{end}", heading: ", ".join(lines) or "fixed"}


def compare_settings(tables: Sequence[Row]) -> Section:
    """Whether the best split depends on the task, as far as these settings can say."""
    claims = [
        (table["setting"], claim["claim"], claim["verdict"])
        for table in tables
        for claim in table["claims"]
        if claim["claim"].startswith("the best split is ")
    ]
    notes = [f"{setting}: {claim}: {verdict}." for setting, claim, verdict in claims]
    best = [claim.split(",")[0] for _, claim, verdict in claims if verdict == HOLDS]
    verdict = UNDECIDED if len(best) < len(tables) else HOLDS if len(set(best)) > 1 else FAILS
    last = f"The best split depends on the task: **{verdict}** between these settings."
    return Section(title="Across the settings", notes=[*notes, last])


def show_share(row: Mapping[str, Any]) -> str:
    """A share of clients in per cent; the interval does not know that there are none below 0 or above 100."""
    if row["low"] is None:
        return f"{row['mean']:.1%}"
    return f"{row['mean']:.1%} [{max(0.0, row['low']):.1%}, {min(1.0, row['high']):.1%}]"


def show_number(value: float | None) -> str:
    """A number of the paper's, or a dash."""
    return "-" if value is None else f"{value:.2f}"


def list_figures(comparison: Comparison) -> Figures:
    """The figures of one setting, in its folder."""
    name = comparison.setting.name
    return {f"{name}/{file}.png": (f"{name}: {title}", draw) for file, title, draw in _list_figures(comparison)}


def _list_figures(comparison: Comparison) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    setting, reports = comparison.setting, mo.reports
    options: dict[str, Any] = {
        "scale": comparison.scale,
        "unit": "pp" if comparison.scale == 100 else comparison.metric,
    }
    best = comparison.order([f"{split}-fedalt-final" for split in setting.splits])[0]
    best_name = best.split("-")[0]
    steps = {
        "full, finetuned": f"{FULL}-finetune",
        **{f"{split}, FedAlt": f"{split}-fedalt-final" for split in setting.splits},
    }
    yield (
        "figure4",
        "change against FedAvg by the number of personal parameters (Figure 4)",
        partial(reports.accuracy_against_parameters, _draw_by_parameters(comparison), **options, title=setting.name),
    )
    first = {name: comparison.changes(steps[name])[0] for name in ("full, finetuned", f"{best_name}, FedAlt")}
    yield (
        "figure5",
        "change of every client by its training rows, first seed (Figures 5 and 8)",
        partial(reports.scatter_change, first, **options),
    )
    for column in ("train", "test"):
        changes = {name: comparison.all_changes(step, column) for name, step in steps.items()}
        yield (
            f"figure7-{column}",
            f"change of clients on {column} rows, all seeds (Figure 7)",
            partial(reports.violins, changes, label="personal part", **options),
        )
    yield (
        "figure11",
        f"change of every client over seeds, {best_name} with FedAlt (Figure 11)",
        partial(reports.seed_bands, mo.analysis.over_seeds(comparison.changes(best)), **options),
    )
    for sweep in setting.stages.sweeps:
        changes = {f"{v:g}": comparison.all_changes(step) for v, step in comparison.sweep_steps(sweep).items()}
        yield (
            f"figure10-{sweep.option}",
            f"change of clients by {sweep.option}, {sweep.split}, {comparison.swept} (Figure 10)",
            partial(reports.violins, changes, label=sweep.option.replace("_", " "), **options),
        )


def _draw_by_parameters(comparison: Comparison) -> list[Row]:
    def clients(step: str) -> list[Any]:
        return [row["clients"] for row in comparison.rows(step)]

    parts = {}
    for row in comparison.results[comparison.setting.name, "memory"]["rows"]:
        personal, name = row["personal"], row["row"]
        full = name == "full personalisation"
        if personal:
            step = f"{FULL}-finetune" if full else f"{name}-fedalt-final"
            parts[name] = (personal, personal if full else personal + row["shared"], clients(step), clients("fedavg"))
    return mo.analysis.against_parameters(parts, higher_is_better=comparison.sign == 1)
