"""Runs on a device other than the CPU: nothing is made in the wrong place, and the numbers are the pinned ones.

No GPU is needed: ``other_device`` watches every operation as a GPU would.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import golden_pins as pins
import numpy as np
import pytest
import torch
from golden_cases import CASES, SIZES, data_of, head, net
from other_device import AWAY, pretend_device

import moiety as mo
from moiety.algorithms import ALGORITHMS
from moiety.run import build

OPTIONS = ("fedalt-epochs", "fedpop-mala", "fedpop-preconditioned", "glocal_sgd-normalised", "fedspa-rsm", "ffgg-exact")
RUNS = [
    *((name, "vectorised") for name in (*ALGORITHMS, *OPTIONS)),
    *((name, "sequential") for name in ("fedavg-adam", "scaffold", "fedpop", "fedspa")),
]


@pytest.mark.parametrize(("name", "engine"), RUNS, ids=["/".join(run) for run in RUNS])
def test_pinned_numbers_from_another_device(name: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training, evaluation, models of clients and a newcomer's; the pins were computed on the CPU."""
    monkeypatch.setattr(build, "check_device", lambda name: AWAY)
    with pretend_device() as places:
        numbers = CASES[name].numbers(engine)
    assert places.made > 20
    assert not pins.run_changes(pins.read(pins.PARAMETERS)[name], pins.pinned(numbers))


def test_the_device_is_seen_where_it_is_forgotten() -> None:
    """The watch itself: each of these fails on a GPU, and what it accepts a GPU accepts."""
    with pretend_device():
        away = torch.ones(3, device="cuda")
        assert away.device.type == (2 * away).sum().device.type == "cuda"
        assert (away + torch.tensor(1.0)).device.type == "cuda"
        assert away.cpu().numpy().tolist() == away.tolist() == [1.0, 1.0, 1.0]
        for call in (
            lambda: away + torch.ones(3),
            lambda: away.index_select(0, torch.tensor([0])),
            lambda: torch.stack([away, torch.from_numpy(np.ones(3, np.float32))]),
            lambda: torch.func.vmap(lambda x: x * torch.ones(1))(away),
        ):
            with pytest.raises(RuntimeError, match="on cuda and on cpu"):
                call()
        with pytest.raises(TypeError, match="to numpy"):
            away.numpy()


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(mo.MoietyError) as error:
        call()
    return str(error.value)


def fit(**options: Any) -> mo.Run:
    model = net()
    split = head(model)
    arguments = {"rounds": 2, "cohort": 3, "engine": "auto", **options}
    return mo.fit(model, data_of(SIZES, False), mo.fedalt(shared=0.1, personal=0.1), split=split, **arguments)


def test_a_run_on_a_device_that_auto_finds_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    plain = fit(rounds=4, engine="sequential")
    with pretend_device():
        run = fit(out=tmp_path / "run", settings=mo.Settings(device="auto"))
        assert run.config["run"]["device"] == "cuda"
        assert run.engine in ("sequential", "vectorised")  # workers cannot share a device
        data = data_of(SIZES, False)
        model = net()
        split = head(model)
        run = mo.resume(tmp_path / "run", model=model, data=data, split=split, rounds=4, engine="sequential")
        module = run.export("client-1")
        assert all(p.device.type == "cpu" for p in module.parameters())
    for name, p in plain.export("client-1").state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], p, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("engine", ["processes", "processes:sequential", "ray", "ray:vectorised"])
def test_engines_with_processes_refuse_a_device(engine: str, tmp_path: Path) -> None:
    with pretend_device():
        text = refusal(lambda: fit(engine=engine, out=tmp_path / "run", settings=mo.Settings(device="cuda")))
    hint = "Use engine sequential, vectorised or auto."
    assert text == f"`device` must be cpu for the engine {engine}, got cuda. {hint}"
    assert not (tmp_path / "run").exists()


def test_a_device_without_float64_is_refused() -> None:
    text = refusal(lambda: mo.Settings(device="mps"))
    assert text == "`device` must be one with float64, in which losses and weights are added up, got mps. Use cpu."
