"""Clients, batches and trainers for tests of local SGD: ours, one client at a time and side by side, and torch's."""

import copy
import math

import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional

from moiety.local.descent import train
from moiety.local.verbs import autograd_gradient
from moiety.task import from_module
from moiety.task.block import block_gradient
from moiety.types import Work

FEATURES, WIDTH, CLASSES, LR = 5, 4, 3, 0.3
SIZES = [[6, 6, 2], [6, 1], [3]]
"""The batches of three clients. Side by side, the second has a step that is all padding, the third two."""


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh(), nn.Linear(WIDTH, CLASSES)
    )


def make_batches(sizes: list[int], seed: int, shape=(FEATURES,), labels=None) -> list[dict[str, torch.Tensor]]:
    """Batches with rows of a shape; ``labels`` is that of a row's numbers, for regression."""
    draw = torch.Generator().manual_seed(seed)
    batches = []
    for n in sizes:
        x = torch.randn(n, *shape, generator=draw, dtype=torch.float64)
        y = torch.randint(CLASSES, (n,), generator=draw)
        if labels is not None:
            y = torch.randn(n, *labels, generator=draw, dtype=torch.float64)
        batches.append({"x": x, "y": y})
    return batches


def train_by_torch(module, batches, names, *, decay=0.0, pull=0.0, momentum=0.0, loss_of=None):
    """The parameters after ``torch.optim.SGD``; ``loss_of(module, batch)`` is cross-entropy by default."""
    loss_of = loss_of or (lambda module, batch: functional.cross_entropy(module(batch["x"]), batch["y"]))
    module = copy.deepcopy(module)
    centre = {n: torch.full_like(p, 0.5) for n, p in module.named_parameters()}
    for name, p in module.named_parameters():
        p.requires_grad_(name in names)
    params = {n: p for n, p in module.named_parameters() if n in names}
    optimiser = torch.optim.SGD(params.values(), lr=LR, weight_decay=decay, momentum=momentum)
    for batch in batches:
        optimiser.zero_grad()
        loss = loss_of(module, batch)
        loss = loss + sum(pull / 2 * (p - centre[n]).square().sum() for n, p in params.items())
        loss.backward()
        optimiser.step()
    return {n: p.detach() for n, p in module.named_parameters()}


def work_for(module, gradient, loss="cross_entropy", **options):
    """What a client has at hand to train a module."""
    task = from_module(module, loss=loss, **options)
    common = {"shared": (), "personal": (), "compose": None, "parts": None, "batches": None, "scale": 1.0}
    return Work(task=task, gradient=gradient, examples=torch.tensor(1.0, dtype=torch.float64), **common)


def train_single(module, batches, names, how, **options):
    """One client: its model, and the mean loss."""
    work = work_for(module, autograd_gradient, **options)
    centre = {n: torch.full_like(p, 0.5) for n, p in work.task.init.items()}
    before = {n: p.clone() for n, p in work.task.init.items()}
    with torch.no_grad():
        new, loss = train(work, work.task.init, batches, {names: how}, centre=centre)
    assert all(torch.equal(p, before[n]) for n, p in work.task.init.items()), "the given model is not changed"
    return new, loss


def train_block(module, names, how, shape=(FEATURES,), labels=None, **options):
    """The clients of ``SIZES`` side by side; what a client computes from padding alone is not finite."""
    work = work_for(module, block_gradient, **options)
    centre = {n: torch.full_like(p, 0.5) for n, p in work.task.init.items()}
    x = torch.full((3, 3, 6, *shape), math.inf, dtype=torch.float64)
    y = torch.zeros(3, 3, 6, *(labels or ()), dtype=torch.int64 if labels is None else torch.float64)
    mask = torch.zeros(3, 3, 6, dtype=torch.bool)
    for c, sizes in enumerate(SIZES):
        for k, batch in enumerate(make_batches(sizes, c, shape, labels)):
            n = sizes[k]
            x[c, k], x[c, k, :n], y[c, k, :n], mask[c, k, :n] = batch["x"][0], batch["x"], batch["y"], True

    def one(x, y, mask):
        batches = [{"x": x[k], "y": y[k], "mask": mask[k]} for k in range(3)]
        return train(work, work.task.init, batches, {names: how}, centre=centre)

    with torch.no_grad():
        return vmap(one)(x, y, mask)
