"""One federated problem as engines see it: the task, the split, and the data as tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from moiety import tree
from moiety.data import FederatedData
from moiety.engines.jobs import Jobs
from moiety.engines.rows import AlikeRows, Job, plan_rows
from moiety.random import hash_words, torch_seed
from moiety.split import Split
from moiety.task import backprop_bytes, dtype_of
from moiety.types import Algorithm, Batch, Params, Partial, PartialScores, Phase, Task, Tree


@dataclass(frozen=True)
class Problem:
    """What stays the same through a run. ``columns`` are the data as tensors, all clients one below the other."""

    task: Task
    split: Split
    data: FederatedData
    columns: Batch
    seed: int
    partial: bool = True
    """Whether to compute once per row what the trained parameters do not reach, where rows come round again."""
    quiet: bool = False
    """Whether to collect warnings in ``warned`` without showing them."""
    warned: set[str] = field(default_factory=set)

    @property
    def device(self) -> torch.device:
        """Where the data is, and all that is computed."""
        return next(iter(self.columns.values())).device

    def first_shared(self) -> tuple[Params, Params]:
        """The first values of the shared parameters and of the shared running statistics."""
        init, buffers = self.task.init, self.task.buffers
        names = self.split.shared
        return {n: init[n] for n in names if n not in buffers}, {n: init[n] for n in names if n in buffers}

    def first_personal(self) -> Params:
        """The first values of the personal part."""
        return self.split.parts(self.task.init)[1]

    def first_state(self, algorithm: Algorithm) -> Tree:
        """The state that a client of ``algorithm`` starts with."""
        shared, statistics = self.first_shared()
        return algorithm.init_client({**shared, **statistics}, self.first_personal())

    def first_server(self, algorithm: Algorithm) -> Tree:
        """The server of ``algorithm`` before the first round."""
        shared, statistics = self.first_shared()
        return algorithm.init_server(shared, statistics, self.first_personal())

    def broadcast(self, algorithm: Algorithm, server: Tree) -> Params:
        """What the server sends, copied: nothing that is done with it reaches the server."""
        params: Params = tree.clone(algorithm.broadcast(server))
        return params

    def shared_model(self, algorithm: Algorithm, received: Params) -> Params:
        """The model of a client without personal values: the server's part, and the first personal part."""
        return self.compose(*self.shared_parts(algorithm)(received))

    def shares_whole_model(self, algorithm: Algorithm, received: Params) -> bool:
        """Whether the server trains all of that model: it moves where what is received moves.

        A server that trains nothing leaves the model that the run was given as it is, which counts as whole.
        """
        if algorithm.aggregator is None:
            return True
        other = {name: p + 1 if p.is_floating_point() else p for name, p in received.items()}
        now, after = self.shared_model(algorithm, received), self.shared_model(algorithm, other)
        names = (*self.split.trained_shared, *self.split.trained_personal)
        return all(not torch.equal(now[name], after[name]) for name in names)

    def shared_parts(self, algorithm: Algorithm) -> Callable[[Params], tuple[Params, Params]]:
        """From a broadcast to the two parts of that model. It holds nothing of the data, and can be sent."""
        split, first = self.split, self.first_state(algorithm)
        dense = algorithm.sparsity and algorithm.sparsity.shared_model
        model = dense or algorithm.personal_model
        return lambda received: split.shared_model(*model(received, first))

    def compose(self, shared: Params, personal: Params) -> Params:
        """A whole model from its two parts and the frozen one."""
        return self.split.compose(shared, personal, {n: self.task.init[n] for n in self.split.frozen})

    def find_partial(self, trained: frozenset[str]) -> Partial | None:
        """How to train some parameters with the rest computed once; warns once where that cannot be done."""
        rows = {name: column[:3].clone() for name, column in self.columns.items()}
        partial = self.task.partial(trained, self.task.init, rows) if self.partial else None
        if isinstance(partial, str) and not any(partial in text for text in self.warned):
            block = f"{sorted(trained)[0]} ({len(trained)} tensors)"
            self.warn_once([f"Partial evaluation is off for the block of {block}: {partial}."])
        return partial if isinstance(partial, Partial) else None

    def find_score_cut(self, own: frozenset[str]) -> PartialScores | None:
        """How to score models that differ in their ``own`` parameters alone, with the rest computed once."""
        rows = {name: column[:3].clone() for name, column in self.columns.items()}
        return self.task.partial_scores(own, self.task.init, rows) if self.partial else None

    def warn_once(self, texts: Iterable[str]) -> None:
        """Show each warning once in a run; where ``quiet``, only remember it."""
        for text in texts:
            if text not in self.warned:
                self.warned.add(text)
                if not self.quiet:
                    warnings.warn(text, stacklevel=2)

    def make_jobs(
        self, phases: Mapping[str, Phase], clients: Iterable[int], states: Iterable[Tree], *words: str | int, part: str
    ) -> Sequence[Job]:
        """One job for each of ``clients``; ``words`` (purpose, round) tell one turn's shuffles from another's."""
        turn, key = hash_words(*words), hash_words("client", self.seed)
        at = np.asarray(clients if isinstance(clients, Sequence | np.ndarray) else list(clients), dtype=np.int64)
        places, states = at.tolist(), list(states)
        starts, stops = self.data.edges(at, part)
        plans = {
            name: plan_rows(phase, places, starts, stops, name, *words, seed=self.seed)
            for name, phase in phases.items()
        }
        alike = {name: plan for name, plan in plans.items() if isinstance(plan, AlikeRows)}
        if alike and len(alike) == len(plans):
            return Jobs(places, int(stops[0] - starts[0]), states, alike, key, turn)
        sizes = (stops - starts).tolist()
        return [
            Job(client, {name: plan[i] for name, plan in plans.items()}, size, state, key ^ client, turn)
            for i, (client, size, state) in enumerate(zip(places, sizes, states, strict=True))
        ]

    def client_key(self, client: int) -> int:
        """The client's own key for ``moiety.random``."""
        return hash_words("client", self.seed) ^ client

    def backprop_bytes(self, rows: Sequence[int] | np.ndarray) -> int:
        """Bytes that autograd keeps for a batch of these rows while all trained parameters are trained."""
        index = torch.as_tensor(rows, device=self.device)
        batch = {name: column.index_select(0, index) for name, column in self.columns.items()}
        with torch_seed(self.seed, "memory"):
            return backprop_bytes(self.task, batch, (*self.split.trained_shared, *self.split.trained_personal))


def to_tensors(columns: Mapping[str, np.ndarray], task: Task, device: torch.device) -> Batch:
    """Columns as tensors: floating ones, and bytes, in the model's precision; other integers as int64.

    Labels stay integers. Nothing is copied where the type is right already, so mapped files stay on disk.
    """
    dtype = dtype_of(task)
    tensors = {}
    for name, array in columns.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a mapped file is not writable, and nothing here writes
            # One row that stands for all, as where rows are on devices, is not written out.
            same = len(array) > 1 and np.asarray(array).strides[0] == 0
            tensor = torch.from_numpy(np.asarray(array[:1] if same else array))
        floating = tensor.is_floating_point() or (tensor.dtype == torch.uint8 and name != "y")
        tensor = tensor.to(device, dtype if floating else torch.int64)
        tensors[name] = tensor.expand(len(array), *tensor.shape[1:]) if same else tensor
    return tensors
