"""Checks of model, data and split before a run begins, so that a bad one fails in its first second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from moiety.data import FederatedData
from moiety.data.checks import as_column
from moiety.engines.problem import Problem
from moiety.engines.rows import count_rows, has_lone_batch
from moiety.errors import kind, must, near, refuse, report_errors
from moiety.local.sgd import WHOLE
from moiety.random import torch_seed
from moiety.run.raw import RawModel
from moiety.split import Split
from moiety.task.losses import WITH_OPTIONS, LabelLoss
from moiety.task.scores import BLANK, IGNORED, LOSSES, METRICS, next_labels
from moiety.types import Algorithm, Batch, Phase, Task

OF_CLASSES = tuple(METRICS[name] for name in ("accuracy", "token_accuracy", "one_versus_all_accuracy"))
OWN_LOSS = (
    "A loss is a name or a function of (output, batch) with one loss per example, as in "
    "lambda output, batch: torch.nn.functional.cross_entropy(output, batch['y'], reduction='none')."
)
ROWS = 10**8
"""The most rows that a client can go through in one turn: their numbers are a list of this length in memory."""
WHOLE_LABELS = "For classes make y whole numbers, as in y.astype(int)."


def check_kinds(model: object, data: object, algorithm: object, split: object) -> None:
    """Raise unless model, data, algorithm and split are of the right kinds."""
    kind("model", model, (nn.Module, Task), "an nn.Module or a Task")
    hint = "Its `model` is the model alone."
    must(not isinstance(model, RawModel), "model", "one that takes the columns of the data", "one for raw rows", hint)
    kind("data", data, FederatedData, "FederatedData", "See moiety.data.from_arrays.")
    kind("algorithm", algorithm, Algorithm, "what a builder such as moiety.fedalt made")
    kind("split", split, (Split, type(None)), "a Split", "For instance moiety.split.output_layer(model).")


def check_split(algorithm: Algorithm, split: Split) -> None:
    """Raise unless the algorithm can work with this split."""
    counts = f"{len(split.trained_shared)} shared and {len(split.trained_personal)} personal parameters"
    other = f"Use split {algorithm.needs}, or an algorithm other than {algorithm.name}."
    fits, content, hint = {
        "nothing": (not split.trained_personal, "nothing personal", other),
        "everything": (not split.shared, "nothing shared", other),
        "personal": (bool(split.trained_personal), "something personal", "As split everything, or output_layer."),
    }.get(algorithm.needs, (True, "", ""))
    must(fits, "split", f"one with {content} for {algorithm.name}", counts, hint)
    must(bool(split.trained_shared or split.trained_personal), "split", "one that leaves something to train", counts)


def match_columns(argument: str, columns: Mapping[str, Any], run: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The columns given as ``argument``, which must have the names, shapes and kinds of these columns of the run.

    Whole numbers are made floating where the model takes floating ones, which it does for bytes too.
    """
    columns = {name: as_column(name, values) for name, values in columns.items()}
    must(all(len(column) for column in columns.values()), argument, "at least one example", "no rows")
    for name, like in run.items():
        must(name in columns, argument, f"columns with {', '.join(run)}", ", ".join(columns), f"Add {name}.")
        column, place = columns[name], f"{argument}[{name!r}]"
        must(column.shape[1:] == like.shape[1:], place, f"of shape {like.shape[1:]} per example", column.shape[1:])
        floating = like.dtype.kind == "f" or (like.dtype == np.uint8 and name != "y")
        must(floating or column.dtype.kind != "f", place, "whole numbers", column.dtype)
        if floating and column.dtype.kind != "f" and column.dtype != like.dtype:
            columns[name] = column.astype(like.dtype if like.dtype.kind == "f" else np.float64)
    return columns


def check_inputs(inputs: Sequence[str], columns: Mapping[str, Any]) -> None:
    """Raise unless the data have the columns that go into the model."""
    for name in inputs:
        must(name in columns, "inputs", "columns of the data", name, near(name, columns))


