"""From the rows of all runs to numbers: scores with intervals over seeds, claims with verdicts, who is hurt.

What is claimed is the paper's; whether it holds comes from the differences between runs of the same seed. Everything
here is plain numbers in the metric's own unit, ready for JSON.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import moiety as mo
from moiety.experiments import FAILS, HOLDS, Results, Row, claim, compare, interval
from moiety_recipes.fedalt_stages import FULL, LONGER, Families, Setting, Sweep, name_sweep
from moiety_recipes.tuning import average_metric, choose_rate

COLUMNS = {"FT (part.)": "{}-finetune", "FedAlt": "{}-fedalt-final", "FedSim": "{}-fedsim-final"}
"""The columns of Table 4 and their steps, for a split."""
BASELINES = {
    "FedAvg": "fedavg",
    "FedAvg, longer": LONGER,
    "Finetune": f"{FULL}-finetune",
    "Ditto": f"{FULL}-ditto",
    "pFedMe": f"{FULL}-pfedme-final",
}
"""The other columns of Table 2 and their steps."""


@dataclass(frozen=True)
class Comparison:
    """All that the runs of one setting gave."""

    setting: Setting
    seeds: Sequence[int]
    results: Results
    swept: ClassVar[str] = "finetuned"
    """What the sweeps of an option are made on."""

    @property
    def steps(self) -> dict[str, Row]:
        """What was kept of the first seed, by step."""
        return {str(key[2]): row for key, row in self.results.items() if key[:2] == (self.setting.name, self.seeds[0])}

    @property
    def metric(self) -> str:
        """The metric's name."""
        return str(self.steps["fedavg"]["metric"])

    @property
    def scale(self) -> float:
        """What scores are multiplied by where they are shown."""
        return 100 if mo.reports.is_percentage(self.metric) else 1

    @property
    def sign(self) -> int:
        """1 where a higher metric is better, else -1."""
        higher = mo.analysis.higher_is_better(self.metric, *(row["clients"] for row in self.steps.values()))
        return 1 if higher else -1

    def rows(self, step: str) -> list[Row]:
        """What was kept of a step for each seed."""
        return [self.results[self.setting.name, seed, step] for seed in self.seeds]

    def scores(self, step: str) -> list[float]:
        """The score of a step for each seed."""
        return [average_metric(row) for row in self.rows(step)]

    def gains(self, new: str, old: str) -> list[float]:
        """How much better one step is than another, for each seed."""
        return compare(self.scores(new), self.scores(old), scale=self.sign)

    def changes(self, step: str) -> list[list[Row]]:
        """What every client gained by a step against FedAvg, for each seed; on training rows too where known."""
        return [
            mo.analysis.change_rows(
                new["clients"],
                old["clients"],
                train=(new["train"], old["train"]) if new["train"] and old["train"] else None,
                higher_is_better=self.sign == 1,
            )
            for new, old in zip(self.rows(step), self.rows("fedavg"), strict=True)
        ]

    def all_changes(self, step: str, column: str = "test") -> list[float]:
        """The same of all seeds in one list."""
        return [row[column] for rows in self.changes(step) for row in rows]

    def shares_hurt(self, step: str, column: str = "test") -> list[float]:
        """The share of clients that lost by a step against FedAvg, for each seed."""
        return [mo.analysis.share_hurt([rows], column=column).mean for rows in self.changes(step)]

    def sweep_steps(self, sweep: Sweep) -> dict[float, str]:
        """The step of each value of a sweep."""
        return {value: name_sweep(self.setting.stages, sweep, value) for value in sweep.values}

    def summarise_sweeps(self) -> dict[str, Row]:
        """By option: the split that was swept, and a row for each value."""
        return {
            sweep.option: {
                "split": sweep.split,
                "rows": mo.analysis.sweep({v: self.changes(step) for v, step in self.sweep_steps(sweep).items()}),
            }
            for sweep in self.setting.stages.sweeps
        }

    def order(self, steps: Sequence[str]) -> list[str]:
        """The steps, the best first, by their mean over seeds."""
        return sorted(steps, key=lambda step: -self.sign * sum(self.scores(step)))

    def rates(self, families: Families) -> tuple[dict[str, float], dict[str, dict[str, float | None]]]:
        """The rate of each family, and the validation scores behind those that were chosen.

        JSON has no place for the score of a rate at which training came apart: it is None.
        """
        rates, trials = {}, {}
        for name, (grid, _) in families.items():
            keys = {lr: (self.setting.name, "tuning", f"{name}-{lr:g}") for lr in grid}
            rows = {lr: self.results[key] for lr, key in keys.items() if len(grid) > 1}
            rates[name] = choose_rate(grid, rows)
            if rows:
                scores = {f"{lr:g}": average_metric(row) for lr, row in rows.items()}
                trials[name] = {lr: value if math.isfinite(value) else None for lr, value in scores.items()}
        return rates, trials


