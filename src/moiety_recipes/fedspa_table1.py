"""Table 1 of FedSpa (Huang et al. 2022): accuracy, bytes and FLOPs of seven methods in three settings.

The bytes and FLOPs of the paper's own runs (VGG-11 and ResNet-18, 1,000 rounds) need no training: they are on the page
at every scale. Those of the runs made here come from their ledgers. ``fedspa_tasks`` says what is trained at which
scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import moiety as mo
from moiety.experiments import FAILS, HOLDS, Cells, Experiment, Page, Results, Row, Section
from moiety_recipes.claims import RULE, show_claims
from moiety_recipes.fedspa_page import (
    FIGURE_1,
    PAPER,
    Numbers,
    Statement,
    TaskResults,
    build_page,
    curve_figure,
    draw_bytes,
    show_accuracies,
)
from moiety_recipes.fedspa_rounds import CENSORED, PRINTED_TARGETS, judge_rounds, list_columns, list_rounds, show_rounds
from moiety_recipes.fedspa_tasks import (
    DIGITS,
    DITTO,
    DST,
    FEDAVG,
    IID,
    LENET,
    LOCAL,
    NIGHT_SEEDS,
    RATES,
    RESNET,
    RSM,
    SETTINGS,
    SMALL,
    SUB,
    SUBSAMPLING,
    VGG,
    B,
    Plan,
    build_methods,
    run_cells,
)
from moiety_recipes.pages import Figures, Part

METHODS = (DST, RSM, DITTO, FEDAVG, SUB, LOCAL, SUBSAMPLING)
SENT = {method: (method,) for method in METHODS if method != LOCAL}
"""The lines of Figure 1: methods that send something, with one point each."""
EMNIST = (
    (92.2, 92.9, 92.9, 93.5, 90.7, 77.6, 93.3),
    (95.3, 91.9, 95.9, 92.3, 94.9, 87.8, 92.0),
    (96.5, 90.6, 97.0, 90.9, 96.4, 91.6, 91.3),
)
"""The paper's accuracies by setting and method, LeNet-5 on EMNIST-Letters."""
CIFAR10 = (
    (83.4, 84.5, 83.5, 84.8, 71.8, 42.5, 83.0),
    (86.6, 82.1, 86.4, 82.0, 78.3, 63.6, 78.9),
    (88.2, 80.9, 87.8, 81.4, 79.6, 69.4, 76.7),
)
"""The same with VGG-11 on CIFAR-10."""
STATEMENTS = (
    *(Statement(B, DST, other) for other in (FEDAVG, SUB, LOCAL, DITTO, RSM)),
    Statement(IID, FEDAVG, DST),
    Statement(IID, RSM, FEDAVG, within=2.0),
)
BILLS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "caffe_lenet5": {FEDAVG: (14.1, 3.5), DST: (7.0, 2.0), SUBSAMPLING: (10.5, 3.5)},
    "vgg11": {FEDAVG: (738.5, 229.3), DST: (369.2, 172.9), SUBSAMPLING: (553.9, 229.3)},
    "resnet18": {FEDAVG: (897.6, 833.2), DST: (448.8, 705.1), SUBSAMPLING: (673.2, 833.2)},
}
"""The paper's bytes (1e9) and FLOPs (1e14), IID, with 10 clients a round and five epochs a turn."""
SIZES = {
    "caffe_lenet5": (400, 1248, (1, 28, 28)),
    "vgg11": (1000, 500, (3, 32, 32)),
    "resnet18": (1000, 500, (3, 32, 32)),
}
"""Rounds, rows of a client and the picture. EMNIST-Letters has 124,800 training rows for 100 clients; with the 439,096
parameters of Caffe's LeNet-5, 400 rounds give the printed bytes."""
PAPER_PRUNE_RATE = 0.05


@dataclass(frozen=True, kw_only=True)
class TablePlan(Plan):
    """Sizes of one scale. In a turn Sub-FedAvg prunes the share ``prune_rate`` of what is left.

    ``targets`` are the accuracies of Table 2, in per cent; without them a page has no such table.
    """

    prune_rate: float
    targets: tuple[float, ...] = ()


def plan(scale: str) -> TablePlan:
    """The sizes of a scale."""
    if scale == "ci":
        return TablePlan(tasks=(DIGITS,), seeds=2, prune_rate=PAPER_PRUNE_RATE)
    if scale == "paper":
        return TablePlan(tasks=(VGG, RESNET), seeds=3, prune_rate=PAPER_PRUNE_RATE)
    if scale == "night":
        task, rate = replace(SMALL, every=5), PAPER_PRUNE_RATE
        return TablePlan(tasks=(task,), seeds=NIGHT_SEEDS, rates=RATES, prune_rate=rate, targets=PRINTED_TARGETS)
    return TablePlan(tasks=(LENET, replace(LENET, source="mnist", rounds=15)), seeds=3, prune_rate=0.2)


