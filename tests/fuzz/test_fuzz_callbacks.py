"""Early stopping, kept rounds and CSV files with odd options: refused in one line, or as by hand from the history."""

from __future__ import annotations

import csv
import functools
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fuzz_classes import SLOW_CASES, classify, counted, slowly_fuzzed
from hypothesis import given
from hypothesis import strategies as st

import moiety as mo

ROUNDS = 6
X = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
DATA = mo.data.from_arrays({"x": X, "y": np.arange(32) % 2}, client=np.repeat(["a", "b", "c", "d"], 8), test=0.25)
COUNTS: list[Any] = [1, 2, 3, 1, 2, np.int64(2), 10**30, 0, -1, 1.5, True, None, "2", math.nan]
LOWER = {"loss": True, "shared_loss": True, "hurt": True}
HIGHER = {"metric": True, "gain": True, "helped": True, "worst_decile": True, "accuracy": True, "shared_metric": True}
COLUMNS: list[Any] = [None, "loss", *LOWER, *HIGHER, "round", "part", "seconds", "nonsense", "", "\0", 3, ["loss"]]
FLAGS: list[Any] = [True, True, False, None, 1, "yes"]


def train(lr: float, every: int, callbacks: Any, out: Path | None = None) -> mo.Run:
    model, work = mo.models.mlp(3, 2, hidden=(2,), seed=0), mo.sgd(lr, batch_size=4)
    split, settings = mo.split.output_layer(model), mo.Settings(evaluate_every=every)
    options = {"split": split, "rounds": ROUNDS, "cohort": 2, "engine": "sequential", "settings": settings}
    return mo.fit(model, DATA, mo.fedalt(shared=work, personal=work), out=out, callbacks=callbacks, **options)


def models_of(run: mo.Run) -> list[dict[str, torch.Tensor]]:
    return [run.parameters(client) for client in range(len(DATA))]


@functools.cache
def uninterrupted(lr: float, every: int) -> tuple[dict[int, Any], list[dict[str, Any]]]:
    """The models after every round of a run that nothing stops, and its history."""
    models: dict[int, Any] = {}
    run = train(lr, every, [lambda run, record: models.update({record.round: models_of(run)})])
    return models, run.history


def by_hand(lr: float, every: int, patience: int, metric: str) -> tuple[int | None, int, bool]:
    """The best round, the last one, and whether patience ended then, from the numbers of the history alone."""
    sign, best, count, top = 1 if metric in LOWER else -1, None, 0, math.inf
    for row in uninterrupted(lr, every)[1]:
        value = row[metric]
        if value is not None and sign * value < top:
            best, count, top = row["round"], 0, sign * value
        else:
            count += 1
        if count >= patience:
            return best, row["round"], True
    return best, ROUNDS, False


def same_models(one: Any, other: Any) -> bool:
    return all(torch.equal(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a)


def same_rows(history: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    plain = lambda rows: [{k: v for k, v in row.items() if k != "seconds"} for row in rows]  # noqa: E731
    return plain(history) == plain(expected)


@counted("early stopping", SLOW_CASES)
@slowly_fuzzed
@given(
    st.sampled_from(COUNTS),
    st.sampled_from(COLUMNS),
    st.sampled_from(FLAGS),
    st.sampled_from([0.1, 2.5, 2.5]),
    st.sampled_from([1, 2]),
    st.booleans(),
)
def test_early_stopping(patience: Any, metric: Any, restore: Any, lr: float, every: int, kept: bool) -> None:
    place = Path(tempfile.mkdtemp())
    out = place / "run" if kept else None

    def call() -> mo.Run:
        return train(lr, every, [mo.callbacks.EarlyStopping(patience, metric=metric, restore_best=restore)], out)

    def is_right(run: mo.Run) -> bool:
        best, stop, ended = by_hand(lr, every, patience, metric or "metric")
        models, history = uninterrupted(lr, every)
        end = best if restore and best is not None else stop
        runs = [run] if out is None else [run, mo.load(out, data=DATA)]
        fits = [same_models(models_of(each), models[end]) for each in runs]
        expected = [row for row in history if row["round"] <= stop]
        more = out is None or (mo.verify(out) == [] and same_rows(runs[-1].history, expected))
        if out is not None and restore and best is not None:
            fits.append(same_models(models_of(mo.load(out, data=DATA, best=True)), models[best]))
        return all(fits) and more and same_rows(run.history, expected) and bool(run.stopped) == ended

    try:
        classify("early stopping", call, is_right)
    finally:
        shutil.rmtree(place)


PLACES: list[Any] = [
    "h.csv",
    "h.csv",
    "a/b/h.csv",
    None,
    "",
    ".",
    "\0",
    "x" * 300,
    "\ud800",
    3,
    "run",
    "run/history.jsonl",
]
OWN: dict[str, Any] = {
    "none": lambda run, record: None,
    "stops": lambda run, record: record.round == 2,
    "stops, NumPy": lambda run, record: np.bool_(record.round == 2),
    "gives 1": lambda run, record: 1,
    "gives a text": lambda run, record: "stop",
    "no function": 3,
    "a class": mo.callbacks.CSV,
}


@counted("CSV and own callbacks", min(SLOW_CASES, len(PLACES) * len(OWN) * 4))  # at night all that there are
@slowly_fuzzed
@given(st.sampled_from(PLACES), st.sampled_from(sorted(OWN)), st.booleans(), st.sampled_from([1, 2]))
def test_csv_and_callbacks_of_ones_own(path: Any, own: str, kept: bool, every: int) -> None:
    place = Path(tempfile.mkdtemp())
    out = place / "run" if kept else None
    file = place / path if isinstance(path, str) and path else path

    def call() -> mo.Run:
        return train(0.1, every, [mo.callbacks.CSV(file), OWN[own]], out)

    def is_right(run: mo.Run) -> bool:
        target = place / "run/history.csv" if file is None else Path(file)
        stop = 2 if own.startswith("stops") else ROUNDS
        expected = [row for row in uninterrupted(0.1, every)[1] if row["round"] <= stop]
        with open(target, newline="") as stream:
            rows = list(csv.DictReader(stream))
        text = lambda value: "" if value in (None, []) else str(value)  # noqa: E731
        same = [{k: text(v) for k, v in row.items()} for row in run.history] == rows
        return same and same_rows(run.history, expected) and (out is None or mo.verify(out) == [])

    try:
        classify("CSV and own callbacks", call, is_right)
    finally:
        shutil.rmtree(place)
