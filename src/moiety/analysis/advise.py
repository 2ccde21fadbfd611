"""FedAlt or FedSim? What the theory of Pillutla et al. (2022) says about a user's problem."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from moiety import task as tasks
from moiety.algorithms import fedalt
from moiety.analysis.estimates import Estimates, estimate, sample_clients, sample_rows
from moiety.analysis.theory import Constants, Terms, bounds, leading_variances
from moiety.data import FederatedData
from moiety.engines.problem import Problem
from moiety.errors import choice, kind, must, number, proper_fraction, whole
from moiety.random import generator
from moiety.run.build import make_problem
from moiety.run.checks import check_kinds
from moiety.run.settings import Options, Settings, complete_options
from moiety.split import Split
from moiety.types import Task

RESAMPLES = 200
ALIKE = 0.005
"""Leading terms that differ by less than this share are called alike."""
NAMES = {"fedalt": "FedAlt", "fedsim": "FedSim"}


@dataclass(frozen=True)
class Advice:
    """The estimates and the advice; ``print`` shows both.

    ``better`` is ``fedalt``, ``fedsim``, ``alike`` or ``undecided``. ``factor`` is FedSim's leading term divided by
    FedAlt's, from ``low`` to ``high`` over the points and over resampled clients; ``factor_as_printed`` is the same
    with the variances as Theorems 1 and 2 print them. ``constants`` are the largest values, ``typical`` the medians.
    ``alt`` and ``sim`` are the terms of the two bounds after ``rounds`` rounds.
    """

    better: str
    factor: float
    low: float
    high: float
    factor_as_printed: float
    constants: Constants
    typical: dict[str, float]
    gap: float
    alt: Terms
    sim: Terms
    rounds: int
    clients: int
    points: int
    examples: int

    @property
    def chi(self) -> float:
        """The cross-sensitivity of (5)."""
        return math.sqrt(self.constants.chi2)

    @property
    def sentence(self) -> str:
        """The advice in words."""
        size = max(self.factor, 1 / self.factor) if self.factor else math.inf
        span = f"{self.low:.3g} to {self.high:.3g}" if self.better != "fedsim" else _format_inverse(self.low, self.high)
        sample = f"over {_format_count(self.points, 'point')} and {_format_count(self.clients, 'client')}"
        if self.better == "alike":
            verdict = f"The leading terms of FedAlt and FedSim are alike (ratio {self.factor:.3g}, {span} {sample})."
        elif self.better == "undecided":
            verdict = (
                "Not decided by this sample: FedSim's leading term divided by FedAlt's is "
                f"{self.factor:.3g}, but {span} {sample}."
            )
        else:
            other = NAMES["fedsim" if self.better == "fedalt" else "fedalt"]
            verdict = (
                f"{NAMES[self.better]} has the better leading term: {other}'s is {size:.3g} times as large "
                f"({span} {sample})."
            )
        return " ".join([verdict, *self._notes()])

    def _notes(self) -> list[str]:
        """What the reader should know before relying on it."""
        notes = []
        if (self.factor - 1) * (self.factor_as_printed - 1) < 0:
            notes.append(
                "With the variances as Theorems 1 and 2 print them, without the 1/m of their proofs, it is the other "
                f"way round (ratio {self.factor_as_printed:.3g})."
            )
        small = [name for name, t in (("FedAlt", self.alt), ("FedSim", self.sim)) if t.leading < max(t.second, t.last)]
        if small:
            after, who = _format_count(self.rounds, "round"), " and ".join(small)
            notes.append(f"After {after} the leading term is not yet the largest for {who}.")
        notes.append("Estimates are lower bounds at these points, and bounds are known up to constants only.")
        return notes

    def __str__(self) -> str:
        c = self.constants
        rows = [
            ("L_u", "curvature in the shared part", c.L_u, self.typical["L_u"]),
            ("L_v", "curvature in the personal part", c.L_v, self.typical["L_v"]),
            ("L_uv = L_vu", "how one part moves the other's gradient", c.L_uv, self.typical["L_uv"]),
            ("chi", "cross-sensitivity, max(L_uv, L_vu) / sqrt(L_u L_v)", self.chi, None),
            ("sigma_u^2", "variance of a batch's shared gradient", c.sigma_u2, self.typical["sigma_u2"]),
            ("sigma_v^2", "variance of a batch's personal gradient", c.sigma_v2, self.typical["sigma_v2"]),
            ("delta^2", "diversity of the clients' shared gradients", c.delta2, self.typical["delta2"]),
            ("Delta F_0", "loss at the start above its least value, at most", self.gap, None),
        ]
        lines = [f"{'':14}{'largest':>10}{'median':>10}"]
        for name, meaning, most, middle in rows:
            lines.append(f"{name:14}{most:>10.3g}{'' if middle is None else f'{middle:.3g}':>10}   {meaning}")
        lines += ["", f"{f'bound, T = {self.rounds}':22}{'T^-1/2':>10}{'T^-2/3':>10}{'1/T':>10}"]
        for name, terms in (("FedAlt (Theorem 1)", self.alt), ("FedSim (Theorem 2)", self.sim)):
            lines.append(f"{name:22}" + "".join(f"{term:>10.3g}" for term in terms))
        return "\n".join([*lines, "", textwrap.fill(self.sentence, 100)])


def _format_inverse(low: float, high: float) -> str:
    return f"{1 / high:.3g} to {1 / low:.3g}" if low else f"{1 / high:.3g} and more"


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


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

    The constants are estimated for some clients, at the point where training begins and at a few points along
    alternating gradient steps. Curvatures come from power iteration on products with the Hessian, variances and
    diversity from the gradient of every row. The two bounds are those of Theorems 1 and 2 (Pillutla et al. 2022),
    compared as in section 3.3 by their leading 1/sqrt(T) terms.

    Args:
        model: as in ``fit``. Models whose rows affect each other (BatchNorm) have no gradient of one row.
        data: as in ``fit``.
        split: what is shared and what is personal; there must be some of both.
        cohort: the number of clients in a round, m.
        rounds: the number of rounds planned, T.
        batch_size: rows of a batch, drawn without replacement.
        shared_steps: local steps on the shared part, tau_u, and of FedSim; by default those of one epoch, the mean over
            clients. Only the lower-order terms depend on it.
        personal_steps: local steps on the personal part, tau_v; likewise.
        weighting: alpha_i, by ``examples`` or ``uniform``; the loss of client i counts n alpha_i times, as under (4).
        loss: as in ``fit``.
        inputs: as in ``fit``.
        least: a value that the objective cannot go below, F*.
        clients: the most clients to sample.
        points: the number of points.
        examples: the most rows of a client to sample.
        tolerance: power iteration stops where a step adds less than this share.
        seed: seed of the samples and of the first vectors of power iteration.
        device: where the arithmetic happens.

    Returns:
        The estimates and the advice; ``print`` shows both.

    >>> import moiety as mo
    >>> import numpy as np
    >>> x, y = np.float32([[-1], [1]] * 8), np.array([0, 1] * 8)
    >>> fed = mo.data.from_clients({"a": {"x": x, "y": y}, "b": {"x": x, "y": 1 - y}}, test=0.25)
    >>> model = mo.models.mlp(1, 2, hidden=(4,), seed=0)
    >>> advice = mo.advise(model, fed, split=mo.split.output_layer(model), cohort=2, rounds=100)
    >>> advice.better  # rows of a client are alike and all clients are asked, so nothing is left to chance
    'alike'
    """
    settings = Settings(inputs=inputs, device=device, partial=False)
    problem = _prepare(model, data, split, Options(rounds, cohort, seed, loss=loss, settings=settings))
    whole("batch_size", batch_size, 1)
    choice("weighting", weighting, ("examples", "uniform"))
    whole("clients", clients, 2)
    whole("points", points, 1)
    whole("examples", examples, 2)
    proper_fraction("tolerance", tolerance)
    number("least", least, "a finite number", lambda f: bool(np.isfinite(f)))
    sizes = data.sizes("train")
    epoch = max(1, round(float(np.ceil(sizes / batch_size).mean())))
    steps = {
        "shared_steps": epoch if shared_steps is None else shared_steps,
        "personal_steps": epoch if personal_steps is None else personal_steps,
    }
    for name, count in steps.items():
        whole(name, count, 1)
    scales = sizes / sizes.mean() if weighting == "examples" else np.ones(len(sizes))
    positions = sample_clients(problem, clients, "advise")
    sample = [sample_rows(problem, int(c), examples, float(scales[c])) for c in positions]
    estimates = estimate(problem, sample, points=points, batch_size=batch_size, tolerance=tolerance)
    constants = estimates.constants(range(points), np.arange(len(sample)), cohort)
    for name in ("L_u", "L_v"):
        value = getattr(constants, name)
        must(value > 0, name, "above 0 at some point", value, "Use more points: at these the loss is flat.")
    gap = float(estimates.loss[0].mean()) - least
    must(gap >= 0, "least", f"<= {gap + least:.6g}, the loss at the start", least)
    factor = _compare_leading(constants)
    low, high = _find_range(estimates, cohort, seed, factor)
    alt, sim = bounds(constants, gap=gap, rounds=rounds, **steps)
    return Advice(
        better=_decide(low, high),
        factor=factor,
        low=low,
        high=high,
        factor_as_printed=_compare_leading(constants, printed=True),
        constants=constants,
        typical=estimates.medians(),
        gap=gap,
        alt=alt,
        sim=sim,
        rounds=rounds,
        clients=len(sample),
        points=points,
        examples=examples,
    )


