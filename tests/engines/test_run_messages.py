"""What a run says of itself: in a line, when nothing moves, and what it needs to go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_cases import federation, mlp
from run_settings import with_settings
from torch import nn

import moiety as mo
from moiety.task import from_functions

FED = federation()


def test_a_run_is_one_line() -> None:
    run = mo.fit(mlp(), FED, mo.fedavg(shared=0.1), rounds=2, engine="sequential")
    last = run.history[-1]
    clients = len(FED)
    assert repr(run) == f"Run(fedavg, 2 rounds, {clients} clients; {last['part']} accuracy {last['metric']:.4g})"


def test_a_round_in_which_nothing_moves_is_said_once() -> None:
    settings = mo.Settings(on_divergence="warn")
    algorithm = mo.fedavg(shared=mo.sgd(1e30, epochs=3))
    with pytest.warns(
        UserWarning, match=r"^`updates` must be finite .*, got none in round \d \(c0 not finite: "
    ) as records:
        run = mo.fit(mlp(), FED, algorithm, rounds=4, engine="sequential", settings=settings)
    assert len(records) == 1
    assert all(torch.isfinite(p).all() for p in run.shared_parameters().values())
    assert any(row["dropped"] for row in run.history)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FED.columns["x"].shape[1], int(FED.columns["y"].max()) + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.flatten(1))


def test_all_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    """Also an algorithm of a name that moiety does not have."""
    base = mo.fedavg(shared=0.1)
    own = replace(base, spec={"name": "mine", "lr": 0.1})
    mo.fit(Own(), FED, own, rounds=1, engine="sequential", out=tmp_path / "run")
    message = r"`model`, `data`, `algorithm` must be given again, got nothing\. The run began with its own Own and its"
    with pytest.raises(mo.MoietyError, match=message):
        mo.resume(tmp_path / "run")
    with pytest.raises(mo.MoietyError, match=r"`algorithm` must be given again.* began with its own mine"):
        mo.resume(tmp_path / "run", model=Own(), data=FED)
    assert mo.resume(tmp_path / "run", model=Own(), data=FED, algorithm=own, rounds=2).history[-1]["round"] == 2


def test_a_run_without_an_evaluation_is_one_line_too(tmp_path: Path) -> None:
    def stop(run: Any, record: Any) -> None:
        if record.round == 3:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"rounds": 10, "engine": "sequential", "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        mo.fit(mlp(), FED, mo.fedavg(shared=0.1), **with_settings(evaluate_every=100, callbacks=[stop], **options))
    run = mo.resume(tmp_path / "run", rounds=3, model=mlp(), data=FED)
    assert repr(run) == f"Run(fedavg, 3 rounds, {len(FED)} clients; not evaluated)"


def test_an_algorithm_from_elsewhere_in_a_pipeline_and_as_a_start(tmp_path: Path) -> None:
    own = replace(mo.fedavg(shared=0.1), spec={"name": "mine", "lr": 0.1})
    options: dict[str, Any] = {"engine": "sequential"}
    mo.pipeline([mo.Stage(own, rounds=1)], mlp(), FED, **with_settings(out=tmp_path / "stages", **options))
    with pytest.raises(mo.MoietyError, match=r"`stages` must be given again, got nothing for the algorithm of stage 1"):
        mo.resume(tmp_path / "stages", model=mlp(), data=FED)
    mo.fit(mlp(), FED, own, **with_settings(rounds=1, out=tmp_path / "run", **options))
    with pytest.raises(mo.MoietyError, match=r"`start` must be a run whose folder names its algorithm"):
        mo.fit(mlp(), FED, mo.fedavg(shared=0.1), **with_settings(rounds=1, start=tmp_path / "run", **options))


def test_a_wrong_number_of_clients_leaves_no_folder(tmp_path: Path) -> None:
    algorithm = mo.fedpop(shared=0.1, personal=mo.kernel.langevin(step=0.01), clients=99)
    split = mo.split.by_name(mlp(), personal=["head"])
    with pytest.raises(mo.MoietyError, match=f"`clients` must be the number of clients there are, {len(FED)}, got 99"):
        mo.fit(mlp(), FED, algorithm, split=split, rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_newcomer_to_a_task_of_plain_functions() -> None:
    """Its labels are what its own loss makes of them: nothing of the house's losses is asked of them."""

    def predict(params: Any, batch: Any) -> torch.Tensor:
        return batch["x"].flatten(1) @ params["w"] + params["b"]

    def error(params: Any, batch: Any) -> torch.Tensor:
        return (predict(params, batch) - batch["y"]).square()

    width = FED.columns["x"][0].size
    task = from_functions({"w": torch.zeros(width), "b": torch.zeros(())}, error, predict)
    split = mo.Split(shared=("w",), personal=("b",), frozen=(), buffers=frozenset(), sizes={"w": width, "b": 1})
    run = mo.fit(task, FED, mo.fedalt(shared=0.01, personal=0.1), split=split, rounds=2, engine="sequential")
    columns = FED.client(FED.ids[0])
    prediction = run.predictive({name: columns[name] for name in ("x", "y")}, columns)
    assert prediction.outputs.shape == (1, len(columns["y"]))
    # Without a metric the loss is the metric, not the prediction.
    assert all(row["metric"] == row["loss"] for row in run.clients)
