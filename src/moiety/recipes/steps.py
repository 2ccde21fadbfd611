"""The runs behind the tables of Pillutla et al. 2022, in the order in which they are made.

Every seed has one run of FedAvg, stage (a). All others start from it: (c) finetuning alone, for each split and for the
whole model; (b) FedAlt and FedSim for each split and pFedMe for the whole model, each with (c) after it. The paper does
not have FedAvg for as many rounds more as (b) has: without it, what a personal part gives is not told apart from what
longer training gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moiety.recipes.setting import FULL, Setting, Stages, Sweep

if TYPE_CHECKING:
    from moiety.types import Algorithm

Rates = Mapping[str, float]
"""Client learning rates by the steps' names: ``fedavg``, and for each split ``split-method``."""

LONGER = "fedavg-longer"


@dataclass(frozen=True)
class Step:
    """One run: an algorithm for ``rounds`` with some or (None) all clients, from where the step ``start`` ended.

    ``split`` names one of the setting's, ``full``, or (None) none: the algorithm shares the whole model. Where
    ``train`` is set the clients are scored on their training rows too. ``dropout`` is put into the model.
    """

    name: str
    algorithm: Algorithm
    split: str | None
    rounds: int
    cohort: int | None
    start: str | None = "fedavg"
    train: bool = False
    dropout: float | None = None


def steps(setting: Setting, rates: Rates) -> list[Step]:
    """All runs of one seed."""
    stages = setting.stages
    made = [federated(stages, rates["fedavg"]), continued(stages, rates[LONGER])]
    made += [finetuned(stages, FULL, rates[f"{FULL}-finetune"]), _ditto(stages, stages.pull, rates, f"{FULL}-ditto")]
    # pFedMe's shared model is finetuned in the end, as the paper has it.
    made += [pfedme(stages, rates[f"{FULL}-pfedme"])]
    made += [finetuned(stages, FULL, rates[f"{FULL}-finetune"], made[-1].name)]
    for split in setting.splits:
        made.append(finetuned(stages, split, rates[f"{split}-finetune"]))
        for method in ("fedalt", "fedsim"):
            made += _personalised_then_finetuned(stages, split, method, rates)
    if stages.stateless is not None:
        for method in ("fedalt", "fedsim"):
            made += _personalised_then_finetuned(stages, stages.stateless, method, rates, stateful=False)
    for sweep in stages.sweeps:
        made += _swept(stages, sweep, rates)
    return made


def federated(stages: Stages, lr: float, name: str = "fedavg") -> Step:
    """Stage (a): one model for all."""
    import moiety as mo

    algorithm = mo.fedavg(lr=lr, epochs=1, batch_size=stages.batch_size, **stages.federated)
    return Step(name, algorithm, None, stages.rounds, stages.cohort, start=None, train=True)


def continued(stages: Stages, lr: float) -> Step:
    """FedAvg for as many rounds more as stage (b) has, with the options of that stage."""
    import moiety as mo

    algorithm = mo.fedavg(lr=lr, epochs=1, batch_size=stages.batch_size, **stages.personalised)
    return Step(LONGER, algorithm, None, stages.personal_rounds, stages.cohort)


def personalised(stages: Stages, split: str, method: str, lr: float, *, stateful: bool = True) -> Step:
    """Stage (b): one pass for each part at one rate."""
    import moiety as mo

    options = {"batch_size": stages.batch_size, "stateful": stateful, **stages.personalised}
    if method == "fedalt":
        algorithm = mo.fedalt(shared_lr=lr, personal_lr=lr, shared_epochs=1, personal_epochs=1, **options)
    else:
        algorithm = mo.fedsim(shared_lr=lr, personal_lr=lr, epochs=1, **options)
    name = f"{split}-{method}" + ("" if stateful else "-stateless")
    return Step(name, algorithm, split, stages.personal_rounds, stages.cohort)


def finetuned(stages: Stages, split: str, lr: float, start: str = "fedavg") -> Step:
    """Stage (c): the personal part alone, by every client."""
    import moiety as mo

    algorithm = mo.finetune(lr=lr, epochs=stages.finetune_epochs, batch_size=stages.batch_size, **stages.finetuned)
    name = f"{split}-finetune" if start == "fedavg" else f"{start}-final"
    shown = name in (f"{FULL}-finetune", f"{split}-fedalt-final")  # in the figures that have training rows
    return Step(name, algorithm, split, 1, None, start, train=shown)


def _personalised_then_finetuned(
    stages: Stages, split: str, method: str, rates: Rates, *, stateful: bool = True
) -> list[Step]:
    trained = personalised(stages, split, method, rates[f"{split}-{method}"], stateful=stateful)
    return [trained, finetuned(stages, split, rates[f"{split}-finetune"], trained.name)]


def pfedme(stages: Stages, lr: float) -> Step:
    """Stage (b) for the whole model: every client's own model is pulled towards the shared one."""
    import moiety as mo

    pull = stages.pull if stages.pfedme_pull is None else stages.pfedme_pull
    options: dict[str, Any] = {"pull": pull, "inner_steps": stages.pfedme_steps, "batch_size": stages.batch_size}
    algorithm = mo.pfedme(lr=stages.pfedme_lr, personal_lr=lr, epochs=1, **options, **stages.personalised)
    return Step(f"{FULL}-pfedme", algorithm, None, stages.personal_rounds, stages.cohort)


def _ditto(stages: Stages, pull: float, rates: Rates, name: str) -> Step:
    import moiety as mo

    lr, epochs = rates[f"{FULL}-finetune"], stages.finetune_epochs
    options = {"batch_size": stages.batch_size, **stages.finetuned}
    algorithm = mo.ditto(form="finetune", personal_lr=lr, personal_epochs=epochs, pull=pull, **options)
    return Step(name, algorithm, None, 1, None)


def _swept(stages: Stages, sweep: Sweep, rates: Rates) -> list[Step]:
    """The finetuning of one split once for each value that no other step has."""
    import moiety as mo

    made = []
    for value in sweep.values:
        name = swept_name(stages, sweep, value)
        if name in (f"{sweep.split}-finetune", f"{FULL}-ditto"):
            continue
        if sweep.option == "pull":
            made.append(_ditto(stages, value, rates, name))
            continue
        options = {"batch_size": stages.batch_size, **stages.finetuned}
        options |= {"weight_decay": value} if sweep.option == "weight_decay" else {}
        lr = rates[f"{sweep.split}-finetune"]
        algorithm = mo.finetune(lr=lr, epochs=stages.finetune_epochs, **options)
        dropout = value if sweep.option == "dropout" else None
        made.append(Step(name, algorithm, sweep.split, 1, None, dropout=dropout))
    return made


def swept_name(stages: Stages, sweep: Sweep, value: float) -> str:
    """The step of one value of a sweep; without the option it is the plain finetuning, with Ditto's own pull Ditto."""
    if value == 0:
        return f"{sweep.split}-finetune"
    if sweep.option == "pull" and value == stages.pull:
        return f"{FULL}-ditto"
    return f"{sweep.split}-{sweep.option}-{value:g}"