def describe_setting(
    comparison: Comparison, rates: Mapping[str, float], trials: Mapping[str, Mapping[str, float | None]]
) -> Row:
    """What a setting is, the rates of its runs, and the validation scores behind them."""
    return {
        "setting": comparison.setting.name,
        "title": comparison.setting.title,
        "metric": comparison.metric,
        "clients": len(comparison.steps["fedavg"]["clients"]),
        "seeds": list(comparison.seeds),
        "rates": rates,
        "tried": trials,
    }


def summarise(comparison: Comparison, families: Families) -> Row:
    """All numbers of one setting."""
    setting, memory = comparison.setting, comparison.results[comparison.setting.name, "memory"]["rows"]
    return {
        **describe_setting(comparison, *comparison.rates(families)),
        "higher_is_better": comparison.sign == 1,
        "margin": setting.margin,
        "scores": {step: summarise_step(comparison, step) for step in comparison.steps},
        "claims": list(judge(comparison, memory)),
        "memory": memory,
        "sweeps": comparison.summarise_sweeps(),
    }


def summarise_step(comparison: Comparison, step: str) -> Row:
    """Mean and interval over seeds; and, but for FedAvg, the share of clients that it hurts."""
    each = comparison.scores(step)
    row = {"each": each, **asdict(interval(each))}
    if step == "fedavg":
        return row
    changes = comparison.changes(step)
    when = {key: len(names) for key, names in mo.analysis.hurt_when(changes).items()}
    return {**row, "hurt": asdict(mo.analysis.share_hurt(changes)), "hurt_when": when}


def judge(comparison: Comparison, memory: Sequence[Row]) -> Iterator[Row]:
    """What the paper claims, each with its differences over seeds and the verdict they give."""
    setting, gains = comparison.setting, comparison.gains
    partly = comparison.order([f"{split}-fedalt-final" for split in setting.splits])
    full = comparison.order([step for step in BASELINES.values() if step.startswith(FULL)])[0]
    best = _split(partly[0])
    for split in setting.splits:
        yield _make_claim(f"FedAlt beats FedSim: {split}", gains(f"{split}-fedalt-final", f"{split}-fedsim-final"))
    name = f"the best split ({best}) is as good as full personalisation ({full.split('-')[1]})"
    yield _make_claim(name, gains(partly[0], full), above=-setting.margin)
    yield _make_claim(f"personalisation ({best}) beats FedAvg", gains(partly[0], "fedavg"))
    yield _make_claim(f"personalisation ({best}) beats FedAvg trained as long", gains(partly[0], LONGER))
    if len(partly) > 1:
        yield _make_claim(f"the best split is {best}, ahead of {_split(partly[1])}", gains(*partly[:2]))
    for split, method in itertools.product(setting.splits, ("FedAlt", "FedSim")):
        before = f"{split}-{method.lower()}"
        name = f"final finetuning changes {method} little: {split}"
        yield _make_claim(name, gains(f"{before}-final", before), within=setting.margin)
    if setting.stages.stateless is not None:
        yield from _judge_stateless(comparison, setting.stages.stateless)
    yield from _judge_harm(comparison, partly[0])
    least = min((row["saving"] for row in memory if row["row"] in setting.splits), default=0.0)
    name = "every split needs less memory on a device than full personalisation"
    yield _settle(name, [least], least > 0, "saved by each")


