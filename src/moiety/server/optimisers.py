"""Server optimisers: how the mean change of the clients moves the shared parameters.

The mean change is taken as a descent direction (Reddi et al. 2021, "Adaptive Federated Optimization"): its negative is
given to an optimiser of ``torch.optim`` as the gradient. The optimiser's state is part of the server's state, so
it persists across rounds and checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from moiety.errors import kind, number, positive
from moiety.spec import recorded
from moiety.types import Params, ServerOptimiser, Tree


class _Yogi(torch.optim.Optimizer):
    """Yogi (Zaheer et al. 2018): Adam with an additive second moment, v <- v - (1 - b2) sign(v - g^2) g^2."""

    def __init__(self, params: Iterable[Tensor], lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            (b1, b2), lr, eps = group["betas"], group["lr"], group["eps"]
            for p in group["params"]:
                state, square = self.state[p], p.grad.square()
                if not state:
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.full_like(p, eps**2)
                state["exp_avg"].mul_(b1).add_(p.grad, alpha=1 - b1)
                moved = torch.sign(state["exp_avg_sq"] - square) * square
                state["exp_avg_sq"].sub_(moved, alpha=1 - b2)
                p.sub_(lr * state["exp_avg"] / (state["exp_avg_sq"].sqrt() + eps))


def _functional(make: Callable[[list[Tensor]], torch.optim.Optimizer]) -> ServerOptimiser:
    """A pure view of a ``torch.optim`` optimiser: state in, state out, no argument edited."""

    def run(shared: Params, change: Params, state: Tree) -> tuple[Params, Tree]:
        if not shared:  # everything is personal: torch refuses an optimiser of nothing
            return {}, {}
        moved = {n: p.clone() for n, p in shared.items()}
        optimiser = make(list(moved.values()))
        for name, p in moved.items():
            p.grad = -change[name]
            if name in state:
                optimiser.state[p] = {k: v.clone() for k, v in state[name].items()}
        optimiser.step()
        kept = {n: {k: v for k, v in optimiser.state[p].items() if v is not None} for n, p in moved.items()}
        for p in moved.values():
            p.grad = None
        return moved, kept

    return ServerOptimiser(lambda shared: {}, run)


@recorded
def sgd(*, lr: float = 1.0, momentum: float = 0.0) -> ServerOptimiser:
    """Plain averaging at ``lr`` 1; with ``momentum``, FedAvgM."""
    _check(lr)
    number("server.momentum", momentum, ">= 0 and < 1", lambda x: 0 <= x < 1)
    if momentum:
        return _functional(lambda p: torch.optim.SGD(p, lr=lr, momentum=momentum))
    return ServerOptimiser(
        init=lambda shared: {},
        step=lambda shared, change, state: ({n: p.add(change[n], alpha=lr) for n, p in shared.items()}, {}),
    )


@recorded
def adam(*, lr: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> ServerOptimiser:
    """FedAdam: Adam on the mean change, bias-corrected as Pillutla et al. 2022 have it (Reddi et al. 2021 are not)."""
    _check(lr, beta1, beta2, eps)
    return _functional(lambda p: torch.optim.Adam(p, lr=lr, betas=(beta1, beta2), eps=eps))


@recorded
def adagrad(*, lr: float, eps: float = 1e-10) -> ServerOptimiser:
    """FedAdagrad; the sum of squares starts at eps^2, the least that Reddi et al. 2021 allow."""
    _check(lr, eps=eps)
    return _functional(lambda p: torch.optim.Adagrad(p, lr=lr, eps=eps, initial_accumulator_value=eps**2))


@recorded
def yogi(*, lr: float, beta1: float = 0.9, beta2: float = 0.99, eps: float = 1e-3) -> ServerOptimiser:
    """FedYogi, with the constants of Reddi et al. 2021 (no bias correction, second moment starts at eps^2)."""
    _check(lr, beta1, beta2, eps)
    return _functional(lambda p: _Yogi(p, lr, (beta1, beta2), eps))


def _check(lr: float, beta1: float = 0.0, beta2: float = 0.0, eps: float = 1.0) -> None:
    positive("server.lr", lr)
    number("server.beta1", beta1, ">= 0 and < 1", lambda x: 0 <= x < 1)
    number("server.beta2", beta2, ">= 0 and < 1", lambda x: 0 <= x < 1)
    number("server.eps", eps, "> 0", lambda x: x > 0)


def server_or_mean(server: ServerOptimiser | None) -> ServerOptimiser:
    """The optimiser given, or plain averaging."""
    hint = "For instance moiety.server.adam(lr=0.001)."
    kind("server", server, (ServerOptimiser, type(None)), "a server optimiser", hint)
    return server or sgd()


SERVERS: dict[str, Callable[..., ServerOptimiser]] = {"sgd": sgd, "adam": adam, "adagrad": adagrad, "yogi": yogi}
