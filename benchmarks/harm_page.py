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


def write_page(cells: Sequence[Cell], seconds: float, commit: str) -> str:
    """The page, from complete runs."""
    names = list(dict.fromkeys(cell.set for cell in cells))
    seeds = len({cell.seed for cell in cells})
    lines = [
        "# Do no harm: the safeguard on six sets",
        "",
        f"`python -m benchmarks.harm`, {seeds} seeds, {seconds / 60:.0f} minutes of one core; rule, definition and"
        f" targets as of commit {commit}, before the first run. `benchmarks/harm.py` says what is compared; the rule is"
        " in [docs/safeguard.md](../../safeguard.md). Test rows were looked at once, by this page.",
        "",
        "## Targets",
        "",
        "Without: personal models (finetuned, and FedAlt's). With: the models that clients chose. The simple rule takes"
        " the personal model where validation accuracy is higher. Brackets: 95% bootstrap intervals over seeds.",
        "",
    ]
    groups = {"pooled": list(cells), **{name: [cell for cell in cells if cell.set == name] for name in names}}
    intervals = {name: bootstrap(some, "chosen") for name, some in groups.items()}
    for key, label in LABELS.items():
        wanted, holds = TARGETS[key]
        lines += [f"### {label} ({wanted})", "", "| set | safeguard | | simple rule |", "|:---|---:|:---|---:|"]
        for name, some in groups.items():
            few = (
                key.endswith("ratio")
                and name != "pooled"
                and sum(c.count("personal", key.split("_")[0]) for c in some) < 20
            )
            value, ends, simple = pool(some, "chosen")[key], intervals[name][key], pool(some, "simple")[key]
            verdict = (
                "fewer than 20 hurt"
                if few
                else "no gain"
                if np.isnan(value)
                else "reached"
                if holds(value)
                else "missed"
            )
            shown = "-" if np.isnan(value) else f"{value:.2f} [{ends[0]:.2f}, {ends[1]:.2f}]"
            lines.append(f"| {name} | {shown} | {verdict} | {'-' if np.isnan(simple) else f'{simple:.2f}'} |")
        lines.append("")
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
    methods = len(cells) // (len(names) * seeds)
    for name in names:
        some = [cell for cell in cells if cell.set == name]
        for k in range(methods):
            each = some[k::methods]
            means = [np.mean([cell.mean(m) for cell in each]) for m in ("one", "alone", *MODELS)]
            tails = [np.mean([cell.decile(m) for cell in each]) for m in ("personal", "chosen")]
            tails += [np.mean([cell.spread(m) for cell in each]) for m in ("personal", "chosen")]
            shown = " | ".join(f"{value:.1f}" for value in (*means, *tails))
            lines.append(f"| {name} | {('finetune', 'fedalt')[k]} | {shown} |")
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
