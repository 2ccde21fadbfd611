"""The rounds of a run: evaluations, checkpoints and records on the way, and results at the end."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from moiety.evaluation import Row, summarise
from moiety.loop.round import Loop
from moiety.run import folder as files
from moiety.run.checkpoint import run_identity, save_checkpoint
from moiety.run.result import Run, one_thread
from moiety.types import RoundRecord

OnRound = Callable[[RoundRecord, int], None]
"""Called after every round with its record and the number of rounds asked for."""


def train(run: Run, on_round: OnRound | None) -> Run:
    """Train the rounds that are left, on one thread per process, and complete the run."""
    loop, options, folder = run._loop, run.config["run"], run.folder
    identity = run_identity(loop.problem, loop.algorithm, loop.clock) if folder else {}
    seconds = run.history[-1]["seconds"] if run.history else 0.0
    with one_thread(), _close_at_end(run, identity):
        while loop.progress.round < loop.rounds:
            began = time.perf_counter()
            record = loop.run_round()
            seconds += time.perf_counter() - began
            _write_engine(run)
            if _is_due(loop, options["evaluate_every"]):
                row = _evaluate(run, record.train_loss, seconds)
                if folder:
                    files.append_history(folder, row, loop.progress.run)
                run.history.append(row)
                record = replace(record, evaluation=row)
            if folder and _is_due(loop, options["checkpoint_every"]):
                save_checkpoint(folder, loop.progress, identity)
            if on_round:
                on_round(record, loop.rounds)
        if not run.clients:  # resumed after its end: only the rows per client are missing
            _evaluate(run, math.nan, seconds)
    run.ledger = loop.progress.ledger.as_dict()
    if folder:
        files.write_results(folder, run.clients, run.ledger, loop.progress.run)
    return run


@contextlib.contextmanager
def _close_at_end(run: Run, identity: dict[str, Any]) -> Iterator[None]:
    """Close the engine in the end. An interrupt leaves a checkpoint, unless the round is half done or not evaluated."""
    loop, now = run._loop, run._loop.progress
    try:
        yield
    except KeyboardInterrupt:
        evaluated = bool(run.history) and run.history[-1]["round"] == now.round
        complete = now.consistent and (evaluated or not _is_due(loop, run.config["run"]["evaluate_every"]))
        if run.folder and now.round and complete:
            save_checkpoint(run.folder, now, identity)
        raise
    finally:
        loop.close()


def _is_due(loop: Loop, every: int) -> bool:
    """Whether the round that has just ended is a multiple of ``every``, or the last."""
    done = loop.progress.round
    return done == loop.rounds or done % every == 0


def _write_engine(run: Run) -> None:
    """Write the engine that serves the run, and why it was chosen, into its configuration."""
    loop, options = run._loop, run.config["run"]
    if options["engine"] != loop.engine_name or "engine_reason" not in options:
        options.update(engine=loop.engine_name, engine_reason=loop.reason)
        if run.folder:
            files.write_config(run.folder, run.config, loop.progress.run)


def _evaluate(run: Run, train_loss: float, seconds: float) -> Row:
    """Make the run's row per client; the row of the history that sums them up."""
    loop, now = run._loop, run._loop.progress
    metric, part = loop.problem.task.metric, run.config["run"]["evaluate_on"]
    run.clients = run._score_clients(part)
    row: Row = {"round": now.round, "part": part, "train_loss": train_loss}
    row |= summarise(run.clients, higher_is_better=metric.higher_is_better)
    row |= {"metric_name": metric.name, "dropped": list(now.dropped), **now.ledger.as_dict(), **loop.history_fields()}
    row["seconds"] = seconds
    now.dropped.clear()
    # JSON has no infinities: a number that is not finite is null.
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
