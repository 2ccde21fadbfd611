"""Table 2 of Kotelevskii et al. 2022 on CIFAR-10: FedSOUL against nine others, 100 clients with 2 or 5 classes each."""

from __future__ import annotations

from functools import partial

from moiety.experiments import Experiment
from moiety_recipes.fedpop_images import DIGITS, FEDSOUL, TUNED, Plan, cells, deal_cifar10, page

TABLE2 = {
    "local": (89.79, 70.68),
    "FedAvg": (42.65, 51.78),
    "SCAFFOLD": (37.72, 47.33),
    "LG-FedAvg": (84.14, 63.02),
    "Per-FedAvg": (82.27, 67.20),
    "L2GD": (81.04, 59.98),
    "APFL": (83.77, 72.29),
    "Ditto": (85.39, 70.34),
    "FedRep": (87.70, 75.68),
    FEDSOUL: (91.12, 79.48),
}
"""By method: the accuracy with 2 and with 5 classes a client, in per cent."""
PAPER = {
    deal: {method: numbers[column] for method, numbers in TABLE2.items()}
    for column, deal in enumerate(("2-classes", "5-classes"))
}


def plan(scale: str) -> Plan:
    """Two deals with all methods; at scale ``ci`` one with handwritten digits and four of the methods."""
    if scale == "ci":
        methods = ("local", "LG-FedAvg", "L2GD", FEDSOUL)
        return Plan(deals=(DIGITS,), methods=methods, seeds=2, rounds=2, cohort=2)
    paper = scale == "paper"
    seeds, rounds = (5, 1000) if paper else (3, 50)
    deals = tuple(deal_cifar10(paper, name=f"{classes}-classes", classes=classes) for classes in (2, 5))
    return Plan(deals=deals, methods=tuple(TABLE2), seeds=seeds, rounds=rounds, cohort=10)


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

fedpop_full = Experiment(
    name="fedpop-full",
    summary="FedSOUL against nine methods on CIFAR-10 by classes.",
    plan=plan,
    cells=cells,
    page=partial(page, ABOUT, NOTES, PAPER),
)
