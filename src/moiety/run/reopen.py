"""A run is opened from its folder: what its configuration names is made again, the newest checkpoint is read."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from moiety import task as tasks
from moiety.data import from_spec
from moiety.errors import MoietyError, must
from moiety.files import lock_folder
from moiety.loop.round import begin_progress
from moiety.run import folder as files
from moiety.run.best import restore_round
from moiety.run.build import algorithm_from, make_problem, make_run, model_from, own_part, split_from, suit_run
from moiety.run.callbacks import BestCheckpoint, EarlyStopping
from moiety.run.checkpoint import (
    PROGRESS,
    check_newest,
    find_checkpoint,
    load_checkpoint,
    store_first_states,
    write_progress,
)
from moiety.run.checks import check_kinds
from moiety.run.identity import OF_TRAINING, check_identity, check_probe, run_identity, warn_elsewhere
from moiety.run.memory import check_memory
from moiety.run.privacy import count_again
from moiety.run.progress import show_progress
from moiety.run.protocol import Callbacks
from moiety.run.result import Run
from moiety.run.settings import LEFT_OUT, RUN_KEYS, Options, Settings, change_settings, complete_options, read_options
from moiety.run.train import train
from moiety.seals import CONFIG
from moiety.spec import Spec
from moiety.split import Split

log = logging.getLogger("moiety")


class RunParts(NamedTuple):
    """The parts of a run that a user gives again, since the run's folder cannot name them."""

    model: Any = None
    data: Any = None
    algorithm: Any = None
    split: Split | None = None
    loss: tasks.Loss | None = None
    metric: tasks.Metrics | None = None
    settings: Settings | None = None


MAKERS: dict[str, Callable[[Spec], Any]] = {
    "model": model_from,
    "data": from_spec,
    "algorithm": algorithm_from,
}
"""What makes the parts of a run from their tables."""


def continue_run(
    path: Path,
    parts: RunParts,
    callbacks: Callbacks,
    *,
    rounds: int | None = None,
    engine: str | None = None,
    progress: bool | None = None,
) -> Run:
    """Continue the run in a folder; ``resume`` says what the arguments are."""
    config = files.read_config(path)
    first_options = read_stored_options(config, path, parts)
    options = replace(
        first_options,
        rounds=first_options.rounds if rounds is None else rounds,
        engine=first_options.engine if engine is None else engine,
    )
    with lock_folder(path), show_progress(progress, path.name) as displays:
        log.info("reading the folder, and checking model and data")
        run = reopen(path, config, options, parts)
        run._loop.progress.store.check_states()  # a damaged record would spoil the next round
        round = run._loop.progress.round
        must(run._loop.rounds >= round, "rounds", f">= {round}, the rounds already trained", options.rounds)
        if options.settings.privacy is not None:
            count_again(run._loop, path)
        now = run._loop.progress.run
        run.history, missing = files.read_history_until(path, now, round, config["run"])
        _check_lost_rows(path, missing, callbacks)
        if not any(isinstance(each, EarlyStopping) for each in callbacks.all):
            _warn_of_earlier_end(path, files.read_notes(path, now), round)
        files.remove_leftovers(path)
        if round and not (path / PROGRESS).exists():
            write_progress(path, round, now)
        files.write_history(path, run.history, now)
        if options.engine != first_options.engine:
            config["run"]["engine_reason"] = "as asked"
        config["run"].update(rounds=options.rounds, engine=options.engine)
        config["run"]["on_divergence"] = options.settings.on_divergence
        files.write_config(path, config, now)
        return train(run, callbacks.and_also(displays))


def _check_lost_rows(path: Path, rounds: list[int], callbacks: Callbacks) -> None:
    """Say which rows of the history are lost; refuse where a callback looks for the best round in them."""
    names = [type(each).__name__ for each in callbacks.all if isinstance(each, BestCheckpoint)]
    fault, hint = f"none of round {rounds[:1]} in {path}", "Restore it from a copy, or resume without that callback."
    must(not (rounds and names), files.HISTORY, f"whole, for {''.join(names[:1])} goes by it", fault, hint)
    files.warn_of_lost_rows(path, rounds)


def _report_lost_files(texts: Mapping[str, str], *, to_train: bool) -> None:
    """Say which files of the run are lost; refuse to open one without its results, which say how it ended."""
    if files.LEDGER in texts and not to_train:
        raise MoietyError(texts[files.LEDGER])
    for text in texts.values():
        warnings.warn(text, stacklevel=2)


def _warn_of_earlier_end(path: Path, notes: Mapping[str, Any], round: int) -> None:
    """Say that a run which callbacks ended goes on without them."""
    if notes:
        why = f" ({notes['stopped']})" if "stopped" in notes else ""
        models = f" with the models of round {notes['restored']}" if "restored" in notes else ""
        text = f"The run in {path} ended after round {round}{models}{why}. It goes on from round {round}"
        warnings.warn(f"{text}, and will end with the models of its last round.", stacklevel=3)


