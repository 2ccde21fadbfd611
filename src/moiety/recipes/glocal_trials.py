"""What the recipes of the Glocal paper have in common: learning rates by validation, and results kept on disk."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moiety.errors import MoietyError, choice, message, must
from moiety.recipes.partial_table import asked_for, keep_asked
from moiety.recipes.setting import SCALES

if TYPE_CHECKING:
    from moiety.data import FederatedData

Result = dict[str, Any]

ABOUT = (
    '"Global and Local Learning for Distributed Personalization". Linear regression on labels 0 and 1 with a constant,'
    " one versus all for more classes, from 0, by Adagrad (footnote 5), one example of every client a round. *Indep*:"
    " every client alone; *Central*: one model, along the sum of all clients' gradients; *Glocal*: a shared and a"
    " personal model whose predictions are added, one learning rate for both. All runs of a data set are one block of"
    " tensors with the arithmetic of `mo.independent`, `mo.central` and `mo.glocal_sgd`; a test holds it to `mo.fit`."
)
RATES = tuple(0.002 * 2**k for k in range(7))
"""From 0.002 to 0.2 by doubling (section 4)."""
SOURCES = ("mnist", "covtype", "satimage", "usps", "shuttle", "pendigits", "letter")
METHODS = {"independent": "Indep", "central": "Central", "glocal": "Glocal"}
GROUP_FLOATS = 1_000_000
"""A block has at most this many personal parameters, so that it stays in the cache."""


def begun(
    name: str,
    out: Path | None,
    rounds: int | None,
    seed: int | None,
    engine: str | None,
    resume: bool,
    scale: str | None,
    needs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What was asked for, checked and kept in the folder; ``needs`` are by scale the sizes, with data sets."""
    hint = "Its runs are one block of tensors."
    must(engine in (None, "vectorised"), "engine", f"vectorised or left out for {name}", engine, hint)
    choice("scale", scale or "laptop", SCALES)
    asked = asked_for(out, {"recipe": name, "scale": scale, "rounds": rounds, "seed": seed}, resume)
    if needs is not None:  # before anything is written: it may not be at hand
        tasks(min(needs[asked["scale"]].sources, key=len), 2, [0])
    keep_asked(out, asked)
    return asked


def cell(out: Path | None, name: str, make: Callable[[], Result]) -> Result:
    """A result by name: read where it was kept, else made, timed and kept."""
    from moiety.files import report_failure, write_file

    file = None if out is None else out / "cells" / f"{name}.json"
    if file is not None and file.is_file():
        try:
            return dict(json.loads(file.read_text()))
        except (OSError, ValueError) as error:
            raise MoietyError(message(file.name, "as it was written", f"{file}: {error}", "Remove it.")) from None
    began = time.perf_counter()
    made = make()
    made["seconds"] = time.perf_counter() - began
    if file is not None:
        with report_failure(file.parent):
            file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, (json.dumps(made) + "\n").encode())
    return made


@dataclass(frozen=True, kw_only=True)
class Grid:
    """One method on several trials, at every learning rate and every delay."""

    method: str
    rates: Sequence[float] = RATES
    delays: Sequence[int] = (0,)
    alignment: str = "aligned"
    globally: Any = None
    locally: Any = None


def tuned(data: Sequence[FederatedData], rounds: int, seeds: Sequence[int], grid: Grid) -> list[Result]:
    """For every delay: the rate with the best mean validation accuracy, and its test accuracy in every trial."""
    import itertools

    import torch

    from moiety.recipes.glocal_block import Block, accuracy, play, trials

    stacked = trials(data, rounds, seeds)
    cases = list(itertools.product(range(len(grid.delays)), range(len(grid.rates)), range(len(data))))
    validation = torch.zeros(len(grid.delays), len(grid.rates), len(data))
    test = torch.zeros_like(validation)
    size = stacked.x[0, :, 0].numel() * stacked.y.shape[-1]
    most = max(1, GROUP_FLOATS // size)
    for at in range(0, len(cases), most):
        index = torch.tensor(cases[at : at + most]).T
        late, rate = torch.tensor(grid.delays)[index[0]], torch.tensor(grid.rates)[index[1]]
        block = Block(index[2], rate, late, grid.method, grid.alignment, grid.globally, grid.locally)
        found = play(stacked, block)
        validation[tuple(index)] = accuracy(data, "validation", block, found)
        test[tuple(index)] = accuracy(data, "test", block, found)
    made = []
    for d, late_rounds in enumerate(grid.delays):
        # Rounded, so that the last digits of a sum decide no tie: the lowest rate has it.
        means = [round(float(m), 6) for m in validation[d].mean(1)]
        best = means.index(max(means))
        each = [float(a) for a in test[d, best]]
        made.append({"delay": late_rounds, "lr": grid.rates[best], "validation": means, "each": each})
    return made


def tasks(source: str, clients: int, seeds: Sequence[int], **sizes: int) -> list[FederatedData]:
    """A trial for every seed: tasks and rows are drawn anew."""
    import moiety as mo

    return [mo.data.binary_tasks(source, clients=clients, seed=seed, **sizes) for seed in seeds]
