"""From a checked configuration to what ``moiety.fit`` takes."""

from __future__ import annotations

import inspect
import math
from typing import Any, NamedTuple

import torch
from torch import nn

from moiety.cli.config import Config, RunSection, Table
from moiety.clients.clock import clock_from
from moiety.data import FederatedData, from_spec
from moiety.engines.auto import check_engine
from moiety.errors import MoietyError, choice, message, must, near
from moiety.loop.uploads import build_upload_parts
from moiety.models import MODELS
from moiety.run.build import algorithm_from, split_from
from moiety.run.stages import Stage, stage_from
from moiety.spec import build
from moiety.split import SPLITS, Split
from moiety.types import Algorithm

DEVICES = ("cpu", "cuda", "mps")


class Parts(NamedTuple):
    """What a configuration of one run describes."""

    model: nn.Module
    data: FederatedData
    algorithm: Algorithm
    split: Split | None
    ways: dict[str, Any]


def parts(config: Config) -> Parts:
    """Make them; what is quickly checked comes first, since data may take long to load."""
    algorithm = algorithm_from(config.algorithm or {})
    hint = 'As in [split] with name = "output_layer".'
    must(bool(config.split or algorithm.default_split), "split", f"given for {algorithm.name}", "nothing", hint)
    ways = build_upload_parts(config.model_dump())
    ways["clock"] = None if config.clock is None else clock_from(config.clock)
    model, data = _model_and_data(config)
    return Parts(model, data, algorithm, split_from(config.split, model) if config.split else None, ways)


class Staged(NamedTuple):
    """What a configuration of a pipeline describes."""

    stages: list[Stage]
    model: nn.Module
    data: FederatedData


def staged(config: Config) -> Staged:
    """Make them, in the same order."""
    tables = [each.model_dump(exclude_none=True) for each in config.stage or ()]
    stages = [stage_from(number, table) for number, table in enumerate(tables, 1)]
    for number, table in enumerate(tables, 1):
        if "split" in table:
            choice(f"stage.{number}.split.name", table["split"].get("name"), SPLITS)
    return Staged(stages, *_model_and_data(config))


def _model_and_data(config: Config) -> tuple[nn.Module, FederatedData]:
    check_engine(config.run.engine)
    _check_device(config.run.device)
    choice("model.name", config.model.get("name"), MODELS)
    data = from_spec(config.data)
    _check_columns(config.run, data)
    return _model(sized(config.model, data, config.run)), data


def _check_columns(run: RunSection, data: FederatedData) -> None:
    part = run.evaluate_on
    must(part is None or bool(data.sizes(part).any()), "run.evaluate_on", "a part of the data that has rows", part)
    must(bool(run.inputs), "run.inputs", "at least one column of the data", "none", near("", data.columns))
    for name in run.inputs:
        must(name in data.columns, "run.inputs", "columns of the data", name, near(name, data.columns))


def sized(model: Table, data: FederatedData, run: RunSection) -> Table:
    """The model's table with the sizes that follow from the data, where the file leaves them out."""
    known = inspect.signature(MODELS[model["name"]]).parameters
    found: Table = {}
    shape = [int(side) for side in data.columns[run.inputs[0]].shape[1:]]
    found["inputs"] = math.prod(shape)
    if len(shape) == 3:
        found["image"] = shape
    labels = data.columns.get("y")
    if labels is not None:
        regression = run.loss == "mse" or (run.loss is None and labels.dtype.kind == "f")
        width = math.prod(labels.shape[1:]) if regression or data.classes is None else data.classes
        found["outputs"] = found["classes"] = int(width)
    return {**{k: v for k, v in found.items() if k in known}, **model}


def _model(table: Table) -> nn.Module:
    try:
        made: nn.Module = build("model", MODELS, table)
    except (RuntimeError, TypeError, MemoryError, OverflowError) as error:  # torch's way to say that it is too large
        raise MoietyError(message("model", "one that can be made", error)) from None
    return made


def _check_device(name: str) -> None:
    hint = f"Known: {', '.join(DEVICES)}."
    try:
        device = torch.device(name)
        must(device.type in DEVICES, "run.device", "a device to train on", name, hint)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise MoietyError(message("run.device", "a device of this machine", f"{name}: {error}", hint)) from None


def options(run: RunSection) -> dict[str, Any]:
    """The keyword arguments of ``fit`` that ``[run]`` gives."""
    return {k: v for k, v in run.model_dump().items() if v is not None and k != "engine_reason"}
