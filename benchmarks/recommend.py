"""What ``mo.recommend`` picks against an exhaustive run, on real data.

    python -m benchmarks.recommend --out DIR                                  # resumable: a file for each set
    python -m benchmarks.recommend --out DIR --page docs/results/recommend    # from a complete run

The rule, fixed before the sets of the test were run. Both get the same candidates, rates, lengths and seed. The
exhaustive run trains every candidate with every rate at full length, takes each one's best rate by validation rows, and
scores test rows of that run. The pick is right where its mean on test rows, in the exhaustive run, is within one point
of the best candidate's, whichever that is. The cost of both is counted in gradient evaluations, the exhaustive one with
the same final comparison. The interval of the difference between the two is over clients, of that one run. The search
was developed on the sets of ``DEVELOPMENT`` and on planted problems; the six sets of the test are others.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
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
from moiety.experiments.search import Search, Trial, failures
from moiety_recipes import fedalt_settings
from moiety_recipes.fedalt_settings import perceptron

BUDGET, COHORT, ROUNDS, SEED = 3_000_000, 10, 1000, 0
WORK = mo.sgd(0.1, batch_size=16)
DEVELOPMENT = ("digits", "pendigits", "letter", "satimage", "usps")
"""Other sets, for development."""
TEST = ("audiomnist", "uci_har", "isolet", "roles", "clothes_0.1", "objects_1")
MARGIN = 0.01


def load(name: str) -> tuple[nn.Module, mo.FederatedData]:
    """A set and its small perceptron."""
    if name in DEVELOPMENT:
        how = mo.data.dirichlet(0.3)
        fed = scale(mo.data.load(name, clients=40, per_client=45, partition=how, validation=0.25, seed=SEED))
    elif name == "isolet":
        fed = mo.data.load("isolet", test=0.3, validation=0.2, seed=SEED)
    else:
        plans = (fedalt_settings.plan_people, fedalt_settings.plan_labels, fedalt_settings.plan_roles)
        setting = next(s for plan in plans for s in plan("night").settings if s.name == name)
        return setting.model(seed=SEED), setting.data(SEED)
    return perceptron(fed.columns["x"].shape[1], int(fed.classes or 0), seed=SEED), fed


def run_all(
    search: Search, candidates: Sequence[Candidate], plan: Plan, tell: Callable[[str], None]
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
            trial = Trial(plan.full, rate, start, rates[candidate.local], SEED)
            search._count(candidate, trial)
            with failures() as row:
                run, _ = search._train(candidate, trial)
                tested = run.evaluate("test")
                row |= {"score": average(run.clients), "test": average(tested), "clients": tested}
            rows.append({"test": -1.0, "clients": [], **row, "score": row["score"] or -1.0, "rate": rate})
        table[candidate.name] = max(rows, key=lambda row: row["score"])
        tell(f"{candidate.name}: {table[candidate.name]['test']:.4f}")
    final = plan.seeds * 2.5 * plan.full * search.rows
    return table, search.evaluations + final


def judge(name: str, out: Path) -> dict[str, object]:
    """One set: the answer, the exhaustive table, and whether the pick is right."""
    from moiety.experiments.recommend import _check

    model, fed = load(name)
    clock = time.process_time()
    how: dict[str, Any] = {"rounds": ROUNDS, "cohort": COHORT, "work": WORK, "seed": SEED}
    answer = mo.recommend(model, fed, BUDGET, **how, out=out / name)
    search_seconds, clock = time.process_time() - clock, time.process_time()
    search = _check(model, fed, WORK, COHORT, SEED, None, None, None, ROUNDS, RATES)
    splits = search.order(list_splits(model), answer.diagnosis)  # FedSim trains the first two
    every = list_candidates(model, fed, WORK, splits, loss=search.loss)
    plan = make_plan(every, budget=BUDGET, most=longest_run(ROUNDS), rates=len(RATES), rows=search.rows)
    table, evaluations = run_all(search, every, plan, lambda text: print("   ", text, flush=True))
    best = max(table, key=lambda each: table[each]["test"])
    loss = table[best]["test"] - table[answer.best]["test"]
    apart = contrast([table[best]["clients"]], [table[answer.best]["clients"]], higher_is_better=True)
    row = {
        "set": name,
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
    right, commits = sum(row["right"] for row in rows), sorted({row["commit"] for row in rows})
    kept = sum(row["evaluations"] <= row["budget"] for row in rows)
    lines = [
        "# What `recommend` picks, against an exhaustive run",
        "",
        f"`python -m benchmarks.recommend`, seed {SEED}, cohorts of {COHORT}, {BUDGET:,} gradient evaluations a set;"
        f" commit {', '.join(commits)}. The first lines of `benchmarks/recommend.py` are the rule, which was committed"
        " before the run. A pick is right where its accuracy on test rows is within one point of the best candidate's,"
        " both in the exhaustive run. Every figure is in [runs.json](runs.json).",
        "",
        f"**Right: {right} of {len(rows)}** (asked: five of six). Within budget: {kept} of {len(rows)}.",
        "",
        "| set | pick | its test accuracy | best on test rows | difference, points (95% interval over clients) | right"
        " | evaluations, of the budget | search / exhaustive |",
        "|:---|:---|---:|:---|---:|:---|---:|---:|",
    ]
    for row in rows:
        low, high = (100 * end for end in row["interval"])
        apart = f"{100 * row['loss']:.1f} ({low:+.1f} to {high:+.1f})" if row["pick"] != row["best"] else "0.0"
        lines.append(
            f"| {row['set']} | {row['pick']} | {row['pick_test']:.1%} | {row['best']} {row['best_test']:.1%} | {apart}"
            f" | {'yes' if row['right'] else 'no'} | {row['evaluations'] / row['budget']:.0%} | {row['ratio']:.2f} |"
        )
    lines += [
        "",
        "The best on test rows is the largest of some ten noisy numbers, so it flatters the exhaustive run: an"
        " exhaustive run that chooses by validation rows, as any user must, would pick these.",
        "",
        "| set | best by validation rows | its test accuracy | the pick's | one model's | what `recommend` says |",
        "|:---|:---|---:|---:|---:|:---|",
    ]
    for row in rows:
        other = row["best_by_validation"]
        lines.append(
            f"| {row['set']} | {other} | {row['table'][other]['test']:.1%} | {row['pick_test']:.1%}"
            f" | {row['one_model_test']:.1%} | {row['sentence']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """All sets that have no result in the folder yet."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recommend", description=__doc__)
    parser.add_argument("--sets", default=",".join(TEST))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path, default=None)
    options = parser.parse_args()
    names = options.sets.split(",")
    if options.page is not None:
        missing = [name for name in names if not (options.out / f"{name}.json").exists()]
        if missing:
            raise SystemExit(f"{', '.join(missing)} is missing: the page is written from complete runs only.")
        rows = [json.loads((options.out / f"{name}.json").read_text()) for name in names]
        options.page.mkdir(parents=True, exist_ok=True)
        (options.page / "README.md").write_text(write_page(rows))
        (options.page / "runs.json").write_text("\n".join(map(json.dumps, rows)) + "\n")
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in names:
        file = options.out / f"{name}.json"
        row = json.loads(file.read_text()) if file.is_file() else judge(name, options.out)
        shown = {key: value for key, value in row.items() if key not in ("table", "sentence")}
        print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    main()
