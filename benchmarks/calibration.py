"""Are FedPop's probabilities right at its defaults, for people of real data sets?

UCI HAR (30 people, 5 labelled windows each, six activities) and isolet (30 speakers, 26 labelled sounds each, 26
letters). Six people are held out and come when training is over, with as many labelled rows. ``mo.fedpop()`` is trained
with a personal output layer, and predicts with 20 effective draws; one model for all (FedAvg) stands beside it.

    python -m benchmarks.calibration --out calibration.json --figure reliability.png

The scores are over all test rows of a group: the calibration error (10 bins), and whether the smallest sets with at
least 50, 80 and 90% of the probability hold the label as often as their mass says. Seeds are 0, 1, ...; each draws
anew who is held out and which rows are labelled. What the file holds already is not computed again.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import moiety as mo
from moiety.evaluation.calibration import reliability, scores, set_coverage
from moiety.reports.figures import save
from moiety.reports.reliability import reliability_diagram
from moiety_recipes.fedpop_pages import pool_bins
from moiety_recipes.fedpop_people import Plan, draw_people

LEVELS = (0.5, 0.8, 0.9)
DRAWS, ROUNDS, BINS = 20, 100, 10
SIZES: dict[str, Any] = {"seeds": 1, "held_out": 6, "rounds": ROUNDS, "hidden": 32}
SETS = {
    "uci_har": ({"features": "statistics"}, Plan(**SIZES, test=100, labelled=5, classes=6)),
    "isolet": ({}, Plan(**SIZES, test=26, labelled=26, classes=26)),
}
"""By data set: how it is loaded, and its sizes."""
METHODS = ("FedPop", "FedAvg")
TITLES = {"uci_har": "HAR", "isolet": "isolet"}


def measure_set(name: str, seed: int) -> list[dict[str, Any]]:
    """A row for each method and group."""
    how, plan = SETS[name]
    known, new = draw_people(plan, mo.data.load(name, test=0.0, **how), seed)
    tests: dict[str, list[tuple[Any, Mapping[str, np.ndarray]]]] = {
        "known": [(person, known.client(person, "test")) for person in known.ids],
        "new": [({k: p[k][: plan.labelled] for k in "xy"}, {k: p[k][plan.labelled :] for k in "xy"}) for p in new],
    }
    rows = []
    for method in METHODS:
        model = mo.models.mlp(known.columns["x"].shape[1], plan.classes, hidden=(plan.hidden,), seed=seed)
        split = mo.split.output_layer(model) if method == "FedPop" else None
        algorithm = mo.fedpop() if method == "FedPop" else mo.fedavg(shared=mo.sgd(0.05, epochs=5, batch_size=5))
        settings = mo.Settings(evaluate_every=ROUNDS)
        sizes: dict[str, Any] = {"rounds": ROUNDS, "seed": seed, "engine": "vectorised", "settings": settings}
        run = mo.fit(model, known, algorithm, split=split, **sizes)
        for group, people in tests.items():
            more = {"draws": DRAWS} if method == "FedPop" else {}
            predictions = [run.predictive(who, test["x"], **more) for who, test in people]
            labels = [test["y"] for _, test in people]
            short = sum(p.effective is not None and p.effective < DRAWS for p in predictions) if more else 0
            row = score_group([p.probabilities for p in predictions], labels)
            rows.append({"set": name, "seed": seed, "method": method, "group": group, "short": short, **row})
    return rows


def score_group(probabilities: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> dict[str, Any]:
    """Scores over all rows of some people, sets of each level, and the bins of reliability."""
    p, y = np.concatenate(probabilities), np.concatenate(labels)
    sets = {str(level): set_coverage(p, y, level=level) for level in LEVELS}
    return {"scores": scores(p, y, bins=BINS), "sets": sets, "bins": reliability(p, y, bins=BINS)}


def summarise(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line of a table for each data set, group and method: means over seeds, of the error its standard error too."""
    lines = []
    for key in dict.fromkeys((row["set"], row["group"], row["method"]) for row in rows):
        some = [row for row in rows if (row["set"], row["group"], row["method"]) == key]
        errors = np.array([100 * row["scores"]["ece"] for row in some])
        spread = errors.std(ddof=1) / np.sqrt(len(errors)) if len(errors) > 1 else np.nan
        accuracy, loss = (np.mean([row["scores"][name] for row in some]) for name in ("accuracy", "nll"))
        parts = [f"{100 * accuracy:.1f}", f"{errors.mean():.1f} ± {spread:.1f}", f"{loss:.2f}"]
        for level in LEVELS:
            held, mass = (
                100 * np.mean([row["sets"][str(level)][name] for row in some]) for name in ("covered", "mass")
            )
            parts.append(f"{held:.1f} of {mass:.1f}")
        lines.append("| " + " | ".join([*key, *parts]) + " |")
    return lines


def draw(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A reliability diagram of FedPop for each data set and group, all seeds together."""
    ours = [row for row in rows if row["method"] == "FedPop"]
    names = sorted(dict.fromkeys((row["set"], row["group"]) for row in ours), key=lambda key: key[1])
    bins = {}
    for name, group in names:
        heaps = [row["bins"] for row in ours if (row["set"], row["group"]) == (name, group)]
        bins[f"{TITLES[name]} {group}"] = pool_bins(heaps)
    return reliability_diagram(bins, title="FedPop at its defaults, all seeds together")


def main() -> None:
    """Measure, print a table, write rows and figure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--figure", type=Path, default=None)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*draws are effective after the longest chain")  # counted as ``short``
    rows: list[dict[str, Any]] = []
    if given.out is not None and given.out.exists():
        rows = json.loads(given.out.read_text())
    known = {(row["set"], row["seed"]) for row in rows}
    for seed in range(given.seeds):
        for name in given.sets.split(","):
            if (name, seed) not in known:
                rows += measure_set(name, seed)
            if given.out is not None:
                given.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(*summarise(rows), sep="\n")
    print(f"{sum(row['short'] for row in rows)} predictions had fewer than {DRAWS} effective draws")
    if given.figure is not None:
        save(draw(rows), given.figure)


if __name__ == "__main__":
    main()
