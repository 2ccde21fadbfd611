"""Clients that training never sees: each is tested with the model that ``onboard`` makes from its training rows."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import torch

from moiety.engines.problem import to_tensors
from moiety.errors import MoietyError
from moiety.evaluation import Row, client_rows
from moiety.loop.evaluate import score_pooled
from moiety.loop.round import Loop
from moiety.run.predict import device_of, newcomer_state


def score_unseen(loop: Loop, loss: str | None, part: str) -> list[Row]:
    """A row for each client that training never sees, as in ``Run.clients``; empty where there is none.

    A client whose model cannot be made, or that has no rows of that part, is not scored: its numbers are NaN.
    """
    problem, algorithm = loop.problem, loop.algorithm
    data = problem.data.unseen
    if data is None:
        return []
    guest = replace(problem, data=data, columns=to_tensors(data.columns, problem.task, device_of(problem)))
    received = problem.broadcast(algorithm, loop.progress.server)
    shared_model = problem.shared_model(algorithm, received)
    personal, shared = np.full((len(data), 3), np.nan), np.full((len(data), 3), np.nan)
    sizes, lost = data.sizes(part), []
    for at in np.flatnonzero(sizes):
        try:
            state = newcomer_state(loop, loss, data.at(int(at), "train"), 1)
        except MoietyError as error:
            lost.append(f"{data.ids[int(at)]} ({error})")
            continue
        model = problem.compose(*algorithm.personal_model(received, state))
        one = np.array([int(at)])
        with torch.no_grad():
            personal[at] = score_pooled(guest, model, one, part)[0]
            shared[at] = score_pooled(guest, shared_model, one, part)[0]
    if lost:
        text = f"{len(lost)} of {len(data)} clients that training never sees have no model, the first {lost[0]}"
        warnings.warn(text, stacklevel=2)
    weight = np.nan_to_num(shared[:, 2])
    return client_rows(
        list(data.ids),
        data.sizes("train"),
        sizes,
        (personal[:, 0], personal[:, 1]),
        (shared[:, 0], shared[:, 1]),
        weight,
        higher_is_better=problem.task.metric.higher_is_better,
    )
