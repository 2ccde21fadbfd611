"""moiety: personalised federated learning. Every client's model is part shared, part its own.

Names are looked up when first used, so that importing the package (and ``moiety --help``) does not import torch.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from moiety import analysis as analysis
    from moiety import data as data
    from moiety import deploy as deploy
    from moiety import evaluation as evaluation
    from moiety import experiments as experiments
    from moiety import models as models
    from moiety import random as random
    from moiety import reports as reports
    from moiety import server as server
    from moiety import split as split
    from moiety import task as task
    from moiety.algorithms import *  # noqa: F403
    from moiety.analysis.advise import advise as advise
    from moiety.analysis.diagnose_split import diagnose_split as diagnose_split
    from moiety.analysis.glocal_erm import fictitious_play as fictitious_play
    from moiety.analysis.glocal_erm import glocal_erm as glocal_erm
    from moiety.clients import clock as clock
    from moiety.data import FederatedData as FederatedData
    from moiety.errors import MoietyError as MoietyError
    from moiety.experiments.recommend import recommend as recommend
    from moiety.experiments.sweep import sweep as sweep
    from moiety.experiments.tune import tune as tune
    from moiety.local import kernels as kernel  # noqa: F401
    from moiety.local import priors as prior  # noqa: F401
    from moiety.local import schedules as schedule  # noqa: F401
    from moiety.local import solvers as solver  # noqa: F401
    from moiety.local.adam import adam as adam
    from moiety.local.adam import adamw as adamw
    from moiety.local.online import online as online
    from moiety.local.sgd import sgd as sgd
    from moiety.run import callbacks as callbacks
    from moiety.run.estimator import PersonalisedClassifier as PersonalisedClassifier
    from moiety.run.estimator import PersonalisedRegressor as PersonalisedRegressor
    from moiety.run.fit import fit as fit
    from moiety.run.load import load as load
    from moiety.run.pipeline import Stage as Stage
    from moiety.run.pipeline import pipeline as pipeline
    from moiety.run.result import Run as Run
    from moiety.run.resume import resume as resume
    from moiety.run.settings import Settings as Settings
    from moiety.run.verify import verify as verify
    from moiety.server import aggregators as aggregator  # noqa: F401
    from moiety.server import attacks as attack  # noqa: F401
    from moiety.split import Split as Split
    from moiety.task import losses as loss  # noqa: F401
    from moiety.transport import codecs as codec  # noqa: F401
    from moiety.transport import privacy as privacy
    from moiety.types import Algorithm as Algorithm
    from moiety.types import Metric as Metric
    from moiety.types import SetMetric as SetMetric
    from moiety.types import Task as Task

_WHERE = {
    "Algorithm": "moiety.types:Algorithm",
    "FederatedData": "moiety.data:FederatedData",
    "Metric": "moiety.types:Metric",
    "MoietyError": "moiety.errors:MoietyError",
    "PersonalisedClassifier": "moiety.run.estimator:PersonalisedClassifier",
    "PersonalisedRegressor": "moiety.run.estimator:PersonalisedRegressor",
    "Run": "moiety.run.result:Run",
    "SetMetric": "moiety.types:SetMetric",
    "Settings": "moiety.run.settings:Settings",
    "Split": "moiety.split:Split",
    "Stage": "moiety.run.pipeline:Stage",
    "Task": "moiety.types:Task",
    "adam": "moiety.local.adam:adam",
    "adamw": "moiety.local.adam:adamw",
    "advise": "moiety.analysis.advise:advise",
    "aggregator": "moiety.server.aggregators",
    "analysis": "moiety.analysis",
    "attack": "moiety.server.attacks",
    "callbacks": "moiety.run.callbacks",
    "clock": "moiety.clients.clock",
    "codec": "moiety.transport.codecs",
    "data": "moiety.data",
    "deploy": "moiety.deploy",
    "diagnose_split": "moiety.analysis.diagnose_split:diagnose_split",
    "evaluation": "moiety.evaluation",
    "experiments": "moiety.experiments",
    "fictitious_play": "moiety.analysis.glocal_erm:fictitious_play",
    "fit": "moiety.run.fit:fit",
    "glocal_erm": "moiety.analysis.glocal_erm:glocal_erm",
    "kernel": "moiety.local.kernels",
    "load": "moiety.run.load:load",
    "loss": "moiety.task.losses",
    "models": "moiety.models",
    "online": "moiety.local.online:online",
    "pipeline": "moiety.run.pipeline:pipeline",
    "prior": "moiety.local.priors",
    "privacy": "moiety.transport.privacy",
    "random": "moiety.random",
    "recommend": "moiety.experiments.recommend:recommend",
    "reports": "moiety.reports",
    "resume": "moiety.run.resume:resume",
    "schedule": "moiety.local.schedules",
    "server": "moiety.server",
    "sgd": "moiety.local.sgd:sgd",
    "solver": "moiety.local.solvers",
    "split": "moiety.split",
    "sweep": "moiety.experiments.sweep:sweep",
    "task": "moiety.task",
    "tune": "moiety.experiments.tune:tune",
    "verify": "moiety.run.verify:verify",
}
"""Where public names are; those of algorithms stand in the table of ``moiety.algorithms``."""


@cache
def _algorithm_names() -> tuple[str, ...]:
    """The names of the files in ``algorithms/``: one paper, one file. Nothing is imported; the folder is read once."""
    import pkgutil
    from pathlib import Path

    files = pkgutil.iter_modules([f"{Path(__file__).parent}/algorithms"])
    return tuple(file.name for file in files if not file.name.startswith("_"))


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        module, _, attribute = _WHERE[name].partition(":")
        home = importlib.import_module(module)
        return getattr(home, attribute) if attribute else home
    if name == "__all__":
        return sorted([*_WHERE, *_algorithm_names()])
    # Only for these: ``from moiety import tree`` asks here first, while what algorithms import is half imported.
    if name in _algorithm_names():
        return getattr(importlib.import_module("moiety.algorithms"), name)
    raise AttributeError(f"module 'moiety' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__getattr__("__all__"), "__version__"])
