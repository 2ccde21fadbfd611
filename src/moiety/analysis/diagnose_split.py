"""How much to personalise: ||F_m(theta)|| of candidate splits (Mishchenko et al. 2023, section 2.4)."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from moiety import task as tasks
from moiety import tree
from moiety.algorithms import ffgg
from moiety.analysis.estimates import sample_clients
from moiety.data import FederatedData
from moiety.engines.auto import make_engine
from moiety.engines.base import ClientCall, ClientFunction, Engine, RoundInfo
from moiety.engines.problem import Problem
from moiety.errors import kind, must, proper_fraction, whole
from moiety.local.sgd import WHOLE, check_rate
from moiety.local.solvers import Solver, draw_start, lbfgs, solver_work
from moiety.local.verbs import mean_loss
from moiety.loop.evaluate import score_clients, score_function
from moiety.run.build import make_problem
from moiety.run.settings import Options, Settings, complete_options
from moiety.split import Split
from moiety.types import Algorithm, Metric, Params, Phase, Task, Tree, Work

LESS, NONE, ENOUGH = "personalise less", "nothing is personal", "something is left to share"
UNSOLVED = 0.1
"""Where finetuning leaves more than this share of the personal gradient, the verdict says that it is unfinished."""


@dataclass(frozen=True)
class SplitRow:
    """One split at one theta. Norms are medians over the sampled clients.

    ``f`` is ||F_m||, the gradient in the shared parameters after the personal ones were solved for; ``before`` is the
    same gradient before that, and ``left`` the median of their ratio. ``mean_f`` is the norm of the clients' mean F,
    which moves theta. ``unsolved`` is the personal gradient after the solver over that before it. ``loss`` is the
    clients' mean on training rows, and ``metric`` on validation rows (weighted by them), both after finetuning.
    ``path`` has the same numbers in each round of the FFGG run, if there is one.
    """

    split: str
    personal: int
    shared: int
    f: float
    before: float
    left: float
    mean_f: float
    unsolved: float
    loss: float
    metric: float | None
    verdict: str
    path: tuple[dict[str, float | None], ...] = ()


COLUMNS = {
    "split": "split",
    "personal": "personal",
    "shared": "shared",
    "f": "|F_m|",
    "before": "before",
    "left": "left",
    "mean_f": "|mean F|",
    "unsolved": "unsolved",
    "loss": "loss",
    "metric": "metric",
    "verdict": "verdict",
}


@dataclass(frozen=True)
class Diagnosis:
    """A row per split, in the order of the candidates, and a verdict. ``print`` shows both.

    ``close`` is the share of the gradient at which too little is left. ``metric_name`` and ``higher_is_better`` are
    those of the metric.
    """

    splits: tuple[SplitRow, ...]
    close: float
    clients: int
    metric_name: str
    higher_is_better: bool

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary per split."""
        return [asdict(row) for row in self.splits]

    @property
    def best(self) -> SplitRow | None:
        """The split with the best validation metric; of equals, the one with fewest personal parameters."""
        return self._find_best(self.splits)

    @property
    def best_that_shares(self) -> SplitRow | None:
        """The same among those that leave the shared part something to learn."""
        return self._find_best([s for s in self.splits if s.verdict != LESS])

    def _find_best(self, splits: Sequence[SplitRow]) -> SplitRow | None:
        sign = 1 if self.higher_is_better else -1
        rows = [s for s in splits if s.metric is not None and math.isfinite(s.metric)]
        return max(rows, key=lambda s: (sign * float(s.metric or 0.0), -s.personal), default=None)

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        sentences = []
        near = [s for s in self.splits if s.verdict == LESS]
        for s in near:
            rest = f"{s.left:.2g} of its gradient" if s.shared else "no parameter"
            sentences.append(
                f"{s.split}: finetuning leaves the shared part {rest}; personalise less, or finetune less."
            )
        if not near:
            sentences.append(
                f"Every split leaves the shared part at least {self.close:g} of its gradient to learn from."
            )
        best, sharer = self.best, self.best_that_shares
        if best is None and any(split.metric is not None for split in self.splits):
            sentences.append("No score on validation rows is finite, so nothing is said of scores.")
        elif best is None:
            sentences.append("There are no validation rows, so nothing is said of scores.")
        else:
            sentences.append(f"The best {self.metric_name} on validation rows has {best.split}, {best.metric:.4g}.")
            if sharer is not None and sharer is not best:
                sentences.append(f"Of those that leave something to share it is {sharer.split}, {sharer.metric:.4g}.")
        loose = [s.split for s in self.splits if s.unsolved > UNSOLVED]
        if loose:
            sentences.append(
                f"The solver left more than {UNSOLVED:g} of the personal gradient in {', '.join(loose)}: F is of"
                " unfinished finetuning there."
            )
        return " ".join([*sentences, "|F| cannot say that more should be personal."])

    def markdown(self) -> str:
        """The table as Markdown."""
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in self._format_cells()]
        lines.insert(1, "|" + "|".join(":---" if key in ("split", "verdict") else "---:" for key in COLUMNS) + "|")
        return "\n".join(lines)

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self._format_cells(), strict=True)]
        lines = []
        for row in self._format_cells():
            numbers = [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
            lines.append("  ".join([row[0].ljust(widths[0]), *numbers, row[-1]]))
        return "\n".join([*lines, "", textwrap.fill(self.sentence, 100)])

    def _format_cells(self) -> list[list[str]]:
        """The table with its headings, as texts."""
        return [list(COLUMNS.values()), *([_format_cell(row[key]) for key in COLUMNS] for row in self.rows)]


def _format_cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def diagnose_split(
    model: nn.Module | Task,
    data: FederatedData,
    *,
    splits: Mapping[str, Split],
    solver: Solver | None = None,
    rounds: int = 0,
    lr: float | None = None,
    random_start: int | str | None = None,
    close: float = 0.01,
    clients: int = 10,
    loss: tasks.Loss | None = None,
    metric: str | Metric | None = None,
    inputs: Sequence[str] = ("x",),
    seed: int = 0,
    device: str = "cpu",
) -> Diagnosis:
    """Compare candidate splits: how much finetuning leaves the shared part to learn, and how good it is.

    For each split, some clients solve for their personal parameters with the shared ones as they are in ``model``
    (theta). The gradient that is then left in the shared ones is F_m(theta). Where it is too close to 0, theta will not
    be updated, and fewer parameters should be personal. Use it before training: at the end of training F is near 0.

    Args:
        model: as in ``fit``; its present values are theta, and where the solver starts.
        data: as in ``fit``. Scores are of validation rows; without validation rows there are none.
        splits: the candidates by name.
        solver: solves for the personal parameters, as in ``moiety.ffgg``; by default
            ``moiety.solver.lbfgs(steps=50)``.
        rounds: rounds of FFGG over the sampled clients; the numbers are computed in each. None by default.
        lr: the step size of FFGG, needed with ``rounds``.
        random_start: the start of the solver, as in ``moiety.ffgg``.
        close: the share of the gradient before finetuning below which what is left is too close to 0, for the median
            client and for the mean of all.
        clients: the most clients to sample.
        loss: as in ``fit``.
        metric: as in ``fit``.
        inputs: as in ``fit``.
        seed: seed of the sample and of the solver.
        device: where the arithmetic happens.

    Returns:
        A row per split and a verdict; ``print`` shows both, ``.markdown()`` and ``.rows`` give the table.

    >>> import moiety as mo
    >>> import numpy as np
    >>> x, y = np.float32([[-1], [1]] * 8), np.array([0, 1] * 8)
    >>> fed = mo.data.from_clients({"a": {"x": x, "y": y}, "b": {"x": x, "y": 1 - y}}, test=0.25)
    >>> model = mo.models.mlp(1, 2, hidden=(4,), seed=0)
    >>> answer = mo.diagnose_split(model, fed, splits={"output": mo.split.output_layer(model)})
    >>> [(row["split"], row["verdict"]) for row in answer.rows]  # a personal output layer solves it alone
    [('output', 'personalise less')]
    """
    hint = 'For instance {"output": mo.split.output_layer(m)}.'
    kind("splits", splits, Mapping, "a table from names to splits", hint)
    must(len(splits) > 0, "splits", "at least one", "none")
    kind("model", model, (nn.Module, Task), "an nn.Module or a Task")
    kind("data", data, FederatedData, "FederatedData", "See moiety.data.from_arrays.")
    solver = lbfgs(steps=50) if solver is None else solver_work("solver", solver)
    whole("rounds", rounds, 0)
    must((lr is None) == (rounds == 0), "lr", "given with rounds, and only then", lr)
    if lr is not None:
        check_rate("lr", lr)
    proper_fraction("close", close)
    whole("clients", clients, 1)
    settings = Settings(inputs=inputs, device=device)
    method = Method(solver, random_start, rounds, 0.0 if lr is None else lr, close, clients)
    algorithm = ffgg(shared=1.0, personal=solver, random_start=random_start)
    options = Options(max(1, rounds), 1, seed, loss=loss, metric=metric, settings=settings)
    options = complete_options(options, model, data, algorithm)
    rows = []
    for name, split in splits.items():
        kind(f"splits.{name}", split, Split, "a Split", "For instance moiety.split.output_layer(model).")
        problem = make_problem(model, data, algorithm, split, options)
        rows.append(_diagnose(str(name), problem, algorithm, method))
    score = problem.task.metric
    return Diagnosis(tuple(rows), close, min(clients, len(data)), score.name, score.higher_is_better)


class Method(NamedTuple):
    """How splits are diagnosed, the same for all of them."""

    solver: Solver
    random_start: int | str | None
    rounds: int
    lr: float
    close: float
    clients: int


class Measurement(NamedTuple):
    """The measurements of one client: F_m, three norms, its loss after finetuning, and its state."""

    operator: Params
    before: Tensor
    inner_before: Tensor
    inner_after: Tensor
    loss: Tensor
    state: Tree


def make_measure(solver: Solver, random_start: int | str | None) -> ClientCall:
    """A client function that finetunes, and takes the gradients of all the client's data before and after it."""

    def gradients(work: Work, model: Params) -> tuple[Params, Params, Tensor]:
        (batch,) = work.batches("whole")

        def objective(at: Params) -> tuple[Tensor, Params]:
            losses, buffers = work.task.loss({**model, **at}, batch)
            return mean_loss(losses, batch), buffers

        gradient, value, _ = work.gradient(objective, {n: model[n] for n in (*work.shared, *work.personal)})
        return {n: gradient[n] for n in work.shared}, {n: gradient[n] for n in work.personal}, value

    def measure(work: Work, received: Params, state: Tree) -> Measurement:
        start = work.compose(received, draw_start(work, state.personal, random_start))
        shared, personal, _ = gradients(work, start)
        model, _ = solver.solve(work, start, work.batches("personal"))
        operator, rest, value = gradients(work, model)
        after = state._replace(personal=work.parts(model)[1])
        return Measurement(operator, _norm(shared), _norm(personal), _norm(rest), value.double(), after)

    return measure


def _norm(block: Params) -> Tensor:
    squares = [g.double().square().sum() for g in block.values()]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros((), dtype=torch.float64)


def _diagnose(name: str, problem: Problem, algorithm: Algorithm, method: Method) -> SplitRow:
    """The row of one split: at theta as it is in the model, then along FFGG."""
    functions = {
        "measure": ClientFunction(make_measure(method.solver, method.random_start), ("personal", "whole")),
        "score": score_function(algorithm.personal_model),
    }
    engine = make_engine("sequential", problem, functions, None)
    phases = {"personal": method.solver.phase, "whole": Phase(1, None, WHOLE, False)}
    sample, names = sample_clients(problem, method.clients, "diagnose"), problem.split.trained_shared
    received = {n: p for part in problem.first_shared() for n, p in part.items()}
    path: list[dict[str, float | None]] = []
    for t in range(method.rounds + 1):
        states = [problem.first_state(algorithm)] * len(sample)
        jobs = problem.make_jobs(phases, sample, states, "diagnose", t, part="train")
        results: Sequence[Measurement] = engine.map("measure", jobs, received, RoundInfo(t, scale=1.0))
        _check_finite(problem, sample, results, name)
        # Algorithm 1, line 7, with all sampled clients for the cohort
        mean = {n: torch.stack([s.operator[n] for s in results]).mean(0) for n in names}
        metric = _score(problem, engine, received, sample, results)
        path.append({"round": t, **_summarise(results, mean), "metric": metric})
        received = {n: p - method.lr * mean[n] if n in mean else p for n, p in received.items()}
    first: dict[str, Any] = {key: value for key, value in path[0].items() if key != "round"}
    counts = problem.split.counts()
    # Most clients may leave nothing while a few still move theta: then something is left to share.
    nothing_left = first["left"] < method.close and first["mean_f"] <= method.close * first["before"]
    verdict = NONE if not counts["personal"] else LESS if nothing_left else ENOUGH
    rest = {**first, "verdict": verdict, "path": tuple(path) if method.rounds else ()}
    return SplitRow(name, counts["personal"], counts["shared"], **rest)


def _check_finite(problem: Problem, sample: np.ndarray, results: Sequence[Measurement], name: str) -> None:
    """Raise where finetuning diverged: a gradient that is not finite must not count as one near 0."""
    odd = [str(problem.data.ids[int(c)]) for c, s in zip(sample, results, strict=True) if not tree.is_finite(s[:-1])]
    hint = "Use smaller steps, of it or (along a run) of lr."
    must(not odd, "solver", "one that stays finite", f"numbers that are not (split {name}, client {odd[:1]})", hint)


def _summarise(results: Sequence[Measurement], mean: Params) -> dict[str, float | None]:
    columns = ([_norm(s.operator), s.before, s.inner_after, s.inner_before] for s in results)
    norms = np.array([[float(x) for x in row] for row in columns])
    f, before, after, start = norms.T
    return {
        "f": float(np.median(f)),
        "before": float(np.median(before)),
        "left": float(np.median(_ratio(f, before))),
        "mean_f": float(_norm(mean)),
        "unsolved": float(np.median(_ratio(after, start))),
        "loss": float(np.mean([float(s.loss) for s in results])),
    }


def _ratio(after: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The share of ``before`` that is left; 0 where both are 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.divide(after, before, out=np.zeros_like(after), where=after > 0))


def _score(
    problem: Problem, engine: Engine, received: Params, sample: np.ndarray, results: Sequence[Measurement]
) -> float | None:
    """The metric of the finetuned models on validation rows; None where there are none."""
    positions = np.flatnonzero(problem.data.sizes("validation")[sample] > 0)
    if not len(positions):
        return None
    states = [results[int(i)].state for i in positions]
    _, metric, weight = score_clients(problem, engine, received, sample[positions], states, "validation").T
    return float(np.average(metric, weights=weight))