def _prepare(model: nn.Module | Task, data: FederatedData, split: Split, options: Options) -> Problem:
    """The problem; raise where the theory does not apply to it."""
    algorithm = fedalt(shared=1.0, personal=1.0)  # not run: the checks need the algorithm that a split is for
    check_kinds(model, data, algorithm, split)
    kind("split", split, Split, "a Split", "For instance moiety.split.output_layer(model).")
    options = complete_options(options, model, data, algorithm)
    must(len(data) >= 2, "data", "those of at least two clients", len(data))
    counts = f"{len(split.trained_shared)} shared and {len(split.trained_personal)} personal parameters"
    must(bool(split.trained_shared and split.trained_personal), "split", "one with shared and personal parts", counts)
    problem = make_problem(model, data, algorithm, split, options)
    norms, hint = "one with BatchNorm or the like", "GroupNorm or LayerNorm in its place would do."
    must(not problem.task.mixes_examples, "model", "one whose rows do not affect each other", norms, hint)
    return problem


def _compare_leading(constants: Constants, *, printed: bool = False) -> float:
    """FedSim's leading term divided by FedAlt's; 1 where both are 0, as with full batches of all clients."""
    alt, sim = leading_variances(constants, printed=printed)
    return float(np.sqrt(sim / alt)) if alt > 0 else 1.0


def _find_range(estimates: Estimates, cohort: int, seed: int, factor: float) -> tuple[float, float]:
    """The least and the largest ratio over points; where clients were sampled, the middle 90% over resamples."""
    points, clients = estimates.L_u.shape
    draw = generator(seed, "advise", "resample")
    factors = [factor]
    for point in range(points):
        every = clients == estimates.clients
        samples = [np.arange(clients)] if every else list(draw.choice(clients, (RESAMPLES, clients)))
        constants = [estimates.constants([point], sample, cohort) for sample in samples]
        ratios = [_compare_leading(c) for c in constants if c.L_u > 0 and c.L_v > 0]
        factors += list(np.quantile(ratios, [0.05, 0.95])) if ratios else []
    return float(min(factors)), float(max(factors))


def _decide(low: float, high: float) -> str:
    """Which has the better leading term over the whole range of ratios, if one has."""
    never_worse, never_better = low > 1 - ALIKE, high < 1 + ALIKE
    if never_worse and never_better:
        return "alike"
    return "fedalt" if never_worse else "fedsim" if never_better else "undecided"
