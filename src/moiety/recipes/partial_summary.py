"""From the rows of all runs to numbers: scores with intervals over seeds, claims with verdicts, memory, who is hurt.

What is claimed is the paper's; whether it holds comes from the differences between runs of the same seed. Everything
here is plain numbers in the metric's own unit, ready for JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from moiety.recipes.rates import Chosen
from moiety.recipes.running import Ended, Row
from moiety.recipes.setting import FULL, Setting, Sweep
from moiety.recipes.steps import LONGER, swept_name

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
TRAINED = {"FedAlt": "{}-fedalt", "FedSim": "{}-fedsim"}


@dataclass(frozen=True)
class Found:
    """All that the runs of one setting gave: for each seed, what is left of each step by its name."""

    setting: Setting
    chosen: Chosen
    seeds: Mapping[int, Mapping[str, Ended]]
    memory: list[Row] = field(default_factory=list)
    folder: Path | None = None

    @property
    def first(self) -> Ended:
        """FedAvg with the first seed."""
        return next(iter(self.seeds.values()))["fedavg"]

    @property
    def higher_is_better(self) -> bool:
        """The metric's direction."""
        from moiety.analysis.versus import higher_is_better

        return higher_is_better(self.first.metric, *(ended.rows for ended in next(iter(self.seeds.values())).values()))

    def scores(self, step: str) -> list[float]:
        """The score of a step for each seed."""
        return [ended[step].score for ended in self.seeds.values()]

    def gains(self, new: str, old: str) -> list[float]:
        """How much better one step is than another, for each seed."""
        sign = 1 if self.higher_is_better else -1
        return [sign * (a - b) for a, b in zip(self.scores(new), self.scores(old), strict=True)]

    def changes(self, step: str) -> list[list[Row]]:
        """What every client gained by a step against FedAvg, for each seed; on training rows too where known."""
        from moiety.analysis.harm import change_rows

        found = []
        for ended in self.seeds.values():
            new, old = ended[step], ended["fedavg"]
            train = None if new.train is None or old.train is None else (new.train, old.train)
            found.append(change_rows(new.rows, old.rows, train=train, higher_is_better=self.higher_is_better))
        return found

    def rows(self, step: str) -> list[list[Row]]:
        """The clients' rows of a step for each seed."""
        return [ended[step].rows for ended in self.seeds.values()]

    def best(self, steps: Sequence[str]) -> list[str]:
        """The steps, the best first, by their mean over seeds."""
        sign = 1 if self.higher_is_better else -1
        return sorted(steps, key=lambda step: -sign * sum(self.scores(step)))


def summary(found: Found) -> dict[str, Any]:
    """All numbers of one setting."""
    setting = found.setting
    return {
        "setting": setting.name,
        "title": setting.title,
        "metric": found.first.metric,
        "higher_is_better": found.higher_is_better,
        "clients": len(found.first.rows),
        "margin": setting.margin,
        "seeds": list(found.seeds),
        "scores": {step: _score(found, step) for step in next(iter(found.seeds.values()))},
        "claims": claims(found),
        "memory": found.memory,
        "sweeps": {
            sweep.option: {"split": sweep.split, "rows": _swept(found, sweep)} for sweep in setting.stages.sweeps
        },
        "rates": found.chosen.rates,
        "tried": {name: finite(each) for name, each in found.chosen.tried.items()},
        "seconds": found.chosen.seconds + sum(each.seconds for seed in found.seeds.values() for each in seed.values()),
    }


def finite(tried: Mapping[float, float]) -> dict[str, float | None]:
    """Scores by rate; JSON has no place for those of a rate at which training came apart."""
    return {f"{lr:g}": score if math.isfinite(score) else None for lr, score in tried.items()}


def _score(found: Found, step: str) -> dict[str, Any]:
    """Mean and interval over seeds; and, but for FedAvg, the share of clients that it hurts."""
    from moiety.analysis.harm import hurt_when, share_hurt
    from moiety.analysis.intervals import interval

    each = found.scores(step)
    score = {"each": each, **asdict(interval(each))}
    if step != "fedavg":
        changes = found.changes(step)
        when = {key: len(names) for key, names in hurt_when(changes).items()}
        score |= {"hurt": asdict(share_hurt(changes)), "hurt_when": when}
    return score


