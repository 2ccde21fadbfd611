"""The runs behind the verdicts on Pillutla et al. 2022: rates found on other seeds, converged starts, equal training.

The stages are those of ``fedalt_stages``. What is added:

- Rates, and the weight of Ditto's penalty, are chosen by the mean validation score of ``pilot_seeds``, which are not
  among the seeds that are reported. Every method has a grid of the same length. Where the best value is the last or the
  first of its grid, the search goes on in that direction (``tuning.widen``). The final finetuning has a rate of its own
  after each method.
- Step (a) has converged where twice its rounds, under the same schedule stretched, gain at most one margin on
  validation rows. The page says whether that is so.
- "Trained as long": FedAvg goes on for as many rounds as (b) has, and Finetune, Ditto and FT (part.) start from there
  too. pFedMe has these rounds anyway.
- Clients without state are evaluated by the authors' rule, for all splits. Regularisers of the personal part are swept
  on FedAlt itself, at the end of (b).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import moiety as mo
from moiety.experiments import Cell, Cells, Row
from moiety_recipes.fedalt_stages import (
    FULL,
    LONGER,
    METHODS,
    Plan,
    Rates,
    Setting,
    Stages,
    Step,
    Sweep,
    build_cell,
    ditto,
    finetune,
    keep,
    list_families,
    local_sgd,
    measure_memory,
    personalise,
    pfedme,
    then_finetune,
    train_longer,
    train_together,
)
from moiety_recipes.tuning import MORE_VALUES, average_metric, choose_rate, compare_rates, widen

DEAL = 0
"""The seed of the deal: clients and their rows are the same in all runs."""
TWICE = "fedavg-twice"
DITTO = f"{FULL}-ditto"
SWEPT = "{}-fedalt-{}-{:g}"
"""The step of one value of a sweep on FedAlt, by split, option and value."""
LADDER = (1e-4, 3e-4, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""The values that a search takes where it goes beyond its grid."""


@dataclass(frozen=True, kw_only=True)
class Night(Stages):
    """Sizes of scale ``night``; ``decay`` names the schedule, ``weights`` are those tried for Ditto's penalty.

    ``momentum`` is the server's in (a). In (b), and in FedAvg trained as long, the server takes the plain mean. A
    search tries at most ``more_values`` beyond its grid.
    """

    decay: str
    momentum: float = 0.0
    more_values: int = MORE_VALUES
    pilot_seeds: tuple[int, ...] = (100, 101)
    weights: tuple[float, ...] = (0.01, 0.1, 1.0)
    with_stateless: bool = True
    with_theory: bool = True

    def with_rounds(self, rounds: int) -> Night:
        """That many rounds of (a), of (b) in the same ratio, and schedules of the same shape."""
        night = super().with_rounds(rounds)
        assert isinstance(night, Night)
        return night.with_schedules()

    def with_schedules(self) -> Night:
        """With the schedules that fit its rounds, and the server's momentum in (a)."""
        first, second = make_schedules(self.decay, self.rounds, self.personal_rounds)
        server = {"server": mo.server.sgd(momentum=self.momentum)} if self.momentum else {}
        return replace(self, federated={"schedule": first, **server}, personalised={"schedule": second})

    @property
    def sizes(self) -> str:
        """Rounds, cohort and batches, for a note."""
        more = f" The server has momentum {self.momentum:g} in FedAvg's own rounds." if self.momentum else ""
        return super().sizes + more


