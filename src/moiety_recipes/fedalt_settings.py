"""Where the claims of Pillutla et al. 2022 are decided: eight settings with small models that converge.

- ``fedalt-people``: activities of 30 people with a phone (UCI HAR) and single digits said by 60 speakers (AudioMNIST);
- ``fedalt-labels``: clothes (Fashion-MNIST) and objects (CIFAR-10), dealt by Dirichlet at two strengths, so that
  clients differ in labels and in size;
- ``fedalt-roles``: the next character in what a role of Shakespeare's says;
- ``fedalt-numbers``: several digits said one after another by 60 speakers, transcribed with the CTC loss.

All but the last are perceptrons with two hidden layers. Personal are the first layer, the last layer, or adapters on
both hidden layers. The last is a small form of the paper's transformer for speech, with the splits of Table 8.

Scale ``ci`` needs no data set and shows only that everything runs. Scale ``laptop`` has a third of the rounds and two
seeds. There is no scale ``paper``: the paper has none of these tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import moiety as mo
from moiety.experiments import Experiment
from moiety_recipes import fedalt_night, fedalt_night_page
from moiety_recipes.fedalt_night import Night, plan_night
from moiety_recipes.fedalt_speech import describe_transformer
from moiety_recipes.fedalt_stages import NO_SUCH_TASK, Plan, Setting, Sweep
from moiety_recipes.pictures import average_pixels, choose_clients

if TYPE_CHECKING:
    from torch import nn

MARGIN = 0.01
"""One point of accuracy or of the word error rate: what counts as close."""
SEEDS = 10
RATES = (0.01, 0.03, 0.1, 0.3)
SERVER_MOMENTUM = 0.9
"""Of the server in (a), where plain averaging had not converged."""
SWEEPS = (
    Sweep(option="weight_decay", split="output", values=(0.0, 0.001, 0.01, 0.1)),
    Sweep(option="pull", split="output", values=(0.0, 0.01, 0.1, 1.0)),
)
DROPOUT = Sweep(option="dropout", split="output", values=(0.0, 0.3))
CONTEXT = 5
"""How many characters the next one is told from."""
LETTERS = 82
"""How many characters there are in the plays."""


def perceptron(
    inputs: int, outputs: int, hidden: Sequence[int] = (64, 32), *, seed: int, dropout: float = 0.0
) -> nn.Module:
    """Two hidden layers with ReLU; with dropout after each where it is asked for."""
    from collections import OrderedDict

    from torch import nn

    model = mo.models.mlp(inputs, outputs, hidden=tuple(hidden), seed=seed)
    if not dropout:
        return model
    steps: OrderedDict[str, nn.Module] = OrderedDict()
    for name, module in model.named_children():
        steps[name] = module
        if name.startswith("relu"):
            steps[name.replace("relu", "dropout")] = nn.Dropout(dropout)
    return nn.Sequential(steps)


def _dense(
    name: str,
    title: str,
    data: Callable[[int], mo.FederatedData],
    inputs: int,
    outputs: int,
    stages: Night,
    notes: Sequence[str] = (),
) -> Setting:
    """A setting with a perceptron."""
    return Setting(
        name=name,
        title=title,
        data=data,
        model=partial(perceptron, inputs, outputs),
        splits={
            "input": mo.split.input_layer,
            "output": mo.split.output_layer,
            "adapter": partial(mo.split.adapters, targets="hidden*", width=4),
        },
        stages=stages,
        paper=NO_SUCH_TASK,
        margin=MARGIN,
        notes=lambda stages: [*notes, stages.sizes],
    )


def _dense_stages(**sizes: Any) -> Night:
    """Cohorts of 10; the schedule of the paper's pictures, unless another is named."""
    common: dict[str, Any] = {
        "seeds": SEEDS,
        "cohort": 10,
        "batch_size": 16,
        "decay": "exponential",
        "rounds": 800,
        "personal_rounds": 100,
        "finetune_epochs": 5,
        "lr": RATES,
        "personal_lr": RATES,
        "finetune_lr": (0.003, 0.01, 0.03, 0.1),
        "pfedme_lr": 10.0,
        "pfedme_steps": 3,
        "sweeps": SWEEPS,
    }
    return plan_night(**{**common, **sizes})


