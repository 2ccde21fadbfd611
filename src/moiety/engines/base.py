"""What every engine is: it runs a pure function of one client for many clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

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
    """A function that engines run for clients, and the phases whose batches it uses."""

    call: ClientCall
    phases: tuple[str, ...]


Functions = Mapping[str, ClientFunction]


class RoundInfo(NamedTuple):
    """What is the same for all clients of one call.

    ``round`` counts from 0 and enters the seeds. ``scale`` is the schedule's factor on learning rates. ``elapsed`` says
    how far the run is: 0 in its first round, 1 in its last.
    """

    round: int = 0
    scale: float = 1.0
    elapsed: float = 0.0


class Engine:
    """Runs functions of one client for many clients. All engines give the same numbers, up to rounding."""

    name: str
    tries: ClassVar[int] = 3
    """How many workers in a row the same clients may bring down."""

    def __init__(self, problem: Problem, functions: Functions) -> None:
        self.problem, self.functions = problem, functions
        keep_freed_memory()

    def map(self, function: str, jobs: Sequence[Job], received: Params, info: RoundInfo) -> list[Tree]:
        """Run the function of that name for each job and return the results in the order of the jobs.

        Use or copy the results before the next call: the engine may write to the same memory again.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End the processes that the engine started. Most engines start none."""

    def refuse_writes(self, before: list[int], given: Tree, jobs: Sequence[Job], info: RoundInfo) -> None:
        """Raise where an algorithm wrote into what its clients were given; ``before`` is what was counted earlier."""
        if count_writes(given) != before:
            clients = ", ".join(str(self.problem.data.ids[job.client]) for job in jobs[:5])
            got = f"a write in place (client {clients}, round {info.round + 1})"
            wanted = "one that leaves what clients receive, and their states, as they are"
            must(False, "algorithm", wanted, got, "Write p + step in the place of p.add_(step), or clone p first.")

    def explain_deaths(self, jobs: Sequence[Job], info: RoundInfo, wanted: str, hint: str) -> MoietyError:
        """The error for clients whose workers died ``tries`` times."""
        clients = ", ".join(str(self.problem.data.ids[job.client]) for job in jobs[:5])
        got = f"{self.tries} that died in round {info.round + 1} while serving clients {clients}"
        return MoietyError(message("workers", wanted, got, hint))


def count_writes(given: Tree) -> list[int]:
    """For each tensor, how often it was written to in place, as PyTorch counts it for autograd."""
    return [x._version for x in tree.values(given) if isinstance(x, Tensor)]
