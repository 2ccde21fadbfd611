"""The claims of Pillutla et al. 2022 that are decided, with their rules: fixed before the runs of scale ``night``.

A question is answered from one number a seed for each of its labels (splits, or values of an option), positive where
the paper is right. Labels are averaged within a seed for the setting's verdict, and settings by ``decide``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from typing import Any

import moiety as mo
from moiety.experiments import Row, decide
from moiety_recipes.claims import show_needed
from moiety_recipes.fedalt_claims import Comparison
from moiety_recipes.fedalt_night import Pilot, stages_of, sweep_steps
from moiety_recipes.fedalt_stages import FULL, LONGER

MARGIN = 0.01
"""One point."""
SHARE = 0.05
"""Five clients in a hundred: what counts as a change of the share that is hurt."""
SMALL = 0.15
"""The largest share of the parameters of a part like the paper's, which have 1 to 14%."""
Each = dict[str, list[float]]
"""One number a seed, by label."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A claim, the paper's number for it, and its rule: above a number, or within a margin of 0.

    ``unit`` is what the numbers are: ``points`` or a ``share`` of clients. ``ours`` marks a control, or a question,
    that the paper does not have. ``seeds_each`` is how many seeds give one number: two where one half of the seeds
    chooses what the other half judges.
    """

    text: str
    paper: str
    above: float = 0.0
    within: float | None = None
    unit: str = "points"
    ours: bool = False
    seeds_each: int = 1

    def decide(self, differences: Mapping[str, Sequence[float]]) -> Row:
        """The verdict, from one number a seed in each setting."""
        return decide(self.text, differences, above=self.above, within=self.within)

    def show_needed(self, row: Row) -> str:
        """How many seeds an undecided claim would take, from its verdict."""
        return show_needed(row, each=self.seeds_each)


