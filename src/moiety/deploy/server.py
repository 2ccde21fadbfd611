"""The server of a federation: it begins a run in its folder, or goes on with the one that is there."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import torch

from moiety.data import FederatedData
from moiety.deploy.arrivals import ArrivalLoop, begin_arrivals
from moiety.deploy.federation import Federation
from moiety.deploy.loop import DeviceLoop, begin_on_devices
from moiety.deploy.mailbox import Mailbox
from moiety.deploy.plan import Plan
from moiety.deploy.roster import Roster, load_roster
from moiety.deploy.wire import Wiring
from moiety.engines.problem import Problem
from moiety.errors import must
from moiety.files import lock_folder, make_folder
from moiety.run import folder as files
from moiety.run.build import make_run
from moiety.run.checkpoint import check_newest, find_checkpoint, load_checkpoint
from moiety.run.identity import check_identity, new_identity, run_identity
from moiety.run.privacy import begin_privacy, count_again, write_counted
from moiety.run.protocol import Callback, CallbackList, Callbacks
from moiety.run.reopen import RunParts, read_stored_options
from moiety.run.result import Run
from moiety.run.safeguard import check_choice
from moiety.run.settings import Options, complete_options, option_tables
from moiety.run.train import train
from moiety.seals import CONFIG
from moiety.spec import table_of
from moiety.types import Algorithm, RoundRecord

log = logging.getLogger("moiety")


def serve(plan: Plan, mailbox: Mailbox, callbacks: CallbackList = ()) -> Run:
    """Train on devices until all rounds are done; where the folder holds the run already, from its checkpoint on."""
    folder = make_folder(plan.folder)
    with lock_folder(folder):
        resumed = (folder / CONFIG).exists()
        roster = load_roster(folder, files.read_id(folder)) if resumed else Roster()
        federation = Federation(plan, mailbox, roster)
        federation.gather(plan.clients)
        federation.agree_on_recipe()
        data = roster.as_data()
        options = stored_options(plan, folder, data) if resumed else plan.server_options(data)
        problem, algorithm = plan.make_problem(data, options)
        if plan.safeguard:
            check_choice(problem, algorithm)
        run = _reopen(federation, problem, algorithm, options, folder) if resumed else None
        run = run or _begin(federation, problem, algorithm, options, data, folder)
        loop = run._loop
        assert isinstance(loop, DeviceLoop)
        federation.wait_for(len(roster), plan.deadline)
        train(run, Callbacks(callbacks).and_also([Announcer()]))
        return run


def stored_options(plan: Plan, folder: Path, data: FederatedData) -> Options:
    """The options that the run in the folder began with, but for the rounds; the plan may not say otherwise."""
    settings = replace(plan.settings, checkpoint_every=1)
    request = RunParts(plan.model, data, plan.algorithm, plan.split, plan.loss, plan.metric, settings)
    original = read_stored_options(files.read_config(folder), folder, request)
    for name in ("seed", "cohort"):
        mine, was = getattr(plan, name), getattr(original, name)
        must(mine in (None, was), name, f"{was}, as the run in {folder} began", mine, "Or begin another run.")
    return complete_options(replace(original, rounds=plan.rounds), plan.model, data, plan.algorithm)


class Announcer(Callback):
    """Says how rounds go, and leaves every device with the shared model as it ended."""

    def on_round(self, run: Run, record: RoundRecord) -> None:
        """Say how many answers were used."""
        count, rounds = len(record.cohort) - len(record.dropped), run._loop.rounds
        log.info("round %d of %d: %d of %d answers used", record.round, rounds, count, len(record.cohort))

    def on_end(self, run: Run) -> None:
        """Send the last model."""
        loop = run._loop
        assert isinstance(loop, DeviceLoop)
        loop.say_goodbye()
        log.info("the run has ended after round %d", loop.progress.round)


def _begin(
    federation: Federation,
    problem: Problem,
    algorithm: Algorithm,
    options: Options,
    data: FederatedData,
    folder: Path,
) -> Run:
    """A new run in the folder."""
    plan = federation.plan
    config = {
        "data": {"own": files.DEVICES},
        "model": table_of(plan.model, type(plan.model).__name__),
        "split": table_of(problem.split, "split"),
        "algorithm": table_of(plan.algorithm, algorithm.name),
        **option_tables(options),
    }
    identity = new_identity(problem, algorithm, options)
    recipe = data.preprocessing.as_dict() if data.preprocessing else None
    schema = files.describe_schema(data)
    _, run = files.create_run(folder, config, problem.task.init, identity, {}, recipe, schema)
    _start(federation, problem, algorithm, options, folder, run)
    progress = begin_on_devices(problem, algorithm, federation, options.settings.clock, resumed=False)
    rare = options.settings
    progress.privacy = begin_privacy(rare.privacy, rare.participation, options.rounds, options.cohort, len(data))
    if progress.privacy is not None:
        write_counted(folder, progress.privacy, run)
    run_here = make_run(config, folder, plan.model, problem, algorithm, progress, options, loop_kind(options))
    return _connect(run_here, federation)


def _reopen(federation: Federation, problem: Problem, algorithm: Algorithm, options: Options, folder: Path) -> Run:
    """The run in the folder as its newest checkpoint left it; devices that have come since are clients too."""
    config, run, identity = files.read_config(folder), files.read_id(folder), files.read_identity(folder)
    keys = ("initial", "start", "probe", "environment", "data")
    check_identity(identity, run_identity(problem, algorithm, options), folder, ignored=keys)
    initial = files.read_initial(folder, identity.get("initial", ""), problem.task.init)
    device = torch.device(options.settings.device)
    problem = replace(problem, task=replace(problem.task, init={name: p.to(device) for name, p in initial.items()}))
    _start(federation, problem, algorithm, options, folder, run)
    newest = find_checkpoint(folder)
    check_newest(folder, newest, run)
    progress = begin_on_devices(problem, algorithm, federation, options.settings.clock, resumed=newest is not None)
    if newest is None:
        progress.store.start_again()
    else:
        load_checkpoint(newest, progress, identity)
    last = progress.round
    assert options.rounds is not None
    must(options.rounds >= last, "rounds", f">= {last}, the rounds already trained", options.rounds)
    config["run"]["rounds"] = options.rounds
    result = make_run(config, folder, federation.plan.model, problem, algorithm, progress, options, loop_kind(options))
    result.history, rounds = files.read_history_until(folder, run, last, config["run"])
    if options.settings.privacy is not None:
        count_again(result._loop, folder)
    files.warn_of_lost_rows(folder, rounds)
    files.remove_leftovers(folder)
    files.write_history(folder, result.history, run)
    files.write_config(folder, config, run)
    log.info("going on after round %d", last)
    return _connect(result, federation)


def loop_kind(options: Options) -> type[DeviceLoop]:
    """The kind of loop that the clock asks for."""
    return DeviceLoop if options.settings.clock is None else ArrivalLoop


def _start(
    federation: Federation, problem: Problem, algorithm: Algorithm, options: Options, folder: Path, run: str
) -> None:
    plan = federation.plan
    wiring = Wiring(problem, algorithm, plan.exchange(problem, algorithm))
    federation.start(folder, run, plan.describe(problem, algorithm, options), wiring)


def _connect(run: Run, federation: Federation) -> Run:
    loop = run._loop
    assert isinstance(loop, DeviceLoop)
    loop.connect(federation)
    if isinstance(loop, ArrivalLoop):
        assert run.folder is not None
        begin_arrivals(run.folder, loop.progress.round)
    return run
