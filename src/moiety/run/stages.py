"""The stages of a pipeline: what each is made of, the splits they end up with, and how a file says it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from moiety.data import FederatedData
from moiety.errors import kind, must, near, whole
from moiety.run import folder as files
from moiety.run.build import algorithm_from, split_from
from moiety.run.checks import check_numbers, check_split
from moiety.spec import Spec, spec_of
from moiety.split import Split
from moiety.types import Algorithm, Task


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline; ``stage`` makes it."""

    algorithm: Algorithm
    rounds: int
    cohort: int | None
    split: Split | str | Spec | Callable[[Any], Split] | None
    evaluate_every: int | None
    checkpoint_every: int | None

    def numbers(self) -> dict[str, int | None]:
        """The options that ``fit`` takes as they are."""
        names = ("rounds", "cohort", "evaluate_every", "checkpoint_every")
        return {name: getattr(self, name) for name in names}


def stage(
    algorithm: Algorithm,
    *,
    rounds: int,
    cohort: int | None = None,
    split: Split | str | Spec | Callable[[Any], Split] | None = None,
    evaluate_every: int | None = None,
    checkpoint_every: int | None = None,
) -> Stage:
    """One stage of a pipeline.

    Args:
        algorithm: what a builder such as ``moiety.fedalt`` made.
        rounds: how many rounds to train.
        cohort: how many clients are asked in a round; all by default.
        split: a builder's name, a table such as ``{"name": "adapters", "width": 16}``, or a function of the model: each
            is made on the model as trained so far. A ``Split`` will do where the model has its names. By default the
            split of the stage before goes on, where it has something personal and the algorithm can work with it; else
            the algorithm's own. The table of the stage before goes on with its split as well.
        evaluate_every: rounds between evaluations; by default a twentieth of the stage.
        checkpoint_every: rounds between checkpoints; by default as evaluations.

    Returns:
        The stage, for ``moiety.pipeline``.
    """
    kind("algorithm", algorithm, Algorithm, "what a builder such as moiety.fedalt made")
    numbers = {"rounds": rounds, "cohort": cohort}
    numbers |= {"evaluate_every": evaluate_every, "checkpoint_every": checkpoint_every}
    for name, value in numbers.items():
        if value is not None or name == "rounds":
            whole(name, value, 1)
    fits = split is None or callable(split) or isinstance(split, Split | str | dict)
    must(fits, "split", "a name, a table, a function of the model, or a Split", repr(split))
    return Stage(algorithm, rounds, cohort, split, evaluate_every, checkpoint_every)


def split_of(number: int, each: Stage, model: nn.Module | Task, before: Split | None) -> Split:
    """The split of a stage, made on the model as it is then; ``before`` is that of the stage before."""
    wanted, name = each.split, f"stage.{number}.split"
    personal = before is not None and bool(before.trained_personal)
    if wanted is None and personal and each.algorithm.needs in ("any", "personal"):
        wanted = before
    wanted = each.algorithm.default_split if wanted is None else wanted
    must(wanted is not None, name, f"given for {each.algorithm.name}", "nothing", 'As in split="output_layer".')
    if isinstance(wanted, str | dict):
        table = {"name": wanted} if isinstance(wanted, str) else wanted
        if before is not None and before.spec == table:
            wanted = before
        else:
            hint = "Give a Split or a function of the task."
            must(isinstance(model, nn.Module), name, "no name where the model is a Task", table.get("name"), hint)
            wanted = split_from(table, cast(nn.Module, model), name)
    if callable(wanted):
        wanted = wanted(model)
        kind(name, wanted, Split, "a function that gives a Split")
    assert isinstance(wanted, Split)
    if wanted is not before:
        known = {*model.init} if isinstance(model, Task) else {n for n, _ in _named(wanted.model or model)}
        got = f"one with other names, {_odd(known, wanted)} for one"
        hint = "Give a name, a table or a function of the model, so that it is made on the model of that stage."
        must(known == wanted.sizes.keys(), name, "made for the model of that stage", got, hint)
    check_split(each.algorithm, wanted)
    return wanted


def _named(module: nn.Module) -> list[tuple[str, Any]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _odd(known: set[str], split: Split) -> str:
    return next(iter(sorted(known ^ split.sizes.keys())), "")


def check_ahead(stages: Sequence[Stage], model: nn.Module | Task, data: FederatedData, seed: int) -> Split:
    """Find what is wrong with any stage before hours of training; the split of the first.

    Splits are made on the untrained model for it, up to a later one that is a function of the user's own, which may
    look at trained values.
    """
    made: list[Split] = []
    for number, each in enumerate(stages, 1):
        cohort = len(data) if each.cohort is None else each.cohort
        must(cohort <= len(data), f"stage.{number}.cohort", f"<= {len(data)}, the number of clients", cohort)
        check_numbers(data, each.rounds, cohort, seed, {})
    for number, each in enumerate(stages, 1):
        if callable(each.split) and number > 1:
            break
        before = made[-1] if made else None
        split = split_of(number, each, model, before)
        grown = isinstance(each.split, Split) and split.model is not None and number > 1 and split is not before
        hint = 'Give a table, as in split={"name": "adapters"}.'
        must(not grown, f"stage.{number}.split", "made on the trained model", "one of the untrained model", hint)
        model = split.model or model
        made.append(split)
    return made[0]


def check_stages(stages: object) -> list[Stage]:
    """The stages, if that is what they are."""
    kind("stages", stages, (list, tuple), "a list of stages", "As in [moiety.stage(...), moiety.stage(...)].")
    assert isinstance(stages, list | tuple)
    must(len(stages) > 0, "stages", "a list of at least one stage", "none")
    for each in stages:
        kind("stages", each, Stage, "a list of what moiety.stage made")
    return list(stages)


def stage_table(each: Stage) -> Spec:
    """A stage as a file says it."""
    split = each.split
    if split is not None and not isinstance(split, str | dict):
        split = spec_of(split) or {"own": "split"}
    made = {**each.numbers(), "split": split, "algorithm": each.algorithm.spec or {"own": each.algorithm.name}}
    found: Spec = files.without_none(made)
    return found


def stage_from(number: int, table: Spec) -> Stage:
    """The stage that a table of a file describes."""
    name = f"stage.{number}"
    known = inspect.signature(stage).parameters
    for key in table:
        must(key in known, f"{name}.{key}", "a known key", "another", near(key, known))
    for key in ("algorithm", "rounds"):
        must(key in table, f"{name}.{key}", "given", "nothing")
    options = {key: value for key, value in table.items() if key != "algorithm"}
    return stage(algorithm_from(table["algorithm"], f"{name}.algorithm"), **options)
