"""What the recipes of FedSpa train (Huang et al. 2022, section 5.1 and appendix B): data, networks, methods, runs.

At scale ``night`` the network is a perceptron on Fashion-MNIST averaged to 14 x 14 pixels: small, so that 400 rounds
and five seeds fit into an hour. Every method has its learning rate chosen on validation rows of a seed that is not
reported. At scale ``laptop`` the network is LeNet-5, on Fashion-MNIST and MNIST: 100 clients, 10 a round, five local
epochs and the paper's rates, but 64 rows a client in batches of 16. That makes as many steps in a turn as the paper's
500 rows in batches of 128. There are tens of rounds instead of hundreds. At scale ``paper`` VGG-11 and ResNet-18 with
group normalisation are trained on CIFAR-10 with the paper's sizes. EMNIST-Letters and CIFAR-100 are not available here.
Scale ``ci`` shows that everything runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import moiety as mo
from moiety.experiments import Cell, Cells, Row
from moiety_recipes.pictures import average_pixels

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
    "small": "a perceptron with hidden layers of 64 and 32 on 14 x 14 pixels (15,018 parameters)",
    "lenet5": "LeNet-5 (61,706 parameters)",
    "caffe_lenet5": "Caffe's LeNet-5 (431,080 parameters)",
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
    settings: tuple[str, ...] = SETTINGS

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
            f"{SOURCES[self.source]}, {NETWORKS[self.network]}; {self.clients} clients of {rows},"
            f" {mo.reports.format_count(self.epochs, 'local epoch')}, batches of {self.batch_size}."
        )

    def describe(self, setting: str) -> str:
        """The name of a setting, with the distribution of labels."""
        return setting if setting == IID else f"{setting}: Dirichlet({self.gamma[setting == B]:g})"

    def load(self, setting: str, seed: int, validation: float = 0.0) -> mo.FederatedData:
        """The data of a setting. Test rows of a client have the label ratios of its training rows (appendix B.1)."""
        fed = mo.data.load(
            self.source,
            clients=self.clients,
            partition=mo.data.iid() if setting == IID else mo.data.dirichlet(self.gamma[setting == B]),
            per_client=self.rows,
            test_per_client=self.test or None,
            validation=validation,
            seed=seed,
        )
        return average_pixels(fed) if self.network == "small" else fed

    def model(self, seed: int) -> nn.Module:
        """The network with its first weights."""
        builders: dict[str, Callable[..., nn.Module]] = {
            "mlp": partial(mo.models.mlp, 64, 10, hidden=(16,)),
            "small": partial(mo.models.mlp, 196, 10, hidden=(64, 32)),
            "lenet5": mo.models.lenet5,
            "caffe_lenet5": mo.models.caffe_lenet5,
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
SMALL = Task(
    source="fashion_mnist", network="small", clients=100, rows=250, test=100, batch_size=64, rounds=400, every=10
)
VGG = Task(source="cifar10", network="vgg11", clients=100, rows=500, test=100, batch_size=128, rounds=1000, every=20)
RESNET = replace(VGG, network="resnet18")


PILOT = 100
"""The seed that rates are chosen on; it is not reported."""
RATES, NIGHT_SEEDS = (0.03, 0.1, 0.3), 5


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is trained at one scale.

    With ``rates``, each method's learning rate in each setting is the one of them with the best score on validation
    rows of the seed ``PILOT``; without, all have the task's.
    """

    tasks: tuple[Task, ...]
    seeds: int
    rates: tuple[float, ...] = ()


def plan_resnet(scale: str) -> Plan:
    """The plan of recipes whose numbers the paper has for ResNet-18 alone."""
    if scale == "night":
        return Plan(tasks=(SMALL,), seeds=NIGHT_SEEDS, rates=RATES)
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


Methods = Callable[[Task], "Mapping[str, mo.Algorithm]"]
"""Makes the methods of a task, with its learning rate."""
Rates = dict[tuple[str, str, str], float]
"""By task, setting and method."""


def run_cells(plan: Plan, seeds: Sequence[int], *, build: Methods) -> Cells:
    """A run of every method in every setting, side by side.

    Methods of one setting and seed share data, first weights and cohorts.
    """
    for task in plan.tasks:
        task.load(task.settings[0], seeds[0])  # before anything is written: it may be missing
    rates = yield from choose_rates(plan, build)
    for task, seed in itertools.product(plan.tasks, seeds):
        for setting in task.settings:
            fed = task.load(setting, seed)
            yield [
                Cell(
                    key=(task.name, setting, seed, method),
                    fit=partial(fit_options, task, fed, algorithm, seed),
                    keep=keep_local if method == LOCAL else keep_course,
                    group=task.name,
                )
                for method, algorithm in build_tuned(task, setting, build, rates).items()
            ]


def build_tuned(task: Task, setting: str, build: Methods, rates: Rates) -> dict[str, mo.Algorithm]:
    """The methods, each with the rate that was chosen for it."""
    return {
        method: build(replace(task, lr=rates.get((task.name, setting, method), task.lr)))[method]
        for method in build(task)
    }


def rate_key(task: Task, setting: str, method: str, rate: float) -> tuple[str | int, ...]:
    """The cell that tries a rate."""
    return (task.name, "rates", setting, method, f"{rate:g}")


def choose_rates(plan: Plan, build: Methods) -> Generator[list[Cell], list[Row], Rates]:
    """Try every rate on validation rows; of equal scores the smaller rate is taken."""
    rates: Rates = {}
    for task in plan.tasks if plan.rates else ():
        for setting in task.settings:
            fed = task.load(setting, PILOT, validation=0.2)
            tries = list(itertools.product(build(task), plan.rates))
            rows = yield [
                Cell(
                    key=rate_key(task, setting, method, rate),
                    fit=partial(
                        fit_options, task, fed, build(replace(task, lr=rate))[method], PILOT, part="validation"
                    ),
                    keep=keep_course,
                    stored=False,
                    group=task.name,
                )
                for method, rate in tries
            ]
            scores = {trial: row["scores"][-1] for trial, row in zip(tries, rows, strict=True)}
            for method in build(task):
                best = max(plan.rates, key=lambda rate: (scores[method, rate], -rate))
                rates[task.name, setting, method] = best
    return rates


def fit_options(
    task: Task, fed: mo.FederatedData, algorithm: mo.Algorithm, seed: int, part: str = "test"
) -> dict[str, Any]:
    """The arguments of ``moiety.fit``."""
    return {
        "model": task.model(seed),
        "data": fed,
        "algorithm": algorithm,
        "rounds": task.rounds,
        "cohort": task.cohort,
        "seed": seed,
        "settings": mo.Settings(evaluate_every=min(task.every, task.rounds), evaluate_on=part),
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
    count = sum(all(bool((model[name] == first[name]).all()) for name in first) for model in models)
    return {**keep_course(run), "never_asked": count}
