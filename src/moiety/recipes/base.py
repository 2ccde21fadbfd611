"""What every recipe takes and gives, and how its runs are begun or continued."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from moiety.errors import must

if TYPE_CHECKING:
    from moiety.run.result import Run
    from moiety.run.train import OnRound

Watch = Callable[[str, Path | None], "OnRound | None"]
"""Called with the name and folder of each run before it begins; what it returns is called after every round."""

RECIPE = "recipe.json"
"""What a recipe whose runs lie further down was asked for, in its folder."""

ONLY_RUNS = "Scale ci only shows that the recipe runs: scores of so little training say nothing about the methods."
"""What stands on the page of a recipe at that scale, and is its closing sentence."""


@dataclass(frozen=True)
class Outcome:
    """What a recipe gives: its runs by name, in the order in which they are to be compared, and what they show.

    A recipe of very many runs gives no runs but a ``report``: its tables, as text.
    """

    runs: Mapping[str, Run]
    sentence: str
    report: str = ""

    @property
    def closing(self) -> str:
        """The sentence to end with: what the runs show, if they show anything."""
        return ONLY_RUNS if ONLY_RUNS in self.report else self.sentence


class Recipe(Protocol):
    """A recipe is a function of where, how long, by which engine, and at which scale; all else is its own."""

    def __call__(
        self,
        *,
        out: Path | None = None,
        rounds: int | None = None,
        seed: int | None = None,
        engine: str | None = None,
        resume: bool = False,
        watch: Watch = ...,
        scale: str | None = None,
    ) -> Outcome:
        """Run the recipe."""
        ...


@dataclass(frozen=True)
class Settled:
    """The options of a recipe once those that were left out are known."""

    rounds: int
    seed: int


def unwatched(name: str, folder: Path | None) -> None:
    """Watch nothing."""


def settle(folders: Iterable[Path], *, rounds: int | None, seed: int | None, default: Settled) -> Settled:
    """Options as given, else as in the runs begun already, else the recipe's own.

    All runs of a recipe are compared with each other, so one that has not begun takes over the options of one that has.
    """
    from moiety.run.folder import read_config

    begun = [_settled(folder, read_config(folder)) for folder in folders if is_run(folder)]
    for was in begun:
        hint = "Leave the seed out, or begin another run."
        must(seed is None or seed == was.seed, "seed", f"{was.seed}, as the run began", seed, hint)
    asked = max((was.rounds for was in begun), default=default.rounds)
    first = begun[0] if begun else default
    return Settled(asked if rounds is None else rounds, first.seed if seed is None else seed)


def _settled(folder: Path, config: Mapping[str, Any]) -> Settled:
    """The options that a run began with, if its folder says so."""
    run = config.get("run", {})
    whole = isinstance(run, dict) and all(type(run.get(key)) is int for key in ("rounds", "seed"))
    must(whole, "config.toml", "one with whole numbers run.rounds and run.seed", f"another in {folder}")
    return Settled(run["rounds"], run["seed"])


def is_run(folder: Path) -> bool:
    """Whether a run has begun in this folder."""
    return (folder / "config.toml").is_file()


def is_recipe(folder: Path) -> bool:
    """Whether a recipe that keeps its runs further down has begun in this folder."""
    return (folder / RECIPE).is_file()


def begin_or_continue(
    folder: Path | None, *, rounds: int, engine: str | None, on_round: OnRound | None, begin: Callable[..., Run]
) -> Run:
    """Continue the run in ``folder`` up to ``rounds`` where one has begun, else begin it; one that ended stays."""
    from moiety.run.resume import resume

    options: dict[str, Any] = {"rounds": rounds, "on_round": on_round}
    if folder is not None and is_run(folder):
        run: Run = resume(folder, engine=engine, **options)
        return run
    return begin(out=folder, engine=engine or "auto", **options)
