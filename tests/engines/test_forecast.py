"""What ``auto`` expects of engines, by hand; what it may spend on measuring, and on how many clients."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from engine_cases import federation, mlp

import moiety as mo
from moiety.engines import auto
from moiety.engines.base import RoundInfo
from moiety.engines.forecast import Load, predict_seconds
from moiety.engines.problem import Problem, to_tensors
from moiety.loop.evaluate import client_functions
from moiety.task import from_module

FED = federation((10,) * 8, test=0.2)


def problem_of(model: torch.nn.Module) -> Problem:
    task = from_module(model, loss="cross_entropy")
    return Problem(task, mo.split.nothing(model), FED, to_tensors(FED.columns, task, torch.device("cpu")), 0)


def test_seconds_of_a_round_by_hand() -> None:
    """Four clients of 10 steps and 6e8 operations each; the model has 4 tensors of 43 numbers, 172 bytes.

    A step takes 4 * 60 us = 240 us of calls and 172 * 0.15 ns = 25.8 ns of traffic; a client's arithmetic 10 ms.
    """
    problem, loads = problem_of(mlp()), [Load(10, 6e8)] * 4
    traffic = 10 * 25.8e-9
    assert predict_seconds("sequential", problem, loads, 2) == pytest.approx(4 * (2.4e-3 + 10e-3 + traffic))
    assert predict_seconds("vectorised", problem, loads, 2) == pytest.approx(7.2e-3 + 4 * (10e-3 + traffic))
    transfer = 1e-3 + 4 * (20e-6 + 3 * 172 / 4e9)
    half = predict_seconds("processes:sequential", problem, loads, 2)
    assert half == pytest.approx(2 * (2.4e-3 + 10e-3 + traffic) + transfer)
    half = predict_seconds("processes:vectorised", problem, loads, 2)
    assert half == pytest.approx(7.2e-3 + 2 * (10e-3 + traffic) + transfer)
    # Of three clients, one of two workers has two.
    third = predict_seconds("processes:sequential", problem, loads[:3], 2)
    assert third == pytest.approx(2 * (2.4e-3 + 10e-3 + traffic) + transfer - 20e-6 - 3 * 172 / 4e9)


def test_convolutions_take_longer_in_a_block() -> None:
    """The weights of a convolution have four axes."""
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten())
    plain = predict_seconds("vectorised", problem_of(mlp()), [Load(0, 6e10)], 1)
    assert predict_seconds("vectorised", problem_of(net), [Load(0, 6e10)], 1) == pytest.approx(1.5 * plain)


class Watch:
    """A clock that engines move, by the seconds that a client takes, and what they were asked for."""

    def __init__(self, patch: pytest.MonkeyPatch, seconds: dict[str, float], expected: dict[str, float]) -> None:
        self.now, self.measured = 0.0, list[tuple[str, int]]()

        def slow_down(plain: Any) -> Any:
            def run(engine: Any, function: str, jobs: Any, *rest: Any) -> Any:
                whole = [job for job in jobs if len(next(iter(job.rows.values())).order) > 4]
                self.now += seconds[engine.name] * len(whole)
                if whole and function == "train":
                    self.measured.append((engine.name, len(whole)))
                return plain(engine, function, jobs, *rest)

            return run

        for kind in (auto.Sequential, auto.Vectorised):
            patch.setattr(kind, "map", slow_down(kind.map))
        patch.setattr(auto.time, "perf_counter", lambda: self.now)
        patch.setattr(auto, "predict_seconds", lambda name, problem, loads, workers: expected[name] * len(loads))


def pick(rounds: int, name: str = "auto", workers: int = 1) -> tuple[Any, str]:
    """What is chosen for rounds of all eight clients, each with eight training rows."""
    algorithm, problem = mo.fedavg(shared=0.1), problem_of(mlp())
    states = [problem.first_state(algorithm)] * 8
    jobs = problem.make_jobs(algorithm.phases, range(8), states, "train", 0, part="train")
    received = algorithm.broadcast(problem.first_server(algorithm))
    arguments = (problem, client_functions(problem, algorithm), jobs, received, RoundInfo())
    return auto.pick_engine(name, *arguments, flops=[1e6] * 8, rounds=rounds, workers=workers)


def test_nothing_is_measured_for_a_run_of_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """29 rounds of eight clients at 0.0125 s are 2.9 s, 30 are 3: those are measured."""
    expected = {"sequential": 0.0125, "vectorised": 0.02}
    watch = Watch(monkeypatch, {"sequential": 0.02, "vectorised": 0.01}, expected)
    engine, reason = pick(29)
    assert (engine.name, watch.measured) == ("sequential", [])
    assert reason == "expected for a round, by size: sequential 100.0 ms, vectorised 160.0 ms"
    monkeypatch.setattr(auto, "SHARE", 1.0)
    engine, reason = pick(30)
    assert engine.name == "vectorised"
    assert reason == "measured on 8 clients of the first cohort, for a round: sequential 160.0 ms, vectorised 80.0 ms"


@pytest.mark.parametrize("slower", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("rounds", [100, 200, 400, 10_000])
def test_measuring_takes_a_twentieth_of_the_run_at_most(
    rounds: int, slower: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the machine is five times slower or faster than expected."""
    caplog.set_level(logging.INFO, logger="moiety")
    expected = {"sequential": 0.01, "vectorised": 0.012}
    times = {name: slower * t for name, t in expected.items()}
    watch = Watch(monkeypatch, times, expected)
    engine, reason = pick(rounds)
    assert engine.name == "sequential"
    sizes = {size for _, size in watch.measured}
    assert watch.now <= min(0.05 * rounds * 8 * times["sequential"], 3.0)
    assert ("measured" in reason) == bool(sizes) == ("measuring engines" in caplog.messages)
    # Eight clients, two engines, twice: 2 * (0.08 + 0.096) = 0.352 s, a twentieth of 7.04 s: 88 rounds.
    assert sizes == {8}


def test_fewer_clients_are_measured_where_all_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 rounds of eight clients at 1 s: 8 s to spend; both engines twice on eight are 35.2 s, on two 8.8, so none.

    With 24 rounds there are 9.6 s, but never more than 3 at once.
    """
    expected = {"sequential": 1.0, "vectorised": 1.2}
    watch = Watch(monkeypatch, expected, expected)
    assert pick(24)[0].name == "sequential"
    assert watch.measured == []
    monkeypatch.setattr(auto, "LONGEST", 100.0)
    assert pick(20)[1].startswith("expected")
    assert "measured on 2 clients" in pick(24)[1]
    assert watch.measured[:2] == [("sequential", 2), ("vectorised", 2)]


def test_ray_is_one_of_two_forms_by_size_and_never_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight clients of one step each: half of them one by one take longer than the three steps that a block counts."""
    calls = []
    for name in ("ray:sequential", "ray:vectorised"):
        monkeypatch.setitem(auto.ENGINES, name, lambda *arguments, name=name, **options: calls.append((name, options)))
    assert pick(10**6, "ray", workers=2)[1].startswith("expected for a round, by size: ray:vectorised ")
    assert calls == [("ray:vectorised", {"workers": 2})]
