"""The options of a run, said once: their types, their defaults, their checks, and how files write them.

``Settings`` holds the rare options, ``Options`` all of them. A file has them as keys of ``[run]``; what a builder makes
(``BUILDERS``) has a table of its own, ``[codec]`` for instance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_type_hints

import numpy as np
import torch
from torch import nn

from moiety import task as tasks
from moiety.clients.clock import Asynchronous, Clock, Delayed, check_clock, clock_from
from moiety.data import FederatedData
from moiety.engines.auto import check_engine
from moiety.engines.processes import TIMEOUT
from moiety.errors import COUNT, SEED, MoietyError, choice, kind, must, number, refuse, whole
from moiety.loop.virtual_time import COLLUDING
from moiety.random import generator
from moiety.run.privacy import check_privacy
from moiety.server.aggregators import aggregator_from
from moiety.server.attacks import ATTACKS, Attack
from moiety.server.robust import Aggregator
from moiety.spec import Spec, build, check_table, plain, spec_of, table_of, writable
from moiety.task.forward import choose_inputs, forward_names
from moiety.task.losses import loss_from
from moiety.task.precision import PRECISIONS
from moiety.transport import CODECS
from moiety.transport.privacy import PRIVACY, Gaussian
from moiety.types import Algorithm, Codec, Task

PARTS = ("test", "validation", "train")
PARTICIPATION = ("fixed", "bernoulli")
ON_DIVERGENCE = ("stop", "warn")
DEVICES = ("cpu", "cuda")
BUILDERS: dict[str, Callable[[Spec], Any]] = {
    "aggregator": aggregator_from,
    "codec": lambda table: build("codec", CODECS, table),
    "attack": lambda table: build("attack", ATTACKS, table),
    "clock": clock_from,
    "privacy": lambda table: build("privacy", PRIVACY, table),
}
"""The settings that have a table of their own in a file, and what makes them from it."""
EXAMPLES = {
    "aggregator": "trimmed_mean(byzantine=2)",
    "codec": "qsgd(levels=16)",
    "attack": "sign_flip()",
    "clock": "asynchronous(active=4)",
    "privacy": "gaussian(clip=1.0, noise=1.0, delta=1e-5)",
}
"""For each of them, a call that makes one."""
SECTIONS = ("data", "model", "split", "algorithm", *BUILDERS)
"""All tables of a file that name a builder."""
WORKERS = 1024
"""The most processes of a run."""
SECTION_HINTS = {key: f"It is a section of its own, [{key}]." for key in SECTIONS}


@dataclass(frozen=True)
class Settings:
    """The rare options of a run, for ``fit``, ``pipeline`` and ``resume``.

    Args:
        participation: ``fixed`` cohorts, drawn without replacement, or ``bernoulli``: each client takes part by itself
            with the probability cohort / clients, so that ``cohort`` is the expected number and a round may be empty.
        inputs: the columns that go into the model, by name where its forward pass has an argument of that name, else
            in order. By default ``x``; where the data have no such column, those that the forward pass names.
        evaluate_on: ``test``, ``validation`` or ``train``; by default the first of these that has rows.
        evaluate_every: rounds between evaluations; by default a twentieth of the run. The last round always has one.
        checkpoint_every: rounds between checkpoints; by default as evaluations. The last round always has one.
        evaluate_clients: evaluate this many clients, the same sample each time; all by default.
        device: where the arithmetic happens: ``cpu``, ``cuda`` (or ``cuda:1``), or ``auto`` for a GPU where there is
            one. Engines with processes of their own need the cpu.
        workers: how many processes, for the engines that have any; all cores by default.
        worker_timeout: after how many seconds a worker process that does not answer, and uses no processor time, is
            replaced.
        precision: ``bf16`` trains a model of float32 with the forward and the backward pass in bfloat16, as PyTorch's
            autocast does; parameters, losses, steps and evaluation stay in float32. By default all is computed in the
            model's own precision.
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
        privacy: clips uploads and adds noise, and counts what that costs, for instance
            ``moiety.privacy.gaussian(clip=1.0, noise=1.0, delta=1e-5)``. Only ``bernoulli`` participation makes the
            cost smaller by chance; cohorts are then drawn in secret, not from the run's seed.
        on_divergence: what happens to a run that cannot be right any more: the server or the aggregate is not finite,
            nobody's update is finite in three rounds in a row, or the training loss (where it is never negative) rises
            above 1,000 times the first in three evaluations in a row. ``stop`` raises an error and keeps a checkpoint
            of the last good round; ``warn`` says so once and goes on. On resume, ``stop`` may become ``warn``.

    >>> Settings(evaluate_every=0)
    Traceback (most recent call last):
    moiety.errors.MoietyError: `evaluate_every` must be >= 1, got 0.
    """

    participation: str = "fixed"
    inputs: Sequence[str] | None = None
    evaluate_on: str | None = None
    evaluate_every: int | None = None
    checkpoint_every: int | None = None
    evaluate_clients: int | None = None
    device: str = "cpu"
    workers: int | None = None
    worker_timeout: float = TIMEOUT
    precision: str | None = None
    partial: bool = True
    aggregator: Aggregator | None = None
    codec: Codec | None = None
    attack: Attack | None = None
    attackers: float | Sequence[int | str] | None = None
    clock: Clock | None = None
    privacy: Gaussian | None = None
    on_divergence: str = "stop"

    def __post_init__(self) -> None:
        """Check what can be checked without the data."""
        choice("participation", self.participation, PARTICIPATION)
        choice("on_divergence", self.on_divergence, ON_DIVERGENCE)
        if self.inputs is not None:
            kind("inputs", self.inputs, (list, tuple), "a list of column names")
            must(len(self.inputs) > 0, "inputs", "at least one column of the data", "none")
            for name in self.inputs:
                kind("inputs", name, str, "a list of column names")
        if self.evaluate_on is not None:
            choice("evaluate_on", self.evaluate_on, PARTS)
        for name in ("evaluate_every", "checkpoint_every", "evaluate_clients", "workers"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1, WORKERS if name == "workers" else COUNT)
        check_device(self.device)
        number("worker_timeout", self.worker_timeout, "> 0 and at most a week in seconds", lambda s: 0 < s <= 604_800)
        if self.precision is not None:
            choice("precision", self.precision, PRECISIONS)
        kind("partial", self.partial, bool, "true or false")
        for name, example in EXAMPLES.items():
            hint = f"For instance moiety.{name}.{example}."
            kind(name, getattr(self, name), _TYPES[name], f"what moiety.{name} makes", hint)
        if self.attackers is not None and not isinstance(self.attackers, list | tuple | range | np.ndarray):
            hint = "Names and positions make a list, as in attackers=[0, 3]."
            wanted_share = "a share >= 0 and < 1, or a list of clients"
            number("attackers", self.attackers, wanted_share, lambda share: 0 <= share < 1, hint)


@dataclass(frozen=True)
class Options:
    """Everything a run is told besides its model, data, algorithm and split: arguments of ``fit``, by their names."""

    rounds: int | None = None
    cohort: int | None = None
    seed: int = 0
    engine: str = "auto"
    loss: tasks.Loss | None = None
    metric: tasks.Metrics | None = None
    start: Any = None
    settings: Settings = field(default_factory=Settings)
    safeguard: bool | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without the data."""
        for name in ("rounds", "cohort"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1)
        whole("seed", self.seed, 0, SEED)
        check_engine(self.engine)
        kind("settings", self.settings, Settings, "moiety.Settings(...)")
        kind("safeguard", self.safeguard, (bool, type(None)), "true or false")


