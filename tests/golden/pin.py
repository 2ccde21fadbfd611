"""Write the pins anew and say which changed: ``make pins``, or this file with names of cases and recipes.

Numbers that change on purpose are pinned in the commit that changes them, with a line under *Numerics* in CHANGELOG.md.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "oracles"))
import golden_pins as pins
from golden_cases import CASES
from golden_recipes import list_rows
from recipe_runs import RECIPES, run_recipe


def main(names: Sequence[str]) -> int:
    """Pin the cases and recipes of these names, or all; 2 where that is refused."""
    strangers = [name for name in names if name not in CASES and name not in RECIPES]
    if os.environ.get("CI") or strangers:
        why = f"no such case or recipe: {', '.join(strangers)}" if strangers else "CI is set: pins are written by hand"
        print(why, file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as folder:
        pin_all(pins.PARAMETERS, CASES, names, lambda name: pins.pinned(CASES[name].numbers()), pins.run_changes)
        pin_all(
            pins.RECIPES,
            RECIPES,
            names,
            lambda name: list_rows(run_recipe(name, Path(folder) / name)),
            lambda old, now: pins.recipe_changes("", old, now),
        )
    return 0


def pin_all(
    file: Path,
    known: Iterable[str],
    names: Sequence[str],
    compute: Callable[[str], Any],
    changes: Callable[[Any, Any], list[str]],
) -> None:
    """Pin those of ``known`` that are in ``names``; what is within the tolerance keeps its old pin."""
    old = pins.read(file)
    new = {}
    for name in known:
        if names and name not in names:
            new |= {name: old[name]} if name in old else {}
            continue
        now = compute(name)
        if name not in old:
            print(f"new      {name}")
        elif texts := changes(old[name], now):
            print(f"changed  {name}", *texts, sep="\n         ")
        else:
            now = old[name]
        new[name] = now
    for name in old.keys() - new.keys():
        print(f"gone     {name}")
    if new != old:
        pins.write(file, new)
    print(f"{file.name}: {len(new)} pins")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
