"""Clients that training never sees: each is tested with the model that ``onboard`` makes from its training rows."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np

from moiety.clients import Store
from moiety.engines.problem import to_tensors
from moiety.engines.sequential import Sequential
from moiety.errors import MoietyError
from moiety.evaluation import Row
from moiety.loop.evaluate import client_functions, evaluate
from moiety.loop.round import Loop
from moiety.run.predict import newcomer_state
from moiety.types import Tree


def score_unseen(loop: Loop, loss: str | None, part: str) -> list[Row]:
    """A row for each client that training never sees, as in ``Run.clients``; empty where there is none.

    A client whose model cannot be made, or that has no rows of that part, is not scored: its numbers are NaN.
    """
    problem, now = loop.problem, loop.progress
    data = problem.data.unseen
    if data is None:
        return []
    guests = replace(problem, data=data, columns=to_tensors(data.columns, problem.task, problem.device))
    states: dict[int, Tree] = {}
    failures = []
    for at in range(len(data)):
        try:
            states[at] = newcomer_state(loop, loss, data.at(at, "train"), 1)
        except MoietyError as error:
            failures.append(f"{data.ids[at]} ({error})")
    if failures:
        text = f"{len(failures)} of {len(data)} clients that training never sees have no model, the first {failures[0]}"
        warnings.warn(text, stacklevel=2)
    algorithm = replace(loop.algorithm, stateful=True)  # the states are made already
    store = Store(lambda: problem.first_state(algorithm))
    store.put(list(states), list(states.values()))
    engine = Sequential(guests, client_functions(guests, algorithm))
    everyone = np.arange(len(data))
    received = problem.broadcast(algorithm, now.server)
    rows = evaluate(guests, algorithm, engine, received, store, part=part, round=now.round, clients=everyone).rows
    return [row if at in states else _without_scores(row) for at, row in enumerate(rows)]


def _without_scores(row: Row) -> Row:
    """The row of a client that has no model."""
    keys = ("client", "n", "n_test")
    blank = {key: False if key == "hurt" else 0.0 if key == "weight" else np.nan for key in row if key not in keys}
    return {**row, **blank, "weight": 0.0}