def _judge_stateless(comparison: Comparison, split: str) -> Iterator[Row]:
    """Tables 13 and 14: clients that keep nothing between rounds."""
    gains, alt, sim = comparison.gains, f"{split}-fedalt-stateless", f"{split}-fedsim-stateless"
    yield _make_claim(f"stateless FedAlt beats FedSim: {split}", gains(f"{alt}-final", f"{sim}-final"))
    yield _make_claim(f"keeping state helps FedAlt: {split}", gains(f"{split}-fedalt-final", f"{alt}-final"))
    total, last = gains(f"{alt}-final", "fedavg"), gains(f"{alt}-final", alt)
    most = [b - a / 2 for a, b in zip(total, last, strict=True)]
    yield _make_claim(f"final finetuning is most of what stateless FedAlt gains: {split}", most)


def _judge_harm(comparison: Comparison, partly: str) -> Iterator[Row]:
    """Section 4.2 and C.3: training scores rise on all clients, test scores fall on some; regularisation is no cure."""
    some, none = "some of the clients", "none of the clients"
    for step in (partly, f"{FULL}-finetune"):
        hurt, train = comparison.shares_hurt(step), comparison.shares_hurt(step, "train")
        yield _settle(f"some clients are hurt ({_split(step)})", hurt, all(hurt), some)
        yield _settle(f"no client is worse on its training rows ({_split(step)})", train, not any(train), none)
    sometimes = mo.analysis.hurt_when(comparison.changes(partly))["sometimes"]
    share = len(sometimes) / len(comparison.steps["fedavg"]["clients"])
    yield _settle(f"whether a client is hurt depends on the seed ({_split(partly)})", [share], share > 0, some)
    for sweep in comparison.setting.stages.sweeps:
        before, *others = [comparison.shares_hurt(step) for step in comparison.sweep_steps(sweep).values()]
        fewest = min(others, key=sum)
        what = f"{sweep.option} ({sweep.split}, at the value that hurts fewest)"
        yield _settle(f"{what} still leaves clients hurt", fewest, all(fewest), some)
        yield _make_claim(f"{what} lowers the share of clients hurt", compare(before, fewest))


def _make_claim(name: str, differences: Sequence[float], **rule: float) -> Row:
    decision: Any = claim(name, differences, **rule)
    return {"claim": name, "verdict": decision.verdict, **asdict(decision.interval), "each": list(differences), **rule}


def _settle(name: str, shares: Sequence[float], holds: bool, rule: str) -> Row:
    """A claim about clients that is settled by counting them."""
    verdict = HOLDS if holds else FAILS
    return {"claim": name, "verdict": verdict, **asdict(interval(shares)), "each": list(shares), "share": rule}


def _split(step: str) -> str:
    return step.split("-")[0]


def flatten(table: Mapping[str, Any], comparison: Comparison) -> list[Row]:
    """One after the other: every score with the paper's number beside it, then every claim with its verdict."""
    paper, scale = comparison.setting.paper, comparison.scale
    theirs: dict[str, float | None] = {step: paper.baselines.get(name.lower()) for name, step in BASELINES.items()}
    for split, numbers in paper.table.items():
        theirs |= {step.format(split): number for step, number in zip(COLUMNS.values(), numbers, strict=True)}
    scores = [(step, theirs.get(step), row, scale) for step, row in table["scores"].items()]
    claims = [(claim["claim"], None, claim, 100 if "share" in claim else scale) for claim in table["claims"]]
    return [
        {
            "setting": table["setting"],
            "row": name,
            "paper": number,
            "ours": times * row["mean"],
            "interval": None if row["low"] is None else [times * row["low"], times * row["high"]],
            "verdict": row.get("verdict"),
        }
        for name, number, row, times in (*scores, *claims)
    ]
