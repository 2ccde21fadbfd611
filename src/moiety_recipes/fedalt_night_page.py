"""The page of a night: verdicts first, then the tables of Pillutla et al. 2022, and the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import moiety as mo
from moiety.experiments import Page, Results, Row, Section
from moiety_recipes.fedalt_claims import BASELINES, COLUMNS, Comparison, describe_setting, summarise_step
from moiety_recipes.fedalt_night import DEAL, Pilot, stages_of, sweep_steps
from moiety_recipes.fedalt_page import (
    HURT,
    describe,
    list_figures,
    show_hurt,
    show_memory,
    show_rates,
    show_splits,
    show_sweep,
)
from moiety_recipes.fedalt_questions import QUESTIONS, answer, choose_split, judge, measure_parts
from moiety_recipes.fedalt_stages import LONGER, Plan, Sweep
from moiety_recipes.pages import Figures, Part, join_parts, show_mean

PLAN = "docs/partial-personalisation-plan.md"
ABOUT = (
    'Pillutla et al. 2022, "Federated Learning with Partial Model Personalization". Questions, margins, seeds, sizes'
    f" and the rule were committed before the runs ({PLAN}). A claim holds, or does not, where the whole 99% interval"
    " says so; splits are averaged within a seed. Every other claim is not decided, with the seeds it would take (80%"
    " power at the mean and spread seen). Scores in the tables have 95% intervals over seeds (Student's t) and are"
    " means over clients, weighted by what is counted in their test rows. Rates were chosen on validation rows of other"
    " seeds than those shown, and so was the split that is called best. *Trained as long* starts from FedAvg that went"
    " on for the rounds that FedAlt has."
)


class NightComparison(Comparison):
    """Sweeps are of FedAlt's own training."""

    swept: ClassVar[str] = "FedAlt before finetuning"

    def sweep_steps(self, sweep: Sweep) -> dict[float, str]:
        """The step of each value of a sweep."""
        return sweep_steps(sweep)


def page(plan: Plan, seeds: Sequence[int], results: Results) -> Page:
    """A part for each setting."""
    parts, tables = [], []
    for setting in plan.settings:
        comparison, pilot = NightComparison(setting, setting.seeds(seeds), results), Pilot(setting, results)
        table = summarise(comparison, pilot)
        tables.append(table)
        figures = {**list_figures(comparison), **_list_more_figures(comparison, pilot)}
        parts.append(Part(flatten(table, comparison), show_setting(table, comparison), figures))
    return join_parts(ABOUT, parts, {"settings": tables})


def summarise(comparison: Comparison, pilot: Pilot) -> Row:
    """All numbers of one setting."""
    setting = comparison.setting
    answers = answer(comparison, pilot)
    gain = comparison.sign * pilot.more
    return {
        **describe_setting(comparison, pilot.rates, pilot.scores),
        "margin": setting.margin,
        "best": choose_split(comparison, pilot),
        "parts": measure_parts(comparison),
        "validation": {split: pilot.best(f"{split}-fedalt") for split in setting.splits},
        "converged": {"gain": gain, "yes": gain <= setting.margin},
        "scores": {step: summarise_step(comparison, step) for step in comparison.steps},
        "claims": judge(answers),
        "finals": {split: comparison.scores(f"{split}-fedalt-final") for split in setting.splits},
        "theory": comparison.steps["fedavg"].get("theory") or {},
        "memory": comparison.results[setting.name, "memory"]["rows"],
        "sweeps": comparison.summarise_sweeps(),
        "sign": comparison.sign,
        "commonest": measure_commonest(setting.data(DEAL)) if comparison.sign == 1 else None,
    }


def measure_commonest(fed: mo.FederatedData) -> float:
    """The share of the commonest class in the test rows: what a model has that always says it."""
    import numpy as np

    labels = np.asarray(fed.columns["y"])[fed.all_rows("test")]
    return float(np.bincount(labels).max() / len(labels))


def _describe_chance(table: Row) -> str:
    share = table["commonest"]
    return "" if share is None else f" The commonest class is {share:.1%} of the test rows."


def show_setting(table: Row, comparison: Comparison) -> list[Section]:
    """One setting: verdicts, tables and notes."""
    setting = comparison.setting
    flat = "has converged" if table["converged"]["yes"] else "has **not** converged"
    gain = f"{comparison.scale * table['converged']['gain']:+.2f}"
    convergence = f"FedAvg {flat}: on validation rows twice its rounds gain {gain} points (at most 1 is asked for)."
    best = f"Best split on validation rows: {table['best']}, {table['parts'][table['best']]:.0%} of the parameters."
    text = f"{describe(table, comparison)}{_describe_chance(table)} {convergence} {best}"
    tables: dict[str, Sequence[Row]] = {
        f"Splits ({'Table 4' if comparison.sign == 1 else 'Tables 3 and 11'})": list(show_splits(table, comparison)),
        f"Whole models (Table {2 if comparison.sign == 1 else 3}), and FT (part.) from a start trained as long": list(
            _show_longer(table, comparison)
        ),
        "Before the final finetuning (Table 12)": list(_show_final(table, comparison, "")),
        "Clients without state (Tables 13 and 14)": list(_show_stateless(table, comparison)),
        "What the theory says (moiety.advise)": list(_show_theory(table)),
        "Memory on one device (Table 10)": show_memory(table, comparison),
        "Who is hurt": list(show_hurt(table, comparison)),
        **{
            f"{option} of the personal part in FedAlt, {sweep['split']} (Figures 7 and 10)": show_sweep(
                sweep["rows"], comparison.scale
            )
            for option, sweep in table["sweeps"].items()
        },
        "Rates, and the weight of Ditto": list(show_rates(table, comparison.scale, seeds="mean of the pilot seeds")),
    }
    return [
        Section(title=setting.name, text=text, rows=list(show_claims(table["claims"]))),
        *(
            Section(title=title, rows=rows, level=3, text=HURT if title == "Who is hurt" else "")
            for title, rows in tables.items()
            if rows
        ),
        Section(title="Notes", notes=setting.notes(setting.stages), level=3),
    ]


