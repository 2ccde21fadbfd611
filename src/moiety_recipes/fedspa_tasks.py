"""What the recipes of FedSpa train (Huang et al. 2022, section 5.1 and appendix B): data, networks, methods, runs.

At scale ``laptop`` the network is LeNet-5, on Fashion-MNIST and MNIST: 100 clients, 10 a round, five local epochs and
the paper's rates, but 64 rows a client in batches of 16. That makes as many steps in a turn as the paper's 500 rows in
batches of 128. There are tens of rounds instead of hundreds. At scale ``paper`` VGG-11 and ResNet-18 with group
normalisation are trained on CIFAR-10 with the paper's sizes. EMNIST-Letters and CIFAR-100 are not available here. Scale
``ci`` shows that everything runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import moiety as mo
from moiety.experiments import Cell, Cells, Row

if TYPE_CHECKING:
    from torch import nn

IID, A, B = "IID", "A", "B"
SETTINGS = (IID, A, B)
"""How labels are dealt: alike, and by Dirichlet distributions, of which B is the more uneven."""
DST, RSM, DITTO, FEDAVG = "FedSpa (DST)", "FedSpa (RSM)", "Ditto", "FedAvg"
SUB, LOCAL, SUBSAMPLING = "Sub-FedAvg", "Local", "Subsampling"
SOURCES = {
    "digits": "Handwritten digits (scikit-learn), 8 x 8 pixels",
    "fashion_mnist": "Pictures of clothes (Fashion-MNIST), 28 x 28 pixels",
    "mnist": "Handwritten digits (MNIST), 28 x 28 pixels",
    "cifar10": "Photographs (CIFAR-10), 32 x 32 pixels",
}
NETWORKS = {
    "mlp": "a network with one hidden layer of 16",
    "lenet5": "LeNet-5 (61,706 parameters)",
    "vgg11": "VGG-11 with group normalisation",
    "resnet18": "ResNet-18 with group normalisation",
}


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set with a network and the sizes of its runs.

    A client has ``rows`` training rows and ``test`` test rows; with ``test=0`` its test rows are a part of ``rows``.
    ``gamma`` are the parameters of the Dirichlet distributions of settings A and B: the paper's for ten labels. The
    learning rate is ``lr * lr_factor**t``. A run is evaluated every ``every`` rounds.
    """

    source: str
    network: str
    clients: int
    rows: int
    test: int
    batch_size: int
    rounds: int
    every: int
    epochs: int = 5
    cohort: int = 10
    lr: float = 0.1
    lr_factor: float = 0.998
    weight_decay: float = 5e-4
    gamma: tuple[float, ...] = (0.5, 0.3)

    @property
    def name(self) -> str:
        """Its name in tables and folders."""
        return f"{self.source}-{self.network}" if self.source == "cifar10" else self.source

    @property
    def title(self) -> str:
        """The data, the network and the local work, in a sentence."""
        rows = (
            f"{self.rows} training and {self.test} test rows" if self.test else f"{self.rows} rows, test rows included"
        )
        return (
            f"{SOURCES[self.source]}, {NETWORKS[self.network]}; {self.clients} clients of {rows}, {self.epochs} local"
            f" epochs, batches of {self.batch_size}."
        )

    def describe(self, setting: str) -> str:
        """The name of a setting, with the distribution of labels."""
        return setting if setting == IID else f"{setting}: Dirichlet({self.gamma[setting == B]:g})"

    def load(self, setting: str, seed: int) -> mo.FederatedData:
        """The data of a setting. Test rows of a client have the label ratios of its training rows (appendix B.1)."""
        return mo.data.load(
            self.source,
            clients=self.clients,
            partition=mo.data.iid() if setting == IID else mo.data.dirichlet(self.gamma[setting == B]),
            per_client=self.rows,
            test_per_client=self.test or None,
            seed=seed,
        )

    def model(self, seed: int) -> nn.Module:
        """The network with its first weights."""
        builders: dict[str, Callable[..., nn.Module]] = {
            "mlp": partial(mo.models.mlp, 64, 10, hidden=(16,)),
            "lenet5": mo.models.lenet5,
            "vgg11": partial(mo.models.vgg11_gn, classes=10),
            "resnet18": partial(mo.models.resnet18_gn, classes=10, image=(3, 32, 32)),
        }
        return builders[self.network](seed=seed)


