"""Table 1 of FedSpa (Huang et al. 2022): accuracy, bytes and FLOPs of seven methods in three settings.

The bill of the paper's own runs (VGG-11 and ResNet-18, 1,000 rounds) needs no training and stands in the table at every
scale; that of the runs made here comes from their ledgers. What is trained at which scale stands in ``fedspa_tasks``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import moiety as mo
from moiety.recipes.base import Outcome, Watch, unwatched
from moiety.recipes.fedspa_report import (
    PAPER,
    Numbers,
    Row,
    Says,
    accuracy_rows,
    counted,
    curves,
    judged,
    task_parts,
    write,
)
from moiety.recipes.fedspa_runs import IID, SETTINGS, B, Courses, Found, Task, experiment
from moiety.recipes.fedspa_tasks import (
    DITTO,
    DST,
    FEDAVG,
    LOCAL,
    PRUNED_FASTER,
    RSM,
    SUB,
    SUBSAMPLING,
    ci,
    cifar10,
    laptop,
    rows_of_table_1,
)

if TYPE_CHECKING:
    from moiety.types import Algorithm

NAME = "fedspa-table1"
ABOUT = (
    f"{PAPER}: Table 1 and Figure 3. Accuracy is the mean over clients of the accuracy of their personal models on test"
    " rows with the labels of their own, in per cent. Bytes go both ways: values alone, as the paper counts, and packed"
    " for the wire, with masks where they are new. FLOPs are those of local training, mask search included."
)
_METHODS = (DST, RSM, DITTO, FEDAVG, SUB, LOCAL, SUBSAMPLING)


def _columns(*columns: tuple[float, ...]) -> Numbers:
    return {
        setting: dict(zip(_METHODS, column, strict=True)) for setting, column in zip(SETTINGS, columns, strict=True)
    }


EMNIST = _columns(
    (92.2, 92.9, 92.9, 93.5, 90.7, 77.6, 93.3),
    (95.3, 91.9, 95.9, 92.3, 94.9, 87.8, 92.0),
    (96.5, 90.6, 97.0, 90.9, 96.4, 91.6, 91.3),
)
CIFAR10 = _columns(
    (83.4, 84.5, 83.5, 84.8, 71.8, 42.5, 83.0),
    (86.6, 82.1, 86.4, 82.0, 78.3, 63.6, 78.9),
    (88.2, 80.9, 87.8, 81.4, 79.6, 69.4, 76.7),
)
CLAIMS = (
    Says(B, DST, FEDAVG),
    Says(B, DST, SUB),
    Says(B, DST, LOCAL),
    Says(B, DST, DITTO),
    Says(B, DST, RSM),
    Says(IID, FEDAVG, DST),
    Says(IID, RSM, FEDAVG, within=2.0),
)
BILLS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "vgg11": {FEDAVG: (738.5, 229.3), DST: (369.2, 172.9), SUBSAMPLING: (553.9, 229.3)},
    "resnet18": {FEDAVG: (897.6, 833.2), DST: (448.8, 705.1), SUBSAMPLING: (673.2, 833.2)},
}
"""The paper's bytes (1e9) and FLOPs (1e14), IID, of 1,000 rounds with 10 clients of 500 rows and five epochs."""


def fedspa_table1(
    *,
    out: Path | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    engine: str | None = None,
    resume: bool = False,
    watch: Watch = unwatched,
    scale: str | None = None,
) -> Outcome:
    """FedSpa against six others, alike and unlike labels: accuracy, bytes, FLOPs (Table 1 of Huang et al. 2022).

    The arguments are those of ``experiment``.
    """
    options: dict[str, Any] = {"scale": scale, "out": out, "rounds": rounds, "seed": seed, "engine": engine}
    return experiment(NAME, tasks, report, **options, resume=resume, watch=watch)


def tasks(scale: str) -> list[Task]:
    """What is trained at a scale."""
    if scale == "ci":
        return ci(rows_of_table_1, seeds=2)
    if scale == "paper":
        return cifar10(rows_of_table_1, every=20)

    def methods(how: Mapping[str, Any]) -> dict[str, Algorithm]:
        return rows_of_table_1(how, prune_rate=0.2)

    paper = (
        "The paper's numbers are those of EMNIST-Letters, with Dirichlet(0.2) and (0.1) for A and B: another data set,"
        " and other settings. Its LeNet-5 is another too: 14.1 GB are those of about 176,000 parameters."
    )
    notes = (
        PRUNED_FASTER,
        "The paper has FedSpa (DST) ahead of Ditto with VGG-11 and ResNet-18; with LeNet-5 its table has Ditto ahead.",
    )
    options: dict[str, Any] = {"paper": paper, "notes": notes}
    return [
        laptop("fashion_mnist", methods, rounds=25, seeds=3, every=5, **options),
        laptop("mnist", methods, rounds=15, seeds=3, every=5, **options),
    ]