def check_model(problem: Problem, inputs: tuple[str, ...], loss: object) -> None:
    """Try the model on two rows, training and evaluating: shapes must fit, and labels must be among its outputs."""
    task, columns = problem.task, problem.columns
    check_inputs(inputs, columns)
    start, stop = problem.data.rows(0, "train")
    index = torch.from_numpy(np.resize(np.arange(start, stop), 2)).to(problem.device)
    batch = {name: column.index_select(0, index) for name, column in columns.items()}
    shapes = ", ".join(f"{name} {tuple(column.shape[1:])}" for name, column in columns.items())
    check_indices(problem, inputs)
    with torch.no_grad(), torch_seed(problem.seed, "check"):
        with report_errors("model", f"one that takes the data's columns ({shapes})"):
            output = task.predict(task.init, batch)
        kind("model", output, torch.Tensor, "one whose output is a tensor, or holds one (as logits)")
        check_targets(loss, columns, problem.data, output)
        if task.metric in OF_CLASSES and "y" in columns:  # the loss may be the user's own
            check_positions(columns["y"], output)
        own = OWN_LOSS if callable(loss) else ""
        constraint = f"one that fits the model's output {tuple(output.shape[1:])} and the columns {shapes}"
        with report_errors("loss", constraint, hint=own):
            losses, metrics = task.scores(task.init, batch)
        with report_errors("model", "one that can be run in training mode as well"):
            training_losses, _ = task.loss(task.init, batch)
        with report_errors("metric.weight", f"a function of a batch with the columns {shapes}"):
            weights = metrics if task.metric.weight is None else task.metric.weight(batch)
    for name, values in (("loss", losses), ("metric", metrics), ("loss", training_losses), ("metric.weight", weights)):
        fits = isinstance(values, torch.Tensor) and tuple(values.shape) == (2,)
        form = f"shape {tuple(values.shape)}" if isinstance(values, torch.Tensor) else type(values).__name__
        hint = own if name == "loss" else ""
        must(fits, name, "one number per example", f"{form} for 2 examples", hint)
    usable = bool((weights >= 0).all()) and bool(torch.isfinite(weights).all())
    must(task.metric.weight is None or usable, "metric.weight", "finite and >= 0", weights.tolist())


def check_indices(problem: Problem, inputs: tuple[str, ...]) -> None:
    """Raise where an input of whole numbers holds an index that the model has no entry for (in an embedding)."""
    columns = problem.columns
    for name in inputs:
        column = columns[name]
        if column.is_floating_point() or not column.numel():
            continue
        flat = column.reshape(len(column), -1)
        for value in (flat.min(), flat.max()):
            row = int((flat == value).any(1).nonzero()[0])
            batch = {each: values[[row, row]] for each, values in columns.items()}
            batch[name] = torch.full_like(batch[name], int(value))
            try:
                with torch.no_grad(), torch_seed(problem.seed, "check"):
                    problem.task.predict(problem.task.init, batch)
            except IndexError:
                owner = int(np.argmax((problem.data.bounds[:, 0] <= row) & (row < problem.data.bounds[:, 3])))
                fault = f"{int(value)} (client {str(problem.data.ids[owner])!r}, row {row})"
                hint = "Number what it stands for from 0, or give the model more entries."
                refuse(f"columns.{name}", "of indices that the model has entries for", fault, hint)
            except Exception:
                return  # the model does not take such rows at all, as ``check_model`` says


def check_clients(problem: Problem, algorithm: Algorithm) -> None:
    """Raise unless the algorithm is made for this number of clients, with batches that the model can train on.

    A model that cannot train on one row, as with BatchNorm, must not meet a batch of one.
    """
    data, sizes = problem.data, problem.data.sizes("train")
    clients = algorithm.posterior.clients if algorithm.posterior else None
    must(clients in (None, len(data)), "clients", f"the number of clients there are, {len(data)}", clients)
    for phase in algorithm.phases.values():
        check_turn(phase, int(sizes.max(initial=1)))
    if not problem.task.mixes_examples or _trains_on_one(problem):
        return
    constraint = "at least two training rows for every client, as BatchNorm cannot train on one"
    fault = f"1 for client {data.ids[int(np.argmax(sizes == 1))]}"
    must(not (sizes == 1).any(), "data", constraint, fault, "Leave such clients out, or normalise with GroupNorm.")
    for phase in algorithm.phases.values():
        lone = has_lone_batch(phase, sizes)
        if lone.any():
            at, pieces = int(np.argmax(lone)), phase.accumulate
            rows = phase.batch_size // pieces
            larger = (phase._replace(batch_size=size * pieces) for size in range(rows + 1, int(sizes.max()) + 1))
            fits = next((each for each in larger if not has_lone_batch(each, sizes).any()), None)
            hint = f"The next that fits is {fits.batch_size // pieces}." if fits else "Leave out accumulate."
            constraint = "one that leaves no client a batch of one row, which BatchNorm cannot train on"
            size = f"{rows} (times {pieces})" if pieces > 1 else rows
            fault = f"{'all' if phase.batch_size == WHOLE else size} for the {sizes[at]} rows of client {data.ids[at]}"
            refuse("batch_size", constraint, fault, hint)


