"""``moiety.Settings``: checked where it is made, written and read by files as one record, and given again on resume."""

from __future__ import annotations

import inspect
import tomllib
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from engine_cases import StopHereError, federation, mlp, refused, same_runs, stop_after
from run_settings import with_settings

import moiety as mo
from moiety.run.folder import drop_none
from moiety.run.settings import BUILDERS, LEFT_OUT, RUN_KEYS, Options, complete_options, option_tables, read_options

FED = federation()

WRONG: dict[str, tuple[Any, str]] = {
    "participation": ("some", "`participation` must be one of the known names"),
    "inputs": ("x", "`inputs` must be a list of column names"),
    "evaluate_on": ("exam", "`evaluate_on` must be one of the known names"),
    "evaluate_every": (0, "`evaluate_every` must be >= 1"),
    "checkpoint_every": (1.5, "`checkpoint_every` must be a whole number"),
    "evaluate_clients": (True, "`evaluate_clients` must be a whole number"),
    "device": ("meta", "`device` must be a device to train on"),
    "workers": (-1, "`workers` must be >= 1"),
    "worker_timeout": (0, "`worker_timeout` must be > 0"),
    "precision": ("fp8", "`precision` must be one of the known names"),
    "partial": ("yes", "`partial` must be true or false"),
    "aggregator": ("median", "`aggregator` must be what moiety.aggregator makes"),
    "codec": (3, "`codec` must be what moiety.codec makes"),
    "attack": ({}, "`attack` must be what moiety.attack makes"),
    "attackers": ("c1", "`attackers` must be a share >= 0 and < 1, or a list of clients"),
    "clock": (1.0, "`clock` must be what moiety.clock makes"),
    "privacy": (1.0, "`privacy` must be what moiety.privacy makes"),
    "on_divergence": ("halt", "`on_divergence` must be one of the known names"),
}


def test_every_setting_is_checked_where_it_is_made() -> None:
    assert set(WRONG) == {each.name for each in fields(mo.Settings)}
    for name, (value, words) in WRONG.items():
        refused(lambda name=name, value=value: mo.Settings(**{name: value}), words)  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        mo.Settings().device = "cuda"  # type: ignore[misc]


def test_few_arguments_and_one_list_of_keys() -> None:
    parameters = inspect.signature(mo.fit).parameters
    assert len(parameters) <= 16
    assert not any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    direct = {each.name for each in fields(Options)} - {"settings"}
    assert direct < set(parameters)
    assert set(RUN_KEYS) == (direct | set(WRONG) | {"engine_reason"}) - set(BUILDERS)


ALL = mo.Settings(
    participation="bernoulli",
    inputs=["x"],
    evaluate_on="train",
    evaluate_every=3,
    checkpoint_every=2,
    evaluate_clients=4,
    workers=2,
    precision="bf16",
    partial=False,
    aggregator=mo.aggregator.bucketing(size=2, then=mo.aggregator.median()),
    codec=mo.codec.qsgd(levels=7),
    attack=mo.attack.sign_flip(scale=2.0),
    attackers=["c1", "c4"],
    clock=mo.clock.delayed(up=1),
    on_divergence="warn",
)


def test_what_a_file_says_is_read_as_it_was() -> None:
    """Every setting that can be written is there again, also after a way through TOML."""
    options = Options(rounds=7, cohort=3, seed=5, engine="sequential", loss="mse", settings=ALL, safeguard=True)
    complete = complete_options(options, mlp(), FED, mo.fedavg(shared=0.1))
    for each in (options, complete):
        tables = option_tables(each)
        again = read_options(tomllib.loads(tomli_w.dumps(drop_none(tables))))
        assert option_tables(again) == tables
        same = {name: value for name, value in vars(each.settings).items() if name not in BUILDERS}
        assert {name: value for name, value in vars(again.settings).items() if name not in BUILDERS} == same
    assert set(option_tables(complete)["run"]) == set(RUN_KEYS) - {"metric", "start", "engine_reason"}


def test_what_is_left_out_is_filled_in() -> None:
    complete = complete_options(Options(rounds=100), mlp(), FED, mo.fedavg(shared=0.1))
    settings = complete.settings
    assert (complete.cohort, complete.loss, settings.evaluate_on) == (6, "cross_entropy", "test")
    assert (settings.evaluate_every, settings.checkpoint_every) == (5, 5)
    assert complete_options(complete, mlp(), FED, mo.fedavg(shared=0.1)) == complete
    assert set(RUN_KEYS) - set(option_tables(complete)["run"]) <= set(LEFT_OUT)


def test_on_resume_only_workers_may_change(tmp_path: Path) -> None:
    algorithm, settings = mo.fedavg(shared=0.1), mo.Settings(evaluate_every=1, codec=mo.codec.qsgd(levels=7))

    def begin(**options: Any) -> mo.Run:
        return mo.fit(
            mlp(),
            FED,
            algorithm,
            **with_settings(rounds=3, cohort=2, engine="sequential", settings=settings, **options),
        )

    whole = begin()
    with pytest.raises(StopHereError):
        begin(out=tmp_path / "run", callbacks=[stop_after(1)])
    for change, words in (
        (
            mo.Settings(evaluate_every=2),
            "`evaluate_every` must be 1, as the run began, got 2. Only workers, worker_timeout, on_divergence",
        ),
        (mo.Settings(codec=mo.codec.qsgd(levels=3)), "`codec` must be as the run began with"),
        (mo.Settings(aggregator=mo.aggregator.median()), "`aggregator` must be as the run began with"),
        (mo.Settings(attackers=0.5), "`attackers` must be given with an attack, and only then, got 0.5"),
    ):
        refused(lambda change=change: mo.resume(tmp_path / "run", data=FED, settings=change), words)  # type: ignore[misc]
    refused(
        lambda: mo.resume(tmp_path / "run", data=FED, settings={"workers": 2}), "`settings` must be moiety.Settings"
    )
    again = mo.resume(tmp_path / "run", data=FED, settings=replace(settings, workers=1))
    same_runs(again, whole)


def test_pipelines_refuse_what_their_stages_do_not_know() -> None:
    stages = [mo.Stage(mo.fedavg(shared=0.1), rounds=1)]
    for settings, name in (
        (mo.Settings(evaluate_every=2), "evaluate_every"),
        (mo.Settings(participation="bernoulli"), "participation"),
        (mo.Settings(clock=mo.clock.synchronous()), "clock"),
        (mo.Settings(codec=mo.codec.qsgd(levels=7)), "codec"),
        (mo.Settings(privacy=mo.privacy.gaussian(clip=1.0, noise=1.0, delta=0.1)), "privacy"),
    ):
        refused(
            lambda settings=settings: mo.pipeline(stages, mlp(), FED, settings=settings),  # type: ignore[misc]
            f"`{name}` must be left out where there are stages",
        )
