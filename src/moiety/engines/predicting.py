"""Predictions with the draws that clients keep: of a client of the run, of one never seen, of one without data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from moiety.data import from_clients
from moiety.draws import hashed
from moiety.engines.checks import check_columns, check_targets, like_columns
from moiety.engines.evaluate import EVALUATION_BATCH, current_states, served
from moiety.engines.problem import Problem, as_tensors, to_tensors
from moiety.engines.rounds import Rounds
from moiety.engines.sequential import Sequential
from moiety.errors import kind, must
from moiety.evaluation.predictive import Predictive
from moiety.types import Batch, Params, Tree


def own_state(loop: Rounds, client: int | str, refresh: bool) -> Tree:
    """A client's state as it predicts with: its own, or what the algorithm's rule makes of it now.

    The rule serves where it is asked for, where clients keep no state, and for a client that was never asked.
    """
    problem, algorithm, now = loop.problem, loop.algorithm, loop.progress
    at = problem.data.index(client)
    if algorithm.samples is not None and algorithm.stateful and (refresh or at not in now.store.owners()):
        algorithm = replace(algorithm, stateful=False)
    received = algorithm.broadcast(now.server)
    engine = Sequential(problem, served(algorithm))
    (state,) = current_states(problem, algorithm, engine, received, now.store, [at], now.round)
    return state


def new_state(loop: Rounds, loss: str | None, data: Mapping[str, Any] | None, passes: int) -> Tree:
    """The state of a client never seen, by the algorithm's own rule; nothing of it is sent or kept."""
    problem, algorithm, now = loop.problem, loop.algorithm, loop.progress
    received, first = algorithm.broadcast(now.server), problem.first(algorithm)
    if data is None:
        hint = "A client needs data for a model of its own."
        must(algorithm.population is not None, "data", f"given for {algorithm.name}", None, hint)
        assert algorithm.population is not None
        return algorithm.population(torch.tensor(hashed("new client", problem.seed)), received, first)
    kind("data", data, Mapping, "a mapping of columns")
    fed = from_clients({"new client": like_columns(problem.data, data)}, test=0.0)
    check_columns(problem.data, fed)
    guest = replace(problem, data=fed, columns=to_tensors(fed, problem.task, torch.device("cpu")))
    with torch.no_grad():
        few = {name: column[:1] for name, column in guest.columns.items()}
        output = problem.task.predict(problem.task.init, few)
    check_targets(loss, guest.columns, fed, output)
    state: Tree = first
    engine = Sequential(guest, served(algorithm))
    for k in range(passes):
        jobs = guest.jobs(algorithm.phases, [0], [state], "onboard", k, part="train")
        (state,) = engine.map("adapt", jobs, received, scale=1.0, round=now.round + k)
    return state


def predictive(loop: Rounds, state: Tree, columns: Batch) -> Predictive:
    """The outputs of a client's model for each draw of its personal part; for its one model where it has no draws."""
    problem, algorithm, now = loop.problem, loop.algorithm, loop.progress
    received = algorithm.broadcast(now.server)
    shared, personal = algorithm.personal_model(received, state)
    draws: Params = {name: p.unsqueeze(0) for name, p in personal.items()}
    if algorithm.samples is not None:
        draws = algorithm.samples(received, state)
    count = len(next(iter(draws.values()))) if draws else 1
    rows = len(next(iter(columns.values())))
    outputs = []
    with torch.no_grad():
        for m in range(count):
            model = problem.compose(shared, {name: z[m] for name, z in draws.items()})
            parts = [
                problem.task.predict(model, {n: c[at : at + EVALUATION_BATCH] for n, c in columns.items()})
                for at in range(0, rows, EVALUATION_BATCH)
            ]
            outputs.append(torch.cat(parts))
    return Predictive(torch.stack(outputs).double().cpu().numpy())


def input_columns(problem: Problem, inputs: Sequence[str], x: Any) -> Batch:
    """The examples to predict as tensors: columns by name, or an array where the model takes one column."""
    if not isinstance(x, Mapping):
        must(len(inputs) == 1, "x", f"columns by name {', '.join(inputs)}".rstrip(), type(x).__name__)
        x = {inputs[0]: x}
    given = {name: np.asarray(column) for name, column in x.items()}
    for name in inputs or given:
        must(name in given, "x", f"columns with {name}", ", ".join(given) or "none")
        wanted = problem.data.columns[name].shape[1:] if name in problem.data.columns else given[name].shape[1:]
        must(given[name].ndim > 0 and len(given[name]) > 0, "x", "at least one example", "none")
        must(given[name].shape[1:] == wanted, f"x[{name!r}]", f"of shape {wanted} per example", given[name].shape[1:])
    sizes = {len(column) for column in given.values()}
    must(len(sizes) == 1, "x", "columns of one length", sorted(sizes))
    return as_tensors(like_columns(problem.data, given), problem.task, torch.device("cpu"))
