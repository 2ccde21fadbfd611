"""How uploads travel to the server and are joined there, where a run asks for more than the algorithm's own mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from moiety import tree
from moiety.engines.problem import Problem
from moiety.errors import MoietyError, message
from moiety.random import generator
from moiety.server.attacks import Attack
from moiety.server.robust import Aggregator
from moiety.types import Algorithm, ClientUpdate, Codec, Params


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
            return algorithm.aggregator(updates)
        return self.aggregator.aggregate(updates, generator(seed, "aggregate", t))


def finite(update: ClientUpdate) -> bool:
    """Whether every number of an update is finite."""
    return bool(tree.is_finite(update))


def sent(
    codec: Codec, update: ClientUpdate, rng: np.random.Generator, uncompressed: Callable[[str], bool] | None = None
) -> tuple[ClientUpdate, Params]:
    """An update as it arrives, and what was on the wire."""
    plain = {name: p for name, p in update.upload.items() if uncompressed is not None and uncompressed(name)}
    rest = {name: p for name, p in update.upload.items() if name not in plain}
    packed = codec.encode(rest, rng)
    arrived = {**codec.decode(packed, rest), **plain}
    return update._replace(upload={name: arrived[name] for name in update.upload}), {**packed, **plain}
