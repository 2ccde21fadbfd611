"""From what a user gives, or a configuration names, to a checked problem and the loop that trains on it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from moiety import task as tasks
from moiety import tree
from moiety.algorithms import ALGORITHMS
from moiety.data import FederatedData
from moiety.engines.problem import Problem, to_tensors
from moiety.errors import must, report_errors
from moiety.local.priors import PRIORS
from moiety.local.schedules import SCHEDULES
from moiety.local.work import LOCAL_WORK
from moiety.loop.exchange import declare_layouts
from moiety.loop.round import Loop, Progress
from moiety.loop.uploads import UploadOptions
from moiety.loop.virtual_time import choose_loop
from moiety.machine import check_room
from moiety.models import MODELS
from moiety.run.checks import check_clients, check_model, check_range, check_split
from moiety.run.memory import check_columns
from moiety.run.result import Run
from moiety.run.settings import Options, check_device, pick_attackers
from moiety.server import SERVERS
from moiety.spec import Spec, build
from moiety.split import SPLITS, Split
from moiety.task.losses import is_regression
from moiety.task.precision import compute_in_bf16
from moiety.transport.privacy import check_numbers_only
from moiety.types import Algorithm, Task


def own_part(config: Mapping[str, Any], part: str) -> str | None:
    """The name of a run's data, model, split or algorithm where it is the user's own; None where a file describes it.

    An algorithm of another package counts as the user's own: its name cannot be looked up here.
    """
    table = config[part]
    name = table.get("name")
    unknown = part == "algorithm" and not (isinstance(name, str) and name in ALGORITHMS)
    own: str | None = table.get("own") or (name if unknown else None)
    return own


def algorithm_from(spec: Spec | str, where: str = "algorithm") -> Algorithm:
    """The algorithm that the table ``where`` of a configuration describes."""
    inner: dict[str, Mapping[str, Callable[..., Any]]] = {
        "server": SERVERS,
        "schedule": SCHEDULES,
        "shared": LOCAL_WORK,
        "personal": LOCAL_WORK,
        "solver": LOCAL_WORK,
        "prior": PRIORS,
    }
    return build(where, ALGORITHMS, spec, inner)


class _WithoutDraws(TorchFunctionMode):
    """Leave out draws of normal numbers: for tensors without values they import PyTorch's compiler, for a second."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.__name__.endswith("normal_"):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


def model_from(table: Spec) -> nn.Module:
    """The model that the table [model] of a configuration describes; one that the memory cannot hold is refused."""
    too_large = (RuntimeError, TypeError, MemoryError, OverflowError)
    with report_errors("model", "one that can be made", too_large):
        with torch.device("meta"), _WithoutDraws():  # shapes without values
            shapes = build("model", MODELS, table)
        size = sum(p.numel() * p.element_size() for p in tree.module_tensors(shapes).values())
        check_room("model", size)
        return build("model", MODELS, table)


def fill_sizes(model: Spec, data: FederatedData, options: Options) -> Spec:
    """The model's table with the sizes that follow from the data, where the file leaves them out."""
    shape = [int(side) for side in data.columns[(options.settings.inputs or ("x",))[0]].shape[1:]]
    sizes: Spec = {"inputs": math.prod(shape)}
    if len(shape) == 3:
        sizes["image"] = shape
    labels = data.columns.get("y")
    if labels is not None:
        regression = is_regression(options.loss) or (options.loss is None and labels.dtype.kind == "f")
        width = math.prod(labels.shape[1:]) if regression or data.classes is None else data.classes
        sizes["outputs"] = sizes["classes"] = int(width)
    parameters = inspect.signature(MODELS[model["name"]]).parameters
    return {**{key: size for key, size in sizes.items() if key in parameters}, **model}


def split_from(spec: Spec | str, model: nn.Module, where: str = "split") -> Split:
    """The split of ``model`` that the table ``where`` of a configuration describes."""
    return build(where, SPLITS, spec, {"local_model": MODELS}, {"model": model})


