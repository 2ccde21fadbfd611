"""Training in bfloat16 where that is enough: parameters, losses and steps stay in float32.

PyTorch's autocast decides which operations of the forward pass are computed so; the backward pass follows.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from moiety.errors import must
from moiety.types import Batch, Params, Partial, Task

PRECISIONS = ("bf16",)
PROBE = """
import torch
x, w = (torch.ones(64, 64, requires_grad=True) for _ in range(2))
with torch.autocast("cpu", torch.bfloat16):
    y = torch.nn.functional.linear(x, w)
y.float().sum().backward()
assert y.dtype == torch.bfloat16 and bool((y == 64).all()) and bool((w.grad == 64).all())
"""
"""Run by a process of its own: a processor without the instructions may end it, which no program can catch."""
PATIENCE = 120
"""Seconds after which the trial has failed."""

Value = TypeVar("Value")


@cache
def has_bf16(device: str) -> bool:
    """Whether arithmetic in bfloat16 works on this device; it is tried once."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    try:
        probe = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return probe.returncode == 0


def compute_in_bf16(task: Task, device: torch.device) -> Task:
    """The same task, trained with the forward pass in bfloat16; scores and predictions stay as they are."""
    floats = {p.dtype for p in task.init.values() if p.is_floating_point()}
    other = next((str(each).removeprefix("torch.") for each in floats if each != torch.float32), None)
    must(other is None, "precision", "left out for a model that is not of float32", f"bf16 for {other}")
    hint = "Leave it out."
    must(has_bf16(device.type), "precision", "one that this machine computes in", "bf16, which it cannot", hint)

    def partial(trained: frozenset[str], params: Params, batch: Batch) -> Partial | str | None:
        cut = task.partial(trained, params, batch)
        if not isinstance(cut, Partial):
            return cut
        return replace(cut, features=autocast(cut.features, device), loss=autocast(cut.loss, device))

    return replace(task, loss=autocast(task.loss, device), partial=partial)


def autocast(function: Callable[[Params, Batch], Value], device: torch.device) -> Callable[[Params, Batch], Value]:
    """The function with its operations in bfloat16 where PyTorch finds that enough."""

    def call(params: Params, batch: Batch) -> Value:
        # No cache: the parameters of a step are used once, and those of a block of clients are views.
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            return function(params, batch)

    return call


def in_full_precision(loss: Callable[[Tensor, Batch], Tensor]) -> Callable[[Tensor, Batch], Tensor]:
    """The loss of an output, in float32 also where the output was computed in bfloat16."""

    def call(output: Tensor, batch: Batch) -> Tensor:
        device = output.device.type
        if not torch.is_autocast_enabled(device):
            return loss(output, batch)
        with torch.autocast(device, enabled=False):
            return loss(output.float(), batch)

    return call
