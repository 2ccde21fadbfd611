"""What a run cannot hold or finish is refused before it begins, with the figure; nothing half-made stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import moiety as mo
from moiety import machine
from moiety.errors import MoietyError

ROWS = 6


def data(dtype: Any = np.float32, classes: int = 2, **columns: Any) -> mo.FederatedData:
    rng = np.random.default_rng(0)
    values = {"x": rng.normal(size=(4 * ROWS, 3)).astype(dtype), "y": np.arange(4 * ROWS) % classes, **columns}
    return mo.data.from_arrays(values, client=np.repeat(["ann", "bob", "cy", "dee"], ROWS), test=0)


def linear() -> nn.Module:
    return mo.models.linear(inputs=3, outputs=2)


def fit(algorithm: mo.Algorithm | None = None, fed: mo.FederatedData | None = None, **options: Any) -> mo.Run:
    method = algorithm or mo.fedavg(shared=mo.sgd(0.1, batch_size=2))
    settings = {"rounds": 1, "engine": "sequential", **options}
    return mo.fit(settings.pop("model", None) or linear(), data() if fed is None else fed, method, **settings)


# --- memory ---


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    monkeypatch.setattr(machine, "LITTLE", -1.0)
    return lambda room: monkeypatch.setattr(machine, "free_memory", lambda: room)


def test_the_estimate_by_hand(memory: Callable[[int | None], None], tmp_path: Path) -> None:
    """A linear model of 3 * 2 + 2 = 8 numbers is 32 bytes; 4 clients send it, and the server has it.

    The plan of a client's epoch is 6 rows of 8 bytes. For a row autograd keeps 3 inputs, 2 log-probabilities, the
    label (8 bytes) and a total weight (4): 12 + 8 + 8 + 4 = 32 bytes, the weight once a batch of two: 30; so 60 for a
    batch. 4 * 32 + 32 + 4 * 48 + 60 = 412 bytes.
    """
    memory(411)
    with pytest.raises(MoietyError, match="`fit` must be such that it fits the free memory, 411 B, got 412 B") as error:
        fit(out=tmp_path / "run")
    assert "Most of it is lists of rows (192 B)." in str(error.value)
    assert not (tmp_path / "run").exists()
    memory(412)
    fit()


def test_states_in_memory_count_only_without_a_folder(memory: Callable[[int | None], None], tmp_path: Path) -> None:
    """Two clients a round over three rounds: four clients in the end, each with 32 bytes; on disk with a folder."""
    algorithm = mo.local_only(personal=mo.sgd(0.1, batch_size=2))
    memory(0)
    figures = []
    for out in (None, tmp_path / "run"):
        with pytest.raises(MoietyError) as error:
            fit(algorithm, cohort=2, rounds=3, out=out)
        figures.append(int(str(error.value).partition("got ")[2].partition(" B")[0]))
    assert figures[0] - figures[1] == 4 * 32


def test_columns_that_must_be_converted(memory: Callable[[int | None], None]) -> None:
    """24 rows of 3 numbers in double precision become 288 bytes in single."""
    memory(287)
    with pytest.raises(MoietyError, match="`data` must be such that it fits the free memory, 287 B, got 288 B"):
        fit(fed=data(np.float64))


def test_a_run_that_is_resumed_is_checked_too(memory: Callable[[int | None], None], tmp_path: Path) -> None:
    fit(out=tmp_path / "run")
    memory(200)
    with pytest.raises(MoietyError, match="`fit` must be such that it fits the free memory"):
        mo.resume(tmp_path / "run", model=linear(), data=data(), rounds=2)


def test_a_system_that_does_not_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("MEMORY", "OWN_GROUP", "GROUPS"):
        monkeypatch.setattr(machine, name, tmp_path / "absent")
    assert machine.free_memory() is None
    machine.check_room("fit", 1e30)


@pytest.mark.parametrize("version", [1, 2])
def test_the_least_of_machine_and_group_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: int) -> None:
    """1000 kB on the machine; a group of 500,000 bytes that uses 200,000, of which 50,000 are cached files."""
    (tmp_path / "meminfo").write_text("MemTotal: 4000 kB\nMemAvailable:    1000 kB\n")
    (tmp_path / "cgroup").write_text("3:cpu:/a\n2:memory:/a/b\n" if version == 1 else "0::/a/b\n")
    for name, file in {"MEMORY": "meminfo", "OWN_GROUP": "cgroup", "GROUPS": "groups"}.items():
        monkeypatch.setattr(machine, name, tmp_path / file)
    assert machine.free_memory() == 1_024_000
    group = tmp_path / "groups" / ("memory" if version == 1 else "") / "a"
    (group / "b").mkdir(parents=True)
    limit, usage, cache = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        if version == 1
        else ("memory.max", "memory.current", "inactive_file")
    )
    (group / "b" / limit).write_text("max\n")
    (group / "b" / usage).write_text("5\n")
    assert machine.free_memory() == 1_024_000
    (group / limit).write_text("500000\n")
    (group / usage).write_text("200000\n")
    (group / "memory.stat").write_text(f"anon 7\n{cache} 50000\n")
    assert machine.free_memory() == 350_000


# --- lengths ---


@pytest.mark.parametrize("power", [12, 19, 400, 5000])
@pytest.mark.parametrize("name", ["steps", "epochs"])
def test_lengths_beyond_reason(name: str, power: int) -> None:
    with pytest.raises(MoietyError, match=f"`{name}` must be <= 1000000000, got"):
        mo.sgd(0.1, **{name: 10**power})


@pytest.mark.parametrize("power", [400, 5000])
def test_a_batch_may_be_larger_than_all_data_but_not_endless(power: int) -> None:
    with pytest.raises(MoietyError, match=r"`batch_size` must be <= 1e\+100, got"):
        mo.sgd(0.1, batch_size=10**power)


@pytest.mark.parametrize("power", [10, 400, 5000])
def test_rounds_beyond_reason(power: int, tmp_path: Path) -> None:
    with pytest.raises(MoietyError, match="`rounds` must be <= 1000000000, got"):
        fit(rounds=10**power, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_turn_of_too_many_rows(tmp_path: Path) -> None:
    with pytest.raises(MoietyError, match="at most 100,000,000 rows, got 50,000,001, or 100,000,002 rows"):
        fit(mo.fedavg(shared=mo.sgd(0.1, steps=50_000_001, batch_size=2)), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_numbers_that_no_float_can_hold(value: int) -> None:
    with pytest.raises(MoietyError, match="`lr` must be > 0 and finite"):
        mo.sgd(value)


# --- what the model and the algorithm say ---


class Words(nn.Module):
    """Five words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(x).mean(1))


