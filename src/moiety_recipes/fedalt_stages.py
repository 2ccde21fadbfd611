"""The runs of Pillutla et al. 2022, section 4: settings, the three stages of training, and learning rates.

Every seed has one run of FedAvg, stage (a). All others start from it: (c) finetuning alone, for each split and for the
whole model; (b) FedAlt and FedSim for each split and pFedMe for the whole model, each with (c) after it. The paper does
not have FedAvg for as many rounds more as (b) has: without it, what a personal part gives is not told apart from what
longer training gives.

A rate is one number, or the best of several on validation rows, as in appendix B.3: a share of each client's training
rows is kept for validation, the rate with the best mean score on them (weighted by their number) is taken, and what is
reported is trained anew on all training rows. Test rows decide nothing. One seed serves; the rate of FedAvg is chosen
first, and all others start from that run. The finetuning of a split is chosen when it is all that is done (stages (a)
and (c)), and is used after FedAlt and FedSim too; those two, pFedMe and the longer FedAvg are chosen at the end of
stage (b), each on its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import moiety as mo
from moiety.experiments import Cell, Cells, Row
from moiety_recipes.tuning import choose_rate

if TYPE_CHECKING:
    from torch import nn

FULL = "full"
"""The name of the split that keeps the whole model personal."""
LONGER = "fedavg-longer"
METHODS = ("fedalt", "fedsim")
"""The methods of stage (b) with a personal part, as ``moiety`` names them."""
Rates = Mapping[str, float]
"""Client learning rates by the steps' names: ``fedavg``, and for each split ``split-method``."""
Splits = Mapping[str, "Callable[[nn.Module], mo.Split]"]
"""Builders of splits by name."""
Families = dict[str, tuple[tuple[float, ...], Callable[[float], "Step"]]]
"""By name, the rates to choose from and the step at a rate; the first is FedAvg, which the others start from."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One option of the finetuning of one split at several values, the first of which is without it (Figure 10).

    ``option`` is ``weight_decay`` of ``moiety.finetune``, ``pull``, the weight of Ditto's penalty (then ``split`` is
    ``full``), or ``dropout``: then the setting's model is made with it.
    """

    option: str
    split: str
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Sizes and rates of the three stages (appendices B.2 and B.3, Table 9) at one scale.

    (a) ``rounds`` of FedAvg; (b) ``personal_rounds`` of FedAlt or FedSim, both parts at one rate; (c)
    ``finetune_epochs`` of the personal part alone, by every client. Clients make one pass over their rows in (a), and
    one for each part in (b). ``clip`` is the largest gradient norm. ``federated`` and ``personalised`` are more options
    of the algorithms of (a) and (b): a server optimiser, a schedule. ``pull`` is the weight of the l2 term of Ditto
    and, where ``pfedme_pull`` is not given, of pFedMe; ``pfedme_lr`` is the rate of pFedMe's shared model and
    ``pfedme_steps`` the number of its steps on a batch. ``stateless`` names the split of Table 13.
    """

    seeds: int
    cohort: int
    batch_size: int
    rounds: int
    personal_rounds: int
    finetune_epochs: int = 5
    lr: tuple[float, ...]
    personal_lr: tuple[float, ...]
    finetune_lr: tuple[float, ...]
    pull: float = 0.1
    pfedme_pull: float | None = None
    pfedme_lr: float = 1.0
    pfedme_steps: int = 5
    clip: float | None = None
    federated: Mapping[str, Any] = field(default_factory=dict)
    personalised: Mapping[str, Any] = field(default_factory=dict)
    stateless: str | None = None
    sweeps: tuple[Sweep, ...] = ()

    def with_rounds(self, rounds: int) -> Stages:
        """That many rounds of (a), and of (b) in the same ratio."""
        return replace(self, rounds=rounds, personal_rounds=max(1, round(rounds * self.personal_rounds / self.rounds)))

    @property
    def sizes(self) -> str:
        """Rounds, cohort and batches, for a note."""
        return (
            f"{self.rounds} rounds of FedAvg, {self.personal_rounds} of FedAlt and FedSim, {self.cohort} clients a"
            f" round, batches of {self.batch_size}, {self.finetune_epochs} epochs of finetuning."
        )


@dataclass(frozen=True, kw_only=True)
class Paper:
    """What the paper prints for the task that is nearest, in the unit of its tables (per cent).

    ``table`` has a row for each split with FT (part.), FedAlt and FedSim (Table 4, or Tables 3 and 11), ``baselines``
    the numbers by method (Table 2), ``final`` the change by the final finetuning of FedAlt and FedSim (Table 12),
    ``stateless`` is as ``table`` (Table 13), ``memory`` in megabytes by split, with ``none`` and ``full`` (Table 10).
    What the paper does not have is left out.
    """

    task: str
    table: Mapping[str, tuple[float | None, float | None, float | None]]
    baselines: Mapping[str, float]
    final: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    stateless: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)


NO_SUCH_TASK = Paper(task="no such task", table={}, baselines={})


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One data set with one model at one scale.

    ``data(seed)`` keeps validation rows apart, which are counted as training rows once the rates are chosen.
    ``model(seed=seed)`` makes the model (with ``dropout=p`` where a sweep asks for it). ``splits`` are the rows of
    the table, from a name (``input``, ``output``, ``adapter``) to a builder. ``fit`` holds more options of
    ``moiety.fit``: loss, metric, inputs. Two scores within ``margin`` of each other (in the metric's own unit)
    count as close. ``notes(stages)`` are printed with the table.
    """

    name: str
    title: str
    data: Callable[[int], mo.FederatedData]
    model: Callable[..., nn.Module]
    splits: Splits
    stages: Stages
    paper: Paper
    margin: float
    fit: Mapping[str, Any] = field(default_factory=dict)
    notes: Callable[[Stages], Sequence[str]] = lambda stages: ()

    def split(self, name: str, model: nn.Module) -> mo.Split:
        """The split of the model that has this name, or that keeps all of it personal."""
        return mo.split.everything(model) if name == FULL else self.splits[name](model)

    @property
    def task_options(self) -> dict[str, Any]:
        """The loss and the inputs, where the setting has its own."""
        return {key: self.fit[key] for key in ("loss", "inputs") if key in self.fit}

    def seeds(self, seeds: Sequence[int]) -> range:
        """Its own number of seeds, from the first one on."""
        return range(seeds[0], seeds[0] + self.stages.seeds)


