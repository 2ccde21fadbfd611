"""The runs whose numbers are pinned: small, in float64, on clients of uneven sizes of which only some are asked.

A case is a line of ``CASES``. Where a builder's arguments get other names, only that line changes, and no pin does.
An algorithm without a line here is run as its rows of the conformance table say.
Models are smooth (tanh) and draws are continuous, so that no choice (largest weights, nearest uploads) is by a tie.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flat_options import flat
from run_settings import with_settings
from torch import nn

import moiety as mo

sys.path.append(str(Path(__file__).parents[1] / "conformance"))
from conformance_table import TABLE

SIZES = (9, 3, 18, 6, 24, 5, 13)
"""Rows of each client; a fifth are for testing."""
MANY = (30, 34, 45, 28, 40, 36, 50)
"""As many that a layer of each client's own has one best value, well apart from others."""
BOTH = ("sequential", "vectorised")
SEQUENTIAL = ("sequential",)


def _columns(rng: np.random.Generator, client: int, rows: int, regression: bool) -> dict[str, np.ndarray]:
    """Rows of one client; each has its own shift and its own weight."""
    x = rng.normal(size=(rows, 4)) + client / 4
    wide = x @ rng.normal(size=(4, 3)) + rng.normal(size=(rows, 3)) / 2
    y = wide[:, :2] if regression else wide.argmax(axis=1)
    return {"x": x, "y": y, "weight": np.full(rows, 0.5 + client / 8)}


def data_of(sizes: Sequence[int], regression: bool) -> mo.FederatedData:
    """Seven clients."""
    rng = np.random.default_rng(11)
    tables = {f"client-{i}": _columns(rng, i, rows, regression) for i, rows in enumerate(sizes)}
    return mo.data.from_clients(tables, test=0.2, seed=1)


def newcomer(regression: bool) -> dict[str, np.ndarray]:
    """Training rows of a client that no run has seen."""
    return _columns(np.random.default_rng(12), 2, 7, regression)


def net(outputs: int = 3, norm: bool = False) -> nn.Module:
    """Two layers, ``hidden1`` and ``head``; values by NumPy, which draws the same everywhere."""
    middle = {"norm": nn.BatchNorm1d(5)} if norm else {}
    model = nn.Sequential()
    for name, layer in {"hidden1": nn.Linear(4, 5), **middle, "tanh": nn.Tanh(), "head": nn.Linear(5, outputs)}.items():
        model.add_module(name, layer)
    model = model.double()
    rng = np.random.default_rng(13)
    with torch.no_grad():
        for name, p in model.named_parameters():
            near = 1.0 if name == "norm.weight" else 0.0
            p.copy_(torch.from_numpy(near + 0.4 * rng.normal(size=p.shape)))
    return model


@dataclass(frozen=True)
class Case:
    """An algorithm and how it is run; ``algorithm`` may give a list of stages, which are run as a pipeline.

    ``split`` is made of the model, ``options`` are further arguments of ``fit``. ``newcomer`` says whether a client
    never seen is given a model too.
    """

    algorithm: Callable[[], Any]
    split: Callable[[nn.Module], mo.Split] | None = None
    options: Callable[[], dict[str, Any]] = dict
    engines: Sequence[str] = BOTH
    sizes: Sequence[int] = SIZES
    rounds: int = 3
    cohort: int | None = 5
    regression: bool = False
    norm: bool = False
    newcomer: bool = True

    def run(self, engine: str = "sequential") -> mo.Run:
        """Train."""
        model, data = net(2 if self.regression else 3, self.norm), data_of(self.sizes, self.regression)
        algorithm = self.algorithm()
        if isinstance(algorithm, list):
            return mo.pipeline(algorithm, model, data, engine=engine, seed=5)[-1]
        split = None if self.split is None else self.split(model)
        arguments: dict[str, Any] = {"rounds": self.rounds, "cohort": self.cohort, **self.options()}
        return mo.fit(model, data, algorithm, **with_settings(split=split, engine=engine, seed=5, **arguments))

    def numbers(self, engine: str = "sequential") -> dict[str, dict[str, Any]]:
        """What a run ends with: tensors, columns of the history, and the ledger."""
        run = self.run(engine)
        each = [run.parameters(f"client-{i}") for i in range(len(SIZES))]
        parts: dict[str, dict[str, Any]] = {
            "broadcast": run.broadcast(),
            "shared": run.shared_parameters(),
            "clients": {name: torch.stack([p[name] for p in each]) for name in each[0]},
        }
        if self.newcomer:
            parts["newcomer"] = run.onboard(newcomer(self.regression)).state_dict()
        columns = [name for name in HISTORY if name in run.history[0]]
        parts["history"] = {name: [row[name] for row in run.history] for name in columns}
        parts["ledger"] = dict(run.ledger)
        return parts


