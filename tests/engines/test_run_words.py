"""What a run says of itself: in a line, when nothing moves, and what it needs to go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_cases import federation, mlp
from torch import nn

import moiety as mo
from moiety.engines.rounds import NOTHING_FINITE

FED = federation()


def test_a_run_is_one_line() -> None:
    run = mo.fit(mlp(), FED, mo.fedavg(lr=0.1), rounds=2, engine="sequential")
    last = run.history[-1]
    clients = len(FED)
    assert repr(run) == f"Run(fedavg, 2 rounds, {clients} clients; {last['part']} accuracy {last['metric']:.4f})"


def test_a_round_in_which_nothing_moves_is_said_once() -> None:
    first = mlp()
    with pytest.warns(UserWarning, match="no client's update was finite") as seen:
        run = mo.fit(first, FED, mo.fedavg(lr=1e30, epochs=3), rounds=4, engine="sequential")
    assert [str(w.message) for w in seen].count(NOTHING_FINITE) == 1
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
    made = mo.fedavg(lr=0.1)
    own = replace(made, name="mine", spec={"name": "mine", "lr": 0.1})
    mo.fit(Own(), FED, own, rounds=1, engine="sequential", out=tmp_path / "run")
    wanted = r"`model`, `data`, `algorithm` must be given again, got nothing\. The run began with its own Own and its"
    with pytest.raises(mo.MoietyError, match=wanted):
        mo.resume(tmp_path / "run")
    with pytest.raises(mo.MoietyError, match=r"`algorithm` must be given again.* began with its own mine"):
        mo.resume(tmp_path / "run", model=Own(), data=FED)
    assert mo.resume(tmp_path / "run", model=Own(), data=FED, algorithm=own, rounds=2).history[-1]["round"] == 2