def cells(plan: TablePlan, seeds: Sequence[int], *, without: Sequence[str] = ()) -> Cells:
    """A run for each task, setting, seed and method, but for some methods."""
    return run_cells(plan, seeds, build=partial(build_methods, prune_rate=plan.prune_rate, without=without))


def page(plan: TablePlan, seeds: Sequence[int], results: Results) -> Page:
    """What the paper's runs cost, and the tables of all tasks."""
    bills = list(list_bills())
    columns = {"row": "", "paper": "paper", "ours": "ours", "verdict": "verdict"}
    section = Section(title="The bill of the paper's runs", text=BILL, rows=bills, columns=columns, digits=1)
    body = build_page(plan, seeds, results, about=ABOUT, part=partial(show_results, plan))
    verdicts = [bill["verdict"] for bill in bills if bill["verdict"]]
    return replace(
        body,
        sections=[section, *body.sections],
        sentence=f"{verdicts.count(HOLDS)} of {len(verdicts)} bills are the paper's; {body.sentence}",
        more={"accounting": bills},
    )


def show_results(plan: TablePlan, results: TaskResults) -> Part:
    """Accuracy, costs and claims of one task."""
    network = results.task.network
    sources = {"LeNet-5": list_numbers(EMNIST), "VGG-11": list_numbers(CIFAR10)}
    name, source = {
        "lenet5": ("LeNet-5", EMNIST_PAPER),
        "vgg11": ("VGG-11", CIFAR10_PAPER),
        "small": ("VGG-11", f"{CIFAR10_PAPER} {CLAIMS_PAPER}"),
    }.get(network, ("", ""))
    notes = [*note_pruning(plan), *([DITTO_NOTE] if network == "lenet5" else []), *note_fairness(results)]
    paper = sources.get(name, {})
    part = show_accuracies(results, METHODS, STATEMENTS, paper=paper, source=source, sources=sources, notes=notes)
    figures: Figures = {
        **curve_figure(results, [m for m in METHODS if m != SUBSAMPLING]),
        f"{results.task.name}-figure1.png": (FIGURE_1, partial(draw_bytes, results, SENT)),
    }
    part = part._replace(figures=figures)
    return add_rounds(plan, results, part) if plan.targets else part


def list_numbers(columns: Sequence[Sequence[float]]) -> Numbers:
    """The paper's accuracies by setting and method."""
    return {s: dict(zip(METHODS, column, strict=True)) for s, column in zip(SETTINGS, columns, strict=True)}


def add_rounds(plan: TablePlan, results: TaskResults, part: Part) -> Part:
    """The part with Table 2: rounds to targets, from the same runs."""
    rows, claims = list_rounds(results, plan.targets), list(judge_rounds(results, plan.targets))
    columns = list_columns(results, plan.targets)
    tables = [
        Section(
            title=f"Rounds to a target, {results.task.describe(setting)}",
            rows=show_rounds(own),
            columns=columns,
            level=3,
        )
        for setting, own in rows.items()
    ]
    section = show_claims("What the paper says of rounds", claims, text=f"{RULE} {CENSORED}", level=3)
    every = [row for own in rows.values() for row in own]
    return part._replace(rows=[*part.rows, *every, *claims], sections=[*part.sections, *tables, section])


def note_pruning(plan: TablePlan) -> list[str]:
    """That Sub-FedAvg prunes faster than in the paper, where it does."""
    if plan.prune_rate == PAPER_PRUNE_RATE:
        return []
    return [
        f"Sub-FedAvg prunes {plan.prune_rate:.0%} of what is left in a turn, where the paper prunes"
        f" {PAPER_PRUNE_RATE:.0%}: with so few turns it would stay nearly dense otherwise."
    ]