def claims(found: Found) -> list[dict[str, Any]]:
    """What the paper claims, each with its differences over seeds and the verdict they give."""
    setting, margin = found.setting, found.setting.margin
    made = []
    for split in setting.splits:
        gains = found.gains(f"{split}-fedalt-final", f"{split}-fedsim-final")
        made.append(_claim(f"FedAlt beats FedSim: {split}", gains))
    partial = found.best([f"{split}-fedalt-final" for split in setting.splits])
    full = found.best([step for step in BASELINES.values() if step.startswith(FULL)])
    name = f"the best split ({_split(partial[0])}) is as good as full personalisation ({full[0].split('-')[1]})"
    made.append(_claim(name, found.gains(partial[0], full[0]), above=-margin))
    for name, plain in (("FedAvg", "fedavg"), ("FedAvg trained as long", LONGER)):
        made.append(_claim(f"personalisation ({_split(partial[0])}) beats {name}", found.gains(partial[0], plain)))
    if len(partial) > 1:
        name = f"the best split is {_split(partial[0])}, ahead of {_split(partial[1])}"
        made.append(_claim(name, found.gains(partial[0], partial[1])))
    for split in setting.splits:
        for method, step in TRAINED.items():
            before = step.format(split)
            name = f"final finetuning changes {method} little: {split}"
            made.append(_claim(name, found.gains(f"{before}-final", before), within=margin))
    return made + _stateless(found) + _harm(found, partial[0]) + _memory(found)


def _stateless(found: Found) -> list[dict[str, Any]]:
    """Tables 13 and 14: clients that keep nothing between rounds."""
    split = found.setting.stages.stateless
    if split is None:
        return []
    alt, sim = f"{split}-fedalt-stateless", f"{split}-fedsim-stateless"
    total, last = found.gains(f"{alt}-final", "fedavg"), found.gains(f"{alt}-final", alt)
    most = [b - a / 2 for a, b in zip(total, last, strict=True)]
    return [
        _claim(f"stateless FedAlt beats FedSim: {split}", found.gains(f"{alt}-final", f"{sim}-final")),
        _claim(f"keeping state helps FedAlt: {split}", found.gains(f"{split}-fedalt-final", f"{alt}-final")),
        _claim(f"final finetuning is most of what stateless FedAlt gains: {split}", most),
    ]


def _harm(found: Found, partial: str) -> list[dict[str, Any]]:
    """Section 4.2 and C.3: training scores rise on all clients, test scores fall on some; regularisation is no cure."""
    from moiety.analysis.harm import hurt_when

    made = []
    for step in (partial, f"{FULL}-finetune"):
        changes, name = found.changes(step), _split(step)
        made.append(_seen(f"some clients are hurt ({name})", _shares(changes, "test"), some=True))
        made.append(_seen(f"no client is worse on its training rows ({name})", _shares(changes, "train"), some=False))
    torn = len(hurt_when(found.changes(partial))["sometimes"]) / len(found.first.rows)
    made.append(_seen(f"whether a client is hurt depends on the seed ({_split(partial)})", [torn], some=True))
    for sweep in found.setting.stages.sweeps:
        none, *others = [found.changes(swept_name(found.setting.stages, sweep, value)) for value in sweep.values]
        before, worse = _shares(none, "test"), min((_shares(each, "test") for each in others), key=sum)
        what = f"{sweep.option} ({sweep.split}, at the value that hurts fewest)"
        made.append(_seen(f"{what} still leaves clients hurt", worse, some=True))
        fewer = [a - b for a, b in zip(before, worse, strict=True)]
        made.append(_claim(f"{what} lowers the share of clients hurt", fewer))
    return made


def _shares(changes: Sequence[Sequence[Row]], column: str) -> list[float]:
    """The share of clients that lost, for each seed."""
    from moiety.analysis.harm import share_hurt

    return [share_hurt([rows], column=column).mean for rows in changes]


def _claim(name: str, differences: Sequence[float], **how: float) -> dict[str, Any]:
    from moiety.analysis.intervals import claim

    made = claim(name, differences, **how)
    return {"claim": name, "verdict": made.verdict, **asdict(made.interval), "each": list(differences), **how}


def _seen(name: str, shares: Sequence[float], *, some: bool) -> dict[str, Any]:
    """A claim about clients that a look at them settles: it is so for some of them in every seed, or for none."""
    from moiety.analysis.intervals import FAILS, HOLDS, interval

    verdict = HOLDS if (all(shares) if some else not any(shares)) else FAILS
    claimed = "some of the clients" if some else "none of the clients"
    return {"claim": name, "verdict": verdict, **asdict(interval(shares)), "each": list(shares), "share": claimed}


def _memory(found: Found) -> list[dict[str, Any]]:
    """Table 10: the least that is saved by a split."""
    from moiety.analysis.intervals import FAILS, HOLDS, interval

    least = min((row["saving"] for row in found.memory if row["row"] in found.setting.splits), default=0.0)
    name = "every split needs less memory on a device than full personalisation"
    verdict = HOLDS if least > 0 else FAILS
    return [{"claim": name, "verdict": verdict, **asdict(interval([least])), "each": [least], "share": "saved by each"}]


def _split(step: str) -> str:
    return step.split("-")[0]


def _swept(found: Found, sweep: Sweep) -> list[Row]:
    from moiety.analysis.harm import sweep as swept

    return list(swept({value: found.changes(swept_name(found.setting.stages, sweep, value)) for value in sweep.values}))
