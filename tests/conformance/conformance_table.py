"""The conformance table: a row per algorithm. Adding an algorithm is adding a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import oracle_problems as problems
import torch
from torch import nn

import moiety as mo
from moiety.algorithms import ALGORITHMS
from moiety.engines.problem import Problem
from moiety.split import Split
from moiety.task import from_module
from moiety.types import Algorithm


@dataclass(frozen=True)
class Row:
    """How to build an algorithm and what it shares.

    ``build(**options)`` takes the options that all have (batch_size, shuffle, momentum, weight_decay, clip).
    ``one_step`` makes it take a single full-batch step on each block. ``personal`` says which blocks of a
    least-squares problem with blocks u and v are each client's own, ``split`` does it for a module with layers
    ``hidden1`` and ``head``.
    """

    name: str
    build: Callable[..., Algorithm]
    one_step: dict[str, int]
    personal: tuple[str, ...]
    split: Callable[[nn.Module], Split]
    weighted: bool = True
    """Whether it has the option ``weighting``."""

    def weightings(self) -> list[dict[str, Any]]:
        return [{"weighting": w} for w in ("examples", "batches", "uniform")] if self.weighted else [{}]


def _head(model: nn.Module) -> Split:
    return mo.split.by_name(model, personal=["head"])


TABLE = [
    Row("fedavg", lambda **o: mo.fedavg(lr=0.1, **o), {"steps": 1}, (), mo.split.nothing),
    Row(
        "fedalt",
        lambda **o: mo.fedalt(shared_lr=0.1, personal_lr=0.2, **o),
        {"shared_steps": 1, "personal_steps": 1},
        ("v",),
        _head,
    ),
    Row("fedsim", lambda **o: mo.fedsim(shared_lr=0.1, personal_lr=0.2, **o), {"steps": 1}, ("v",), _head),
    Row("local_only", lambda **o: mo.local_only(lr=0.1, **o), {"steps": 1}, ("u", "v"), mo.split.everything, False),
]
NAMES = [row.name for row in TABLE]


def mlp_problem(row: Row, sizes=(5, 1, 9), dtype=torch.float32, seed: int = 0) -> Problem:
    """A small classifier on uneven clients."""
    model = mo.models.mlp(4, 3, hidden=(6,), seed=1).to(dtype)
    task = from_module(model, loss="cross_entropy")
    data = problems.federated(problems.image_clients(sizes))
    return problems.problem_of(task, data, row.split(model), seed)


def table_is_complete() -> bool:
    return set(NAMES) == set(ALGORITHMS)
