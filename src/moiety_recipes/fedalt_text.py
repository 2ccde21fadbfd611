"""FedAlt and FedSim on text (Pillutla et al. 2022, section 4 (a) and appendix B.1.1: Stack Overflow).

Shakespeare's plays take the place of Stack Overflow, which is not available here. Clients are speaking roles, a row is
a sentence, and the task is to predict the next word. The model is the paper's transformer. Personal are its first
block, its last block, or adapters of width 16 with all normalisations (Table 5). The score counts the words of the
vocabulary alone; out-of-vocabulary words and the ends of sentences count in the loss, padding nowhere.

At scale ``paper`` model, vocabulary, rounds, cohort, batches and rates are the paper's (Table 9). At scale ``laptop``
there is less of everything, and rates are chosen from small grids. Scale ``ci`` needs no data set: it makes sentences
up, and shows that everything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import moiety as mo
from moiety.experiments import Experiment
from moiety_recipes import fedalt_page, fedalt_stages
from moiety_recipes.fedalt_page import LONGER_AND_SWEPT, ONE_DEAL
from moiety_recipes.fedalt_stages import Paper, Plan, Setting, Stages, Sweep

STACK_OVERFLOW = Paper(
    task="Stack Overflow",
    table={"input": (24.96, 24.44, 24.81), "output": (24.93, 25.05, 25.02), "adapter": (24.71, 24.82, 24.74)},
    baselines={"fedavg": 23.82, "finetune": 25.20, "ditto": 25.20, "pfedme": 25.21},
    final={"input": (-0.06, 0.04), "output": (0.00, 0.25), "adapter": (0.01, 0.40)},
    stateless={"input": (24.96, 24.84, 24.89), "output": (24.93, 24.94, 24.94), "adapter": (24.71, 24.69, 24.71)},
    memory={"none": 71, "input": 67, "output": 67, "adapter": 72, "full": 116},
)
MARGIN = 0.0025
"""A quarter of a point: the paper's gains from personalisation are about one point, its differences between methods a
tenth or two of one."""


def plan(scale: str) -> Plan:
    """Shakespeare's words; at scale ``ci`` made-up ones."""
    return Plan((_made_up_setting() if scale == "ci" else _shakespeare(scale == "paper"),))


def _made_up_setting() -> Setting:
    """Small enough to end in seconds: it shows that everything runs, and nothing else."""
    sizes = {"vocabulary": 16, "length": 6, "width": 8, "blocks": 2, "heads": 2, "feed_forward": 16}
    stages = Stages(
        seeds=1,
        cohort=2,
        batch_size=8,
        rounds=2,
        personal_rounds=1,
        finetune_epochs=1,
        lr=(0.5, 1.0),
        personal_lr=(0.5,),
        finetune_lr=(0.5,),
        pfedme_steps=1,
        clip=1.0,
        sweeps=(Sweep(option="dropout", split="output", values=(0.0, 0.3)),),
    )
    title = "Sentences of twelve made-up words, which every client counts through with a step of its own."
    return _setting("made_up_words", title, _load_counting_words, sizes, stages)


def _load_counting_words(seed: int) -> mo.FederatedData:
    """Client k says every k-th of twelve words, two to six of them; one in ten is out of the vocabulary.

    Tokens are numbered as in ``load("shakespeare", unit="word", vocabulary=12, length=6)``.
    """
    import numpy as np

    rng = mo.random.generator(seed, "made-up words")
    words, length, unknown, padding, begin, end = 12, 6, 12, 13, 14, 15
    client = np.repeat(np.arange(1, 5), 25)[:, None]
    place = np.arange(1, length + 1)
    tokens = (rng.integers(words, size=(len(client), 1)) + client * place) % words
    tokens = np.where(rng.random(tokens.shape) < 0.1, unknown, tokens)
    count = rng.integers(2, length + 1, size=(len(client), 1))
    tokens = np.where(place <= count, tokens, np.where(place == count + 1, end, padding))
    x = np.concatenate([np.full_like(client, begin), tokens[:, :-1]], axis=1)
    columns = {"x": x, "y": np.where(tokens == padding, -100, tokens), "counted": tokens < words}
    return mo.data.from_arrays(columns, client[:, 0], test=0.2, validation=0.16, seed=seed)


def _shakespeare(paper: bool) -> Setting:
    words, length = (10_000, 20) if paper else (2_000, 12)
    small = {"width": 32, "blocks": 3, "heads": 4, "feed_forward": 64}
    sizes = {"vocabulary": words + 4, "length": length, **({} if paper else small)}

    def data(seed: int) -> mo.FederatedData:
        limits = {"roles": 100} if paper else {"roles": 40, "per_client": 200}
        options: dict[str, Any] = {"unit": "word", "vocabulary": words, "length": length, **limits}
        return mo.data.load("shakespeare", **options, test=0.2, validation=0.16, seed=seed)

    title = "Shakespeare's plays, next-word prediction; clients are speaking roles, rows are sentences."
    setting = _setting("shakespeare", title, data, sizes, _table9() if paper else _laptop())
    return replace(setting, notes=partial(_write_notes, paper, sizes))