def make_schedules(decay: str, rounds: int, personal_rounds: int) -> tuple[Any, Any]:
    """The paper's: linear with a tenth of warm-up, or halved after each quarter of (a), and not within (b)."""
    if decay == "linear":
        return mo.schedule.linear(warmup=0.1), mo.schedule.linear(warmup=0.1)
    halve = [max(1, rounds // 4), max(1, personal_rounds)]
    first, second = (mo.schedule.exponential(halve_every=every) for every in halve)
    return first, second


def plan_night(**sizes: Any) -> Night:
    """The stages with their schedules."""
    return Night(**sizes).with_schedules()


def stages_of(setting: Setting) -> Night:
    """The stages of a setting that is planned for the night."""
    assert isinstance(setting.stages, Night)
    return setting.stages


def list_grids(setting: Setting) -> dict[str, tuple[float, ...]]:
    """What is tuned, with the values that each search begins with: all rates, and the weight of Ditto's penalty."""
    stages = stages_of(setting)
    grids = {name: grid for name, (grid, _) in list_families(setting).items()}
    finals = {f"{name}-final": stages.finetune_lr for name in list_methods(setting)}
    return {**grids, DITTO: stages.weights, **finals}


def list_methods(setting: Setting) -> dict[str, tuple[str, str]]:
    """The steps of (b) that end with a finetuning, each with its split and its method."""
    pairs = [(FULL, "pfedme"), *itertools.product(setting.splits, METHODS)]
    steps = {f"{split}-{method}": (split, method) for split, method in pairs}
    stateless = pairs[1:] if stages_of(setting).with_stateless else []
    return steps | {f"{split}-{method}-stateless": (split, method) for split, method in stateless}


def list_steps(setting: Setting, rates: Rates) -> Iterator[Step]:
    """All runs of one seed."""
    stages = stages_of(setting)
    yield train_together(stages, rates["fedavg"])
    yield train_longer(stages, rates[LONGER])
    full = rates[f"{FULL}-finetune"]
    for start, suffix in (("fedavg", ""), (LONGER, "-longer")):
        yield replace(finetune(stages, FULL, full, start), name=f"{FULL}-finetune{suffix}", train=start == "fedavg")
        yield ditto(stages, rates[DITTO], full, f"{DITTO}{suffix}", start)
    yield from then_finetune(stages, pfedme(stages, rates[f"{FULL}-pfedme"]), FULL, rates[f"{FULL}-pfedme-final"])
    for split in setting.splits:
        yield from _list_split(stages, split, rates)
    for sweep in stages.sweeps:
        yield from _list_sweep(stages, sweep, rates)


def _list_split(stages: Night, split: str, rates: Rates) -> Iterator[Step]:
    """FT (part.) from both starts; FedAlt and FedSim, with state and without, each with the final finetuning."""
    lr = rates[f"{split}-finetune"]
    yield finetune(stages, split, lr)
    yield replace(finetune(stages, split, lr, LONGER), name=f"{split}-finetune-longer")
    for method in METHODS:
        step = personalise(stages, split, method, rates[f"{split}-{method}"])
        yield from then_finetune(stages, step, split, rates[f"{step.name}-final"])
        if stages.with_stateless:
            step = personalise_anew(stages, split, method, rates)
            yield from then_finetune(stages, step, split, rates[f"{step.name}-final"])


def personalise_anew(stages: Night, split: str, method: str, rates: Rates) -> Step:
    """Stage (b) for clients without state, by the authors' rule, at the rate of those with state."""
    lr = rates[f"{split}-{method}"]
    work = local_sgd(stages, lr)
    algorithm = getattr(mo, method)(shared=work, personal=work, restart=True, **stages.personalised)
    return replace(personalise(stages, split, method, lr), name=f"{split}-{method}-stateless", algorithm=algorithm)


def _list_sweep(stages: Night, sweep: Sweep, rates: Rates) -> Iterator[Step]:
    """FedAlt once for each value but the first: the option is of the personal part alone, in the personal phase."""
    lr = rates[f"{sweep.split}-fedalt"]
    for value in sweep.values[1:]:
        # The penalty value ||v - v_0||^2 has no 1/2 in the authors' program: a pull of twice that.
        options: dict[str, Any] = {"weight_decay": {"weight_decay": value}, "pull": {"pull": 2 * value}, "dropout": {}}[
            sweep.option
        ]
        algorithm = mo.fedalt(
            shared=local_sgd(stages, lr), personal=local_sgd(stages, lr, **options), **stages.personalised
        )
        step = personalise(stages, sweep.split, "fedalt", lr)
        dropout = value if sweep.option == "dropout" else None
        yield replace(step, name=SWEPT.format(sweep.split, sweep.option, value), algorithm=algorithm, dropout=dropout)


def sweep_steps(sweep: Sweep) -> dict[float, str]:
    """The step of each value of a sweep; without the option it is FedAlt at the end of (b)."""
    names = {value: SWEPT.format(sweep.split, sweep.option, value) for value in sweep.values[1:]}
    return {sweep.values[0]: f"{sweep.split}-fedalt", **names}


def cells(plan: Plan, seeds: Sequence[int]) -> Cells:
    """For each setting: the pilot, then all steps of all seeds, then what a device needs."""
    feds = [setting.data(DEAL) for setting in plan.settings]
    for setting, tuning in zip(plan.settings, feds, strict=True):
        rates = yield from _tune(setting, tuning)
        fed = tuning.with_validation_in_train()
        for seed in setting.seeds(seeds):
            steps = list(list_steps(setting, rates))
            starts = {step.start for step in steps}
            for step in steps:
                cell = replace(build_cell(setting, fed, step, seed), stored=step.name in starts)
                asks = step.name == "fedavg" and seed == seeds[0] and stages_of(setting).with_theory
                if asks:
                    cell = replace(cell, keep=partial(_keep_with_theory, setting, fed))
                yield cell
        yield Cell(key=(setting.name, "memory"), work=partial(measure_memory, setting, fed, seeds[0]))


def _keep_with_theory(setting: Setting, fed: mo.FederatedData, run: mo.Run) -> Row:
    return {**keep(run, train=True), "theory": ask_theory(setting, fed, run)}


def ask_theory(setting: Setting, fed: mo.FederatedData, run: mo.Run) -> Row:
    """What ``moiety.advise`` says of every split where stage (b) begins."""
    stages, model = stages_of(setting), run.export()
    sizes: dict[str, Any] = {"cohort": stages.cohort, "rounds": stages.personal_rounds, "batch_size": stages.batch_size}
    answers = {}
    for name in setting.splits:
        split = setting.split(name, model)
        advice = mo.advise(model, fed, split=split, **sizes, **setting.task_options)
        answers[name] = {"better": advice.better, "factor": advice.factor, "low": advice.low, "high": advice.high}
        answers[name]["chi"] = advice.chi
    return answers


def pilot_key(setting: Setting, seed: int, name: str) -> tuple[str | int, ...]:
    """The cell of a run without the validation rows, scored on them."""
    return (setting.name, "tuning", seed, name)


def _pilot_cells(
    setting: Setting, fed: mo.FederatedData, step: Step, start: str | None, *, stored: bool
) -> Generator[Cell, Row, list[Row]]:
    rows = []
    for seed in stages_of(setting).pilot_seeds:
        cell = build_cell(setting, fed, replace(step, train=False), seed, tuning=True)
        begin = None if start is None else pilot_key(setting, seed, start)
        cell = replace(cell, key=pilot_key(setting, seed, step.name), start=begin, keep=_keep_curve)
        rows.append((yield replace(cell, stored=stored)))
    return rows


def _keep_curve(run: mo.Run) -> Row:
    curve = [[row["round"], row["metric"]] for row in run.history if row.get("metric") is not None]
    return {**keep(run, train=False), "curve": curve}


def _tune(setting: Setting, fed: mo.FederatedData) -> Generator[Cell, Row, Rates]:
    """Choose all that is tuned on validation rows; and train FedAvg for twice its rounds at the rate it got."""
    rates: dict[str, float] = {}
    stages, methods = stages_of(setting), list_methods(setting)

    def search(name: str, make: Callable[[float], Step], start: str | None) -> Generator[Cell, Row, None]:
        stored = start is None or name in methods
        rates[name] = yield from _search(setting, fed, name, make, start, stored=stored)

    families = list_families(setting)
    yield from search("fedavg", families.pop("fedavg")[1], None)
    twice = replace(train_together(stages.with_rounds(2 * stages.rounds), rates["fedavg"]), name=TWICE)
    yield from _pilot_cells(setting, fed, twice, None, stored=True)
    first = f"fedavg-{rates['fedavg']:g}"
    for name, (_, make) in families.items():
        yield from search(name, make, first)
    yield from search(DITTO, lambda weight: ditto(stages, weight, rates[f"{FULL}-finetune"], DITTO), first)
    for name, (split, method) in methods.items():
        if name in rates:
            start = f"{name}-{rates[name]:g}"
        else:  # clients without state have the rate of those with it
            start = name
            yield from _pilot_cells(setting, fed, personalise_anew(stages, split, method, rates), first, stored=True)
        yield from search(f"{name}-final", partial(finetune, stages, split, start=name), start)
    return rates


def _search(
    setting: Setting,
    fed: mo.FederatedData,
    name: str,
    make: Callable[[float], Step],
    start: str | None,
    *,
    stored: bool,
) -> Generator[Cell, Row, float]:
    """Try the values of a grid, and go on beyond its end while the best is there."""
    rows: dict[float, Row] = {}
    grid = list_grids(setting)[name]
    values = list(grid)
    while values:
        value = values.pop(0)
        step = replace(make(value), name=f"{name}-{value:g}")
        rows[value] = merge((yield from _pilot_cells(setting, fed, step, start, stored=stored)))
        if not values and len(rows) < len(grid) + stages_of(setting).more_values:
            values = widen(compare_rates(rows), LADDER)
    return choose_rate(sorted(rows), rows)


def merge(rows: Sequence[Row]) -> Row:
    """The rows of several seeds as one: its score is the mean of theirs, since the clients are the same."""
    return {"metric": rows[0]["metric"], "clients": [client for row in rows for client in row["clients"]]}


@dataclass(frozen=True)
class Pilot:
    """What the pilot seeds say: validation scores of all that was tried, by family and value."""

    setting: Setting
    results: Mapping[Any, Row]

    def _merge_rows(self, name: str) -> Row:
        return merge([self.results[pilot_key(self.setting, s, name)] for s in stages_of(self.setting).pilot_seeds])

    def list_search_rows(self, name: str) -> dict[float, Row]:
        """The rows of all values that were tried, as the search went."""
        grid = list_grids(self.setting)[name]
        rows = {value: self._merge_rows(f"{name}-{value:g}") for value in grid}
        while len(rows) < len(grid) + stages_of(self.setting).more_values and (
            more := widen(compare_rates(rows), LADDER)
        ):
            rows[more[0]] = self._merge_rows(f"{name}-{more[0]:g}")
        return dict(sorted(rows.items()))

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """Validation scores by family and value."""
        return {
            name: {f"{value:g}": average_metric(row) for value, row in self.list_search_rows(name).items()}
            for name in list_grids(self.setting)
        }

    @property
    def rates(self) -> dict[str, float]:
        """The value that was chosen in each family."""
        rows = {name: self.list_search_rows(name) for name in list_grids(self.setting)}
        return {name: choose_rate(list(some), some) for name, some in rows.items()}

    def best(self, name: str) -> float:
        """The validation score of a family at the value that was chosen."""
        return self.scores[name][f"{self.rates[name]:g}"]

    @property
    def more(self) -> float:
        """What twice the rounds of FedAvg gain on validation rows, in the metric's own unit and direction."""
        return average_metric(self._merge_rows(TWICE)) - self.best("fedavg")

    @property
    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """FedAvg on validation rows of the first pilot seed, for its rounds and for twice as many."""
        seed = stages_of(self.setting).pilot_seeds[0]
        names = {"FedAvg": f"fedavg-{self.rates['fedavg']:g}", "twice the rounds": TWICE}
        keys = {title: pilot_key(self.setting, seed, name) for title, name in names.items()}
        return {title: [(p[0], p[1]) for p in self.results[key]["curve"]] for title, key in keys.items()}
