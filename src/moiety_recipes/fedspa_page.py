"""Rows, claims, sections and curves that the pages of FedSpa's recipes share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import moiety as mo
from moiety.experiments import Page, Results, Row, Section, claim_row, compare, interval, score_row, show_interval
from moiety_recipes.claims import RULE, decide_claim, show_claims
from moiety_recipes.fedspa_tasks import PILOT, Plan, Task, rate_key
from moiety_recipes.pages import Figures, Part, join_parts

Numbers = Mapping[str, Mapping[str, float]]
"""The paper's, by setting and method."""
Sources = Mapping[str, Numbers]
"""Such numbers by what the paper trained, where claims are compared with several of them."""
COSTS = ("down_values", "up_values", "down_payload", "up_payload", "flops", "search_flops")
GLOBAL = "global "
"""Before the name of a method: its shared model, instead of the personal ones."""
PAPER = 'Huang et al. 2022, "Achieving Personalized Federated Learning with Sparse Local Models"'
CIFAR100_PAPER = (
    "The paper's numbers are those of CIFAR-100 with ResNet-18 and Dirichlet(0.2) and (0.1), another data set."
)
RESNET_18 = "ResNet-18"
"""The network of these numbers."""
VERDICTS = (
    "A claim *holds* where the whole 95% interval of the difference (seed by seed, Student's t) says so, *does not"
    " hold* where the whole interval says the opposite, and else is *not decided at this scale*. Each claim is judged"
    " by itself: of twenty that are not so, one may come out by chance."
)

TRIED = (
    f"Accuracy on validation rows of seed {PILOT}, which is not reported, by learning rate. Each method has the best"
    " one in each setting."
)


@dataclass(frozen=True)
class Statement:
    """A claim of the paper: one method is ahead of another in a setting, or ``within`` so many points of it.

    ``method`` and ``other`` are names of methods; with ``global `` before the name it is their shared model.
    """

    setting: str
    method: str
    other: str
    within: float | None = None

    def __str__(self) -> str:
        relation = "is ahead of" if self.within is None else f"is within {self.within:g} points of"
        return f"{self.setting}: {self.method} {relation} {self.other}"


@dataclass(frozen=True)
class TaskResults:
    """The results of one task, over seeds. Where there were ``rates`` to choose from, the rule of ``night`` decides."""

    task: Task
    seeds: Sequence[int]
    cells: Results
    rates: Sequence[float] = ()

    def courses(self, setting: str, method: str) -> list[Row]:
        """What was kept of the runs of a method."""
        return [self.cells[self.task.name, setting, seed, method.removeprefix(GLOBAL)] for seed in self.seeds]

    def curves(self, setting: str, method: str) -> list[list[float]]:
        """For every seed the accuracy at each evaluation, in per cent."""
        key = "shared" if method.startswith(GLOBAL) else "scores"
        return [[100 * score for score in course[key]] for course in self.courses(setting, method)]

    def scores(self, setting: str, method: str) -> list[float]:
        """For every seed the accuracy in the end, in per cent."""
        return [curve[-1] for curve in self.curves(setting, method)]

    def claim(
        self,
        row: str,
        differences: Sequence[float],
        within: float | None = None,
        *,
        paper: str | None = None,
        unit: str = "points",
    ) -> Row:
        """A claim with its verdict. Those of scale ``night`` are headlines, all of them: none was picked."""
        if not self.rates:
            return {"task": self.task.name, **claim_row(row, differences, within=within)}
        options: Row = {"within": within, "paper": paper, "unit": unit, "headline": True}
        return {"task": self.task.name, **decide_claim(row, {self.task.name: differences}, **options)}

    def rate_rows(self) -> list[Row]:
        """The scores on validation rows of every rate that was tried, a row for each method and setting."""
        methods = dict.fromkeys(key[3] for key in self.cells if key[1] == "rates" and key[0] == self.task.name)
        return [
            {
                "method": f"{method}, {setting}",
                **{
                    f"{rate:g}": 100 * self.cells[rate_key(self.task, setting, str(method), rate)]["scores"][-1]
                    for rate in self.rates
                },
            }
            for method in methods
            for setting in self.task.settings
        ]


