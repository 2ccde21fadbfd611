"""What an experiment declares: a plan for each scale, cells to run, and a page made of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from moiety.experiments.records import Cells, Outcome, Page, Results, Watch, watch_nothing
from moiety.experiments.runner import run

P = TypeVar("P")


@dataclass(frozen=True, kw_only=True)
class Experiment(Generic[P]):
    """A declared comparison: ``moiety run NAME`` runs it, and so does its method ``run``.

    Args:
        name: as ``moiety run`` knows it.
        summary: what it compares, in one line; ``moiety list recipes`` shows it.
        plan: the sizes of a scale (``ci``, ``laptop``, ``paper``; ``night`` where ``night`` is set): a frozen dataclass
            of plain values, with ``seeds`` and ``rounds`` in it or in dataclasses that it holds. ``--rounds``,
            ``--seeds`` and ``--set`` change its fields, so everything else is made from the plan, later. A class with
            several numbers of rounds has a method ``with_rounds(rounds)``.
        cells: yields the cells, or lists of cells to run side by side, given the plan and the seeds. What it does
            before the first cell is done before anything is written: there it loads the data, which may not be at hand.
        page: makes the page, given the plan, the seeds and the results.
        engine: of all cells, where the user names none.
        night: whether ``plan`` knows the scale ``night``; else the sizes of ``laptop`` are used, and the page says so.
        refused: options that cannot change anything here (``engine``, ``device``, ``rounds``, ``seeds``), each with
            the reason.
        extensible: whether an experiment that ended can be resumed with more rounds. Then ``keep`` gives ``rounds``,
            the rounds that were trained.
    """

    name: str
    summary: str
    plan: Callable[[str], P]
    cells: Callable[[P, Sequence[int]], Cells]
    page: Callable[[P, Sequence[int], Results], Page]
    engine: str = "auto"
    night: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)
    extensible: bool = False

    def run(
        self,
        *,
        out: str | Path | None = None,
        scale: str | None = None,
        rounds: int | None = None,
        seed: int | None = None,
        seeds: int | None = None,
        changes: Mapping[str, Any] | None = None,
        engine: str | None = None,
        device: str | None = None,
        resume: bool = False,
        watch: Watch = watch_nothing,
    ) -> Outcome:
        """Run what has not ended yet, judge, and write the page.

        Args:
            out: a folder for runs, results, page and figures; nothing is written without one.
            scale: ``ci`` (seconds), ``laptop`` (minutes, the default), ``night`` (up to an hour) or ``paper``.
            rounds: instead of the plan's.
            seed: the first of the seeds; 0 by default.
            seeds: how many seeds, instead of the plan's.
            changes: other fields of the plan, by name.
            engine: as in ``moiety.fit``, for all cells.
            device: as in ``moiety.fit``.
            resume: continue what has begun in ``out``; options may then be left out.
            watch: called with the name and folder of each run before it begins; gives a callback of it, or None.
        """
        options: dict[str, Any] = {"scale": scale, "rounds": rounds, "seed": seed, "seeds": seeds}
        options |= {"changes": dict(changes or {}), "device": device}
        folder = None if out is None else Path(out)
        return run(self, options, folder, engine=engine, resume=resume, watch=watch)