def _at_scale(scale: str, tiny: Setting, *settings: Setting) -> Plan:
    """The settings of a scale: made-up ones for ``ci``, less of everything for ``laptop``."""
    from moiety import MoietyError

    if scale == "paper":
        raise MoietyError("`scale` must be ci, laptop or night, got 'paper'. The paper has none of these tasks.")
    if scale == "ci":
        return Plan((tiny,))
    if scale == "night":
        return Plan(settings)
    return Plan(tuple(replace(s, stages=replace(_shorten(s), seeds=2)) for s in settings))


def _shorten(setting: Setting) -> Night:
    stages = fedalt_night.stages_of(setting)
    return replace(stages.with_rounds(max(1, stages.rounds // 3)), pilot_seeds=stages.pilot_seeds[:1])


def _tiny_stages(**sizes: Any) -> Night:
    """Small enough to end in seconds."""
    common: dict[str, Any] = {
        "seeds": 2,
        "cohort": 2,
        "batch_size": 8,
        "decay": "exponential",
        "rounds": 2,
        "personal_rounds": 1,
        "finetune_epochs": 1,
        "lr": (0.05, 0.1),
        "personal_lr": (0.05,),
        "finetune_lr": (0.05,),
        "pfedme_steps": 1,
        "pilot_seeds": (100,),
        "weights": (0.1,),
        "more_values": 0,
    }
    return plan_night(**{**common, **sizes})


def _tiny(name: str, alpha: float, **sizes: Any) -> Setting:
    """The digits that come with scikit-learn."""

    def data(seed: int) -> mo.FederatedData:
        partition = mo.data.dirichlet(alpha, balanced=False)
        return mo.data.load("digits", clients=4, per_client=20, partition=partition, validation=0.2, seed=seed)

    title = f"Handwritten digits (scikit-learn); label ratios of clients drawn from Dirichlet({alpha:g})."
    return _dense(name, title, data, 64, 10, _tiny_stages(**sizes))


def _one_split(setting: Setting) -> Setting:
    """With a personal last layer alone."""
    return replace(setting, splits={"output": setting.splits["output"]})


def plan_people(scale: str) -> Plan:
    """People with phones, and speakers."""
    parts: dict[str, Any] = {"test": 0.3, "validation": 0.14}

    def activities(seed: int) -> mo.FederatedData:
        return mo.data.load("uci_har", features="statistics", per_client=150, **parts, seed=seed)

    def speakers(seed: int) -> mo.FederatedData:
        return average_pixels(mo.data.load("audiomnist", per_client=100, **parts, seed=seed))

    sweep = (Sweep(option="weight_decay", split="output", values=(0.0, 0.1)),)
    return _at_scale(
        scale,
        _tiny("digits", 0.5, sweeps=sweep),
        _dense(
            "uci_har",
            "Activities of people with a phone (UCI HAR), 6 classes, 108 statistics of a window; clients are people.",
            activities,
            108,
            6,
            _dense_stages(),
        ),
        _dense(
            "audiomnist",
            "Spoken digits (AudioMNIST), 10 classes, mel spectrograms of 16 x 16; clients are speakers.",
            speakers,
            256,
            10,
            _dense_stages(),
        ),
    )


def plan_labels(scale: str) -> Plan:
    """Clothes and objects, each dealt at two strengths."""
    return _at_scale(
        scale,
        _one_split(_tiny("digits", 0.1, seeds=1, with_theory=False, with_stateless=False)),
        *(_clothes(alpha) for alpha in (0.1, 1.0)),
        *(_objects(alpha) for alpha in (0.1, 1.0)),
    )


def _clothes(alpha: float) -> Setting:
    def data(seed: int) -> mo.FederatedData:
        fed = mo.data.load("fashion_mnist", clients=300, **_deal(alpha, 200), seed=seed)
        return average_pixels(choose_clients(fed, least=20, count=50))

    title = f"Pictures of clothes (Fashion-MNIST), 14 x 14, 10 classes, each dealt by Dirichlet({alpha:g})."
    return _dense(f"clothes_{alpha:g}", title, data, 196, 10, _label_stages(alpha))


def _label_stages(alpha: float) -> Night:
    """Sizes at which FedAvg converges; in (b) each client is asked 20 times, whatever the cohort.

    Clients of Dirichlet(0.1) have one to three labels. With some of them in a round FedAvg moves by several points
    from round to round, so all take part.
    """
    cohort, personal_rounds = (50, 20) if alpha < 1 else (25, 40)
    return _dense_stages(
        rounds=400, personal_rounds=personal_rounds, cohort=cohort, batch_size=32, momentum=SERVER_MOMENTUM
    )


def _deal(alpha: float, most: int) -> dict[str, Any]:
    """Rows of each label by Dirichlet, so that sizes differ too; no client has more rows than ``most``."""
    partition = mo.data.dirichlet(alpha, balanced=False, min_examples=1)
    return {"partition": partition, "per_client": most, "test_per_client": 40, "validation": 0.2}


def _objects(alpha: float) -> Setting:
    def data(seed: int) -> mo.FederatedData:
        fed = mo.data.load("cifar10", clients=250, **_deal(alpha, 250), seed=seed)
        return average_pixels(average_pixels(choose_clients(fed, least=30, count=50)))

    title = f"Small colour pictures (CIFAR-10), 8 x 8, 10 classes, each dealt by Dirichlet({alpha:g})."
    notes = ["A perceptron on 8 x 8 pixels is a weak model of these pictures; it is one that converges."]
    return _dense(f"objects_{alpha:g}", title, data, 192, 10, _label_stages(alpha), notes)


def plan_roles(scale: str) -> Plan:
    """Roles of Shakespeare's plays, by character."""
    sweeps = (*SWEEPS, DROPOUT)
    title = (
        f"Shakespeare's plays, the next character from the {CONTEXT} before it, each as one of {LETTERS}; clients are"
        " speaking roles."
    )
    tiny = _dense(
        "made_up_letters",
        "The letters of made-up roles: each counts through twelve letters with a step of its own.",
        _load_counting_letters,
        12 * CONTEXT,
        12,
        _tiny_stages(seeds=1, with_stateless=False, with_theory=False, sweeps=(replace(DROPOUT, values=(0.0, 0.3)),)),
    )
    stages = _dense_stages(decay="linear", rounds=500, batch_size=32, sweeps=sweeps)
    return _at_scale(scale, _one_split(tiny), _dense("roles", title, _load_roles, LETTERS * CONTEXT, LETTERS, stages))


def _load_counting_letters(seed: int) -> mo.FederatedData:
    import numpy as np

    rng = mo.random.generator(seed, "made-up letters")
    client = np.repeat(np.arange(1, 5), 30)
    letters = (rng.integers(12, size=(len(client), 1)) + client[:, None] * np.arange(CONTEXT + 1)) % 12
    x = np.eye(12, dtype=np.float32)[letters[:, :-1]].reshape(len(client), -1)
    return mo.data.from_arrays({"x": x, "y": letters[:, -1]}, client, test=0.2, validation=0.16, seed=seed)


def _load_roles(seed: int) -> mo.FederatedData:
    """Rows that do not overlap: the context and the character after it, from roles with at least 100 of them."""
    import numpy as np

    fed = mo.data.load(
        "shakespeare",
        unit="character",
        length=CONTEXT,
        clients=250,
        per_client=500,
        test=0.2,
        validation=0.16,
        seed=seed,
    )
    fed = choose_clients(fed, least=64, count=50)
    x, y = fed.columns["x"], fed.columns["y"][:, -1]
    x = np.eye(LETTERS, dtype=np.float32)[x].reshape(len(x), -1)
    return replace(fed, columns={"x": x, "y": y}, spec={})


def plan_numbers(scale: str) -> Plan:
    """Digits said one after another."""

    def data(seed: int) -> mo.FederatedData:
        small: dict[str, Any] = {"shortest": 2, "longest": 3, "per_client": 50}
        return mo.data.load("connected_digits", **small, test=0.3, validation=0.14, seed=seed)

    sizes = {"vocabulary": 11, "mels": 32, "channels": 32, "width": 32, "blocks": 1, "heads": 2, "feed_forward": 64}
    stages = plan_night(
        decay="linear",
        seeds=6,
        cohort=10,
        batch_size=8,
        rounds=800,
        personal_rounds=40,
        finetune_epochs=3,
        momentum=SERVER_MOMENTUM,
        lr=(0.1, 0.2, 0.4),
        personal_lr=(0.1, 0.3, 0.6),
        finetune_lr=(0.03, 0.1, 0.3),
        pfedme_lr=10.0,
        pfedme_steps=2,
        clip=1.0,
        pilot_seeds=(100,),
        with_stateless=False,
        with_theory=False,
    )
    title = "Spoken digits, two or three after one another (AudioMNIST), transcribed with CTC; clients are speakers."
    tiny_sizes = {**sizes, "mels": 8, "channels": 8, "width": 8, "feed_forward": 16}
    options = {"seeds": 1, "clip": 1.0, "batch_size": 4, "lr": (0.001, 0.002), "with_stateless": False}
    return _at_scale(
        scale,
        _one_split(
            _describe_speech(
                "joined_digits",
                "Handwritten digits (scikit-learn), column by column.",
                _join_digits,
                tiny_sizes,
                _tiny_stages(**options, with_theory=False),
            )
        ),
        _describe_speech("connected_digits", title, data, sizes, stages),
    )


def _join_digits(seed: int) -> mo.FederatedData:
    import numpy as np

    fed = mo.data.load("digits", clients=4, per_client=48, seed=seed)
    x = fed.columns["x"].reshape(-1, 8, 8).transpose(0, 2, 1).reshape(-1, 24, 8)
    columns = {"x": x, "y": fed.columns["y"].reshape(-1, 3) + 1, "frames": np.full(len(x), 24)}
    return mo.data.from_arrays(columns, np.repeat(fed.ids, 16), test=0.3, validation=0.14, seed=seed)


def _describe_speech(
    name: str, title: str, data: Callable[[int], mo.FederatedData], sizes: dict[str, int], stages: Night
) -> Setting:
    notes = [
        "The loss is computed for one client at a time, so this page has fewer seeds and one pilot seed, and leaves out"
        " clients without state, sweeps and the theory (CTC has no second derivative in torch).",
    ]
    setting = describe_transformer(name, title, data, sizes, stages)
    return replace(setting, margin=MARGIN, notes=lambda stages: [*notes, stages.sizes])


def _experiment(name: str, what: str, plan: Callable[[str], Plan], engine: str = "vectorised") -> Experiment[Plan]:
    return Experiment(
        name=name,
        summary=f"The claims of Pillutla et al. 2022 decided: {what}.",
        plan=plan,
        cells=fedalt_night.cells,
        page=fedalt_night_page.page,
        engine=engine,
        night=True,
    )


fedalt_people = _experiment("fedalt-people", "people with phones, and speakers", plan_people)
fedalt_labels = _experiment("fedalt-labels", "clothes and objects dealt by label", plan_labels)
fedalt_roles = _experiment("fedalt-roles", "characters of Shakespeare's roles", plan_roles)
fedalt_numbers = _experiment("fedalt-numbers", "spoken numbers, by word error rate", plan_numbers, "sequential")
