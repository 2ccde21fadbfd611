"""From what a user gives, or a configuration names, to a checked problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from torch import nn

from moiety import task as tasks
from moiety.algorithms import ALGORITHMS
from moiety.data import FederatedData
from moiety.engines.problem import Problem, to_tensors
from moiety.errors import must
from moiety.local.priors import PRIORS
from moiety.local.schedules import SCHEDULES
from moiety.local.work import LOCAL_WORK
from moiety.models import MODELS
from moiety.run.checks import check_clients, check_device, check_model, check_split
from moiety.server.optimisers import SERVERS
from moiety.spec import Spec, build
from moiety.split import SPLITS, Split
from moiety.types import Algorithm, Metric, Task


def unknown(spec: Spec) -> str | None:
    """The name of an algorithm that was made outside of this package, which a configuration cannot make again."""
    return None if spec.get("name") in ALGORITHMS else spec.get("name")


def algorithm_from(spec: Spec | str, where: str = "algorithm") -> Algorithm:
    """The algorithm that the table ``where`` of a configuration describes."""
    inner = {
        "server": lambda s: build(f"{where}.server", SERVERS, s),
        "schedule": lambda s: build(f"{where}.schedule", SCHEDULES, s),
        "shared": lambda s: _local_work(f"{where}.shared", s),
        "personal": lambda s: _local_work(f"{where}.personal", s),
        "solver": lambda s: _local_work(f"{where}.solver", s),
        "prior": lambda s: build(f"{where}.prior", PRIORS, s),
    }
    made: Algorithm = build(where, ALGORITHMS, spec, inner)
    return made


def _local_work(where: str, spec: Any) -> Any:
    """Local work as a file says it: a learning rate, or a table with a name."""
    return build(where, LOCAL_WORK, spec) if isinstance(spec, str | dict) else spec


def split_from(spec: Spec | str, model: nn.Module, where: str = "split") -> Split:
    """The split of ``model`` that the table ``where`` of a configuration describes."""
    made: Split = build(where, SPLITS, spec, {"local_model": _local_model}, {"model": model})
    return made


def _local_model(spec: Spec | str) -> nn.Module:
    """The second model of a split that has one."""
    must(isinstance(spec, str | dict), "split.local_model", "a name or a table with a name", repr(spec))
    made: nn.Module = build("split.local_model", MODELS, spec)
    return made


def default_loss(data: FederatedData) -> str:
    """The loss that goes with the labels ``y``: cross-entropy for whole numbers, else mean squared error."""
    must("y" in data.columns, "data", "columns with y, or a loss of your own", ", ".join(data.columns))
    return "cross_entropy" if data.columns["y"].dtype.kind in "iub" else "mse"


def problem_for(
    model: nn.Module | Task,
    data: FederatedData,
    algorithm: Algorithm,
    split: Split | None,
    seed: int,
    loss: tasks.Loss,
    metric: str | Metric | None,
    inputs: Sequence[str],
    device: str,
    partial: bool,
) -> Problem:
    """The checked problem, with the model's present values as the first ones."""
    where = check_device(device)
    if split is None:
        hint = "For instance split=moiety.split.output_layer(model)."
        known = algorithm.default_split is not None and isinstance(model, nn.Module)
        must(known, "split", f"given for {algorithm.name} and {type(model).__name__}", "nothing", hint)
        split = split_from(str(algorithm.default_split), cast(nn.Module, model))
    if isinstance(model, Task):
        task = model
    else:
        module = split.module_for(model)
        task = tasks.from_module(module, loss=loss, metric=metric, inputs=inputs, penalty=split.penalty)
    task = replace(task, init={n: p.to(where) for n, p in task.init.items()})
    names = {*split.shared, *split.personal, *split.frozen}
    must(names == task.init.keys(), "split", "made for this model", f"another's, with {len(names)} names")
    check_split(algorithm, split)
    problem = Problem(task, split, data, to_tensors(data.columns, task, where), seed, partial=partial)
    own = isinstance(model, Task)
    check_model(problem, () if own else tuple(inputs), None if own else loss)
    check_clients(problem, algorithm)
    return problem
