"""How uploads travel to the server and are joined there, where a run asks for more than the algorithm's own mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moiety import tree
from moiety.data import FederatedData
from moiety.engines.problem import Problem
from moiety.errors import MoietyError, choice, kind, message, must, number
from moiety.random import generator
from moiety.server.aggregators import aggregator_from
from moiety.server.attacks import ATTACKS, Attack
from moiety.server.robust import Aggregator
from moiety.spec import Spec, build, spec_of
from moiety.transport import CODECS
from moiety.types import Algorithm, ClientUpdate, Codec, Params

PARTICIPATION = ("fixed", "bernoulli")


@dataclass(frozen=True)
class Ways:
    """What a run asks for beside its algorithm. ``attackers`` are the clients that the attack speaks for."""

    aggregator: Aggregator | None = None
    codec: Codec | None = None
    attack: Attack | None = None
    attackers: frozenset[int] = frozenset()
    bernoulli: bool = False
    """Whether each client takes part by itself, with the probability cohort / clients."""

    def poisoned(self, problem: Problem) -> Problem:
        """The problem with the labels of attackers' training rows as the attack has them; those of other rows stay."""
        if self.attack is None or self.attack.labels is None:
            return problem
        y = problem.columns.get("y")
        if y is None:
            hint = "Use an attack on uploads."
            raise MoietyError(
                message("attack", "one on uploads where data have no y", self.attack.spec.get("name", "another"), hint)
            )
        turned = y.clone()
        for client in self.attackers:
            start, stop = problem.data.rows(client, "train")
            turned[start:stop] = self.attack.labels(y[start:stop])
        return replace(problem, columns={**problem.columns, "y": turned})

    def forged(self, updates: Sequence[ClientUpdate], clients: Sequence[int], seed: int, t: int) -> list[ClientUpdate]:
        """The updates, with those of attackers in the place of their own."""
        if self.attack is None:
            return list(updates)
        evil = [i for i, c in enumerate(clients) if c in self.attackers]
        honest = [u for u, c in zip(updates, clients, strict=True) if c not in self.attackers and finite(u)]
        found = list(updates)
        own = [updates[i] for i in evil]
        for i, update in zip(evil, self.attack.send(honest, own, generator(seed, "attack", t)), strict=True):
            found[i] = update
        return found

    def enough(self, uploads: int) -> bool:
        """Whether so many uploads can be joined."""
        return uploads >= (1 if self.aggregator is None else self.aggregator.least)

    def too_few(self) -> str:
        """What is said where a round has not enough of them."""
        least = 1 if self.aggregator is None else self.aggregator.least
        return f"A round with fewer than {least} finite uploads, which the aggregator needs, is left out."

    def join(self, algorithm: Algorithm, updates: Sequence[ClientUpdate], seed: int, t: int) -> Params:
        """The aggregate: by the aggregator that was asked for, else by the algorithm's own."""
        if self.aggregator is None:
            return {} if algorithm.aggregator is None else algorithm.aggregator(updates)
        return self.aggregator.aggregate(updates, generator(seed, "aggregate", t))

    def tables(self) -> dict[str, Spec]:
        """The tables of a configuration that say it."""
        found = {"aggregator": self.aggregator, "codec": self.codec, "attack": self.attack}
        return {name: dict(made.spec) or {"own": name} for name, made in found.items() if made is not None}


def finite(update: ClientUpdate) -> bool:
    """Whether every number of an update is finite."""
    return bool(tree.is_finite(update))


