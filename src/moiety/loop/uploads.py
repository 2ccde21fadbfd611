"""How uploads are compressed, attacked and joined, where a run asks for more than the algorithm's own mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from moiety import tree
from moiety.engines.problem import Problem
from moiety.errors import must
from moiety.random import generator
from moiety.server.attacks import Attack
from moiety.server.mean import RUNNING, RunningSum, weighted_mean
from moiety.server.robust import Aggregator
from moiety.transport.privacy import Gaussian
from moiety.types import Algorithm, ClientUpdate, Codec, Params


@dataclass(frozen=True)
class UploadOptions:
    """What a run asks for besides its algorithm. ``attackers`` are the clients that the attack controls."""

    aggregator: Aggregator | None = None
    codec: Codec | None = None
    attack: Attack | None = None
    attackers: frozenset[int] = frozenset()
    bernoulli: bool = False
    """Whether each client takes part independently, with the probability cohort / clients."""
    privacy: Gaussian | None = None

    def count_needed(self, dropped: int) -> int:
        """The fewest uploads that can be joined where so many others of the round were dropped."""
        return 1 if self.aggregator is None else self.aggregator.without(dropped).least

    def poison_labels(self, problem: Problem) -> Problem:
        """The problem with the labels of attackers' training rows as the attack has them; those of other rows stay."""
        if self.attack is None or self.attack.labels is None:
            return problem
        name = self.attack.spec.get("name", "another")
        constraint = "one on uploads where data have no y"
        must("y" in problem.columns, "attack", constraint, name, "Use an attack on uploads.")
        y = problem.columns["y"].clone()
        for client in self.attackers:
            start, stop = problem.data.rows(client, "train")
            y[start:stop] = self.attack.labels(problem.columns["y"][start:stop])
        return replace(problem, columns={**problem.columns, "y": y})

    def forge_updates(
        self, updates: Sequence[ClientUpdate], clients: Sequence[int], seed: int, t: int
    ) -> list[ClientUpdate]:
        """The updates, those of attackers replaced by what the attack sends."""
        result = list(updates)
        if self.attack is not None:
            evil = [i for i, client in enumerate(clients) if client in self.attackers]
            honest = [u for i, u in enumerate(updates) if i not in evil and tree.is_finite(u)]
            replacements = self.attack.send(honest, [updates[i] for i in evil], generator(seed, "attack", t))
            for i, update in zip(evil, replacements, strict=True):
                result[i] = update
        return result

    def running_sum(self, algorithm: Algorithm) -> RunningSum | None:
        """What adds uploads as they arrive; None where the aggregate, or the attack, needs all of a round at once."""
        plain = algorithm.aggregator if self.aggregator is None else weighted_mean if self.aggregator.weighted else None
        return RUNNING[plain]() if plain is not None and plain in RUNNING and self.attack is None else None

    def join(self, algorithm: Algorithm, updates: Sequence[ClientUpdate], seed: int, t: int, dropped: int) -> Params:
        """The aggregate: by the run's aggregator where there is one, else by the algorithm's own.

        Uploads that were ``dropped`` count as Byzantine ones that the aggregator need not expect any more.
        """
        if self.aggregator is None:
            return {} if algorithm.aggregator is None else algorithm.aggregator(updates)
        return self.aggregator.without(dropped).aggregate(updates, generator(seed, "aggregate", t))
