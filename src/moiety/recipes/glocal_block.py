"""Many small online runs at once: linear pairs, by the arithmetic of ``glocal_sgd``, ``central`` and ``independent``.

The experiments of the Glocal paper are thousands of runs of some hundred rounds each (data sets, partitions, learning
rates, delays), of a model so small that a round of ``moiety.fit`` is all overhead. Here they are one block of tensors:
trials that share nothing but their shape. ``tests/recipes/test_glocal_block.py`` holds every one of the rules to
``moiety.fit``, parameter by parameter.

A gradient of a linear pair is the slope of the loss in its prediction times the features, so what is under way is one
number an example: no gradient is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from moiety.engines.rows import phase_rows
from moiety.types import Phase

if TYPE_CHECKING:
    from moiety.data import FederatedData

TINY = 1e-10
"""As in ``moiety.local.online``."""
METHODS = ("independent", "central", "glocal")


@dataclass(frozen=True)
class Trials:
    """Data of several trials with the same numbers of clients, rows and features.

    ``x`` [trials, clients, rows, features] with a constant as its last feature, ``y`` [trials, clients, rows, outputs];
    ``rows`` [trials, rounds, clients] says which row comes when.
    """

    x: Tensor
    y: Tensor
    rows: Tensor


@dataclass(frozen=True)
class Block:
    """What to run: for every group its trial, learning rate and delay (each way, in rounds).

    ``globally`` and ``locally`` [trials, features] are 1 for features that the shared and the personal models see.
    """

    trial: Tensor
    lr: Tensor
    delay: Tensor
    method: str = "glocal"
    alignment: str = "aligned"
    globally: Tensor | None = None
    locally: Tensor | None = None


@dataclass(frozen=True)
class Played:
    """What came of all groups.

    The pair in the end, ``shared`` [groups, features, outputs] and ``personal`` [groups, clients, features, outputs];
    ``losses`` [groups, rounds]; and w^g at the rounds asked for, ``moments`` [moments, groups, features, outputs].
    """

    shared: Tensor
    personal: Tensor
    losses: Tensor
    moments: Tensor


def trials(data: Sequence[FederatedData], rounds: int, seeds: Sequence[int]) -> Trials:
    """Training rows and the order in which ``moiety.fit`` with that seed walks through them."""
    x, y, order = [], [], []
    walk = Phase(None, rounds, 1, shuffle=True, walk=True)
    for fed, seed in zip(data, seeds, strict=True):
        clients = [arrays(fed, i, "train") for i in range(len(fed))]
        x.append(torch.stack([c[0] for c in clients]))
        y.append(torch.stack([c[1] for c in clients]))
        n = x[-1].shape[1]
        walks = [phase_rows(walk, 0, n, "online", "train", 0, i, seed=seed).order for i in range(len(fed))]
        order.append(torch.from_numpy(np.stack(walks, axis=1)))
    return Trials(torch.stack(x), torch.stack(y), torch.stack(order))


def arrays(fed: FederatedData, client: int, part: str) -> tuple[Tensor, Tensor]:
    """One client's features with a constant, and its targets: labels 0 and 1, or one column for each class."""
    columns = fed.at(client, part)
    x = torch.from_numpy(np.asarray(columns["x"], dtype=np.float32)).reshape(len(columns["y"]), -1)
    y = torch.from_numpy(np.asarray(columns["y"]))
    several = (fed.classes or 2) > 2
    targets = torch.nn.functional.one_hot(y, fed.classes or 2) if several else y[:, None]
    return torch.cat([x, torch.ones(len(x), 1)], dim=1), targets.float()