HISTORY = (
    *("train_loss", "loss", "loss_unweighted", "metric", "metric_unweighted", "shared_loss", "shared_metric"),
    *("worst_decile", "dropped", "time", "staleness", "staleness_max", "under_way"),
)
"""Columns of the history that are pinned, where it has them."""


def head(model: nn.Module) -> mo.Split:
    return mo.split.by_name(model, personal=["head"])


def body(model: nn.Module) -> mo.Split:
    return mo.split.by_name(model, personal=["hidden1"])


def stats(where: str, personal: Sequence[str] = ("head",)) -> Callable[[nn.Module], mo.Split]:
    return lambda model: mo.split.by_name(model, personal=list(personal), running_stats=where)


SGD = {"batch_size": 4, "momentum": 0.5, "weight_decay": 0.05, "clip": 0.8}
"""Options of SGD, all at once."""
STEPS = {"batch_size": 4, "weight_decay": 0.05, "clip": 0.8}
"""The same where there is no momentum."""
POP = {"shared_lr": 0.01, "prior_lr": 0.02, "samples": 4, "burn_in": 2, "loss_weight": 0.5}


def pop_kernel(name: str) -> Any:
    kernels = {
        "langevin": lambda: mo.kernel.langevin(step=0.005),
        "mala": lambda: mo.kernel.mala(step=0.02),
        "sgld": lambda: mo.kernel.sgld(step=0.005, batch_size=4),
        "preconditioned_sgld": lambda: mo.kernel.preconditioned_sgld(step=0.002, batch_size=4),
    }
    return kernels[name]()


def warm() -> Any:
    return mo.schedule.linear(warmup=0.4)