@dataclass(frozen=True)
class Plan:
    """The settings of one scale."""

    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class Step:
    """One run: an algorithm for ``rounds`` with some or (None) all clients, from where the step ``start`` ended.

    ``split`` names one of the setting's, ``full``, or (None) none: the algorithm shares the whole model. Where
    ``train`` is set the clients are scored on their training rows too. ``dropout`` is put into the model.
    """

    name: str
    algorithm: mo.Algorithm
    split: str | None
    rounds: int
    cohort: int | None
    start: str | None = "fedavg"
    train: bool = False
    dropout: float | None = None


def split_layers() -> Splits:
    """The first layer, the last layer, and residual adapters with the norms (Table 7 for ResNet-18)."""
    return {"input": mo.split.input_layer, "output": mo.split.output_layer, "adapter": mo.split.adapters}


def list_steps(setting: Setting, rates: Rates) -> Iterator[Step]:
    """All runs of one seed."""
    stages = setting.stages
    yield train_together(stages, rates["fedavg"])
    yield train_longer(stages, rates[LONGER])
    yield finetune(stages, FULL, rates[f"{FULL}-finetune"])
    yield ditto(stages, stages.pull, rates[f"{FULL}-finetune"], f"{FULL}-ditto")
    # pFedMe's shared model is finetuned in the end, as the paper has it.
    yield from then_finetune(stages, pfedme(stages, rates[f"{FULL}-pfedme"]), FULL, rates[f"{FULL}-finetune"])
    for split in setting.splits:
        yield finetune(stages, split, rates[f"{split}-finetune"])
        yield from _personalise_both(stages, split, rates)
    if stages.stateless is not None:
        yield from _personalise_both(stages, stages.stateless, rates, stateful=False)
    for sweep in stages.sweeps:
        yield from _list_sweep(stages, sweep, rates)


def local_sgd(stages: Stages, lr: float, epochs: int = 1, **options: Any) -> Any:
    """Local work in the batches and with the clipping of all stages."""
    return mo.sgd(lr, epochs=epochs, batch_size=stages.batch_size, clip=stages.clip, **options)


def train_together(stages: Stages, lr: float) -> Step:
    """Stage (a): one model for all."""
    algorithm = mo.fedavg(shared=local_sgd(stages, lr), **stages.federated)
    return Step("fedavg", algorithm, None, stages.rounds, stages.cohort, start=None, train=True)


