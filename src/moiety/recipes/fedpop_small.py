"""Figures 3 and S7 of Kotelevskii et al. 2022: clients with 5 or 10 pictures, against FedRep and APFL.

CIFAR-10, 100 clients with pictures of 5 classes each. 10, 50 or 90% of them have 5 pictures (or 10), the rest 25.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moiety.recipes.base import Outcome, Watch, unwatched
from moiety.recipes.fedpop_images import FEDPOP, TUNED, Plan, Setting, image_table, pictures, shrunk

if TYPE_CHECKING:
    from moiety.data import FederatedData

METHODS = ("FedRep", "APFL", FEDPOP)
ABOUT = (
    'Kotelevskii et al. 2022, "FedPop: A Bayesian Approach for Personalised Federated Learning", Figures 3 and S7,'
    " which the paper shows without numbers. In brackets is the 95% interval of the mean over seeds (Student's t)."
)
NOTES = (
    "At scale laptop pictures are averaged to 16 x 16 pixels, and rounds are few: one gradient of the shared layers a"
    " round for FedSOUL, one pass for FedRep, five for APFL.",
    "One deal of the data serves all seeds; they differ in first weights, cohorts, shuffles and chains.",
    "FedSOUL's accuracy is that of the mean of its samples, one model a client.",
    f"{TUNED} A client had 50 pictures there.",
    "A client is tested on pictures of its own classes.",
)


def fedpop_small(
    *,
    out: Path | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    engine: str | None = None,
    resume: bool = False,
    watch: Watch = unwatched,
    scale: str | None = None,
) -> Outcome:
    """FedSOUL against FedRep and APFL on CIFAR-10, most clients with a handful of pictures.

    The arguments are those of every recipe; the default scale is ``laptop``.
    """
    options: dict[str, Any] = {"scale": scale, "out": out, "rounds": rounds, "seed": seed, "engine": engine}
    return image_table("fedpop-small", plans, ABOUT, NOTES, **options, resume=resume, watch=watch)


def plans(scale: str) -> Plan:
    """Six settings; at scale ``ci`` one with handwritten digits."""
    if scale == "ci":
        one = Setting(name="digits-50-5", shown="Digits, 50% with 5", data=digits, methods=METHODS)
        return Plan(settings=(one,), seeds=2, rounds=2, cohort=2)
    paper = scale == "paper"
    settings = tuple(
        Setting(
            name=f"{few}-{share}",
            shown=f"{share}% of the clients with {few} pictures",
            data=partial(_data, paper, few, share),
            methods=METHODS,
        )
        for few in (5, 10)
        for share in (10, 50, 90)
    )
    return Plan(settings=settings, seeds=5 if paper else 3, rounds=1000 if paper else 100, cohort=20 if paper else 10)


def _data(paper: bool, few: int, share: int, seed: int) -> FederatedData:
    test = 100 if paper else 50
    fed = pictures("cifar10", clients=100, classes=5, rows=25, test=test, seed=seed, halved=not paper)
    return shrunk(fed, share / 100, few, seed)


def digits(seed: int) -> FederatedData:
    """Small enough to end in seconds."""
    from dataclasses import replace

    import numpy as np

    import moiety as mo

    how = mo.data.classes_per_client(5)
    fed = mo.data.load("digits", clients=4, partition=how, per_client=20, test=0.4, seed=seed)
    x = fed.columns["x"].reshape(-1, 1, 8, 8)
    return shrunk(replace(fed, columns={**fed.columns, "x": np.repeat(x, 3, axis=1)}, spec={}), 0.5, 5, seed)
