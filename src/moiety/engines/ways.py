"""How uploads travel to the server and are joined there, where a run asks for more than the algorithm's own mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moiety import tree
from moiety.aggregation.attacks import ATTACKS, Attack
from moiety.aggregation.preaggregation import aggregator_from
from moiety.aggregation.robust import Aggregator
from moiety.data import FederatedData
from moiety.errors import kind, must, number
from moiety.rng import generator
from moiety.spec import Spec, build
from moiety.transport import CODECS
from moiety.types import Algorithm, ClientUpdate, Codec, Params


@dataclass(frozen=True)
class Ways:
    """What a run asks for beside its algorithm. ``attackers`` are the clients that the attack speaks for."""

    aggregator: Aggregator | None = None
    codec: Codec | None = None
    attack: Attack | None = None
    attackers: frozenset[int] = frozenset()

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

    def join(self, algorithm: Algorithm, updates: Sequence[ClientUpdate], seed: int, t: int) -> Params:
        """The aggregate: by the aggregator that was asked for, else by the algorithm's own."""
        if self.aggregator is None:
            return algorithm.aggregator(updates)
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
    aggregator: object = None,
    codec: object = None,
    attack: object = None,
    attackers: object = None,
) -> Ways:
    """What was asked for, checked."""
    kind("aggregator", aggregator, (Aggregator, type(None)), "what moiety.aggregator makes")
    kind("codec", codec, (Codec, type(None)), "what moiety.codec makes")
    kind("attack", attack, (Attack, type(None)), "what moiety.attack makes")
    given = {"aggregator": aggregator, "codec": codec, "attack": attack}
    for name, thing in given.items():
        must(
            thing is None or algorithm.uploads, name, f"left out for {algorithm.name}, whose clients send nothing", name
        )
    must((attack is None) == (attackers is None), "attackers", "given with an attack, and only then", attackers)
    evil = frozenset() if attackers is None else chosen_attackers(data, attackers, seed)
    return Ways(aggregator, codec, attack, evil)  # type: ignore[arg-type]


def chosen_attackers(data: FederatedData, attackers: object, seed: int) -> frozenset[int]:
    """The clients that were named, or a share of all, drawn."""
    if isinstance(attackers, list | tuple | range):
        return frozenset(data.index(c) for c in attackers)
    number("attackers", attackers, "a share >= 0 and < 1, or a list of clients", lambda s: 0 <= s < 1)
    count = round(float(attackers) * len(data))  # type: ignore[arg-type]
    drawn = generator(seed, "attackers").choice(len(data), size=count, replace=False)
    return frozenset(int(c) for c in drawn)


def ways_from(config: Mapping[str, Any], data: FederatedData, algorithm: Algorithm, seed: int) -> Ways:
    """What the tables of a configuration ask for."""
    return ways_for(data, algorithm, seed, **built(config), attackers=config.get("run", {}).get("attackers"))


def built(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the tables of a configuration describe, by name."""
    tables = {name: config.get(name) for name in ("aggregator", "codec", "attack")}
    for name, table in tables.items():
        own = isinstance(table, dict) and table.get("own")
        must(not own, name, "one that the file names", "the user's own", "Such a run can be repeated from Python only.")
    makers: dict[str, Callable[[Spec], Any]] = {
        "aggregator": aggregator_from,
        "codec": lambda table: build("codec", CODECS, table),
        "attack": lambda table: build("attack", ATTACKS, table),
    }
    return {name: None if table is None else makers[name](table) for name, table in tables.items()}


def sent(codec: Codec, update: ClientUpdate, rng: np.random.Generator) -> tuple[ClientUpdate, Params]:
    """An update as it arrives, and what was on the wire."""
    packed = codec.encode(update.upload, rng)
    return update._replace(upload=codec.decode(packed, update.upload)), packed
