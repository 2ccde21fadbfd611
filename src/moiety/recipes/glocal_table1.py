"""Table 1 of the Glocal paper: Independent, Central and Glocal without delay, on eight of its ten data sets.

Scale ``ci`` has the digits of scikit-learn and shows that everything runs; ``paper`` has the paper's sizes: 30 clients,
10 examples of either class, 15 passes, five random partitions; spoken letters (isolet) in 100 principal components, two
passes. ``laptop`` is the same with 20 partitions, so that more can be decided: a minute or two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moiety.recipes.base import Outcome, Watch, unwatched
from moiety.recipes.glocal_trials import ABOUT, METHODS, RATES, SOURCES, Grid, Result, begun, cell, tasks, tuned

if TYPE_CHECKING:
    from moiety.data import FederatedData

NAME = "glocal-table1"
PAPER = {
    "mnist": (91.1, 90.06, 92.6),
    "covtype": (84.1, 87.42, 88.17),
    "satimage": (96.08, 94.96, 97.01),
    "usps": (93.84, 92.88, 94.89),
    "shuttle": (92.29, 95.55, 96.04),
    "pendigits": (92.89, 88.03, 93.67),
    "letter": (86.83, 80.88, 87.32),
    "isolet": (91.77, 94.44, 94.15),
}
"""Table 1; sensorless and femnist are not at hand."""
NOTES = (
    "Learning rates from 0.002 to 0.128 by doubling; for each data set and method the one with the best mean accuracy"
    " on validation rows over the partitions, the same for all of them.",
    "The paper splits each client's rows at random and does not say how many of the 2 M = 20 are left to train on. Here"
    " clients train on 20 and have 20 more for validation and 20 for testing. With 12, 4 and 4 of 20 instead,"
    " tried on four data sets, Indep and Glocal score lower and Glocal is still the best of the three.",
    "A partition draws the merged classes, the clients' tasks and the rows anew: intervals hold how tasks differ, and"
    " differences between methods are partition by partition. The paper has five partitions (scale paper); there are 20"
    " at scale laptop, at the same size of all else.",
    "The paper's isolet has 150 speakers in 5 groups, which are its 5 clients; here are the 30 speakers of one group,"
    " a client each, with 32 rows to train on, so its numbers are those of another problem.",
    "covtype is here a balanced sample of 15,120 rows; in the paper two of its seven classes have 85% of the rows.",
    "Features of tables are standardised over all clients' training rows; pixels are from 0 to 1. The paper does not"
    " say how it scaled features, nor what else of Vowpal Wabbit's defaults it kept.",
)


@dataclass(frozen=True)
class Size:
    """How much of it: data sets, clients, partitions, passes and rates."""

    sources: Sequence[str]
    clients: int
    partitions: int
    passes: int
    rates: Sequence[float]


FULL = Size((*SOURCES, "isolet"), 30, 5, 15, RATES)
SIZES = {"ci": Size(("digits",), 4, 2, 3, RATES[3:6]), "laptop": replace(FULL, partitions=20), "paper": FULL}


def glocal_table1(
    *,
    out: Path | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    engine: str | None = None,
    resume: bool = False,
    watch: Watch = unwatched,
    scale: str | None = None,
) -> Outcome:
    """Independent, Central and Glocal on eight data sets, the paper's numbers beside ours.

    Args:
        out: a folder for the results; nothing is written without one.
        rounds: of each run, instead of whole passes.
        seed: of the first partition; 0 by default.
        engine: to be left out.
        resume: keep the results that are there in ``out`` and make the others.
        watch: not called: a run is too short to be watched.
        scale: ``ci``, ``laptop`` (by default, 20 partitions) or ``paper`` (five).
    """
    from moiety.recipes.glocal_report import table1

    asked = begun(NAME, out, rounds, seed, engine, resume, scale, SIZES)
    size = SIZES[asked["scale"]]
    seeds = range(asked["seed"], asked["seed"] + size.partitions)
    cells = {name: cell(out, name, partial(_run, name, size, seeds, asked["rounds"])) for name in size.sources}
    text, sentence = table1(NAME, asked, cells, PAPER, ABOUT, NOTES, out)
    return Outcome({}, sentence, text)


def _run(source: str, size: Size, seeds: Sequence[int], rounds: int | None) -> Result:
    data, passes = partitions(source, size, seeds)
    steps = rounds or passes * int(data[0].sizes("train")[0])
    found: dict[str, Any] = {}
    for method in METHODS:
        (found[method],) = tuned(data, steps, seeds, Grid(method=method, rates=size.rates))
    return {"rounds": steps, "features": int(data[0].columns["x"].shape[1]), "methods": found}


def partitions(source: str, size: Size, seeds: Sequence[int]) -> tuple[list[FederatedData], int]:
    """The data of every partition, and how often it is walked through."""
    if source != "isolet":
        return tasks(source, size.clients, seeds), size.passes
    import moiety as mo

    loaded = [mo.data.load(source, seed=seed, test=0.2, validation=0.2) for seed in seeds]
    return [mo.data.principal_components(fed, 100) for fed in loaded], 2
