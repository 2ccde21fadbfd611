"""Many small online runs at once: linear pairs, by the arithmetic of ``glocal_sgd``, ``central`` and ``independent``.

The experiments of the Glocal paper are thousands of runs of some hundred rounds each (data sets, partitions, learning
rates, delays). The model is so small that a round of ``moiety.fit`` is nearly all overhead, so the runs are one block
of tensors here. ``tests/recipes/test_glocal_block.py`` holds every rule to ``moiety.fit``, parameter by parameter.

The gradient of a linear pair is the slope of the loss in its prediction times the features. So one number is kept for
each example under way, and no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import moiety as mo
from moiety_recipes.glocal_updates import UPDATES


@dataclass(frozen=True)
class Trials:
    """Data of several trials with the same numbers of clients, rows and features.

    ``x`` [trials, clients, rows, features] has a constant as its last feature, ``y`` is [trials, clients, rows,
    outputs]; ``rows`` [trials, rounds, clients] says which row comes when.
    """

    x: Tensor
    y: Tensor
    rows: Tensor


@dataclass(frozen=True)
class Block:
    """What to run: groups, each with its trial, learning rate and delay (each way, in rounds).

    ``globally`` and ``locally`` [trials, features] are 1 for features that the shared and the personal models see; None
    is all of them.
    """

    trial: Tensor
    lr: Tensor
    delay: Tensor
    method: str = "glocal"
    alignment: str = "aligned"
    globally: Tensor | None = None
    locally: Tensor | None = None
    rule: str = "adagrad"

    def mask(self, x: Tensor, trial: int | Tensor) -> tuple[Tensor, Tensor]:
        """The features that the shared model and the personal models see."""
        shared, personal = (
            x if mask is None else x * mask[trial][..., None, :] for mask in (self.globally, self.locally)
        )
        return shared, personal


@dataclass(frozen=True)
class Outcome:
    """What came of all groups.

    The last pair is ``shared`` [groups, features, outputs] and ``personal`` [groups, clients, features, outputs].
    ``losses`` are [groups, rounds], and ``course`` is the shared model of every round, where it is kept.
    """

    shared: Tensor
    personal: Tensor
    losses: Tensor
    course: list[Tensor]


def stack_trials(data: Sequence[mo.FederatedData], rounds: int, seeds: Sequence[int]) -> Trials:
    """The training rows, and the order in which ``moiety.fit`` with the trial's seed walks through them."""
    x, y = (torch.stack(each) for each in zip(*(stack_clients(fed, "train") for fed in data), strict=True))
    return Trials(x, y, torch.stack([draw_walks(x.shape[1], x.shape[2], rounds, seed) for seed in seeds]))


def stack_clients(fed: mo.FederatedData, part: str) -> tuple[Tensor, Tensor]:
    """All clients' features with a constant, and targets: labels 0 and 1, or one column for each class."""
    clients = [fed.at(client, part) for client in range(len(fed))]
    x = torch.from_numpy(np.stack([np.asarray(own["x"], dtype=np.float32) for own in clients])).flatten(2)
    y = torch.from_numpy(np.stack([own["y"] for own in clients]))
    targets = torch.nn.functional.one_hot(y, fed.classes or 2) if (fed.classes or 2) > 2 else y[..., None]
    return torch.cat([x, torch.ones(*y.shape, 1)], dim=2), targets.float()