def _setting(
    name: str, title: str, data: Callable[[int], mo.FederatedData], sizes: Mapping[str, int], stages: Stages
) -> Setting:
    """A setting with the paper's transformer in these sizes, and the splits of Table 5."""
    return Setting(
        name=name,
        title=title,
        data=data,
        model=partial(mo.models.transformer_lm, **sizes),
        splits={"input": mo.split.first_block, "output": mo.split.last_block, "adapter": mo.split.adapters},
        stages=stages,
        paper=STACK_OVERFLOW,
        margin=MARGIN,
        fit={"loss": "cross_entropy", "metric": "token_accuracy"},
    )


def _table9() -> Stages:
    """The column StackOverflow of Table 9, the weights of Ditto and pFedMe of B.3, what C.3 and Figure 7 regularise."""
    schedule = mo.schedule.linear(warmup=0.1)
    return Stages(
        seeds=5,
        cohort=50,
        batch_size=64,
        rounds=1000,
        personal_rounds=500,
        finetune_epochs=5,
        lr=(1.0,),
        personal_lr=(0.1,),
        finetune_lr=(0.1,),
        pull=1e-3,
        pfedme_pull=1e-4,
        pfedme_lr=1000.0,
        clip=0.1,
        federated={"schedule": schedule, "server": mo.server.adam(lr=5e-4)},
        personalised={"schedule": schedule, "server": mo.server.adam(lr=5e-5)},
        stateless="output",
        sweeps=(
            Sweep(option="weight_decay", split="adapter", values=(0.0, 0.001, 0.01, 0.1)),
            Sweep(option="dropout", split="output", values=(0.0, 0.1, 0.3, 0.5)),
        ),
    )


def _laptop() -> Stages:
    return Stages(
        seeds=3,
        cohort=10,
        batch_size=8,
        rounds=40,
        personal_rounds=8,
        finetune_epochs=2,
        lr=(1.0, 2.0),
        personal_lr=(0.3, 1.0),
        finetune_lr=(0.1, 0.3),
        pull=1e-3,
        pfedme_pull=1e-4,
        pfedme_lr=1000.0,
        pfedme_steps=2,
        clip=1.0,
        federated={"schedule": mo.schedule.linear(warmup=0.1), "server": mo.server.sgd(momentum=0.7)},
        personalised={"schedule": mo.schedule.linear(warmup=0.0)},
        stateless="output",
        sweeps=(
            Sweep(option="weight_decay", split="adapter", values=(0.0, 0.01, 0.1)),
            Sweep(option="dropout", split="output", values=(0.0, 0.3)),
        ),
    )


def _write_notes(paper: bool, sizes: Mapping[str, int], stages: Stages) -> list[str]:
    words, length = sizes["vocabulary"] - 4, sizes["length"]
    notes = [
        "The paper's numbers are of Stack Overflow: what 1,000 users of a site for programmers wrote, many times more"
        " text. Differences and their signs may be compared, levels not.",
        "A role's sentences are split into training, validation and test rows at random: the sentence before one that"
        " is tested may be among those trained on.",
        f"The vocabulary is the {words:,} words that are most frequent in the training rows of these roles; sentences"
        f" are cut at {length} tokens. Accuracy is that of words of the vocabulary; a role's is weighted by how many of"
        " them its test rows hold.",
        stages.sizes,
        ONE_DEAL,
        f"The weights of Ditto ({stages.pull:g}) and pFedMe ({stages.pfedme_pull:g}) are the paper's (appendix B.3);"
        f" the rate of pFedMe's shared model, {stages.pfedme_lr:g}, and its {stages.pfedme_steps} steps on a batch are"
        " ours.",
        *LONGER_AND_SWEPT,
    ]
    if paper:
        few = "These are the 100 roles with most text. Three of them have fewer training rows than the 100 that"
        return [*notes, f"{few} the paper asks for."]
    return [
        *notes,
        "With so small a vocabulary, a word outside it is the likeliest of all labels (one in ten), and wherever a"
        " model expects one, it cannot be right. Always to say the most frequent word would score 3.7.",
        f"A small form of the paper's transformer: {sizes['blocks']} blocks of width {sizes['width']}. Adapters have"
        " the paper's width of 16, which makes them no small part of this model.",
        "Servers average, with momentum 0.7 in the training by FedAvg, where the paper's use Adam, and gradients are"
        " clipped at norm 1, not 0.1. In so few rounds Adam on the server learns far less: at a server rate of 0.01 it"
        " ended at a loss of 5.08 on validation rows, where averaging ended at 4.82 (one seed).",
    ]


fedalt_text = Experiment(
    name="fedalt-text",
    summary="FedAlt and FedSim against finetuning, full personalisation and FedAvg, on words of Shakespeare's plays.",
    plan=plan,
    cells=fedalt_stages.cells,
    page=fedalt_page.page,
)