def train_longer(stages: Stages, lr: float) -> Step:
    """FedAvg for as many rounds more as stage (b) has, with the options of that stage."""
    algorithm = mo.fedavg(shared=local_sgd(stages, lr), **stages.personalised)
    return Step(LONGER, algorithm, None, stages.personal_rounds, stages.cohort)


def personalise(stages: Stages, split: str, method: str, lr: float, *, stateful: bool = True) -> Step:
    """Stage (b): one pass for each part at one rate."""
    build, work = getattr(mo, method), local_sgd(stages, lr)
    algorithm = build(shared=work, personal=work, stateful=stateful, **stages.personalised)
    name = f"{split}-{method}" + ("" if stateful else "-stateless")
    return Step(name, algorithm, split, stages.personal_rounds, stages.cohort)


def finetune(stages: Stages, split: str, lr: float, start: str = "fedavg", *, weight_decay: float = 0.0) -> Step:
    """Stage (c): the personal part alone, by every client."""
    algorithm = mo.finetune(personal=local_sgd(stages, lr, stages.finetune_epochs, weight_decay=weight_decay))
    name = f"{split}-finetune" if start == "fedavg" else f"{start}-final"
    in_figures = name in (f"{FULL}-finetune", f"{split}-fedalt-final")  # in the figures that have training rows
    return Step(name, algorithm, split, 1, None, start, train=in_figures)


def then_finetune(stages: Stages, step: Step, split: str, lr: float) -> list[Step]:
    """A step of stage (b), and (c) after it."""
    return [step, finetune(stages, split, lr, step.name)]


def _personalise_both(stages: Stages, split: str, rates: Rates, *, stateful: bool = True) -> Iterator[Step]:
    for method in METHODS:
        step = personalise(stages, split, method, rates[f"{split}-{method}"], stateful=stateful)
        yield from then_finetune(stages, step, split, rates[f"{split}-finetune"])


def pfedme(stages: Stages, lr: float) -> Step:
    """Stage (b) for the whole model: every client's own model is pulled towards the shared one."""
    pull = stages.pull if stages.pfedme_pull is None else stages.pfedme_pull
    algorithm = mo.pfedme(
        shared=mo.sgd(stages.pfedme_lr, epochs=1, batch_size=stages.batch_size),
        personal=mo.sgd(lr, steps=stages.pfedme_steps, pull=pull, clip=stages.clip),
        **stages.personalised,
    )
    return Step(f"{FULL}-pfedme", algorithm, None, stages.personal_rounds, stages.cohort)


def ditto(stages: Stages, weight: float, lr: float, name: str, start: str = "fedavg") -> Step:
    """Finetuning with the penalty weight ||v - w||^2, which appendix B.2 prints without 1/2: a pull of twice that."""
    work = local_sgd(stages, lr, stages.finetune_epochs, pull=2 * weight)
    return Step(name, mo.ditto(form="finetune", personal=work), None, 1, None, start)


def _list_sweep(stages: Stages, sweep: Sweep, rates: Rates) -> Iterator[Step]:
    """The finetuning of one split once for each value that no other step has."""
    for value in sweep.values:
        name = name_sweep(stages, sweep, value)
        if name in (f"{sweep.split}-finetune", f"{FULL}-ditto"):
            continue
        if sweep.option == "pull":
            yield ditto(stages, value, rates[f"{FULL}-finetune"], name)
            continue
        decay, dropout = (value, None) if sweep.option == "weight_decay" else (0.0, value)
        step = finetune(stages, sweep.split, rates[f"{sweep.split}-finetune"], weight_decay=decay)
        yield replace(step, name=name, train=False, dropout=dropout)


def name_sweep(stages: Stages, sweep: Sweep, value: float) -> str:
    """The step of one value of a sweep; without the option it is the plain finetuning, with Ditto's own pull Ditto."""
    if value == 0:
        return f"{sweep.split}-finetune"
    if sweep.option == "pull" and value == stages.pull:
        return f"{FULL}-ditto"
    return f"{sweep.split}-{sweep.option}-{value:g}"


def common_families(setting: Setting, *splits: str) -> Families:
    """FedAvg, its longer training, and the finetuning of each split."""
    stages = setting.stages
    return {
        "fedavg": (stages.lr, partial(train_together, stages)),
        LONGER: (stages.personal_lr, partial(train_longer, stages)),
        **{f"{split}-finetune": (stages.finetune_lr, partial(finetune, stages, split)) for split in splits},
    }