def note_fairness(results: TaskResults) -> list[str]:
    """What a comparison should know besides: how dense Sub-FedAvg is, and how many clients were never asked."""

    def count_values(setting: str, method: str) -> float:
        return float(sum(course["ledger"]["up_values"] for course in results.courses(setting, method)))

    shares = [
        f"{100 * count_values(setting, SUB) / count_values(setting, FEDAVG):.0f}% ({setting})"
        for setting in results.task.settings
    ]
    counts = sorted({course["never_asked"] for course in results.courses(IID, LOCAL)})
    never = [
        f"Of {results.task.clients} clients {' to '.join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))} were"
        " never asked. Their Local models are the random first weights, and count in the mean: some of the lead over"
        " Local is due to that."
    ]
    return [
        "Figure 1 has one point for each method that sends something. The paper also has Sub-FedAvg at several"
        " sparsities; that is left out, since each takes as many runs again. FedSpa at several sparsities is on the"
        " page of fedspa-sparsity.",
        f"Uploads of Sub-FedAvg hold {', '.join(shares)} of the weights on average, those of FedSpa half: where it is"
        " far above that, the two are not compared at equal density, as they are in the paper.",
        *(never if counts[-1] else []),
    ]


def list_bills() -> Iterator[Row]:
    """Bytes and FLOPs of the paper's runs, computed and as printed."""
    import torch

    models = {
        "caffe_lenet5": mo.models.caffe_lenet5(classes=26),
        "vgg11": mo.models.vgg11_gn(classes=10),
        "resnet18": mo.models.resnet18_gn(classes=100, image=(3, 32, 32)),
    }
    for name, bills in BILLS.items():
        rounds, rows, image = SIZES[name]
        for method, (gigabytes, flops) in bills.items():
            density = 0.5 if method == DST else 1.0
            traffic = mo.analysis.bytes_of_run(
                models[name],
                rounds=rounds,
                clients=10,
                density=density,
                up_density=0.5 if method == SUBSAMPLING else None,
            )
            work = mo.analysis.flops_of_run(
                models[name],
                torch.zeros(1, *image),
                rounds=rounds,
                clients=10,
                epochs=5,
                examples=rows,
                density=density,
                search_batch=128 if method == DST else 0,
            )
            yield _bill(f"{name}, {method}: bytes (1e9)", gigabytes, traffic["total"] / 1e9)
            yield _bill(f"{name}, {method}: FLOPs (1e14)", flops, work["total"] / 1e14)
            if method == DST:
                yield _bill(f"{name}, {method}, without search: FLOPs (1e14)", None, work["training"] / 1e14)


def _bill(row: str, paper: float | None, ours: float) -> Row:
    verdict = None
    if paper is not None:  # printed with one digit behind the point
        verdict = HOLDS if abs(ours / paper - 1) <= 0.005 or round(ours, 1) == paper else FAILS
    return {"row": row, "paper": paper, "ours": ours, "interval": None, "verdict": verdict}


ABOUT = (
    f"{PAPER}: Table 1 and Figure 3. Accuracy is the mean over clients of the accuracy of their personal models on test"
    " rows with the labels of their own, in per cent. Bytes go both ways: values alone, as the paper counts, and packed"
    " for the wire, with masks where they are new. FLOPs are those of local training, mask search included."
)
BILL = (
    "No run is needed for it: 4 bytes for each active value, 10 clients, both ways; 2 operations for each multiply-add,"
    " the backward pass twice the forward one, five epochs a turn, each layer at its ERK density, one dense batch of"
    " 128 for the mask search. VGG-11 and ResNet-18 have 1,000 rounds and 500 rows a client; Caffe's LeNet-5 has 400"
    " rounds, which give the printed bytes, and 1,248 rows, a hundredth of EMNIST-Letters (the paper says neither). The"
    " paper prints for RSM what DST costs; without the search it is the row *without search*. A bill holds where it is"
    " within 0.5% of the paper's, or equal to it as printed."
)
EMNIST_PAPER = (
    "The paper's numbers are those of EMNIST-Letters, with Dirichlet(0.2) and (0.1) for A and B: another data set, and"
    " other settings. Its LeNet-5 is Caffe's, with 20 and 50 channels and 500 hidden units: 439,096 parameters, seven"
    " times as many as ours."
)
CIFAR10_PAPER = "The paper's numbers are those of CIFAR-10 with VGG-11."
CLAIMS_PAPER = "Beside claims are its differences with VGG-11 and, on EMNIST-Letters, with LeNet-5."
DITTO_NOTE = (
    "The paper has FedSpa (DST) ahead of Ditto with VGG-11 and ResNet-18; with LeNet-5 its table has Ditto ahead."
)

fedspa_table1 = Experiment(
    name="fedspa-table1",
    summary="FedSpa against six others, labels alike and unlike: accuracy, bytes, FLOPs (Table 1, Huang et al. 2022).",
    plan=plan,
    cells=cells,
    page=page,
    night=True,
)
