"""Scores of every client's personal model and of the shared model alone, through the engine of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from moiety import tree
from moiety.clients import Store, uniform_cohort
from moiety.data import FederatedData
from moiety.engines.base import ClientFunction, Engine, RoundInfo
from moiety.engines.problem import Problem
from moiety.evaluation import Row, client_rows
from moiety.evaluation.per_client import SHARED
from moiety.loop.sets import predict_clients, predict_function, predict_pooled, score_sets
from moiety.transport import copy_out
from moiety.types import Algorithm, Batch, ClientUpdate, Params, Phase, Task, Tree, Work

EVALUATION_BATCH, STATES_AT_ONCE = 256, 64


def choose_evaluated(data: FederatedData, options: Mapping[str, Any], seed: int) -> np.ndarray:
    """The clients that a run evaluates: all of them, or the same sample each time."""
    return uniform_cohort(len(data), options.get("evaluate_clients") or len(data), seed=seed, round=-1)


class Evaluation(NamedTuple):
    """A row per client, and metrics of sets over all their rows together, by name."""

    rows: list[Row]
    pooled: dict[str, float]


def client_functions(algorithm: Algorithm, rows: int = 0) -> dict[str, ClientFunction]:
    """What engines run for clients: local work, the algorithm's rule for newcomers, and scoring.

    Predictions too, of so many ``rows`` at a time, where some metric needs them.
    """

    def train(work: Work, received: Params, state: Tree) -> tuple[ClientUpdate, Tree, Tensor]:
        """Local work, and whether all its results are finite, which is checked where the work is done."""
        update, state = algorithm.client_update(work, received, state)
        return copy_out(update), state, tree.is_finite((update, state))

    functions = {
        "train": ClientFunction(train, tuple(algorithm.phases)),
        "adapt": ClientFunction(algorithm.adapt, tuple(algorithm.phases)),
        "score": score_function(algorithm),
    }
    return functions | ({"predict": predict_function(algorithm, rows)} if rows else {})


def adapt_phases(algorithm: Algorithm) -> Mapping[str, Phase]:
    """The phases of the rule for newcomers: those of training, unless the algorithm says otherwise."""
    return {
        name: phase if phase.newcomer_steps is None else phase._replace(steps=phase.newcomer_steps)
        for name, phase in algorithm.phases.items()
    }


def score_function(algorithm: Algorithm) -> ClientFunction:
    """Mean loss and metric of a client's personal model over its batches, and the metric's weight."""

    def score(work: Work, received: Params, state: Tree) -> Tensor:
        model = work.compose(*algorithm.personal_model(received, state))
        sums = torch.zeros_like(work.examples).repeat(3)
        for batch in work.batches("score"):
            scores = score_examples(work.task, model, batch)
            sums = sums + (torch.where(batch["mask"], scores, 0) if "mask" in batch else scores).sum(1)
        return torch.stack([sums[0] / work.examples, sums[1] / sums[2], sums[2]])

    return ClientFunction(score, ("score",))


def score_examples(task: Task, model: Params, batch: Batch) -> Tensor:
    """For each example its loss, its metric times its weight, and that weight [3, examples].

    In float64, so that a tie does not look like a gain of the last digit.
    """
    loss, metric = (column.double() for column in task.scores(model, batch))
    weight = torch.ones_like(loss) if task.metric.weight is None else task.metric.weight(batch).double()
    return torch.stack([loss, torch.where(weight > 0, weight * metric, 0), weight])


def evaluate(
    problem: Problem,
    algorithm: Algorithm,
    engine: Engine,
    server: Tree,
    store: Store,
    *,
    part: str,
    round: int,
    clients: np.ndarray,
) -> Evaluation:
    """One row per client. Clients that keep no state first get their personal model by the algorithm's own rule."""
    data = problem.data
    sizes = data.sizes(part)
    tested = clients[sizes[clients] > 0]
    received = problem.broadcast(algorithm, server)
    shared_model, with_sets = problem.shared_model(algorithm, received), bool(problem.task.sets and len(tested))
    shared = score_pooled(problem, shared_model, tested, part)
    shared_outputs = predict_pooled(problem, shared_model, tested, part) if with_sets else None
    outputs = []
    if not tree.leaves(problem.first_state(algorithm)):
        personal = shared  # the very same model
    else:
        # States that are made for the purpose take memory, so they are made for some clients at a time.
        step = STATES_AT_ONCE if algorithm.sparsity and algorithm.sparsity.first_mask else len(tested)
        personal = np.zeros((0, 3))
        for at in range(0, len(tested), max(1, step)):
            some = tested[at : at + step]
            states = current_states(problem, algorithm, engine, received, store, some, round)
            personal = np.concatenate([personal, score_clients(problem, engine, received, some, states, part)])
            if with_sets:
                outputs.append(predict_clients(problem, engine, received, some, states, part))
    (loss, metric, _), (shared_loss, shared_metric, weight) = (
        spread_scores(scores, tested, clients) for scores in (personal, shared)
    )
    sets: dict[str, np.ndarray] = {}
    pooled: dict[str, float] = {}
    if shared_outputs is not None:
        scores = score_sets(problem, torch.cat(outputs) if outputs else shared_outputs, tested, part)
        shared_scores = score_sets(problem, shared_outputs, tested, part)
        for before, (each, together) in (("", scores), (SHARED, shared_scores)):
            sets |= {before + name: spread(values, tested, clients) for name, values in each.items()}
            pooled |= {before + name: value for name, value in together.items()}
        if problem.task.set_decides:
            name = problem.task.deciding.name
            metric, shared_metric = sets[name], sets[SHARED + name]
            weight = np.where(np.isnan(metric + shared_metric), 0, sizes[clients])
    rows = client_rows(
        [data.ids[int(i)] for i in clients],
        data.sizes("train")[clients],
        sizes[clients],
        (loss, metric),
        (shared_loss, shared_metric),
        np.nan_to_num(weight),
        higher_is_better=problem.task.deciding.higher_is_better,
    )
    for name, values in sets.items():
        for row, value in zip(rows, values, strict=True):
            row[name] = float(value)
    return Evaluation(rows, pooled)


