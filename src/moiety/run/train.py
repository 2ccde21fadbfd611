"""The rounds of a run: evaluations, checkpoints and records on the way, and results at the end."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from moiety.engines.base import Engine
from moiety.engines.processes import Processes
from moiety.engines.ray import Ray
from moiety.evaluation import Row, summarise, summarise_sets
from moiety.evaluation.safeguard import ALPHA
from moiety.loop.divergence import DivergenceError, explain_losses
from moiety.loop.round import Loop
from moiety.run import folder as files
from moiety.run.best import is_good, restore_round
from moiety.run.checkpoint import find_checkpoint, round_of, save_checkpoint
from moiety.run.draws import add_chain_columns
from moiety.run.privacy import report_privacy, write_counted
from moiety.run.protocol import Callbacks
from moiety.run.result import Run, one_thread
from moiety.run.safeguard import MIXTURES
from moiety.run.safeguard_folder import read_safeguard
from moiety.run.unseen import score_unseen
from moiety.types import RoundRecord

log = logging.getLogger("moiety")


def train(run: Run, callbacks: Callbacks) -> Run:
    """Train the rounds that are left, on one thread per process, and complete the run."""
    loop, options, folder = run._loop, run.config["run"], run.folder
    identity = files.read_identity(folder) if folder else {}
    seconds = run.history[-1]["seconds"] if run.history else 0.0
    train_loss = math.nan
    loop.on_engine = lambda engine: _write_engine(run, engine)
    if folder:
        loop.on_noise = lambda state: write_counted(folder, state, loop.progress.run)
    with one_thread(), _close_at_end(run, identity):
        stop = callbacks.tell("on_start", run)
        while loop.progress.round < loop.rounds and not stop:
            start = time.perf_counter()
            record = loop.run_round()
            seconds += time.perf_counter() - start
            train_loss = record.train_loss
            _log_dropped_clients(record)
            if _is_due(loop, options["evaluate_every"]):
                row = _add_row(run, record.train_loss, seconds)
                record = replace(record, evaluation=row)
                explanation = explain_losses(run.history) if loop.has_large_loss(run.history) else None
                if explanation:
                    loop.report_divergence("losses", explanation)
            last = loop.progress.round == loop.rounds
            if folder and _is_due(loop, options["checkpoint_every"]) and (is_good(run) or last):
                save_checkpoint(folder, loop.progress, identity)
            if record.evaluation is not None:
                stop |= callbacks.tell("on_evaluate", run, record.evaluation)
            stop |= callbacks.tell("on_round", run, record)
        if stop:
            _stop(run, train_loss, seconds, identity, callbacks)
        if run._ends_with not in (None, loop.progress.round):
            log.info("ending with the models of round %d", run._ends_with)
            restore_round(run, run._ends_with)
            run.clients = []
        if not run.clients:  # resumed after its end, or back at another round
            _evaluate(run, math.nan, seconds)
        run.unseen = score_unseen(loop, run._loss, options["evaluate_on"])
        add_chain_columns(loop, run.clients)
    run.ledger = {**loop.progress.ledger.as_dict(), **report_privacy(loop)}
    if folder:
        run._write_results()
    _let_clients_choose(run)
    callbacks.tell("on_end", run)
    return run


def _let_clients_choose(run: Run) -> None:
    """Let clients choose their models where the run asks for it, or chose before it was resumed."""
    earlier = read_safeguard(run.folder, run._loop.progress.run, run._loss) if run.folder else None
    if earlier is not None:
        run._let_choose(earlier.mix, earlier.one_model, earlier.alpha)
    elif run.config["run"].get("safeguard"):
        run._let_choose(MIXTURES[0], None, ALPHA)


def _add_row(run: Run, train_loss: float, seconds: float) -> Row:
    """Evaluate, and add a row to the history."""
    row = _evaluate(run, train_loss, seconds)
    if run.folder:
        files.append_history(run.folder, row, run._loop.progress.run)
    run.history.append(row)
    return row


def _stop(run: Run, train_loss: float, seconds: float, identity: dict[str, Any], callbacks: Callbacks) -> None:
    """End a run that a callback stopped as any run ends: with an evaluation and a checkpoint."""
    loop, now = run._loop, run._loop.progress
    log.info("stopped after round %d of %d: %s", now.round, loop.rounds, run.stopped)
    if now.round and not (run.history and run.history[-1]["round"] == now.round):
        callbacks.tell("on_evaluate", run, _add_row(run, train_loss, seconds))
    if run.folder and now.round and is_good(run):
        save_checkpoint(run.folder, now, identity)


def _log_dropped_clients(record: RoundRecord) -> None:
    """Log the clients whose updates were dropped, and why."""
    if record.dropped:
        what = "; ".join(f"{name} ({why})" for name, why in zip(record.dropped, record.reasons, strict=True))
        log.info("round %d: %d of %d updates dropped: %s", record.round, len(record.dropped), len(record.cohort), what)


@contextlib.contextmanager
def _close_at_end(run: Run, identity: dict[str, Any]) -> Iterator[None]:
    """Close the engine when the block ends, however it ends.

    An interrupt leaves a checkpoint, unless the round is half done or not evaluated. A run that stops because it
    diverged leaves one of its last good round.
    """
    loop, now = run._loop, run._loop.progress
    try:
        yield
    except KeyboardInterrupt:
        evaluated = bool(run.history) and run.history[-1]["round"] == now.round
        complete = now.consistent and (evaluated or not _is_due(loop, run.config["run"]["evaluate_every"]))
        if run.folder and now.round and complete and is_good(run):
            save_checkpoint(run.folder, now, identity)
        raise
    except DivergenceError as error:
        if run.folder is None:
            raise
        if now.round and not loop.has_large_loss(run.history):
            save_checkpoint(run.folder, now, identity)
        newest = find_checkpoint(run.folder)
        checkpoint = f"a checkpoint of round {round_of(newest)}" if newest else "no checkpoint"
        checkpoint += f" with the models of round {now.round - now.barren}" if newest and now.barren else ""
        raise DivergenceError(f"{error} There is {checkpoint} in {run.folder}.") from None
    finally:
        loop.close()


def _is_due(loop: Loop, every: int) -> bool:
    """Whether the round that has just ended is a multiple of ``every``, or the last."""
    round = loop.progress.round
    return round == loop.rounds or round % every == 0


def _write_engine(run: Run, engine: Engine) -> None:
    """Write the engine that is to serve the run, and why it was chosen, into its configuration.

    The number of its processes is written too: which clients are vectorised together depends on it.
    """
    loop, options = run._loop, run.config["run"]
    before = dict(options)
    if options["engine"] != loop.engine_name or "engine_reason" not in options:
        options.update(engine=loop.engine_name, engine_reason=loop.reason)
        log.info("engine %s: %s", loop.engine_name, loop.reason)
    if isinstance(engine, Processes) or (isinstance(engine, Ray) and engine.name.endswith("vectorised")):
        options["workers"] = engine.count
    if run.folder and options != before:
        files.write_config(run.folder, run.config, loop.progress.run)


def _evaluate(run: Run, train_loss: float, seconds: float) -> Row:
    """Evaluate the clients: renew the run's row per client, and return the row of the history that sums them up."""
    loop, now = run._loop, run._loop.progress
    metric, part = loop.problem.task.deciding, run.config["run"]["evaluate_on"]
    run.clients, pooled = run._score_clients(part)
    row: Row = {"round": now.round, "part": part, "train_loss": train_loss}
    row |= summarise(run.clients, higher_is_better=metric.higher_is_better)
    row |= summarise_sets(run.clients, pooled)
    row |= {"metric_name": metric.name, "dropped": [name for name, _ in now.dropped]}
    if now.dropped:
        row["dropped_reasons"] = [why for _, why in now.dropped]
    row |= {**now.ledger.as_dict(), **loop.history_fields(), **report_privacy(loop)}
    row["seconds"] = seconds
    now.dropped.clear()
    # JSON has no infinities: a number that is not finite is null.
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
