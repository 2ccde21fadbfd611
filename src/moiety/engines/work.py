"""What an engine hands to one client: its batches, its numbers and the loss, put together as ``Work``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from moiety.engines.base import RoundInfo
from moiety.engines.jobs import Jobs
from moiety.engines.problem import Problem
from moiety.engines.rows import Job
from moiety.types import Batch, Gradient, LossFunction, Params, Partial, Work

FEATURE_BYTES = 1 << 29
"""Features that take more memory than this are not kept; the whole model is run instead."""
FEATURE_ROWS = 64
"""Features are computed in slices of this many rows, so that the memory of the pass itself stays small."""


@dataclass(frozen=True)
class Batches:
    """The batches of one phase of one client, gathered from ``columns`` one by one.

    ``index`` holds the rows of the batches: flat with the ``sizes`` of the batches, or one batch below the other. Where
    rows come round again, ``own`` selects the client's rows, each once. ``mask`` marks real rows where some are
    padding. ``all_batches`` holds the rows of all batches where the engine has gathered them before.
    """

    columns: Batch
    index: Tensor
    sizes: Sequence[int] | None = None
    own: slice | Tensor | None = None
    mask: Tensor | None = None
    all_batches: Batch | None = None

    def __iter__(self) -> Iterator[Batch]:
        steps = self.index.unbind(0) if self.sizes is None else torch.split(self.index, list(self.sizes))
        for k, rows in enumerate(steps):
            if self.all_batches is None:
                batch = {name: column.index_select(0, rows) for name, column in self.columns.items()}
            else:
                batch = {name: column[k] for name, column in self.all_batches.items()}
            yield batch if self.mask is None else batch | {"mask": self.mask[k]}

    def own_columns(self) -> Batch:
        """The client's rows, each once."""
        return {name: column[self.own] for name, column in self.columns.items()}

    def over(self, own_columns: Batch) -> Batches:
        """The same batches, gathered from columns that hold the client's rows alone."""
        first = self.own.start if isinstance(self.own, slice) else self.own[0]  # type: ignore[index]
        return replace(self, columns=own_columns, index=self.index - first, own=None)


def job_numbers(jobs: Sequence[Job], device: torch.device) -> dict[str, Tensor]:
    """The numbers of ``Work`` that belong to one client, as tensors with a leading axis over the jobs."""
    if isinstance(jobs, Jobs):
        return {
            "examples": torch.full((len(jobs),), float(jobs.examples), dtype=torch.float64, device=device),
            "key": torch.from_numpy(jobs.keys()).to(device),
            "round_trip": torch.zeros(len(jobs), dtype=torch.int64, device=device),
        }
    return {
        "examples": torch.tensor([float(job.examples) for job in jobs], dtype=torch.float64, device=device),
        "key": torch.tensor([job.key for job in jobs], device=device),
        "round_trip": torch.tensor([job.round_trip for job in jobs], device=device),
    }


def make_work(
    problem: Problem,
    batches: Callable[[str], Batches],
    gradient: Gradient,
    numbers: Mapping[str, Tensor],
    turn: int,
    info: RoundInfo,
    *,
    clients: int = 1,
) -> Work:
    """Put together what a client has at hand.

    Args:
        problem: the task, the split and the data.
        batches: from the name of a phase to its batches.
        gradient: how the engine differentiates.
        numbers: the client's entry of ``job_numbers``.
        turn: tells this turn's draws from others.
        info: what all clients of the call have in common.
        clients: how many clients are computed at once and so share the memory for features.
    """
    task, split = problem.task, problem.split

    def reuse(model: Params, trained: frozenset[str], batches: Iterable[Batch]) -> tuple[LossFunction, Iterable[Batch]]:
        partial = problem.find_partial(trained) if isinstance(batches, Batches) and batches.own is not None else None
        if partial is None or not isinstance(batches, Batches):
            return task.loss, batches
        rows = batches.own_columns()
        features = compute_features(partial, model, rows, limit=FEATURE_BYTES // clients)
        if not features:
            return task.loss, batches
        columns = {name: column for name, column in rows.items() if name not in partial.spare}
        return partial.loss, batches.over({**columns, **features})

    return Work(
        task=task,
        shared=split.trained_shared,
        personal=split.trained_personal,
        compose=problem.compose,
        parts=split.parts,
        batches=batches,
        gradient=gradient,
        scale=info.scale,
        turn=turn,
        round=info.round,
        elapsed=info.elapsed,
        reuse=reuse if problem.partial else None,
        partial=problem.find_partial,
        score_cut=problem.find_score_cut,
        **numbers,
    )


def compute_features(partial: Partial, model: Params, columns: Batch, *, limit: int) -> Batch | None:
    """Compute the features of all rows of ``columns``; None where they would take more than ``limit`` bytes."""
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