_TYPES = {**get_type_hints(Options), **get_type_hints(Settings), "engine_reason": str}
_TYPES |= {"loss": str | dict[str, Any], "metric": str | list[str], "start": str, "inputs": list[str], "attackers": Any}
RUN_KEYS: dict[str, Any] = {key: _TYPES[key] for key in _TYPES if key not in ("settings", *BUILDERS)}
"""The keys of ``[run]`` and their types. A run writes ``engine_reason``; a new run ignores it."""
MAY_DIFFER = ("workers", "worker_timeout", "on_divergence")
"""The settings that may change when a run is continued: they change no number."""
LEFT_OUT = (
    "safeguard",
    "loss",
    "metric",
    "start",
    "evaluate_clients",
    "workers",
    "worker_timeout",
    "precision",
    "attackers",
    "engine_reason",
)
"""The keys that ``[run]`` in a run's folder may lack; all others are filled in when the run begins."""


def read_options(config: Mapping[str, Any], own_settings: Settings | None = None) -> Options:
    """The options that the tables of a file name. What a file cannot name is taken from ``own_settings``."""
    values = check_table("run", config["run"], RUN_KEYS, hints=SECTION_HINTS)
    values.pop("engine_reason", None)
    if "loss" in values:
        values["loss"] = loss_from(values["loss"])
    for name, make in BUILDERS.items():
        table, part = config.get(name), getattr(own_settings, name, None)
        own = isinstance(table, dict) and "own" in table
        must(not own or part is not None, name, "given again", "nothing", f"The run began with {name} of its own.")
        same = part is None or own or table == spec_of(part)
        must(same, name, "as the run began with", "another", "Leave it out, or begin another run.")
        values[name] = part if own else None if table is None else make(table)
    rare = {each.name: values.pop(each.name) for each in fields(Settings) if each.name in values}
    return Options(**values, settings=Settings(**rare))


