"""Uploads are summed as they arrive: NumPy's weighted mean, few of them in memory, the same bits for any workers."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import federation, mlp, same_runs

import moiety as mo
from moiety.engines import processes
from moiety.engines.base import join_blocks
from moiety.loop import evaluate
from moiety.loop.exchange import Exchange
from moiety.server import mean

SIZES = (4, 9, 12, 17, 25, 40, 7, 5, 30)
FED = federation(SIZES)
UPLOAD = 4 * (5 * 4 + 5 + 3 * 5 + 3)
"""Bytes of the whole model."""


def few_at_a_time(monkeypatch: pytest.MonkeyPatch, clients: int, chunk: int) -> None:
    """Serve so many clients together, and sum so many uploads by one operation."""
    monkeypatch.setattr(processes, "ARENA_BYTES", clients * UPLOAD + 20)
    monkeypatch.setattr(mean, "CHUNK_BYTES", chunk * UPLOAD)


def fit(engine: str, algorithm: mo.Algorithm | None = None, **options: Any) -> mo.Run:
    how = algorithm or mo.fedavg(shared=mo.sgd(0.1, batch_size=5))
    return mo.fit(mlp(), FED, how, **{"rounds": 2, "cohort": 8, "seed": 4, "engine": engine, **options})


@pytest.mark.parametrize("engine", ["sequential", "vectorised", "processes:sequential", "processes:vectorised"])
def test_the_aggregate_is_the_mean_of_what_was_sent(engine, monkeypatch):
    """NumPy averages the very uploads; three clients are served together, and two of them summed at once."""
    few_at_a_time(monkeypatch, 3, 2)
    rounds: list[list[Any]] = []
    means: list[Any] = []
    sizes: list[int] = []

    def receive(exchange, received, clients, results, t):
        if t == len(rounds):
            rounds.append([])
        sizes.append(len(clients))
        rounds[t] += [({n: x.double().numpy() for n, x in u.upload.items()}, float(u.weight)) for u, _, _ in results]
        return Exchange.receive(exchange, received, clients, results, t)

    plain = mo.fedavg(shared=mo.sgd(0.1, batch_size=5))

    def server_update(server, aggregate, share):
        means.append(aggregate)
        return plain.server_update(server, aggregate, share)

    monkeypatch.setattr("moiety.loop.round.Exchange", type("Watched", (Exchange,), {"receive": receive}))
    fit(engine, replace(plain, server_update=server_update))
    assert sizes == [2, 2, 2, 2] * 2  # three would not be a whole number of chunks
    for uploads, aggregate in zip(rounds, means, strict=True):
        weights = [weight for _, weight in uploads]
        assert len(weights) == 8
        for name, x in aggregate.items():
            expected = np.average([upload[name] for upload, _ in uploads], axis=0, weights=weights)
            np.testing.assert_allclose(x.numpy(), expected, rtol=1e-5, atol=1e-7)


def test_workers_do_not_change_a_bit(monkeypatch):
    """Nor does the engine, where it computes one client at a time."""
    few_at_a_time(monkeypatch, 4, 2)
    single = fit("sequential")
    for workers in (1, 2, 3):
        same_runs(single, fit("processes:sequential", settings=mo.Settings(workers=workers)))


def test_blocks_may_come_in_any_order():
    whole = {"x": torch.arange(12.0).view(6, 2)}
    blocks = [
        ([4, 1], {"x": whole["x"][[4, 1]]}),
        ([0, 5, 2], {"x": whole["x"][[0, 5, 2]]}),
        ([3], {"x": whole["x"][[3]]}),
    ]
    for order in (blocks, blocks[::-1]):
        results = join_blocks(order, 6)
        assert torch.equal(results.stacked["x"], whole["x"])
        assert [each["x"].tolist() for each in results] == whole["x"].tolist()


@pytest.mark.parametrize(("aggregator", "most"), [(None, 3), (mo.aggregator.mean(), 3), (mo.aggregator.median(), 8)])
def test_few_uploads_live_at_a_time(aggregator, most, monkeypatch):
    """As many as are served together; a median needs them all."""
    few_at_a_time(monkeypatch, 3, 1)
    living, counts = 0, []

    def forget() -> None:
        nonlocal living
        living -= 1

    def copy_out(update):
        nonlocal living
        copy = original(update)
        living += 1
        weakref.finalize(copy.upload["hidden1.weight"], forget)
        counts.append(living)
        return copy

    original = evaluate.copy_out
    monkeypatch.setattr(evaluate, "copy_out", copy_out)
    fit("sequential", settings=mo.Settings(aggregator=aggregator))
    assert max(counts[-8:]) == most  # of the last round


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize(
    "weights",
    [[0.0, 3000.0, 5.0, 900.0, 0.5, 4000.0, 1.0], [160.0] * 7, [1.0, 1.0, 1.0, 7.0, 0.5, 1.0, 1.0]],
    ids=["all differ", "alike", "alike at first"],
)
def test_sums_in_chunks_are_numpys(kind, chunk, weights, monkeypatch):
    """Whether uploads come one by one or stacked, with the same bits; a half does not overflow on the way."""
    draw = np.random.default_rng(0)
    x, counter = 50 * draw.normal(size=(7, 2, 3)), draw.integers(0, 100, size=7)
    stack = {"x": torch.from_numpy(x).to(kind), "counter": torch.from_numpy(counter)}
    each = [
        mo.types.ClientUpdate({n: p[i] for n, p in stack.items()}, torch.tensor(w), {}) for i, w in enumerate(weights)
    ]
    monkeypatch.setattr(mean, "CHUNK_BYTES", chunk * (6 * stack["x"].element_size() + 8))
    for make, total in ((mean.RunningMean, sum(weights)), (mean.RunningSum, 1.0)):
        one, other = make(), make()
        one.add(each)
        other.add_stacked(stack, weights)
        exact = stack["x"].double().numpy()
        expected = np.tensordot(weights, exact, axes=1) / total
        result = one.result()
        assert all(torch.equal(p, other.result()[n]) for n, p in result.items())
        assert {n: p.dtype for n, p in result.items()} == {n: p.dtype for n, p in stack.items()}
        if total == 1.0 and kind is torch.float16:
            continue  # the sum itself is beyond a half
        size = np.abs(exact).max() * sum(weights) / total
        np.testing.assert_allclose(result["x"].double().numpy(), expected, atol=4 * torch.finfo(kind).eps * size)
        assert int(result["counter"]) == round(float(np.dot(weights, counter) / total))