def show_claims(claims: Sequence[Row]) -> Iterator[Row]:
    """A row for each question: the verdict over its labels, and each label's own."""
    for row in claims:
        question = QUESTIONS[row["question"]]
        labels = {label: one for label, one in row["labels"].items() if label}
        yield {
            "claim": question.text + (" (not the paper's)" if question.ours else ""),
            "verdict": f"**{row['verdict']}**",
            "ours [99% interval]": show_mean(row, scale=100, sign="+"),
            "rule": show_rule(question.above, question.within),
            "seeds needed": question.show_needed(row),
            "each": "; ".join(f"{label} {show_mean(one, scale=100, sign='+')}" for label, one in labels.items()),
        }


def show_rule(above: float, within: float | None) -> str:
    """The rule in points or in clients of a hundred."""
    return f"> {100 * above:g}" if within is None else f"within ±{100 * within:g}"


def _show_longer(table: Row, comparison: Comparison) -> Iterator[Row]:
    scores, scale = table["scores"], comparison.scale
    steps = {
        "FedAvg": ("fedavg", LONGER),
        **{name: (step, f"{step}-longer") for name, step in BASELINES.items() if name in ("Finetune", "Ditto")},
        "pFedMe": (None, BASELINES["pFedMe"]),
        **{
            f"FT (part.), {split}": (f"{split}-finetune", f"{split}-finetune-longer")
            for split in comparison.setting.splits
        },
    }
    for name, (short, longer) in steps.items():
        yield {
            "": name,
            "from FedAvg": "-" if short is None else show_mean(scores[short], scale=scale),
            "trained as long": show_mean(scores[longer], scale=scale),
        }


def _show_final(table: Row, comparison: Comparison, suffix: str) -> Iterator[Row]:
    for split in comparison.setting.splits:
        row = {"personal part": split}
        for method in ("FedAlt", "FedSim"):
            step = f"{split}-{method.lower()}{suffix}"
            change = mo.analysis.interval(comparison.gains(f"{step}-final", step))
            numbers = {"mean": change.mean, "low": change.low, "high": change.high}
            row[f"{method} before"] = show_mean(table["scores"][step], scale=comparison.scale)
            row[f"change of {method} by finetuning"] = show_mean(numbers, scale=comparison.scale, sign="+")
        yield row


def _show_stateless(table: Row, comparison: Comparison) -> Iterator[Row]:
    if not stages_of(comparison.setting).with_stateless:
        return
    changes = _show_final(table, comparison, "-stateless")
    for split, change in zip(comparison.setting.splits, changes, strict=True):
        steps = {name: step.replace("-final", "-stateless-final").format(split) for name, step in COLUMNS.items()}
        ours = {name: show_mean(table["scores"][step], scale=comparison.scale) for name, step in steps.items()}
        last = {name: value for name, value in change.items() if name.startswith("change")}
        yield {"personal part": split, **ours, **last}


def _show_theory(table: Row) -> Iterator[Row]:
    for split, advice in table["theory"].items():
        yield {
            "personal part": split,
            "better bound": advice["better"],
            "FedSim's leading term / FedAlt's": f"{advice['factor']:.2f} [{advice['low']:.2f}, {advice['high']:.2f}]",
            "chi": f"{advice['chi']:.2f}",
        }


def flatten(table: Row, comparison: Comparison) -> list[Row]:
    """One after the other: every score, then every verdict."""
    scale = comparison.scale
    scores = [(step, row, scale, None) for step, row in table["scores"].items()]
    claims = [(row["question"], row, 100, row["verdict"]) for row in table["claims"]]
    return [
        {
            "setting": table["setting"],
            "row": name,
            "paper": None,
            "ours": times * row["mean"],
            "interval": None if row["low"] is None else [times * row["low"], times * row["high"]],
            "verdict": verdict,
        }
        for name, row, times, verdict in (*scores, *claims)
    ]


def _list_more_figures(comparison: Comparison, pilot: Pilot) -> Figures:
    name, scale = comparison.setting.name, comparison.scale
    curves = {title: [([p[0] for p in points], [p[1] for p in points])] for title, points in pilot.curves.items()}
    label = f"{comparison.metric.replace('_', ' ')} on validation rows"
    options: dict[str, Any] = {"across": "round", "label": label, "scale": scale, "title": name}
    sizes = sorted((int(row["n"]) for row in comparison.steps["fedavg"]["clients"]), reverse=True)
    line = [(list(range(1, len(sizes) + 1)), sizes)]
    figures = {
        f"{name}/curve.png": (f"{name}: FedAvg, step (a), pilot seed", partial(mo.reports.courses, curves, **options))
    }
    if len(set(sizes)) > 1:  # one size would be a flat line
        figures[f"{name}/figure6.png"] = (
            f"{name}: training rows of the clients (Figure 6)",
            partial(
                mo.reports.courses,
                {"clients": line},
                across="clients, from most rows to fewest",
                label="training rows",
                title=name,
            ),
        )
    return figures