def report(asked: dict[str, Any], found: Found, out: Path | None) -> tuple[str, str]:
    """The page and its closing sentence."""
    bills = accounting()

    def parts(task: Task, courses: Courses) -> tuple[list[str], list[Row]]:
        paper = CIFAR10 if task.name == "cifar10-vgg11" else EMNIST if task.name in ("fashion_mnist", "mnist") else {}
        rows, claims = accuracy_rows(task, courses, paper), judged(task, courses, CLAIMS)
        figure = curves(task, courses, [m for m in task.methods if m != SUBSAMPLING], f"{task.name}.png", out)
        return [*task_parts(task, rows, claims), seen(task, courses, asked["seed"]), *figure], [*rows, *claims]

    first = ["## The bill of the paper's runs", _BILL, _bills(bills)]
    text, rows = write(NAME, ABOUT, asked, found, parts, out, {"accounting": bills}, first)
    printed = [bill["verdict"] for bill in bills if bill["verdict"]]
    return text, f"{printed.count('holds')} of {len(printed)} bills are the paper's within 0.5%; {counted(rows)}"


def seen(task: Task, courses: Courses, seed: int) -> str:
    """What else a comparison should know: how dense Sub-FedAvg is, and who was never asked."""
    from moiety.clients import uniform_cohort

    def sent(setting: str, method: str) -> float:
        return float(sum(course.ledger["up_values"] for course in courses[setting, method]))

    shares = [f"{100 * sent(setting, SUB) / sent(setting, FEDAVG):.0f}% ({setting})" for setting in SETTINGS]
    clients = len(task.data(IID, seed))
    asked = [
        {int(c) for t in range(task.rounds) for c in uniform_cohort(clients, task.cohort, seed=each, round=t)}
        for each in range(seed, seed + task.seeds)
    ]
    never = sorted({clients - len(some) for some in asked})
    return (
        f"- Uploads of Sub-FedAvg hold {', '.join(shares)} of the weights on average, those of FedSpa half: where it is"
        " far above that, the two are not compared at equal density, as they are in the paper.\n"
        f"- Of {clients} clients {' to '.join(str(n) for n in dict.fromkeys((never[0], never[-1])))} were never asked."
        " Their Local models are the random first weights, and count in the mean: some of the lead over Local is due to"
        " that."
    )


_BILL = (
    "No run is needed for it: 4 bytes for each active value, 10 clients, both ways, 1,000 rounds; 2 operations for each"
    " multiply-add, the backward pass twice the forward one, 500 rows and five epochs a turn, each layer at its ERK"
    " density, and one dense batch of 128 for the mask search. The paper prints for RSM what DST costs; without the"
    " search it is the row *without search*. A bill holds where it is within 0.5% of the paper's."
)


def accounting() -> list[Row]:
    """Bytes and FLOPs of the paper's runs on 32 x 32 pixels, computed and as printed."""
    import torch

    from moiety.analysis.costs import bytes_of_run, flops_of_run

    models = {
        "vgg11": mo.models.vgg11_gn(classes=10),
        "resnet18": mo.models.resnet18_gn(classes=100, image=(3, 32, 32)),
    }
    example = torch.zeros(1, 3, 32, 32)
    runs: dict[str, Any] = {"rounds": 1000, "clients": 10}
    sparse: dict[str, dict[str, Any]] = {FEDAVG: {}, SUBSAMPLING: {}, DST: {"density": 0.5, "search_batch": 128}}
    rows = []
    for name, printed in BILLS.items():
        model = models[name]
        for method, (gigabytes, flops) in printed.items():
            shares = {"up_density": 0.5} if method == SUBSAMPLING else {"density": sparse[method].get("density", 1.0)}
            sent = bytes_of_run(model, **runs, **shares)["total"] / 1e9
            done = flops_of_run(model, example, epochs=5, examples=500, **runs, **sparse[method])
            rows += [
                _bill(f"{name}, {method}: bytes (1e9)", gigabytes, sent),
                _bill(f"{name}, {method}: FLOPs (1e14)", flops, done["total"] / 1e14),
            ]
            if method == DST:
                rows.append(_bill(f"{name}, {method}, without search: FLOPs (1e14)", None, done["training"] / 1e14))
    return rows


def _bill(row: str, paper: float | None, ours: float) -> Row:
    verdict = None if paper is None else "holds" if abs(ours / paper - 1) <= 0.005 else "does not hold"
    return {"row": row, "paper": paper, "ours": ours, "interval": None, "verdict": verdict}


def _bills(rows: list[Row]) -> str:
    from moiety.reports.tables import markdown

    return markdown(rows, columns={"row": "", "paper": "paper", "ours": "ours", "verdict": "verdict"}, digits=1)
