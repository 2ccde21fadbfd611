"""A probe of a model, its loss and its metric: what they give for fixed rows and fixed parameters.

Code cannot be compared, its values can. The probe runs in evaluation mode on four rows of the data. Trained parameters
have values that follow from their names and shapes; all others, and buffers, have those that the run began with.
Nothing is drawn from a global generator. A model that fails in evaluation on these rows, or whose output is random
there, has no probe: then its names, shapes and types alone are compared.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from typing import Any

import torch
from torch import Tensor

from moiety.engines.problem import Problem
from moiety.errors import is_real
from moiety.random import torch_seed, uniform
from moiety.task import dtype_of
from moiety.types import Batch, Params

ROWS = 4
PATTERN = 65_521
"""A parameter larger than this repeats its first values; a prime, so that rows of a matrix differ."""
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""How far two values may lie apart, relative to the largest of their kind; other types have eight bits or so."""
NAMES = {"output": "model", "loss": "loss", "metric": "metric", "gradient": "model"}
"""What is probed, in the order of comparison, and what a difference is blamed on."""


def probe(problem: Problem) -> dict[str, Any]:
    """The values of the probe as lists of numbers, with the type they were computed in; or why there are none."""
    batch, params = _pick_rows(problem), _make_parameters(problem)
    try:
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            with torch_seed(0, "probe", 1):
                values = _measure_values(problem, params, batch)
            with torch_seed(0, "probe", 2), torch.no_grad():
                again = _summarise_output(problem.task.predict(params, batch))
    except Exception as error:  # the user's own code may raise anything
        return {"none": f"it fails in evaluation: {type(error).__name__}"}
    dtype = dtype_of(problem.task)
    if differ(values["output"], again, TOLERANCE.get(dtype, 2e-2)):
        return {"none": "its output is random in evaluation"}
    return {"type": str(dtype).removeprefix("torch."), **values}


def find_difference(was: dict[str, Any], now: dict[str, Any]) -> str | None:
    """The first thing that was probed and has other values now; None where a run began without a probe."""
    if "none" in was:
        return None
    tolerance = TOLERANCE.get(getattr(torch, str(was.get("type")), None), 2e-2)  # type: ignore[arg-type]
    return next((each for each in NAMES if differ(was.get(each), now.get(each), tolerance)), None)


def differ(was: Any, now: Any, tolerance: float) -> bool:
    """Whether numbers differ by more than rounding, relative to the largest of them; None stands for not finite."""
    if not isinstance(was, list) or not isinstance(now, list) or len(was) != len(now):
        return True
    if [x is None for x in was] != [x is None for x in now]:
        return True
    pairs = [(a, b) for a, b in zip(was, now, strict=True) if a is not None]
    if not all(is_real(a) for a, _ in pairs):
        return True
    scale = max((abs(a) for a, _ in pairs), default=0.0)
    return not all(abs(a - b) <= tolerance * scale for a, b in pairs)


def _pick_rows(problem: Problem) -> Batch:
    """Training rows of clients that are evenly spaced among all."""
    bounds, count = problem.data.bounds, len(problem.data)
    clients = [k * (count - 1) // (ROWS - 1) for k in range(ROWS)]
    rows = [int(bounds[c, 0] + k % max(1, bounds[c, 1] - bounds[c, 0])) for k, c in enumerate(clients)]
    return {name: column[torch.tensor(rows, device=column.device)] for name, column in problem.columns.items()}


def _make_parameters(problem: Problem) -> Params:
    """The first values, with those of trained parameters made from their names and shapes."""
    init, split = problem.task.init, problem.split
    names = {*split.trained_shared, *split.trained_personal} - problem.task.buffers
    trained = {name for name in names & init.keys() if init[name].is_floating_point()}
    return {n: _make_pattern(n, p).requires_grad_() if n in trained else p.clone() for n, p in init.items()}


def _make_pattern(name: str, like: Tensor) -> Tensor:
    """Fixed numbers in the shape of ``like``. A layer with such weights keeps the scale of its input."""
    size = like.numel()
    scale = math.sqrt(3 * like.shape[0] / size) if like.dim() > 1 and size else 0.5
    few = (2 * uniform(torch.tensor(0), (min(size, PATTERN),), "probe", name) - 1) * scale
    return few.repeat(-(-size // PATTERN))[:size].reshape(like.shape).to(like)


def _measure_values(problem: Problem, params: Params, batch: Batch) -> dict[str, list[float | None]]:
    task = problem.task
    losses, metrics = task.scores(params, batch)
    leaves = [p for p in params.values() if p.requires_grad]
    slopes = torch.autograd.grad(losses.sum(), leaves, allow_unused=True) if losses.requires_grad else ()
    output = task.predict(params, batch).detach()
    scores = [metrics] if task.metric.weight is None else [metrics, task.metric.weight(batch)]
    with contextlib.suppress(Exception):  # also on other outputs, which are right and wrong for other rows
        scores += [task.metric.per_example(each, batch) for each in (-output, output.flip(-1))]
    with contextlib.suppress(Exception):
        scores += [torch.tensor([metric.compute(each, batch) for metric in task.sets]) for each in (output, -output)]
    return {
        "output": _summarise_output(output),
        "loss": _list_numbers(losses),
        "metric": [number for each in scores for number in _list_numbers(each)],
        "gradient": _list_numbers(
            sum((g.double().square().sum() for g in slopes if g is not None), torch.zeros(1).double()).sqrt()
        ),
    }


def _summarise_output(output: Tensor) -> list[float | None]:
    """Of each row of outputs, the root mean square and a mean that depends on the order."""
    flat = output.detach().cpu().double().reshape(len(output), -1)
    weights = torch.arange(1, flat.shape[1] + 1, dtype=torch.float64).cos()
    return _list_numbers(torch.stack([flat.square().mean(1).sqrt(), (flat * weights).mean(1)]))


def _list_numbers(values: Tensor) -> list[float | None]:
    return [x if math.isfinite(x) else None for x in values.detach().cpu().double().flatten().tolist()]
