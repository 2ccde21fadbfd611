"""FedAlt or FedSim? What the theory of Pillutla et al. (2022) says of the user's own problem."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from moiety import task as tasks
from moiety.algorithms import fedalt
from moiety.analysis.advice import Advice
from moiety.analysis.looking import Client, Look, look, sampled
from moiety.analysis.theory import Constants, bounds, leading, leading_as_printed
from moiety.data import FederatedData
from moiety.engines.problem import Problem
from moiety.errors import choice, kind, must, number, whole
from moiety.random import generator
from moiety.run.build import make_problem
from moiety.run.checks import check_kinds
from moiety.run.settings import Options, Settings, complete_options
from moiety.split import Split
from moiety.types import Task

RESAMPLES = 200
ALIKE = 0.005
"""Leading terms that differ by less than this share are called alike."""


def advise(
    model: nn.Module | Task,
    data: FederatedData,
    *,
    split: Split,
    cohort: int,
    rounds: int,
    batch_size: int = 32,
    shared_steps: int | None = None,
    personal_steps: int | None = None,
    weighting: str = "examples",
    loss: tasks.Loss | None = None,
    inputs: Sequence[str] = ("x",),
    least: float = 0.0,
    clients: int = 10,
    points: int = 3,
    examples: int = 128,
    tolerance: float = 1e-3,
    seed: int = 0,
    device: str = "cpu",
) -> Advice:
    """Estimate the constants of the theory on this problem, and say whether FedAlt or FedSim has the better bound.

    Some clients are looked at, at the point where training begins and at a few points along alternating gradient steps.
    Curvatures come from power iteration on products with the Hessian, variances and diversity from the gradient of
    every row. The two bounds are those of Theorems 1 and 2 (Pillutla et al. 2022), compared as in section 3.3 by their
    leading 1/sqrt(T) terms.

    Args:
        model: as in ``fit``. Models whose rows affect each other (BatchNorm) have no gradient of one row.
        data: as in ``fit``.
        split: what is shared and what is personal; there must be some of both.
        cohort: how many clients take part in a round, m.
        rounds: how many rounds are planned, T.
        batch_size: rows of a batch, drawn without replacement.
        shared_steps: local steps on the shared part, tau_u, and of FedSim; by default those of one epoch, the mean over
            clients. It matters to the lower-order terms only.
        personal_steps: local steps on the personal part, tau_v; likewise.
        weighting: alpha_i, by ``examples`` or ``uniform``; the loss of client i counts n alpha_i times, as under (4).
        loss: as in ``fit``.
        inputs: as in ``fit``.
        least: a value that the objective cannot go below, F*.
        clients: how many clients to look at; a random sample where there are more.
        points: at how many points.
        examples: at how many rows of a client, at most; a random sample where there are more.
        tolerance: power iteration stops where a step adds less than this share.
        seed: of the samples and of the first vectors of power iteration.
        device: where the arithmetic happens.

    Returns:
        The estimates and the advice; ``print`` shows both.
    """
    problem = _problem(model, data, split, cohort, rounds, seed, loss, inputs, device)
    whole("batch_size", batch_size, 1)
    choice("weighting", weighting, ("examples", "uniform"))
    whole("clients", clients, 2)
    whole("points", points, 1)
    whole("examples", examples, 2)
    number("tolerance", tolerance, "> 0 and < 1", lambda t: 0 < t < 1)
    number("least", least, "a finite number", lambda f: bool(np.isfinite(f)))
    sizes = data.sizes("train")
    epoch = max(1, round(float(np.ceil(sizes / batch_size).mean())))
    given = {"shared_steps": shared_steps, "personal_steps": personal_steps}
    steps = {name: epoch if count is None else count for name, count in given.items()}
    for name, count in steps.items():
        whole(name, count, 1)
    found = look(
        problem,
        _chosen(problem, clients, sizes, weighting, examples),
        points=points,
        batch_size=batch_size,
        tolerance=tolerance,
    )
    every = np.arange(found.L_u.shape[1])
    constants = found.constants(list(range(points)), every, cohort)
    for name in ("L_u", "L_v"):
        got = getattr(constants, name)
        must(got > 0, name, "above 0 at some point", got, "Look at more points: at these the loss is flat.")
    gap = float(found.loss[0].mean()) - least
    must(gap >= 0, "least", f"<= {gap + least:.6g}, the loss at the start", least)
    factor = _factor(constants)
    low, high = _range(found, cohort, seed, factor)
    alt, sim = bounds(constants, gap=gap, rounds=rounds, **steps)
    return Advice(
        better=_better(low, high),
        factor=factor,
        low=low,
        high=high,
        factor_as_printed=_factor(constants, printed=True),
        constants=constants,
        typical=_typical(found),
        gap=gap,
        alt=alt,
        sim=sim,
        rounds=rounds,
        clients=len(every),
        points=points,
        examples=examples,
    )


def _problem(
    model: nn.Module | Task,
    data: FederatedData,
    split: Split,
    cohort: int,
    rounds: int,
    seed: int,
    loss: tasks.Loss | None,
    inputs: Sequence[str],
    device: str,
) -> Problem:
    """The problem, refused where the theory does not speak of it."""
    algorithm = fedalt(shared=1.0, personal=1.0)  # not run: the checks ask which algorithm a split is for
    check_kinds(model, data, algorithm, split)
    kind("split", split, Split, "a Split", "For instance moiety.split.output_layer(model).")
    settings = Settings(inputs=inputs, device=device, partial=False)
    options = complete_options(Options(rounds, cohort, seed, loss=loss, settings=settings), model, data, algorithm)
    must(len(data) >= 2, "data", "those of at least two clients", len(data))
    got = f"{len(split.trained_shared)} shared and {len(split.trained_personal)} personal parameters"
    must(bool(split.trained_shared and split.trained_personal), "split", "one with shared and personal parts", got)
    problem = make_problem(model, data, algorithm, split, options)
    hint = "GroupNorm or LayerNorm in its place would do."
    must(
        not problem.task.mixes_examples,
        "model",
        "one whose rows do not affect each other",
        "one with BatchNorm or the like",
        hint,
    )
    return problem


def _chosen(problem: Problem, clients: int, sizes: np.ndarray, weighting: str, examples: int) -> list[Client]:
    """The clients to look at, each with its n alpha_i."""
    every = np.arange(len(problem.data))
    if len(every) > clients:
        every = np.sort(generator(problem.seed, "advise", "clients").choice(every, clients, replace=False))
    scales = sizes / sizes.mean() if weighting == "examples" else np.ones(len(sizes))
    return [sampled(problem, int(c), examples, float(scales[c])) for c in every]


def _factor(constants: Constants, *, printed: bool = False) -> float:
    """FedSim's leading term divided by FedAlt's; 1 where both are nothing, as with full batches of all clients."""
    alt, sim = (leading_as_printed if printed else leading)(constants)
    return float(np.sqrt(sim / alt)) if alt > 0 else 1.0


def _range(found: Look, cohort: int, seed: int, factor: float) -> tuple[float, float]:
    """The least and the largest ratio over points; where clients were sampled, the middle 90% over resamples."""
    points, clients = found.L_u.shape
    draw = generator(seed, "advise", "resample")
    whole_sample = np.arange(clients)
    factors = [factor]
    for point in range(points):
        if clients == found.clients:
            chosen = [whole_sample]
        else:
            chosen = list(draw.choice(clients, (RESAMPLES, clients)))
        made = [found.constants([point], c, cohort) for c in chosen]
        ratios = [_factor(c) for c in made if c.L_u > 0 and c.L_v > 0]
        factors += list(np.quantile(ratios, [0.05, 0.95])) if ratios else []
    return float(min(factors)), float(max(factors))


def _better(low: float, high: float) -> str:
    """Who has the better leading term wherever there is a difference, if it is the same everywhere."""
    never_worse, never_better = low > 1 - ALIKE, high < 1 + ALIKE
    if never_worse and never_better:
        return "alike"
    return "fedalt" if never_worse else "fedsim" if never_better else "undecided"


def _typical(found: Look) -> dict[str, float]:
    """Medians over points and clients."""
    names = ("L_u", "L_v", "L_uv", "sigma_u2", "sigma_v2")
    middle = {name: float(np.median(getattr(found, name))) for name in names}
    every = np.arange(found.L_u.shape[1])
    middle["delta2"] = float(np.median([found.diversity(point, every) for point in range(len(found.L_u))]))
    return middle