CASES: dict[str, Case] = {
    # Each algorithm as it comes, with batches of four so that clients differ in their number of steps.
    "fedavg": Case(lambda: mo.fedavg(shared=mo.sgd(0.2, batch_size=4))),
    "fedalt": Case(lambda: mo.fedalt(shared=mo.sgd(0.2, batch_size=4), personal=mo.sgd(0.3, batch_size=4)), head),
    "fedsim": Case(lambda: mo.fedsim(shared=mo.sgd(0.2, batch_size=4), personal=0.3), head),
    "local_only": Case(lambda: mo.local_only(personal=mo.sgd(0.2, batch_size=4))),
    "finetune": Case(lambda: mo.finetune(personal=mo.sgd(0.2, batch_size=4)), head),
    "ditto": Case(lambda: mo.ditto(shared=mo.sgd(0.2, batch_size=4), personal=mo.sgd(0.3, pull=0.5, batch_size=4))),
    "pfedme": Case(lambda: mo.pfedme(shared=mo.sgd(0.5, batch_size=4), personal=mo.sgd(0.2, pull=2.0, steps=3))),
    "ffgg": Case(lambda: mo.ffgg(shared=0.3, personal=mo.sgd(0.4, steps=3)), head),
    "local_ffgg": Case(
        lambda: mo.local_ffgg(
            shared=mo.sgd(0.2, batch_size=4), personal=0.2, solver=mo.solver.conjugate_gradient(steps=2)
        ),
        head,
    ),
    "scaffold": Case(lambda: mo.scaffold(shared=mo.sgd(0.2, batch_size=4))),
    "local_gd": Case(lambda: mo.local_gd(shared=mo.sgd(0.2, steps=2))),
    "l2gd": Case(lambda: mo.l2gd(personal=mo.sgd(0.2, pull=0.5), probability=0.4), rounds=8, cohort=None),
    "glocal_sgd": Case(lambda: mo.glocal_sgd(shared=mo.online(0.05, batch_size=2), personal=0.2), head, rounds=4),
    "independent": Case(lambda: mo.independent(personal=mo.online(0.2, batch_size=2))),
    "central": Case(lambda: mo.central(shared=mo.online(0.05, batch_size=2))),
    "fedper": Case(lambda: mo.fedper(shared=mo.sgd(0.2, batch_size=4)), head),
    "fedpop": Case(lambda: flat(mo.fedpop, kernel=pop_kernel("langevin"), **POP), head),
    "fedrep": Case(
        lambda: mo.fedrep(shared=mo.sgd(0.2, batch_size=4), personal=mo.sgd(0.2, epochs=2, batch_size=4)), head
    ),
    "lg_fedavg": Case(lambda: mo.lg_fedavg(shared=mo.sgd(0.2, batch_size=4)), body),
    "per_fedavg": Case(lambda: mo.per_fedavg(shared=mo.sgd(0.3, batch_size=4), personal=0.1)),
    "apfl": Case(lambda: mo.apfl(shared=mo.sgd(0.2, batch_size=4), personal=0.3, alpha=0.7)),
    "fedspa": Case(lambda: mo.fedspa(shared=mo.sgd(0.2, batch_size=4), density=0.6)),
    "sub_fedavg": Case(
        lambda: mo.sub_fedavg(
            shared=mo.sgd(0.2, epochs=2, batch_size=4),
            density=0.6,
            prune_rate=0.2,
            accuracy=0,
            distance=0,
            weighting="examples",
        )
    ),
    "subsampling": Case(lambda: mo.subsampling(shared=mo.sgd(0.2, batch_size=4), density=0.5)),
    # Options of SGD, schedules, server optimisers, weightings, lengths.
    "fedavg-sgd": Case(
        lambda: flat(mo.fedavg, lr=0.2, epochs=2, schedule=warm(), server=mo.server.sgd(momentum=0.5), **SGD)
    ),
    "fedavg-steps": Case(
        lambda: flat(mo.fedavg, lr=0.2, steps=3, weighting="uniform", schedule=mo.schedule.geometric(factor=0.9), **SGD)
    ),
    "fedavg-adam": Case(
        lambda: mo.fedavg(
            shared=mo.sgd(0.2, batch_size=4, shuffle=False), weighting="batches", server=mo.server.adam(lr=0.05)
        )
    ),
    "fedavg-yogi": Case(lambda: mo.fedavg(shared=mo.sgd(0.2, batch_size=4), server=mo.server.yogi(lr=0.05))),
    "fedavg-adagrad": Case(
        lambda: mo.fedavg(
            shared=mo.sgd(0.2, batch_size=4),
            server=mo.server.adagrad(lr=0.05),
            schedule=mo.schedule.exponential(halve_every=1),
        )
    ),
    "fedavg-regression": Case(lambda: flat(mo.fedavg, lr=0.05, **SGD), regression=True),
    "fedavg-bernoulli": Case(lambda: flat(mo.fedavg, lr=0.2, **SGD), options=lambda: {"participation": "bernoulli"}),
    "fedalt-sgd": Case(
        lambda: flat(
            mo.fedalt,
            shared_lr=0.2,
            personal_lr=0.3,
            shared_steps=2,
            personal_steps=3,
            schedule=warm(),
            server=mo.server.adam(lr=0.05),
            **SGD,
        ),
        head,
    ),
    "fedalt-epochs": Case(
        lambda: flat(mo.fedalt, shared_lr=0.2, personal_lr=0.3, shared_epochs=2, personal_epochs=3, **SGD), head
    ),
    "fedalt-stateless": Case(
        lambda: flat(
            mo.fedalt, shared_lr=0.2, personal_lr=0.3, shared_steps=2, personal_steps=2, stateful=False, **SGD
        ),
        head,
    ),
    "fedalt-whole": Case(
        lambda: mo.fedalt(shared=mo.sgd(0.2, batch_size=4), personal=mo.sgd(0.3, batch_size=4)),
        head,
        lambda: {"partial": False},
    ),
    "fedsim-sgd": Case(
        lambda: flat(
            mo.fedsim,
            shared_lr=0.2,
            personal_lr=0.3,
            steps=3,
            schedule=warm(),
            server=mo.server.sgd(momentum=0.5),
            **SGD,
        ),
        head,
    ),
    "fedsim-stateless": Case(
        lambda: mo.fedsim(shared=mo.sgd(0.2, epochs=2, batch_size=4), personal=0.3, stateful=False), head
    ),
    "local_only-sgd": Case(lambda: flat(mo.local_only, lr=0.2, steps=3, schedule=warm(), **SGD)),
    "finetune-sgd": Case(lambda: flat(mo.finetune, lr=0.2, epochs=2, schedule=warm(), **SGD), head),
    "ditto-sgd": Case(
        lambda: flat(
            mo.ditto,
            lr=0.2,
            personal_lr=0.3,
            pull=0.5,
            steps=2,
            personal_steps=3,
            schedule=warm(),
            server=mo.server.adam(lr=0.05),
            **SGD,
        )
    ),
    "ditto-finetune": Case(
        lambda: flat(mo.ditto, form="finetune", personal_lr=0.2, pull=0.5, personal_epochs=2, **SGD)
    ),
    "pfedme-sgd": Case(
        lambda: flat(mo.pfedme, lr=0.5, personal_lr=0.2, pull=2.0, inner_steps=3, steps=2, schedule=warm(), **SGD)
    ),
    "fedper-sgd": Case(lambda: flat(mo.fedper, lr=0.2, steps=3, server=mo.server.sgd(lr=0.7), **SGD), head),
    "fedrep-sgd": Case(lambda: flat(mo.fedrep, lr=0.2, personal_steps=3, shared_steps=2, schedule=warm(), **SGD), head),
    "lg_fedavg-sgd": Case(lambda: flat(mo.lg_fedavg, lr=0.2, epochs=2, schedule=warm(), **SGD), body),
    "scaffold-option-1": Case(
        lambda: mo.scaffold(
            shared=mo.sgd(0.2, steps=3, batch_size=4), option="I", weighting="examples", schedule=warm()
        )
    ),
    "scaffold-server": Case(
        lambda: mo.scaffold(shared=mo.sgd(0.2, epochs=2, batch_size=4), server=mo.server.sgd(lr=0.7))
    ),
    "per_fedavg-first-order": Case(
        lambda: flat(
            mo.per_fedavg,
            lr=0.3,
            personal_lr=0.1,
            form="first_order",
            steps=2,
            personal_steps=2,
            schedule=warm(),
            **STEPS,
        )
    ),
    "per_fedavg-hessian": Case(
        lambda: flat(mo.per_fedavg, lr=0.3, personal_lr=0.1, epochs=1, **STEPS), regression=True
    ),
    "apfl-adaptive": Case(
        lambda: flat(mo.apfl, lr=0.2, personal_lr=0.3, alpha=0.6, alpha_lr=0.05, steps=3, schedule=warm(), **STEPS)
    ),
    # Masks.
    "fedspa-dst-sgd": Case(
        lambda: flat(
            mo.fedspa, lr=0.2, density=0.5, steps=2, prune_rate=0.4, schedule=warm(), weighting="examples", **SGD
        )
    ),
    "fedspa-dst-random": Case(lambda: flat(mo.fedspa, lr=0.2, density=0.5, regrow="random", masks="different", **SGD)),
    "fedspa-rsm": Case(
        lambda: flat(
            mo.fedspa, lr=0.2, density=0.5, search="rsm", masks="different", densities="uniform", mask_seed=3, **SGD
        )
    ),
    "fedspa-rsm-same": Case(
        lambda: mo.fedspa(
            shared=mo.sgd(0.2, batch_size=4), density=0.5, search="rsm", server=mo.server.sgd(momentum=0.5)
        )
    ),
    "sub_fedavg-sgd": Case(
        lambda: flat(mo.sub_fedavg, lr=0.2, density=0.5, prune_rate=0.3, accuracy=0, distance=0, epochs=1, **SGD)
    ),
    "subsampling-rescaled": Case(lambda: flat(mo.subsampling, lr=0.2, density=0.4, rescale=True, steps=2, **SGD)),
    # Inner solvers.
    "ffgg-batches": Case(
        lambda: mo.ffgg(
            shared=mo.sgd(0.3, batch_size=4),
            personal=mo.sgd(lr=0.3, epochs=2, **SGD),
            weighting="examples",
            schedule=warm(),
        ),
        head,
    ),
    "ffgg-conjugate-gradient": Case(
        lambda: mo.ffgg(shared=0.2, personal=mo.solver.conjugate_gradient(steps=3), server=mo.server.sgd(momentum=0.5)),
        head,
        sizes=MANY,
        regression=True,
    ),
    "ffgg-exact": Case(
        lambda: mo.ffgg(shared=0.05, personal=mo.solver.exact(), random_start=4),
        lambda m: mo.split.by_name(m, personal=["head.weight"]),
        sizes=MANY,
        regression=True,
    ),
    "ffgg-lbfgs": Case(lambda: mo.ffgg(shared=0.2, personal=mo.solver.lbfgs(steps=3)), head),
    "local_ffgg-sgd": Case(
        lambda: flat(
            mo.local_ffgg,
            shared_lr=0.2,
            personal_lr=0.2,
            solver=mo.sgd(0.3, steps=2),
            steps=2,
            schedule=warm(),
            random_start=4,
            weighting="examples",
            **STEPS,
        ),
        head,
    ),
    # Chains and priors.
    "fedpop-mala": Case(lambda: flat(mo.fedpop, kernel=pop_kernel("mala"), thinning=2, averaged=True, **POP), head),
    "fedpop-sgld": Case(
        lambda: flat(
            mo.fedpop,
            kernel=pop_kernel("sgld"),
            batch_size=4,
            prior=mo.prior.laplace(scale=0.7, mean=0.1, spread="element", scale_decay=0.1),
            radius=2.0,
            **POP,
        ),
        head,
    ),
    "fedpop-preconditioned": Case(
        lambda: flat(
            mo.fedpop,
            kernel=pop_kernel("preconditioned_sgld"),
            prior=mo.prior.gaussian(scale=0.7, mean_decay=0.1),
            shared_decay=0.05,
            server=mo.server.adam(lr=0.01),
            schedule=warm(),
            **POP,
        ),
        head,
    ),
    "fedpop-stateless": Case(
        lambda: mo.fedpop(
            shared=0.01, personal=pop_kernel("langevin"), learn_prior=False, samples=4, burn_in=2, stateful=False
        ),
        head,
    ),
    # Online descent.
    "glocal_sgd-adagrad": Case(
        lambda: mo.glocal_sgd(
            shared=mo.online(0.05, rule="adagrad", radius=1.5, batch_size=2),
            personal=mo.online(0.2, rule="adagrad", radius=1.5),
        ),
        head,
        rounds=4,
    ),
    "glocal_sgd-normalised": Case(
        lambda: mo.glocal_sgd(
            shared=mo.online(0.3, rule="normalised", batch_size=2),
            personal=mo.online(0.3, rule="normalised", radius=1.5),
            longest_round_trip=3,
        ),
        head,
        lambda: {"clock": mo.clock.delayed(down=1, up=[0, 1, 2, 0, 1, 2, 0])},
        rounds=5,
        cohort=None,
    ),
    "glocal_sgd-misaligned": Case(
        lambda: mo.glocal_sgd(shared=0.05, personal=0.2, alignment="misaligned", weighting="examples"),
        head,
        lambda: {"clock": mo.clock.delayed(down=1, up=[0, 1, 2, 0, 1, 2, 0], at="arrival")},
        rounds=5,
        cohort=None,
    ),
    "glocal_sgd-asymmetric": Case(
        lambda: mo.glocal_sgd(shared=0.05, personal=0.2, alignment="asymmetric", weight_column="weight"),
        head,
        lambda: {"clock": mo.clock.delayed(down=1, up=1)},
        rounds=5,
        cohort=None,
    ),
    "glocal_sgd-delayed": Case(
        lambda: mo.glocal_sgd(shared=mo.online(0.05, batch_size=2), personal=0.2, longest_round_trip=3),
        head,
        lambda: {"clock": mo.clock.delayed(down=1, up=[0, 1, 2, 0, 1, 2, 0])},
        rounds=5,
        cohort=None,
    ),
    "central-adagrad": Case(lambda: mo.central(shared=mo.online(0.1, rule="adagrad", radius=1.5, batch_size=2))),
    "independent-adagrad": Case(
        lambda: mo.independent(personal=mo.online(0.2, rule="adagrad", radius=1.5, steps=2, batch_size=2))
    ),
    # What goes over the wire, and when.
    "fedavg-qsgd": Case(
        lambda: mo.fedavg(shared=mo.sgd(0.2, batch_size=4)), options=lambda: {"codec": mo.codec.qsgd(levels=7)}
    ),
    "fedalt-rand_k": Case(
        lambda: mo.fedalt(shared=mo.sgd(0.2, batch_size=4), personal=mo.sgd(0.3, batch_size=4)),
        head,
        lambda: {"codec": mo.codec.rand_k(k=0.4)},
    ),
    "scaffold-qsgd": Case(
        lambda: mo.scaffold(shared=mo.sgd(0.2, batch_size=4)), options=lambda: {"codec": mo.codec.qsgd(levels=15)}
    ),
    "fedspa-sparse": Case(
        lambda: mo.fedspa(shared=mo.sgd(0.2, batch_size=4), density=0.4), options=lambda: {"codec": mo.codec.sparse()}
    ),
    "fedavg-asynchronous": Case(
        lambda: mo.fedavg(shared=mo.sgd(0.2, batch_size=4)),
        options=lambda: {"clock": mo.clock.asynchronous(active=3, compute=mo.clock.exponential(1.0, spread=0.5))},
        rounds=8,
        cohort=None,
    ),
    "ffgg-asynchronous": Case(
        lambda: mo.ffgg(shared=0.1, personal=mo.sgd(0.3, steps=2)),
        head,
        lambda: {
            "clock": mo.clock.asynchronous(active=4, compute=mo.clock.pareto(1.0, shape=1.5), up=0.5),
            "codec": mo.codec.qsgd(levels=15),
        },
        rounds=8,
        cohort=None,
    ),
    "fedsim-synchronous": Case(
        lambda: mo.fedsim(shared=mo.sgd(0.2, batch_size=4), personal=0.3),
        head,
        lambda: {"clock": mo.clock.synchronous(compute=mo.clock.exponential(1.0), down=0.25)},
    ),
    "fedavg-delayed": Case(
        lambda: flat(mo.fedavg, lr=0.2, **SGD),
        options=lambda: {"clock": mo.clock.delayed(down=1, up=[0, 1, 2, 0, 1, 2, 0])},
        rounds=5,
        cohort=None,
    ),
    # Clients that lie, and servers that expect it.
    "fedavg-median-sign_flip": Case(
        lambda: flat(mo.fedavg, lr=0.2, **SGD),
        options=lambda: {
            "aggregator": mo.aggregator.median(),
            "attack": mo.attack.sign_flip(scale=2.0),
            "attackers": [1, 4],
        },
    ),
    "fedalt-krum-gaussian": Case(
        lambda: mo.fedalt(shared=mo.sgd(0.2, batch_size=4), personal=mo.sgd(0.3, batch_size=4)),
        head,
        lambda: {
            "aggregator": mo.aggregator.multi_krum(byzantine=1, keep=3),
            "attack": mo.attack.gaussian(std=0.5),
            "attackers": [4],
        },
    ),
    "ffgg-bucketing-alie": Case(
        lambda: mo.ffgg(shared=0.3, personal=mo.sgd(0.4, steps=3)),
        head,
        lambda: {
            "aggregator": mo.aggregator.bucketing(size=2, then=mo.aggregator.geometric_median()),
            "attack": mo.attack.a_little_is_enough(),
            "attackers": [0, 6],
        },
        cohort=None,
    ),
    "fedavg-mixing-label_flip": Case(
        lambda: mo.fedavg(shared=mo.sgd(0.2, batch_size=4)),
        options=lambda: {
            "aggregator": mo.aggregator.nearest_neighbour_mixing(
                byzantine=1, then=mo.aggregator.trimmed_mean(byzantine=1)
            ),
            "attack": mo.attack.label_flip(classes=3),
            "attackers": [2],
        },
    ),
    "fedavg-clipping-mimic": Case(
        lambda: mo.fedavg(shared=mo.sgd(0.2, batch_size=4)),
        options=lambda: {
            "aggregator": mo.aggregator.centred_clipping(radius=0.3),
            "attack": mo.attack.mimic(client=0),
            "attackers": 0.3,
        },
        cohort=None,
    ),
    # Stages, each from where the one before has ended.
    "pipeline": Case(
        lambda: [
            mo.Stage(mo.fedavg(shared=mo.sgd(0.2, batch_size=4)), rounds=2, cohort=5),
            mo.Stage(
                mo.fedalt(shared=mo.sgd(0.1, batch_size=4), personal=mo.sgd(0.2, batch_size=4)),
                rounds=2,
                cohort=4,
                split=head,
            ),
            mo.Stage(mo.finetune(personal=mo.sgd(0.1, steps=2, batch_size=4)), rounds=1),
        ]
    ),
    "pipeline-lora": Case(
        lambda: [
            mo.Stage(mo.fedavg(shared=mo.sgd(0.2, batch_size=4)), rounds=2, cohort=5),
            mo.Stage(
                mo.fedsim(shared=mo.sgd(0.1, batch_size=4), personal=0.2),
                rounds=2,
                cohort=4,
                split={"name": "lora", "rank": 2},
            ),
        ],
        newcomer=False,
    ),
    # Splits that change the model.
    "fedalt-full": Case(
        lambda: mo.fedalt(shared=mo.sgd(0.2, batch_size=4), personal=mo.sgd(0.3, batch_size=4)),
        lambda m: mo.split.full(m, pull=0.3),
    ),
    "fedsim-additive": Case(
        lambda: mo.fedsim(shared=mo.sgd(0.2, batch_size=4), personal=0.3), lambda m: mo.split.additive(m, net())
    ),
    "fedalt-horizontal": Case(
        lambda: mo.fedalt(shared=mo.sgd(0.2, batch_size=4), personal=mo.sgd(0.3, batch_size=4)),
        lambda m: mo.split.horizontal(m, private=[0, 3]),
    ),
    # BatchNorm, whose running statistics are shared or each client's own.
    "fedavg-norm-shared": Case(
        lambda: mo.fedavg(shared=mo.sgd(0.1, batch_size=5)), stats("shared", ()), engines=SEQUENTIAL, norm=True
    ),
    "fedalt-norm-shared": Case(
        lambda: mo.fedalt(shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.2, batch_size=5)),
        stats("shared"),
        engines=SEQUENTIAL,
        norm=True,
    ),
    "fedalt-norm-personal": Case(
        lambda: mo.fedalt(shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.2, batch_size=5)),
        stats("personal"),
        engines=SEQUENTIAL,
        norm=True,
    ),
    "fedsim-fedbn": Case(
        lambda: mo.fedsim(shared=mo.sgd(0.1, batch_size=5), personal=0.1), mo.split.fedbn, engines=SEQUENTIAL, norm=True
    ),
    "scaffold-norm": Case(
        lambda: mo.scaffold(shared=mo.sgd(0.1, batch_size=5)), stats("shared", ()), engines=SEQUENTIAL, norm=True
    ),
}
CASES |= {
    row.name + row.variant: Case(partial(row.build, batch_size=4), row.split) for row in TABLE if row.name not in CASES
}
