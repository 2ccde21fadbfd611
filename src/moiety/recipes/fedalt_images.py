"""FedAlt and FedSim on images (Pillutla et al. 2022, section 4; EMNIST is the nearest of the paper's tasks).

Two data sets take the place of EMNIST, which is not at hand:

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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import moiety as mo
from moiety.recipes.base import Outcome, Watch, unwatched
from moiety.recipes.partial_table import partial_table
from moiety.recipes.setting import Paper, Setting, Stages, Sweep

if TYPE_CHECKING:
    from torch import nn

    from moiety.data import FederatedData
    from moiety.split import Split

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


def fedalt_images(
    *,
    out: Path | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    engine: str | None = None,
    resume: bool = False,
    watch: Watch = unwatched,
    scale: str | None = None,
) -> Outcome:
    """FedAlt and FedSim against finetuning, full personalisation and FedAvg, on handwriting and on clothes.

    The arguments are those of ``partial_table``.
    """
    options: dict[str, Any] = {"scale": scale, "out": out, "rounds": rounds, "seed": seed, "engine": engine}
    return partial_table("fedalt-images", settings, **options, resume=resume, watch=watch)


def settings(scale: str) -> list[Setting]:
    """Both data sets; at scale ``ci`` the digits that come with scikit-learn instead."""
    return [_digits()] if scale == "ci" else [_chars74k(scale == "paper"), _fashion_mnist(scale == "paper")]


def _digits() -> Setting:
    """Small enough to end in seconds: it shows that everything runs, and nothing else."""

    def data(seed: int) -> FederatedData:
        how = mo.data.dirichlet(0.5)
        fed = mo.data.load("digits", clients=6, per_client=20, partition=how, validation=0.2, seed=seed)
        x = fed.columns["x"]
        return replace(fed, columns={**fed.columns, "x": x.reshape(len(x), 1, 8, 8)}, spec={})

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
    title = "Handwritten digits (scikit-learn), 8 x 8 pixels; label ratios of clients drawn from Dirichlet(0.5)."
    return Setting(
        name="digits",
        title=title,
        data=data,
        model=lambda seed: mo.models.cnn(image=(1, 8, 8), classes=10, hidden=16, seed=seed),
        splits={**_splits(), "adapter": lambda model: mo.split.adapters(model, targets="conv*")},
        stages=stages,
        paper=EMNIST,
        margin=0.01,
    )


def _chars74k(paper: bool) -> Setting:
    def data(seed: int) -> FederatedData:
        fed = mo.data.load("chars74k", test=0.2, validation=0.16, seed=seed)
        return fed if paper else averaged(fed)

    title = "Handwritten characters (Chars74K), 62 classes, each drawn once by every writer; clients are writers."
    notes = [
        "No character that a writer is tested on is among those it trains on. A personal part can gain from the"
        " writer's hand alone, and loses where it learns that the missing characters do not occur.",
        "A writer has 12 test rows: one row is 8 points of its accuracy.",
    ]
    return _resnet("chars74k", title, data, 62, paper, _table9() if paper else _laptop(rounds=60), notes)


def _fashion_mnist(paper: bool) -> Setting:
    def data(seed: int) -> FederatedData:
        how = mo.data.dirichlet(0.3, balanced=False)
        clients, test = (200, 60) if paper else (1000, 40)
        options: dict[str, Any] = {"clients": clients, "partition": how, "test_per_client": test, "seed": seed}
        fed = mo.data.load("fashion_mnist", validation=0.2, **options)
        return _clients(fed, least=100) if paper else averaged(_clients(fed, least=25, count=30))

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
    data: Callable[[int], FederatedData],
    classes: int,
    paper: bool,
    stages: Stages,
    notes: Sequence[str],
) -> Setting:
    """A setting with the paper's model, or with a narrow one on small images."""
    image, width = ((1, 28, 28), 64) if paper else ((1, 14, 14), 8)
    said = [
        f"ResNet-18 with group normalisation, {width} channels in the first stage, on {image[1]} x {image[2]} pixels;"
        f" {stages.rounds} rounds of FedAvg, {stages.personal_rounds} of FedAlt and FedSim, {stages.cohort} clients a"
        f" round, batches of {stages.batch_size}, {stages.finetune_epochs} epochs of finetuning.",
        "One deal of the data serves all seeds, as in the paper; they differ in first weights, cohorts and shuffles.",
        f"The weight {stages.pull} of Ditto and pFedMe is the paper's (appendix B.3); the rate of pFedMe's shared"
        f" model, {stages.pfedme_lr:g}, and its {stages.pfedme_steps} steps on a batch are ours.",
        "FedAvg, longer: as many rounds more as FedAlt and FedSim have, which the paper does not show. What it gains"
        " on FedAvg, FedAlt and FedSim may gain by longer training of the shared part alone.",
        "What is swept is the finetuning from FedAvg, not FedAlt's own training.",
    ]
    return Setting(
        name=name,
        title=title,
        data=data,
        model=lambda seed: mo.models.resnet18_gn(classes=classes, image=image, width=width, seed=seed),
        splits=_splits(),
        stages=stages,
        paper=EMNIST,
        margin=0.01,
        notes=[*notes, *said],
    )


def _splits() -> dict[str, Callable[[nn.Module], Split]]:
    """The stem, the last layer, and residual adapters with the norms of the blocks and the stem (Table 7)."""
    return {"input": mo.split.input_layer, "output": mo.split.output_layer, "adapter": mo.split.adapters}


def averaged(fed: FederatedData) -> FederatedData:
    """The mean of every 2 x 2 pixels."""
    x = fed.columns["x"]
    rows, channels, height, width = x.shape
    small = x.reshape(rows, channels, height // 2, 2, width // 2, 2).mean(axis=(3, 5))
    return replace(fed, columns={**fed.columns, "x": small}, spec={})


def _clients(fed: FederatedData, *, least: int, count: int | None = None) -> FederatedData:
    """The first so many clients that have at least so many rows to train and validate on."""
    import numpy as np

    kept = np.flatnonzero(fed.sizes("train") + fed.sizes("validation") >= least)[:count]
    spans = fed.bounds[kept]
    rows = np.concatenate([np.arange(span[0], span[3]) for span in spans])
    sizes = spans[:, 3] - spans[:, 0]
    bounds = spans - spans[:, :1] + (np.cumsum(sizes) - sizes)[:, None]
    columns = {name: column[rows] for name, column in fed.columns.items()}
    return replace(fed, columns=columns, bounds=bounds, ids=[str(fed.ids[int(i)]) for i in kept], spec={})
