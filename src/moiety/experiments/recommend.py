"""``recommend``: which part should be personal, by which method, and whether it is worth it at all."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median_low
from typing import Any

import tomli_w
from torch import nn

from moiety import task as tasks
from moiety.algorithms import fedavg
from moiety.analysis.candidates import Candidate, Own, describe_candidate, list_candidates, list_splits
from moiety.analysis.contrast import contrast, describe_clients
from moiety.analysis.harm import judge_clients
from moiety.analysis.recommendation import ONE, PERSONAL, Recommendation, decide, word_answer
from moiety.analysis.versus import average
from moiety.data import FederatedData
from moiety.data.sources.provenance import note_files
from moiety.errors import SEED, MoietyError, kind, must, positive, refuse, whole
from moiety.experiments.contest import Contest
from moiety.experiments.halving import RATES, SEEDS, longest_run, make_plan, read_budget, read_steps
from moiety.experiments.records import Row, Watch, watch_nothing
from moiety.experiments.runner import Runner
from moiety.experiments.search import Search, check_data, read_scores
from moiety.experiments.sweep import OnResult, begin_folder, prepare_folder
from moiety.files import lock_folder, write_file
from moiety.local import Optimiser
from moiety.local.sgd import sgd
from moiety.reports.console import in_notebook, on_terminal
from moiety.reports.figures import save
from moiety.reports.words import format_metric, list_names
from moiety.run.build import make_problem
from moiety.run.folder import drop_none
from moiety.run.pipeline import Stage, check_stage_options
from moiety.run.settings import Options, Settings, complete_options, option_tables
from moiety.seals import TABLE, TABLE_FORMAT, write_sealed
from moiety.spec import plain, spec_of, table_of
from moiety.split.base import fingerprint

ROUNDS = 1000
LEVEL = 0.9
"""Of the interval of the final comparison: where clients differ in nothing, one search in twenty lies above 0."""
log = logging.getLogger("moiety.cells")
OWN = "# No file can name your own {}: give `answer.stages` to mo.pipeline in Python, or add what is missing here.\n"


def recommend(
    model: nn.Module,
    data: FederatedData,
    budget: str | int = "10 min",
    *,
    rounds: int = ROUNDS,
    cohort: int | None = None,
    work: Optimiser | None = None,
    rates: Sequence[float] = RATES,
    also: Mapping[str, Own] | None = None,
    steps: Sequence[int] | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    loss: tasks.Loss | None = None,
    metric: tasks.Metrics | None = None,
    engine: str | None = None,
    settings: Settings | None = None,
    progress: bool | None = None,
    watch: Watch = watch_nothing,
    on_result: OnResult | None = None,
) -> Recommendation:
    """Say which part of the model should be personal, by which method, and whether it is worth it.

    Candidates are one model for all, each client alone, finetuning, Ditto, FedPop where clients have few rows, and
    personal parts by FedAlt and FedSim: the output layer, the input layer, norms, adapters, LoRA, each group of layers.
    All but local training continue from one model trained by FedAvg, with as many gradient evaluations and learning
    rates each. Short runs drop most of them, by their mean metric on validation rows (of equal ones, by the worst tenth
    of the clients, then by the share of clients hurt). The best is then trained again
    with new seeds (five, or three in a small budget) and compared with one model for all on test rows, once. Something
    personal is recommended only where that difference is beyond chance: the whole 90% interval lies above 0.

    A search that was stopped goes on when it is called again with the same folder.

    Args:
        model: as in ``fit``.
        data: as in ``fit``, with validation rows and test rows.
        budget: a time, such as ``"10 min"``, or a number of gradient evaluations (of one row's loss). A time is turned
            into a number once, by a short measurement; where the clock is faster, the last runs are left out. The same
            seed, number and ``steps`` give the same answer.
        rounds: the most rounds of FedAvg that a full training may be as long as.
        cohort: how many clients are asked in a round; all by default.
        work: local work, such as ``mo.sgd(0.1, batch_size=16)``; ``rates`` replace its learning rate.
        rates: the learning rates that every candidate is tried with.
        also: candidates of your own by name: a split, which FedAlt trains, or a function of a learning rate that gives
            an algorithm, or an algorithm and its split.
        steps: the ``steps`` of an answer whose time ran short, to get it again: with its number as ``budget``.
        seed: everything random in the search derives from it.
        out: a folder for results, table, figure and the winner's file; nothing is written without one.
        loss: as in ``fit``.
        metric: as in ``fit``; the first decides.
        engine: as in ``fit``; by default ``vectorised`` where it can run the model, else ``sequential``.
        settings: as in ``fit``; those that stages of a pipeline know.
        progress: say a line on stderr for each run that has ended; by default where stderr is a terminal, and in a
            notebook. ``on_result`` takes its place.
        watch: called before each run; gives what is called after every round.
        on_result: called when a run has ended, as in ``sweep``.

    Returns:
        The answer; ``print`` shows sentence and table.
    """
    amount, limits = read_budget(budget), read_steps(steps)
    must(limits is None or isinstance(amount, int), "steps", "left out where the budget is a time", steps)
    search = _check(model, data, work, cohort, seed, loss, metric, settings, rounds, rates)
    search.engine = engine or search.engine
    kind("progress", progress, (bool, type(None)), "True, False or None")
    visible = on_terminal(stderr=True) or in_notebook() if progress is None else progress
    on_result = on_result or (_show_result if visible else None)
    splits = list_splits(model)
    every = list_candidates(model, data, search.work, splits, loss=search.loss, own=also)
    for candidate in every:
        if candidate.name in (also or ()):
            _try_own(search, candidate, rates[0])
    folder = prepare_folder(out, "recommend")
    question = {
        "budget": amount if isinstance(amount, int) else budget,
        "rounds": rounds,
        "cohort": cohort,
        "work": search.work.spec,
        "rates": rates,
        "also": {each.name: describe_candidate(each) for each in every if each.name in (also or ())},
        "steps": limits,
        "seed": seed,
        "options": option_tables(
            Options(loss=search.loss, metric=metric, engine=search.engine, settings=search.settings)
        ),
        "model": fingerprint(model),
        "data": data.fingerprint() if folder else "",
    }
    question = json.loads(json.dumps(question, default=_describe_value))
    with lock_folder(folder), note_files() as files:
        id = begin_folder(folder, "recommend", [question, SEEDS], question)
        search.runner = Runner(folder, files=files, watch=watch, id=id)
        number = search.measure(amount, _pick_example(every))["budget"]
        note = "" if isinstance(amount, int) else f" ({budget})"
        full = longest_run(rounds)
        plan = make_plan(every, budget=number, most=full, rates=len(rates), rows=search.rows, note=note)
        limit = None if isinstance(amount, int) else amount
        contest = Contest(search, plan, list(rates), on_result, limit, limits)
        contest.narrow(splits, also, number)
        contest.compare()
        notes = contest.list_notes(full)
        answer = _conclude(contest, number, notes, folder)
        if folder is not None:
            _write(answer, folder, search.runner.id)
    return answer


def _describe_value(value: object) -> object:
    """A value that JSON does not know: its table, or its name."""
    table = plain(value)
    return table if table is not value else getattr(value, "__qualname__", type(value).__name__)


def _show_result(name: str, row: Row, count: int, total: int) -> None:
    score = (
        "" if row["score"] is None else f": {row['part']} {row['metric']} {format_metric(row['score'], row['metric'])}"
    )
    print(f"{count:>{len(str(total))}}/{total}  {name}{score}", file=sys.stderr, flush=True)


def _check(
    model: nn.Module,
    data: FederatedData,
    work: Optimiser | None,
    cohort: int | None,
    seed: int,
    loss: tasks.Loss | None,
    metric: tasks.Metrics | None,
    settings: Settings | None,
    rounds: int,
    rates: Sequence[float],
) -> Search:
    """Refuse what cannot be searched; what the search works with."""
    kind("model", model, nn.Module, "an nn.Module")
    kind("data", data, FederatedData, "FederatedData", "See moiety.data.from_arrays.")
    work = sgd(0.1) if work is None else work
    kind("work", work, Optimiser, "local work such as moiety.sgd(0.1, batch_size=16)")
    whole("seed", seed, 0, SEED - SEEDS)
    whole("rounds", rounds, 2)
    kind("rates", rates, (list, tuple), "a list of learning rates")
    must(len(rates) > 0 and len(set(rates)) == len(rates), "rates", "at least one, and different ones", list(rates))
    for rate in rates:
        positive("rates", rate)
    if cohort is not None:
        whole("cohort", cohort, 1, len(data))
    own = Settings() if settings is None else settings
    check_stage_options(Options(loss=loss, metric=metric, settings=own))
    count = check_data(data, cohort)
    algorithm = fedavg(shared=work)
    options = complete_options(Options(1, count, seed, loss=loss, metric=metric, settings=own), model, data, algorithm)
    deciding = make_problem(model, data, algorithm, None, options).task.deciding
    common = (options.loss, metric, own, deciding.name, deciding.higher_is_better)
    return Search(model, data, work, Runner(None), count, seed, *common)


def _try_own(search: Search, candidate: Candidate, rate: float) -> None:
    """Refuse a candidate of the user's that does not fit the model or the data, before anything is trained."""
    algorithm, cohort = candidate.build(rate, rate), search.cohort
    options = Options(1, cohort, search.seed, loss=search.loss, metric=search.metric, settings=search.settings)
    try:
        complete = complete_options(options, search.model, search.data, algorithm)
        make_problem(search.model, search.data, algorithm, candidate.split, complete)
    except MoietyError as error:
        refuse("also", "candidates that can be trained here", f"{candidate.name}: {error}")


def _pick_example(candidates: Sequence[Candidate]) -> Candidate:
    """The candidate whose time is measured: a split by FedAlt, where there is one."""
    return next((each for each in candidates if each.name.endswith("FedAlt")), candidates[1])


def _conclude(contest: Contest, budget: int, notes: Sequence[str], folder: Path | None) -> Recommendation:
    """The answer, from the rows of all runs."""
    search, rival = contest.search, contest.rival
    higher, name = search.higher_is_better, search.metric_name
    every = zip(contest.finals[rival.name], contest.finals[ONE], strict=True)
    pairs = [pair for pair in every if all("clients" in row for row in pair)]
    must(len(pairs) > 0, "rates", "ones that do not diverge", contest.rates, "Try smaller ones.")
    ours, shared = ([pair[k] for pair in pairs] for k in (0, 1))
    tables = [[row["clients"] for row in rows] for rows in (ours, shared)]
    result = contrast(*tables, higher_is_better=higher, level=LEVEL)
    faults = _list_faults(contest, tables)
    verdict = decide(result, ahead=contest.is_ahead(rival) and not faults)
    judgements = [
        judge_clients(read_scores(a), read_scores(b), higher_is_better=higher)
        for a, b in zip(ours, shared, strict=True)
    ]
    beyond = median_low([sum(row["hurt_beyond_noise"] for row in rows) for rows in judgements])
    means = {
        name: fmean(average([row for row in table if str(row["client"]) in result.gains]) for table in some)
        for name, some in zip((rival.name, ONE), tables, strict=True)
    }
    sentence = word_answer(
        verdict, rival.title, ours=means[rival.name], shared=means[ONE], result=result, metric=name, beyond=beyond
    )
    winner = rival if verdict == PERSONAL else contest.candidates[0]
    stages = contest.make_stages(winner)
    return Recommendation(
        verdict=verdict,
        best=winner.name,
        rival=rival.name,
        sentence=sentence,
        contrast=result,
        test=means,
        rows=_make_rows(contest),
        stages=stages,
        toml=_write_toml(search, stages),
        metric=name,
        budget=budget,
        evaluations=round(search.evaluations),
        steps=tuple(contest.steps),
        seconds=search.seconds,
        notes=[*faults, *notes],
        diagnosis=contest.diagnosis["metric"],
        advice=contest.diagnosis["advice"],
        folder=folder,
    )


def _list_faults(contest: Contest, tables: Sequence[Sequence[Sequence[Row]]]) -> list[str]:
    """Why the rival cannot be recommended, however good it is elsewhere: runs that diverged, scores not finite."""
    name, finals = contest.rival.name, contest.finals[contest.rival.name]
    faults, failed = [], sum("clients" not in row for row in finals)
    if failed:
        faults.append(f"{name} is not recommended: it diverged with {failed} of {len(finals)} seeds in the end.")
    lost = sorted(
        {
            str(row["client"])
            for mine, theirs in zip(*tables, strict=True)
            for row, other in zip(mine, theirs, strict=True)
            if math.isfinite(other["metric"]) and not math.isfinite(row["metric"])
        }
    )
    if lost:
        faults.append(f"{name} is not recommended: clients without a finite score by it: {list_names(lost, 3)}.")
    return faults


def _make_rows(contest: Contest) -> list[Row]:
    """A row for each candidate: those that went farthest first, and of these the best."""
    search, rows = contest.search, []
    for candidate in contest.candidates:
        best, rung = contest.best[candidate.name], contest.last_rung[candidate.name]
        counts = candidate.split.counts() if candidate.split else {"personal": 0}
        total = sum(p.numel() for p in search.model.parameters())
        row: Row = {
            "name": candidate.name,
            "reference": candidate.name == ONE,
            "personal": total if candidate.name == "Ditto" else counts["personal"],
            "rung": rung,
            "stage": "final comparison" if candidate.name in contest.finals else f"rung {rung + 1}",
            **{key: best.get(key) for key in ("rate", "rounds", "best_round", "bytes", "memory", "score", "failed")},
        }
        if best["score"] is not None:
            reference = contest.references[rung]["clients"]
            options: dict[str, Any] = {"higher_is_better": search.higher_is_better, "seed": search.seed}
            row |= describe_clients(best["clients"], reference, **options)
        rows.append(row)
    sign = -1 if search.higher_is_better else 1
    return sorted(rows, key=lambda row: (-row["rung"], row["score"] is None, sign * (row["score"] or 0.0)))


def _write_toml(search: Search, stages: Sequence[Stage]) -> str:
    """The file that trains the winner; what no file can name is left to the user."""
    tables: dict[str, Any] = {"data": table_of(search.data, "data"), "model": table_of(search.model, "model")}
    own = [name for name, table in tables.items() if "own" in table]
    tables = {name: table for name, table in tables.items() if name not in own}
    options = Options(seed=search.seed, loss=search.loss, metric=search.metric, settings=search.settings)
    tables |= option_tables(options)
    specs = []
    for stage in stages:
        table: dict[str, Any] = {"rounds": stage.rounds, "cohort": stage.cohort}
        for name in ("algorithm", "split"):
            value = getattr(stage, name)
            if value is not None and spec_of(value) is None:
                own.append(name)
            elif value is not None:
                table[name] = spec_of(value)
        specs.append(table)
    tables["stage"] = specs
    head = OWN.format(" and the ".join(own)) if own else ""
    return head + tomli_w.dumps(drop_none(tables))


def _write(answer: Recommendation, folder: Path, id: str) -> None:
    """The table, the figure and the file of the winner."""
    content = {
        name: getattr(answer, name) for name in ("verdict", "best", "rival", "sentence", "test", "rows", "notes")
    }
    interval = {name: getattr(answer.contrast, name) for name in ("mean", "low", "high", "seeds")}
    content |= {name: getattr(answer, name) for name in ("budget", "evaluations", "steps")} | {"contrast": interval}
    write_sealed(folder / TABLE, content, id, format=TABLE_FORMAT, private=False)
    write_file(folder / "table.md", (answer.page + "\n").encode(), private=False)
    write_file(folder / "winner.toml", answer.toml.encode(), private=False)
    try:
        save(answer.plot(), folder / "candidates.png")
    except MoietyError:  # matplotlib is an extra
        log.info("No figure was drawn: figures need matplotlib, as in pip install 'moiety[report]'.")
