"""moiety: personalised federated learning. Every client's model is part shared, part its own.

Names are looked up when first used, so that importing the package (and ``moiety --help``) does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from moiety import data, models, split
    from moiety import schedules as schedule
    from moiety import solvers as solver
    from moiety.aggregation import attacks as attack
    from moiety.aggregation import preaggregation as aggregator
    from moiety.aggregation import server
    from moiety.algorithms import ditto, fedalt, fedavg, fedsim, ffgg, finetune, local_ffgg, local_only, pfedme
    from moiety.analysis.advise import advise
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
    "Run": "moiety.engines:Run",
    "Split": "moiety.split:Split",
    "Task": "moiety.types:Task",
    "aggregator": "moiety.aggregation.preaggregation",
    "attack": "moiety.aggregation.attacks",
    "codec": "moiety.transport.codecs",
    "advise": "moiety.analysis.advise:advise",
    "data": "moiety.data",
    "ditto": "moiety.algorithms:ditto",
    "fedalt": "moiety.algorithms:fedalt",
    "fedavg": "moiety.algorithms:fedavg",
    "fedsim": "moiety.algorithms:fedsim",
    "ffgg": "moiety.algorithms:ffgg",
    "finetune": "moiety.algorithms:finetune",
    "fit": "moiety.engines:fit",
    "local_ffgg": "moiety.algorithms:local_ffgg",
    "local_only": "moiety.algorithms:local_only",
    "models": "moiety.models",
    "pfedme": "moiety.algorithms:pfedme",
    "pipeline": "moiety.engines.pipeline:pipeline",
    "resume": "moiety.engines.pipeline:resume",
    "schedule": "moiety.schedules",
    "server": "moiety.aggregation.server",
    "solver": "moiety.solvers",
    "split": "moiety.split",
    "stage": "moiety.engines.pipeline:stage",
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
    "attack",
    "codec",
    "data",
    "ditto",
    "fedalt",
    "fedavg",
    "fedsim",
    "ffgg",
    "finetune",
    "fit",
    "local_ffgg",
    "local_only",
    "models",
    "pfedme",
    "pipeline",
    "resume",
    "schedule",
    "server",
    "solver",
    "split",
    "stage",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'moiety' has no attribute {name!r}")
    module, _, attribute = _WHERE[name].partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