@pytest.mark.parametrize("value", [5, 99, -1])
@pytest.mark.parametrize("row", [0, 20])
def test_an_index_that_the_model_has_no_entry_for(value: int, row: int) -> None:
    """In the first row, which the model is tried on, and in a later one, which it is not."""
    x = np.arange(4 * ROWS * 3).reshape(-1, 3) % 5
    x[row, 1] = value
    name = "ann" if row == 0 else "dee"
    message = (
        rf"`columns.x` must be of indices that the model has entries for, got {value} \(client '{name}', row {row}\)"
    )
    with pytest.raises(MoietyError, match=message):
        fit(fed=data(x=x), model=Words())


@pytest.mark.parametrize("weight", [-1.0, float("nan")])
def test_a_metric_that_counts_below_zero(weight: float) -> None:
    plain = mo.Metric(
        "own", True, lambda output, batch: output[:, 0], weight=lambda batch: torch.full((len(batch["y"]),), weight)
    )
    with pytest.raises(MoietyError, match=r"`metric.weight` must be finite and >= 0"):
        fit(metric=plain)


@pytest.mark.parametrize("at", range(3))
def test_glocal_erm_of_what_is_not_finite(at: int) -> None:
    values = [np.zeros((4, 2, 3)), np.zeros((4, 2, 3)), np.zeros((4, 2))]
    values[at][1, 1] = np.nan
    for play in (mo.glocal_erm, mo.fictitious_play):
        with pytest.raises(MoietyError, match="must be finite everywhere"):
            play(*values)
