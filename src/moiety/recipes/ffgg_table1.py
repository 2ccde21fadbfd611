"""FFGG with input, output and adapter personalisation against FedAvg (Mishchenko et al. 2023, section 3.3, Table 1).

The paper takes over data sets, models and sizes of Pillutla et al. 2022, and so does this recipe from ``fedalt-images``
and ``fedalt-text``: writers and clothes take the place of FEMNIST, Shakespeare's plays that of Stack Overflow. GLDv2 is
not at hand, and the table has no speech. Its Table 2 has the sizes and rates of Table 9 of Pillutla et al.

Three stages, as in appendix E.3: FedAvg; then Local FFGG (Algorithm 4), which is what Table 1 shows, with one
epoch on the personal part, then one in turns on both; then finetuning of the personal part. Beside it run, from the
same FedAvg, what the paper does not show: FFGG as in Algorithm 1 (one gradient of the shared part a round), finetuning
alone, and FedAvg for as many rounds more.

One departure: section 3.3 says that clients draw their personal part at random each time. Here it starts from what
FedAvg gave, as E.3 can be read (the trained model initialises the personalised training): an output layer of 62 classes
with random weights would hardly move in one epoch at the paper's rate of 0.01.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moiety.recipes.base import Outcome, Watch, unwatched
from moiety.recipes.fedalt_images import settings as image_settings
from moiety.recipes.fedalt_text import settings as text_settings
from moiety.recipes.partial_summary import Found
from moiety.recipes.partial_table import asked_for, keep_asked
from moiety.recipes.rates import Chosen
from moiety.recipes.running import Ended, Runner
from moiety.recipes.setting import Setting, Stages
from moiety.recipes.steps import LONGER, Rates, Step, continued, federated, finetuned

if TYPE_CHECKING:
    from moiety.data import FederatedData

NAME = "ffgg-table1"
LAPTOP: dict[str, dict[str, Any]] = {
    "chars74k": {"lr": (0.3,), "personal_lr": (0.03,), "personal_rounds": 6},
    "fashion_mnist": {"lr": (0.3,), "personal_lr": (0.1,), "personal_rounds": 6},
    "shakespeare": {"lr": (2.0,), "personal_lr": (0.3,), "personal_rounds": 4},
}
"""The rates that ``fedalt-images`` and ``fedalt-text`` chose on validation rows for FedAvg, and for FedAlt (with most
splits); and fewer rounds, so that all ends in minutes."""


def ffgg_table1(
    *,
    out: Path | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    engine: str | None = None,
    resume: bool = False,
    watch: Watch = unwatched,
    scale: str | None = None,
) -> Outcome:
    """FFGG with a personal input layer, output layer or adapters against FedAvg, on handwriting, clothes and words.

    The arguments are those of ``partial_table``.
    """
    from moiety.engines.auto import check_engine
    from moiety.recipes.ffgg_table1_report import report

    asked = asked_for(out, {"recipe": NAME, "scale": scale, "rounds": rounds, "seed": seed}, resume)
    made = [replace(s, stages=s.stages.with_rounds(asked["rounds"])) for s in settings(asked["scale"])]
    check_engine(engine or "auto")
    data = [setting.data(asked["seed"]) for setting in made]  # before anything is written: it may not be at hand
    keep_asked(out, asked)
    found = [_run(each, fed, asked["seed"], out, engine, watch) for each, fed in zip(made, data, strict=True)]
    text, sentence = report(NAME, asked, found, out)
    return Outcome({}, sentence, text)


def settings(scale: str) -> list[Setting]:
    """Those of ``fedalt-images`` and ``fedalt-text``, without what their tables have besides; three seeds at most."""
    made = []
    for setting in (*image_settings(scale), *text_settings(scale)):
        stages = replace(setting.stages, seeds=min(3, setting.stages.seeds), stateless=None, sweeps=())
        stages = replace(stages, **(LAPTOP[setting.name] if scale == "laptop" else {}))
        made.append(replace(setting, stages=stages, notes=_notes(stages, scale)))
    return made


def _notes(stages: Stages, scale: str) -> list[str]:
    taken = (
        "Rates of FedAvg and of FFGG are those that the recipes fedalt-images and fedalt-text chose for FedAvg and"
        " FedAlt; those of finetuning are chosen here."
    )
    return [
        *([taken] if scale == "laptop" else []),
        f"{stages.rounds} rounds of FedAvg, {stages.personal_rounds} of FFGG, {stages.cohort} clients a round, batches"
        f" of {stages.batch_size}, {stages.finetune_epochs} epochs of finetuning.",
        "FFGG is Local FFGG (Algorithm 4), which the paper's Table 1 shows, with finetuning after it. Algorithm 1 makes"
        " one gradient step of the shared part a round, on all of a client's rows and at FedAvg's rate.",
        "Personal parts start from FedAvg's values, each time a client is asked; the paper speaks of random ones.",
        "Data, model and splits are those of the recipes fedalt-images and fedalt-text, whose pages say more of them.",
    ]


def choose(setting: Setting, runner: Runner) -> Chosen:
    """Rates on validation rows, as in ``rates.choose``; Algorithm 1 takes those of FedAvg and of Local FFGG."""
    stages, found = setting.stages, Chosen()
    base = found.best(runner, "fedavg", stages.lr, partial(federated, stages))
    later: dict[str, tuple[tuple[float, ...], Callable[[float], Step]]] = {}
    later[LONGER] = stages.personal_lr, partial(continued, stages)
    for split in setting.splits:
        later[f"{split}-finetune"] = stages.finetune_lr, partial(finetuned, stages, split)
        later[f"{split}-local_ffgg"] = stages.personal_lr, partial(local_ffgg, stages, split)
    if any(len(rates) > 1 for rates, _ in later.values()):
        runner.run(base)
    for name, (rates, make) in later.items():
        found.best(runner, name, rates, lambda lr, make=make: replace(make(lr), start=base.name))  # type: ignore[misc]
    found.seconds = sum(ended.seconds for ended in runner.ended.values())
    return found


def steps(setting: Setting, rates: Rates) -> list[Step]:
    """All runs of one seed."""
    stages = setting.stages
    made = [federated(stages, rates["fedavg"]), continued(stages, rates[LONGER])]
    for split in setting.splits:
        tune = rates[f"{split}-finetune"]
        made.append(finetuned(stages, split, tune))
        lr = rates[f"{split}-local_ffgg"]
        for trained in (local_ffgg(stages, split, lr), ffgg(stages, split, rates["fedavg"], lr)):
            made += [trained, finetuned(stages, split, tune, trained.name)]
    return made


def local_ffgg(stages: Stages, split: str, lr: float) -> Step:
    """Algorithm 4 as in section 3.3: one epoch on the personal part, then one in turns on both, all at one rate."""
    import moiety as mo

    options: dict[str, Any] = {"batch_size": stages.batch_size, **stages.personalised}
    solver = _solver(stages, lr)
    algorithm = mo.local_ffgg(shared_lr=lr, personal_lr=lr, solver=solver, epochs=1, **options)
    return Step(f"{split}-local_ffgg", algorithm, split, stages.personal_rounds, stages.cohort)


def ffgg(stages: Stages, split: str, lr: float, personal_lr: float) -> Step:
    """Algorithm 1 with the same epoch on the personal part; it has no place for a largest gradient norm."""
    import moiety as mo

    options = {key: value for key, value in stages.personalised.items() if key != "clip"}
    algorithm = mo.ffgg(lr=lr, solver=_solver(stages, personal_lr), **options)
    return Step(f"{split}-ffgg", algorithm, split, stages.personal_rounds, stages.cohort)


def _solver(stages: Stages, lr: float) -> Any:
    import moiety as mo

    return mo.sgd(lr, epochs=1, batch_size=stages.batch_size, clip=stages.personalised.get("clip"))


def _run(
    setting: Setting, tuned: FederatedData, seed: int, out: Path | None, engine: str | None, watch: Watch
) -> Found:
    """Choose the rates, then run all steps of all seeds; the clients' data are the same for each."""
    folder = None if out is None else out / setting.name

    def runner(name: str, data: FederatedData, each: int, label: str, part: str) -> Runner:
        return Runner(
            setting, data, each, folder and folder / name, engine, watch, f"{setting.name} {label}", part=part
        )

    tuning = runner("tuning", tuned, seed, "tuning", "validation")
    chosen, data = choose(setting, tuning), tuned.with_validation_in_train()
    engine = tuning.engine
    seeds: dict[int, dict[str, Ended]] = {}
    for each in range(seed, seed + setting.stages.seeds):
        own = runner(f"seed-{each}", data, each, f"seed {each}", "test")
        seeds[each] = {step.name: own.run(step) for step in steps(setting, chosen.rates)}
        engine = own.engine
    return Found(setting, chosen, seeds, [], folder)
