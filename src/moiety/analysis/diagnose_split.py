"""How much to personalise: ||F_m(theta)|| of candidate splits (Mishchenko et al. 2023, section 2.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from moiety import task as tasks
from moiety import tree
from moiety.algorithms import ffgg
from moiety.analysis.diagnosis import ENOUGH, LESS, NONE, Diagnosis, SplitFound
from moiety.data import FederatedData
from moiety.engines.auto import make_engine
from moiety.engines.base import ClientCall, ClientFunction, Engine, RoundInfo
from moiety.engines.problem import Problem
from moiety.errors import kind, must, number, whole
from moiety.local.sgd import WHOLE, check_rate
from moiety.local.solvers import Solver, draw_start, lbfgs, solver_work
from moiety.local.verbs import mean_loss
from moiety.loop.evaluate import score_clients, scoring
from moiety.random import generator
from moiety.run.build import make_problem
from moiety.run.settings import Options, Settings, complete_options
from moiety.split import Split
from moiety.types import Algorithm, Metric, Names, Params, Phase, Task, Tree, Work


def diagnose_split(
    model: nn.Module | Task,
    data: FederatedData,
    *,
    splits: Mapping[str, Split],
    solver: Solver | None = None,
    rounds: int = 0,
    lr: float | None = None,
    random_start: int | None = None,
    close: float = 0.01,
    clients: int = 10,
    loss: tasks.Loss | None = None,
    metric: str | Metric | None = None,
    inputs: Sequence[str] = ("x",),
    seed: int = 0,
    device: str = "cpu",
) -> Diagnosis:
    """Say of candidate splits how much finetuning leaves the shared part to learn, and how good it is.

    For each split, some clients solve for their personal parameters with the shared ones as they are in ``model``
    (theta). What is then left of the gradient in the shared ones is F_m(theta). Where it is too close to 0, theta
    will not be updated, and fewer parameters should be personal. Ask before training: at its end F near 0 is the goal.

    Args:
        model: as in ``fit``; its present values are theta, and where the solver starts.
        data: as in ``fit``. Scores are of validation rows; without any there are none.
        splits: the candidates by name.
        solver: of the personal parameters, as in ``moiety.ffgg``; ``moiety.solver.lbfgs(steps=50)`` by default.
        rounds: of FFGG over the clients looked at, along which to look again; none by default.
        lr: its step size, needed for that.
        random_start: a seed to draw the start of the solver with, as in ``moiety.ffgg``.
        close: the share of the gradient before finetuning below which what is left is too close to 0, for the median
            client and for the mean of all.
        clients: how many clients to look at; a random sample where there are more.
        loss: as in ``fit``.
        metric: as in ``fit``.
        inputs: as in ``fit``.
        seed: of the sample, and of chance in the solver.
        device: where the arithmetic happens.

    Returns:
        A row per split and a verdict; ``print`` shows both, ``.markdown()`` and ``.rows`` are for others.
    """
    kind(
        "splits", splits, Mapping, "a table from names to splits", 'For instance {"output": mo.split.output_layer(m)}.'
    )
    must(len(splits) > 0, "splits", "at least one", "none")
    kind("model", model, (nn.Module, Task), "an nn.Module or a Task")
    kind("data", data, FederatedData, "FederatedData", "See moiety.data.from_arrays.")
    find = lbfgs(steps=50) if solver is None else solver_work("solver", solver)
    whole("rounds", rounds, 0)
    must((lr is None) == (rounds == 0), "lr", "given with rounds, and only then", lr)
    rate = 0.0 if lr is None else lr
    if lr is not None:
        check_rate("lr", lr)
    number("close", close, "> 0 and < 1", lambda c: 0 < c < 1)
    whole("clients", clients, 1)
    settings = Settings(inputs=inputs, device=device)
    asked = Asked(find, random_start, rounds, rate, close, clients)
    algorithm = ffgg(shared=1.0, personal=find, random_start=random_start)
    options = Options(max(1, rounds), 1, seed, loss=loss, metric=metric, settings=settings)
    options = complete_options(options, model, data, algorithm)
    found = []
    for name, split in splits.items():
        kind(f"splits.{name}", split, Split, "a Split", "For instance moiety.split.output_layer(model).")
        problem = make_problem(model, data, algorithm, split, options)
        found.append(_diagnosed(str(name), problem, algorithm, asked))
    how = problem.task.metric
    return Diagnosis(tuple(found), close, min(clients, len(data)), how.name, how.higher_is_better)


class Asked(NamedTuple):
    """How to look, the same for all splits."""

    find: Solver
    random_start: int | None
    rounds: int
    lr: float
    close: float
    clients: int


class Seen(NamedTuple):
    """What one client shows: F_m, three norms, its loss after finetuning, and its state."""

    operator: Params
    before: Tensor
    inner_before: Tensor
    inner_after: Tensor
    loss: Tensor
    state: Tree


def looking(find: Solver, random_start: int | None) -> ClientCall:
    """Finetune, and take the gradients in both parts before and after it, from all of the client's data."""

    def gradients(work: Work, model: Params) -> tuple[Params, Params, Tensor]:
        (batch,) = work.batches("whole")

        def objective(at: Params) -> tuple[Tensor, Params]:
            losses, changed = work.task.loss({**model, **at}, batch)
            return mean_loss(losses, batch), changed

        found, value, _ = work.gradient(objective, {n: model[n] for n in (*work.shared, *work.personal)})
        return {n: found[n] for n in work.shared}, {n: found[n] for n in work.personal}, value

    def look(work: Work, received: Params, state: Tree) -> Seen:
        start = work.compose(received, draw_start(work, state.personal, random_start))
        shared, personal, _ = gradients(work, start)
        model, _ = find.solve(work, start, work.batches("personal"))
        operator, rest, value = gradients(work, model)
        after = state._replace(personal=work.parts(model)[1])
        return Seen(operator, _norm(shared), _norm(personal), _norm(rest), value.double(), after)

    return look