def ways_for(
    data: FederatedData,
    algorithm: Algorithm,
    seed: int,
    cohort: int,
    aggregator: object = None,
    codec: object = None,
    attack: object = None,
    attackers: object = None,
    participation: str = "fixed",
) -> Ways:
    """What was asked for, checked; ``cohort`` is how many clients a round has, or is expected to have."""
    kind("aggregator", aggregator, (Aggregator, type(None)), "what moiety.aggregator makes")
    kind("codec", codec, (Codec, type(None)), "what moiety.codec makes")
    kind("attack", attack, (Attack, type(None)), "what moiety.attack makes")
    given = {"aggregator": aggregator, "codec": codec, "attack": attack}
    for name, thing in given.items():
        wanted = f"left out for {algorithm.name}, whose clients send nothing"
        sends = algorithm.aggregator is not None
        must(thing is None or sends, name, wanted, name)
    must((attack is None) == (attackers is None), "attackers", "given with an attack, and only then", attackers)
    choice("participation", participation, PARTICIPATION)
    evil = frozenset() if attackers is None else chosen_attackers(data, attackers, seed)
    made = Ways(aggregator, codec, attack, evil, participation == "bernoulli")  # type: ignore[arg-type]
    most = len(data) if made.bernoulli else cohort
    if not made.enough(most):
        assert isinstance(aggregator, Aggregator)
        got = f"{aggregator.spec.get('name', 'one')}, which needs at least {aggregator.least}"
        hint = "Ask more clients in a round, or expect fewer Byzantine ones."
        must(False, "aggregator", f"one that can join {most} uploads, the most that a round has", got, hint)
    return made


def chosen_attackers(data: FederatedData, attackers: object, seed: int) -> frozenset[int]:
    """The clients that were named, by names or positions, or a share of all, drawn."""
    if isinstance(attackers, list | tuple | range | np.ndarray):
        named = frozenset(data.index(c) for c in attackers)
        must(len(named) < len(data), "attackers", "some of the clients", f"all {len(data)}")
        return named
    hint = "Names and positions make a list, as in attackers=[0, 3]."
    number("attackers", attackers, "a share >= 0 and < 1, or a list of clients", lambda s: 0 <= s < 1, hint)
    share = float(attackers)  # type: ignore[arg-type]
    count = round(share * len(data))
    whole = 0 < count < len(data) or share == 0
    must(whole, "attackers", f"a share that comes to some of the {len(data)} clients", f"{share}, or {count} of them")
    drawn = generator(seed, "attackers").choice(len(data), size=count, replace=False)
    return frozenset(int(c) for c in drawn)


def ways_from(
    config: Mapping[str, Any], data: FederatedData, algorithm: Algorithm, given: Mapping[str, Any] | None = None
) -> Ways:
    """What the configuration of a run asks for; ``given`` are what it cannot name, and the attackers to compare."""
    options, given = config["run"], dict(given or {})
    attackers, named = given.pop("attackers", None), options.get("attackers")
    seed = options["seed"]
    how = options.get("participation") or "fixed"
    made = ways_for(
        data, algorithm, seed, options["cohort"], **built(config, given), attackers=named, participation=how
    )
    if attackers is not None:
        same = named is not None and chosen_attackers(data, attackers, seed) == made.attackers
        hint = "Leave them out, or begin another run."
        must(same, "attackers", "those that the run began with", attackers, hint)
    return made


def built(config: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the tables of a configuration describe, by name; what it cannot name must be given."""
    makers: dict[str, Callable[[Spec], Any]] = {
        "aggregator": aggregator_from,
        "codec": lambda table: build("codec", CODECS, table),
        "attack": lambda table: build("attack", ATTACKS, table),
    }
    made = {}
    for name, make in makers.items():
        table, thing = config.get(name), (given or {}).get(name)
        own = isinstance(table, dict) and "own" in table
        must(not own or thing is not None, name, "given again", "nothing", f"The run began with {name} of its own.")
        same = thing is None or own or table == spec_of(thing)
        must(same, name, "as the run began with", "another", "Leave it out, or begin another run.")
        made[name] = thing if own else None if table is None else make(table)
    return made


def sent(
    codec: Codec, update: ClientUpdate, rng: np.random.Generator, uncompressed: Callable[[str], bool] | None = None
) -> tuple[ClientUpdate, Params]:
    """An update as it arrives, and what was on the wire."""
    plain = {name: p for name, p in update.upload.items() if uncompressed is not None and uncompressed(name)}
    rest = {name: p for name, p in update.upload.items() if name not in plain}
    packed = codec.encode(rest, rng)
    arrived = {**codec.decode(packed, rest), **plain}
    return update._replace(upload={name: arrived[name] for name in update.upload}), {**packed, **plain}