def check_range(columns: Mapping[str, np.ndarray], dtype: torch.dtype) -> None:
    """Raise where a number of the data becomes an infinity in the model's precision."""
    most = torch.finfo(dtype).max
    for name, column in columns.items():
        if column.dtype.kind == "f" and column.size and torch.finfo(dtype).bits < 8 * column.dtype.itemsize:
            largest = max(float(column.max()), -float(column.min()))
            hint = "Scale it, or use a model of float64: model.double()."
            must(not largest > most, f"columns.{name}", f"within the range of {dtype}", f"{largest:g}", hint)


def check_turn(phase: Phase, most: int) -> None:
    """Raise where the turn of a client with ``most`` rows goes through more rows than a plan can hold."""
    name, rows = "steps" if phase.epochs is None else "epochs", count_rows(phase, most)
    if rows > ROWS:
        length = f"{getattr(phase, name):,}, or {rows:,} rows"
        refuse(name, f"such that a client's turn has at most {ROWS:,} rows", length, "Use more rounds instead.")


def _trains_on_one(problem: Problem) -> bool:
    """Whether the model takes a batch of one row while training, as with BatchNorm over the pixels of images."""
    try:
        with torch.no_grad(), torch_seed(problem.seed, "check"):
            problem.task.loss(problem.task.init, {name: c[:1].clone() for name, c in problem.columns.items()})
    except (RuntimeError, ValueError):
        return False
    return True


def check_targets(loss: object, columns: Batch, data: FederatedData, output: torch.Tensor) -> None:
    """Raise unless the labels of all rows are what a loss of moiety needs; ``output`` is the model's for a few rows."""
    loss = WITH_OPTIONS[loss]() if isinstance(loss, str) and loss in WITH_OPTIONS else loss
    name = loss.name if isinstance(loss, LabelLoss) else loss
    if not isinstance(name, str) or name not in {*LOSSES, *WITH_OPTIONS}:
        return
    if name == "next_token":
        check_tokens(columns)
        columns = next_labels(columns)
    must("y" in columns, "data", f"given with a column y for loss {name}", ", ".join(columns))
    y = columns["y"]
    targets = loss.targets if isinstance(loss, LabelLoss) else "numbers" if loss == "mse" else "classes"
    if targets != "classes":
        check_regression(y, output, name)
        check_values(y, data, targets, name)
        return
    if loss != "ctc":
        check_positions(y, output)
    least = 2 if loss == "one_versus_all" else 1  # there one output is for two classes
    check_labels(y, data, max(least, output.shape[-1]))
    if isinstance(loss, LabelLoss):
        weights, classes = loss.spec.get("weight"), output.shape[-1]
        fits = weights is None or len(weights) == classes
        must(fits, "weight", f"{classes} numbers, one for each output of the model", len(weights or ()))
    if loss == "ctc":
        check_transcripts(columns, output)


def check_tokens(columns: Batch) -> None:
    """Raise unless there are tokens of sequences, of which a causal language model predicts the next."""
    tokens = next((columns[name] for name in ("y", "input_ids", "x") if name in columns), None)
    form = "none" if tokens is None else f"{tokens.dtype} of shape {tuple(tokens.shape[1:])}"
    fits = tokens is not None and tokens.dim() == 2 and not tokens.is_floating_point()
    must(fits, "data", "whole-numbered tokens [rows, positions] in input_ids (or y) for loss next_token", form)


