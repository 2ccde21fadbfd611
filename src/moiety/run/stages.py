"""The stages of a pipeline: what each is made of, the splits they end up with, and how a file says it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_type_hints

from torch import nn

from moiety.data import FederatedData
from moiety.errors import kind, must, whole
from moiety.run import folder as files
from moiety.run.build import algorithm_from, own_part, split_from
from moiety.run.checks import check_split
from moiety.run.settings import BUILDERS, Options, check_table
from moiety.spec import Spec, spec_of
from moiety.split import Split
from moiety.types import Algorithm, Task


@dataclass(frozen=True)
class Stage:
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
    """

    algorithm: Algorithm
    rounds: int
    cohort: int | None = None
    split: Split | str | Spec | Callable[[Any], Split] | None = None
    evaluate_every: int | None = None
    checkpoint_every: int | None = None

    def __post_init__(self) -> None:
        """Check all that needs neither model nor data."""
        kind("algorithm", self.algorithm, Algorithm, "what a builder such as moiety.fedalt made")
        whole("rounds", self.rounds, 1)
        self.options(Options())
        fits = self.split is None or callable(self.split) or isinstance(self.split, Split | str | dict)
        must(fits, "split", "a name, a table, a function of the model, or a Split", repr(self.split))

    def options(self, common: Options) -> Options:
        """The options of this stage; ``common`` are those of all."""
        settings = replace(common.settings, evaluate_every=self.evaluate_every, checkpoint_every=self.checkpoint_every)
        return replace(common, rounds=self.rounds, cohort=self.cohort, settings=settings)


FILE_TYPES = {**get_type_hints(Stage), "algorithm": Spec, "split": Spec}
"""The keys of a table ``[[stage]]`` and their types."""
OF_STAGES = ("rounds", "cohort", "evaluate_every", "checkpoint_every")


def check_stage_options(options: Options, where: str = "") -> None:
    """Refuse options of a pipeline that belong to its stages, or that stages do not know."""
    values = {**vars(options), **vars(options.settings)}
    for key in ("participation", "attackers", "start", *BUILDERS, *OF_STAGES):
        value = values[key]
        hint = "Stages know none; run them one after the other with start."
        if key in OF_STAGES:
            hint = f"Each stage has its own; the command has --set stage.1.{key}={value}."
        name = key if key in BUILDERS else where + key
        must(value in (None, "fixed"), name, "left out where there are stages", value, hint)


def split_for(number: int, each: Stage, model: nn.Module | Task, before: Split | None) -> Split:
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


def check_ahead(stages: Sequence[Stage], model: nn.Module | Task, data: FederatedData) -> Split:
    """Find what is wrong with any stage before hours of training; the split of the first.

    Splits are made on the untrained model for it, up to a later one that is a function of the user's own, which may
    look at trained values.
    """
    splits: list[Split] = []
    for number, each in enumerate(stages, 1):
        fits = each.cohort is None or each.cohort <= len(data)
        must(fits, f"stage.{number}.cohort", f"<= {len(data)}, the number of clients", each.cohort)
    for number, each in enumerate(stages, 1):
        if callable(each.split) and number > 1:
            break
        before = splits[-1] if splits else None
        split = split_for(number, each, model, before)
        grown = isinstance(each.split, Split) and split.model is not None and number > 1 and split is not before
        hint = 'Give a table, as in split={"name": "adapters"}.'
        must(not grown, f"stage.{number}.split", "made on the trained model", "one of the untrained model", hint)
        model = split.model or model
        splits.append(split)
    return splits[0]


def check_stages(stages: object) -> list[Stage]:
    """The stages, if that is what they are."""
    kind("stages", stages, (list, tuple), "a list of stages", "As in [moiety.Stage(...), moiety.Stage(...)].")
    assert isinstance(stages, list | tuple)
    must(len(stages) > 0, "stages", "a list of at least one stage", "none")
    for each in stages:
        kind("stages", each, Stage, "a list of moiety.Stage(...)")
    return list(stages)


def stage_table(each: Stage) -> Spec:
    """A stage as a file says it."""
    split = {"name": each.split} if isinstance(each.split, str) else each.split
    if split is not None and not isinstance(split, dict):
        split = spec_of(split) or {"own": "split"}
    table: Spec = files.without_none(
        {**vars(each), "split": split, "algorithm": each.algorithm.spec or {"own": each.algorithm.name}}
    )
    return table


def stage_from(number: int, table: Spec) -> Stage:
    """The stage that a table of a file describes."""
    name = f"stage.{number}"
    table = check_table(name, table, FILE_TYPES)
    for key in ("algorithm", "rounds"):
        must(key in table, f"{name}.{key}", "given", "nothing", "Add it to that [[stage]].")
    return Stage(**{**table, "algorithm": algorithm_from(table["algorithm"], f"{name}.algorithm")})


def stored_stages(tables: Any, given: Sequence[Stage] | None, path: Path) -> list[Stage]:
    """The stages that a folder describes, or the given ones where they are the same."""
    there = isinstance(tables, list) and tables and all(isinstance(each, dict) for each in tables)
    must(bool(there), files.PIPELINE, "one with tables [[stage]]", f"none in {path}")
    if given is not None:
        same = [stage_table(each) for each in check_stages(given)] == tables
        must(same, "stages", "as the pipeline began with", "others", "Begin another pipeline for those.")
        return list(given)
    for number, table in enumerate(tables, 1):
        for part in (part for part in ("algorithm", "split") if part in table):
            hint = "Resume it with stages=[...] as it began."
            must(not own_part(table, part), "stages", "given again", f"nothing for the {part} of stage {number}", hint)
    return [stage_from(number, table) for number, table in enumerate(tables, 1)]
