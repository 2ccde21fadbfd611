"""How uploads are compressed, attacked and joined, where a run asks for more than the algorithm's own mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moiety import tree
from moiety.data import FederatedData
from moiety.engines.problem import Problem
from moiety.errors import choice, kind, must, number
from moiety.random import generator
from moiety.server.aggregators import aggregator_from
from moiety.server.attacks import ATTACKS, Attack
from moiety.server.robust import Aggregator
from moiety.spec import Spec, build, spec_of
from moiety.transport import CODECS
from moiety.types import Algorithm, ClientUpdate, Codec, Params

PARTICIPATION = ("fixed", "bernoulli")


@dataclass(frozen=True)
class UploadOptions:
    """What a run asks for besides its algorithm. ``attackers`` are the clients that the attack controls."""

    aggregator: Aggregator | None = None
    codec: Codec | None = None
    attack: Attack | None = None
    attackers: frozenset[int] = frozenset()
    bernoulli: bool = False
    """Whether each client takes part by itself, with the probability cohort / clients."""

    @property
    def least(self) -> int:
        """The fewest uploads that can be joined."""
        return 1 if self.aggregator is None else self.aggregator.least

    def poison_labels(self, problem: Problem) -> Problem:
        """The problem with the labels of attackers' training rows as the attack has them; those of other rows stay."""
        if self.attack is None or self.attack.labels is None:
            return problem
        name = self.attack.spec.get("name", "another")
        wanted = "one on uploads where data have no y"
        must("y" in problem.columns, "attack", wanted, name, "Use an attack on uploads.")
        y = problem.columns["y"].clone()
        for client in self.attackers:
            start, stop = problem.data.rows(client, "train")
            y[start:stop] = self.attack.labels(problem.columns["y"][start:stop])
        return replace(problem, columns={**problem.columns, "y": y})

    def forge_updates(
        self, updates: Sequence[ClientUpdate], clients: Sequence[int], seed: int, t: int
    ) -> list[ClientUpdate]:
        """The updates, those of attackers replaced by what the attack sends."""
        forged = list(updates)
        if self.attack is not None:
            evil = [i for i, client in enumerate(clients) if client in self.attackers]
            honest = [u for i, u in enumerate(updates) if i not in evil and tree.is_finite(u)]
            replaced = self.attack.send(honest, [updates[i] for i in evil], generator(seed, "attack", t))
            for i, update in zip(evil, replaced, strict=True):
                forged[i] = update
        return forged

    def explain_too_few(self) -> str:
        """The warning for a round with too few uploads."""
        return f"A round with fewer than {self.least} finite uploads, which the aggregator needs, is left out."

    def join(self, algorithm: Algorithm, updates: Sequence[ClientUpdate], seed: int, t: int) -> Params:
        """The aggregate: by the run's aggregator where there is one, else by the algorithm's own."""
        if self.aggregator is None:
            return {} if algorithm.aggregator is None else algorithm.aggregator(updates)
        return self.aggregator.aggregate(updates, generator(seed, "aggregate", t))

    def describe(self) -> dict[str, Spec]:
        """The tables of a configuration that describe these options."""
        parts = {"aggregator": self.aggregator, "codec": self.codec, "attack": self.attack}
        return {name: dict(part.spec) or {"own": name} for name, part in parts.items() if part is not None}


def check_upload_options(
    data: FederatedData,
    algorithm: Algorithm,
    seed: int,
    cohort: int,
    aggregator: object = None,
    codec: object = None,
    attack: object = None,
    attackers: object = None,
    participation: str = "fixed",
) -> UploadOptions:
    """The checked options; ``cohort`` is how many clients a round has, or is expected to have."""
    sends = algorithm.aggregator is not None
    parts = {"aggregator": (aggregator, Aggregator), "codec": (codec, Codec), "attack": (attack, Attack)}
    for name, (part, wanted) in parts.items():
        kind(name, part, (wanted, type(None)), f"what moiety.{name} makes")
    for name, (part, _) in parts.items():
        must(part is None or sends, name, f"left out for {algorithm.name}, whose clients send nothing", name)
    must((attack is None) == (attackers is None), "attackers", "given with an attack, and only then", attackers)
    choice("participation", participation, PARTICIPATION)
    evil = frozenset() if attackers is None else pick_attackers(data, attackers, seed)
    bernoulli = participation == "bernoulli"
    options = UploadOptions(aggregator, codec, attack, evil, bernoulli)  # type: ignore[arg-type]
    most = len(data) if bernoulli else cohort
    name = (spec_of(aggregator) or {}).get("name", "one")
    got = f"{name}, which needs at least {options.least}"
    hint = "Ask more clients in a round, or expect fewer Byzantine ones."
    must(most >= options.least, "aggregator", f"one that can join {most} uploads, the most of a round", got, hint)
    return options


def pick_attackers(data: FederatedData, attackers: object, seed: int) -> frozenset[int]:
    """The named clients (names or positions), or a share of all clients, drawn."""
    if isinstance(attackers, list | tuple | range | np.ndarray):
        named = frozenset(data.index(c) for c in attackers)
        must(len(named) < len(data), "attackers", "some of the clients", f"all {len(data)}")
        return named
    hint = "Names and positions make a list, as in attackers=[0, 3]."
    number("attackers", attackers, "a share >= 0 and < 1, or a list of clients", lambda s: 0 <= s < 1, hint)
    share = float(attackers)  # type: ignore[arg-type]
    count = round(share * len(data))
    some = 0 < count < len(data) or share == 0
    must(some, "attackers", f"a share that comes to some of the {len(data)} clients", f"{share}, or {count} of them")
    drawn = generator(seed, "attackers").choice(len(data), size=count, replace=False)
    return frozenset(int(c) for c in drawn)


def load_upload_options(
    config: Mapping[str, Any], data: FederatedData, algorithm: Algorithm, given: Mapping[str, Any] | None = None
) -> UploadOptions:
    """The options that the configuration of a run describes.

    ``given`` has the parts that a configuration cannot describe, and attackers, which must be those of the run.
    """
    run, given = config["run"], dict(given or {})
    attackers, seed = given.pop("attackers", None), run["seed"]
    parts = build_upload_parts(config, given)
    named = {"attackers": run.get("attackers"), "participation": run.get("participation") or "fixed"}
    options = check_upload_options(data, algorithm, seed, run["cohort"], **parts, **named)
    if attackers is not None:
        same = named["attackers"] is not None and pick_attackers(data, attackers, seed) == options.attackers
        hint = "Leave them out, or begin another run."
        must(same, "attackers", "those that the run began with", attackers, hint)
    return options


def build_upload_parts(config: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the tables of a configuration describe, by name; what a table cannot describe must be given."""
    builders: dict[str, Callable[[Spec], Any]] = {
        "aggregator": aggregator_from,
        "codec": lambda table: build("codec", CODECS, table),
        "attack": lambda table: build("attack", ATTACKS, table),
    }
    parts = {}
    for name, build_part in builders.items():
        table, part = config.get(name), (given or {}).get(name)
        own = isinstance(table, dict) and "own" in table
        must(not own or part is not None, name, "given again", "nothing", f"The run began with {name} of its own.")
        same = part is None or own or table == spec_of(part)
        must(same, name, "as the run began with", "another", "Leave it out, or begin another run.")
        parts[name] = part if own else None if table is None else build_part(table)
    return parts
