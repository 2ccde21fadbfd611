"""How deep one sequential round of FedAlt is: the frames of moiety on the stack where autograd is called."""

from __future__ import annotations

import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_cases import federation, mlp
from torch import nn

import moiety as mo

HOME = str(Path(mo.__file__).parent)
DEEPEST = 10
"""Frames of moiety from ``fit`` to the call of autograd."""


def frames(path: str) -> list[str]:
    """The frames of moiety from ``fit`` on, as file and function, closures and comprehensions too, the caller last."""
    names, frame = [], sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(path):
            names.append(f"{Path(name).relative_to(path).as_posix()}:{frame.f_code.co_name}")
        frame = frame.f_back
    names.reverse()
    return names[names.index("run/fit.py:fit") :]


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The frames at every call of autograd in two rounds of FedAlt, what is not local work left out."""
    stacks: list[list[str]] = []
    grad = torch.autograd.grad

    def watch(*args: Any, **options: Any) -> Any:
        stacks.append(frames(HOME))
        return grad(*args, **options)

    model = nn.Sequential(OrderedDict(net=mlp(), same=nn.Identity()))  # a chain of linear layers needs no autograd
    algorithm = mo.fedalt(shared=mo.sgd(0.1, batch_size=8), personal=mo.sgd(0.1, batch_size=8))
    monkeypatch.setattr(torch.autograd, "grad", watch)
    mo.fit(model, federation(), algorithm, split=mo.split.output_layer(model), rounds=2, cohort=3, engine="sequential")
    return [stack for stack in stacks if "loop/evaluate.py:train" in stack]


def test_a_round_reaches_the_local_work_in_six_frames(stacks: list[list[str]]) -> None:
    """``fit`` and what it calls in run/, then: the round, the engine, one client, the wrapper of its local work."""
    assert stacks
    for stack in stacks:
        outer = [frame for frame in stack if not frame.startswith("run/")]
        assert outer[:4] == [
            "loop/round.py:run_round",
            "engines/sequential.py:map",
            "engines/sequential.py:_serve",
            "loop/evaluate.py:train",
        ]


def test_a_round_reaches_autograd_in_few_frames(stacks: list[list[str]]) -> None:
    deepest = max(stacks, key=len)
    assert len(deepest) <= DEEPEST, "\n".join(deepest)