DIGITS = Task(
    source="digits",
    network="mlp",
    clients=6,
    rows=20,
    test=0,
    batch_size=8,
    rounds=2,
    every=1,
    epochs=2,
    cohort=3,
)
LENET = Task(source="fashion_mnist", network="lenet5", clients=100, rows=64, test=50, batch_size=16, rounds=25, every=5)
VGG = Task(source="cifar10", network="vgg11", clients=100, rows=500, test=100, batch_size=128, rounds=1000, every=20)
RESNET = replace(VGG, network="resnet18")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is trained at one scale."""

    tasks: tuple[Task, ...]
    seeds: int


def plan_resnet(scale: str) -> Plan:
    """The plan of recipes whose numbers the paper has for ResNet-18 alone."""
    task = {"ci": DIGITS, "paper": RESNET}.get(scale, LENET)
    return Plan(tasks=(task,), seeds=1 if scale == "ci" else 3)


def build_fedspa(task: Task, **changes: Any) -> mo.Algorithm:
    """FedSpa as the paper trains it, but for ``changes``: other options of ``moiety.fedspa``."""
    return mo.fedspa(
        shared=local_sgd(task, task.epochs), schedule=mo.schedule.geometric(factor=task.lr_factor), **changes
    )


def local_sgd(task: Task, epochs: int) -> Any:
    """The local work of a task."""
    return mo.sgd(task.lr, epochs=epochs, batch_size=task.batch_size, weight_decay=task.weight_decay)


def build_fedavg(task: Task) -> mo.Algorithm:
    """FedAvg with the same local work."""
    return mo.fedavg(
        shared=local_sgd(task, task.epochs),
        weighting="uniform",
        schedule=mo.schedule.geometric(factor=task.lr_factor),
    )


def build_methods(task: Task, *, prune_rate: float, without: Sequence[str] = ()) -> dict[str, mo.Algorithm]:
    """The methods of Table 1, but for some of them.

    Ditto splits its epochs: of five, two are for the shared and three for the personal model.
    """
    schedule = mo.schedule.geometric(factor=task.lr_factor)
    shared_epochs = max(1, 2 * task.epochs // 5)
    methods = {
        DST: build_fedspa(task),
        RSM: build_fedspa(task, search="rsm"),
        DITTO: mo.ditto(
            shared=local_sgd(task, shared_epochs),
            personal=replace(local_sgd(task, max(1, task.epochs - shared_epochs)), pull=0.5),
            weighting="uniform",
            schedule=schedule,
        ),
        FEDAVG: build_fedavg(task),
        SUB: mo.sub_fedavg(
            shared=local_sgd(task, task.epochs),
            prune_rate=prune_rate,
            accuracy=0.5,
            distance=1e-4,
            schedule=schedule,
        ),
        LOCAL: mo.local_only(personal=local_sgd(task, task.epochs), schedule=schedule),
        SUBSAMPLING: mo.subsampling(shared=local_sgd(task, task.epochs), schedule=schedule),
    }
    return {name: algorithm for name, algorithm in methods.items() if name not in without}


def run_cells(plan: Plan, seeds: Sequence[int], *, build: Callable[[Task], Mapping[str, mo.Algorithm]]) -> Cells:
    """A run of every method in every setting. ``build`` makes the methods of a task.

    Methods of one setting and seed share data, first weights and cohorts.
    """
    for task in plan.tasks:
        task.load(IID, seeds[0])  # before anything is written: it may be missing
    for task, setting, seed in itertools.product(plan.tasks, SETTINGS, seeds):
        fed = task.load(setting, seed)
        for method, algorithm in build(task).items():
            yield Cell(
                key=(task.name, setting, seed, method),
                fit=partial(fit_options, task, fed, algorithm, seed),
                keep=keep_local if method == LOCAL else keep_course,
                group=task.name,
            )


def fit_options(task: Task, fed: mo.FederatedData, algorithm: mo.Algorithm, seed: int) -> dict[str, Any]:
    """The arguments of ``moiety.fit``."""
    return {
        "model": task.model(seed),
        "data": fed,
        "algorithm": algorithm,
        "rounds": task.rounds,
        "cohort": task.cohort,
        "seed": seed,
        "settings": mo.Settings(evaluate_every=min(task.every, task.rounds)),
    }


def keep_course(run: mo.Run) -> Row:
    """Accuracies along the rounds, of personal models and of the shared one, and what the run cost."""
    columns = {"rounds": "round", "scores": "metric", "shared": "shared_metric"}
    course = {name: [row[key] for row in run.history] for name, key in columns.items()}
    return {**course, "ledger": dict(run.ledger)}


def keep_local(run: mo.Run) -> Row:
    """The same for local training, and how many clients were never asked: they still have the first weights."""
    first = run.shared_parameters()
    models = [run.parameters(row["client"]) for row in run.clients]
    never = sum(all(bool((model[name] == first[name]).all()) for name in first) for model in models)
    return {**keep_course(run), "never_asked": never}