def play(data: Trials, block: Block, *, start: tuple[Tensor, Tensor] | None = None, keep: int | None = None) -> Played:
    """Run all groups to the end.

    ``start`` are first values of w^g and of every w_i, 0 by default; ``keep`` keeps w^g of every so many rounds.
    """
    groups, (_, clients, _, features) = len(block.trial), data.x.shape
    outputs, rounds = data.y.shape[-1], data.rows.shape[1]
    shape = (groups, clients, features, outputs)
    u, v = start or (torch.zeros(features, outputs), torch.zeros(features, outputs))
    u, v = u.expand(groups, features, outputs).clone(), v.expand(shape).clone()
    su, sv = torch.zeros_like(u), torch.zeros_like(v)
    shares, keeps = block.method != "independent", block.method != "central"
    longest = int(block.delay.max())
    versions = u.repeat(longest + 1, 1, 1, 1)  # version t in slot t mod (longest + 1)
    slopes = torch.zeros(rounds, groups, clients, outputs)
    by_client = torch.zeros(rounds, groups, clients, outputs)
    losses, moments = torch.zeros(groups, rounds), []
    every = torch.arange(groups)
    lr = block.lr.reshape(-1, 1, 1)
    late = block.alignment == "aligned" and longest > 0

    def example(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Global features, local features and targets of round t, which may differ from group to group."""
        rows = data.rows[block.trial, t]
        at = (block.trial[:, None], torch.arange(clients), rows)
        x, y = data.x[at], data.y[at]
        seen = [x if m is None else x * m[block.trial][:, None] for m in (block.globally, block.locally)]
        return seen[0], seen[1], y

    for t in range(rounds):
        now = torch.full((groups,), t)
        g, own, y = example(now)
        fetched = versions[(now - block.delay).clamp(min=0) % (longest + 1), every]
        by_client[t] = torch.einsum("gpd,gpdk->gpk", own, v) if keeps else 0.0
        by_server = torch.einsum("gpd,gdk->gpk", g, fetched) if shares else 0.0
        error = by_server + by_client[t] - y
        losses[:, t] = error.square().sum(-1).mean(-1)
        slopes[t] = 2 * error
        if shares:
            arrived = now - block.delay
            there = (arrived >= 0).float().reshape(-1, 1, 1)
            s = arrived.clamp(min=0)
            g, _, y = example(s)
            slope = slopes[s, every]
            if block.alignment == "misaligned":
                slope = 2 * (torch.einsum("gpd,gdk->gpk", g, u) + by_client[s, every] - y)
            u, su = _step(u, torch.einsum("gpd,gpk->gdk", g, slope * there), su, lr)
        if keeps:
            slope = slopes[t]
            if late:
                due = now - 2 * block.delay
                s = due.clamp(min=0)
                own = example(s)[1]
                slope = slopes[s, every] * (due >= 0).float().reshape(-1, 1, 1)
            v, sv = _step(v, own[..., None] * slope[..., None, :], sv, lr[..., None])
        versions[(t + 1) % (longest + 1)] = u
        if keep is not None and (t + 1) % keep == 0:
            moments.append(u.clone())
    return Played(u, v, losses, torch.stack(moments) if moments else u[None][:0])


def _step(w: Tensor, gradient: Tensor, squares: Tensor, lr: Tensor) -> tuple[Tensor, Tensor]:
    """Adagrad, in place: all four are the block's own."""
    squares.addcmul_(gradient, gradient)
    return w.sub_(gradient.div_(squares.sqrt().add_(TINY)).mul_(lr)), squares


def accuracy(data: Sequence[FederatedData], part: str, block: Block, found: Played) -> Tensor:
    """The share of rows that the pair gets right, the mean over clients, for every group."""
    scores = torch.zeros(len(block.trial))
    for trial in sorted(set(block.trial.tolist())):
        fed, groups = data[trial], block.trial == trial
        clients = [arrays(fed, client, part) for client in range(len(fed))]
        x, y = (torch.stack(each) for each in zip(*clients, strict=True))
        seen = [x if m is None else x * m[trial] for m in (block.globally, block.locally)]
        p = torch.einsum("pnd,gdk->gpnk", seen[0], found.shared[groups])
        p = p + torch.einsum("pnd,gpdk->gpnk", seen[1], found.personal[groups])
        hit = (p > 0.5) == (y > 0.5) if y.shape[-1] == 1 else (p.argmax(-1) == y.argmax(-1))[..., None]
        scores[groups] = hit.float().mean(dim=(1, 2, 3))
    return scores