QUESTIONS: dict[str, Question] = {
    "alt-sim-before": Question(
        text="FedAlt beats FedSim, before the final finetuning", paper="+0.18 (mean of 9), 8 of 9 (Tables 4, 12)"
    ),
    "alt-sim-after": Question(
        text="FedAlt beats FedSim, after the final finetuning", paper="+0.07 (mean of 9), 8 of 9 (Table 4)"
    ),
    "partial-full": Question(
        text="The best split is at most a point behind Finetune, each trained as long",
        paper="-0.15, +3.56, 0.00 (Table 2, not trained as long)",
        above=-MARGIN,
    ),
    "partial-full-short": Question(
        text="The best split is at most a point behind Finetune from FedAvg as it is (the paper's comparison)",
        paper="-0.15, +3.56, 0.00 (Table 2)",
        above=-MARGIN,
    ),
    "partial-full-small": Question(
        text="The best split of at most 15% of the parameters is at most a point behind Finetune, each trained as long",
        paper="-0.15, +3.56, 0.00 (Table 2)",
        above=-MARGIN,
    ),
    "beats-longer": Question(
        text="The best split beats FedAvg trained as long", paper="+1.23, +14.98, +0.95 against FedAvg", ours=True
    ),
    "boost": Question(
        text="The best split captures 90% of what Finetune gains, each trained as long",
        paper="about 90% to more than 100% (section 4.1)",
    ),
    "boost-adapter": Question(
        text="Adapters capture 72% of what Finetune gains, each trained as long", paper="72% to more than 100%"
    ),
    "sim-ft": Question(text="FedSim beats FT (part.)", paper="+0.89 (mean of 9), 8 of 9 (Table 4)"),
    "sim-ft-longer": Question(text="FedSim beats FT (part.) trained as long", paper="not shown", ours=True),
    "alt-ft-longer": Question(text="FedAlt beats FT (part.) trained as long", paper="not shown", ours=True),
    "final-more": Question(
        text="The final finetuning helps FedSim more than FedAlt", paper="+0.11 (mean of 9), 7 of 9 (Table 12)"
    ),
    "final-little": Question(
        text="The final finetuning changes FedAlt by less than a point", paper="+0.13 (mean of 9)", within=MARGIN
    ),
    "state-alt": Question(text="Keeping state helps FedAlt", paper="+0.78 (mean of 9), 8 of 9 (Tables 4, 13)"),
    "state-sim": Question(text="Keeping state helps FedSim", paper="+0.81 (mean of 9), 8 of 9 (Tables 4, 13)"),
    "stateless-alt-sim": Question(
        text="Without state FedAlt beats FedSim", paper="+0.11 (mean of 9), 5 of 9 (Table 13)"
    ),
    "stateless-final": Question(
        text="Without state the final finetuning gives more than half of FedAlt's gain", paper="Table 14: most of it"
    ),
    "finetune-ditto": Question(
        text="Finetune and Ditto are within a point, each trained as long", paper="0.00 (Table 2)", within=MARGIN
    ),
    "finetune-pfedme": Question(
        text="Finetune and pFedMe are within a point, each trained as long", paper="0.00 to 0.07", within=MARGIN
    ),
    "hurt-some": Question(
        text="Clients that lose in half of the seeds lose in the other half too",
        paper="some clients are hurt (4.2)",
        seeds_each=2,
    ),
    "hurt-train": Question(
        text="At most 1% of clients are worse on their training rows",
        paper="none (Figure 5)",
        above=-0.01,
        unit="share",
    ),
    "hurt-small": Question(
        text="Clients with few rows are hurt more often than those with many", paper="mostly these (4.2)", unit="share"
    ),
    "hurt-near": Question(
        text="Clients that FedAvg fits well are hurt more often than those that it fits badly",
        paper="not asked",
        unit="share",
        ours=True,
    ),
    "regulariser-hurt": Question(
        text="The regulariser that helps most lowers the share that is hurt by less than 5 points",
        paper="does not mitigate (C.3)",
        above=-SHARE,
        unit="share",
        seeds_each=2,
    ),
    "regulariser-spread": Question(
        text="The strongest regulariser makes clients' changes less spread", paper="reduces the spread (C.3)"
    ),
    "regulariser-mean": Question(text="The strongest regulariser costs accuracy", paper="a smaller mean (C.3)"),
    "dropout-hurt": Question(
        text="Dropout 0.3 lowers the share that is hurt", paper="25.6% to 19.3% (C.3)", unit="share"
    ),
    "theory": Question(
        text="Where the theory prefers one of FedAlt and FedSim, that one is better (before finetuning)",
        paper="section 3.3",
    ),
}
OWN_SPLIT = Question(
    text="Each setting's own best split beats the one that is best over all settings", paper="task dependent (4.1)"
)
"""Of all settings together only."""


def choose_split(comparison: Comparison, pilot: Pilot, splits: Sequence[str] = ()) -> str:
    """The split, of all or of some, that FedAlt was best with on validation rows of the pilot seeds."""
    candidates = splits or list(comparison.setting.splits)
    return max(candidates, key=lambda split: comparison.sign * pilot.best(f"{split}-fedalt"))


def measure_parts(comparison: Comparison) -> dict[str, float]:
    """The share of the parameters that is personal, by split."""
    rows = comparison.results[comparison.setting.name, "memory"]["rows"]
    shares = {row["row"]: row["personal"] / (row["personal"] + row["shared"]) for row in rows}
    return {split: shares[split] for split in comparison.setting.splits}


def answer(comparison: Comparison, pilot: Pilot) -> dict[str, Each]:
    """The numbers of all questions that this setting's runs can answer."""
    best = choose_split(comparison, pilot)
    answers: dict[str, Each] = {}
    small = [split for split, share in measure_parts(comparison).items() if share <= SMALL]
    if small:
        split = choose_split(comparison, pilot, small)
        answers["partial-full-small"] = {split: comparison.gains(f"{split}-fedalt-final", f"{FULL}-finetune-longer")}
    for part in (_compare_splits(comparison), _compare_full(comparison, best), _ask_harm(comparison, best)):
        answers |= part
    if stages_of(comparison.setting).with_stateless:
        answers |= _compare_stateless(comparison)
    answers |= dict(_ask_sweeps(comparison))
    theory = comparison.steps["fedavg"].get("theory") or {}
    sides = {split: {"fedalt": 1, "fedsim": -1}.get(advice["better"]) for split, advice in theory.items()}
    gains = {split: comparison.gains(f"{split}-fedalt", f"{split}-fedsim") for split in sides}
    agreements = {split: [side * gain for gain in gains[split]] for split, side in sides.items() if side}
    answers |= {"theory": agreements} if agreements else {}
    return {name: answers[name] for name in QUESTIONS if name in answers}


