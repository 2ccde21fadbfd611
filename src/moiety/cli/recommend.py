"""``moiety recommend``: a line for each run, then the answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from moiety.cli.output import say, show_page
from moiety.cli.progress import show_progress
from moiety.cli.sweep import open_file, show_result
from moiety.errors import must
from moiety.experiments.config import check_tables, make_parts
from moiety.experiments.recommend import ROUNDS, recommend
from moiety.local import Optimiser
from moiety.local.work import LOCAL_WORK
from moiety.reports.console import on_terminal
from moiety.spec import build


def read_work(algorithm: object) -> Optimiser | None:
    """The local work that the algorithm of a file names: its batches and lengths are those of all candidates."""
    tables = [algorithm.get(part) for part in ("shared", "personal")] if isinstance(algorithm, dict) else []
    works = [build("algorithm", LOCAL_WORK, table) for table in tables if isinstance(table, dict)]
    return next((work for work in works if isinstance(work, Optimiser)), None)


ANY_ALGORITHM = {"name": "fedavg", "shared": 0.1}
"""Stands for the algorithm of a file that names none."""


def run_recommend(
    target: str, budget: str, steps: str | None, seed: int | None, sets: Sequence[str], out: str | None, quiet: bool
) -> None:
    """Search what has not been searched yet, and print the answer."""
    tables, folder = open_file(target, sets, out, "recommend")
    hint = "Leave them out: recommend makes stages of its own."
    must("stage" not in tables, "file", "one of a single run", "one with tables [[stage]]", hint)
    tables.setdefault("algorithm", ANY_ALGORITHM)
    with_split = "split" in tables
    tables.setdefault("split", "nothing")
    run = tables.setdefault("run", {})
    if isinstance(run, dict):
        run.setdefault("rounds", ROUNDS)
    config = check_tables(tables)
    parts, options = make_parts(config), config.options
    settings = dataclasses.replace(
        options.settings, evaluate_on=None, evaluate_every=None, checkpoint_every=None, workers=None
    )
    with show_progress(quiet or not on_terminal()) as watch:  # a line for each run is enough elsewhere
        answer = recommend(
            parts.model,
            parts.data,
            int(budget) if budget.isdecimal() else budget,
            steps=None if steps is None else [int(n) if n.isdecimal() else n for n in steps.split(",")],  # type: ignore[misc]
            rounds=options.rounds or ROUNDS,
            cohort=options.cohort,
            work=read_work(config.tables["algorithm"]),
            also={"split of the file": parts.split} if with_split and parts.split is not None else None,
            seed=options.seed if seed is None else seed,
            out=folder,
            loss=options.loss,
            metric=options.metric,
            engine=None if options.engine == "auto" else options.engine,
            settings=settings,
            progress=False,
            watch=lambda label, place: watch(label),
            on_result=None if quiet else show_result,
        )
    if quiet:
        say(answer.sentence)
    else:
        say()
        show_page(answer.page)
        say()
    say(f"train it with: moiety run {folder / 'winner.toml'}")
    say(f"results in {folder}")
