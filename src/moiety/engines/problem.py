"""One federated problem as engines see it: task, split, and the data as tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from moiety.data import FederatedData
from moiety.engines.rows import Job, phase_rows
from moiety.random import hashed
from moiety.split import Split
from moiety.task import dtype_of
from moiety.types import Algorithm, Batch, Gradient, Params, Partial, Phase, Reuse, Task, Tree, Work

Function = Callable[[Work, Params, Tree], Tree]
"""A pure function of one client: its work, what it received, its state."""


class Served(NamedTuple):
    """A function that an engine runs for clients, and the phases whose batches it asks for."""

    call: Function
    phases: tuple[str, ...]


Functions = Mapping[str, Served]


@dataclass(frozen=True)
class Problem:
    """What stays the same through a run. ``columns`` are the data as tensors, all clients one below the other."""

    task: Task
    split: Split
    data: FederatedData
    columns: Batch
    seed: int
    partial: bool = True
    """Whether what trained parameters do not reach is computed once per row where rows come round again."""
    quiet: bool = False
    """Whether to keep what is to be said, in ``said``, instead of saying it."""
    said: set[str] = field(default_factory=set)

    def shared(self) -> tuple[Params, Params]:
        """The first values of the shared parameters and of the shared running statistics."""
        init, buffers = self.task.init, self.task.buffers
        names = self.split.shared
        return {n: init[n] for n in names if n not in buffers}, {n: init[n] for n in names if n in buffers}

    def personal(self) -> Params:
        """The first values of the personal part."""
        return self.split.init_personal(self.task.init)

    def first(self, algorithm: Algorithm) -> Tree:
        """The state that a client of ``algorithm`` starts with."""
        shared, statistics = self.shared()
        return algorithm.init_client({**shared, **statistics}, self.personal())

    def server(self, algorithm: Algorithm) -> Tree:
        """The server of ``algorithm`` before the first round."""
        shared, statistics = self.shared()
        if algorithm.beside is not None:
            shared = {**shared, **algorithm.beside({**shared, **statistics}, self.personal())}
        return algorithm.init_server(shared, statistics)

    def alone(self, algorithm: Algorithm, received: Params) -> Params:
        """The shared model alone: the server's part, with the personal part as it was first."""
        parts = (algorithm.alone or algorithm.personal_model)(received, self.first(algorithm))
        return self.compose(*self.split.shared_model(*parts))

    def compose(self, shared: Params, personal: Params) -> Params:
        """A whole model of its two parts and the frozen one."""
        return self.split.compose(shared, personal, {n: self.task.init[n] for n in self.split.frozen})

    def work(
        self,
        batches: Callable[[str], Iterable[Batch]],
        gradient: Gradient,
        examples: Tensor,
        scale: float,
        reuse: Reuse | None = None,
        *,
        key: Tensor,
        turn: int,
        elapsed: float,
        round_trip: Tensor,
    ) -> Work:
        """What a client has at hand."""
        return Work(
            task=self.task,
            shared=self.split.trained_shared,
            personal=self.split.trained_personal,
            compose=self.compose,
            parts=self.split.parts,
            batches=batches,
            gradient=gradient,
            scale=scale,
            examples=examples,
            key=key,
            turn=turn,
            elapsed=elapsed,
            round_trip=round_trip,
            reuse=reuse,
            partial=self.reusable,
        )

    def reusable(self, trained: frozenset[str]) -> Partial | None:
        """How to train some parameters with the rest computed once; where it cannot be done, that is said once."""
        few = {name: column[:3].clone() for name, column in self.columns.items()}
        found = self.task.partial(trained, self.task.init, few) if self.partial else None
        if isinstance(found, str) and not any(found in text for text in self.said):
            block = f"{sorted(trained)[0]} ({len(trained)} tensors)"
            self.say([f"Partial evaluation is off for the block of {block}: {found}."])
        return found if isinstance(found, Partial) else None

    def say(self, texts: Iterable[str]) -> None:
        """Warn of each text once in a run; where ``quiet``, only keep it."""
        for text in texts:
            if text not in self.said:
                self.said.add(text)
                if not self.quiet:
                    warnings.warn(text, stacklevel=2)

    def jobs(
        self, phases: Mapping[str, Phase], clients: Iterable[int], states: Iterable[Tree], *words: str | int, part: str
    ) -> list[Job]:
        """A turn for each of ``clients``; ``words`` (purpose, round) tell one turn's shuffles from another's."""
        made = []
        turn = hashed(*words)
        for client, state in zip(map(int, clients), states, strict=True):
            start, stop = self.data.rows(client, part)
            rows = {
                name: phase_rows(phase, start, stop, name, *words, client, seed=self.seed)
                for name, phase in phases.items()
            }
            made.append(Job(client, rows, stop - start, state, self.key(client), turn))
        return made

    def key(self, client: int) -> int:
        """The client's own key for ``moiety.random``."""
        return hashed("client", self.seed) ^ client


FEATURE_BYTES = 1 << 29
"""Features of more than this are not kept; the whole model is run instead."""
FEATURE_ROWS = 64
"""Features are computed in slices of this many rows, so that the memory of the pass itself stays small."""


def sliced_features(partial: Partial, model: Params, columns: Batch, *, limit: int) -> Batch | None:
    """The features of all rows of ``columns``, or None where they would take more than ``limit`` bytes."""
    rows = len(next(iter(columns.values())))
    slices: list[Batch] = []
    for at in range(0, rows, FEATURE_ROWS):
        # Copied, as every batch is: a model may edit its input.
        slices.append(partial.features(model, {n: c[at : at + FEATURE_ROWS].clone() for n, c in columns.items()}))
        if at == 0:
            per_row = sum(f[0].numel() * f.element_size() for f in slices[0].values())
            if per_row * rows > limit:
                return None
    return {name: torch.cat([s[name] for s in slices]) for name in slices[0]}


def to_tensors(data: FederatedData, task: Task, device: torch.device) -> Batch:
    """The columns of all clients as tensors."""
    return as_tensors(data.columns, task, device)


def as_tensors(given: Mapping[str, np.ndarray], task: Task, device: torch.device) -> Batch:
    """Columns as tensors: floating ones, and bytes, in the model's precision; other integers as int64.

    Labels stay integers. Nothing is copied where the type is right already, so mapped files stay on disk.
    """
    dtype = dtype_of(task)
    columns = {}
    for name, array in given.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a mapped file is not writable, and nothing here writes
            tensor = torch.from_numpy(np.asarray(array))
        floating = tensor.is_floating_point() or (tensor.dtype == torch.uint8 and name != "y")
        columns[name] = tensor.to(device, dtype if floating else torch.int64)
    return columns
