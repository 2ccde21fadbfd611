"""The recipes: experiments that a package brings under a name, through the entry-point group ``moiety.recipes``."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from moiety.errors import MoietyError, choice, message, must
from moiety.experiments.experiment import Experiment

GROUP = "moiety.recipes"


def list_recipes() -> list[str]:
    """The names of all recipes. None of them is imported.

    >>> "quickstart" in list_recipes()
    True
    """
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def load_recipe(name: str) -> Experiment[Any]:
    """Import the recipe of this name, and no other.

    >>> load_recipe("quickstart").name
    'quickstart'
    """
    choice("recipe", name, list_recipes())
    entries = {entry.value: entry for entry in entry_points(group=GROUP) if entry.name == name}
    must(len(entries) == 1, "recipe", "brought by one package", f"{name} from {' and '.join(sorted(entries))}")
    return _load(*entries.values())


def describe_recipes() -> dict[str, str]:
    """What each recipe compares, or why it cannot be imported: one bad package does not hide the others."""
    lines = {}
    for name in list_recipes():
        try:
            lines[name] = load_recipe(name).summary
        except MoietyError as error:
            lines[name] = f"cannot be run: {error}"
    return lines


def _load(entry: EntryPoint) -> Experiment[Any]:
    hint = f"It is the entry point {entry.value} of the group {GROUP}."
    try:
        recipe = entry.load()
    except Exception as error:  # whatever another package raises
        problem = f"{entry.name}: {type(error).__name__}: {error}"
        raise MoietyError(message("recipe", "one that can be imported", problem, hint)) from error
    must(isinstance(recipe, Experiment), "recipe", "a moiety.experiments.Experiment", f"{type(recipe).__name__}", hint)
    return recipe  # type: ignore[no-any-return]
