"""Predictions with the draws that clients keep: of a client of the run, of one never seen, of one without data."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from moiety import tree
from moiety.data import from_clients
from moiety.data.checks import check_column_names, check_finite
from moiety.engines.base import RoundInfo
from moiety.engines.problem import Problem, to_tensors
from moiety.engines.sequential import Sequential
from moiety.errors import kind, must, refuse
from moiety.evaluation.predictive import Predictive
from moiety.loop.evaluate import adapt_phases, client_functions, current_states, cut_batches
from moiety.loop.round import Loop
from moiety.random import hash_words
from moiety.run.checks import check_targets, match_columns
from moiety.run.draws import Draws, draw_enough, judge_draws, or_none
from moiety.types import Algorithm, Batch, Params, Posterior, Tree

SMALLER = "Smaller steps may help."


def current_state(loop: Loop, at: int, algorithm: Algorithm) -> Tree:
    """The state of the client at a position; where clients keep none, what the algorithm's rule makes for it now."""
    problem, now = loop.problem, loop.progress
    must(not loop.on_devices, "client", "left out", problem.data.ids[at], "Its personal part is on its device.")
    engine, received = (
        Sequential(problem, client_functions(problem, algorithm)),
        problem.broadcast(algorithm, now.server),
    )
    (state,) = current_states(problem, algorithm, engine, received, now.store, [at], now.round)
    return state


def predicting_state(loop: Loop, at: int, fresh: bool) -> Tree:
    """The state with which the client at a position predicts: its own, or what the algorithm's rule makes of it now.

    The rule is used where ``fresh`` asks for it, where clients keep no state, and for a client that was never asked.
    """
    algorithm = loop.algorithm
    if algorithm.posterior and algorithm.stateful and (fresh or at not in loop.progress.store.owners()):
        algorithm = replace(algorithm, stateful=False)
    state = current_state(loop, at, algorithm)
    must(bool(tree.is_finite(state)), "client", "one whose draws stay finite", loop.problem.data.ids[at], SMALLER)
    return state


def draw_client(loop: Loop, at: int, draws: int) -> Draws:
    """New draws of the client at a position, so many of them effective."""
    state = predicting_state(loop, at, fresh=True)
    (result,) = _go_on(loop, loop.problem, [at], [state], draws)
    return result


def draw_newcomer(loop: Loop, loss: str | None, data: Mapping[str, Any] | None, passes: int, draws: int) -> Draws:
    """The same for a client never seen; one without data has independent draws from the population."""
    if data is None:
        points = _sample_population(loop, draws).samples
        return Draws(points, float(draws), 1.0)
    guest = _make_guest(loop, loss, data)
    key = newcomer_key(loop.problem.seed, guest.data.columns)
    (result,) = _go_on(loop, guest, [0], [newcomer_state(loop, loss, data, passes)], draws, [key])
    return result


def _go_on(
    loop: Loop, problem: Problem, clients: Sequence[int], states: Sequence[Tree], draws: int, keys: Any = None
) -> list[Draws]:
    received = problem.broadcast(loop.algorithm, loop.progress.server)
    engine = Sequential(problem, client_functions(problem, loop.algorithm))
    options = {"round": loop.progress.round, "keys": keys}
    return draw_enough(problem, loop.algorithm, engine, received, clients, states, draws, **options)


def newcomer_state(loop: Loop, loss: str | None, data: Mapping[str, Any] | None, passes: int) -> Tree:
    """The state of a client never seen, by the algorithm's own rule; nothing of it is sent or kept.

    Its random numbers derive from its data: two newcomers differ, and one that comes twice gets the same model. One
    without data has draws from the population.
    """
    problem, algorithm, now = loop.problem, loop.algorithm, loop.progress
    if data is None:
        return _sample_population(loop)
    guest = _make_guest(loop, loss, data)
    received, state = problem.broadcast(algorithm, now.server), problem.first_state(algorithm)
    key = newcomer_key(problem.seed, guest.data.columns)
    engine = Sequential(guest, client_functions(problem, algorithm))
    for k in range(passes):
        (job,) = guest.make_jobs(adapt_phases(algorithm), [0], [state], "onboard", k, part="train")
        (state,) = engine.map("adapt", [job._replace(key=key)], received, RoundInfo(now.round + k))
    must(bool(tree.is_finite(state)), "data", "rows on which local work stays finite", "values that are not", SMALLER)
    return state