def list_families(setting: Setting) -> Families:
    """The steps whose rates are chosen."""
    stages = setting.stages
    return {
        **common_families(setting, FULL, *setting.splits),
        f"{FULL}-pfedme": (stages.personal_lr, partial(pfedme, stages)),
        **{
            f"{split}-{method}": (stages.personal_lr, partial(personalise, stages, split, method))
            for split, method in itertools.product(setting.splits, METHODS)
        },
    }


def cells(
    plan: Plan,
    seeds: Sequence[int],
    *,
    families: Callable[[Setting], Families] = list_families,
    steps: Callable[[Setting, Rates], Iterable[Step]] = list_steps,
    memory: bool = True,
) -> Cells:
    """For each setting: choose the rates, then run all steps of all seeds; the clients' data are the same for each."""
    feds = [setting.data(seeds[0]) for setting in plan.settings]
    for setting, tuning in zip(plan.settings, feds, strict=True):
        rates = yield from _tune(setting, tuning, seeds[0], families(setting))
        fed = tuning.with_validation_in_train()
        for seed, step in itertools.product(setting.seeds(seeds), steps(setting, rates)):
            yield build_cell(setting, fed, step, seed)
        if memory:
            yield Cell(key=(setting.name, "memory"), work=partial(measure_memory, setting, fed, seeds[0]))


def _tune(setting: Setting, fed: mo.FederatedData, seed: int, families: Families) -> Generator[Cell, Row, Rates]:
    """Train without the validation rows at each rate of a family, and score on them; with one rate nothing is run."""
    rates: dict[str, float] = {}
    _, *later = [len(grid) > 1 for grid, _ in families.values()]
    for name, (grid, make) in families.items():
        rows: dict[float, Row] = {}
        if len(grid) > 1 or (name == "fedavg" and any(later)):
            first = None if name == "fedavg" else f"fedavg-{rates['fedavg']:g}"
            for lr in grid:
                step = replace(make(lr), name=f"{name}-{lr:g}", train=False, start=first)
                rows[lr] = yield build_cell(setting, fed, step, seed, tuning=True)
        rates[name] = choose_rate(grid, rows)
    return rates


def build_cell(setting: Setting, fed: mo.FederatedData, step: Step, seed: int, *, tuning: bool = False) -> Cell:
    """The run of a step. The first run of a setting chooses its engine, where that is left open."""
    place: str | int = "tuning" if tuning else seed
    return Cell(
        key=(setting.name, place, step.name),
        fit=partial(fit_options, setting, fed, step, seed, "validation" if tuning else "test"),
        keep=partial(keep, train=step.train and not tuning),
        start=None if step.start is None else (setting.name, place, step.start),
        group=setting.name,
        vectorise=not step.dropout,
    )


def fit_options(setting: Setting, fed: mo.FederatedData, step: Step, seed: int, part: str) -> dict[str, Any]:
    """The arguments of ``moiety.fit``."""
    dropout = {} if step.dropout is None else {"dropout": step.dropout}
    model = setting.model(seed=seed, **dropout)
    return {
        "model": model,
        "data": fed,
        "algorithm": step.algorithm,
        "split": None if step.split is None else setting.split(step.split, model),
        "rounds": step.rounds,
        "cohort": step.cohort,
        "seed": seed,
        "settings": mo.Settings(
            partial=not step.dropout,
            evaluate_on=part,
            evaluate_every=max(10, step.rounds // 8),
            on_divergence="warn",  # a rate that is tried may be too large
        ),
        **setting.fit,
    }


def keep(run: mo.Run, *, train: bool) -> Row:
    """A row per client, on training rows too where asked for."""
    on_train = run.evaluate(part="train") if train else None
    return {"clients": run.clients, "train": on_train, "metric": run.history[-1]["metric_name"]}


def measure_memory(setting: Setting, fed: mo.FederatedData, seed: int) -> Row:
    """Table 10: what one device needs, by split."""
    import torch

    model = setting.model(seed=seed)
    batch = {name: torch.as_tensor(column[:1]) for name, column in fed.at(0).items()}
    splits = {name: setting.split(name, model) for name in setting.splits}
    return {"rows": mo.analysis.memory_rows(model, splits, batch, **setting.task_options)}
