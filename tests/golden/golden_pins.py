"""How numbers are pinned, kept in files, and compared.

A tensor is pinned by its shape, its norm, and its products with three fixed random vectors: a change of any of its
numbers moves all three, by about as much.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

PINS = Path(__file__).parent / "pins"
PARAMETERS, RECIPES = PINS / "parameters.json", PINS / "recipes.json"

TOLERANCE = 1e-12
"""Of parameters, losses and metrics of the float64 runs, relative to a tensor's norm or to the number.

Engines, and processors with other instructions, add in another order: on these runs that makes 1e-16 to 1e-13.
"""
TINY = 1e-3
"""Norms and numbers below this are compared as if they were this large."""

RECIPE_RELATIVE, RECIPE_ABSOLUTE = 1e-3, 2e-3
"""Of the numbers in recipes' tables: either will do.

They train in float32, where another order of additions moves a loss by 1e-6 or so, and now and then one example of some
hundreds to the other side of a decision. Shares move by 0.002 then; a small share in per cent moves by more, which is
seen as a change.
"""
RECIPE_SMALL = {"ffgg-figure1": 1e-7, "glocal-fictitious": 1e-7}
"""The absolute tolerance of recipes that compute in float64 and whose small numbers say something."""

SECTIONS = ("broadcast", "shared", "clients", "newcomer")
"""The parts of a run's pin that hold tensors."""


def read(file: Path) -> dict[str, Any]:
    """The pins in a file; none where there is none."""
    return json.loads(file.read_text()) if file.is_file() else {}


def write(file: Path, pins: dict[str, Any]) -> None:
    """A line for each part of a pin, so that a diff shows what changed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    entries = []
    for name, pin in pins.items():
        if isinstance(pin, dict):
            lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in pin.items()]
        else:
            lines = [json.dumps(row) for row in pin]
        start, end = "{}" if isinstance(pin, dict) else "[]"
        entries.append(f"{json.dumps(name)}: {start}\n" + ",\n".join(lines) + f"\n{end}")
    file.write_text("{\n" + ",\n".join(entries) + "\n}\n")


def pinned(numbers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What is kept of a run's numbers."""
    return {
        section: {name: _pinned(p) for name, p in values.items()} if section in SECTIONS else values
        for section, values in numbers.items()
    }


def _pinned(tensor: torch.Tensor) -> list[Any]:
    values = tensor.detach().double().reshape(-1).numpy()
    vectors = np.random.default_rng([7, len(values)]).normal(size=(3, len(values)))
    return [list(tensor.shape), math.sqrt(math.fsum(values**2)), *(math.fsum(v * values) for v in vectors)]


def run_changes(pin: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What of a run is not as pinned, in words."""
    changes = _keys("parts", pin, now)
    for section in pin.keys() & now.keys():
        changes += _keys(section, pin[section], now[section])
        for name in pin[section].keys() & now[section].keys():
            old, new = pin[section][name], now[section][name]
            if section in SECTIONS:
                scale = max(old[1], TINY)
                gap = max((abs(a - b) for a, b in zip(old[1:], new[1:], strict=True)), default=0.0)
                same = old[0] == new[0] and gap <= TOLERANCE * scale
                words = f"off by {gap / scale:.1e} of its norm {old[1]:.6g}, shape {old[0]}, now {new[0]}"
                changes += [] if same else [f"{section} {name}: {words}"]
            else:
                changes += [
                    f"{section} {name}{at}: pinned {a!r}, now {b!r}"
                    for at, a, b in _leaves(old, new)
                    if not close(a, b, TOLERANCE, TOLERANCE * TINY)
                ]
    return changes


def recipe_changes(recipe: str, pin: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    """What of a recipe's rows is not as pinned, in words."""
    changes = [] if len(pin) == len(now) else [f"{recipe}: pinned {len(pin)} rows, now {len(now)}"]
    small = RECIPE_SMALL.get(recipe, RECIPE_ABSOLUTE)
    for number, (before, after) in enumerate(zip(pin, now, strict=False), 1):
        where = f"{recipe}, row {number} ({before.get('row', before.get('run', ''))})"
        changes += _keys(where, before, after)
        for column in [name for name in before if name in after]:
            changes += [
                f"{where}, column {column}{at}: pinned {a!r}, now {b!r}"
                for at, a, b in _leaves(before[column], after[column])
                if not close(a, b, RECIPE_RELATIVE, small)
            ]
    return changes


def close(a: Any, b: Any, relative: float, absolute: float) -> bool:
    """Whether two numbers are close, or two other values equal."""
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
    return math.isclose(a, b, rel_tol=relative, abs_tol=absolute) if numbers else bool(a == b)


def _keys(where: str, pin: dict[str, Any], now: dict[str, Any]) -> list[str]:
    missing, new = [k for k in pin if k not in now], [k for k in now if k not in pin]
    return [f"{where}: without {', '.join(missing)}"] * bool(missing) + [f"{where}: with {', '.join(new)}"] * bool(new)


def _leaves(a: Any, b: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Pairs of values that are no lists or tables, and where they stand; unlike shapes are a pair as a whole."""
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from _leaves(x, y, f"{at}[{i}]")
    elif isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a:
            yield from _leaves(a[key], b[key], f"{at}.{key}")
    else:
        yield at, a, b
