"""Scores of every client's personal model and of the shared model alone, through the engine of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from moiety import tree
from moiety.clients import Store, uniform_cohort
from moiety.data import FederatedData
from moiety.engines.base import ClientFunction, Engine, RoundInfo
from moiety.engines.problem import Problem
from moiety.engines.rows import Job, Rows
from moiety.engines.sequential import Sequential
from moiety.evaluation import Row, client_rows
from moiety.evaluation.per_client import SHARED
from moiety.loop.sets import predict_clients, predict_functions, score_sets
from moiety.transport import check_result, copy_out
from moiety.types import Algorithm, Batch, ClientUpdate, Params, Phase, Task, Tree, Work

EVALUATION_BATCH, POOLED_ROWS, STATES_AT_ONCE = 256, 512, 64


def choose_evaluation_clients(data: FederatedData, options: Mapping[str, Any], seed: int) -> np.ndarray:
    """The clients that a run evaluates: all of them, or the same sample each time."""
    return uniform_cohort(len(data), options.get("evaluate_clients") or len(data), seed=seed, round=-1)


class Evaluation(NamedTuple):
    """A row per client, and metrics of sets over all their rows together, by name."""

    rows: list[Row]
    pooled: dict[str, float]


def client_functions(problem: Problem, algorithm: Algorithm) -> dict[str, ClientFunction]:
    """What engines run for clients: local work, the algorithm's rule for newcomers, and scoring.

    Predictions too, where some metric needs them.
    """

    def train(work: Work, received: Params, state: Tree) -> tuple[ClientUpdate, Tree, Tensor]:
        """Local work, and the largest number of the upload; NaN where some result is not finite."""
        result = algorithm.client_update(work, received, state)
        check_result(result)
        update, state = result
        largest = tree.largest(update.upload)
        finite = largest.isfinite() & tree.is_finite((update.weight, update.info, state))
        return copy_out(update), state, torch.where(finite, largest, torch.nan)

    functions = {
        "train": ClientFunction(train, tuple(algorithm.phases)),
        "adapt": ClientFunction(algorithm.adapt, tuple(algorithm.phases)),
        "score": score_function(algorithm.personal_model),
        "score_both": both_function(problem, algorithm),
        "score_shared": shared_function(problem, algorithm),
        "score_shared_apart": shared_apart_function(problem, algorithm),
    }
    if algorithm.posterior and algorithm.posterior.go_on:
        functions["go_on"] = ClientFunction(algorithm.posterior.go_on, ("sample",))
    return functions | (predict_functions(problem, algorithm) if problem.task.sets else {})


def adapt_phases(algorithm: Algorithm) -> Mapping[str, Phase]:
    """The phases of the rule for newcomers: those of training, unless the algorithm says otherwise."""
    return {
        name: phase if phase.newcomer_steps is None else phase._replace(steps=phase.newcomer_steps)
        for name, phase in algorithm.phases.items()
    }


def score_function(find_model: Callable[[Params, Tree], tuple[Params, Params]]) -> ClientFunction:
    """Mean loss and metric of a client's model over its batches, and the metric's weight.

    ``find_model`` gives the two parts of the model, as ``Algorithm.personal_model`` does.
    """

    def score(work: Work, received: Params, state: Tree) -> Tensor:
        model = work.compose(*find_model(received, state))
        sums = torch.zeros_like(work.examples).repeat(3)
        for batch in work.batches("score"):
            sums = sums + sum_scores(score_examples(work.task, work.task.scores(model, batch), batch), batch)
        return mean_scores(work, sums)

    return ClientFunction(score, ("score",))


def both_function(problem: Problem, algorithm: Algorithm) -> ClientFunction:
    """The same of the personal and of the shared model [6]; what both have in common is computed once."""
    parts = problem.shared_parts(algorithm)

    def score(work: Work, received: Params, state: Tree) -> Tensor:
        models = [work.compose(*algorithm.personal_model(received, state)), work.compose(*parts(received))]
        own = find_own(*models)
        models = models if own else models[:1]  # a client that was never asked has the shared model
        cut = work.score_cut(own) if own else None
        sums = [torch.zeros_like(work.examples).repeat(3) for _ in models]
        for batch in work.batches("score"):
            whole = batch if cut is None else batch | cut.features(models[0], batch)
            run = work.task.scores if cut is None else cut.scores
            for k, model in enumerate(models):
                sums[k] = sums[k] + sum_scores(score_examples(work.task, run(model, whole), batch), batch)
        return torch.cat([mean_scores(work, sums[0]), mean_scores(work, sums[-1])])

    return ClientFunction(score, ("score",))


def find_own(model: Params, shared: Params) -> frozenset[str]:
    """The names of what is not the very same tensor in both models."""
    return frozenset(name for name, p in model.items() if p is not shared[name])


def share_body(problem: Problem, algorithm: Algorithm, received: Params, state: Tree) -> bool:
    """Whether a personal model and the shared one begin with the same layers, which need to be computed only once."""
    model = problem.compose(*algorithm.personal_model(received, tree.clone(state)))
    own = find_own(model, problem.shared_model(algorithm, received))
    return not problem.task.mixes_examples and problem.find_score_cut(own) is not None


def sum_scores(scores: Tensor, batch: Batch) -> Tensor:
    """The sums of scores over the real rows of a batch."""
    return (torch.where(batch["mask"], scores, 0) if "mask" in batch else scores).sum(1)


def mean_scores(work: Work, sums: Tensor) -> Tensor:
    """Mean loss, mean metric and its weight."""
    return torch.stack([sums[0] / work.examples, sums[1] / sums[2], sums[2]])


def shared_function(problem: Problem, algorithm: Algorithm) -> ClientFunction:
    """The scores of the shared model for each row of a job, [3, rows]; shorter jobs are padded to ``POOLED_ROWS``."""
    parts = problem.shared_parts(algorithm)

    def score(work: Work, received: Params, state: Tree) -> Tensor:
        model = work.compose(*parts(received))
        (batch,) = work.batches("score")
        scores = score_examples(work.task, work.task.scores(model, batch), batch)
        return torch.nn.functional.pad(scores, (0, max(0, POOLED_ROWS - scores.shape[1])))

    return ClientFunction(score, ("score",), pooled=True)


def shared_apart_function(problem: Problem, algorithm: Algorithm) -> ClientFunction:
    """The mean scores of the shared model [3], client by client: a model that normalises by the batch needs that."""
    parts = problem.shared_parts(algorithm)
    return score_function(lambda received, state: parts(received))


def score_examples(task: Task, scores: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
    """For each example its loss, its metric times its weight, and that weight [3, examples].

    In float64, so that a tie does not look like a gain of the last digit.
    """
    loss, metric = (column.double() for column in scores)
    weight = torch.ones_like(loss) if task.metric.weight is None else task.metric.weight(batch).double()
    return torch.stack([loss, torch.where(weight > 0, weight * metric, 0), weight])


def evaluate(
    problem: Problem,
    algorithm: Algorithm,
    engine: Engine,
    received: Params,
    store: Store,
    *,
    part: str,
    round: int,
    clients: np.ndarray,
) -> Evaluation:
    """One row per client. Clients that keep no state first get their personal model by the algorithm's own rule."""
    data = problem.data
    sizes = data.sizes(part)
    test_clients = clients[sizes[clients] > 0]
    first = problem.first_state(algorithm)
    together = bool(tree.leaves(first)) and share_body(problem, algorithm, received, first)
    with_sets = bool(problem.task.sets and len(test_clients))
    # The shared model needs no state. But workers that keep the states of their clients would take these for new ones.
    unused = [first] * len(test_clients) if engine.pools else store.get(test_clients)
    if together:
        shared = np.zeros((0, 3))
    elif problem.task.mixes_examples:
        shared = score_clients(problem, engine, received, test_clients, unused, part, "score_shared_apart")[:, :3]
    else:
        shared = score_shared(problem, engine, received, test_clients, first, part)
    outputs = []
    if not tree.leaves(first):
        personal = shared  # the very same model
    else:
        # States that are made for evaluation take memory, so they are made for a few clients at a time.
        step = STATES_AT_ONCE if algorithm.sparsity and algorithm.sparsity.first_mask else len(test_clients)
        personal = np.zeros((0, 3))
        for at in range(0, len(test_clients), max(1, step)):
            piece = test_clients[at : at + step]
            states = current_states(problem, algorithm, engine, received, store, piece, round)
            function = "score_both" if together else "score"
            scores = score_clients(problem, engine, received, piece, states, part, function)
            personal = np.concatenate([personal, scores[:, :3]])
            shared = np.concatenate([shared, scores[:, 3:]]) if together else shared
            if with_sets:
                outputs.append(predict_clients(problem, engine, received, piece, states, part))
    (loss, metric, _), (shared_loss, shared_metric, weight) = (
        spread_scores(scores, test_clients, clients) for scores in (personal, shared)
    )
    sets: dict[str, np.ndarray] = {}
    pooled: dict[str, float] = {}
    if with_sets:
        shared_outputs = predict_clients(problem, engine, received, test_clients, unused, part, "predict_shared")
        shared_scores = score_sets(problem, shared_outputs, test_clients, part)
        own_scores = score_sets(problem, torch.cat(outputs), test_clients, part) if outputs else shared_scores
        for before, (each, all_rows) in (("", own_scores), (SHARED, shared_scores)):
            sets |= {before + name: spread(values, test_clients, clients) for name, values in each.items()}
            pooled |= {before + name: value for name, value in all_rows.items()}
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
    data.release()
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
        keys = [torch.tensor(problem.client_key(int(client)), device=problem.device) for client in clients]
        states = [first_mask(key, received, state) for key, state in zip(keys, states, strict=True)]
    if algorithm.stateful:
        return states
    jobs = problem.make_jobs(adapt_phases(algorithm), clients, states, "adapt", round, part="train")
    # Copied: scoring comes next, in the memory that holds them.
    new_states: list[Tree] = tree.clone(list(engine.map("adapt", jobs, received, RoundInfo(round))))
    return new_states


