"""FedAlt and FedSim on images (Pillutla et al. 2022, section 4; EMNIST is the nearest of the paper's tasks).

Two data sets take the place of EMNIST, which is not available here:

- ``chars74k``: 62 characters by 55 writers, as in EMNIST, but every writer drew each character once. So a character
  that a writer is tested on is never among those it trains on. What a personal part can learn is the hand of the
  writer, as it shows in other characters; what it must not learn is that the tested characters do not occur. It is the
  extreme case of what the paper says of landmarks: personal parts may forget what their client does not have.
- ``fashion_mnist``: ten kinds of clothes, each dealt to clients by Dirichlet(0.3), so that they differ in labels and in
  size. Here a client's own labels come back in its test rows, in the same ratios.

The model is ResNet-18 with group normalisation; personal are its stem, its last layer, or residual adapters (Table 7).
At scale ``laptop`` it is eight times narrower, images are averaged to 14 x 14, there are fewer rounds, clients and
seeds, and rates are chosen from small grids. At scale ``paper`` rounds, cohort, batches, rates and seeds are those of
Table 9. Scale ``ci`` has other data and another model, and shows that everything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import moiety as mo
from moiety.experiments import Experiment
from moiety_recipes import fedalt_page, fedalt_stages
from moiety_recipes.fedalt_page import LONGER_AND_SWEPT, ONE_DEAL
from moiety_recipes.fedalt_stages import Paper, Plan, Setting, Stages, Sweep, split_layers
from moiety_recipes.pictures import average_pixels, choose_clients, replace_pictures

EMNIST = Paper(
    task="EMNIST",
    table={"input": (93.29, 93.62, 93.55), "output": (93.37, 93.57, 93.55), "adapter": (93.66, 94.13, 94.07)},
    baselines={"fedavg": 93.18, "finetune": 94.13, "ditto": 94.13, "pfedme": 94.13},
    final={"input": (0.12, 0.12), "output": (0.09, 0.09), "adapter": (0.27, 0.33)},
    stateless={"input": (93.29, 93.51, 93.48), "output": (93.37, 93.53, 93.51), "adapter": (93.66, 93.97, 93.89)},
    memory={"none": 142, "input": 142, "output": 142, "adapter": 159, "full": 232},
)
SWEEPS = (
    Sweep(option="weight_decay", split="output", values=(0.0, 0.01, 0.1, 1.0)),
    Sweep(option="pull", split="full", values=(0.0, 0.1, 1.0)),
)


def plan(scale: str) -> Plan:
    """Both data sets; at scale ``ci`` the digits that come with scikit-learn instead."""
    large = scale == "paper"
    return Plan((_digits(),) if scale == "ci" else (_chars74k(large), _fashion_mnist(large)))


def _digits() -> Setting:
    """Small enough to end in seconds: it shows that everything runs, and nothing else."""

    def data(seed: int) -> mo.FederatedData:
        partition = mo.data.dirichlet(0.5)
        fed = mo.data.load("digits", clients=6, per_client=20, partition=partition, validation=0.2, seed=seed)
        return replace_pictures(fed, lambda x: x.reshape(-1, 1, 8, 8))

    stages = Stages(
        seeds=2,
        cohort=2,
        batch_size=8,
        rounds=2,
        personal_rounds=1,
        finetune_epochs=1,
        lr=(0.05, 0.1),
        personal_lr=(0.05,),
        finetune_lr=(0.05,),
        pfedme_steps=1,
        stateless="output",
        sweeps=(Sweep(option="weight_decay", split="output", values=(0.0, 0.1)),),
    )
    return Setting(
        name="digits",
        title="Handwritten digits (scikit-learn), 8 x 8 pixels; label ratios of clients drawn from Dirichlet(0.5).",
        data=data,
        model=partial(mo.models.cnn, image=(1, 8, 8), classes=10, hidden=16),
        splits={**split_layers(), "adapter": partial(mo.split.adapters, targets="conv*")},
        stages=stages,
        paper=EMNIST,
        margin=0.01,
    )


def _chars74k(paper: bool) -> Setting:
    def data(seed: int) -> mo.FederatedData:
        fed = mo.data.load("chars74k", test=0.2, validation=0.16, seed=seed)
        return fed if paper else average_pixels(fed)

    title = "Handwritten characters (Chars74K), 62 classes, each drawn once by every writer; clients are writers."
    notes = [
        "No character that a writer is tested on is among those it trains on. A personal part can gain from the"
        " writer's hand alone, and loses where it learns that the missing characters do not occur.",
        "A writer has 12 test rows: one row is 8 points of its accuracy.",
    ]
    return _resnet("chars74k", title, data, 62, paper, _table9() if paper else _laptop(rounds=60), notes)


def _fashion_mnist(paper: bool) -> Setting:
    def data(seed: int) -> mo.FederatedData:
        partition = mo.data.dirichlet(0.3, balanced=False)
        clients, test = (200, 60) if paper else (1000, 40)
        options: dict[str, Any] = {"clients": clients, "partition": partition, "test_per_client": test, "seed": seed}
        fed = mo.data.load("fashion_mnist", validation=0.2, **options)
        return choose_clients(fed, least=100) if paper else average_pixels(choose_clients(fed, least=25, count=30))

    title = "Pictures of clothes (Fashion-MNIST), 10 classes, each dealt to clients by Dirichlet(0.3)."
    notes = ["Test rows of a client have the label ratios of its training rows."]
    return _resnet("fashion_mnist", title, data, 10, paper, _table9() if paper else _laptop(rounds=40), notes)


def _table9() -> Stages:
    """The column EMNIST of Table 9, and the weights of Ditto and pFedMe of appendix B.3."""
    schedule = {"schedule": mo.schedule.exponential(halve_every=500)}
    return Stages(
        seeds=5,
        cohort=10,
        batch_size=32,
        rounds=2000,
        personal_rounds=500,
        finetune_epochs=5,
        lr=(0.5,),
        personal_lr=(0.01,),
        finetune_lr=(0.01,),
        pull=0.1,
        federated=schedule,
        personalised=schedule,
        stateless="adapter",
        sweeps=SWEEPS,
    )


def _laptop(rounds: int) -> Stages:
    return Stages(
        seeds=3,
        cohort=10,
        batch_size=16,
        rounds=rounds,
        personal_rounds=8,
        finetune_epochs=2,
        lr=(0.1, 0.3),
        personal_lr=(0.03, 0.1),
        finetune_lr=(0.003, 0.03, 0.3),
        pull=0.1,
        pfedme_steps=2,
        stateless="output",
        sweeps=SWEEPS,
    )


def _resnet(
    name: str,
    title: str,
    data: Callable[[int], mo.FederatedData],
    classes: int,
    paper: bool,
    stages: Stages,
    notes: Sequence[str],
) -> Setting:
    """A setting with the paper's model, or with a narrow one on small images."""
    image, width = ((1, 28, 28), 64) if paper else ((1, 14, 14), 8)

    def describe(stages: Stages) -> list[str]:
        return [
            *notes,
            f"ResNet-18 with group normalisation, {width} channels in the first stage, on {image[1]} x {image[2]}"
            f" pixels; {stages.sizes}",
            ONE_DEAL,
            f"The weight {stages.pull} of Ditto and pFedMe is the paper's (appendix B.3); the rate of pFedMe's shared"
            f" model, {stages.pfedme_lr:g}, and its {stages.pfedme_steps} steps on a batch are ours.",
            *LONGER_AND_SWEPT,
        ]

    return Setting(
        name=name,
        title=title,
        data=data,
        model=partial(mo.models.resnet18_gn, classes=classes, image=image, width=width),
        splits=split_layers(),
        stages=stages,
        paper=EMNIST,
        margin=0.01,
        notes=describe,
    )


fedalt_images = Experiment(
    name="fedalt-images",
    summary="FedAlt and FedSim against finetuning, full personalisation and FedAvg, on handwriting and on clothes.",
    plan=plan,
    cells=fedalt_stages.cells,
    page=fedalt_page.page,
)
