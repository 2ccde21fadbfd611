"""What every engine is: it runs a pure function of one client for many clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from moiety import tree
from moiety.engines.memory import keep_freed_memory
from moiety.engines.problem import Problem
from moiety.engines.rows import Job
from moiety.errors import MoietyError, message, must
from moiety.types import Params, Tree, Work

ClientCall = Callable[[Work, Params, Tree], Tree]
"""A pure function of one client: its work, what it received, its state."""


class ClientFunction(NamedTuple):
    """A function that engines run for clients, and the phases whose batches it uses.

    ``pooled`` marks one whose jobs hold rows of many clients. No engine joins such jobs in blocks.
    """

    call: ClientCall
    phases: tuple[str, ...]
    pooled: bool = False


Functions = Mapping[str, ClientFunction]


class RoundInfo(NamedTuple):
    """What is the same for all clients of one call.

    ``round`` counts from 0 and enters the seeds. ``scale`` is the schedule's factor on learning rates. ``elapsed`` says
    how far the run is: 0 in its first round, 1 in its last.
    """

    round: int = 0
    scale: float = 1.0
    elapsed: float = 0.0


class Results(Sequence[Tree]):
    """Results of jobs, in their order, that lie in one tree: its tensors have a leading axis over the jobs."""

    def __init__(self, stacked: Tree, count: int) -> None:
        self.stacked, self.jobs = stacked, count

    @cached_property
    def _each(self) -> list[Tree]:
        return tree.unstack(self.stacked, self.jobs)

    def __len__(self) -> int:
        return self.jobs

    def __getitem__(self, place: Any) -> Any:
        return self._each[place]


def join_blocks(blocks: Iterable[tuple[list[int], Tree]], count: int) -> Results:
    """Results that came in blocks, each with the places of its jobs among all."""
    result: Tree = {}
    for places, block in blocks:
        if places == list(range(count)):
            return Results(block, count)
        if not tree.values(result):
            result = tree.map_leaves(lambda x: x.new_empty((count, *x.shape[1:])), block)
        for whole, part in zip(tree.values(result), tree.values(block), strict=True):
            whole.index_copy_(0, torch.tensor(places, device=whole.device), part)
    return Results(result, count)


class Engine:
    """Runs functions of one client for many clients. All engines give the same numbers, up to rounding."""

    name: str
    tries: ClassVar[int] = 3
    """How many workers in a row the same clients may bring down."""

    pools: ClassVar[bool] = True
    """Whether a job may hold rows of several clients; not where these are on different machines."""

    def __init__(self, problem: Problem, functions: Functions) -> None:
        self.problem, self.functions = problem, functions
        keep_freed_memory()

    def map(self, function: str, jobs: Sequence[Job], received: Params, info: RoundInfo) -> Sequence[Tree]:
        """Run the function of that name for each job and return the results in the order of the jobs.

        Use or copy the results before the next call: the engine may write to the same memory again.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End the processes that the engine started. Most engines start none."""

    def refuse_device(self) -> None:
        """Raise where the data is on a device that other processes cannot share with this one."""
        kind, instead = self.problem.device.type, "Use engine sequential, vectorised or auto."
        must(kind == "cpu", "device", f"cpu for the engine {self.name}", kind, instead)

    def refuse_writes(self, before: list[int], inputs: Tree, jobs: Sequence[Job], info: RoundInfo) -> None:
        """Raise where an algorithm wrote into what its clients were given; ``before`` is what was counted earlier."""
        if count_writes(inputs) != before:
            clients = ", ".join(str(self.problem.data.ids[job.client]) for job in jobs[:5])
            fault = f"a write in place (client {clients}, round {info.round + 1})"
            constraint = "one that leaves what clients receive, and their states, as they are"
            must(
                False, "algorithm", constraint, fault, "Write p + step in the place of p.add_(step), or clone p first."
            )

    def explain_deaths(self, jobs: Sequence[Job], info: RoundInfo, constraint: str, hint: str) -> MoietyError:
        """The error for clients whose workers died ``tries`` times."""
        clients = ", ".join(str(self.problem.data.ids[job.client]) for job in jobs[:5])
        fault = f"{self.tries} that died in round {info.round + 1} while serving clients {clients}"
        return MoietyError(message("workers", constraint, fault, hint))


def count_writes(inputs: Tree) -> list[int]:
    """For each tensor, how often it was written to in place, as PyTorch counts it for autograd."""
    return [x._version for x in tree.values(inputs) if isinstance(x, Tensor)]
