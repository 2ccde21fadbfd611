"""Server optimisers: how the mean change of the clients moves the shared parameters.

The mean change is taken as a descent direction (Reddi et al. 2021, "Adaptive Federated Optimization"): its negative is
given to an optimiser of ``torch.optim`` as the gradient. The optimiser's state is part of the server's state, so
it persists across rounds and checkpoints. The functions of ``torch.optim`` are called, not its classes, which import
PyTorch's compiler: that takes more than a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adagrad import adagrad as torch_adagrad
from torch.optim.adam import adam as torch_adam
from torch.optim.sgd import sgd as torch_sgd

from moiety.errors import kind, number, positive
from moiety.spec import recorded
from moiety.types import Params, ServerOptimiser, Tree

State = dict[str, Tensor]


def _functional(
    first: Callable[[Tensor], State], move: Callable[[list[Tensor], list[Tensor], list[State]], None]
) -> ServerOptimiser:
    """A pure view of an optimiser that edits parameters and states in place: state in, state out.

    ``first`` makes the state of a parameter, and ``move`` is one step, given the gradients.
    """

    @torch.no_grad()
    def run(shared: Params, change: Params, state: Tree) -> tuple[Params, Tree]:
        params = {n: p.clone() for n, p in shared.items()}
        states = {
            name: {k: v.clone() for k, v in state[name].items()} if name in state else first(p)
            for name, p in params.items()
        }
        move(list(params.values()), [-change[n] for n in params], list(states.values()))
        return params, states

    return ServerOptimiser(lambda shared: {}, run)


def _step_count() -> Tensor:
    """The number of steps so far; it counts far beyond what a default type of few digits could."""
    return torch.tensor(0.0, dtype=torch.promote_types(torch.get_default_dtype(), torch.float32))


def _list_columns(states: list[State], *names: str) -> list[list[Tensor]]:
    return [[state[name] for state in states] for name in names]


def _has_complex(params: list[Tensor]) -> bool:
    return any(p.is_complex() for p in params)


@recorded
def sgd(*, lr: float = 1.0, momentum: float = 0.0) -> ServerOptimiser:
    """Plain averaging at ``lr`` 1; with ``momentum``, FedAvgM."""
    _check(lr)
    number("server.momentum", momentum, ">= 0 and < 1", lambda x: 0 <= x < 1)
    if momentum:

        def move(params: list[Tensor], grads: list[Tensor], states: list[State]) -> None:
            buffers: list[Tensor | None] = [state.get("momentum_buffer") for state in states]  # none in the first step
            fixed: dict[str, Any] = {"weight_decay": 0.0, "dampening": 0.0, "nesterov": False, "maximize": False}
            torch_sgd(params, grads, buffers, lr=lr, momentum=momentum, **fixed)
            for state, buffer in zip(states, buffers, strict=True):
                assert buffer is not None
                state["momentum_buffer"] = buffer

        return _functional(lambda p: {}, move)
    return ServerOptimiser(
        init=lambda shared: {},
        step=lambda shared, change, state: ({n: p.add(change[n], alpha=lr) for n, p in shared.items()}, {}),
    )


@recorded
def adam(*, lr: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> ServerOptimiser:
    """FedAdam: Adam on the mean change, bias-corrected as Pillutla et al. 2022 have it (Reddi et al. 2021 are not)."""
    _check(lr, beta1, beta2, eps)

    def first(p: Tensor) -> State:
        return {"step": _step_count(), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}

    def move(params: list[Tensor], grads: list[Tensor], states: list[State]) -> None:
        means, squares, steps = _list_columns(states, "exp_avg", "exp_avg_sq", "step")
        rates: dict[str, Any] = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps}
        fixed: dict[str, Any] = {
            "amsgrad": False,
            "weight_decay": 0.0,
            "maximize": False,
            "has_complex": _has_complex(params),
        }
        torch_adam(params, grads, means, squares, [], steps, **rates, **fixed)

    return _functional(first, move)


@recorded
def adagrad(*, lr: float, eps: float = 1e-10) -> ServerOptimiser:
    """FedAdagrad; the sum of squares starts at eps^2, the least that Reddi et al. 2021 allow.

    However large the clients' mean change is, the first step is ``lr`` long in every number:

    >>> rule = adagrad(lr=0.1)  # then fedavg(shared=0.5, server=rule)
    >>> moved, state = rule.step({"w": torch.zeros(2)}, {"w": torch.tensor([1.0, -4.0])}, {})
    >>> [round(w, 3) for w in moved["w"].tolist()]
    [0.1, -0.1]
    """
    _check(lr, eps=eps)

    def first(p: Tensor) -> State:
        least = complex(eps**2, eps**2) if p.is_complex() else eps**2
        return {"step": _step_count(), "sum": torch.full_like(p, least)}

    def move(params: list[Tensor], grads: list[Tensor], states: list[State]) -> None:
        sums, steps = _list_columns(states, "sum", "step")
        fixed: dict[str, Any] = {
            "weight_decay": 0.0,
            "lr_decay": 0.0,
            "maximize": False,
            "has_complex": _has_complex(params),
        }
        torch_adagrad(params, grads, sums, steps, lr=lr, eps=eps, **fixed)

    return _functional(first, move)


@recorded
def yogi(*, lr: float, beta1: float = 0.9, beta2: float = 0.99, eps: float = 1e-3) -> ServerOptimiser:
    """FedYogi, with the constants of Reddi et al. 2021 (no bias correction, second moment starts at eps^2).

    Yogi (Zaheer et al. 2018) is Adam with an additive second moment, v <- v - (1 - b2) sign(v - g^2) g^2.

    >>> rule = yogi(lr=0.1)  # then fedavg(shared=0.5, server=rule)
    >>> moved, state = rule.step({"w": torch.zeros(2)}, {"w": torch.tensor([1.0, -4.0])}, {})
    >>> [round(w, 3) for w in moved["w"].tolist()]
    [0.099, -0.1]
    """
    _check(lr, beta1, beta2, eps)

    def first(p: Tensor) -> State:
        return {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.full_like(p, eps**2)}

    def move(params: list[Tensor], grads: list[Tensor], states: list[State]) -> None:
        for p, grad, state in zip(params, grads, states, strict=True):
            mean, second, square = state["exp_avg"], state["exp_avg_sq"], grad.square()
            mean.mul_(beta1).add_(grad, alpha=1 - beta1)
            second.sub_(torch.sign(second - square) * square, alpha=1 - beta2)
            p.sub_(lr * mean / (second.sqrt() + eps))

    return _functional(first, move)


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