RUN_TABLES = ("data", "model", "split", "algorithm", "run")
REQUIRED = tuple(key for key in RUN_KEYS if key not in LEFT_OUT)


def read_stored_options(
    config: Mapping[str, Any],
    path: Path,
    parts: RunParts,
    *,
    file: str = CONFIG,
    tables: Sequence[str] = RUN_TABLES,
    keys: Sequence[str] = REQUIRED,
) -> Options:
    """The options in a folder's file, and those in ``parts``; the file must have these tables and keys."""
    for table in tables:
        must(isinstance(config.get(table), dict), file, f"one with a table [{table}]", f"none in {path}")
    for key in keys:
        must(key in config["run"], f"run.{key}", "given", f"nothing in {path}")
    options = read_options(config, parts.settings)
    loss, metric = parts.loss or options.loss, parts.metric or options.metric
    must(loss is not None, "loss", "given again", "nothing", "It was the user's own.")
    return replace(options, loss=loss, metric=metric, settings=change_settings(options.settings, parts.settings))


def remake(config: Mapping[str, Any], parts: RunParts, names: Sequence[str], what: str) -> RunParts:
    """Make those parts called ``names`` that are None, as the configuration says; raise where it cannot name one."""
    missing = [part for part in names if getattr(parts, part) is None]
    own = {part: own_part(config, part) for part in missing if own_part(config, part)}
    hint = f"The {what} began with " + " and ".join(f"its own {name}" for name in own.values()) + "."
    must(not own, "`, `".join(own), "given again", "nothing", hint)
    return parts._replace(**{part: MAKERS[part](config[part]) for part in missing})


def reopen(
    path: Path,
    config: dict[str, Any],
    options: Options,
    parts: RunParts,
    *,
    to_train: bool = True,
    any_data: bool = False,
) -> Run:
    """The run in a folder as its newest checkpoint left it; its history is not read.

    Settings, loss and metric are compared with those at the beginning only where the run is ``to_train`` on. With
    ``any_data`` the data take the place of the run's own, and are not compared.
    """
    on_devices = own_part(config, "data") == files.DEVICES
    must(not (on_devices and to_train), "folder", "that of a simulation", f"a server's at {path}", "Start the server.")
    parts = remake(config, parts, ("model", "data", "algorithm"), "run")
    model, data, algorithm, split = parts.model, parts.data, parts.algorithm, parts.split
    check_kinds(model, data, algorithm, split)
    if split is None and isinstance(model, nn.Module) and "own" not in config["split"]:
        split = split_from(config["split"], model)
    options = options if any_data else complete_options(options, model, data, algorithm)
    hint = "Leave them out, or begin another run."
    same = options.settings.attackers == config["run"].get("attackers")  # the folder names them
    must(same, "attackers", "those that the run began with", parts.settings and parts.settings.attackers, hint)
    algorithm = suit_run(algorithm, options)
    problem = make_problem(model, data, algorithm, split, options, check=not any_data)
    if not any_data:
        check_memory(problem, algorithm, options, on_disk=True)
    clock = options.settings.clock
    identity = files.read_identity(path)
    keys = (
        "initial",
        "start",
        "probe",
        "environment",
        *(() if to_train else OF_TRAINING),
        *(("data",) if any_data else ()),
    )
    check_identity(identity, run_identity(problem, algorithm, options), path, data, ignored=keys)
    if data.preprocessing is not None:
        files.read_preprocessing(path, files.read_id(path), data.preprocessing.digest())
    device = torch.device(options.settings.device)
    initial = files.read_initial(path, identity.get("initial", ""), problem.task.init)
    problem = replace(problem, task=replace(problem.task, init={name: p.to(device) for name, p in initial.items()}))
    if not any_data:
        check_probe(identity, problem, path, only_model=not to_train)
    newest, run = find_checkpoint(path), files.read_id(path)
    note = check_newest(path, newest, run)
    progress = begin_progress(problem, algorithm, None if on_devices else path, clock, run, resumed=newest is not None)
    if newest is not None:
        load_checkpoint(newest, progress, identity)
        _report_lost_files(files.find_lost_files(path, newest, note), to_train=to_train)
    else:
        states = files.read_start(path, identity.get("start", ""), progress.store.first())
        progress.store.start_again()
        store_first_states(progress, states)
    if to_train:
        warn_elsewhere(identity, options.settings.device, path)
    result = make_run(config, path, model, problem, algorithm, progress, options)
    result._loop.on_devices = on_devices
    restored = None if to_train else files.read_notes(path, run).get("restored")
    if restored is not None:
        restore_round(result, restored)
    return result