def _norm(block: Params) -> Tensor:
    squares = [g.double().square().sum() for g in block.values()]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros((), dtype=torch.float64)


def _sample(problem: Problem, clients: int) -> np.ndarray:
    every = np.arange(len(problem.data))
    if len(every) <= clients:
        return every
    return np.sort(generator(problem.seed, "diagnose", "clients").choice(every, clients, replace=False))


def _diagnosed(name: str, problem: Problem, algorithm: Algorithm, asked: Asked) -> SplitFound:
    """One split: theta as given, then along FFGG."""
    functions = {
        "look": ClientFunction(looking(asked.find, asked.random_start), ("personal", "whole")),
        "score": ClientFunction(scoring(algorithm), ("score",)),
    }
    engine = make_engine("sequential", problem, functions, None)
    phases = {"personal": asked.find.phase, "whole": Phase(1, None, WHOLE, False)}
    chosen, names = _sample(problem, asked.clients), problem.split.trained_shared
    received = {n: p for part in problem.first_shared() for n, p in part.items()}
    path: list[dict[str, float | None]] = []
    for t in range(asked.rounds + 1):
        states = [problem.first_state(algorithm)] * len(chosen)
        jobs = problem.make_jobs(phases, chosen, states, "diagnose", t, part="train")
        seen: list[Seen] = engine.map("look", jobs, received, RoundInfo(t))
        _finite(problem, chosen, seen, name)
        # Algorithm 1, line 7, with all clients looked at for the cohort
        mean = {n: torch.stack([s.operator[n] for s in seen]).mean(0) for n in names}
        path.append({"round": t, **_numbers(seen, mean), "metric": _metric(problem, engine, received, chosen, seen)})
        received = {n: p - asked.lr * mean[n] if n in mean else p for n, p in received.items()}
    first: dict[str, Any] = {key: value for key, value in path[0].items() if key != "round"}
    personal, shared = (_count(problem.task, part) for part in (problem.split.trained_personal, names))
    # Most clients may leave nothing while a few still move theta: then something is left to share.
    nothing_left = first["left"] < asked.close and first["mean_f"] <= asked.close * first["before"]
    verdict = NONE if not personal else LESS if nothing_left else ENOUGH
    return SplitFound(name, personal, shared, **first, verdict=verdict, path=tuple(path) if asked.rounds else ())


def _finite(problem: Problem, chosen: np.ndarray, seen: Sequence[Seen], name: str) -> None:
    """Raise where finetuning came apart: no gradient is no gradient of 0."""
    odd = [str(problem.data.ids[int(c)]) for c, s in zip(chosen, seen, strict=True) if not tree.is_finite(s[:-1])]
    hint = "Use smaller steps, of it or (along a run) of lr."
    must(not odd, "solver", "one that stays finite", f"numbers that are not (split {name}, client {odd[:1]})", hint)


def _numbers(seen: Sequence[Seen], mean: Params) -> dict[str, float | None]:
    norms = np.array([[float(x) for x in (_norm(s.operator), s.before, s.inner_after, s.inner_before)] for s in seen])
    f, before, after, start = norms.T
    return {
        "f": float(np.median(f)),
        "before": float(np.median(before)),
        "left": float(np.median(_ratio(f, before))),
        "mean_f": float(_norm(mean)),
        "unsolved": float(np.median(_ratio(after, start))),
        "loss": float(np.mean([float(s.loss) for s in seen])),
    }


def _ratio(after: np.ndarray, before: np.ndarray) -> np.ndarray:
    """What is left of each; of nothing, nothing is left unless something came."""
    with np.errstate(divide="ignore"):
        found: np.ndarray = np.divide(after, before, out=np.zeros_like(after), where=after > 0)
    return found


def _metric(
    problem: Problem, engine: Engine, received: Params, chosen: np.ndarray, seen: Sequence[Seen]
) -> float | None:
    """Of the finetuned models on validation rows; None where there are none."""
    tested = np.flatnonzero(problem.data.sizes("validation")[chosen] > 0)
    if not len(tested):
        return None
    states = [seen[int(i)].state for i in tested]
    _, metric, weight = score_clients(problem, engine, received, chosen[tested], states, "validation").T
    return float(np.average(metric, weights=weight))


def _count(task: Task, names: Names) -> int:
    return sum(task.init[n].numel() for n in names)
