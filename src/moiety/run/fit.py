"""``fit``: from a model, data and an algorithm to a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from moiety import task as tasks
from moiety.clients.clock import Clock
from moiety.data import FederatedData
from moiety.engines.auto import check_engine
from moiety.engines.problem import Problem
from moiety.errors import kind, whole
from moiety.files import lock_folder
from moiety.loop.round import Progress, begin_progress
from moiety.loop.uploads import check_upload_options
from moiety.loop.virtual_time import check_clock_options, choose_loop
from moiety.run import folder as files
from moiety.run.build import default_loss, problem_for
from moiety.run.checkpoint import begin_with
from moiety.run.checks import check_data, check_kinds, check_numbers, check_part
from moiety.run.result import Run
from moiety.run.start import Ended, ended, own_states, warm
from moiety.run.train import OnRound, identity, train
from moiety.server.attacks import Attack
from moiety.server.robust import Aggregator
from moiety.spec import spec_of
from moiety.split import Split
from moiety.types import Algorithm, Codec, Metric, Task


def fit(
    model: nn.Module | Task,
    data: FederatedData,
    algorithm: Algorithm,
    *,
    split: Split | None = None,
    rounds: int,
    cohort: int | None = None,
    participation: str = "fixed",
    seed: int = 0,
    engine: str = "auto",
    out: str | os.PathLike[str] | None = None,
    start: Run | str | os.PathLike[str] | None = None,
    loss: tasks.Loss | None = None,
    metric: str | Metric | None = None,
    inputs: Sequence[str] = ("x",),
    evaluate_on: str | None = None,
    evaluate_every: int | None = None,
    checkpoint_every: int | None = None,
    evaluate_clients: int | None = None,
    device: str = "cpu",
    workers: int | None = None,
    partial: bool = True,
    aggregator: Aggregator | None = None,
    codec: Codec | None = None,
    attack: Attack | None = None,
    attackers: float | Sequence[int | str] | None = None,
    clock: Clock | None = None,
    on_round: OnRound | None = None,
) -> Run:
    """Train ``model`` on ``data`` with ``algorithm``.

    Args:
        model: an ``nn.Module``, whose present values are the first ones (so an exported model is a warm start), or a
            ``Task`` of plain functions. It is not changed.
        data: the examples of all clients.
        algorithm: what a builder such as ``moiety.fedalt`` made.
        split: what is shared and what is personal; FedAvg and local training have their own.
        rounds: how many rounds to train.
        cohort: how many clients are asked in a round; all by default.
        participation: ``fixed`` cohorts, drawn without replacement, or ``bernoulli``: each client takes part by itself
            with the probability cohort / clients, so that ``cohort`` is the expected number and a round may be empty.
        seed: everything random in the run derives from it.
        engine: ``sequential``, ``vectorised``, ``processes`` (all cores) or ``auto``, which measures them and keeps
            the fastest; or ``ray``, for a cluster.
        out: a folder for configuration, history, results and checkpoints; nothing is written without one.
        start: an ended run on the same clients, or its folder, to start from: the model takes over the values of its
            shared model, and a client that has personal values of its own there keeps those that are personal here
            too. What that model does not have (fresh adapters) starts as in this one. Rounds, schedules and the
            server's optimiser begin anew.
        loss: ``cross_entropy``, ``mse`` or a function of (output, batch) with one loss per example. By default
            cross-entropy where the labels ``y`` are whole numbers, mean squared error otherwise.
        metric: ``accuracy``, ``mse`` or a ``Metric``; by default the one that goes with the loss.
        inputs: the columns that go into the model, in order.
        evaluate_on: ``test``, ``validation`` or ``train``; by default the first of these that has rows.
        evaluate_every: rounds between evaluations; by default a twentieth of the run. The last round always has one.
        checkpoint_every: rounds between checkpoints; by default as evaluations. The last round always has one.
        evaluate_clients: evaluate this many clients, the same sample each time; all by default.
        device: where the arithmetic happens.
        workers: how many processes, for the engines that have any; all cores by default.
        partial: compute once per row what the trained parameters do not reach, where rows come round again; the
            numbers are the same either way.
        aggregator: joins uploads in the place of the algorithm's own mean, for instance
            ``moiety.aggregator.trimmed_mean(byzantine=2)``.
        codec: compresses uploads, for instance ``moiety.codec.qsgd(levels=16)``.
        attack: what Byzantine clients do, for instance ``moiety.attack.sign_flip()``: what they send in the place of
            their uploads, or what they do to the labels they train on.
        attackers: who they are, as a list of clients (names or positions) or as a share of all, drawn.
        clock: when broadcasts and uploads arrive, for instance ``moiety.clock.asynchronous(active=4)``; at once by
            default.
        on_round: called after every round.

    Returns:
        The run: history, a row per client, the ledger, and models to export.
    """
    check_kinds(model, data, algorithm, split)
    part = check_options(data, engine, inputs, evaluate_on, evaluate_clients, workers)
    twentieth = max(1, rounds // 20) if isinstance(rounds, int) else 1
    every = {"evaluate_every": twentieth if evaluate_every is None else evaluate_every}
    every["checkpoint_every"] = every["evaluate_every"] if checkpoint_every is None else checkpoint_every
    clock, cohort = check_clock_options(
        clock, data, algorithm, cohort, participation, aggregator=aggregator, attack=attack
    )
    check_numbers(data, rounds, cohort, seed, every)
    chosen_loss = loss or (default_loss(data) if isinstance(model, nn.Module) else "its own")
    uploads = check_upload_options(data, algorithm, seed, cohort, aggregator, codec, attack, attackers, participation)
    problem = problem_for(model, data, algorithm, split, seed, chosen_loss, metric, inputs, device, partial)
    earlier = None
    if start is not None:
        earlier = ended(start, model=model, data=data, split=split, loss=chosen_loss, metric=metric)
        problem = warm(problem, earlier, model)
    problem = uploads.poison_labels(problem)
    run_config = {
        "rounds": rounds,
        "cohort": cohort,
        "participation": participation if uploads.bernoulli else None,
        "seed": seed,
        "engine": engine,
        "evaluate_on": part,
        **every,
        "evaluate_clients": evaluate_clients,
        "device": device,
        "workers": workers,
        "partial": partial,
        "loss": chosen_loss if isinstance(chosen_loss, str) else None,
        "metric": metric if isinstance(metric, str) else None,
        "inputs": list(inputs),
        "start": earlier and earlier.place,
        "attackers": sorted(str(data.ids[c]) for c in uploads.attackers) if uploads.attack else None,
    }
    config = {
        "data": dict(data.spec) or {"own": "data"},
        "model": spec_of(model) or {"own": type(model).__name__},
        "split": problem.split.spec or {"own": "split"},
        "algorithm": algorithm.spec or {"own": algorithm.name},
        **uploads.describe(),
        **({} if clock is None else {"clock": clock.spec}),
        "run": run_config,
    }
    with lock_folder(None if out is None else files.empty(out)):
        folder, progress = _begin(problem, algorithm, out, config, earlier, clock)
        loop = choose_loop(clock)(problem, algorithm, progress, rounds, cohort, engine, workers, uploads, clock=clock)
        return train(loop, config, folder, [], model, on_round)


def check_options(
    data: FederatedData,
    engine: str,
    inputs: Sequence[str],
    evaluate_on: str | None,
    evaluate_clients: int | None,
    workers: int | None,
) -> str:
    """Raise unless these options are for this data; the part of it to evaluate on."""
    check_engine(engine)
    kind("inputs", inputs, (list, tuple), "a list of column names")
    check_data(data)
    if evaluate_clients is not None:
        whole("evaluate_clients", evaluate_clients, 1, len(data))
    if workers is not None:
        whole("workers", workers, 1)
    return check_part(data, evaluate_on)


def _begin(
    problem: Problem,
    algorithm: Algorithm,
    out: str | os.PathLike[str] | None,
    config: dict[str, Any],
    earlier: Ended | None,
    clock: Clock | None,
) -> tuple[Path | None, Progress]:
    """The run's folder, if it has one, and everything as it is before the first round."""
    states = {} if earlier is None else own_states(problem, algorithm, earlier)
    folder = None
    if out is not None:
        folder = files.create(out, config, problem.task.init, identity(problem, algorithm, clock), states)
    progress = begin_progress(problem, algorithm, folder, clock)
    begin_with(progress, states)
    return folder, progress