def build_page(
    plan: Plan, seeds: Sequence[int], results: Results, *, about: str, part: Callable[[TaskResults], Part]
) -> Page:
    """The page of all tasks."""
    return join_parts(about, [part(TaskResults(task, seeds, results, plan.rates)) for task in plan.tasks])


def judge(results: TaskResults, statements: Iterable[Statement], sources: Sources | None = None) -> list[Row]:
    """A row for each statement, in percentage points, with the paper's differences."""
    rows = []
    for s in statements:
        gains = compare(results.scores(s.setting, s.method), results.scores(s.setting, s.other))
        rows.append(results.claim(str(s), gains, s.within, paper=show_paper(s, sources or {})))
    return rows


def show_paper(statement: Statement, sources: Sources) -> str | None:
    """The paper's differences by source; None where it has no numbers for both methods.

    >>> numbers = {"B": {"DST": 88.2, "FedAvg": 81.4}}
    >>> show_paper(Statement("B", "DST", "FedAvg"), {"VGG-11": numbers, "LeNet": {}})
    '+6.8 (VGG-11)'
    """
    differences = []
    for name, numbers in sources.items():
        own = numbers.get(statement.setting, {})
        if statement.method in own and statement.other in own:
            differences.append(f"{own[statement.method] - own[statement.other]:+.1f} ({name})")
    return ", ".join(differences) or None


def accuracy_row(results: TaskResults, setting: str, method: str, paper: float | None) -> Row:
    """The accuracy of a method, and the costs of a run, which are means over seeds."""
    ledgers = [course["ledger"] for course in results.courses(setting, method)]
    costs = {key: sum(ledger.get(key, 0) for ledger in ledgers) / len(ledgers) for key in COSTS}
    score = score_row(method, results.scores(setting, method), paper=paper)
    return {"task": results.task.name, "setting": setting, **score, "verdict": None, **costs}


ACCURACY = {
    "row": "",
    "paper": "paper",
    "accuracy": "ours [95% interval]",
    "values": "bytes, values",
    "payload": "bytes, packed",
    "training": "FLOPs",
    "search": "of which search",
}


def show_accuracy(row: Row) -> Row:
    """A row of ``accuracy_row`` as a reader wants it."""
    amount = mo.reports.format_amount
    return {
        **row,
        "accuracy": show_interval(row, digits=1),
        "values": amount(row["down_values"] + row["up_values"], "B"),
        "payload": amount(row["down_payload"] + row["up_payload"], "B"),
        "training": amount(row["flops"], "FLOP"),
        "search": amount(row["search_flops"], "FLOP") if row["search_flops"] else None,
    }


def show_task(
    results: TaskResults,
    tables: Mapping[str, Sequence[Row]],
    claims: Sequence[Row],
    *,
    columns: Mapping[str, str] = ACCURACY,
    verdicts: str = VERDICTS,
    source: str = "",
    notes: Sequence[str] = (),
) -> list[Section]:
    """The sections of a task: a table for each setting, claims and notes. ``source`` says whose the paper's are."""
    task, notes = results.task, [*list_departures(results.task), *notes]
    count = mo.reports.format_count
    size = (
        f"{count(task.rounds, 'round')}, {task.cohort} clients a round, evaluated every"
        f" {count(min(task.every, task.rounds), 'round')}; {count(len(results.seeds), 'seed')}. Every seed has a deal"
        f" of the data, first weights and cohorts of its own. {source}"
    )
    title = "What the paper says"
    lines = [{**row, "difference": show_interval(row, sign="+")} for row in claims]
    headings = {"row": "claim", "difference": "difference [95% interval]", "verdict": "verdict"}
    sections = [Section(title=title, text=verdicts, rows=lines, columns=headings, level=3)]
    if results.rates:
        rates = Section(title="Learning rates", text=TRIED, rows=results.rate_rows(), digits=1, level=3)
        sections = [show_claims(title, claims, text=RULE, level=3), rates]
    return [
        Section(title=task.name, text=f"{task.title}\n\n{size.strip()}"),
        *(
            Section(title=task.describe(setting), rows=table, columns=columns, digits=1, level=3)
            for setting, table in tables.items()
        ),
        *sections,
        *([Section(title="Notes", notes=notes, level=3)] if notes else []),
    ]


