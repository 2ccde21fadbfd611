"""The conformance table: a row per algorithm. Adding an algorithm is adding a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import oracle_numpy as ref
import oracle_problems as problems
import oracle_pulled as pulled
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
    ``hidden1`` and ``head``. ``limit(clients, weights, start)`` says where least squares end, as shared blocks and
    the clients' own; by default at the minimiser of the weighted mean over both. ``variant`` tells two rows apart.
    """

    name: str
    build: Callable[..., Algorithm]
    one_step: dict[str, int]
    personal: tuple[str, ...]
    split: Callable[[nn.Module], Split]
    weighted: bool = True
    """Whether it has the options ``weighting`` and ``server``."""
    limit: Callable[..., tuple[dict[str, Any], list[dict[str, Any]]]] | None = None
    variant: str = ""

    def weightings(self) -> list[dict[str, Any]]:
        return [{"weighting": w} for w in ("examples", "batches", "uniform")] if self.weighted else [{}]

    def ends(self, clients: Any, weights: Any, start: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Where it ends on least squares in the blocks u and v."""
        if self.limit is not None:
            return self.limit(clients, weights, start)
        return ref.minimiser(clients, weights, MATRICES, self.personal)[:2]


MATRICES = {"u": "a", "v": "b"}
"""The blocks of a least-squares problem and the columns that go with them."""


def _head(model: nn.Module) -> Split:
    return mo.split.by_name(model, personal=["head"])


def _ffgg(batch_size=None, weighting="examples", server=None, inner_steps=3, **solver: Any) -> Algorithm:
    """FFGG by Algorithm 2; what is said of steps is said of the solver's."""
    inner = mo.solver.sgd(lr=0.4, steps=inner_steps, batch_size=batch_size, **solver)
    return mo.ffgg(lr=0.3, solver=inner, batch_size=batch_size, weighting=weighting, server=server)


def _local_ffgg(inner_steps=2, momentum=0.0, **options: Any) -> Algorithm:
    """Local FFGG by conjugate gradients. Momentum would have no step to last to."""
    inner = mo.solver.conjugate_gradient(steps=inner_steps)
    return mo.local_ffgg(shared_lr=0.3, personal_lr=0.2, solver=inner, **{"weighting": "examples", **options})


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
    Row(
        "finetune",
        lambda **o: mo.finetune(lr=0.2, **o),
        {"steps": 1},
        ("v",),
        _head,
        weighted=False,
        limit=lambda clients, weights, start: pulled.finetuned_limit(clients, start, MATRICES, ("v",)),
    ),
    Row(
        "ditto",
        lambda **o: mo.ditto(lr=0.1, personal_lr=0.2, pull=0.5, **o),
        {"steps": 1, "personal_steps": 1},
        (),
        mo.split.nothing,
        limit=lambda clients, weights, start: pulled.ditto_limit(clients, weights, 0.5, MATRICES),
    ),
    Row(
        "ditto",
        lambda **o: mo.ditto(form="finetune", personal_lr=0.2, pull=0.5, **o),
        {"personal_steps": 1},
        (),
        mo.split.nothing,
        weighted=False,
        limit=lambda clients, weights, start: pulled.pulled_limit(clients, start, 0.5, MATRICES),
        variant="-finetune",
    ),
    Row(
        "pfedme",
        lambda **o: mo.pfedme(lr=0.5, personal_lr=0.2, pull=2.0, **{"inner_steps": 3, **o}),
        {"steps": 1, "inner_steps": 20},
        (),
        mo.split.nothing,
        limit=lambda clients, weights, start: pulled.pfedme_limit(clients, weights, 2.0, MATRICES),
    ),
    Row("ffgg", _ffgg, {"inner_steps": 40}, ("v",), _head),
    Row("local_ffgg", _local_ffgg, {"inner_steps": 2, "steps": 1}, ("v",), _head),
]
NAMES = [row.name + row.variant for row in TABLE]


def mlp_problem(row: Row, sizes=(5, 1, 9), dtype=torch.float32, seed: int = 0) -> Problem:
    """A small classifier on uneven clients."""
    model = mo.models.mlp(4, 3, hidden=(6,), seed=1).to(dtype)
    task = from_module(model, loss="cross_entropy")
    data = problems.federated(problems.image_clients(sizes))
    return problems.problem_of(task, data, row.split(model), seed)


def table_is_complete() -> bool:
    return {row.name for row in TABLE} == set(ALGORITHMS)
