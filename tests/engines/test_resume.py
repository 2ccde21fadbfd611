"""k + k rounds equal 2 k rounds bit for bit, through a checkpoint on disk."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from engine_cases import (
    StopHereError,
    batch_norm_net,
    conv_net,
    dropout_net,
    federation,
    mlp,
    same_folders,
    same_runs,
    seeded,
    stop_after,
)
from flat_options import flat
from night import NIGHTLY
from run_settings import with_settings
from torch import nn

import moiety as mo
from moiety.clients import DiskStore
from moiety.loop.round import Loop
from moiety.run import checkpoint
from moiety.types import Algorithm

K = 2
FED = federation()
IMAGES = federation(image=True)


def two(build: Callable[..., Algorithm], **options: Any) -> Callable[[], Algorithm]:
    return lambda: flat(build, shared_lr=0.1, personal_lr=0.2, batch_size=5, **options)


class Case(NamedTuple):
    algorithm: Callable[[], Algorithm]
    split: Callable[[nn.Module], mo.Split] | None = lambda model: mo.split.by_name(model, personal=["head"])
    model: Callable[[], nn.Module] = mlp
    data: mo.FederatedData = FED
    engines: tuple[str, ...] = ("sequential", "vectorised")


def avg(**options: Any) -> Callable[[], Algorithm]:
    return lambda: flat(mo.fedavg, lr=0.1, batch_size=5, **options)


def stats(where: str) -> Callable[[nn.Module], mo.Split]:
    return lambda model: mo.split.by_name(model, personal=["head"], running_stats=where)


ONE = ("sequential",)
CASES: dict[str, Case] = {
    "fedavg": Case(avg(), None),
    "fedavg adam": Case(avg(server=mo.server.adam(lr=0.05)), None),
    "fedavg server momentum": Case(avg(server=mo.server.sgd(lr=0.7, momentum=0.9)), None),
    "fedavg linear": Case(avg(schedule=mo.schedule.linear(warmup=0.3)), None),
    "fedavg batch norm": Case(avg(), None, batch_norm_net, engines=ONE),
    "fedavg dropout": Case(avg(momentum=0.9), None, dropout_net, engines=ONE),
    "fedavg conv": Case(avg(weight_decay=0.01), None, conv_net, IMAGES),
    "fedalt": Case(two(mo.fedalt)),
    "fedalt steps momentum clip": Case(two(mo.fedalt, shared_steps=3, personal_steps=4, momentum=0.9, clip=0.5)),
    "fedalt adam linear": Case(two(mo.fedalt, server=mo.server.adam(lr=0.05), schedule=mo.schedule.linear())),
    "fedalt adagrad": Case(two(mo.fedalt, server=mo.server.adagrad(lr=0.05))),
    "fedalt stateless": Case(two(mo.fedalt, stateful=False)),
    "fedalt batch norm personal": Case(two(mo.fedalt), stats("personal"), batch_norm_net, engines=ONE),
    "fedalt batch norm shared": Case(two(mo.fedalt), stats("shared"), batch_norm_net, engines=ONE),
    "fedalt batch norm shared adam": Case(
        two(mo.fedalt, server=mo.server.adam(lr=0.05)), stats("shared"), batch_norm_net, engines=ONE
    ),
    "fedalt dropout": Case(two(mo.fedalt), model=dropout_net, engines=ONE),
    "fedalt conv": Case(two(mo.fedalt), model=conv_net, data=IMAGES),
    "fedsim": Case(two(mo.fedsim)),
    "fedsim yogi stateless": Case(two(mo.fedsim, server=mo.server.yogi(lr=0.05), stateful=False)),
    "fedsim momentum": Case(two(mo.fedsim, server=mo.server.sgd(lr=0.5, momentum=0.5), momentum=0.5)),
    "fedsim linear": Case(two(mo.fedsim, schedule=mo.schedule.linear(warmup=0.5))),
    "fedsim batch norm shared": Case(two(mo.fedsim), stats("shared"), batch_norm_net, engines=ONE),
    "fedsim halving": Case(two(mo.fedsim, schedule=mo.schedule.exponential(halve_every=2))),
    "local only": Case(lambda: mo.local_only(personal=mo.sgd(0.1, batch_size=5)), None),
    "finetune": Case(lambda: mo.finetune(personal=mo.sgd(0.1, batch_size=5, epochs=2))),
    "ditto adam": Case(
        lambda: mo.ditto(
            shared=mo.sgd(0.1, batch_size=5),
            personal=mo.sgd(0.2, pull=0.5, batch_size=5),
            server=mo.server.adam(lr=0.05),
        ),
        None,
    ),
    "ditto finetune": Case(lambda: mo.ditto(personal=mo.sgd(0.2, pull=0.5, batch_size=5), form="finetune"), None),
    "ditto batch norm": Case(
        lambda: mo.ditto(shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.2, pull=0.5, batch_size=5)),
        None,
        batch_norm_net,
        engines=ONE,
    ),
    "pfedme": Case(lambda: mo.pfedme(shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.2, pull=2.0, steps=2)), None),
    "pfedme batch norm": Case(
        lambda: mo.pfedme(shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.2, pull=2.0, steps=2)),
        None,
        batch_norm_net,
        engines=ONE,
    ),
}
BOTH = ("fedavg adam", "fedalt conv", "fedalt stateless", "fedsim momentum", "finetune", "ditto adam", "pfedme")
"""What is as long on ``vectorised`` as on ``sequential`` in the gate; a checkpoint holds nothing of the engine."""
PAIRS = [
    pytest.param(case, engine, K if NIGHTLY or engine == "sequential" or name in BOTH else 1, id=f"{name}, {engine}")
    for name, case in CASES.items()
    for engine in case.engines
]


def fit(case: Case, engine: str, out: Path, **options: Any) -> mo.Run:
    model = case.model()
    split = case.split(model) if case.split else None
    options = {"rounds": 2 * K, "cohort": 3, "seed": 7, "evaluate_every": 1} | options
    return mo.fit(model, case.data, case.algorithm(), **with_settings(split=split, engine=engine, out=out, **options))


def resume(case: Case, out: Path, **options: Any) -> mo.Run:
    arguments = {"data": case.data} | ({} if case.model is mlp else {"model": case.model()})
    return mo.resume(out, **with_settings(**arguments, **options))


@pytest.mark.parametrize(("case", "engine", "k"), PAIRS)
def test_an_interrupted_run_ends_like_one_that_was_not(case: Case, engine: str, k: int, tmp_path: Path) -> None:
    """The same ``rounds`` is asked for, so schedules that look at it see the same."""
    whole = fit(case, engine, tmp_path / "whole", rounds=2 * k)
    with pytest.raises(StopHereError):
        fit(case, engine, tmp_path / "parts", rounds=2 * k, callbacks=[stop_after(k)])
    parts = resume(case, tmp_path / "parts")
    same_runs(whole, parts)
    same_folders(tmp_path / "whole", tmp_path / "parts")
    assert parts.engine == engine


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("name", ["fedavg adam", "fedalt", "fedalt stateless", "fedsim momentum", "local only"])
def test_a_finished_run_goes_on(name: str, engine: str, tmp_path: Path) -> None:
    case = CASES[name]
    whole = fit(case, engine, tmp_path / "whole")
    fit(case, engine, tmp_path / "parts", rounds=K)
    parts = resume(case, tmp_path / "parts", rounds=2 * K)
    same_runs(whole, parts)
    same_folders(tmp_path / "whole", tmp_path / "parts")


def test_many_stops_at_rounds_without_a_checkpoint(tmp_path: Path) -> None:
    """Checkpoints every 2 rounds, evaluations every round: rows of the history that a resume repeats appear once."""
    case = CASES["fedalt adam linear"]
    options = {"rounds": 7, "checkpoint_every": 2}
    whole = fit(case, "vectorised", tmp_path / "whole", **options)
    with pytest.raises(StopHereError):
        fit(case, "vectorised", tmp_path / "parts", callbacks=[stop_after(1)], **options)
    for stop in (1, 3, 3, 5):
        with pytest.raises(StopHereError):
            resume(case, tmp_path / "parts", callbacks=[stop_after(stop)])
    parts = resume(case, tmp_path / "parts")
    same_runs(whole, parts)
    same_folders(tmp_path / "whole", tmp_path / "parts")
    assert [row["round"] for row in parts.history] == list(range(1, 8))


@pytest.mark.parametrize("at", [2, 2 * K], ids=["on the way", "in the last round"])
def test_an_interrupt_while_a_round_is_evaluated(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in an evaluation, whose row is not written: the run goes on from before it and ends as if nothing were."""
    case, real, calls = CASES["fedalt"], Loop.evaluate, []
    whole = fit(case, "sequential", tmp_path / "whole", checkpoint_every=1)

    def interrupted(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return real(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "evaluate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit(case, "sequential", tmp_path / "parts", checkpoint_every=1)
    same_runs(whole, resume(case, tmp_path / "parts"))
    same_folders(tmp_path / "whole", tmp_path / "parts")


def test_a_second_interrupt_leaves_the_checkpoint_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in round 3, and again as soon as the first would write: the checkpoint of round 2 is not removed first."""
    case, real, calls = CASES["fedalt"], Loop.prepare_engine, []
    whole = fit(case, "sequential", tmp_path / "whole")

    def again(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:

        def interrupted(self: Loop, *args: Any) -> Any:
            calls.append(1)
            if len(calls) == 3:
                patch.setattr(os, "rename", again)
                raise KeyboardInterrupt
            return real(self, *args)

        patch.setattr(Loop, "prepare_engine", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit(case, "sequential", tmp_path / "parts")
    place = checkpoint.find_checkpoint(tmp_path / "parts")
    assert place is not None
    assert place.name == "round-00000002"
    same_runs(whole, resume(case, tmp_path / "parts"))


@pytest.mark.parametrize("at", ["settle", "remove_folder"])
def test_an_interrupt_after_a_checkpoint_has_its_name(at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between the rename of the checkpoint of round 2 and the removal of that of round 1: only one is left."""
    case, calls = CASES["fedalt"], []
    whole = fit(case, "sequential", tmp_path / "whole", checkpoint_every=1)
    place = checkpoint if at == "remove_folder" else DiskStore
    real = getattr(place, at)

    def interrupted(*args: Any, **options: Any) -> Any:
        paths = sorted((tmp_path / "parts" / "checkpoint").glob("round-*"))
        if len(paths) == 2 and not calls:
            calls.append(1)
            raise KeyboardInterrupt
        return real(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(place, at, interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit(case, "sequential", tmp_path / "parts", checkpoint_every=1)
    assert calls
    assert [path.name for path in (tmp_path / "parts" / "checkpoint").iterdir()] == ["round-00000002"]
    same_runs(whole, resume(case, tmp_path / "parts"))
    same_folders(tmp_path / "whole", tmp_path / "parts")


def test_resuming_after_the_end_repeats_the_results(tmp_path: Path) -> None:
    case = CASES["fedalt stateless"]
    whole = fit(case, "sequential", tmp_path / "run")
    (tmp_path / "run" / "clients.parquet").unlink()
    (tmp_path / "run" / "ledger.json").unlink()
    with pytest.warns(UserWarning, match=r"`ledger.json` must be there, for progress.json says that the run has ended"):
        again = resume(case, tmp_path / "run")
    same_runs(whole, again)
    assert (tmp_path / "run" / "clients.parquet").exists()
    assert (tmp_path / "run" / "ledger.json").exists()


def test_clients_that_were_dropped_are_remembered_across_a_checkpoint(tmp_path: Path) -> None:
    """Client c1's training targets are so large that its update is not finite: the next evaluation names it."""
    draw = np.random.default_rng(0)
    x, y, client = draw.normal(size=(18, 2)), draw.normal(size=18), np.repeat(["c0", "c1", "c2"], 6)
    test = np.arange(18) % 2 == 0
    y[(client == "c1") & ~test] = 1e300
    data = mo.data.from_arrays({"x": x, "y": y}, client, test=test)

    def begin(out: Path, **options: Any) -> mo.Run:
        model = mo.models.linear(2, 1, seed=1).double()
        options |= {"rounds": 4, "evaluate_every": 4, "checkpoint_every": 1, "engine": "sequential"}
        return mo.fit(model, data, mo.fedavg(shared=0.1), **with_settings(out=out, **options))

    whole = begin(tmp_path / "whole")
    with pytest.raises(StopHereError):
        begin(tmp_path / "parts", callbacks=[stop_after(2)])
    parts = mo.resume(tmp_path / "parts", data=data, model=mo.models.linear(2, 1, seed=1).double())
    same_runs(whole, parts)
    assert parts.history[-1]["dropped"] == ["1:c1", "2:c1", "3:c1", "4:c1"]


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_resume_keeps_the_engine_it_began_with(engine: str, tmp_path: Path) -> None:
    case = CASES["fedalt"]
    fit(case, engine, tmp_path / "run", rounds=K)
    run = resume(case, tmp_path / "run", rounds=2 * K)
    assert run.engine == engine
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["run"]["engine"] == engine


def test_resume_keeps_what_auto_chose(tmp_path: Path) -> None:
    case = CASES["fedalt"]
    run = fit(case, "auto", tmp_path / "run", rounds=K)
    first = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["run"]
    longer = resume(case, tmp_path / "run", rounds=2 * K)
    later = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["run"]
    assert longer.engine == run.engine == first["engine"] == later["engine"]
    assert first["engine_reason"] == later["engine_reason"]


def test_another_engine_asked_for_at_resume_is_recorded_with_its_own_reason(tmp_path: Path) -> None:
    case = CASES["fedalt"]
    run = fit(case, "auto", tmp_path / "run", rounds=K)
    other = "sequential" if run.engine == "vectorised" else "vectorised"
    resume(case, tmp_path / "run", rounds=2 * K, engine=other)
    options = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["run"]
    assert options["engine"] == other
    assert "measured" not in options["engine_reason"]


def test_a_data_set_and_a_model_of_the_library_are_made_again(tmp_path: Path) -> None:
    def begin(out: Path, **options: Any) -> mo.Run:
        data = mo.data.load("digits", clients=8, partition=mo.data.dirichlet(0.5), seed=1)
        model = mo.models.linear(64, 10)
        split = mo.split.by_name(model, personal=["head.bias"])
        algorithm = mo.fedsim(shared=0.1, personal=0.1)
        return mo.fit(
            model,
            data,
            algorithm,
            **with_settings(split=split, rounds=4, cohort=3, evaluate_every=2, out=out, **options),
        )

    whole = begin(tmp_path / "whole", engine="vectorised")
    with pytest.raises(StopHereError):
        begin(tmp_path / "parts", engine="vectorised", callbacks=[stop_after(2)])
    same_runs(whole, mo.resume(tmp_path / "parts"))


def test_the_model_given_again_may_have_other_values(tmp_path: Path) -> None:
    """A resumed run starts unasked clients from the folder's first values, not from those of the model given again."""
    case = CASES["fedalt dropout"]
    whole = fit(case, "sequential", tmp_path / "whole", cohort=1)
    with pytest.raises(StopHereError):
        fit(case, "sequential", tmp_path / "parts", cohort=1, callbacks=[stop_after(1)])
    other = dropout_net()
    for p in other.parameters():
        nn.init.constant_(p, 0.5)
    same_runs(whole, mo.resume(tmp_path / "parts", data=case.data, model=other))


def test_a_module_name_with_a_slash_can_be_resumed(tmp_path: Path) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({"a/b": nn.Linear(4, 3)})

        def forward(self, x: Any) -> Any:
            return self.parts["a/b"](x)

    case = Case(avg(server=mo.server.adam(lr=0.05)), None, lambda: seeded(Named))
    whole = fit(case, "sequential", tmp_path / "whole")
    fit(case, "sequential", tmp_path / "parts", rounds=K)
    same_runs(whole, resume(case, tmp_path / "parts", rounds=2 * K))


def test_a_learning_rate_that_is_a_numpy_number_can_be_resumed(tmp_path: Path) -> None:
    case = Case(lambda: mo.fedavg(shared=mo.sgd(np.float32(0.125), batch_size=5)), None)
    whole = fit(case, "sequential", tmp_path / "whole")
    fit(case, "sequential", tmp_path / "parts", rounds=K)
    same_runs(whole, resume(case, tmp_path / "parts", rounds=2 * K))


def test_a_schedule_of_the_users_own_can_be_written_and_resumed(tmp_path: Path) -> None:
    from moiety.types import Schedule

    case = Case(avg(schedule=Schedule(lambda t, rounds: 1 / (1 + t))), None)
    whole = fit(case, "sequential", tmp_path / "whole")
    fit(case, "sequential", tmp_path / "parts", rounds=K)
    same_runs(whole, resume(case, tmp_path / "parts", rounds=2 * K, algorithm=case.algorithm()))


def test_a_model_of_two_precisions_can_be_resumed(tmp_path: Path) -> None:
    """The precision is that of the model's first parameter, in the model's order, also after a resume."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)
            for i in range(8):
                self.register_buffer(f"constant{i}", torch.ones(1, dtype=torch.float64))

        def forward(self, x: Any) -> Any:
            return self.head(x)

    case = Case(avg(), lambda model: mo.split.nothing(model, frozen=["constant*"]), lambda: seeded(Mixed))
    whole = fit(case, "sequential", tmp_path / "whole")
    fit(case, "sequential", tmp_path / "parts", rounds=K)
    same_runs(whole, resume(case, tmp_path / "parts", rounds=2 * K))
