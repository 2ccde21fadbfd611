"""Inner solvers for w ~ argmin_w f(theta, w): one client's personal parameters, with the shared ones held fixed.

How much they compute is fixed in advance and nothing asks for the value of a tensor, so that they run for one client
and, under ``torch.func.vmap``, for a block of clients. ``moiety.sgd`` walks through batches; those here work on f
itself, the mean over all of the client's data as one batch. ``conjugate_gradient`` and ``exact`` go through the model
once: a product with the Hessian is one more backward pass, which goes no further down than the personal parameters.
``lbfgs`` computes a gradient at every step; what the personal parameters do not reach is then computed once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moiety.errors import SEED, choice, kind, must, number, whole
from moiety.local.descent import train
from moiety.local.quasi_newton import Search, begin
from moiety.local.sgd import WHOLE, Optimiser, optimiser_work
from moiety.local.verbs import from_vector, mean_loss, reuse_rows, to_vector
from moiety.random import generator, normal
from moiety.spec import recorded
from moiety.types import Batch, LossFunction, Objective, Params, Phase, Recorded, Work

W = "w"
MOST = 4096
"""The largest number of personal parameters for which ``exact`` makes the Hessian."""


@dataclass(frozen=True)
class Solver(Recorded):
    """``solve(work, model, batches)`` gives the model with its personal parameters solved for, and the mean loss.

    The loss is the mean over the steps, each at the parameters before its step. ``phase`` says which batches are asked
    for. Without personal parameters the model stays as it is.
    """

    phase: Phase
    solve: Callable[[Work, Params, Iterable[Batch]], tuple[Params, Tensor]]


@recorded
def conjugate_gradient(*, steps: int, tolerance: float | None = None) -> Solver:
    """Conjugate gradients on the quadratic model of f at the start: ``steps`` products with the Hessian.

    The model is f itself where f is quadratic in w (least squares, linear in w): the result is then exact after as many
    steps as there are personal parameters, or distinct eigenvalues of the Hessian. For any other loss it is
    one Newton step, solved to that accuracy. It stands still once the residual is small enough, or where the curvature
    is not positive.

    Args:
        steps: products with the Hessian.
        tolerance: the residual, relative to the first gradient, that is small enough; by default eps^(3/4) of the
            model's precision, about 2e-12 in float64 and 6e-6 in float32.
    """
    whole("solver.steps", steps, 1)
    if tolerance is not None:
        number("solver.tolerance", tolerance, ">= 0 and < 1", lambda x: 0 <= x < 1)

    def newton(gradient: Tensor, curvature: Callable[[Tensor], Tensor]) -> Tensor:
        """Approximately -H^-1 g."""
        least = _negligible(gradient) if tolerance is None else tolerance
        x, r = torch.zeros_like(gradient), -gradient
        p, rr = r, r @ r
        enough = least**2 * rr
        for _ in range(steps):
            hp = curvature(p)
            php = p @ hp
            active = (rr > enough) & (php > 0)
            alpha = torch.where(active, rr / torch.where(active, php, 1), 0)
            x, r = x + alpha * p, r - alpha * hp
            new = r @ r
            p = torch.where(active, r + new / torch.where(active, rr, 1) * p, p)
            rr = torch.where(active, new, rr)
        return x

    return Solver(Phase(1, None, WHOLE, False), _make_newton_solver(newton))


@recorded
def exact() -> Solver:
    """One Newton step with the whole Hessian, which is exact where f is quadratic in w.

    That is: a squared loss of a model that is linear in the personal parameters (an output layer, say), where the
    Hessian is the same everywhere. For any other loss it is one Newton step and no more. Where the minimiser is not
    unique, the one nearest to the start is taken (from 0: the pseudo-inverse of the paper's appendix A).

    Two clients whose targets lie at levels of their own; the personal bias finds each at once:

    >>> import moiety as mo
    >>> import numpy as np
    >>> levels = {"a": 3.0, "b": 7.0}
    >>> fed = mo.data.from_clients({name: {"x": np.zeros((5, 1)), "y": np.full(5, y)} for name, y in levels.items()})
    >>> model, method = mo.models.linear(1, 1), mo.ffgg(shared=0.1, personal=mo.solver.exact())
    >>> split = mo.split.by_name(model, personal=["*bias"])
    >>> run = mo.fit(model, fed, method, split=split, rounds=1, engine="sequential")
    >>> [run.predict(name, np.zeros((1, 1))).round(3).tolist() for name in levels]
    [[3.0], [7.0]]
    """

    def newton(gradient: Tensor, curvature: Callable[[Tensor], Tensor]) -> Tensor:
        size = len(gradient)
        must(size <= MOST, "solver", "one for many personal parameters", f"exact for {size}", "Use conjugate_gradient.")
        identity = torch.eye(size, dtype=gradient.dtype, device=gradient.device)
        hessian = torch.func.vmap(curvature, chunk_size=64)(identity)
        # In float64: with eigenvalues that repeat many times the decomposition may not converge in less. And of finite
        # numbers alone, which it asks for: a client without them gets NaN, and is left out of the round.
        fine = hessian.isfinite().all()
        inverse = torch.linalg.pinv(torch.where(fine, hessian, 0).double(), rtol=_negligible(gradient), hermitian=True)
        return torch.where(fine, -(inverse @ gradient.double()), math.nan).to(gradient.dtype)

    return Solver(Phase(1, None, WHOLE, False), _make_newton_solver(newton))


@recorded
def lbfgs(*, steps: int, memory: int = 10) -> Solver:
    """L-BFGS for a smooth f: ``steps`` new gradients, each at a point that is taken or refused.

    A point is taken where f went down enough (Armijo; near the end, where rounding hides that, the approximate Wolfe
    conditions of Hager and Zhang 2005). One that is refused halves the step. The last point taken is the result.

    Args:
        steps: gradients besides the one at the start.
        memory: how many pairs of steps and gradient changes are remembered.

    Two clients whose targets lie at levels of their own; the personal bias finds each:

    >>> import moiety as mo
    >>> import numpy as np
    >>> levels = {"a": 3.0, "b": 7.0}
    >>> fed = mo.data.from_clients({name: {"x": np.zeros((5, 1)), "y": np.full(5, y)} for name, y in levels.items()})
    >>> model, method = mo.models.linear(1, 1), mo.ffgg(shared=0.1, personal=mo.solver.lbfgs(steps=10))
    >>> split = mo.split.by_name(model, personal=["*bias"])
    >>> run = mo.fit(model, fed, method, split=split, rounds=1, engine="sequential")
    >>> [run.predict(name, np.zeros((1, 1))).round(3).tolist() for name in levels]
    [[3.0], [7.0]]
    """
    whole("solver.steps", steps, 1)
    whole("solver.memory", memory, 1)

    def solve(work: Work, model: Params, batches: Iterable[Batch]) -> tuple[Params, Tensor]:
        if not work.personal:
            return model, torch.zeros_like(work.examples)
        loss_of, batches = reuse_rows(work, model, work.personal, batches)
        start = {name: model[name] for name in work.personal}
        search: Search | None = None
        values: list[Tensor] = []
        for batch in batches:
            point = to_vector(start) if search is None else search.trial
            gradient, value, buffers = work.gradient(_make_objective(work, loss_of, model, batch), {W: point})
            search = begin(point, value, gradient[W], memory) if search is None else search.next(value, gradient[W])
            model = {**model, **buffers}
            values.append(search.value)
        if search is None:
            return model, torch.zeros_like(work.examples)
        return {**model, **from_vector(search.point, start)}, torch.stack(values).double().mean()

    return Solver(Phase(steps + 1, None, WHOLE, False), solve)


def _make_newton_solver(
    step: Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor],
) -> Callable[[Work, Params, Iterable[Batch]], tuple[Params, Tensor]]:
    """A solver that moves the personal parameters by ``step(gradient, product with the Hessian)``."""

    def solve(work: Work, model: Params, batches: Iterable[Batch]) -> tuple[Params, Tensor]:
        loss = torch.zeros_like(work.examples)
        for batch in batches if work.personal else ():
            start = {name: model[name] for name in work.personal}
            point = to_vector(start)
            gradient = torch.func.grad_and_value(_make_objective(work, work.task.loss, model, batch), has_aux=True)
            slope, backward, (value, buffers) = torch.func.vjp(gradient, {W: point}, has_aux=True)  # type: ignore[misc]

            def curvature(vector: Tensor, backward: Any = backward) -> Tensor:
                # The Hessian is symmetric, so the product from the left is the product.
                return backward({W: vector})[0][W]  # type: ignore[no-any-return]

            solution = from_vector(point + step(slope[W], curvature), start)
            model, loss = {**model, **buffers, **solution}, value.double()
        return model, loss

    return solve


def _make_objective(work: Work, loss_of: LossFunction, model: Params, batch: Batch) -> Objective:
    """The mean loss of a batch, from the personal parameters one below the other, under the name ``W``."""
    like = {name: model[name] for name in work.personal}

    def objective(at: Params) -> tuple[Tensor, Params]:
        losses, buffers = loss_of({**model, **from_vector(at[W], like)}, batch)
        return mean_loss(losses, batch), buffers

    return objective


def _negligible(x: Tensor) -> float:
    """The relative size below which a number counts as 0: well above rounding, well below what matters."""
    return float(torch.finfo(x.dtype).eps ** 0.75)


def solver_work(name: str, value: Solver | Optimiser) -> Solver:
    """The solver given as ``name``; an optimiser is one too, on all rows where it names no batch size."""
    if not isinstance(value, Optimiser):
        hint = "For instance moiety.solver.conjugate_gradient(steps=10), or moiety.sgd(0.1, steps=10)."
        kind(name, value, Solver, "an inner solver or what moiety.sgd, adam or adamw makes", hint)
        return value
    must(value.epochs is not None or value.steps is not None, f"{name}.steps", f"given, or {name}.epochs", "neither")
    optimiser = optimiser_work(name, value, batch_size="all")

    def solve(work: Work, model: Params, batches: Iterable[Batch]) -> tuple[Params, Tensor]:
        return train(work, model, batches, {work.personal: optimiser})

    return Solver(optimiser.phase, solve)


FRESH = "fresh"
"""The ``random_start`` that is drawn anew for each client and turn."""


def check_start(seed: int | str | None) -> None:
    """Refuse a ``random_start`` that is neither a seed, nor ``fresh``, nor None."""
    if isinstance(seed, str):
        choice("random_start", seed, (FRESH,))
    elif seed is not None:
        whole("random_start", seed, 0, SEED)


def draw_start(work: Work, personal: Params, seed: int | str | None) -> Params:
    """The personal part that a solver begins with: the given one, or a random one.

    Each tensor is drawn from the normal distribution with the mean and the deviation of its given values, so that
    what was all zeros or all ones stays so. With a ``seed`` the draw is the same for all clients and turns, with
    ``fresh`` it is the client's own in each turn.
    """
    if seed is None:
        return personal
    start = {}
    for name in work.personal:
        values = personal[name]
        if isinstance(seed, str):
            noise = normal(work.key, values, work.turn, "start", name)
        else:
            sample = generator(seed, "start", name).standard_normal(values.shape)
            noise = torch.as_tensor(sample, dtype=values.dtype, device=values.device)
        start[name] = values.mean() + values.std(correction=0) * noise
    return {**personal, **start}


SOLVERS: dict[str, Callable[..., Solver]] = {
    "conjugate_gradient": conjugate_gradient,
    "exact": exact,
    "lbfgs": lbfgs,
}
