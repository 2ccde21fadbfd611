"""The rounds of a run on their way: evaluations, checkpoints, records, and what is left in the end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from moiety.clients.clock import Clock, traces
from moiety.engines.problem import Problem
from moiety.evaluation import Row, summarise
from moiety.loop.evaluate import evaluate, evaluated_clients
from moiety.loop.round import Loop
from moiety.run import folder as files
from moiety.run.checkpoint import save_checkpoint
from moiety.run.result import Run
from moiety.spec import Spec
from moiety.types import Algorithm, RoundRecord, Task

OnRound = Callable[[RoundRecord, int], None]
"""Called after every round with its record and the number of rounds asked for."""


def identity(problem: Problem, algorithm: Algorithm, clock: Clock | None = None) -> dict[str, Any]:
    """What must be the same for a checkpoint to be continued."""
    shapes = {n: list(p.shape) for n, p in problem.task.init.items()}
    # A file of times may have changed though its name has not.
    timed = {} if clock is None else {"clock": clock.spec, "traces": traces(clock)}
    return {
        **timed,
        "algorithm": algorithm.spec or {"name": algorithm.name},
        "personal": list(problem.split.personal),
        "model": shapes,
        "seed": problem.seed,
        "data": problem.data.fingerprint(),
    }


def train(
    loop: Loop,
    config: dict[str, Any],
    folder: Path | None,
    history: list[Row],
    model: nn.Module | Task,
    on_round: OnRound | None,
) -> Run:
    """The rounds that are still to do, on one thread per process, and what is left of them in the end."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        clients = _rounds(loop, config, folder, history, on_round)
    except KeyboardInterrupt:
        if (
            folder
            and loop.progress.consistent
            and loop.progress.round
            and not _row_missing(loop, config["run"], history)
        ):
            save_checkpoint(folder, loop.progress, identity(loop.problem, loop.algorithm, loop.clock))
        raise
    finally:
        loop.close()
        torch.set_num_threads(threads)
    ledger = loop.progress.ledger.as_dict()
    if folder:
        files.write_results(folder, clients, ledger)
    module = loop.problem.split.module_for(model) if isinstance(model, nn.Module) else None
    return Run(history, clients, ledger, config, folder, loop, module)


def _rounds(
    loop: Loop, config: dict[str, Any], folder: Path | None, history: list[Row], on_round: OnRound | None
) -> list[Row]:
    """Train to the end, with evaluations, checkpoints and records on the way; the last rows per client."""
    options = config["run"]
    known = identity(loop.problem, loop.algorithm, loop.clock)
    seconds = history[-1]["seconds"] if history else 0.0
    clients: list[Row] = []
    while loop.progress.round < loop.rounds:
        began = time.perf_counter()
        record = loop.run_round()
        seconds += time.perf_counter() - began
        last = record.round == loop.rounds
        if options["engine"] != loop.engine_name or "engine_reason" not in options:
            options.update(engine=loop.engine_name, engine_reason=loop.reason)
            if folder:
                files.write_config(folder, config)
        if last or record.round % options["evaluate_every"] == 0:
            clients, row = _evaluation(loop, record, options, seconds)
            if folder:
                files.append_history(folder, row)
            history.append(row)
            record = replace(record, evaluation=row)
        if folder and (last or record.round % options["checkpoint_every"] == 0):
            save_checkpoint(folder, loop.progress, known)
        if on_round:
            on_round(record, loop.rounds)
    # Resumed after its end: only the rows per client are to be made again.
    return clients or _evaluation(loop, None, options, seconds)[0]


def _row_missing(loop: Loop, options: Spec, history: list[Row]) -> bool:
    """Whether the last round is to be evaluated and has not been: a checkpoint of it could not be continued."""
    done = loop.progress.round
    due = done == loop.rounds or done % options["evaluate_every"] == 0
    return due and not (history and history[-1]["round"] == done)


def _evaluation(loop: Loop, record: RoundRecord | None, options: Spec, seconds: float) -> tuple[list[Row], Row]:
    """A row per client, and the row of the history that sums them up."""
    problem, now = loop.problem, loop.progress
    engine = loop.get_engine()
    part = options["evaluate_on"]
    some = evaluated_clients(problem.data, options, problem.seed)
    clients = evaluate(problem, loop.algorithm, engine, now.server, now.store, part=part, round=now.round, clients=some)
    loss = record.train_loss if record else float("nan")
    row: Row = {"round": now.round, "part": part, "train_loss": loss}
    row |= summarise(clients, higher_is_better=problem.task.metric.higher_is_better)
    row |= {"metric_name": problem.task.metric.name, "dropped": list(now.dropped), **now.ledger.as_dict()}
    row |= loop.history_fields()
    row["seconds"] = seconds
    now.dropped.clear()
    # JSON has no infinities: a number that is none is null.
    return clients, {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