def score_clients(
    problem: Problem,
    engine: Engine,
    received: Params,
    clients: np.ndarray,
    states: Sequence[Tree],
    part: str,
    function: str = "score",
) -> np.ndarray:
    """Mean loss, mean metric and weight [clients, 3], each client with its own model; with both models [clients, 6]."""
    phases = {"score": Phase(epochs=1, steps=None, batch_size=EVALUATION_BATCH, shuffle=False)}
    jobs = problem.make_jobs(phases, clients, states, part=part)
    scores = engine.map(function, jobs, received, RoundInfo())
    return torch.stack(list(scores)).double().cpu().numpy() if len(scores) else np.zeros((0, 6))


def score_shared(
    problem: Problem, engine: Engine, received: Params, clients: np.ndarray, state: Tree, part: str
) -> np.ndarray:
    """The same with one model for all clients, so that rows of many clients share a batch."""
    if not len(clients):
        return np.zeros((0, 3))
    spans = problem.data.spans(clients.tolist(), part)
    rows = np.concatenate([np.arange(start, stop) for start, stop in spans])
    sizes = np.array([stop - start for start, stop in spans])
    ends = np.cumsum(sizes)
    cuts = np.arange(POOLED_ROWS, len(rows), POOLED_ROWS)
    if not engine.pools:
        engine = Sequential(problem, engine.functions)
    owners = clients[np.searchsorted(ends, [0, *cuts], side="right")]
    pieces = np.split(rows, cuts)
    jobs = [
        Job(int(client), {"score": Rows(piece, np.array([len(piece)]))}, len(piece), state)
        for client, piece in zip(owners, pieces, strict=True)
    ]
    results = engine.map("score_shared", jobs, received, RoundInfo())
    scores = np.concatenate(
        [r[:, : len(piece)].cpu().numpy() for r, piece in zip(results, pieces, strict=True)], axis=1
    )
    loss, metric, weight = np.add.reduceat(scores, ends - sizes, axis=1)
    with np.errstate(invalid="ignore"):  # nothing that counts: no metric
        return np.stack([loss / sizes, metric / weight, weight], axis=1)


def cut_batches(columns: Batch) -> Iterator[Batch]:
    """The rows in batches of the size that scoring takes."""
    for at in range(0, len(next(iter(columns.values()))), EVALUATION_BATCH):
        yield {name: column[at : at + EVALUATION_BATCH] for name, column in columns.items()}


def spread_scores(scores: np.ndarray, tested_clients: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """Losses, metrics and weights [3, clients] of ``clients`` (ascending), NaN for those that were not tested."""
    return np.stack([spread(column, tested_clients, clients) for column in scores.T])


def spread(values: np.ndarray, tested_clients: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """The values of ``clients`` (ascending), NaN for those that were not tested."""
    full = np.full(len(clients), np.nan)
    full[np.searchsorted(clients, tested_clients)] = values
    return full
