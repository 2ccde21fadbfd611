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
    from moiety.aggregation import server
    from moiety.algorithms import fedalt, fedavg, fedsim, local_only
    from moiety.data import FederatedData
    from moiety.engines import Run, fit, resume
    from moiety.errors import MoietyError
    from moiety.split import Split
    from moiety.types import Algorithm, Metric, Task

_WHERE = {
    "Algorithm": "moiety.types:Algorithm",
    "FederatedData": "moiety.data:FederatedData",
    "Metric": "moiety.types:Metric",
    "MoietyError": "moiety.errors:MoietyError",
    "Run": "moiety.engines:Run",
    "Split": "moiety.split:Split",
    "Task": "moiety.types:Task",
    "data": "moiety.data",
    "fedalt": "moiety.algorithms:fedalt",
    "fedavg": "moiety.algorithms:fedavg",
    "fedsim": "moiety.algorithms:fedsim",
    "fit": "moiety.engines:fit",
    "local_only": "moiety.algorithms:local_only",
    "models": "moiety.models",
    "resume": "moiety.engines:resume",
    "schedule": "moiety.schedules",
    "server": "moiety.aggregation.server",
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
    "data",
    "fedalt",
    "fedavg",
    "fedsim",
    "fit",
    "local_only",
    "models",
    "resume",
    "schedule",
    "server",
    "split",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'moiety' has no attribute {name!r}")
    module, _, attribute = _WHERE[name].partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
