"""Do no harm on devices: each chooses for itself between its personal model, the shared one and mixtures of both.

A device computes its evidence and its choice, and keeps both to itself. Where ``share_metrics`` is ``per_client``, it
sends the eleven numbers of ``Summary`` once. The server estimates the population from them and tells all devices, as a
simulation does. Otherwise nothing is sent, and each device tests its candidates by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moiety.deploy.letters import LARGEST, is_small
from moiety.errors import is_whole, must
from moiety.evaluation.safeguard import ALPHA, WEIGHTS, Evidence, Population, Summary, choose
from moiety.run.result import Run
from moiety.run.safeguard import MIXTURES, MOST_TURNS, Chooser, Safeguard
from moiety.run.safeguard_folder import read_safeguard, write_safeguard
from moiety.types import Task


def gather_evidence(run: Run, position: int, turns: int) -> Evidence:
    """What a device knows of the candidates; ``run`` is its own."""
    (evidence,) = Chooser(run._loop, run._loss, MIXTURES[0], turns=turns).gather([position])
    return evidence


def choose_model(run: Run, position: int, evidence: Evidence, population: Population | None) -> Safeguard:
    """The device's choice, as a simulation makes it for the client."""
    loop = run._loop
    pair = Chooser(loop, run._loss, MIXTURES[0]).pair_of(position)
    choice = choose(evidence, population, alpha=ALPHA, weights=pair.weights())
    name = str(loop.problem.data.ids[position])
    return Safeguard(loop.progress.round, ALPHA, MIXTURES[0], run._loss, population, {name: choice})


def keep_choice(folder: Path, run: str, guard: Safeguard) -> None:
    """Write the choice into the part of the device's folder that belongs to the run."""
    write_safeguard(folder, run, guard)


def find_choice(folder: Path, run: str, loss: str | None, round: int) -> Safeguard | None:
    """The choice that was made for the models of a round, if there is one."""
    guard = read_safeguard(folder, run, loss)
    return guard if guard is not None and guard.round == round else None


def read_turns(head: Mapping[str, Any]) -> int:
    """How often devices were asked on average, as the server says."""
    turns = head.get("turns")
    must(is_whole(turns) and 1 <= int(str(turns)) <= MOST_TURNS, "turns", f"from 1 to {MOST_TURNS}", repr(turns)[:40])
    return int(str(turns))


def read_population(table: Any) -> Population | None:
    """What the server says of all devices; None where it knows too few."""
    if table is None:
        return None
    try:
        population = Population.from_dict(table)
        numbers = [population.default, *population.hint, *(n for each in population.candidates for n in _flatten(each))]
        fits = all(map(math.isfinite, numbers)) and all(
            c.spread > 0 and c.row_variance > 0 for c in population.candidates
        )
        fits &= population.default in (0.0, *WEIGHTS)
    except (KeyError, TypeError, ValueError, AttributeError):
        fits = False
    must(fits, "population", "finite numbers of candidates", "others")
    return population


def _flatten(candidate: Any) -> list[float]:
    (b, v, spread, variance) = candidate
    return [*map(float, b), *map(float, v), spread, variance]


def as_table(summary: Summary | None) -> dict[str, Any] | None:
    """A device's numbers, as they cross."""
    return None if summary is None else summary._asdict()


def read_summary(table: Any, task: Task) -> Summary | None:
    """A device's numbers, checked; None where it has none."""
    if table is None:
        return None
    count = len(WEIGHTS) if task.score_outputs is not None else 1
    must(isinstance(table, dict) and set(table) == set(Summary._fields), "evidence", "a table of numbers", "another")
    for name in ("means", "variances"):
        fits = isinstance(table[name], list) and len(table[name]) == count and all(map(is_small, table[name]))
        must(fits, f"evidence.{name}", f"{count} numbers up to {LARGEST:g}", f"{table[name]!r:.60}")
    must(min(table["variances"]) >= 0, "evidence.variances", ">= 0", min(table["variances"]))
    rows, hint, validation = table["rows"], table["hint"], table["validation"]
    must(is_whole(rows) and 0 < rows < 1 << 40, "evidence.rows", "a number of rows", f"{rows!r:.40}")
    must(is_small(hint), "evidence.hint", f"a number up to {LARGEST:g}", f"{hint!r:.40}")
    must(validation is None or is_small(validation), "evidence.validation", f"a number up to {LARGEST:g}", "another")
    means, variances = (tuple(map(float, table[name])) for name in ("means", "variances"))
    return Summary(means, variances, int(rows), float(hint), None if validation is None else float(validation))