def option_tables(options: Options) -> dict[str, Spec]:
    """The options as a file says them. What no file can hold, and what is None, is left out."""
    values = {**vars(options), **vars(options.settings)}
    parts = {name: values.pop(name) for name in BUILDERS}
    tables = {name: table_of(part, name) for name, part in parts.items() if part is not None}
    return {**tables, "run": {k: plain(v) for k, v in values.items() if v is not None and writable(v)}}


def change_settings(settings: Settings, changes: Settings | None) -> Settings:
    """The settings of a run that is continued. Of ``changes``, only ``MAY_DIFFER`` may be other than before.

    ``read_options`` compares what a builder makes, ``reopen`` the attackers.
    """
    if changes is None:
        return settings
    kind("settings", changes, Settings, "moiety.Settings(...)")
    hint = f"Only {', '.join(MAY_DIFFER)} may change; begin another run for the rest."
    for each in fields(Settings):
        value, first_value = getattr(changes, each.name), getattr(settings, each.name)
        if each.name not in (*MAY_DIFFER, "attackers", *BUILDERS) and value != each.default:
            must(
                plain(value) == plain(first_value),
                each.name,
                f"{plain(first_value)!r}, as the run began",
                plain(value),
                hint,
            )
    attackers = settings.attackers if changes.attackers is None else changes.attackers
    others = {
        name: getattr(changes, name) for name in MAY_DIFFER if getattr(changes, name) != getattr(Settings(), name)
    }
    return replace(settings, attackers=attackers, **others)


