"""What is asked of model, data and options before a run begins, so that it fails in its first second."""

from __future__ import annotations

import numpy as np
import torch

from moiety.data import FederatedData
from moiety.engines.problem import Problem
from moiety.errors import MoietyError, message, must, near
from moiety.split import Split
from moiety.types import Algorithm


def check_numbers(data: FederatedData, rounds: int, cohort: int, seed: int, every: dict[str, int]) -> None:
    """Rounds, cohort, seed and intervals."""
    whole = {"rounds": rounds, "cohort": cohort, "seed": seed, **every}
    for name, value in whole.items():
        must(isinstance(value, int) and not isinstance(value, bool), name, "a whole number", repr(value))
    must(rounds >= 1, "rounds", ">= 1", rounds)
    must(cohort >= 1, "cohort", ">= 1", cohort)
    must(cohort <= len(data), "cohort", f"<= {len(data)}, the number of clients", cohort)
    must(seed >= 0, "seed", ">= 0", seed)
    for name, value in every.items():
        must(value >= 1, name, ">= 1", value)


def check_split(algorithm: Algorithm, split: Split) -> None:
    """Whether the algorithm can work with this split."""
    got = f"{len(split.trained_shared)} shared and {len(split.trained_personal)} personal parameters"
    if algorithm.needs == "nothing":
        hint = f"Use split nothing, or an algorithm other than {algorithm.name}."
        must(not split.trained_personal, "split", f"one with nothing personal for {algorithm.name}", got, hint)
    if algorithm.needs == "everything":
        hint = f"Use split everything, or an algorithm other than {algorithm.name}."
        must(not split.shared, "split", f"one with nothing shared for {algorithm.name}", got, hint)
    must(bool(split.trained_shared or split.trained_personal), "split", "one that leaves something to train", got)


def check_data(data: FederatedData) -> None:
    """Every client must have something to train on."""
    empty = np.flatnonzero(data.sizes("train") == 0)
    if len(empty):
        names = ", ".join(str(data.ids[int(i)]) for i in empty[:3])
        got = f"none for client {names}{' and others' if len(empty) > 3 else ''}"
        raise MoietyError(message("data", "at least one training example for every client", got))


def check_columns(wanted: FederatedData, given: FederatedData) -> None:
    """Whether data of a new client have the columns, shapes and kinds of the run's."""
    for name, column in wanted.columns.items():
        must(name in given.columns, "data", f"columns with {name}", ", ".join(given.columns), near(name, given.columns))
        new = given.columns[name]
        shape, got = column.shape[1:], new.shape[1:]
        must(shape == got, f"data[{name!r}]", f"of shape {shape} per example", got)


def check_model(problem: Problem, inputs: tuple[str, ...], loss: object) -> None:
    """Try the model on two rows: shapes must fit, and labels must be among its outputs."""
    columns = problem.columns
    for name in inputs:
        must(name in columns, "inputs", "columns of the data", name, near(name, columns))
    start, stop = problem.data.rows(0, "train")
    index = torch.from_numpy(np.resize(np.arange(start, stop), 2))
    batch = {name: column.index_select(0, index) for name, column in columns.items()}
    shapes = ", ".join(f"{name} {tuple(column.shape[1:])}" for name, column in columns.items())
    try:
        with torch.no_grad():
            output = problem.task.predict(problem.task.init, batch)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise MoietyError(message("model", f"one that takes the data's columns ({shapes})", error)) from error
    if loss == "cross_entropy":
        _check_labels(problem, output)
    try:
        with torch.no_grad():
            losses, metrics = problem.task.scores(problem.task.init, batch)
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
        got = f"output {tuple(output.shape[1:])} for columns {shapes}: {error}"
        raise MoietyError(message("loss", "one that fits the model's output", got)) from error
    for name, values in (("loss", losses), ("metric", metrics)):
        must(tuple(values.shape) == (2,), name, "one number per example", f"shape {tuple(values.shape)} for 2 examples")


def _check_labels(problem: Problem, output: torch.Tensor) -> None:
    y = problem.columns.get("y")
    must(y is not None, "data", "columns with y, the labels", ", ".join(problem.columns))
    assert y is not None
    must(not y.is_floating_point(), "y", "whole-numbered labels for cross_entropy", y.dtype, "Use loss mse instead?")
    classes = output.shape[-1]
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        rows = (y.reshape(len(y), -1) == (low if low < 0 else high)).any(1).nonzero()[:1].item()
        client = int(np.searchsorted(problem.data.bounds[:, 3], rows, side="right"))
        got = f"{low if low < 0 else high} for client {problem.data.ids[client]}"
        raise MoietyError(message("y", f"a label from 0 to {classes - 1}, the model's outputs", got))
