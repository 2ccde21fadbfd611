"""What the shell completes: recipes, files, kinds, and the names of algorithms. Nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from moiety import _algorithm_names
from moiety.cli.listing import ENGINES, KINDS


def complete_target(incomplete: str) -> list[str]:
    """Recipes, and TOML files and folders on the way to them."""
    from importlib.metadata import entry_points  # here, so that the command's help need not load it

    recipes = {entry.name for entry in entry_points(group="moiety.recipes")}
    folder, _, start = incomplete.rpartition("/")
    files = []
    place = Path(folder or ("/" if incomplete.startswith("/") else "."))
    for path in place.iterdir() if place.is_dir() else ():
        name = f"{folder}/{path.name}" if "/" in incomplete else path.name
        if path.name.startswith(start) and (path.suffix == ".toml" or path.is_dir()):
            files.append(f"{name}/" if path.is_dir() else name)
    return [*_matching(recipes, incomplete), *sorted(files)]


def complete_kind(incomplete: str) -> list[str]:
    """What ``moiety list`` can list."""
    return _matching(KINDS, incomplete)


def complete_set(incomplete: str) -> list[str]:
    """``algorithm.name=fedalt`` and the like."""
    assignments = [f"algorithm.name={name}" for name in _algorithm_names()]
    assignments += [f"run.engine={name}" for name in ENGINES]
    return _matching(assignments, incomplete)


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