def suit_run(algorithm: Algorithm, options: Options) -> Algorithm:
    """The algorithm with its open choices settled by the loss and the seed. Files describe it as the user gave it."""
    variant = algorithm.posterior.for_loss(options.loss) if algorithm.posterior else None
    if algorithm.sparsity and algorithm.sparsity.for_seed:
        variant = algorithm.sparsity.for_seed(options.seed)
    return algorithm if variant is None else replace(variant, spec=algorithm.spec)


def make_problem(
    model: nn.Module | Task,
    data: FederatedData,
    algorithm: Algorithm,
    split: Split | None,
    options: Options,
    *,
    check: bool = True,
) -> Problem:
    """The checked problem, with the model's present values as the first ones; the options are complete.

    Without ``check`` the model is not tried on the data.
    """
    settings, device = options.settings, check_device(options.settings.device)
    if split is None:
        hint = "For instance split=moiety.split.output_layer(model)."
        fits = algorithm.default_split is not None and isinstance(model, nn.Module)
        must(fits, "split", f"given for {algorithm.name} and {type(model).__name__}", "nothing", hint)
        split = split_from(str(algorithm.default_split), cast(nn.Module, model))
    inputs: tuple[str, ...] = ()
    loss = None
    if isinstance(model, Task):
        task = model
    else:
        assert settings.inputs is not None
        inputs, loss = tuple(settings.inputs), options.loss
        assert loss is not None
        module = split.module_for(model)
        weight = "weight" if data.preprocessing and data.preprocessing.weights else None
        task = tasks.from_module(
            module, loss=loss, metric=options.metric, inputs=inputs, penalty=split.penalty, weight=weight
        )
    task = replace(task, init={name: p.to(device) for name, p in task.init.items()})
    if settings.precision is not None:
        functions = "a task of plain functions, whose loss would be computed in it too"
        must(not isinstance(model, Task), "precision", "left out for your own task", functions)
        task = compute_in_bf16(task, device)
    names = {*split.shared, *split.personal, *split.frozen}
    must(names == task.init.keys(), "split", "made for this model", f"another's, with {len(names)} names")
    check_split(algorithm, split)
    check_columns(dict(data.columns), tasks.dtype_of(task))
    check_range(data.columns, tasks.dtype_of(task))
    problem = Problem(task, split, data, to_tensors(data.columns, task, device), options.seed, partial=settings.partial)
    if check:
        check_model(problem, inputs, loss)
        check_clients(problem, algorithm)
    _, up = declare_layouts(problem, algorithm)  # refuses personal names
    if settings.privacy is not None:
        check_numbers_only(up)
    return _make_upload_options(data, options).poison_labels(problem)


def _make_upload_options(data: FederatedData, options: Options) -> UploadOptions:
    """How uploads travel and are joined; the options are complete."""
    settings = options.settings
    attackers = pick_attackers(data, settings.attackers or (), options.seed)
    bernoulli = settings.participation == "bernoulli"
    return UploadOptions(settings.aggregator, settings.codec, settings.attack, attackers, bernoulli, settings.privacy)


def make_run(
    config: dict[str, Any],
    folder: Path | None,
    model: nn.Module | Task,
    problem: Problem,
    algorithm: Algorithm,
    progress: Progress,
    options: Options,
    kind: type[Loop] | None = None,
) -> Run:
    """A run that is ready to train; the options are complete.

    ``kind`` is the class of its loop; by default the one that the clock needs.
    """
    assert options.rounds is not None
    assert options.cohort is not None
    clock = options.settings.clock
    loop = (kind or choose_loop(clock))(
        problem,
        algorithm,
        progress,
        rounds=options.rounds,
        cohort=options.cohort,
        engine_name=options.engine,
        workers=options.settings.workers,
        timeout=options.settings.worker_timeout,
        uploads=_make_upload_options(problem.data, options),
        clock=clock,
        on_divergence=options.settings.on_divergence,
    )
    # A task of plain functions has no module to export.
    return Run(config, folder, loop, problem.split.module_for(model) if isinstance(model, nn.Module) else None)
