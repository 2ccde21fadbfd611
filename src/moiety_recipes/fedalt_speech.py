"""FedAlt and FedSim on speech (Pillutla et al. 2022, section 4 (d); Tables 3 and 11 on LibriSpeech).

Spoken digits take the place of LibriSpeech, which is not available here. Clients are the 60 speakers of AudioMNIST:

- ``audiomnist``: one digit a row, as an image of its mel spectrogram, told by ResNet-18 with group normalisation. The
  paper has no such task. It asks of speakers what ``fedalt-images`` asks of writers: personal are the stem, the last
  layer, or residual adapters.
- ``connected_digits``: several clips of one speaker joined, transcribed by the paper's transformer for speech with the
  CTC loss, scored by the word error rate. Personal are the convolutional subsampler, the second feed-forward layer of
  the last block, or adapters (Table 8).

At scale ``paper`` models are the paper's, and rounds, cohort, batches and rates those of its column for speech in Table
9. At scale ``laptop`` both models and the data are smaller, there are fewer rounds, and rates are chosen from small
grids. Scale ``ci`` needs no data set: it joins the handwritten digits of scikit-learn, whose columns of pixels take
the place of frames, and shows that everything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import moiety as mo
from moiety.experiments import Experiment
from moiety_recipes import fedalt_page, fedalt_stages
from moiety_recipes.fedalt_page import ONE_DEAL
from moiety_recipes.fedalt_stages import NO_SUCH_TASK, Paper, Plan, Setting, Stages, split_layers
from moiety_recipes.pictures import average_pixels

LIBRISPEECH = Paper(
    task="LibriSpeech",
    table={"input": (None, 15.13, 15.47), "output": (None, 15.53, 15.51), "adapter": (None, 15.50, 15.54)},
    baselines={"finetune": 15.55},
)
PARTS: dict[str, Any] = {"test": 0.3, "validation": 0.14}
"""Shares of a speaker's rows: the paper tests on about 30% of the audio, and holds out 20% of the rest for tuning."""


def plan(scale: str) -> Plan:
    """Single and connected digits; at scale ``ci`` handwritten ones, connected."""
    large = scale == "paper"
    return Plan((_joined_digits(),) if scale == "ci" else (_audiomnist(large), _connected_digits(large)))


def _joined_digits() -> Setting:
    """Small enough to end in seconds: it shows that everything runs, and nothing else."""

    def data(seed: int) -> mo.FederatedData:
        import numpy as np

        fed = mo.data.load("digits", clients=4, per_client=48, seed=seed)
        # Three clips after one another; every other sequence lacks the third.
        x = fed.columns["x"].reshape(-1, 8, 8).transpose(0, 2, 1).reshape(-1, 24, 8)
        y, frames = fed.columns["y"].reshape(-1, 3) + 1, np.full(len(x), 24)
        x[::2, 16:], y[::2, 2], frames[::2] = 0, -100, 16
        return mo.data.from_arrays({"x": x, "y": y, "frames": frames}, np.repeat(fed.ids, 16), **PARTS, seed=seed)

    stages = Stages(
        seeds=2,
        cohort=2,
        batch_size=4,
        rounds=2,
        personal_rounds=1,
        finetune_epochs=1,
        lr=(0.001, 0.002),
        personal_lr=(0.004,),
        finetune_lr=(0.3,),
        pfedme_steps=1,
        clip=1.0,
    )
    sizes = {"vocabulary": 11, "mels": 8, "channels": 8, "width": 8, "blocks": 1, "heads": 2, "feed_forward": 16}
    title = "Handwritten digits (scikit-learn), two or three after one another, column of pixels by column."
    return describe_transformer("joined_digits", title, data, sizes, stages)


def _audiomnist(paper: bool) -> Setting:
    def data(seed: int) -> mo.FederatedData:
        fed = mo.data.load("audiomnist", per_client=None if paper else 68, **PARTS, seed=seed)
        return fed if paper else average_pixels(fed)

    small: dict[str, Any] = {"rounds": 60, "cohort": 10, "batch_size": 16, "personal_rounds": 10, "finetune_epochs": 2}
    stages = _table9() if paper else _laptop(**small, lr=(0.3, 0.6), finetune_lr=(0.03, 0.1))
    image, width = ((1, 32, 32), 64) if paper else ((1, 16, 16), 8)
    no_paper = "The paper tells no single words apart, so there are no numbers of it beside these."
    network = (
        f"ResNet-18 with group normalisation, {width} channels in the first stage, on {image[1]} mel bands x {image[2]}"
        " frames."
    )
    rates = ["Rates are those of Table 9 for speech, which the paper found for another model."] if paper else []
    return Setting(
        name="audiomnist",
        title="Spoken digits (AudioMNIST), 10 classes, as mel spectrograms; clients are speakers.",
        data=data,
        model=partial(mo.models.resnet18_gn, classes=10, image=image, width=width),
        splits=split_layers(),
        stages=stages,
        paper=NO_SUCH_TASK,
        margin=0.01,
        notes=partial(_write_notes, [no_paper, network, *rates]),
    )


