"""Configurations, options and own algorithms, mutated: refused in one line, or trained to the numbers asked for."""

from __future__ import annotations

import functools
import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from fuzz_classes import CASES, classify, counted, fuzzed
from hypothesis import given
from hypothesis import strategies as st

import moiety as mo
from moiety.experiments.config import assign, check_tables, make_parts
from moiety.random import hash_words

ODD = [
    "true",
    "false",
    "0",
    "1",
    "2",
    "-1",
    "1.5",
    "nan",
    "inf",
    "1e400",
    "1" + "0" * 400,
    "9" * 5000,
    "''",
    "'1'",
    "[]",
    "[1]",
    "['x']",
    "{}",
    "{name='x'}",
    "[" * 2000,
    "0.5",
    "3",
    "[2, 2]",
    "uniform",
    "output_layer",
    "mlp",
    "bernoulli",
    "{name='qsgd', levels=4}",
    "\\0",
    "sgd",
    "auto",
    "2020-01-01",
]
KEYS = [
    "model",
    "model.name",
    "model.hidden",
    "model.inputs",
    "model.outputs",
    "model.seed",
    "data.name",
    "data.clients",
    "data.partition",
    "data.partition.alpha",
    "data.seed",
    "data.test",
    "data.validation",
    "data.per_client",
    "algorithm",
    "algorithm.name",
    "algorithm.shared",
    "algorithm.shared.lr",
    "algorithm.shared.steps",
    "algorithm.shared.epochs",
    "algorithm.shared.batch_size",
    "algorithm.shared.momentum",
    "algorithm.shared.clip",
    "algorithm.server",
    "algorithm.schedule",
    "algorithm.weighting",
    "split",
    "codec",
    "codec.name",
    "aggregator",
    "attack",
    "clock",
    "run.cohort",
    "run.seed",
    "run.loss",
    "run.metric",
    "run.inputs",
    "run.evaluate_on",
    "run.evaluate_every",
    "run.evaluate_clients",
    "run.device",
    "run.workers",
    "run.participation",
    "run.attackers",
    "run.worker_timeout",
    "run.nonsense",
]


def small_tables() -> dict[str, Any]:
    shared = {"name": "sgd", "lr": 0.1, "steps": 1}
    return {
        "model": {"name": "mlp", "hidden": [3]},
        "data": {"name": "digits", "clients": 4, "partition": {"name": "iid"}, "per_client": 10},
        "algorithm": {"name": "fedavg", "shared": shared},
        "run": {"rounds": 1, "cohort": 2, "engine": "sequential"},
    }


def run_tables(sets: list[str]) -> mo.Run:
    """As ``moiety run FILE --set ...`` does it, without a folder."""
    tables = small_tables()
    for each in sets:
        assign(tables, each)
    config = check_tables(tables)
    parts = make_parts(config)
    assert parts.algorithm is not None
    return mo.fit(parts.model, parts.data, parts.algorithm, split=parts.split, **vars(config.options))


def has_trained(run: mo.Run, rounds: int = 1) -> bool:
    """As many rounds as asked for, with numbers that are finite or marked as none."""
    row = run.history[-1]
    metric = row.get("metric")
    return row["round"] == rounds and (metric is None or math.isfinite(metric))


@counted("configurations", CASES)
@fuzzed
@given(st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(ODD)), min_size=1, max_size=2))
def test_configurations(sets: list[tuple[str, str]]) -> None:
    assignments = [f"{key}={value}" for key, value in sets]
    classify("configurations", lambda: run_tables(assignments), has_trained)


@functools.cache
def small_data() -> mo.FederatedData:
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    return mo.data.from_arrays({"x": x, "y": np.arange(24) % 2}, client=np.repeat(["a", "b", "c", "d"], 6), test=0)


VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    2,
    -1,
    1.5,
    10**10,
    10**400,
    math.nan,
    math.inf,
    "",
    "x",
    "auto2",
    [],
    ["x"],
    [0],
    ["a"],
    ("x",),
    {},
    b"x",
    np.int64(2),
    np.float32(0.5),
    np.array([1]),
    torch.tensor(1),
    object(),
    len,
    "train",
    "bernoulli",
    "cpu",
    0.5,
]
DIRECT = ["rounds", "cohort", "seed", "start", "loss", "metric", "split", "engine", "callbacks", "progress"]
RARE = [each.name for each in fields(mo.Settings)]


@counted("options", CASES)
@fuzzed
@given(st.dictionaries(st.sampled_from([*DIRECT, *RARE]), st.sampled_from(VALUES), min_size=1, max_size=2))
def test_options(options: dict[str, Any]) -> None:
    direct = {"rounds": 1, "engine": "sequential", **{k: v for k, v in options.items() if k in DIRECT}}
    rare = {name: value for name, value in options.items() if name in RARE}
    if direct.get("progress") is True:
        direct["progress"] = False  # else the tests would draw bars

    def call() -> mo.Run:
        model = mo.models.linear(inputs=3, outputs=2)
        algorithm = mo.fedavg(shared=mo.sgd(0.1, steps=1))
        return mo.fit(model, small_data(), algorithm, settings=mo.Settings(**rare), **direct)

    classify("options", call, lambda run: has_trained(run, int(direct["rounds"])))


PLAIN = mo.fedavg(shared=mo.sgd(0.1, steps=1))
CHANGES = {
    "nothing": lambda update: update,
    "no upload": lambda update: update._replace(upload={}),
    "another name": lambda update: update._replace(upload={**update.upload, "more": torch.zeros(1)}),
    "another shape": lambda update: update._replace(upload={k: v[None] for k, v in update.upload.items()}),
    "another type": lambda update: update._replace(upload={k: v.double() for k, v in update.upload.items()}),
    "NaN": lambda update: update._replace(upload={k: v * math.nan for k, v in update.upload.items()}),
    "zeros": lambda update: update._replace(upload={k: v * 0 for k, v in update.upload.items()}),
    "weight of 3": lambda update: update._replace(weight=update.weight * 0 + 3),
}

HARMLESS = ["nothing", "NaN", "zeros", "weight of 3"]


@counted("own algorithms", CASES)
@fuzzed
@given(st.lists(st.sampled_from(sorted(CHANGES) + HARMLESS * 5), min_size=4, max_size=4))
def test_own_algorithms(changes: list[str]) -> None:
    """Each of the four clients changes its update in its own way; the mean of what counts is taken by hand."""
    uploads: dict[int, tuple[float, dict[str, np.ndarray]]] = {}

    def client_update(work: Any, received: Any, state: Any) -> Any:
        update, state = PLAIN.client_update(work, received, state)
        client = int(work.key) ^ hash_words("client", 0)  # another number where operations are counted
        update = CHANGES[changes[client] if client in range(4) else "nothing"](update)
        upload = {k: np.array(v, dtype=np.float64) for k, v in update.upload.items()}
        uploads[client] = float(update.weight), upload
        return update, state

    model = mo.models.linear(inputs=3, outputs=2)
    first = {name: p.detach().double().numpy().copy() for name, p in model.named_parameters()}

    def call() -> mo.Run:
        plain = replace(PLAIN, client_update=client_update)
        return mo.fit(model, small_data(), plain, rounds=1, engine="sequential")

    def is_right(run: mo.Run) -> bool:
        """The server moves by the weighted mean of the uploads of the four clients that are finite."""
        usable = [
            (w, u) for w, u in (uploads[client] for client in range(4)) if all(np.isfinite(v).all() for v in u.values())
        ]
        expected = first
        if usable:
            total = sum(w for w, _ in usable)
            expected = {k: v + sum(w / total * u[k] for w, u in usable) for k, v in first.items()}
        parameters = run.shared_parameters()
        return all(np.allclose(parameters[k].double().numpy(), expected[k], atol=1e-5) for k in expected)

    classify("own algorithms", call, is_right)
