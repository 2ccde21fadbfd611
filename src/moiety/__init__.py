"""moiety: personalised federated learning. Every client's model is part shared, part its own.

Names are looked up when first used, so that importing the package (and ``moiety --help``) does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from moiety import data, models, server, split
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
    from moiety.errors import MoietyError
    from moiety.local import kernels as kernel
    from moiety.local import priors as prior
    from moiety.local import schedules as schedule
    from moiety.local import solvers as solver
    from moiety.run.fit import fit
    from moiety.run.pipeline import Stage, pipeline
    from moiety.run.result import Run
    from moiety.run.resume import resume
    from moiety.run.settings import Settings
    from moiety.server import aggregators as aggregator
    from moiety.server import attacks as attack
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
    "aggregator": "moiety.server.aggregators",
    "apfl": "moiety.algorithms:apfl",
    "attack": "moiety.server.attacks",
    "clock": "moiety.clients.clock",
    "codec": "moiety.transport.codecs",
    "advise": "moiety.analysis.advise:advise",
    "diagnose_split": "moiety.analysis.diagnose_split:diagnose_split",
    "central": "moiety.algorithms:central",
    "data": "moiety.data",
    "ditto": "moiety.algorithms:ditto",
    "fedalt": "moiety.algorithms:fedalt",
    "fedavg": "moiety.algorithms:fedavg",
    "fedper": "moiety.algorithms:fedper",
    "fedpop": "moiety.algorithms:fedpop",
    "kernel": "moiety.local.kernels",
    "prior": "moiety.local.priors",
    "fedrep": "moiety.algorithms:fedrep",
    "fedsim": "moiety.algorithms:fedsim",
    "fedspa": "moiety.algorithms:fedspa",
    "ffgg": "moiety.algorithms:ffgg",
    "fictitious_play": "moiety.analysis.glocal_erm:fictitious_play",
    "finetune": "moiety.algorithms:finetune",
    "fit": "moiety.run.fit:fit",
    "glocal_erm": "moiety.analysis.glocal_erm:glocal_erm",
    "glocal_sgd": "moiety.algorithms:glocal_sgd",
    "independent": "moiety.algorithms:independent",
    "l2gd": "moiety.algorithms:l2gd",
    "lg_fedavg": "moiety.algorithms:lg_fedavg",
    "local_ffgg": "moiety.algorithms:local_ffgg",
    "local_gd": "moiety.algorithms:local_gd",
    "local_only": "moiety.algorithms:local_only",
    "models": "moiety.models",
    "per_fedavg": "moiety.algorithms:per_fedavg",
    "pfedme": "moiety.algorithms:pfedme",
    "pipeline": "moiety.run.pipeline:pipeline",
    "resume": "moiety.run.resume:resume",
    "scaffold": "moiety.algorithms:scaffold",
    "schedule": "moiety.local.schedules",
    "server": "moiety.server",
    "solver": "moiety.local.solvers",
    "split": "moiety.split",
    "sub_fedavg": "moiety.algorithms:sub_fedavg",
    "subsampling": "moiety.algorithms:subsampling",
}

__all__ = [
    "Algorithm",
    "FederatedData",
    "Metric",
    "MoietyError",
    "Run",
    "Settings",
    "Split",
    "Stage",
    "Task",
    "advise",
    "aggregator",
    "apfl",
    "attack",
    "central",
    "clock",
    "codec",
    "data",
    "diagnose_split",
    "ditto",
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
    "resume",
    "scaffold",
    "schedule",
    "server",
    "solver",
    "split",
    "sub_fedavg",
    "subsampling",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'moiety' has no attribute {name!r}")
    module, _, attribute = _WHERE[name].partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