def _connected_digits(paper: bool) -> Setting:
    def data(seed: int) -> mo.FederatedData:
        small: dict[str, Any] = {} if paper else {"shortest": 3, "longest": 4, "per_client": 57}
        return mo.data.load("connected_digits", **small, **PARTS, seed=seed)

    few: dict[str, Any] = {"rounds": 200, "cohort": 5, "batch_size": 8, "personal_rounds": 30, "finetune_epochs": 3}
    stages = _table9() if paper else _laptop(**few, lr=(0.3, 0.6), finetune_lr=(0.03, 0.1, 0.3))
    small = {"channels": 64, "width": 64, "blocks": 1, "heads": 4, "feed_forward": 128}
    sizes = {"vocabulary": 11, "mels": 32, **({} if paper else small)}
    notes = [
        "The paper's numbers are of LibriSpeech: sentences read aloud by 902 narrators, written with 5,000 subwords, by"
        " a model trained beforehand on 460 hours of other speech. Here 60 speakers say ten words, one clip of each"
        " after another, and training begins from random weights. Differences and their signs may be compared, levels"
        " not.",
        "Word error rates are those of greedy decoding. A client's is weighted by the words in its test rows.",
        f"{'The' if paper else 'A small form of the'} paper's transformer: "
        + ("6 blocks of width 384." if paper else "one block of width 64."),
    ]
    if not paper:
        notes.append(
            "The server averages, where the paper's uses Adam, and gradients are clipped at norm 1, not 0.25. On"
            " validation rows of three seeds FedAvg so left 8 to 11% of the words wrong, and with Adam on the server"
            " (rates of 0.002 and 0.004) 10 to 22%."
        )
    title = "Spoken digits one after another (AudioMNIST), transcribed with the CTC loss; clients are speakers."
    setting = describe_transformer("connected_digits", title, data, sizes, stages)
    return replace(setting, notes=partial(_write_notes, notes))


def describe_transformer(
    name: str, title: str, data: Callable[[int], mo.FederatedData], sizes: Mapping[str, int], stages: Stages
) -> Setting:
    """A setting with the paper's transformer in these sizes, and the splits of Table 8.

    Its 0.15 million of adapters leave no room for the norms, which stay shared.
    """
    return Setting(
        name=name,
        title=title,
        data=data,
        model=partial(mo.models.speech_transformer, **sizes),
        splits={
            "input": partial(mo.split.by_name, personal=["subsampler"]),
            "output": mo.split.last_feed_forward,
            "adapter": partial(mo.split.adapters, norms=False),
        },
        stages=stages,
        paper=LIBRISPEECH,
        margin=0.01,
        fit={"loss": "ctc", "metric": "word_error_rate"},
    )


def _table9() -> Stages:
    """The column LibriSpeech of Table 9; one seed, since the paper has five for all tasks but this."""
    options = {"server": mo.server.adam(lr=1e-3), "schedule": mo.schedule.linear()}
    return Stages(
        seeds=1,
        cohort=50,
        batch_size=32,
        rounds=500,
        personal_rounds=500,
        finetune_epochs=5,
        lr=(1e-2,),
        personal_lr=(1e-2,),
        finetune_lr=(1e-4,),
        clip=0.25,
        federated=options,
        personalised=options,
    )


def _laptop(**sizes: Any) -> Stages:
    """Sizes that end in minutes on two cores."""
    options = {"schedule": mo.schedule.linear()}
    return Stages(
        seeds=3, personal_lr=(0.1, 0.3), clip=1.0, federated=options, personalised=options, pfedme_steps=2, **sizes
    )


def _write_notes(notes: Sequence[str], stages: Stages) -> list[str]:
    if stages.seeds == 1:
        seeds = "One seed, as in the paper for speech: nothing can be said of chance."
    else:
        seeds = f"{ONE_DEAL} Sizes and grids were settled before on validation rows of the first."
    return [
        *notes,
        stages.sizes,
        seeds,
        f"The paper has neither Ditto nor pFedMe for speech: their weight {stages.pull:g}, the rate of pFedMe's shared"
        f" model, {stages.pfedme_lr:g}, and its {stages.pfedme_steps} steps on a batch are ours.",
    ]


fedalt_speech = Experiment(
    name="fedalt-speech",
    summary="FedAlt and FedSim against finetuning, full personalisation and FedAvg, on spoken digits, one and several.",
    plan=plan,
    cells=fedalt_stages.cells,
    page=fedalt_page.page,
)
