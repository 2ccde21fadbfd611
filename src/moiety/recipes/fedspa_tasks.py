"""Data sets, models and methods of the recipes of FedSpa (Huang et al. 2022, section 5.1 and appendix B) at each scale.

At scale ``laptop`` the model is LeNet-5, on Fashion-MNIST and MNIST: 100 clients, 10 a round, five local epochs and the
paper's rates, but 64 rows a client in batches of 16, which makes as many steps in a turn as the paper's 500 in batches
of 128, and tens of rounds for its thousand. At scale ``paper`` VGG-11 and ResNet-18 with group normalisation are
trained on CIFAR-10 with the paper's sizes. EMNIST-Letters and CIFAR-100 are not at hand. Scale ``ci`` shows that
everything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import moiety as mo
from moiety.recipes.fedspa_runs import IID, B, Task

if TYPE_CHECKING:
    from torch import nn

    from moiety.data import FederatedData
    from moiety.types import Algorithm

DST, RSM, DITTO, FEDAVG = "FedSpa (DST)", "FedSpa (RSM)", "Ditto", "FedAvg"
SUB, LOCAL, SUBSAMPLING = "Sub-FedAvg", "Local", "Subsampling"
GAMMA = (0.5, 0.3)
"""Of settings A and B where there are ten labels, as for CIFAR-10 in the paper."""
Methods = Callable[[Mapping[str, Any]], dict[str, "Algorithm"]]
"""From what all methods have to the methods of a recipe."""
CIFAR100_PAPER = (
    "The paper's numbers are those of CIFAR-100 with ResNet-18 and Dirichlet(0.2) and (0.1), another data set."
)
PRUNED_FASTER = (
    "Sub-FedAvg prunes 20% of what is left in a turn, where the paper prunes 5%: with so few turns it would stay nearly"
    " dense otherwise."
)
"""Of recipes at scale ``laptop``."""
NAMES = {"fashion_mnist": "Pictures of clothes (Fashion-MNIST)", "mnist": "Handwritten digits (MNIST)"}


def common(*, batch_size: int, epochs: int = 5) -> dict[str, Any]:
    """What all methods have (section 5.1): 0.1 times 0.998^t, weight decay 0.0005, local epochs, batches."""
    schedule = mo.schedule.geometric(factor=0.998)
    return {"lr": 0.1, "epochs": epochs, "batch_size": batch_size, "weight_decay": 5e-4, "schedule": schedule}


def rows_of_table_1(how: Mapping[str, Any], *, prune_rate: float = 0.05) -> dict[str, Algorithm]:
    """The methods of Table 1. Ditto splits its epochs, 2 for the shared and 3 for the personal model of 5."""
    first = max(1, 2 * how["epochs"] // 5)
    ditto = {**how, "epochs": first, "personal_epochs": max(1, how["epochs"] - first), "personal_lr": how["lr"]}
    return {
        DST: mo.fedspa(**how),
        RSM: mo.fedspa(search="rsm", **how),
        DITTO: mo.ditto(pull=0.5, weighting="uniform", **ditto),
        FEDAVG: mo.fedavg(weighting="uniform", **how),
        SUB: mo.sub_fedavg(prune_rate=prune_rate, accuracy=0.5, distance=1e-4, **how),
        LOCAL: mo.local_only(**how),
        SUBSAMPLING: mo.subsampling(**how),
    }


def dealt(source: str, gamma: tuple[float, float], **options: Any) -> Callable[[str, int], FederatedData]:
    """The data of a setting; test rows of a client have the label ratios of its training rows (appendix B.1)."""

    def data(setting: str, seed: int) -> FederatedData:
        how = mo.data.iid() if setting == IID else mo.data.dirichlet(gamma[setting == B])
        return mo.data.load(source, partition=how, seed=seed, **options)

    return data


def ci(methods: Methods, *, seeds: int = 1) -> list[Task]:
    """Small enough to end in seconds."""
    return [
        Task(
            name="digits",
            title="Handwritten digits (scikit-learn), 8 x 8 pixels, a network with one hidden layer of 16.",
            data=dealt("digits", GAMMA, clients=6, per_client=20),
            model=lambda seed: mo.models.mlp(64, 10, hidden=(16,), seed=seed),
            methods=methods(common(batch_size=8, epochs=2)),
            rounds=2,
            seeds=seeds,
            every=1,
            cohort=3,
        )
    ]


def laptop(
    source: str, methods: Methods, *, rounds: int, seeds: int, every: int, paper: str = "", notes: tuple[str, ...] = ()
) -> Task:
    """LeNet-5 on small clients."""
    rows, batch, test = 64, 16, 50
    said = (
        f"The paper has 500 rows and more a client, batches of 128 and 1,000 rounds; {rows} rows in batches of {batch}"
        " make as many steps in a turn. A client is asked in one round of ten, as in the paper, so in few: masks have"
        " few turns to evolve in, and some clients were never asked, whose masks are the first ones.",
        "The learning rate is the paper's, 0.1 x 0.998^t, which hardly falls in so few rounds.",
        "Where clients begin with one mask, it is the same in all seeds.",
    )
    return Task(
        name=source,
        title=f"{NAMES[source]}, 28 x 28 pixels, LeNet-5 (61,706 parameters); 100 clients of {rows} training and"
        f" {test} test rows, five local epochs, batches of {batch}.",
        data=dealt(source, GAMMA, clients=100, per_client=rows, test_per_client=test),
        model=lambda seed: mo.models.lenet5(seed=seed),
        methods=methods(common(batch_size=batch)),
        rounds=rounds,
        seeds=seeds,
        every=every,
        paper=paper,
        notes=(*said, *notes),
    )


def cifar10(
    methods: Methods,
    *,
    every: int,
    models: tuple[str, ...] = ("vgg11", "resnet18"),
    paper: str = "",
) -> list[Task]:
    """The paper's sizes on CIFAR-10. ``paper`` says whose numbers stand beside those of ResNet-18."""

    def model(name: str) -> Callable[[int], nn.Module]:
        if name == "vgg11":
            return lambda seed: mo.models.vgg11_gn(classes=10, seed=seed)
        return lambda seed: mo.models.resnet18_gn(classes=10, image=(3, 32, 32), seed=seed)

    return [
        Task(
            name=f"cifar10-{name}",
            title=f"CIFAR-10, {name} with group normalisation; 100 clients of 500 training and 100 test rows, five"
            " local epochs, batches of 128.",
            data=dealt("cifar10", GAMMA, clients=100, test_per_client=100),
            model=model(name),
            methods=methods(common(batch_size=128)),
            rounds=1000,
            seeds=3,
            every=every,
            paper="The paper's numbers are those of CIFAR-10 with VGG-11." if name == "vgg11" else paper,
        )
        for name in models
    ]