def current_states(
    problem: Problem,
    algorithm: Algorithm,
    engine: Engine,
    received: Params,
    store: Store,
    clients: Sequence[int] | np.ndarray,
    round: int,
) -> list[Tree]:
    """The states that clients would predict with now."""
    states = store.get(clients)
    first_mask = algorithm.sparsity and algorithm.sparsity.first_mask
    if first_mask:
        keys = [torch.tensor(problem.client_key(int(client))) for client in clients]
        states = [first_mask(key, received, state) for key, state in zip(keys, states, strict=True)]
    if algorithm.stateful:
        return states
    jobs = problem.make_jobs(adapt_phases(algorithm), clients, states, "adapt", round, part="train")
    # Copied: scoring comes next, in the memory that holds them.
    adapted: list[Tree] = tree.clone(engine.map("adapt", jobs, received, RoundInfo(round)))
    return adapted


def score_clients(
    problem: Problem,
    engine: Engine,
    received: Params,
    clients: np.ndarray,
    states: Sequence[Tree],
    part: str,
) -> np.ndarray:
    """Mean loss, mean metric and weight [clients, 3], each client with its own model."""
    phases = {"score": Phase(epochs=1, steps=None, batch_size=EVALUATION_BATCH, shuffle=False)}
    jobs = problem.make_jobs(phases, clients, states, part=part)
    scores = engine.map("score", jobs, received, RoundInfo())
    return torch.stack(scores).double().numpy() if scores else np.zeros((0, 3))


def score_pooled(problem: Problem, model: Params, clients: np.ndarray, part: str) -> np.ndarray:
    """The same with one model for all clients, so that rows of many clients share a batch."""
    if not len(clients):
        return np.zeros((0, 3))
    spans = [problem.data.rows(int(c), part) for c in clients]
    rows = torch.from_numpy(np.concatenate([np.arange(a, b) for a, b in spans]))
    sizes = np.array([b - a for a, b in spans])
    parts = []
    with torch.no_grad():
        # A model that normalises by the batch must see one client's rows at a time.
        apart = sizes.tolist() if problem.task.mixes_examples else EVALUATION_BATCH * 4
        for index in torch.split(rows, apart):
            batch = {name: column.index_select(0, index) for name, column in problem.columns.items()}
            parts.append(score_examples(problem.task, model, batch))
    scores = torch.cat(parts, dim=1).numpy()
    loss, metric, weight = np.add.reduceat(scores, np.cumsum(sizes) - sizes, axis=1)
    with np.errstate(invalid="ignore"):  # nothing that counts: no metric
        return np.stack([loss / sizes, metric / weight, weight], axis=1)


def spread_scores(scores: np.ndarray, tested: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """Losses, metrics and weights [3, clients] of ``clients`` (ascending), NaN for those that were not tested."""
    return np.stack([spread(column, tested, clients) for column in scores.T])


def spread(values: np.ndarray, tested: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """The values of ``clients`` (ascending), NaN for those that were not tested."""
    full = np.full(len(clients), np.nan)
    full[np.searchsorted(clients, tested)] = values
    return full