def complete_options(options: Options, model: nn.Module | Task, data: FederatedData, algorithm: Algorithm) -> Options:
    """Check the options against the data and the algorithm, and fill in what was left out."""
    settings, clients = options.settings, len(data)
    whole("rounds", options.rounds, 1)
    assert options.rounds is not None
    check_data(data)
    if settings.evaluate_clients is not None:
        whole("evaluate_clients", settings.evaluate_clients, 1, clients)
    cohort = clients if options.cohort is None else options.cohort
    if settings.clock is not None:
        cohort = _decide_cohort(settings, options.cohort, data, algorithm) or cohort
    must(cohort <= clients, "cohort", f"<= {clients}, the number of clients", cohort)
    _check_uploads(settings, algorithm, clients if settings.participation == "bernoulli" else cohort)
    if settings.privacy is not None:
        check_privacy(settings.privacy, algorithm, settings.aggregator, settings.clock, clients)
    every = settings.evaluate_every or max(1, options.rounds // 20)
    evil = None if settings.attackers is None else pick_attackers(data, settings.attackers, options.seed)
    device = str(check_device(settings.device))
    forks = options.engine.startswith(("processes", "ray"))
    hint = "Use engine sequential, vectorised or auto."
    must(device == "cpu" or not forks, "device", f"cpu for the engine {options.engine}", device, hint)
    settings = replace(
        settings,
        inputs=list(settings.inputs or default_inputs(model, data)),
        device=device,
        evaluate_on=check_part(data, settings.evaluate_on),
        evaluate_every=every,
        checkpoint_every=settings.checkpoint_every or every,
        attackers=None if evil is None else sorted(str(data.ids[client]) for client in evil),
    )
    return replace(options, cohort=cohort, loss=options.loss or default_loss(model, data), settings=settings)


def default_loss(model: nn.Module | Task, data: FederatedData) -> str:
    """The loss that goes with the labels ``y``: cross-entropy for whole numbers, else mean squared error.

    Tokens (``input_ids``) without labels are for a causal language model. A task of plain functions has its own loss.
    """
    if isinstance(model, Task):
        return "its own"
    if "y" not in data.columns and "input_ids" in data.columns and "labels" not in data.columns:
        return "next_token"
    hint = "Call the column labels y." if "labels" in data.columns else ""
    must("y" in data.columns, "data", "columns with y, or a loss of your own", ", ".join(data.columns), hint)
    return "cross_entropy" if data.columns["y"].dtype.kind in "iub" else "mse"


def default_inputs(model: nn.Module | Task, data: FederatedData) -> tuple[str, ...]:
    """The columns that go into the model where none are named: ``x``, else those that its forward pass names."""
    names = ("x",) if isinstance(model, Task) else choose_inputs(model, data.columns)
    if not names:
        takes = "" if isinstance(model, Task) else f"The model takes {', '.join(forward_names(model)[:8])}."
        refuse("inputs", "given, as the data have no column x or of a name that the model takes", "nothing", takes)
    return names


def _decide_cohort(settings: Settings, cohort: int | None, data: FederatedData, algorithm: Algorithm) -> int | None:
    """Check the clock against the other options; return the cohort that the clock sets, or None."""
    clock = settings.clock
    check_clock(clock, data.ids)
    if isinstance(clock, Delayed):
        longest = clock.longest()[1]
        room, at = algorithm.delay or (None, None)
        hint = f"Make {algorithm.name} with room for {longest}."
        must(room is None or longest <= room, "clock", f"of round trips of at most {room} rounds", longest, hint)
        must(at in (None, clock.at) or longest == 0, "clock.at", f"{at} for this {algorithm.name}", clock.at)
    if not isinstance(clock, Asynchronous):
        return None
    hint = "The clock's `active` says how many work at a time."
    must(cohort in (None, 1), "cohort", "1 or left out with an asynchronous clock", cohort, hint)
    one_by_one = "left out with an asynchronous clock, where uploads arrive one by one"
    must(settings.aggregator is None, "aggregator", one_by_one, "one")
    must(settings.participation == "fixed", "participation", one_by_one, settings.participation)
    name = (spec_of(settings.attack) or {}).get("name")
    must(name not in COLLUDING, "attack", "one that needs no other upload of its round", name)
    return 1


def _check_uploads(settings: Settings, algorithm: Algorithm, most: int) -> None:
    """Check aggregator, codec, attack and privacy; ``most`` is the largest number of uploads in a round."""
    for name in ("aggregator", "codec", "attack", "privacy"):
        constraint = f"left out for {algorithm.name}, whose clients send nothing"
        must(getattr(settings, name) is None or algorithm.aggregator is not None, name, constraint, name)
    consistent = (settings.attack is None) == (settings.attackers is None)
    must(consistent, "attackers", "given with an attack, and only then", settings.attackers)
    rule = settings.aggregator
    if rule is not None and most < rule.least:
        fault = f"{rule.spec.get('name', 'one')}, which needs at least {rule.least}"
        hint = "Ask more clients in a round, or expect fewer Byzantine ones."
        constraint = f"one that can join {most} uploads, the most that a round has"
        refuse("aggregator", constraint, fault, hint)


def pick_attackers(data: FederatedData, attackers: Any, seed: int) -> frozenset[int]:
    """The positions of the attackers: clients listed by name or position, or a share of all clients, drawn."""
    if isinstance(attackers, list | tuple | range | np.ndarray):
        clients = frozenset(data.index(client) for client in attackers)
        must(len(clients) < len(data), "attackers", "some of the clients", f"all {len(data)}")
        return clients
    share = float(attackers)
    count = round(share * len(data))
    fits = 0 < count < len(data) or share == 0
    must(fits, "attackers", f"a share that comes to some of the {len(data)} clients", f"{share}, or {count} of them")
    sample = generator(seed, "attackers").choice(len(data), size=count, replace=False)
    return frozenset(int(client) for client in sample)


def check_device(name: str) -> torch.device:
    """The device of that name, if there is one to train on."""
    hint = f"Known: {', '.join(DEVICES)}, auto."
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        constraint = "one with float64, in which losses and weights are added up"
        must(device.type != "mps", "device", constraint, name, "Use cpu.")
        must(device.type in DEVICES, "device", "a device to train on", name, hint)
        torch.zeros(1, device=device)
    except MoietyError:
        raise
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        refuse("device", "a device of this machine", f"{name!r:.60}: {error}", hint)
    return device


def check_part(data: FederatedData, part: str | None, name: str = "evaluate_on") -> str:
    """The part of the data to evaluate on, which must have rows; by default the first that has."""
    if part is None:
        return next(each for each in PARTS if data.sizes(each).any())
    choice(name, part, PARTS)
    has_rows = bool(data.sizes(part).any())
    must(has_rows, name, "a part of the data that has rows", part, "Split the data so that it has some.")
    return part


def check_data(data: FederatedData) -> None:
    """Check that every client has something to train on."""
    empty = np.flatnonzero(data.sizes("train") == 0)
    names = ", ".join(str(data.ids[int(i)]) for i in empty[:3])
    fault = f"none for client {names}{' and others' if len(empty) > 3 else ''}"
    must(len(empty) == 0, "data", "at least one training example for every client", fault)