def _compare_splits(comparison: Comparison) -> dict[str, Each]:
    gains, splits = comparison.gains, comparison.setting.splits

    def each(new: str, old: str) -> Each:
        return {split: gains(new.format(split), old.format(split)) for split in splits}

    last = {method: each(f"{{}}-{method}-final", f"{{}}-{method}") for method in ("fedalt", "fedsim")}
    return {
        "alt-sim-before": each("{}-fedalt", "{}-fedsim"),
        "alt-sim-after": each("{}-fedalt-final", "{}-fedsim-final"),
        "sim-ft": each("{}-fedsim-final", "{}-finetune"),
        "sim-ft-longer": each("{}-fedsim-final", "{}-finetune-longer"),
        "alt-ft-longer": each("{}-fedalt-final", "{}-finetune-longer"),
        "final-more": {s: _subtract(last["fedsim"][s], last["fedalt"][s]) for s in splits},
        "final-little": last["fedalt"],
    }


def _compare_full(comparison: Comparison, best: str) -> dict[str, Each]:
    gains, full = comparison.gains, f"{FULL}-finetune-longer"

    def measure_boost(split: str, share: float) -> list[float]:
        ours, theirs = gains(f"{split}-fedalt-final", LONGER), gains(full, LONGER)
        return [a - share * b for a, b in zip(ours, theirs, strict=True)]

    answers = {
        "partial-full": {best: gains(f"{best}-fedalt-final", full)},
        "partial-full-short": {best: gains(f"{best}-fedalt-final", f"{FULL}-finetune")},
        "beats-longer": {best: gains(f"{best}-fedalt-final", LONGER)},
        "boost": {best: measure_boost(best, 0.9)},
        "finetune-ditto": {"": gains(full, f"{FULL}-ditto-longer")},
        "finetune-pfedme": {"": gains(full, f"{FULL}-pfedme-final")},
    }
    if "adapter" in comparison.setting.splits:
        answers["boost-adapter"] = {"adapter": measure_boost("adapter", 0.72)}
    return answers


def _compare_stateless(comparison: Comparison) -> dict[str, Each]:
    gains, splits = comparison.gains, comparison.setting.splits
    benefits = {
        method: {s: gains(f"{s}-{method}-final", f"{s}-{method}-stateless-final") for s in splits}
        for method in ("fedalt", "fedsim")
    }
    last = {s: gains(f"{s}-fedalt-stateless-final", f"{s}-fedalt-stateless") for s in splits}
    total = {s: gains(f"{s}-fedalt-stateless-final", "fedavg") for s in splits}
    return {
        "state-alt": benefits["fedalt"],
        "state-sim": benefits["fedsim"],
        "stateless-alt-sim": {s: gains(f"{s}-fedalt-stateless-final", f"{s}-fedsim-stateless-final") for s in splits},
        "stateless-final": {s: [a - b / 2 for a, b in zip(last[s], total[s], strict=True)] for s in splits},
    }


def _ask_harm(comparison: Comparison, best: str) -> dict[str, Each]:
    """Against FedAvg trained as long, but for training rows: these are scored after FedAvg itself."""
    step = f"{best}-fedalt-final"
    changes = change_against(comparison, step, LONGER)
    answers = {"hurt-train": {best: [-share for share in comparison.shares_hurt(step, "train")]}}
    halves = split_halves(changes)
    if halves:
        answers["hurt-some"] = {best: halves}
    sizes = {str(row["client"]): float(row["n"]) for row in changes[0]}
    if max(sizes.values()) >= 1.5 * min(sizes.values()):
        answers["hurt-small"] = {best: [share_below(rows, sizes) for rows in changes]}
    fits = [{str(row["client"]): float(row["loss"]) for row in result["train"]} for result in comparison.rows("fedavg")]
    answers["hurt-near"] = {best: [share_below(rows, fit) for rows, fit in zip(changes, fits, strict=True)]}
    return answers


