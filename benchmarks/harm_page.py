"""The page of ``benchmarks.harm``: targets, counts, accuracy and fairness, from complete runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from moiety.analysis import share_interval
from moiety.evaluation import worst_decile

MODELS = ("personal", "simple", "chosen")
BASELINES = ("one", "alone")


@dataclass(frozen=True)
class Cell:
    """The clients of one set, seed and method."""

    set: str
    seed: int
    method: str
    clients: list[dict[str, Any]]
    known: dict[tuple[str, ...], float] = field(default_factory=dict)
    """What was computed before, for the bootstrap asks again and again."""

    def count(self, model: str, kind: str, against: str = "one") -> float:
        """Clients hurt."""
        key = f"{model} against {against}"
        return self._once((key, kind), lambda: sum(row[key][kind] for row in self.clients))

    def mean(self, model: str) -> float:
        """Accuracy in points, the mean over clients."""
        return self._once(("mean", model), lambda: self._points(model).mean())

    def decile(self, model: str) -> float:
        """That of the worst tenth."""
        return self._once(("decile", model), lambda: worst_decile(self._points(model), higher_is_better=True))

    def spread(self, model: str) -> float:
        """The deviation over clients."""
        return float(self._points(model).std())

    def _points(self, model: str) -> np.ndarray:
        return 100 * np.array([row[model] for row in self.clients])

    def _once(self, key: tuple[str, ...], compute: Callable[[], Any]) -> float:
        if key not in self.known:
            self.known[key] = float(compute())
        return self.known[key]


def pool(cells: Sequence[Cell], model: str) -> dict[str, float]:
    """The quantities that targets are about."""
    before = {kind: sum(cell.count("personal", kind) for cell in cells) for kind in ("hurt", "beyond")}
    after = {kind: sum(cell.count(model, kind) for cell in cells) for kind in ("hurt", "beyond")}
    gain = float(np.mean([cell.mean("personal") - cell.mean("one") for cell in cells]))
    kept = float(np.mean([cell.mean(model) - cell.mean("one") for cell in cells]))
    ratios = {f"{kind}_ratio": after[kind] / before[kind] if before[kind] else np.nan for kind in before}
    return {
        **ratios,
        "mean": kept - gain,
        "decile": float(np.mean([cell.decile(model) - cell.decile("personal") for cell in cells])),
        "kept": kept / gain if gain > 0 else np.nan,
    }


def bootstrap(cells: Sequence[Cell], model: str, draws: int = 2000) -> dict[str, tuple[float, float]]:
    """The middle 95% of each quantity when seeds are drawn anew within sets."""
    rng = np.random.default_rng(0)
    blocks: dict[str, dict[int, list[Cell]]] = {}
    for cell in cells:
        blocks.setdefault(cell.set, {}).setdefault(cell.seed, []).append(cell)
    results = []
    for _ in range(draws):
        chosen: list[Cell] = []
        for seeds in blocks.values():
            names = list(seeds)
            for at in rng.integers(len(names), size=len(names)):
                chosen += seeds[names[at]]
        results.append(pool(chosen, model))
    ends = {}
    for key in results[0]:
        values = np.array([each[key] for each in results])
        values = values[np.isfinite(values)]
        ends[key] = (
            (float(np.percentile(values, 2.5)), float(np.percentile(values, 97.5))) if len(values) else (np.nan,) * 2
        )
    return ends


FEWEST = 20
"""Targets are for sets with so many hurt clients, and for all sets together."""
TARGETS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "hurt_ratio": ("at most 0.33", lambda value: value <= 1 / 3),
    "beyond_ratio": ("at most 0.33", lambda value: value <= 1 / 3),
    "mean": ("at least -0.3", lambda value: value >= -0.3),
    "decile": ("at least -0.3", lambda value: value >= -0.3),
    "kept": ("at least 0.80", lambda value: value >= 0.8),
}
LABELS = {
    "hurt_ratio": "hurt at all, with over without",
    "beyond_ratio": "hurt beyond noise, with over without",
    "mean": "mean accuracy, chosen minus personal, points",
    "decile": "worst decile, chosen minus personal, points",
    "kept": "share of the gain kept",
}


def _write_targets(groups: dict[str, list[Cell]], methods: Sequence[str]) -> list[str]:
    """A table for each target: pooled and by set, then by method."""
    by_method = {
        f"{name}, {method}": [cell for cell in some if cell.method == method]
        for name, some in groups.items()
        for method in methods
    }
    every = groups | by_method
    intervals = {name: bootstrap(some, "chosen") for name, some in every.items()}
    values = {name: (pool(some, "chosen"), pool(some, "simple")) for name, some in every.items()}
    lines = []
    for key, label in LABELS.items():
        wanted, holds = TARGETS[key]
        lines += [f"### {label} ({wanted})", "", "| set | safeguard | | simple rule |", "|:---|---:|:---|---:|"]
        for name, some in every.items():
            value, simple = (each[key] for each in values[name])
            low, high = intervals[name][key]
            kind = key.split("_")[0] if key.endswith("ratio") else "hurt"
            verdict = "no gain" if np.isnan(value) else "reached" if holds(value) else "missed"
            if name != "pooled" and sum(cell.count("personal", kind) for cell in some) < FEWEST:
                verdict = f"fewer than {FEWEST} hurt" + ("" if np.isnan(value) else f" ({verdict})")
            shown = "-" if np.isnan(value) else f"{value:.2f} [{low:.2f}, {high:.2f}]"
            lines.append(f"| {name} | {shown} | {verdict} | {'-' if np.isnan(simple) else f'{simple:.2f}'} |")
        lines.append("")
    return lines


def write_page(cells: Sequence[Cell], seconds: float, commit: str) -> str:
    """The page, from complete runs."""
    names = list(dict.fromkeys(cell.set for cell in cells))
    methods = list(dict.fromkeys(cell.method for cell in cells))
    seeds = sorted({cell.seed for cell in cells})
    groups = {"pooled": list(cells), **{name: [cell for cell in cells if cell.set == name] for name in names}}
    lines = [
        "# Do no harm: the safeguard on six sets",
        "",
        f"`python -m benchmarks.harm`, seeds {seeds[0]} to {seeds[-1]}, {seconds / 60:.0f} minutes of one core; rule,"
        f" definition and targets as of commit {commit}, before these seeds were run. `benchmarks/harm.py` says what is"
        " compared; the rule is in [docs/safeguard.md](../../safeguard.md). It is the fourth look at these sets:"
        " other rules were run with seeds 0 to 4, 10 to 14 and 20 to 24, and each missed a target on at least one set."
        " The rule of this page was found on other data (`benchmarks.harm_rules`), after a look at why isolet's gain"
        " was lost. All rows of the runs are in [runs.json](runs.json).",
        "",
        "## Targets",
        "",
        "Without: personal models (finetuned, and FedAlt's). With: the models that clients chose. The simple rule takes"
        " the personal model where validation accuracy is higher. Brackets: 95% bootstrap intervals over seeds. Targets"
        f" are for both methods together, pooled and for each set with at least {FEWEST} hurt clients; the other rows,"
        " and those by method, show what that hides.",
        "",
        *_write_targets(groups, methods),
    ]
    lines += ["## Clients hurt, client-runs", ""]
    for against in BASELINES:
        what = "one model for all" if against == "one" else "training alone"
        lines += [
            f"### Against {what}",
            "",
            "| set | clients | " + " | ".join(f"{m}: at all | beyond noise" for m in MODELS) + " |",
        ]
        lines.append("|:---|---:|" + "---:|" * 2 * len(MODELS))
        for name, some in groups.items():
            total = sum(len(cell.clients) for cell in some)
            counts = []
            for m in MODELS:
                for kind in ("hurt", "beyond"):
                    count = int(sum(cell.count(m, kind, against) for cell in some))
                    low, high = share_interval(count, total)
                    counts.append(f"{count} ({count / total:.1%}; {low:.1%} to {high:.1%})")
            lines.append(f"| {name} | {total} | " + " | ".join(counts) + " |")
        lines.append("")
    lines += [
        "## Accuracy, and fairness",
        "",
        "| set | method | one model | alone | personal | simple | chosen | worst decile: personal | chosen"
        " | spread: personal | chosen |",
    ]
    lines.append("|:---|:---|" + "---:|" * 9)
    for name in names:
        for method in methods:
            each = [cell for cell in groups[name] if cell.method == method]
            means = [np.mean([cell.mean(m) for cell in each]) for m in ("one", "alone", *MODELS)]
            tails = [np.mean([cell.decile(m) for cell in each]) for m in ("personal", "chosen")]
            tails += [np.mean([cell.spread(m) for cell in each]) for m in ("personal", "chosen")]
            shown = " | ".join(f"{value:.1f}" for value in (*means, *tails))
            lines.append(f"| {name} | {method} | {shown} |")
    lines += [
        "",
        "## By size",
        "",
        "| set | clients | personal: at all | chosen: at all | chosen minus personal, points |",
        "|:---|:---|---:|---:|---:|",
    ]
    for name in names:
        rows = [row for cell in cells if cell.set == name for row in cell.clients]
        cut = float(np.median([row["n"] for row in rows]))
        for label, half in (
            (f"n <= {cut:g}", [r for r in rows if r["n"] <= cut]),
            (f"n > {cut:g}", [r for r in rows if r["n"] > cut]),
        ):
            if half:
                shares = [np.mean([row[f"{m} against one"]["hurt"] for row in half]) for m in ("personal", "chosen")]
                price = 100 * np.mean([row["chosen"] - row["personal"] for row in half])
                lines.append(f"| {name} | {label} ({len(half)}) | {shares[0]:.1%} | {shares[1]:.1%} | {price:+.2f} |")
    return "\n".join(lines) + "\n"
