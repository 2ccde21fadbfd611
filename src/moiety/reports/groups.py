"""Runs that differ in their seed alone belong together; runs of other data or metrics cannot be compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moiety.errors import MoietyError, must
from moiety.reports.result import Result
from moiety.reports.words import list_names

ANY = ("seed", "engine", "engine_reason", "workers", "worker_timeout", "on_divergence")
"""The keys of ``[run]`` in which runs of one group may differ: the seed, and what changes no number."""


@dataclass(frozen=True)
class Group:
    """Runs of one configuration, by their seeds."""

    name: str
    results: dict[int, Result] = field(default_factory=dict)


def group_results(folders: Sequence[Path], results: Sequence[Result]) -> list[Group]:
    """The runs in groups, ordered by each group's first run. Runs of one configuration and seed get several."""
    groups: list[tuple[str, Group]] = []
    places: list[Path] = []
    for folder, result in zip(folders, results, strict=True):
        key, seed = _describe(result.config), int(result.config["run"].get("seed", 0))
        group = next((each for other, each in groups if other == key and seed not in each.results), None)
        if group is None:
            own = folder.resolve()
            name = own.parent.name if own.name == f"seed-{seed}" else result.name
            group = Group(name)
            groups.append((key, group))
            places.append(own.parent if own.name == f"seed-{seed}" else own)
        group.results[seed] = result
    names = tell_apart([group.name for _, group in groups], places)
    return [Group(name, group.results) for name, (_, group) in zip(names, groups, strict=True)]


def tell_apart(names: Sequence[str], places: Sequence[Path]) -> list[str]:
    """Names that come more than once become those of the nearest folders above that differ, where there are such.

    >>> tell_apart(["all", "all", "own"], [Path("/runs/fedavg/all"), Path("/runs/fedalt/all"), Path("/runs/own")])
    ['fedavg', 'fedalt', 'own']
    """
    unique = list(names)
    for name in {each for each in names if names.count(each) > 1}:
        at = [k for k, each in enumerate(names) if each == name]
        above = [places[k] for k in at]
        while len({place.name for place in above}) == 1 and above[0].name:
            above = [place.parent for place in above]
        heads = [place.name for place in above]
        if len(set(heads)) == len(heads) and all(heads) and not set(heads) & set(names):
            for k, head in zip(at, heads, strict=True):
                unique[k] = head
    return unique


def _describe(config: dict[str, Any]) -> str:
    """The configuration without what runs of one group may differ in. Attackers that a share drew differ by seed."""
    run = {key: value for key, value in config["run"].items() if key not in ANY}
    if "attackers" in run:
        run["attackers"] = len(run["attackers"])
    return json.dumps({**config, "run": run}, sort_keys=True, default=str)


def are_alike(groups: Sequence[Group]) -> bool:
    """Whether all runs of the groups can be compared client by client."""
    results = [result for group in groups for result in group.results.values()]
    try:
        for other in results[1:]:
            check_alike(results[0], other)
    except MoietyError:
        return False
    return True


def check_alike(first: Result, other: Result) -> None:
    """Refuse runs that cannot be compared client by client."""
    pair = f"{first.name} and {other.name}"
    same = "the same in all runs"
    for name in ("metric_name", "part"):
        ours, theirs = first.last[name], other.last[name]
        must(ours == theirs, name, same, f"{ours} and {theirs} in {pair}")
    ours, theirs = first.config.get("data", {}), other.config.get("data", {})
    odd = sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
    difference = " and ".join(f"{key} {table.get(key, 'none')!s:.40}" for key in odd[:1] for table in (ours, theirs))
    must(not odd, "data", same, f"{difference} in {pair}", "Clients of different data cannot be compared.")
    clients = [{str(row["client"]) for row in result.clients} for result in (first, other)]
    singles = sorted(clients[0] ^ clients[1])
    names = f"{list_names(singles, 3)} in only one of {pair}"
    must(not singles, "clients", same, names, "Clients of different data cannot be compared.")
