"""``fit``: from a model, data and an algorithm to a run."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import replace
from pathlib import Path

from torch import nn

from moiety import task as tasks
from moiety.data import FederatedData
from moiety.files import lock_folder
from moiety.loop.round import begin_progress
from moiety.run import folder as files
from moiety.run.build import make_problem, make_run, suit_run
from moiety.run.checkpoint import store_first_states
from moiety.run.checks import check_kinds
from moiety.run.identity import new_identity
from moiety.run.memory import check_memory
from moiety.run.privacy import begin_privacy, write_counted
from moiety.run.progress import show_progress
from moiety.run.protocol import CallbackList, Callbacks
from moiety.run.result import Run
from moiety.run.safeguard import check_choice
from moiety.run.settings import Options, Settings, complete_options, option_tables
from moiety.run.start import open_start, take_over_states, take_over_values
from moiety.run.train import train
from moiety.spec import table_of
from moiety.split import Split
from moiety.types import Algorithm, Task

log = logging.getLogger("moiety")


def fit(
    model: nn.Module | Task,
    data: FederatedData,
    algorithm: Algorithm,
    *,
    split: Split | None = None,
    rounds: int,
    cohort: int | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    start: Run | str | os.PathLike[str] | None = None,
    loss: tasks.Loss | None = None,
    metric: tasks.Metrics | None = None,
    engine: str = "auto",
    callbacks: CallbackList = (),
    progress: bool | None = None,
    safeguard: bool | None = None,
    settings: Settings | None = None,
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
        seed: everything random in the run derives from it.
        out: a folder for configuration, history, results and checkpoints; nothing is written without one.
        start: an ended run on the same clients, or its folder, to start from: the model takes over the values of its
            shared model, and a client that has personal values of its own there keeps those that are personal here
            too. What that model does not have (fresh adapters) starts as in this one. Rounds, schedules and the
            server's optimiser begin anew.
        loss: a name such as ``mse``, one with options such as ``moiety.loss.huber(delta=0.5)``, or a function of
            (output, batch) with one loss per example. By default cross-entropy where the labels ``y`` are whole
            numbers, mean squared error otherwise.
        metric: a name such as ``auroc``, a ``Metric``, a ``SetMetric``, a metric of torchmetrics, or a list of these:
            the first decides gains. By default the one that goes with the loss.
        engine: ``sequential``, ``vectorised``, ``processes`` (all cores) or ``auto``, which takes the fastest, by
            formula or measured for a moment; or ``ray``, for a cluster.
        callbacks: called as the run goes on, and able to stop it: ``moiety.callbacks.EarlyStopping(patience=5)``,
            a ``Callback`` of your own, or a function of (run, record) that is called after every round.
        progress: show a bar on stderr, with what is being done and the time left; by default where stderr is a
            terminal, and in a notebook that has ipywidgets.
        safeguard: in the end, let each client choose between its personal model, the shared one, and mixtures of both
            (``Run.safeguard``). Off by default.
        settings: the rare options, as in ``moiety.Settings(evaluate_every=10, device="cuda")``.

    Returns:
        The run: history, a row per client, the ledger, and models to export.

    Two clients that code their labels the other way round need models of their own:

    >>> import moiety as mo
    >>> import numpy as np
    >>> x, y = np.float32([[-1], [1]] * 8), np.array([0, 1] * 8)
    >>> fed = mo.data.from_clients({"a": {"x": x, "y": y}, "b": {"x": x, "y": 1 - y}}, test=0.25)
    >>> model = mo.models.linear(1, 2)
    >>> mo.fit(model, fed, mo.fedavg(shared=0.5), rounds=2, engine="sequential")
    Run(fedavg, 2 rounds, 2 clients; test accuracy 0.5)
    >>> run = mo.fit(model, fed, mo.local_only(personal=0.5), rounds=2, engine="sequential")
    >>> [(row["client"], row["metric"]) for row in run.clients]
    [('a', 1.0), ('b', 1.0)]
    """
    listeners = Callbacks(callbacks)
    check_kinds(model, data, algorithm, split)
    rare = Settings() if settings is None else settings
    options = Options(rounds, cohort, seed, engine, loss, metric, start, rare, safeguard)
    clock, folder, run = options.settings.clock, None, ""
    name = Path(out).name if isinstance(out, str | os.PathLike) else algorithm.name
    with show_progress(progress, name) as displays, contextlib.ExitStack() as stack:
        log.info("checking model and data")
        options = complete_options(options, model, data, algorithm)
        algorithm = suit_run(algorithm, options)
        problem = make_problem(model, data, algorithm, split, options)
        check_memory(problem, algorithm, options, on_disk=out is not None)
        rare = options.settings
        private = begin_privacy(rare.privacy, rare.participation, options.rounds, options.cohort, len(data))
        if safeguard:
            check_choice(problem, algorithm)
        earlier = None
        if start is not None:
            earlier = open_start(start, model, data, split, options)
            problem = take_over_values(problem, earlier, model)
            options = replace(options, start=str(earlier.folder or "a run in memory"))
        config = {
            "data": table_of(data, "data"),
            "model": table_of(model, type(model).__name__),
            "split": table_of(problem.split, "split"),
            "algorithm": table_of(algorithm, algorithm.name),
            **option_tables(options),
        }
        stack.enter_context(lock_folder(None if out is None else files.make_run_folder(out)))
        states = {} if earlier is None else take_over_states(problem, algorithm, earlier)
        if out is not None:
            log.info("writing what the run begins with")
            identity = new_identity(problem, algorithm, options)
            recipe = data.preprocessing.as_dict() if data.preprocessing else None
            schema = files.describe_schema(data) if "own" in config["data"] else None
            folder, run = files.create_run(out, config, problem.task.init, identity, states, recipe, schema)
        beginning = begin_progress(problem, algorithm, folder, clock, run)
        store_first_states(beginning, states)
        beginning.privacy = private
        if folder is not None and private is not None:
            write_counted(folder, private, run)
        log.info("preparing round 1")
        return train(
            make_run(config, folder, model, problem, algorithm, beginning, options), listeners.and_also(displays)
        )
