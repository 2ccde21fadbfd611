"""How a model is called: which columns go into its forward pass by name, and which tensor its output stands for.

Models of other libraries take their inputs by name (``input_ids``, ``attention_mask``, ``pixel_values``) and give a
tuple, a mapping or an object with ``logits``.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor, fx, nn

NO_INPUTS = ("y", "labels", "weight", "counted", "frames")
"""Columns that say something about an example, and are no inputs unless the user names them."""


class InputsByName(nn.Module):
    """A model that is called with columns in order: those that its forward pass names go by name.

    Its output is one tensor, as ``find_output`` picks it.
    """

    def __init__(self, model: nn.Module, inputs: Sequence[str]) -> None:
        super().__init__()
        self.model, self.inputs = model, tuple(inputs)
        self.by_name = frozenset(forward_names(model)) & set(inputs)

    def forward(self, *columns: Tensor) -> Any:
        """The tensor that the model's output stands for."""
        inputs = dict(zip(self.inputs, columns, strict=True))
        in_order = [column for name, column in inputs.items() if name not in self.by_name]
        return find_output(
            self.model(*in_order, **{name: inputs[name] for name in self.inputs if name in self.by_name})
        )


def call_by_name(model: nn.Module, inputs: Sequence[str]) -> nn.Module:
    """The model itself where it takes the columns ``inputs`` in that order, else in ``InputsByName``."""
    names, in_order = forward_names(model), forward_names(model, keywords=False)
    plain = all(name not in names or in_order[k : k + 1] == [name] for k, name in enumerate(inputs))
    return model if plain else InputsByName(model, inputs)


def own_module(module: nn.Module) -> nn.Module:
    """The user's model, whose names count."""
    return module.model if isinstance(module, InputsByName) else module


def forward_names(model: nn.Module, *, keywords: bool = True) -> list[str]:
    """The names of the arguments of a model's forward pass, with those that can only be given by ``keywords`` or not.

    Where a model passes all its arguments on, they are those of the model inside.
    """
    kinds = [inspect.Parameter.POSITIONAL_OR_KEYWORD] + [inspect.Parameter.KEYWORD_ONLY] * keywords
    names = [p.name for p in inspect.signature(model.forward).parameters.values() if p.kind in kinds]
    inside = getattr(model, "get_base_model", None)  # of a model that PEFT made
    return names if names or inside is None else forward_names(inside(), keywords=keywords)


def choose_inputs(model: nn.Module, columns: Collection[str]) -> tuple[str, ...]:
    """The columns that go into a model where the user names none: ``x``, else those that its forward pass names."""
    if "x" in columns:
        return ("x",)
    return tuple(name for name in forward_names(model) if name in columns and name not in NO_INPUTS)


def find_output(output: Any) -> Any:
    """The tensor that a model's output stands for: itself, its ``logits``, or its first tensor; else the output."""
    if isinstance(output, Tensor | fx.Node):
        return output
    if isinstance(output, Mapping):
        parts = {name: value for name, value in output.items() if name != "loss"}
        return parts["logits"] if "logits" in parts else find_output(tuple(parts.values()))
    if hasattr(output, "logits"):
        return output.logits
    if isinstance(output, tuple | list):
        return next((part for part in output if isinstance(part, Tensor | fx.Node)), output)
    return output