def show_accuracies(
    results: TaskResults,
    methods: Sequence[str],
    statements: Iterable[Statement],
    *,
    paper: Numbers,
    source: str,
    sources: Sources | None = None,
    notes: Sequence[str] = (),
    more_claims: Sequence[Row] = (),
) -> Part:
    """Accuracy, costs, claims and curves of a task. The digits of scale ``ci`` have no numbers of the paper.

    ``paper`` stands beside accuracies, the differences of ``sources`` beside claims.
    """
    if results.task.source == "digits":
        paper, source, sources = {}, "", {}
    tables = {
        s: [accuracy_row(results, s, method, paper.get(s, {}).get(method)) for method in methods]
        for s in results.task.settings
    }
    claims = [*judge(results, statements, sources), *more_claims]
    lines = {setting: [show_accuracy(row) for row in rows] for setting, rows in tables.items()}
    sections = show_task(results, lines, claims, source=source, notes=notes)
    rows = [row for table in tables.values() for row in table]
    return Part([*rows, *claims], sections, curve_figure(results, methods))


def list_departures(task: Task) -> list[str]:
    """How the runs with LeNet-5 differ from the paper's."""
    if task.network != "lenet5":
        return []
    steps = -(-task.rows // task.batch_size)
    return [
        f"{task.rows} rows in batches of {task.batch_size} make {steps} steps in an epoch; 500 rows in batches of 128,"
        f" as the paper has with CIFAR-10, make 4. The paper trains for 1,000 rounds there. Here {task.cohort} of"
        f" {task.clients} clients are asked in each of {task.rounds} rounds, so each of them in few: masks have few"
        " turns to evolve in, and clients that were never asked still have the first ones.",
        f"The learning rate is {task.lr:g} x {task.lr_factor:g}^t (the paper: 0.1 x 0.998^t). It hardly falls in so"
        " few rounds.",
        "Where clients begin with one mask, it is the same in all seeds.",
    ]


def curve_figure(results: TaskResults, methods: Sequence[str], name: str = "", title: str = "Accuracy") -> Figures:
    """A figure of accuracy along the rounds."""
    file = f"{results.task.name}{name and '-'}{name}.png"
    return {file: (f"{title} along the rounds, {results.task.name}", partial(draw_curves, results, methods))}


def draw_curves(results: TaskResults, methods: Sequence[str]) -> Any:
    """A panel for each setting: the mean over seeds and its interval at each evaluation."""
    panels = {
        results.task.describe(setting): {method: _points(results, setting, method) for method in methods}
        for setting in results.task.settings
    }
    return mo.reports.bands(panels, x="round", y="mean test accuracy (%)")


def draw_bytes(results: TaskResults, lines: Mapping[str, Sequence[str]]) -> Any:
    """Accuracy against the bytes of values that were sent: a line for some methods, a point for each of them."""

    def points(setting: str, methods: Sequence[str]) -> list[Row]:
        rows = [accuracy_row(results, setting, method, None) for method in methods]
        ends = [row["interval"] or (None, None) for row in rows]
        return [
            {"x": (row["up_values"] + row["down_values"]) / 1e9, "mean": row["ours"], "low": low, "high": high}
            for row, (low, high) in zip(rows, ends, strict=True)
        ]

    panels = {
        results.task.describe(setting): {name: points(setting, methods) for name, methods in lines.items()}
        for setting in results.task.settings
    }
    return mo.reports.bands(panels, x="values sent, both ways (GB)", y="mean test accuracy (%)")


FIGURE_1 = "Figure 1: accuracy against bytes"


def _points(results: TaskResults, setting: str, method: str) -> list[Row]:
    rounds = results.courses(setting, method)[0]["rounds"]
    values = zip(*results.curves(setting, method), strict=True)
    return [{"x": t, **asdict(interval(each))} for t, each in zip(rounds, values, strict=True)]
