"""The works as plain data, made once and read by every runner: examples, cohorts, first weights.

Nothing is left to a framework's chance: examples are in client order, batches are taken in data order, the cohort of
every round is a list, and every runner starts from the same weights. So all must end at the same loss.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import nn

FOLDER = Path(__file__).parent / ".work"
SEED = 0
EXAMPLES = 160
BATCH = 32  # five steps an epoch
STARTED = "BENCHMARK_STARTED"  # the environment's name for the time at which a runner's process was started
WARM_UP = 2  # rounds before those that count


@dataclass(frozen=True)
class Work:
    """One work.

    ``kind`` is ``average``, ``alternate`` (heads, then body), ``finetune`` (heads), ``chains`` (FedPop with personal
    heads, ten steps of each chain), ``sparse`` (FedSpa, searching masks) or ``lora`` (low-rank updates, then the rest).
    """

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
    hidden: tuple[int, ...] = (128,)


IMAGE = (1, 28, 28)
CNN = "convnet 32-64, 62 classes"
MLP = "MLP 784-128-10, 100 clients, 10 a round"
WORKS = {
    "a": Work(MLP, "mlp", "average", (784,), 10, 100, 10, 100, 0.05),
    "b": Work(f"{CNN}, 100 clients, 10 a round", "cnn", "average", IMAGE, 62, 100, 10, 8, 0.05),
    "c": Work(f"{CNN}: ten head epochs, one body epoch", "cnn", "alternate", IMAGE, 62, 100, 10, 3, 0.05, 10),
    "d": Work("linear 60-10, 1,000 clients, 100 a round", "linear", "average", (60,), 10, 1000, 100, 40, 0.02),
    "e": Work(f"{CNN}: five head epochs of all 100 clients", "cnn", "finetune", IMAGE, 62, 100, 100, 1, 0.05, 5, 0),
    "f": Work("FedPop, convnet 32-64, ten steps of a chain a turn", "cnn", "chains", IMAGE, 62, 100, 10, 3, 1e-4),
    "g": Work(f"FedSpa (DST), {MLP}", "mlp", "sparse", (784,), 10, 100, 10, 50, 0.05),
    "h": Work("two-layer transformer, personal LoRA, 10 clients a round", "words", "lora", (20,), 200, 100, 10, 8, 0.5),
}
"""The works of the tables."""


def _of_size(power: int, rounds: int, *hidden: int) -> Work:
    title = f"MLP of 1e{power} parameters, 10 clients a round"
    return Work(title, "mlp", "average", (784,), 10, 20, 10, rounds, 0.05, hidden=hidden)


SIZES = {
    "1e4": _of_size(4, 50, 12),
    "1e5": _of_size(5, 50, 126),
    "1e6": _of_size(6, 10, 1258),
    "1e7": _of_size(7, 3, 2800, 2790),
}
"""One client at a time, by the size of the model."""
COHORTS = {
    f"cohort {n}": Work(f"linear 60-10, {n:,} of 2,000", "linear", "average", (60,), 10, 2000, n, 20, 0.02)
    for n in (10, 100, 1000)
}
ALL = WORKS | SIZES | COHORTS


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

    work = ALL[name]
    rng = np.random.default_rng(SEED)
    x, y = (_make_words if work.model == "words" else _make_pictures)(work, rng)
    cohorts = [uniform_cohort(work.clients, work.cohort, seed=SEED, round=t) for t in range(WARM_UP + rounds)]
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y.astype(np.int64))
    np.save(folder / "cohorts.npy", np.stack(cohorts))
    np.savez(folder / "weights.npz", **{n: p.detach().numpy() for n, p in module(work).named_parameters()})


def _make_pictures(work: Work, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    # An example is its class's picture under noise; every client has classes of its own in a mixture of its own.
    pictures = rng.standard_normal((work.classes, *work.shape), dtype=np.float32) * 8 / np.prod(work.shape) ** 0.5
    if work.model == "cnn":  # of seven by seven squares, which a convolution can see
        pictures = np.kron(rng.standard_normal((work.classes, 1, 7, 7)), np.ones((4, 4))).astype(np.float32)
    mixtures = rng.dirichlet(np.full(work.classes, 0.5), size=work.clients)
    y = np.concatenate([rng.choice(work.classes, size=EXAMPLES, p=p) for p in mixtures])
    x = rng.standard_normal((len(y), *work.shape), dtype=np.float32) + pictures[y]
    flip = rng.random(len(y)) < 0.1
    y[flip] = rng.integers(work.classes, size=flip.sum())
    return x.astype(np.float32), y


def _make_words(work: Work, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Sentences whose next word is the last one's successor, in an order of the client's own, or any word."""
    length, rows = work.shape[0], []
    for _ in range(work.clients):
        successor = rng.permutation(work.classes)
        words = rng.integers(work.classes, size=(EXAMPLES, length + 1))
        follows = rng.random(words.shape) < 0.8
        for at in range(1, length + 1):
            words[:, at] = np.where(follows[:, at], successor[words[:, at - 1]], words[:, at])
        rows.append(words)
    words = np.concatenate(rows)
    return words[:, :-1], words[:, 1:]


def load(name: str) -> Arrays:
    """What ``make`` wrote."""
    folder = FOLDER / name
    x, y, cohorts = (np.load(folder / f"{part}.npy") for part in ("x", "y", "cohorts"))
    return Arrays(ALL[name], x, y, cohorts, dict(np.load(folder / "weights.npz")))


def module(work: Work, weights: dict[str, np.ndarray] | None = None) -> nn.Module:
    """The model in plain PyTorch, with given weights or those of the seed."""
    import torch
    from torch import nn

    torch.manual_seed(SEED)
    if work.model == "words":
        from moiety.models import transformer_lm

        words = transformer_lm(vocabulary=work.classes, length=20, width=64, blocks=2, heads=4, feed_forward=256)
        return _with_weights(words, weights)
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
        widths = (work.shape[0], *(work.hidden if work.model == "mlp" else ()))
        body = [
            layer
            for k, (inputs, outputs) in enumerate(pairwise(widths), 1)
            for layer in ((f"hidden{k}", nn.Linear(inputs, outputs)), (f"relu{k}", nn.ReLU()))
        ]
    width = 512 if work.model == "cnn" else widths[-1]
    return _with_weights(nn.Sequential(OrderedDict([*body, ("head", nn.Linear(width, work.classes))])), weights)


def _with_weights(model: nn.Module, weights: dict[str, np.ndarray] | None) -> nn.Module:
    import torch

    if weights is not None:
        model.load_state_dict(model.state_dict() | {n: torch.from_numpy(w) for n, w in weights.items()})
    return model
