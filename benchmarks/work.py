"""The works as plain data, made once and read by every runner: examples, cohorts, first weights.

Nothing is left to a framework's chance: examples are in client order, batches are taken in data order, the cohort of
every round is a list, and every runner starts from the same weights. So all must end at the same loss.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import nn

FOLDER = Path(__file__).parent / ".work"
SEED = 0
EXAMPLES = 160
BATCH = 32  # five steps an epoch
WARM_UP = 2  # rounds before those that count


@dataclass(frozen=True)
class Work:
    """One row of the table. ``kind`` is ``average``, ``alternate`` (heads, then the body) or ``finetune`` (heads)."""

    title: str
    model: str
    kind: str
    shape: tuple[int, ...]
    classes: int
    clients: int
    cohort: int
    rounds: int
    lr: float
    head_epochs: int = 0
    body_epochs: int = 1


IMAGE = (1, 28, 28)
CNN = "convnet 32-64, 62 classes"
WORKS = {
    "a": Work("MLP 784-128-10, 100 clients, 10 a round", "mlp", "average", (784,), 10, 100, 10, 100, 0.05),
    "b": Work(f"{CNN}, 100 clients, 10 a round", "cnn", "average", IMAGE, 62, 100, 10, 8, 0.05),
    "c": Work(f"{CNN}: ten head epochs, one body epoch", "cnn", "alternate", IMAGE, 62, 100, 10, 3, 0.05, 10),
    "d": Work("linear 60-10, 1,000 clients, 100 a round", "linear", "average", (60,), 10, 1000, 100, 40, 0.02),
    "e": Work(f"{CNN}: five head epochs of all 100 clients", "cnn", "finetune", IMAGE, 62, 100, 100, 1, 0.05, 5, 0),
}


@dataclass(frozen=True)
class Arrays:
    """A work's arrays. Client i owns rows ``EXAMPLES * i`` to ``EXAMPLES * (i + 1)``."""

    work: Work
    x: np.ndarray
    y: np.ndarray
    cohorts: np.ndarray
    weights: dict[str, np.ndarray]

    def rows(self, client: int) -> slice:
        """The rows of one client."""
        return slice(EXAMPLES * client, EXAMPLES * (client + 1))


def make(name: str, rounds: int) -> None:
    """Write a work's arrays for ``rounds`` rounds that count; needs moiety, whose cohorts all runners follow."""
    from moiety.clients import uniform_cohort

    work = WORKS[name]
    rng = np.random.default_rng(SEED)
    # An example is its class's picture under noise; every client has classes of its own in a mixture of its own.
    pictures = rng.standard_normal((work.classes, *work.shape), dtype=np.float32) * 8 / np.prod(work.shape) ** 0.5
    if work.model == "cnn":  # of seven by seven squares, which a convolution can see
        pictures = np.kron(rng.standard_normal((work.classes, 1, 7, 7)), np.ones((4, 4))).astype(np.float32)
    mixtures = rng.dirichlet(np.full(work.classes, 0.5), size=work.clients)
    y = np.concatenate([rng.choice(work.classes, size=EXAMPLES, p=p) for p in mixtures])
    x = rng.standard_normal((len(y), *work.shape), dtype=np.float32) + pictures[y]
    flip = rng.random(len(y)) < 0.1
    y[flip] = rng.integers(work.classes, size=flip.sum())
    cohorts = [uniform_cohort(work.clients, work.cohort, seed=SEED, round=t) for t in range(WARM_UP + rounds)]
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "x.npy", x.astype(np.float32))
    np.save(folder / "y.npy", y.astype(np.int64))
    np.save(folder / "cohorts.npy", np.stack(cohorts))
    np.savez(folder / "weights.npz", **{n: p.detach().numpy() for n, p in module(work).named_parameters()})


def load(name: str) -> Arrays:
    """What ``make`` wrote."""
    folder = FOLDER / name
    x, y, cohorts = (np.load(folder / f"{part}.npy") for part in ("x", "y", "cohorts"))
    return Arrays(WORKS[name], x, y, cohorts, dict(np.load(folder / "weights.npz")))


def module(work: Work, weights: dict[str, np.ndarray] | None = None) -> nn.Module:
    """The model in plain PyTorch, with given weights or those of the seed."""
    import torch
    from torch import nn

    torch.manual_seed(SEED)
    body: list[tuple[str, nn.Module]]
    if work.model == "cnn":
        body = [
            ("conv1", nn.Conv2d(1, 32, 5, padding=2)),
            ("relu1", nn.ReLU()),
            ("pool1", nn.MaxPool2d(2)),
            ("conv2", nn.Conv2d(32, 64, 5, padding=2)),
            ("relu2", nn.ReLU()),
            ("pool2", nn.MaxPool2d(2)),
            ("flatten", nn.Flatten()),
            ("hidden", nn.Linear(64 * 7 * 7, 512)),
            ("relu3", nn.ReLU()),
        ]
    else:
        body = [("hidden", nn.Linear(784, 128)), ("relu", nn.ReLU())] if work.model == "mlp" else []
    width = {"cnn": 512, "mlp": 128, "linear": 60}[work.model]
    model = nn.Sequential(OrderedDict([*body, ("head", nn.Linear(width, work.classes))]))
    if weights is not None:
        model.load_state_dict({n: torch.from_numpy(w) for n, w in weights.items()})
    return model
