"""What ``mo.recommend`` picks against an exhaustive run, on real data.

    python -m benchmarks.recommend --seed 1 --out DIR    # resumable: a file for each set, in DIR/seed-1
    python -m benchmarks.recommend --seed 0,1,2,3,4 --out DIR --page docs/results/recommend    # from complete runs

The rule, fixed before the sets of the test were run. Both get the same candidates, rates, lengths and seed. The
exhaustive run trains every candidate with every rate at full length, takes each one's best rate by validation rows, and
scores test rows of that run. The pick is right where its mean on test rows, in the exhaustive run, is within one point
of the best candidate's, whichever that is. The cost of both is counted in gradient evaluations, the exhaustive one with
the same final comparison. The interval of the difference between the two is over clients, of that one run. The search
was developed on the sets of ``DEVELOPMENT`` and on planted problems; the six sets of the test are others. The level of
the final comparison was set after a miss on AudioMNIST at seed 0, so seeds 1 to 4 were added as a test that it had no
part in: fixed before they were run, reported whatever comes out. Of their 24 runs at least 20 must be right, and by the
mean difference over these seeds at least five of six sets.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

import moiety as mo
from benchmarks.harm import scale
from moiety.analysis.candidates import Candidate, list_candidates, list_splits
from moiety.analysis.contrast import contrast
from moiety.analysis.recommendation import ONE
from moiety.analysis.versus import average
from moiety.experiments.halving import RATES, Plan, longest_run, make_plan, start_lengths
from moiety.experiments.page import find_commit
from moiety.experiments.search import Search, Trial, catch_failure
from moiety_recipes import fedalt_settings
from moiety_recipes.fedalt_settings import perceptron

BUDGET, COHORT, ROUNDS, FIRST = 3_000_000, 10, 1000, 0
WORK = mo.sgd(0.1, batch_size=16)
DEVELOPMENT = ("digits", "pendigits", "letter", "satimage", "usps")
"""Other sets, for development."""
TEST = ("audiomnist", "uci_har", "isolet", "roles", "clothes_0.1", "objects_1")
MARGIN = 0.01


def load(name: str, seed: int) -> tuple[nn.Module, mo.FederatedData]:
    """A set and its small perceptron."""
    if name in DEVELOPMENT:
        how = mo.data.dirichlet(0.3)
        fed = scale(mo.data.load(name, clients=40, per_client=45, partition=how, validation=0.25, seed=seed))
    elif name == "isolet":
        fed = mo.data.load("isolet", test=0.3, validation=0.2, seed=seed)
    else:
        plans = (fedalt_settings.plan_people, fedalt_settings.plan_labels, fedalt_settings.plan_roles)
        setting = next(s for plan in plans for s in plan("night").settings if s.name == name)
        return setting.model(seed=seed), setting.data(seed)
    return perceptron(fed.columns["x"].shape[1], int(fed.classes or 0), seed=seed), fed


def run_all(
    search: Search, candidates: Sequence[Candidate], plan: Plan, seed: int, tell: Callable[[str], None]
) -> tuple[dict[str, dict[str, Any]], float]:
    """Validation and test rows of every candidate at its best rate, at full length; and the evaluations it took."""
    start, tuning = start_lengths(plan.full)
    rates = {}
    for alone in (False, True):
        scores = {rate: search.run_start(alone, tuning, rate)["score"] or -1.0 for rate in RATES}
        rates[alone] = max(scores, key=scores.__getitem__)
    table = {}
    for candidate in candidates:
        rows = []
        for rate in RATES:
            trial = Trial(plan.full, rate, start, rates[candidate.local], seed)
            search._count(candidate, trial)
            with catch_failure() as row:
                run, _ = search._train(candidate, trial)
                tested = run.evaluate("test")
                row |= {"score": average(run.clients), "test": average(tested), "clients": tested}
            rows.append({"test": -1.0, "clients": [], **row, "score": row["score"] or -1.0, "rate": rate})
        table[candidate.name] = max(rows, key=lambda row: row["score"])
        tell(f"{candidate.name}: {table[candidate.name]['test']:.4f}")
    final = plan.seeds * 2.5 * plan.full * search.rows
    return table, search.evaluations + final


def judge(name: str, seed: int, out: Path) -> dict[str, object]:
    """One set and seed: the answer, the exhaustive table, and whether the pick is right."""
    from moiety.experiments.recommend import _check

    model, fed = load(name, seed)
    clock = time.process_time()
    how: dict[str, Any] = {"rounds": ROUNDS, "cohort": COHORT, "work": WORK, "seed": seed}
    answer = mo.recommend(model, fed, BUDGET, **how, out=out / name)
    search_seconds, clock = time.process_time() - clock, time.process_time()
    search = _check(model, fed, WORK, COHORT, seed, None, None, None, ROUNDS, RATES)
    splits = search.order(list_splits(model), answer.diagnosis)  # FedSim trains the first two
    every = list_candidates(model, fed, WORK, splits, loss=search.loss)
    plan = make_plan(every, budget=BUDGET, most=longest_run(ROUNDS), rates=len(RATES), rows=search.rows)
    table, evaluations = run_all(search, every, plan, seed, lambda text: print("   ", text, flush=True))
    best = max(table, key=lambda each: table[each]["test"])
    loss = table[best]["test"] - table[answer.best]["test"]
    apart = contrast([table[best]["clients"]], [table[answer.best]["clients"]], higher_is_better=True)
    row = {
        "set": name,
        "seed": seed,
        "pick": answer.best,
        "verdict": answer.verdict,
        "sentence": answer.sentence,
        "pick_test": table[answer.best]["test"],
        "one_model_test": table[ONE]["test"],
        "best": best,
        "best_test": table[best]["test"],
        "best_by_validation": max(table, key=lambda each: table[each]["score"]),
        "loss": loss,
        "interval": [apart.low, apart.high],
        "right": loss <= MARGIN,
        "final": [answer.contrast.low, answer.contrast.mean, answer.contrast.high],
        "rival": answer.rival,
        "budget": BUDGET,
        "evaluations": answer.evaluations,
        "exhaustive": evaluations,
        "ratio": answer.evaluations / evaluations,
        "seconds": [search_seconds, time.process_time() - clock],
        "rounds": plan.full,
        "commit": find_commit(),
        "table": {each: {key: row[key] for key in ("score", "test", "rate")} for each, row in table.items()},
    }
    (out / f"{name}.json").write_text(json.dumps(row, indent=1))
    return row


def write_page(rows: Sequence[dict[str, Any]]) -> str:
    """The page, from complete runs."""
    commits, seeds = sorted({row["commit"] for row in rows}), sorted({row["seed"] for row in rows})
    lines = [
        "# What `recommend` picks, against an exhaustive run",
        "",
        f"`python -m benchmarks.recommend`, seeds {', '.join(map(str, seeds))}, cohorts of {COHORT}, {BUDGET:,}"
        f" gradient evaluations a set; commit {', '.join(commits)}. The first lines of `benchmarks/recommend.py` are"
        " the rule, which was committed before the runs. A pick is right where its accuracy on test rows is within one"
        " point of the best candidate's, both in the exhaustive run. Every figure is in [runs.json](runs.json).",
        "",
        *summarise(f"seed {FIRST}, at which the level was set", [row for row in rows if row["seed"] == FIRST]),
        *summarise("the other seeds", [row for row in rows if row["seed"] != FIRST]),
        "## Each run",
        "",
        "The best on test rows is the largest of some ten noisy numbers, so it flatters the exhaustive run. The column"
        " after it has the best by validation rows, which is what an exhaustive run would pick for a user.",
        "",
        "| set | seed | pick | best on test rows | best by validation rows | one model | difference, points (95%"
        " interval over clients) | right | evaluations, of the budget | search / exhaustive |",
        "|:---|---:|:---|:---|:---|---:|---:|---:|---:|---:|",
    ]
    for row in sorted(rows, key=lambda row: (TEST.index(row["set"]), row["seed"])):
        low, high = (100 * end for end in row["interval"])
        budget = row["evaluations"] / row["budget"]
        apart = f"{100 * row['loss']:.1f} ({low:+.1f} to {high:+.1f})" if row["pick"] != row["best"] else "0.0"
        other = row["best_by_validation"]
        lines.append(
            f"| {row['set']} | {row['seed']} | {row['pick']} {row['pick_test']:.1%} | {row['best']}"
            f" {row['best_test']:.1%} | {other} {row['table'][other]['test']:.1%} | {row['one_model_test']:.1%}"
            f" | {apart} | {'yes' if row['right'] else 'no'} | {budget:.0%} | {row['ratio']:.2f} |"
        )
    lines += ["", f"## What it says, seed {seeds[-1]}", ""]
    lines += [f"- *{row['set']}*: {row['sentence']}" for row in rows if row["seed"] == seeds[-1]]
    return "\n".join(lines) + "\n"


def summarise(name: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """How many runs and how many sets are right, and the mean difference on each set."""
    if not rows:
        return []
    losses = {each: fmean(row["loss"] for row in rows if row["set"] == each) for each in TEST}
    right, within = sum(row["right"] for row in rows), sum(row["evaluations"] <= row["budget"] for row in rows)
    sets = sum(loss <= MARGIN for loss in losses.values())
    shown = ", ".join(f"{each} {100 * loss:.1f}" for each, loss in losses.items())
    return [
        f"**{name[0].upper()}{name[1:]}: right in {right} of {len(rows)} runs** (asked: five of six),"
        f" within budget in {within}. By the mean over seeds {sets} of {len(TEST)} sets are right; points behind the"
        f" best: {shown}.",
        "",
    ]


def read_rows(names: Sequence[str], folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The rows of complete runs."""
    files = [folder / f"{name}.json" for folder in folders for name in names]
    missing = [str(file) for file in files if not file.exists()]
    if missing:
        raise SystemExit(f"{', '.join(missing)} is missing: the page is written from complete runs only.")
    return [json.loads(file.read_text()) for file in files]


def main() -> None:
    """All sets that have no result in the folder yet."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recommend", description=__doc__)
    parser.add_argument("--sets", default=",".join(TEST))
    parser.add_argument("--seed", default=str(FIRST))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path, default=None)
    options = parser.parse_args()
    names, seeds = options.sets.split(","), [int(seed) for seed in options.seed.split(",")]
    folders = [options.out / f"seed-{seed}" for seed in seeds]
    if options.page is not None:
        rows = read_rows(names, folders)
        options.page.mkdir(parents=True, exist_ok=True)
        (options.page / "README.md").write_text(write_page(rows))
        (options.page / "runs.json").write_text("\n".join(map(json.dumps, rows)) + "\n")
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for seed, folder in zip(seeds, folders, strict=True):
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            file = folder / f"{name}.json"
            row = json.loads(file.read_text()) if file.is_file() else judge(name, seed, folder)
            shown = {key: value for key, value in row.items() if key not in ("table", "sentence")}
            print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    main()
