"""The conformance table: a row per algorithm. Adding an algorithm is adding a row.

All tests in this folder read it, and ``tests/golden`` pins what it builds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import oracle_fedpop
import oracle_l2gd
import oracle_mixtures as mixtures
import oracle_normalised
import oracle_numpy as ref
import oracle_problems as problems
import oracle_pulled as pulled
import torch
from flat_options import flat
from torch import nn

import moiety as mo
from moiety.algorithms import ALGORITHMS
from moiety.engines.problem import Problem
from moiety.local import Optimiser
from moiety.split import Split
from moiety.task import from_module
from moiety.types import Algorithm

MATRICES = {"u": "a", "v": "b"}
"""The blocks of a least-squares problem and the columns that go with them."""
ROUNDS = 100
"""After so many rounds most algorithms have solved it; where one never rests, NumPy says where it is then."""

ADAMW = mo.adamw(0.01, epochs=1, batch_size=8, accumulate=2, lr_decay="cosine")
"""Local work of which plain SGD has nothing: micro-batches, and a rate that decays."""
KEPT = replace(ADAMW, keep_state=True)
"""The same for parts whose optimiser can be kept between rounds."""


@dataclass(frozen=True)
class Row:
    """How to build an algorithm and what it shares.

    ``build(**options)`` takes the options that all have (batch_size, shuffle, momentum, weight_decay, clip).
    ``one_step`` makes it take a single full-batch step on each block. ``personal`` says which blocks of a
    least-squares problem with blocks u and v are each client's own, ``split`` does it for a module with layers
    ``hidden1`` and ``head``. ``limit(clients, weights, start)`` says where least squares end, as shared blocks and
    the clients' own; by default at the minimiser of the weighted mean over both. Rows that solve the same problem give
    the same function. ``variant`` tells two rows of an algorithm apart; its first row has none.
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
    alike: bool = False
    """Whether clients weigh the same whatever their size, and there is no option for it."""
    optimisers: Mapping[str, Optimiser] = field(default_factory=dict)
    """Local work that is tried where a part takes any optimiser, for parts where ``ADAMW`` will not do, or not all."""
    rounds: int = ROUNDS
    """How many it takes to the end on least squares: fewer with many small steps a round, more with one on all."""

    def weightings(self) -> list[dict[str, Any]]:
        return [{"weighting": w} for w in ("examples", "batches", "uniform")] if self.weighted else [{}]

    def ends(self, clients: Any, weights: Any, start: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Where it ends on least squares in the blocks u and v."""
        if self.limit is not None:
            return self.limit(clients, weights, start)
        return ref.minimiser(clients, weights, MATRICES, self.personal)[:2]


def _head(model: nn.Module) -> Split:
    return mo.split.by_name(model, personal=["head"])


def _ffgg(batch_size=None, weighting="examples", server=None, inner_steps=3, **solver: Any) -> Algorithm:
    """FFGG by Algorithm 2; what is said of steps is said of the solver's."""
    inner = mo.sgd(lr=0.4, steps=inner_steps, batch_size=batch_size, **solver)
    return mo.ffgg(shared=mo.sgd(0.3, batch_size=batch_size), personal=inner, weighting=weighting, server=server)


def _local_ffgg(inner_steps=2, momentum=0.0, **options: Any) -> Algorithm:
    """Local FFGG by conjugate gradients. Momentum would have no step to last to."""
    inner = mo.solver.conjugate_gradient(steps=inner_steps)
    return flat(mo.local_ffgg, shared_lr=0.3, personal_lr=0.2, solver=inner, **{"weighting": "examples", **options})


def _scaffold(momentum=0.0, weight_decay=0.0, clip=None, **options: Any) -> Algorithm:
    """SCAFFOLD, whose steps are by plain gradients: line 12 takes them for that."""
    return flat(mo.scaffold, lr=0.1, **{"weighting": "examples", **options})


def _local_gd(steps=2, **options: Any) -> Algorithm:
    """Local GD, which has no batches and so no options of SGD."""
    return mo.local_gd(shared=mo.sgd(0.1, steps=steps), weighting="examples")


L2GD = {"lr": 0.1, "pull": 0.5, "probability": 0.3}


def _l2gd(**options: Any) -> Algorithm:
    """L2GD, which has no batches and so no options of SGD."""
    return flat(mo.l2gd, **L2GD, weighting="examples")


FEDPOP = {"shared_lr": 0.002, "prior_lr": 0.01, "samples": 2, "thinning": 2, "loss_weight": 0.5}


def _fedpop(batch_size=None, kernel=None, **options: Any) -> Algorithm:
    """FedPop, which has no options of SGD."""
    extra = {key: value for key, value in options.items() if key in ("averaged", "stateful", "burn_in")}
    return flat(mo.fedpop, kernel=kernel or mo.kernel.langevin(step=0.005), batch_size=batch_size, **FEDPOP, **extra)


def _fedpop_limit(clients: Any, weights: Any, start: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Chains never rest: with their noise known, NumPy says where they are after as many rounds."""
    options = {"eta_shared": 0.002, "eta_prior": 0.01, "samples": 2, "thinning": 2, "step": 0.005, "weight": 0.5}
    end = oracle_fedpop.Reference(clients, start["u"], start["v"], 0.0, b=1, **options).run(ROUNDS)
    return {"u": end.u}, [{"v": np.mean(end.last[i], axis=0)} for i in range(len(clients))]


def _body(model: nn.Module) -> Split:
    return mo.split.by_name(model, personal=["hidden1"])


def _per_fedavg(momentum=0.0, **options: Any) -> Algorithm:
    """Per-FedAvg, whose step on the shared model has no momentum."""
    return flat(mo.per_fedavg, lr=0.3, personal_lr=0.1, **{"weighting": "examples", **options})


def _apfl_limit(clients: Any, weights: Any, start: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return mixtures.apfl_limit(clients, weights, MATRICES)


def _apfl(momentum=0.0, **options: Any) -> Algorithm:
    """APFL, whose steps have no momentum."""
    return flat(mo.apfl, lr=0.1, personal_lr=0.4, alpha=0.7, **{"weighting": "examples", **options})


def _online(build: Callable[..., Algorithm], **rates: Any) -> Callable[..., Algorithm]:
    """Online descent, one batch a round: there is no momentum, no decay and no clipping in these.

    Their server steps along the sum over clients, weighted by examples: 30 of them where ends are compared.
    """

    def make(momentum: float = 0.0, weight_decay: float = 0.0, clip: float | None = None, **o: Any) -> Algorithm:
        return flat(build, **rates, **o)

    return make


def _normalised_limit(clients: Any, weights: Any, start: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Its steps shorten too soon for a solution in so many rounds: the oracle says where it is then."""
    none, size = [0] * len(clients), max(len(c["y"]) for c in clients)
    options = {"start": start, "rates": (0.3, 0.3), "factor": 1.0}
    u, v = oracle_normalised.simulate(clients, ROUNDS, none, none, list(weights), size, "aligned", **options)
    return {"u": np.array(u)}, [{"v": np.array(own)} for own in v]


TABLE = [
    Row("fedavg", lambda **o: flat(mo.fedavg, lr=0.1, **o), {"steps": 1}, (), mo.split.nothing),
    Row(
        "fedalt",
        lambda **o: flat(mo.fedalt, shared_lr=0.1, personal_lr=0.2, **o),
        {"shared_steps": 1, "personal_steps": 1},
        ("v",),
        _head,
        optimisers={"personal": KEPT},
    ),
    Row(
        "fedsim",
        lambda **o: flat(mo.fedsim, shared_lr=0.1, personal_lr=0.2, **o),
        {"steps": 1},
        ("v",),
        _head,
        optimisers={"personal": KEPT},
    ),
    Row(
        "local_only",
        lambda **o: flat(mo.local_only, lr=0.1, **o),
        {"steps": 1},
        ("u", "v"),
        mo.split.everything,
        weighted=False,
        optimisers={"personal": KEPT},
        rounds=180,
    ),
    Row(
        "finetune",
        lambda **o: flat(mo.finetune, lr=0.2, **o),
        {"steps": 1},
        ("v",),
        _head,
        weighted=False,
        limit=lambda clients, weights, start: pulled.finetuned_limit(clients, start, MATRICES, ("v",)),
        optimisers={"personal": KEPT},
    ),
    Row(
        "ditto",
        lambda **o: flat(mo.ditto, lr=0.1, personal_lr=0.2, pull=0.5, **o),
        {"steps": 1, "personal_steps": 1},
        (),
        mo.split.nothing,
        limit=lambda clients, weights, start: pulled.ditto_limit(clients, weights, 0.5, MATRICES),
        optimisers={"personal": replace(ADAMW, pull=0.5)},
    ),
    Row(
        "ditto",
        lambda **o: flat(mo.ditto, form="finetune", personal_lr=0.2, pull=0.5, **o),
        {"personal_steps": 1},
        (),
        mo.split.nothing,
        weighted=False,
        limit=lambda clients, weights, start: pulled.pulled_limit(clients, start, 0.5, MATRICES),
        variant="-finetune",
    ),
    Row(
        "pfedme",
        lambda **o: flat(mo.pfedme, lr=0.5, personal_lr=0.2, pull=2.0, **{"inner_steps": 3, **o}),
        {"steps": 1, "inner_steps": 20},
        (),
        mo.split.nothing,
        limit=lambda clients, weights, start: pulled.pfedme_limit(clients, weights, 2.0, MATRICES),
        optimisers={"personal": mo.adamw(0.01, pull=0.5)},
        rounds=40,
    ),
    Row("ffgg", _ffgg, {"inner_steps": 40}, ("v",), _head, rounds=40),
    Row("local_ffgg", _local_ffgg, {"inner_steps": 2, "steps": 1}, ("v",), _head, rounds=40),
    Row("scaffold", _scaffold, {"steps": 1}, (), mo.split.nothing),
    Row("local_gd", _local_gd, {"steps": 1}, (), mo.split.nothing, weighted=False),
    Row(
        "l2gd",
        _l2gd,
        {},
        (),
        mo.split.nothing,
        weighted=False,
        # The coin never lets it rest: with its throws known, NumPy says where it is after as many rounds.
        limit=lambda clients, weights, start: oracle_l2gd.run(clients, weights, start, ROUNDS, MATRICES, **L2GD),
    ),
    Row(
        "fedper",
        lambda **o: flat(mo.fedper, lr=0.1, **o),
        {"steps": 1},
        ("v",),
        _head,
        rounds=180,
        optimisers={"personal": KEPT},
    ),
    Row(
        "fedrep",
        lambda **o: flat(mo.fedrep, lr=0.2, **{"weighting": "examples", "personal_epochs": 2, **o}),
        {"shared_steps": 1, "personal_epochs": 1},
        ("v",),
        _head,
        optimisers={"personal": KEPT},
    ),
    Row(
        "lg_fedavg",
        lambda **o: flat(mo.lg_fedavg, lr=0.1, **o),
        {"steps": 1},
        ("u",),
        _body,
        optimisers={"personal": KEPT},
    ),
    Row(
        "per_fedavg",
        _per_fedavg,
        {"steps": 1},
        (),
        mo.split.nothing,
        limit=lambda clients, weights, start: mixtures.per_fedavg_limit(clients, weights, 0.1, MATRICES, hessian=True),
    ),
    Row(
        "per_fedavg",
        lambda **o: _per_fedavg(form="first_order", **o),
        {"steps": 1},
        (),
        mo.split.nothing,
        limit=lambda clients, weights, start: mixtures.per_fedavg_limit(clients, weights, 0.1, MATRICES, hessian=False),
        variant="-first-order",
    ),
    Row(
        "apfl",
        _apfl,
        {"steps": 1},
        (),
        mo.split.nothing,
        limit=_apfl_limit,
    ),
    Row(
        "apfl",
        lambda **o: _apfl(alpha_lr=0.003, **o),
        {"steps": 1},
        (),
        mo.split.nothing,
        limit=_apfl_limit,
        variant="-adaptive",
    ),
    # Vectors are never masked: least squares are solved at density 1, where each of these is FedAvg.
    *(
        Row(
            "fedspa",
            lambda extra=extra, **o: flat(mo.fedspa, lr=0.1, **{"density": 0.6, "weighting": "examples", **extra, **o}),
            {"steps": 1, "density": 1.0},
            (),
            mo.split.nothing,
            variant=variant,
        )
        for variant, extra in (("", {}), ("-rsm", {"search": "rsm", "masks": "different", "densities": "uniform"}))
    ),
    Row(
        "sub_fedavg",
        # The thresholds are met always: it prunes in every turn until the density is reached.
        lambda **o: flat(
            mo.sub_fedavg,
            **{"lr": 0.1, "density": 0.7, "accuracy": 0, "distance": 0, "epochs": 2, "weighting": "examples", **o},
        ),
        {"epochs": 1, "density": 1.0},
        (),
        mo.split.nothing,
        optimisers={"shared": replace(ADAMW, lr_decay="constant", epochs=2)},
    ),
    Row(
        "subsampling",
        lambda **o: flat(mo.subsampling, **{"lr": 0.1, "weighting": "examples", **o}),
        {"steps": 1, "density": 1.0},
        (),
        mo.split.nothing,
    ),
    Row("fedpop", _fedpop, {}, ("v",), _head, weighted=False, limit=_fedpop_limit, alike=True),
    Row(
        "glocal_sgd",
        _online(mo.glocal_sgd, shared_lr=0.1 / 30, personal_lr=0.2, weighting="examples"),
        {},
        ("v",),
        _head,
        weighted=False,
    ),
    Row(
        "glocal_sgd",
        _online(
            mo.glocal_sgd,
            shared_lr=0.1 / 30,
            personal_lr=0.2,
            weighting="examples",
            longest_round_trip=3,
            shared_radius=1e3,
            personal_radius=1e3,
        ),
        {},
        ("v",),
        _head,
        weighted=False,
        variant="-room",
    ),
    Row(
        "glocal_sgd",
        _online(mo.glocal_sgd, shared_lr=0.3, personal_lr=0.3, weighting="examples", rule="normalised"),
        {},
        ("v",),
        _head,
        weighted=False,
        limit=_normalised_limit,
        variant="-normalised",
    ),
    Row("central", _online(mo.central, lr=0.1 / 30, weighting="examples"), {}, (), mo.split.nothing, weighted=False),
    Row(
        "independent",
        _online(mo.independent, lr=0.1),
        {},
        ("u", "v"),
        mo.split.everything,
        weighted=False,
        rounds=180,
    ),
]
NAMES = [row.name + row.variant for row in TABLE]


def mlp_problem(row: Row, sizes=(5, 1, 9), dtype=torch.float32, seed: int = 0) -> Problem:
    """A small classifier on uneven clients."""
    model = mo.models.mlp(4, 3, hidden=(6,), seed=1).to(dtype)
    task = from_module(model, loss="cross_entropy")
    data = problems.federated(problems.image_clients(sizes))
    return problems.problem_of(task, data, row.split(model), seed)


@cache
def shared_problem(name: str, sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Problem:
    """The same for a row by its name, made once: what tests do with a problem does not change it."""
    return mlp_problem(TABLE[NAMES.index(name)], sizes, dtype)


def table_is_complete() -> bool:
    return {row.name for row in TABLE} == set(ALGORITHMS)
