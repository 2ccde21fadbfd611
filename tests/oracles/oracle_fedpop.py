"""FedPop's Algorithm 1 in NumPy, for least squares, where every gradient is a line.

The loss of a row is (a . u + b . z - y)^2 / 2, so with the weight w the log-likelihood of a client is -w |r|^2 / 2 with
r = A u + B z - y; grad_u = -w A' r, grad_z = -w B' r. The prior is normal: log p(z) = -|z - mu|^2 / (2 s^2) - d log s,
grad_z = -(z - mu) / s^2, grad_mu = (z - mu) / s^2, and grad_(log s) = |z - mu|^2 / s^2 - d with one s for all.
The noise is that of ``moiety.random``: chance is an input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import nn

from moiety import random as draws

Columns = Mapping[str, np.ndarray]


def noise(
    client: int, t: int, k: int, size: int, seed: int = 0, purpose: str = "train", key: int | None = None
) -> np.ndarray:
    key = draws.hash_words("client", seed) ^ client if key is None else key
    like = torch.zeros(size, dtype=torch.float64)
    return draws.normal(torch.tensor(key), like, draws.hash_words(purpose, t), "chain", k).numpy()


@dataclass
class Reference:
    """The numbers of a run: ``u``, ``mu`` and ``rho`` (the logarithm of s) move, ``last`` has all samples.

    ``iterates`` has (u, mu, rho) after each round, and the factor of the steps that led there.
    """

    clients: Sequence[Columns]
    u: np.ndarray
    mu: np.ndarray
    rho: float
    step: float
    weight: float
    eta_shared: float
    eta_prior: float
    samples: int
    b: int
    thinning: int = 1
    burn_in: int = 0
    warm: bool = True
    decay: float = 0.0
    hyper: tuple[float, float] = (0.0, 0.0)
    radius: float = np.inf
    last: dict[int, list[np.ndarray]] = field(default_factory=dict)
    iterates: list[tuple[np.ndarray, np.ndarray, float, float]] = field(default_factory=list)

    def chain(self, i: int, z: np.ndarray, t: int, purpose: str = "train", key: int | None = None) -> list[np.ndarray]:
        """Lines 6 to 8 for Langevin dynamics: the samples that are kept."""
        c, points, variance = self.clients[i], [], np.exp(2 * self.rho)
        once = self.samples * self.thinning
        for k in range((1 + self.burn_in) * once):
            r = c["a"] @ self.u + c["b"] @ z - c["y"]
            gradient = -self.weight * c["b"].T @ r - (z - self.mu) / variance
            z = z + self.step * gradient + np.sqrt(2 * self.step) * noise(i, t, k, len(z), purpose=purpose, key=key)
            points.append(z)
        return points[-once:][self.thinning - 1 :: self.thinning]

    def run(
        self, rounds: int, cohorts: Sequence[Sequence[int]] | None = None, factors: Sequence[float] | None = None
    ) -> Reference:
        """Algorithm 1; eta_(k+1) of both kinds is its first value times the round's factor, 1 where none are given."""
        start_rho = self.rho
        for t in range(rounds):
            total_u, total_mu, total_rho = np.zeros_like(self.u), np.zeros_like(self.mu), 0.0
            variance, d = np.exp(2 * self.rho), len(self.mu)
            cohort = range(len(self.clients)) if cohorts is None else cohorts[t]
            for i in cohort:
                c = self.clients[i]
                points = self.chain(i, self.last[i][-1] if self.warm and i in self.last else self.mu, t)
                self.last[i] = points
                residuals = [c["a"] @ self.u + c["b"] @ z - c["y"] for z in points]
                total_u += np.mean([-self.weight * c["a"].T @ r for r in residuals], axis=0)
                total_mu += np.mean([(z - self.mu) / variance for z in points], axis=0)
                total_rho += np.mean([((z - self.mu) ** 2).sum() / variance - d for z in points])
            scale, factor = self.b / len(cohort), 1.0 if factors is None else factors[t]
            eta_shared, eta_prior = self.eta_shared * factor, self.eta_prior * factor
            self.u, self.mu, self.rho = (
                self.u + eta_shared * (-self.decay * self.u + scale * total_u),
                self.mu + eta_prior * (-self.hyper[0] * self.mu + scale * total_mu),
                self.rho + eta_prior * (-self.hyper[1] * (self.rho - start_rho) + scale * total_rho),
            )
            # The projection of u: what lies in the ball stays where it is.
            length = np.sqrt((self.u**2).sum())
            if length > self.radius:
                self.u = self.u * (self.radius / length)
            self.iterates.append((self.u, self.mu, self.rho, factor))
        return self

    def average(self) -> Reference:
        """The same clients at Theorem 1's mean of the iterates, each weighted by the step that led there."""
        total = sum(factor for *_, factor in self.iterates)
        u, mu, rho = (sum(each[k] * each[3] for each in self.iterates) / total for k in range(3))
        return replace(self, u=u, mu=mu, rho=rho)


class Additive(nn.Module):
    """The same model as a module with the columns a and b: a . u + b . z with z in a layer of its own."""

    def __init__(self, u: Sequence[float], z: Sequence[float]) -> None:
        super().__init__()
        self.body = nn.Linear(2, 1, bias=False, dtype=torch.float64)
        self.head = nn.Linear(2, 1, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.body.weight.copy_(torch.tensor([u], dtype=torch.float64))
            self.head.weight.copy_(torch.tensor([z], dtype=torch.float64))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.body(a) + self.head(b)


def columns(client: Columns) -> dict[str, np.ndarray]:
    """A client's rows for ``Additive``, whose output has an axis of its own."""
    return {"a": client["a"], "b": client["b"], "y": client["y"][:, None]}