def check_positions(y: torch.Tensor, output: torch.Tensor) -> None:
    """Raise unless each row of outputs has a label: one per example, or one per position of a sequence."""
    must(output.dim() > 1, "model", "one with an output for each class", "one number per example")
    expected, shape, classes = tuple(output.shape[1:-1]), tuple(y.shape[1:]), output.shape[-1]
    hint = "In sequences every position has outputs and a label."
    if shape == (*expected, 1):
        hint = f"Take the last axis away, as in {'y[..., 0]' if expected else 'y[:, 0]'}."
    elif shape == (*expected, classes):
        hint = "Where labels are one-hot, give y.argmax(-1); for shares of classes, a loss and a metric of your own."
    outputs = tuple(output.shape[1:])
    must(shape == expected, "y", f"of shape {expected} per example for outputs of {outputs}, classes last", shape, hint)


def check_values(y: torch.Tensor, data: FederatedData, targets: str, loss: str) -> None:
    """Raise unless labels are 0 and 1 for a ``binary`` loss, and not negative for one of ``counts``."""
    if targets == "numbers":
        return
    odd = (y != 0) & (y != 1) if targets == "binary" else y < 0
    if bool(odd.any()):
        row = int(odd.reshape(len(y), -1).any(1).nonzero()[0])
        client = int(np.searchsorted(data.bounds[:, 3], row, side="right"))
        constraint = "0 or 1" if targets == "binary" else ">= 0"
        refuse("y", f"{constraint} for loss {loss}", f"{y[row].tolist()} for client {data.ids[client]}")


def check_regression(y: torch.Tensor, output: torch.Tensor, loss: str = "mse") -> None:
    """Raise unless the model has as many outputs as there are numbers to predict."""
    hint = "For classes use loss cross_entropy."
    if y.is_floating_point():
        hint = WHOLE_LABELS if bool((y == y.round()).all()) else "The model needs an output for each number of y."
    same = output.shape[1:].numel() == y.shape[1:].numel()
    default = ", the default where y is floating" if loss == "mse" else ""
    constraint = f"one whose outputs have the shape {tuple(y.shape[1:])} of y for loss {loss}{default}"
    must(same, "model", constraint, f"outputs of {tuple(output.shape[1:])}", hint)


def check_labels(y: torch.Tensor, data: FederatedData, classes: int) -> None:
    """Raise unless every label is one of the model's outputs; in sequences -100 marks padding."""
    must(not y.is_floating_point(), "y", "whole-numbered labels for this loss", y.dtype, WHOLE_LABELS)
    real = y[y != IGNORED] if y.dim() > 1 else y
    must(real.numel() > 0, "y", "labels, of which some are not padding", "none")
    low, high = int(real.min()), int(real.max())
    if low < 0 or high >= classes:
        odd = low if low < 0 else high
        row = int((y.reshape(len(y), -1) == odd).any(1).nonzero()[0])
        client = int(np.searchsorted(data.bounds[:, 3], row, side="right"))
        fault = f"{odd} for client {data.ids[client]}"
        hint = "Give the model two outputs, one for each class, or a loss of your own for one." if classes == 1 else ""
        refuse("y", f"a label from 0 to {classes - 1}, the model's outputs", fault, hint)


def check_transcripts(columns: Batch, output: torch.Tensor) -> None:
    """Raise unless the columns suit CTC: y padded at its end, without the blank, and how many frames of x are real."""
    must(output.dim() == 3, "model", "one that gives logits [frames, labels] for ctc", tuple(output.shape[1:]))
    for name, axes in (("x", 2), ("y", 2), ("frames", 1)):
        shape = tuple(columns[name].shape) if name in columns else "none"
        must(name in columns and columns[name].dim() >= axes, "data", f"a column {name} for ctc", shape)
    y, frames, width = columns["y"], columns["frames"], columns["x"].shape[1]
    must(not bool((y == BLANK).any()), "y", "labels from 1 for ctc", BLANK, "Output 0 is the blank.")
    real = y != IGNORED
    must(not bool((real[:, 1:] & ~real[:, :-1]).any()), "y", "padded at its end for ctc", "padding before a label")
    low, high = int(frames.min()), int(frames.max())
    must(low >= 1 and high <= width, "frames", f"from 1 to {width}, the frames of x", high if high > width else low)
