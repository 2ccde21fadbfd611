"""Table 2 of Kotelevskii et al. 2022 on CIFAR-10: FedSOUL against nine others, 100 clients with 2 or 5 classes each."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moiety.recipes.base import Outcome, Watch, unwatched
from moiety.recipes.fedpop_images import FEDPOP, METHODS, TUNED, Plan, Setting, image_table, pictures
from moiety.recipes.fedpop_small import digits

if TYPE_CHECKING:
    from moiety.data import FederatedData

TABLE2 = {
    2: (89.79, 42.65, 37.72, 84.14, 82.27, 81.04, 83.77, 85.39, 87.70, 91.12),
    5: (70.68, 51.78, 47.33, 63.02, 67.20, 59.98, 72.29, 70.34, 75.68, 79.48),
}
"""By the classes of a client, in the order of ``METHODS``."""
ABOUT = (
    'Kotelevskii et al. 2022, "FedPop: A Bayesian Approach for Personalised Federated Learning", Table 2, CIFAR-10. The'
    " paper has all 50,000 pictures, whole ones, and many more rounds: its numbers are not to be reached at scale"
    " laptop, where the order of the methods is what can be compared."
)
NOTES = (
    "At scale laptop a client has 50 pictures, averaged to 16 x 16 pixels, and rounds are few. All methods but FedSOUL"
    " and L2GD make five passes over a client's rows in a round (FedRep ten on the head and one on the rest); FedSOUL"
    " makes one gradient of the shared layers and 20 steps of each chain.",
    f"One deal of the data serves all seeds. {TUNED}",
    "LG-FedAvg keeps the convolutions personal and begins from scratch, where its authors begin from FedAvg's model;"
    " Per-FedAvg is the first-order one, with five steps to a client's own model; the mixture of APFL is even; L2GD"
    " makes about ten steps a round, each on all rows of a client.",
    "FedSOUL's accuracy is that of the mean of its samples, one model a client.",
)


def fedpop_full(
    *,
    out: Path | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    engine: str | None = None,
    resume: bool = False,
    watch: Watch = unwatched,
    scale: str | None = None,
) -> Outcome:
    """FedSOUL against nine methods on CIFAR-10 by classes.

    The arguments are those of every recipe; the default scale is ``laptop``.
    """
    options: dict[str, Any] = {"scale": scale, "out": out, "rounds": rounds, "seed": seed, "engine": engine}
    return image_table("fedpop-full", plans, ABOUT, NOTES, **options, resume=resume, watch=watch)


def plans(scale: str) -> Plan:
    """Two settings; at scale ``ci`` one with handwritten digits and three of the methods."""
    if scale == "ci":
        few = ("local", "LG-FedAvg", "L2GD", FEDPOP)
        one = Setting(name="digits", shown="Digits, 5 classes a client", data=digits, methods=few)
        return Plan(settings=(one,), seeds=2, rounds=2, cohort=2)
    paper = scale == "paper"
    settings = tuple(
        Setting(
            name=f"{classes}-classes",
            shown=f"CIFAR-10, {classes} classes a client",
            data=partial(_data, paper, classes),
            methods=tuple(METHODS),
            paper=dict(zip(METHODS, numbers, strict=True)),
        )
        for classes, numbers in TABLE2.items()
    )
    return Plan(settings=settings, seeds=5 if paper else 3, rounds=1000 if paper else 50, cohort=10)


def _data(paper: bool, classes: int, seed: int) -> FederatedData:
    rows, test = (500, 100) if paper else (50, 50)
    return pictures("cifar10", clients=100, classes=classes, rows=rows, test=test, seed=seed, halved=not paper)