def draw_walks(clients: int, rows: int, rounds: int, seed: int) -> Tensor:
    """Which row each client sees when, [rounds, clients]: pass after pass, each in a fresh order."""
    draws = [
        [mo.random.generator(seed, "batches", "epoch", epoch, "online", "train", client) for client in range(clients)]
        for epoch in range(-(-rounds // rows))
    ]
    walks = np.array([[draw.permutation(rows) for draw in own] for own in draws])  # [passes, clients, rows]
    return torch.from_numpy(walks).movedim(1, 2).flatten(0, 1)[:rounds]


def run_block(
    data: Trials, block: Block, *, start: tuple[Tensor, Tensor] | None = None, keep_course: bool = False
) -> Outcome:
    """Run all groups to the end.

    Args:
        data: the trials.
        block: the groups.
        start: first values of the shared and of every personal model; 0 by default.
        keep_course: keep the shared model of every round.
    """
    groups, (_, rounds, clients) = len(block.trial), data.rows.shape
    features, outputs = data.x.shape[-1], data.y.shape[-1]
    u, v = start or (torch.zeros(features, outputs), torch.zeros(features, outputs))
    u, v = u.expand(groups, features, outputs).clone(), v.expand(groups, clients, features, outputs).clone()
    server, client = UPDATES[block.rule](u), UPDATES[block.rule](v)
    shares, personalises = block.method != "independent", block.method != "central"
    longest = int(block.delay.max())
    versions = u.repeat(longest + 1, 1, 1, 1)  # version t in slot t mod (longest + 1)
    slopes, by_client = torch.zeros(2, rounds, groups, clients, outputs)
    losses, course = torch.zeros(groups, rounds), list[Tensor]()
    every = torch.arange(groups)
    lr = block.lr.reshape(-1, 1, 1)
    waits = block.alignment == "aligned" and longest > 0

    def read(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Global features, local features and targets of round t, which may differ from group to group."""
        at = (block.trial[:, None], torch.arange(clients), data.rows[block.trial, t])
        return *block.mask(data.x[at], block.trial), data.y[at]

    for t in range(rounds):
        now = torch.full((groups,), t)
        for_server, for_client, y = read(now)
        origin = now - block.delay
        received = versions[origin.clamp(min=0) % (longest + 1), every]
        by_client[t] = torch.einsum("gpd,gpdk->gpk", for_client, v) if personalises else 0.0
        by_server = torch.einsum("gpd,gdk->gpk", for_server, received) if shares else 0.0
        error = by_server + by_client[t] - y
        losses[:, t] = error.square().sum(-1).mean(-1)
        slopes[t] = 2 * error
        if shares:
            s = origin.clamp(min=0)
            for_server, _, y = read(s)
            slope = slopes[s, every]
            if block.alignment == "misaligned":
                slope = 2 * (torch.einsum("gpd,gdk->gpk", for_server, u) + by_client[s, every] - y)
            past = _is_past(origin)
            gradient = torch.einsum("gpd,gpk->gdk", for_server, slope * past)
            server.step(gradient, for_server, past, lr)
        if personalises:
            slope, past = slopes[t], torch.ones(groups, 1, 1)
            if waits:
                due = now - 2 * block.delay
                s, past = due.clamp(min=0), _is_past(due)
                for_client = read(s)[1]
                slope = slopes[s, every] * past
            gradient = for_client[..., None] * slope[..., None, :]
            client.step(gradient, for_client[:, :, None], past[..., None], lr[..., None])
        versions[(t + 1) % (longest + 1)] = u
        if keep_course:
            course.append(u.clone())
    return Outcome(u, v, losses, course)


def _is_past(t: Tensor) -> Tensor:
    """1 for rounds that there were, 0 for those before the first."""
    return (t >= 0).float().reshape(-1, 1, 1)


def score_block(data: Sequence[mo.FederatedData], part: str, block: Block, outcome: Outcome) -> Tensor:
    """The share of rows that the pair gets right, the mean over clients, for every group."""
    scores = torch.zeros(len(block.trial))
    for trial in sorted(set(block.trial.tolist())):
        groups = block.trial == trial
        x, y = stack_clients(data[trial], part)
        for_server, for_client = block.mask(x, trial)
        p = torch.einsum("pnd,gdk->gpnk", for_server, outcome.shared[groups])
        p += torch.einsum("pnd,gpdk->gpnk", for_client, outcome.personal[groups])
        hits = (p > 0.5) == (y > 0.5) if y.shape[-1] == 1 else (p.argmax(-1) == y.argmax(-1))[..., None]
        scores[groups] = hits.float().mean(dim=(1, 2, 3))
    return scores