def _sample_population(loop: Loop, *count: int) -> Tree:
    """The state of a client without data."""
    problem, algorithm = loop.problem, loop.algorithm
    if algorithm.posterior is None:
        hint = "A client needs data for a model of its own; run.export() gives the shared model."
        refuse("data", f"given for {algorithm.name}", None, hint)
    own_key = torch.tensor(hash_words("new client", problem.seed), device=problem.device)
    received = problem.broadcast(algorithm, loop.progress.server)
    return algorithm.posterior.population(own_key, received, problem.first_state(algorithm), *count)


def _make_guest(loop: Loop, loss: str | None, data: Mapping[str, Any]) -> Problem:
    """The problem with one client never seen in the place of all others; its rows are checked."""
    problem = loop.problem
    kind("data", data, Mapping, "a mapping of columns")
    fed = from_clients({"new client": match_columns("data", data, problem.data.columns)}, test=0.0)
    guest = replace(problem, data=fed, columns=to_tensors(fed.columns, problem.task, problem.device))
    with torch.no_grad():
        first_rows = {name: column[:1] for name, column in guest.columns.items()}
        output = problem.task.predict(problem.task.init, first_rows)
    check_targets(loss, guest.columns, fed, output)
    return guest


def newcomer_key(seed: int, columns: Mapping[str, np.ndarray]) -> int:
    """The key of a client never seen, for ``moiety.random``: a hash of its rows."""
    rows = {name: hashlib.blake2b(column.tobytes()).hexdigest() for name, column in columns.items()}
    return hash_words("new client", seed, *(f"{name} {rows[name]}" for name in sorted(rows)))


def predict_draws(loop: Loop, state: Tree | Draws, columns: Batch) -> Predictive:
    """The outputs of a client's model for each draw of its personal part; for its one model where it has no draws."""
    problem, algorithm, now = loop.problem, loop.algorithm, loop.progress
    received = problem.broadcast(algorithm, now.server)
    posterior = algorithm.posterior
    diagnostics: dict[str, Any] = {}
    if posterior is None:
        shared, personal = algorithm.personal_model(received, state)
        draws: Params = {name: p.unsqueeze(0) for name, p in personal.items()}
    else:
        shared, _ = algorithm.personal_model(received, problem.first_state(algorithm))
        result = state if isinstance(state, Draws) else _judge_state(posterior, received, state)
        draws = result.points
        diagnostics = {"effective": or_none(result.effective), "rhat": or_none(result.rhat)}
        if result.diverges:
            warnings.warn(
                f"The client's chain left its density: its draws are not to be trusted. {SMALLER}", stacklevel=3
            )
        diagnostics["noise"] = posterior.noise(received)
    count = len(next(iter(draws.values()))) if draws else 1
    outputs = []
    with torch.no_grad():
        for m in range(count):
            model = problem.compose(shared, {name: z[m] for name, z in draws.items()})
            outputs.append(torch.cat([problem.task.predict(model, batch) for batch in cut_batches(columns)]))
    return Predictive(torch.stack(outputs).double().cpu().numpy(), **diagnostics)


def _judge_state(posterior: Posterior, received: Params, state: Tree) -> Draws:
    """The draws that a state holds, and what they are worth."""
    points = posterior.samples(received, state)
    return Draws(points, *judge_draws(points), bool(posterior.report(state).get("diverges", False)))


def input_columns(problem: Problem, inputs: Sequence[str], x: Any) -> Batch:
    """The examples to predict as tensors: columns by name, or an array where the model takes one column."""
    if not isinstance(x, Mapping):
        single = f"{x!r:.60} ({type(x).__name__})" if x is None or np.isscalar(x) else None
        must(single is None, "x", "examples, with an axis of rows", single)
        must(len(inputs) == 1, "x", f"columns by name {', '.join(inputs)}".rstrip(), type(x).__name__)
        x = {inputs[0]: x}
    check_column_names(x)
    values = {name: v.detach() if isinstance(v, torch.Tensor) else v for name, v in x.items()}
    run_columns = problem.data.columns
    columns = match_columns("x", values, {name: run_columns[name] for name in inputs or values if name in run_columns})
    for name in inputs or columns:
        check_finite(name, columns[name], lambda row: f"row {row} of x")
    sizes = {len(column) for column in columns.values()}
    must(len(sizes) == 1, "x", "columns of one length", sorted(sizes))
    return to_tensors(columns, problem.task, problem.device)
