"""Figures 3 and S7 of Kotelevskii et al. 2022: clients with 5 or 10 pictures, against FedRep and APFL.

CIFAR-10, 100 clients with pictures of 5 classes each. 10, 50 or 90% of them have 5 pictures (or 10), the rest 25.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from moiety.experiments import Experiment
from moiety_recipes.fedpop_images import DIGITS, FEDSOUL, TUNED, Plan, Scarce, cells, deal_cifar10, page

METHODS = ("FedRep", "APFL", FEDSOUL)


def plan(scale: str) -> Plan:
    """Six deals; at scale ``ci`` one with handwritten digits."""
    if scale == "ci":
        deal = replace(DIGITS, name="digits-50-5", title="Digits, {0.scarce.share:.0%} with {0.scarce.pictures}")
        return Plan(deals=(deal,), methods=METHODS, seeds=2, rounds=2, cohort=2)
    paper = scale == "paper"
    deals = tuple(
        deal_cifar10(
            paper,
            name=f"{pictures}-{share}",
            title="{0.scarce.share:.0%} of the clients with {0.scarce.pictures} pictures",
            classes=5,
            rows=25,
            scarce=Scarce(share=share / 100, pictures=pictures),
        )
        for pictures in (5, 10)
        for share in (10, 50, 90)
    )
    seeds, rounds, cohort = (5, 1000, 20) if paper else (3, 100, 10)
    return Plan(deals=deals, methods=METHODS, seeds=seeds, rounds=rounds, cohort=cohort)


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

fedpop_small = Experiment(
    name="fedpop-small",
    summary="FedSOUL against FedRep and APFL on CIFAR-10, most clients with a handful of pictures.",
    plan=plan,
    cells=cells,
    page=partial(page, ABOUT, NOTES, {}),
)