def change_against(comparison: Comparison, step: str, base: str) -> list[list[Row]]:
    """What every client gained by a step against another, for each seed."""
    higher = comparison.sign == 1
    pairs = zip(comparison.rows(step), comparison.rows(base), strict=True)
    return [mo.analysis.change_rows(new["clients"], old["clients"], higher_is_better=higher) for new, old in pairs]


def split_halves(changes: Sequence[Sequence[Row]]) -> list[float]:
    """How much clients lose in the odd seeds, a number a seed, that lost on average in the even ones.

    Chance alone would pick losers in one half that win in the other. Empty where nobody lost.
    """
    first, second = changes[::2], changes[1::2]
    if not second:
        return []
    losers = {row["client"] for row in mo.analysis.over_seeds(first) if row["mean"] < 0}
    return [-fmean(row["test"] for row in rows if row["client"] in losers) for rows in second] if losers else []


def share_below(rows: Sequence[Row], measure: Mapping[str, float]) -> float:
    """The share hurt among clients at or below the median of a measure, less that among the others.

    Where no client is above the median, as where half of them have as many rows as are taken, those at the median are
    the others.
    """
    cut = median(measure.values())
    if cut == max(measure.values()):
        cut = max(value for value in measure.values() if value < cut)
    low = [row["test"] < 0 for row in rows if measure[str(row["client"])] <= cut]
    high = [row["test"] < 0 for row in rows if measure[str(row["client"])] > cut]
    return fmean(low) - fmean(high)


def _ask_sweeps(comparison: Comparison) -> Iterator[tuple[str, Each]]:
    shares: Each = {}
    spreads: Each = {}
    means: Each = {}
    for sweep in stages_of(comparison.setting).sweeps:
        steps = sweep_steps(sweep)
        without, *others = list(steps.values())
        plain = comparison.shares_hurt(without)
        drops = {
            f"{sweep.option} {value:g}": _subtract(plain, comparison.shares_hurt(step))
            for value, step in list(steps.items())[1:]
        }
        if sweep.option == "dropout":
            yield "dropout-hurt", drops
            continue
        shares |= drops
        spreads[sweep.option] = _subtract(_spread(comparison, without), _spread(comparison, others[-1]))
        means[sweep.option] = comparison.gains(without, others[-1])
    if shares:
        if best := take_best_in_other_half(shares):
            yield "regulariser-hurt", best
        yield "regulariser-spread", spreads
        yield "regulariser-mean", means


def take_best_in_other_half(drops: Each) -> Each:
    """The value that lowers the share hurt most in the first, third, ... seed, and what it adds in the other seeds.

    The best of several values in the same seeds would look better than it is. Empty where there is one seed.
    """
    best = max(drops, key=lambda label: fmean(drops[label][::2]))
    others = drops[best][1::2]
    return {best: [-drop for drop in others]} if others else {}


def _spread(comparison: Comparison, step: str) -> list[float]:
    return [pstdev(row["test"] for row in rows) for rows in comparison.changes(step)]


def _subtract(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [x - y for x, y in zip(a, b, strict=True)]


def average_labels(each: Each) -> list[float]:
    """One number a seed: the mean over labels."""
    return [fmean(values) for values in zip(*each.values(), strict=True)]


def judge(answers: Mapping[str, Each]) -> list[Row]:
    """The verdict of every question in one setting: of each label, and of their mean."""
    rows = []
    for name, each in answers.items():
        question = QUESTIONS[name]
        labels: dict[str, Any] = {label: question.decide({"": some}) for label, some in each.items()}
        together = question.decide({"": average_labels(each)})
        rows.append({"question": name, **together, "labels": labels, "each": each})
    return rows
