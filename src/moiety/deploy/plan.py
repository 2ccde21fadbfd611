"""What a user declares for a federation, once for both sides: the server and the devices."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save
from torch import nn

from moiety import task as tasks
from moiety.clients.clock import Asynchronous
from moiety.data import FederatedData
from moiety.deploy.tables import Table
from moiety.engines.problem import Problem
from moiety.errors import choice, kind, must, number, whole
from moiety.loop.exchange import Exchange
from moiety.loop.uploads import UploadOptions
from moiety.run.build import make_problem, suit_run
from moiety.run.checks import check_kinds
from moiety.run.identity import run_identity
from moiety.run.settings import Options, Settings, complete_options
from moiety.seals import digest
from moiety.split import Split
from moiety.transport import Ledger
from moiety.types import Algorithm, Task

SHARES = ("none", "histogram", "per_client")
FLOOR = 5
"""A histogram of fewer clients than this is not recorded, where nothing else is said."""
Load = Callable[[Mapping[str, Any]], Any]
"""From the configuration of a node to its data."""
SIMULATED = ("attack", "attackers", "workers", "evaluate_clients")
"""Settings that make sense in a simulation alone."""


@dataclass(frozen=True)
class Plan:
    """Everything that server and devices must agree on, and how the server waits; ``app`` says what each is."""

    model: nn.Module | Task
    algorithm: Algorithm
    data: Load | Table
    rounds: int
    split: Split | None = None
    cohort: int | None = None
    clients: int = 2
    seed: int = 0
    out: str | os.PathLike[str] = "federation"
    loss: tasks.Loss | None = None
    metric: tasks.Metrics | None = None
    deadline: float = 600.0
    least: int = 1
    share_metrics: str = "none"
    floor: int = FLOOR
    largest_message: int = 1 << 31
    safeguard: bool = False
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        """Check what can be checked before any device is known."""
        check_kinds(self.model, _no_data(), self.algorithm, self.split)
        must(
            callable(self.data) or isinstance(self.data, Table),
            "data",
            "a function of the node's configuration, or moiety.deploy.table(...)",
            type(self.data).__name__,
        )
        for name in ("rounds", "clients", "least", "floor", "largest_message"):
            whole(name, getattr(self, name), 1, 1 << 40)
        number("deadline", self.deadline, "> 0 seconds", lambda x: 0 < x < math.inf)
        choice("share_metrics", self.share_metrics, SHARES)
        kind("safeguard", self.safeguard, bool, "true or false")
        kind("settings", self.settings, Settings, "moiety.Settings(...)")
        for name in SIMULATED:
            must(getattr(self.settings, name) is None, name, "left out on devices", getattr(self.settings, name))
        clock = self.settings.clock
        must(
            clock is None or isinstance(clock, Asynchronous),
            "clock",
            "left out or asynchronous on devices, whose delays are real",
            type(clock).__name__,
        )
        every = self.settings.checkpoint_every
        must(every in (None, 1), "checkpoint_every", "1 on devices, so that the server never goes back", every)
        if self.cohort is not None:
            must(self.least <= self.cohort, "least", f"<= {self.cohort}, the cohort", self.least)

    @property
    def ttl(self) -> float:
        """Seconds for which Flower keeps a message and its answer."""
        return 2 * self.deadline + 60

    @property
    def folder(self) -> Path:
        """Where the server keeps the run."""
        return Path(self.out)

    def server_options(self, data: FederatedData) -> Options:
        """The options of the run, complete; ``data`` has the clients and their sizes, but no rows."""
        options = Options(
            rounds=self.rounds,
            cohort=self.cohort,
            seed=self.seed,
            loss=self.loss,
            metric=self.metric,
            engine="sequential",
            settings=replace(self.settings, checkpoint_every=1),
        )
        return complete_options(options, self.model, data, self.algorithm)

    def device_options(self, data: FederatedData) -> Options:
        """The options that a device needs, complete, for its own ``data``."""
        settings = replace(
            self.settings,
            aggregator=None,
            clock=None,
            codec=None,
            privacy=None,
            participation="fixed",
            evaluate_every=None,
        )
        options = Options(rounds=self.rounds, seed=self.seed, loss=self.loss, metric=self.metric, settings=settings)
        return complete_options(options, self.model, data, self.algorithm)

    def make_problem(self, data: FederatedData, options: Options) -> tuple[Problem, Algorithm]:
        """The checked problem, and the algorithm with what it leaves to the loss."""
        algorithm = suit_run(self.algorithm, options)
        return make_problem(self.model, data, algorithm, self.split, options), algorithm

    def exchange(self, problem: Problem, algorithm: Algorithm) -> Exchange:
        """What checks and packs messages of that problem."""
        settings = self.settings
        return Exchange(problem, algorithm, UploadOptions(codec=settings.codec, privacy=settings.privacy), Ledger())

    def describe(self, problem: Problem, algorithm: Algorithm, options: Options) -> dict[str, Any]:
        """What both sides must agree on, as JSON holds it: compared with ``check_identity`` when a device joins."""
        identity = run_identity(problem, algorithm, options)
        common = {
            key: identity[key] for key in ("algorithm", "shared", "personal", "frozen", "model", "metric", "seed")
        }
        first = digest(save({name: p.contiguous() for name, p in problem.task.init.items()}))
        codec, privacy = self.settings.codec, self.settings.privacy
        table = {
            **common,
            "first values": first,
            "codec": None if codec is None else codec.spec,
            "privacy": None if privacy is None else privacy.spec,
            "precision": self.settings.precision,
            "share_metrics": self.share_metrics,
            **({"safeguard": True} if self.safeguard else {}),
        }
        normal: dict[str, Any] = json.loads(json.dumps(table))
        return normal


def digest_of(description: Mapping[str, Any]) -> str:
    """A short hash of what both sides agree on; every message carries it."""
    return digest(json.dumps(description, sort_keys=True).encode())


def _no_data() -> FederatedData:
    """Data of one row, for checks that look at kinds alone."""
    return FederatedData({"x": np.zeros(1)}, np.array([[0, 1, 1, 1]]), ["nobody"])
