"""moiety: personalised federated learning. Every client's model is part shared, part its own.

Names are looked up when first used, so that importing the package (and ``moiety --help``) does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from moiety import analysis, data, evaluation, experiments, models, reports, split, task
    from moiety import kernels as kernel
    from moiety import priors as prior
    from moiety import rng as random
    from moiety import schedules as schedule
    from moiety import solvers as solver
    from moiety.aggregation import aggregators as aggregator
    from moiety.aggregation import attacks as attack
    from moiety.aggregation import server
    from moiety.algorithms import (
        apfl,
        central,
        ditto,
        fedalt,
        fedavg,
        fedper,
        fedpop,
        fedrep,
        fedsim,
        fedspa,
        ffgg,
        finetune,
        glocal_sgd,
        independent,
        l2gd,
        lg_fedavg,
        local_ffgg,
        local_gd,
        local_only,
        per_fedavg,
        pfedme,
        scaffold,
        sub_fedavg,
        subsampling,
    )
    from moiety.analysis.advise import advise
    from moiety.analysis.diagnose_split import diagnose_split
    from moiety.analysis.glocal_erm import fictitious_play, glocal_erm
    from moiety.clients import clock
    from moiety.data import FederatedData
    from moiety.engines import Run, fit
    from moiety.engines.pipeline import pipeline, resume, stage
    from moiety.errors import MoietyError
    from moiety.split import Split
    from moiety.transport import codecs as codec
    from moiety.types import Algorithm, Metric, Task

_WHERE = {
    "Algorithm": "moiety.types:Algorithm",
    "FederatedData": "moiety.data:FederatedData",
    "Metric": "moiety.types:Metric",
    "MoietyError": "moiety.errors:MoietyError",
    "Run": "moiety.run.result:Run",
    "Settings": "moiety.run.settings:Settings",
    "Split": "moiety.split:Split",
    "Stage": "moiety.run.pipeline:Stage",
    "Task": "moiety.types:Task",
    "aggregator": "moiety.aggregation.aggregators",
    "analysis": "moiety.analysis",
    "apfl": "moiety.algorithms:apfl",
    "attack": "moiety.aggregation.attacks",
    "clock": "moiety.clients.clock",
    "codec": "moiety.transport.codecs",
    "data": "moiety.data",
    "ditto": "moiety.algorithms:ditto",
    "evaluation": "moiety.evaluation",
    "experiments": "moiety.experiments",
    "random": "moiety.rng",
    "reports": "moiety.reports",
    "task": "moiety.task",
    "fedalt": "moiety.algorithms:fedalt",
    "fedavg": "moiety.algorithms:fedavg",
    "fedper": "moiety.algorithms:fedper",
    "fedpop": "moiety.algorithms:fedpop",
    "kernel": "moiety.kernels",
    "prior": "moiety.priors",
    "fedrep": "moiety.algorithms:fedrep",
    "fedsim": "moiety.algorithms:fedsim",
    "fedspa": "moiety.algorithms:fedspa",
    "ffgg": "moiety.algorithms:ffgg",
    "fictitious_play": "moiety.analysis.glocal_erm:fictitious_play",
    "fit": "moiety.run.fit:fit",
    "glocal_erm": "moiety.analysis.glocal_erm:glocal_erm",
    "kernel": "moiety.local.kernels",
    "models": "moiety.models",
    "online": "moiety.local.online:online",
    "pipeline": "moiety.run.pipeline:pipeline",
    "prior": "moiety.local.priors",
    "resume": "moiety.run.resume:resume",
    "schedule": "moiety.local.schedules",
    "server": "moiety.server",
    "sgd": "moiety.local.sgd:sgd",
    "solver": "moiety.local.solvers",
    "split": "moiety.split",
}

__all__ = [
    "Algorithm",
    "FederatedData",
    "Metric",
    "MoietyError",
    "Run",
    "Split",
    "Task",
    "advise",
    "aggregator",
    "analysis",
    "apfl",
    "attack",
    "central",
    "clock",
    "codec",
    "data",
    "diagnose_split",
    "ditto",
    "evaluation",
    "experiments",
    "fedalt",
    "fedavg",
    "fedper",
    "fedpop",
    "fedrep",
    "fedsim",
    "fedspa",
    "ffgg",
    "fictitious_play",
    "finetune",
    "fit",
    "glocal_erm",
    "glocal_sgd",
    "independent",
    "kernel",
    "l2gd",
    "lg_fedavg",
    "local_ffgg",
    "local_gd",
    "local_only",
    "models",
    "per_fedavg",
    "pfedme",
    "pipeline",
    "prior",
    "random",
    "reports",
    "resume",
    "scaffold",
    "schedule",
    "server",
    "solver",
    "split",
    "stage",
    "sub_fedavg",
    "subsampling",
    "task",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        module, _, attribute = _WHERE[name].partition(":")
        home = importlib.import_module(module)
        return getattr(home, attribute) if attribute else home
    if name == "__all__":
        return __dir__()
    if not name.startswith("_"):
        algorithms = importlib.import_module("moiety.algorithms").ALGORITHMS
        if name in algorithms:
            return algorithms[name]
    raise AttributeError(f"module 'moiety' has no attribute {name!r}")


def __dir__() -> list[str]:
    algorithms = importlib.import_module("moiety.algorithms").ALGORITHMS
    return sorted([*_WHERE, *algorithms])
