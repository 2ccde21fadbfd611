"""Rounds until a target accuracy (Table 2 of Huang et al. 2022): from the accuracies along runs of FedSpa's recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from moiety.experiments import Row, compare, score_row, show_interval
from moiety_recipes.fedspa_page import TaskResults
from moiety_recipes.fedspa_tasks import DITTO, DST, FEDAVG, IID, RSM, SUB, SUBSAMPLING, A, B

METHODS = (DST, RSM, DITTO, FEDAVG, SUB, SUBSAMPLING)
PRINTED_TARGETS = (70.0, 75.0, 80.0)
PRINTED: Mapping[str, Mapping[str, tuple[float | None, ...]]] = {
    IID: {
        DST: (134.0, 183.3, 312.3),
        RSM: (101.3, 141.3, 237.0),
        DITTO: (284.7, 370.3, 549.3),
        FEDAVG: (105.0, 140.3, 228.7),
        SUB: (197.7, None, None),
        SUBSAMPLING: (198.0, 268.3, 457.0),
    },
    A: {
        DST: (167.3, 210.3, 281.3),
        RSM: (195.3, 271.3, 471.7),
        DITTO: (242.3, 334.0, 466.3),
        FEDAVG: (198.3, 256.7, 474.7),
        SUB: (151.7, 235.0, None),
        SUBSAMPLING: (365.3, 523.0, None),
    },
    B: {
        DST: (164.3, 206.3, 270.0),
        RSM: (252.0, 339.0, 614.0),
        DITTO: (190.3, 278.0, 417.7),
        FEDAVG: (241.0, 327.3, 583.7),
        SUB: (137.3, 191.7, None),
        SUBSAMPLING: (466.3, 722.7, None),
    },
}
"""The paper's rounds to these targets, for CIFAR-10 with VGG-11; None where more than 1,000."""
FASTER = ((B, DST, FEDAVG), (B, DST, DITTO), (B, DST, RSM), (IID, FEDAVG, DST), (IID, RSM, DST))
"""Setting, the method that the paper's rounds say is faster, and the other."""


def first_round(course: Row, target: float) -> int | None:
    """The round of the first evaluation with at least that accuracy, in per cent; None where there is none."""
    pairs = zip(course["rounds"], course["scores"], strict=True)
    return next((t for t, score in pairs if score >= target / 100), None)


def round_row(results: TaskResults, setting: str, method: str, target: float) -> Row:
    """The rounds of every seed; their mean and interval where all reach the target."""
    each = [first_round(course, target) for course in results.courses(setting, method)]
    rounds = [t for t in each if t is not None]
    paper = dict(zip(PRINTED_TARGETS, PRINTED[setting][method], strict=True)) if has_printed(results) else {}
    complete = len(rounds) == len(each)
    mean = score_row(method, rounds) if complete else {"row": method, "ours": None, "interval": None}
    return {
        "task": results.task.name,
        "setting": setting,
        "target": target,
        **mean,
        "paper": paper.get(target),
        "each": each,
        "more_than": None if complete else results.task.rounds,
        "verdict": None,
    }


def has_printed(results: TaskResults) -> bool:
    """Whether the paper's rounds stand beside ours: with its network, and with the small one that has its targets."""
    return results.task.network in ("vgg11", "small")


def judge_rounds(results: TaskResults, targets: Sequence[float]) -> Iterator[Row]:
    """Whether one method needs fewer rounds to the middle target than another; the difference is of rounds saved."""
    target = targets[len(targets) // 2]
    for setting, method, other in FASTER:
        ours, theirs = (
            [first_round(course, target) or results.task.rounds for course in results.courses(setting, name)]
            for name in (method, other)
        )
        row = f"{setting}: {method} needs fewer rounds to {target:g}% than {other}"
        numbers = [dict(zip(PRINTED_TARGETS, PRINTED[setting][m], strict=True)).get(target) for m in (other, method)]
        paper = None if None in numbers else f"{compare(numbers[:1], numbers[1:])[0]:+.1f} (VGG-11)"  # type: ignore[arg-type]
        yield {**results.claim(row, compare(theirs, ours), paper=paper, unit="rounds"), "claim": True}


def show_rounds(rows: Sequence[Row]) -> list[Row]:
    """A line for each method, a column for each target."""
    lines: dict[str, Row] = {}
    for row in rows:
        target, rounds = f"{row['target']:g}", [t for t in row["each"] if t is not None]
        some = f" ({len(rounds)} of {len(row['each'])} seeds: {rounds})" if rounds else ""
        cell = f"> {row['more_than']}{some}" if row["more_than"] else show_interval(row, digits=1)
        lines.setdefault(row["row"], {"row": row["row"]}).update({target: cell, f"paper {target}": row["paper"]})
    return list(lines.values())


def list_columns(results: TaskResults, targets: Sequence[float]) -> dict[str, str]:
    """The columns of such a table; the paper's numbers where its network was trained."""
    columns = {"row": "", **{f"{t:g}": f"to {t:g}%" for t in targets}}
    if has_printed(results):
        columns |= {f"paper {t:g}": f"paper, to {t:g}%" for t in targets}
    return columns


def list_rounds(results: TaskResults, targets: Sequence[float]) -> dict[str, list[Row]]:
    """For every setting the rounds of all methods to all targets."""
    return {
        setting: [round_row(results, setting, method, t) for method in METHODS for t in targets]
        for setting in results.task.settings
    }


CENSORED = "In a difference, a run that never reaches the target counts as if it did in its last round."
