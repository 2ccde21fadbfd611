"""Recipes are written with what every user of moiety has: public names, and nothing else."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import moiety as mo
import moiety_recipes

FILES = sorted(Path(moiety_recipes.__file__).parent.glob("*.py"))


def is_public(module: ModuleType, name: str) -> bool:
    """Whether the module exports the name; without ``__all__``, whether it is the module's own and not private."""
    if hasattr(module, "__all__"):
        return name in module.__all__
    value = getattr(module, name, None)
    return not name.startswith("_") and inspect.getmodule(value) in (None, module) and not inspect.ismodule(value)


def private_names(text: str) -> list[str]:
    """What a file takes from moiety that is not public."""
    bad = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            bad += [
                a.name for a in node.names if a.name.startswith("moiety.") or (a.name, a.asname) == ("moiety", None)
            ]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "moiety":
            parts = str(node.module).split(".")
            public = len(parts) == 1 or (len(parts) == 2 and parts[1] in mo.__all__)
            module = importlib.import_module(str(node.module))
            bad += [f"{node.module}.{a.name}" for a in node.names if not (public and is_public(module, a.name))]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "mo":
            bad += [] if node.attr in mo.__all__ else [f"mo.{node.attr}"]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            inner = node.value
            if isinstance(inner.value, ast.Name) and inner.value.id == "mo":
                module = getattr(mo, inner.attr, None)
                if inspect.ismodule(module) and not is_public(module, node.attr):
                    bad.append(f"mo.{inner.attr}.{node.attr}")
    return bad


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_recipe_uses_public_names_only(file):
    assert private_names(file.read_text()) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from moiety.engines import Run", "moiety.engines.Run"),
        ("from moiety.errors import must", "moiety.errors.must"),
        ("from moiety.reports.figures import save", "moiety.reports.figures.save"),
        ("from moiety.experiments import plan", "moiety.experiments.plan"),
        ("import moiety.random", "moiety.random"),
        ("import moiety as mo\nmo.engines.fit", "mo.engines"),
        ("import moiety as mo\nmo.random.hashlib", "mo.random.hashlib"),
        ("import moiety as mo\nmo.data.federated", "mo.data.federated"),
    ],
)
def test_the_check_sees_private_names(text, name):
    assert private_names(text) == [name]
