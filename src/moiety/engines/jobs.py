"""Turns of many clients that are alike, held as columns: nothing is made for each client before it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

import numpy as np

from moiety.engines.rows import AlikeRows, Job
from moiety.types import Tree


class Jobs(Sequence[Job]):
    """Jobs of clients that have as many examples, and go through as many rows in batches of the same sizes.

    Args:
        clients: their positions.
        examples: how many training examples each has.
        states: of each client.
        rows: by phase.
        key: the client at position c has the key ``key ^ c``.
        turn: of all of them.
    """

    def __init__(
        self,
        clients: Sequence[int],
        examples: int,
        states: Sequence[Tree],
        rows: Mapping[str, AlikeRows],
        key: int,
        turn: int,
    ) -> None:
        if not len(clients) == len(states) == len(next(iter(rows.values()))):
            raise ValueError("as many clients, states and rows are needed")
        self.clients, self.examples, self.states = clients, examples, states
        self.rows, self.key, self.turn = rows, key, turn

    def __len__(self) -> int:
        return len(self.clients)

    @overload
    def __getitem__(self, at: int) -> Job: ...
    @overload
    def __getitem__(self, at: slice | list[int]) -> Jobs: ...
    def __getitem__(self, at: int | slice | list[int]) -> Job | Jobs:
        if isinstance(at, slice | list):
            if isinstance(at, list):
                clients, states = [self.clients[i] for i in at], [self.states[i] for i in at]
            else:
                clients, states = list(self.clients[at]), list(self.states[at])
            rows = {phase: plan[at] for phase, plan in self.rows.items()}
            return Jobs(clients, self.examples, states, rows, self.key, self.turn)
        client = self.clients[at]
        own = {phase: plan[at] for phase, plan in self.rows.items()}
        return Job(client, own, self.examples, self.states[at], self.key ^ client, self.turn)

    def keys(self) -> np.ndarray:
        """The key of each client."""
        keys: np.ndarray = np.int64(self.key) ^ np.asarray(self.clients, dtype=np.int64)
        return keys


def take_jobs(jobs: Sequence[Job], places: list[int]) -> Sequence[Job]:
    """The jobs at some places, each named once."""
    if not isinstance(jobs, Jobs):
        return [jobs[i] for i in places]
    return jobs if places == list(range(len(jobs))) else jobs[places]


def clients_of(jobs: Sequence[Job]) -> list[int]:
    """The clients of jobs, by position."""
    return list(jobs.clients) if isinstance(jobs, Jobs) else [job.client for job in jobs]


def states_of(jobs: Sequence[Job]) -> Sequence[Tree]:
    """The states of the clients of jobs."""
    return jobs.states if isinstance(jobs, Jobs) else [job.state for job in jobs]


def with_states(jobs: Sequence[Job], states: Sequence[Tree]) -> Sequence[Job]:
    """The same jobs with other states."""
    if isinstance(jobs, Jobs):
        return Jobs(jobs.clients, jobs.examples, states, jobs.rows, jobs.key, jobs.turn)
    return [job._replace(state=state) for job, state in zip(jobs, states, strict=True)]
