"""The same seed gives the same run bit for bit, wherever the data lie and whatever else draws random numbers."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import (
    batch_norm_net,
    contents,
    dropout_net,
    federation,
    folder_contents,
    mlp,
    same_runs,
)
from run_settings import with_settings
from torch import nn

import moiety as mo
from moiety.data import open_folder

FED = federation()


def fit(model: nn.Module | None = None, data: mo.FederatedData = FED, **options: Any) -> mo.Run:
    model = model or mlp()
    split = mo.split.by_name(model, personal=["head"])
    algorithm = mo.fedalt(shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.2, batch_size=5))
    options = {"rounds": 3, "cohort": 3, "seed": 2, "engine": "sequential"} | options
    return mo.fit(model, data, algorithm, **with_settings(split=split, **options))


SEQUENTIAL = [(mlp, "sequential"), (dropout_net, "sequential"), (batch_norm_net, "sequential")]
CASES = [*SEQUENTIAL, (mlp, "vectorised")]


@pytest.mark.parametrize(("build", "engine"), CASES)
def test_the_same_seed_gives_the_same_run(build: Any, engine: str) -> None:
    same_runs(fit(build(), engine=engine), fit(build(), engine=engine))


@pytest.mark.parametrize(("build", "engine"), CASES)
def test_another_seed_gives_another_run(build: Any, engine: str) -> None:
    one, other = contents(fit(build(), engine=engine)), contents(fit(build(), engine=engine, seed=3))
    assert one["server"] != other["server"]
    assert one["models"] != other["models"]
    assert one["states"].keys() != other["states"].keys() or one["states"] != other["states"]


def test_the_seed_moves_shuffles_and_dropout_too() -> None:
    """With a cohort of all, what is left of the seed is the order of the rows and the forward pass."""
    full = {"cohort": len(FED), "rounds": 1}
    assert contents(fit(**full))["server"] != contents(fit(seed=3, **full))["server"]
    fixed = mo.fedavg(shared=mo.sgd(0.1, shuffle=False))
    runs = [mo.fit(dropout_net(), FED, fixed, rounds=1, engine="sequential", seed=s) for s in (0, 1)]
    assert contents(runs[0])["server"] != contents(runs[1])["server"]


def states() -> tuple[bytes, Any]:
    kind, keys, *rest = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), (kind, keys.tobytes(), *rest)


@pytest.mark.parametrize("engine", ["sequential", "auto"])
@pytest.mark.parametrize("build", [mlp, dropout_net, batch_norm_net])
def test_global_generators_are_not_disturbed(build: Any, engine: str, tmp_path: Path) -> None:
    model = build()
    before = states()
    run = fit(model, engine=engine, out=tmp_path / "run")
    assert states() == before, "by fit"
    run.export(0)
    run.onboard(FED.client(0))
    assert states() == before, "by export or onboard"
    mo.resume(tmp_path / "run", rounds=4, data=FED, model=model)
    assert states() == before, "by resume"


@pytest.mark.parametrize(("build", "engine"), CASES)
def test_global_generators_do_not_matter(build: Any, engine: str) -> None:
    model = build()
    torch.manual_seed(1)
    np.random.seed(1)
    one = fit(model, engine=engine)
    torch.manual_seed(2)
    np.random.seed(2)
    same_runs(one, fit(model, engine=engine))


def test_the_order_of_other_runs_does_not_matter() -> None:
    one = fit(dropout_net())
    fit(mlp(), seed=9)
    same_runs(one, fit(dropout_net()))


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_mapped_data_give_the_same_run(engine: str, tmp_path: Path) -> None:
    FED.save(tmp_path / "data")
    data = open_folder(tmp_path / "data")
    assert isinstance(data.columns["x"], np.memmap)
    one = fit(engine=engine, out=tmp_path / "one")
    other = fit(engine=engine, data=data, out=tmp_path / "other")
    same_runs(one, other)
    # All but the data's name: what lies in a folder can be named.
    a, b = (folder_contents(tmp_path / name) for name in ("one", "other"))
    configs = [tomllib.loads(each.pop("config")) for each in (a, b)]
    assert [c.pop("data") for c in configs] == [{"own": "data"}, {"name": "folder", "path": str(tmp_path / "data")}]
    assert configs[0] == configs[1]
    assert a == b


def test_a_run_on_data_in_a_folder_goes_on_by_itself(tmp_path: Path) -> None:
    FED.save(tmp_path / "data")
    fit(data=open_folder(tmp_path / "data"), out=tmp_path / "run", rounds=2, evaluate_every=1)
    same_runs(fit(evaluate_every=1), mo.resume(tmp_path / "run", rounds=3))


def test_a_run_on_data_in_memory_goes_on_with_mapped_data(tmp_path: Path) -> None:
    FED.save(tmp_path / "data")
    fit(out=tmp_path / "run", rounds=2, evaluate_every=1)
    run = mo.resume(tmp_path / "run", data=open_folder(tmp_path / "data"), rounds=3)
    same_runs(fit(evaluate_every=1), run)


def test_training_writes_nothing_into_mapped_data(tmp_path: Path) -> None:
    FED.save(tmp_path / "data")
    before = {p: p.read_bytes() for p in (tmp_path / "data").rglob("*.npy")}
    fit(data=open_folder(tmp_path / "data"), evaluate_on="train").onboard(FED.client(1))
    assert {p: p.read_bytes() for p in (tmp_path / "data").rglob("*.npy")} == before
