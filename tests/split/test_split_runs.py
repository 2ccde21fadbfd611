"""Splits that bring a module of their own, through fit, resume, export and both engines."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from example_models import Block
from run_settings import with_settings
from safetensors import safe_open
from torch import Tensor, nn

import moiety as mo


def federation(x: Callable[[np.random.Generator, int], np.ndarray], shape: tuple[int, ...] = ()) -> mo.FederatedData:
    draw = np.random.default_rng(0)
    rows = {
        f"c{i}": {"x": x(draw, n), "y": draw.integers(0, 3, (n, *shape)).astype(np.int64)}
        for i, n in enumerate((4, 7, 10))
    }
    return mo.data.from_clients(rows, test=0.25)


FLAT = federation(lambda draw, n: draw.normal(size=(n, 4)).astype(np.float32))
TOKENS = federation(lambda draw, n: draw.integers(0, 9, (n, 4)).astype(np.int64), shape=(4,))
IMAGES = federation(lambda draw, n: draw.normal(size=(n, 1, 8, 8)).astype(np.float32))


class Case(NamedTuple):
    model: Callable[[], nn.Module]
    split: Callable[[nn.Module], mo.Split]
    data: mo.FederatedData = FLAT


def mlp() -> nn.Module:
    return mo.models.mlp(4, 3, hidden=(5,), seed=3)


def words() -> nn.Module:
    return mo.models.transformer_lm(vocabulary=9, length=4, width=4, blocks=1, heads=2, feed_forward=6, seed=3)


def images() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        stem = (nn.Conv2d(1, 4, 3, stride=2, bias=False), nn.GroupNorm(2, 4), nn.ReLU())
        return nn.Sequential(*stem, Block(4, 6, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))


CASES = {
    "adapters words": Case(words, lambda m: mo.split.adapters(m, width=3, seed=1), TOKENS),
    "adapters images": Case(images, lambda m: mo.split.adapters(m, seed=1), IMAGES),
    "adapters targets": Case(mlp, lambda m: mo.split.adapters(m, width=2, targets=["hidden1"])),
    "lora": Case(mlp, lambda m: mo.split.lora(m, rank=2, alpha=4.0, seed=1)),
    "lora frozen": Case(mlp, lambda m: mo.split.lora(m, rank=2, targets="hidden1", frozen="hidden1")),
    "horizontal": Case(mlp, lambda m: mo.split.horizontal(m, private=[1, 3])),
    "additive": Case(mlp, lambda m: mo.split.additive(m, mo.models.linear(2, 3), local_features=[0, 2])),
    "additive convex": Case(mlp, lambda m: mo.split.additive(m, mo.models.linear(4, 3), mixture="convex")),
    "full": Case(mlp, lambda m: mo.split.full(m, pull=0.5)),
    "last feed forward": Case(words, mo.split.last_feed_forward, TOKENS),
}


def alt() -> mo.Algorithm:
    """Two epochs each, so that rows come round again and partial evaluation is at work."""
    return mo.fedalt(shared=mo.sgd(0.1, batch_size=3, epochs=2), personal=mo.sgd(0.2, batch_size=3, epochs=2))


def fit(case: Case, model: nn.Module | None = None, **options: Any) -> mo.Run:
    model = case.model() if model is None else model
    options = {"algorithm": alt(), "split": case.split(case.model()), "rounds": 2, "engine": "sequential"} | options
    return mo.fit(model, case.data, **with_settings(**options))


def whole(run: mo.Run) -> list[dict[str, Tensor]]:
    return [run.parameters(i) for i in range(3)]


def equal_runs(one: mo.Run, other: mo.Run) -> bool:
    pairs = zip(whole(one), whole(other), strict=True)
    return all(a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a) for a, b in pairs)


@cache
def unbroken_run(name: str) -> mo.Run:
    """Two rounds without a break."""
    return fit(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_only_the_shared_part_crosses_and_a_folder_is_resumed_bit_for_bit(name: str, tmp_path: Path) -> None:
    """The folder names model, split and the seed of its adapters; what it cannot name is given again."""
    case, inner, crossed = CASES[name], alt(), []

    def aggregator(updates: Any) -> Any:
        crossed.extend(set(u.upload) for u in updates)
        return inner.aggregator(updates)

    split = case.split(case.model())
    fit(case, algorithm=replace(inner, aggregator=aggregator), split=split, rounds=1, out=tmp_path / "run")
    assert crossed == [set(split.shared)] * 3
    (server,) = (tmp_path / "run").glob("checkpoint/*/server.safetensors")
    with safe_open(server, framework="pt") as file:
        keys = {k.removeprefix("shared/") for k in file.keys()}  # noqa: SIM118, it is no dict
    assert not keys & set(split.personal)
    resumed = mo.resume(tmp_path / "run", rounds=2, data=case.data, model=images() if case.model is images else None)
    assert equal_runs(unbroken_run(name), resumed)
    assert [row["loss"] for row in unbroken_run(name).clients] == [row["loss"] for row in resumed.clients]
    first = resumed._loop.problem.task.init
    for model in whole(resumed):
        assert any(not torch.equal(model[n], first[n]) for n in split.trained_personal)
        assert any(not torch.equal(model[n], first[n]) for n in split.trained_shared)


@pytest.mark.parametrize("name", CASES)
def test_engines_agree(name: str) -> None:
    run = fit(CASES[name], engine="vectorised")
    for a, b in zip(whole(unbroken_run(name)), whole(run), strict=True):
        for key in a:
            torch.testing.assert_close(a[key], b[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["adapters words", "adapters images", "lora", "additive convex", "last feed forward"])
def test_partial_evaluation_changes_nothing(name: str) -> None:
    run = fit(CASES[name], partial=False)
    for a, b in zip(whole(unbroken_run(name)), whole(run), strict=True):
        for key in a:
            torch.testing.assert_close(a[key], b[key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_an_exported_model_predicts_as_the_run_says(name: str) -> None:
    run = unbroken_run(name)
    split = run._loop.problem.split
    for i, row in enumerate(run.clients):
        rows = CASES[name].data.client(i, "test")
        model = run.export(i)
        with torch.no_grad():
            output = model(torch.from_numpy(rows["x"]))
        loss = nn.functional.cross_entropy(output.flatten(0, -2), torch.from_numpy(rows["y"]).flatten())
        assert row["loss"] == pytest.approx(float(loss), abs=1e-5)
        assert {n for n, _ in model.named_parameters()} == set(split.sizes) - split.buffers


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n].split(CASES[n].model()).model is not None])
def test_the_given_model_and_the_splits_own_are_the_same_to_fit(name: str) -> None:
    case = CASES[name]
    split = case.split(case.model())
    assert split.model is not None
    assert equal_runs(unbroken_run(name), fit(case, split.model, split=split))
    # A model taken out of a run goes on from its own values.
    again = fit(case, unbroken_run(name).export(1), split=split, rounds=1)
    start = again._loop.problem.task.init
    assert all(torch.equal(start[n], p) for n, p in unbroken_run(name).parameters(1).items())


@pytest.mark.parametrize("name", ["lora", "additive", "full"])
def test_a_run_that_was_given_the_splits_own_module_is_resumed_too(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    split = case.split(case.model())
    fit(case, split.model, split=split, rounds=1, out=tmp_path / "run")
    assert equal_runs(unbroken_run(name), mo.resume(tmp_path / "run", rounds=2, data=case.data))


def test_a_split_of_other_values_is_refused() -> None:
    """The split took a copy when it was made: weights that were loaded later would be lost in silence."""
    case = CASES["adapters words"]
    split = case.split(case.model())
    text = r"^`split` must be made from the given model as it is now, got a split of another module or of other values "
    text += r"than this TransformerLM has\. Make the split again, from this model\.$"
    model = case.model()
    with torch.no_grad():
        model.head.bias += 1
    for wrong in (model, mo.models.transformer_lm(vocabulary=9, length=4, width=4, blocks=2, heads=2)):
        with pytest.raises(mo.MoietyError, match=text):
            fit(case, wrong, split=split)
    one, other = fit(case, model, split=case.split(model)), fit(case, copy.deepcopy(model), split=case.split(model))
    assert equal_runs(one, other)


def test_a_local_model_of_ones_own_must_be_given_again(tmp_path: Path) -> None:
    case = CASES["additive"]
    split = mo.split.additive(mlp(), nn.Linear(4, 3))
    unbroken = fit(case, split=split, rounds=2)
    fit(case, split=split, rounds=1, out=tmp_path / "run")
    with pytest.raises(mo.MoietyError, match=r"^`split` must be given for fedalt and Sequential, got nothing\."):
        mo.resume(tmp_path / "run", rounds=2, data=case.data)
    assert equal_runs(unbroken, mo.resume(tmp_path / "run", rounds=2, data=case.data, split=split))


def test_adapters_begin_from_a_trained_model() -> None:
    """Appendix B.2, step (b): base parameters carry over, adapters are fresh and the same for every client."""
    case = CASES["adapters words"]
    first = mo.fit(words(), TOKENS, mo.fedavg(shared=0.1), rounds=2, engine="sequential")
    warm = first.export()
    split = case.split(warm)
    run = fit(case, warm, split=split, rounds=1)
    start = run._loop.problem.task.init
    assert all(torch.equal(start[n], p) for n, p in first.shared_parameters().items())
    fresh = case.split(words())
    assert split.model is not None
    assert fresh.model is not None
    for name in (n for n in split.personal if ".adapter." in n):
        assert torch.equal(start[name], fresh.model.get_parameter(name))
