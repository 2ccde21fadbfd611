"""Problems whose answer is planted: which layer should be personal, or that none should.

Targets come from a formula, not from moiety: y = g(f(x) P) B, where f(x) are six numbers, P picks two directions of
them, and g is one function of two numbers, too wild to be learnt from the rows of one client.

- ``input``: f(x) = x, and each client has its own P. The first layer has five units, so what a shared one leaves out is
  lost, and only a personal one can look in the right directions.
- ``middle``: f(x) = x F, six directions of 24 inputs, which the model's first layer knows at the start, as that of a
  pretrained model would. Each client has its own P. Only the second layer, which has five units, can pick its
  directions; a first layer of its own would have to be learnt from 24 rows.
- ``output``: each client has its own B, which mixes the outputs.
- ``nothing``: all clients have the same P and B.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import moiety as mo
from moiety.analysis.recommendation import Recommendation

ANSWERS = {"input": "input layer", "middle": "layer hidden2", "output": "output layer", "nothing": "one model"}
"""The kinds of problems, and how the names of right answers begin."""
OPTIONS: dict[str, Any] = {"budget": 1_600_000, "work": mo.sgd(0.1, batch_size=6)}
"""What the search is given."""
SEEDS = {"input": range(20, 30), "middle": range(20, 30), "nothing": range(20, 40)}
"""The seeds that count: none of them was run before the search was as it is. Mend it on seeds from 100 on."""
SIZE, TARGETS, NOISE = 6, 4, 0.1


def plant(kind: str, seed: int, *, clients: int = 40, rows: int = 60) -> tuple[torch.nn.Module, mo.FederatedData]:
    """A model, and clients of one kind of problem: 24 training rows, and 18 each for validation and test."""
    rng = np.random.default_rng([seed, list(ANSWERS).index(kind)])
    inputs = 24 if kind == "middle" else SIZE
    reduce = np.linalg.qr(rng.normal(size=(inputs, inputs)))[0][:, :SIZE] if kind == "middle" else np.eye(SIZE)
    common = np.linalg.qr(rng.normal(size=(SIZE, 2)))[0]
    inner, shift, outer = 1.5 * rng.normal(size=(2, 12)), rng.normal(size=12), rng.normal(size=(12, TARGETS)) / 1.7
    columns: dict[str, list[np.ndarray]] = {"x": [], "y": []}
    for _ in range(clients):
        x, directions, mix = rng.normal(size=(rows, inputs)), common, np.eye(TARGETS)
        if kind in ("input", "middle"):
            directions = np.linalg.qr(common + 0.4 * rng.normal(size=common.shape))[0]
            directions = directions * np.sign((directions * common).sum(0))
        if kind == "output":
            mix = np.linalg.qr(rng.normal(size=mix.shape))[0]
        y = np.tanh(x @ reduce @ directions @ inner + shift) @ outer @ mix
        columns["x"].append(x.astype(np.float32))
        columns["y"].append((y + NOISE * rng.normal(size=y.shape)).astype(np.float32))
    arrays = {name: np.concatenate(parts) for name, parts in columns.items()}
    data = mo.data.from_arrays(arrays, np.repeat(np.arange(clients), rows), test=0.3, validation=0.3, seed=seed)
    if kind != "middle":
        return mo.models.mlp(SIZE, TARGETS, hidden=(5, 24), seed=seed), data
    model = mo.models.mlp(inputs, TARGETS, hidden=(2 * SIZE, 5, 24), seed=seed)
    with torch.no_grad():
        model.hidden1.weight.copy_(torch.tensor(np.concatenate([reduce, -reduce], axis=1).T))
        model.hidden1.bias.zero_()
    return model, data


def find_answer(kind: str, seed: int, **changes: Any) -> Recommendation:
    """The answer to a problem; ``changes`` are of the options of the search."""
    model, data = plant(kind, seed)
    return mo.recommend(model, data, seed=seed, **{**OPTIONS, **changes})
