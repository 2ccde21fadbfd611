"""Models as other libraries make them, mutated: refused in one line, or one step is that of softmax by hand."""

from __future__ import annotations

import types
from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from fuzz_classes import SLOW_CASES, classify, counted, slowly_fuzzed
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import moiety as mo

LR, CLASSES, SIZE = 0.1, 3, 4
DRAW = np.random.default_rng(0)
CLIENTS = np.repeat(["a", "b", "c"], [4, 6, 8])
VALUES = DRAW.normal(size=(18, SIZE)).astype(np.float32)
MASK = DRAW.integers(0, 2, (18, SIZE))
Y = DRAW.integers(0, CLASSES, 18)


class Output(OrderedDict[str, Any]):
    """As transformers gives it: a mapping whose entries are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


OUTPUTS: dict[str, Any] = {
    "tensor": lambda logits: logits,
    "tuple": lambda logits: (logits, logits.detach() * 2),
    "list": lambda logits: [logits],
    "named tuple": lambda logits: torch.return_types.max((logits, logits)),
    "mapping": lambda logits: {"logits": logits},
    "mapping with a loss": lambda logits: {"loss": logits.sum(), "logits": logits, "hidden": logits * 2},
    "model output": lambda logits: Output(loss=None, logits=logits),
    "object": lambda logits: types.SimpleNamespace(loss=logits.sum(), logits=logits),
    "other name": lambda logits: {"scores": logits},
    "loss first": lambda logits: {"loss": logits.sum(), "scores": logits},
    "None first": lambda logits: (None, logits),
    "nested": lambda logits: ((logits.detach() * 5,), logits),
    "another axis": lambda logits: logits[None],
    "single number": lambda logits: logits.sum(),
    "nothing": lambda logits: None,
    "empty": lambda logits: (),
    "text": lambda logits: "logits",
    "array": lambda logits: logits.detach().numpy(),
    "whole numbers": lambda logits: logits.long(),
    "complex": lambda logits: logits.to(torch.complex64),
    "one class": lambda logits: logits[:, :1],
}
WRONG_OUTPUTS = ("another axis", "single number", "nothing", "empty", "text", "array", "whole numbers")
BUFFERS = ["none", "integer", "bool", "not saved", "counted", "half", "scale", "shadow"]
CALLS = ["x", "by name", "other order", "keyword only", "unused", "any", "missing"]


class Model(nn.Module):
    """Logits are linear in what its inputs come to; ``features`` computes that with NumPy."""

    def __init__(self, buffer: str, output: str, frozen: bool) -> None:
        super().__init__()
        self.head = nn.Linear(SIZE, CLASSES)
        with torch.no_grad():
            self.head.weight.copy_(torch.linspace(-1, 1, CLASSES * SIZE).reshape(CLASSES, SIZE))
            self.head.bias.copy_(torch.linspace(-0.2, 0.3, CLASSES))
        self.give, self.kind = OUTPUTS[output], buffer
        if buffer == "integer":
            self.register_buffer("places", torch.arange(SIZE).flip(0))
        elif buffer == "bool":
            self.register_buffer("places", torch.tensor([True, False] * (SIZE // 2)))
        elif buffer == "not saved":
            self.register_buffer("scale", torch.full((SIZE,), 2.0), persistent=False)
        elif buffer in ("scale", "half"):
            self.register_buffer("scale", torch.full((SIZE,), 2.0, dtype=torch.float16 if buffer == "half" else None))
        elif buffer == "counted":
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        elif buffer == "shadow":
            self.register_buffer("mean", torch.zeros(SIZE))
        if frozen:
            self.fixed = nn.Parameter(torch.ones(SIZE), requires_grad=False)

    def logits(self, x: Tensor, mask: Tensor | None = None) -> Any:
        x = x if mask is None else x * mask
        if self.kind == "integer":
            x = x[:, self.places]
        elif self.kind == "bool":
            x = torch.where(self.places, x, torch.zeros_like(x))
        elif self.kind in ("not saved", "scale", "half"):
            x = x * self.scale.to(x.dtype)
        elif self.kind == "counted":
            self.calls += 1
        elif self.kind == "shadow" and self.training:
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        if hasattr(self, "fixed"):
            x = x * self.fixed
        return self.give(self.head(x))


def features(buffer: str, masked: bool) -> np.ndarray:
    """What goes into the linear layer, by NumPy."""
    x = VALUES.astype(np.float64) * (MASK if masked else 1)
    changes = {
        "integer": lambda: x[:, ::-1],
        "bool": lambda: x * ([1, 0] * (SIZE // 2)),
        "not saved": lambda: 2 * x,
        "scale": lambda: 2 * x,
        "half": lambda: 2 * x,
    }
    return np.asarray(changes.get(buffer, lambda: x)())


def with_forward(call: str) -> type[Model]:
    """The model with another signature of its forward pass."""
    forwards: dict[str, Any] = {
        "x": lambda self, x: self.logits(x),
        "by name": lambda self, pixel_values, attention_mask=None: self.logits(pixel_values, attention_mask),
        "other order": lambda self, attention_mask, pixel_values: self.logits(pixel_values, attention_mask),
        "keyword only": lambda self, *, pixel_values, attention_mask: self.logits(pixel_values, attention_mask),
        "unused": lambda self, pixel_values, labels=None, attention_mask=None, more=3: self.logits(
            pixel_values, attention_mask
        ),
        "any": lambda self, *arguments, **options: self.logits(*arguments, **options),
        "missing": lambda self, tokens: self.logits(tokens),
    }
    return type("Model", (Model,), {"forward": forwards[call]})


def step_by_hand(x: np.ndarray, classes: int) -> dict[str, np.ndarray]:
    """One round of FedAvg, each client one step over all its rows: that is a step over all rows."""
    first = Model("none", "tensor", False)
    w, b = (p.detach().double().numpy() for p in (first.head.weight, first.head.bias))
    logits = x @ w.T + b
    share = np.exp(logits - logits.max(1, keepdims=True))
    error = (share / share.sum(1, keepdims=True) - np.eye(CLASSES)[Y]) / len(Y)
    return {"head.weight": w - LR * error.T @ x, "head.bias": b - LR * error.sum(0)}


@counted("models of libraries", SLOW_CASES)
@slowly_fuzzed
@given(
    st.sampled_from(sorted(OUTPUTS)),
    st.sampled_from(BUFFERS),
    st.sampled_from(CALLS),
    st.booleans(),
    st.sampled_from(["sequential", "vectorised"]),
    st.sampled_from([None, None, "named", "wrong"]),
)
def test_models_of_libraries(output: str, buffer: str, call: str, frozen: bool, engine: str, case: str | None) -> None:
    plain = call in ("x", "any")
    names = ("x",) if plain else ("pixel_values", "attention_mask")
    columns: dict[str, Any] = {names[0]: VALUES, "y": Y} | ({} if plain else {"attention_mask": MASK})
    inputs = {None: None, "named": list(names), "wrong": ["nonsense"]}[case]

    def train() -> mo.Run:
        fed = mo.data.from_arrays(columns, client=CLIENTS, test=0)
        settings = mo.Settings() if inputs is None else mo.Settings(inputs=inputs)
        algorithm = mo.fedavg(shared=mo.sgd(LR, steps=1, batch_size="all"))
        model = with_forward(call)(buffer, output, frozen)
        return mo.fit(model, fed, algorithm, rounds=1, engine=engine, loss="cross_entropy", settings=settings)

    def is_right(run: mo.Run) -> bool:
        if output in WRONG_OUTPUTS or call == "missing" or case == "wrong" or output in ("complex", "one class"):
            return False  # there is nothing that it could rightly be
        parameters, expected = run.parameters(0), step_by_hand(features(buffer, not plain), CLASSES)
        return all(np.allclose(parameters[name].double().numpy(), expected[name], atol=1e-5) for name in expected)

    classify("models of libraries", train, is_right)
