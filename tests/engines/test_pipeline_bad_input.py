"""Bad pipelines: one line each, before anything is trained or written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_cases import federation, mlp, refused, reseal, tree_hash
from oracle_problems import scalar_task
from run_settings import with_settings

import moiety as mo

FED = federation()
AVG, ALT = mo.fedavg(shared=0.1), mo.fedalt(shared=0.1, personal=0.1)
FIRST = mo.Stage(AVG, rounds=1)


def alt(split: Any) -> Any:
    return mo.Stage(ALT, rounds=1, split=split)


def pipeline_options(**options: Any) -> dict[str, Any]:
    return {"stages": [FIRST, alt("output_layer")], "model": mlp(), "data": FED, "engine": "sequential"} | options


ADAPTERS = {"name": "adapters", "targets": ["hidden1"]}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no stage": ({"stages": []}, "`stages` must be a list of at least one stage, got none"),
    "no list": ({"stages": FIRST}, "`stages` must be a list of stages.*moiety.Stage"),
    "algorithms": ({"stages": [AVG]}, "`stages` must be a list of moiety.Stage"),
    "no model": ({"model": 3}, "`model` must be an nn.Module"),
    "no data": ({"data": 3}, "`data` must be FederatedData"),
    "engine": ({"engine": "fast"}, "`engine` must be one of the known names"),
    "seed": ({"seed": -1}, "`seed` must be >= 0"),
    "loss": ({"loss": "mae"}, "`loss` must be one of the known names"),
    "evaluate_on": ({"evaluate_on": "tests"}, "`evaluate_on`"),
    "evaluate_clients": ({"evaluate_clients": 7}, "`evaluate_clients` must be <= 6"),
    "workers": ({"workers": 0}, "`workers` must be >= 1"),
    "inputs": ({"inputs": ["z"]}, "`inputs`"),
    "cohort": ({"stages": [FIRST, mo.Stage(AVG, rounds=1, cohort=7)]}, "`stage.2.cohort` must be <= 6"),
    "split name": ({"stages": [FIRST, alt("output_layr")]}, "`stage.2.split.name`.*output_layer"),
    "split key": ({"stages": [FIRST, alt({"name": "by_name", "persnal": ["head"]})]}, "`stage.2.split`.*personal"),
    "no split": ({"stages": [FIRST, mo.Stage(ALT, rounds=1)]}, "`stage.2.split` must be given for fedalt"),
    "no personal split": (
        {"stages": [FIRST, mo.Stage(mo.finetune(personal=0.1), rounds=1)]},
        "`stage.2.split` must be given",
    ),
    "split that the algorithm cannot use": (
        {"stages": [mo.Stage(AVG, rounds=1, split="output_layer")]},
        "nothing personal",
    ),
    "split for a task": (
        {"stages": [mo.Stage(AVG, rounds=1)], "model": scalar_task()},
        "`stage.1.split` must be no name where the model is a Task",
    ),
    "split of another model": (
        {"stages": [FIRST, alt(mo.split.output_layer(mo.models.linear(4, 3)))]},
        "`stage.2.split` must be made for the model of that stage",
    ),
    "split that fits no longer": (
        {"stages": [alt(ADAPTERS), alt(mo.split.output_layer(mlp()))]},
        "`stage.2.split` must be made for the model of that stage.*adapter",
    ),
    "adapters on adapters": ({"stages": [alt(ADAPTERS), alt({**ADAPTERS, "width": 3})]}, "adapter"),
    "adapters of the untrained model": (
        {"stages": [FIRST, alt(mo.split.adapters(mlp(), targets=["hidden1"]))]},
        "`stage.2.split` must be made on the trained model",
    ),
    "function that gives no split": ({"stages": [alt(lambda model: 3)]}, "`stage.1.split` must be a function"),
}


@pytest.mark.parametrize("case", BAD)
def test_pipelines(tmp_path: Path, case: str) -> None:
    changes, words = BAD[case]
    out = tmp_path / "deep" / "out"

    def call() -> Any:
        options = pipeline_options(**changes)
        return mo.pipeline(
            options.pop("stages"), options.pop("model"), options.pop("data"), **with_settings(out=out, **options)
        )

    refused(call, words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algorithm": 3}, "`algorithm` must be what a builder"),
        ({"rounds": 0}, "`rounds` must be >= 1"),
        ({"rounds": None}, "`rounds` must be a whole number"),
        ({"rounds": 1.5}, "`rounds` must be a whole number"),
        ({"cohort": 0}, "`cohort` must be >= 1"),
        ({"evaluate_every": 0}, "`evaluate_every` must be >= 1"),
        ({"checkpoint_every": "2"}, "`checkpoint_every` must be a whole number"),
        ({"split": 3}, "`split` must be a name, a table, a function of the model, or a Split"),
    ],
)
def test_stages(options: dict[str, Any], words: str) -> None:
    options = {"algorithm": AVG, "rounds": 1} | options
    refused(lambda: mo.Stage(options.pop("algorithm"), **options), words)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ended") / "out"
    mo.pipeline(**with_settings(out=out, **pipeline_options()))
    return out


def test_a_folder_that_is_taken(ended: Path, tmp_path: Path) -> None:
    before = tree_hash(ended)
    refused(lambda: mo.pipeline(**with_settings(**pipeline_options(), out=ended)), "holds no run yet.*pipeline.toml")
    refused(lambda: mo.fit(mlp(), FED, AVG, rounds=1, out=ended), "holds no run yet.*pipeline.toml")
    refused(lambda: mo.pipeline(**with_settings(**pipeline_options(), out=ended / "1-fedavg")), "holds no run yet")
    assert tree_hash(ended) == before
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.toml").touch()
    refused(lambda: mo.pipeline(**with_settings(**pipeline_options(), out=tmp_path)), "holds no run yet.*run")


def test_resuming(ended: Path) -> None:
    before = tree_hash(ended)
    refused(lambda: mo.resume(ended, data=FED, rounds=3), "`rounds` must be left out for a pipeline")
    refused(lambda: mo.resume(ended, data=FED, algorithm=AVG), "`algorithm` must be left out for a pipeline")
    refused(lambda: mo.resume(ended), "`data` must be given again.*pipeline")
    refused(lambda: mo.resume(ended, data=FED, engine="fast"), "`engine`")
    refused(lambda: mo.resume(ended, data=FED, stages=[FIRST]), "`stages` must be as the pipeline began with")
    refused(lambda: mo.resume(ended / "1-fedavg", data=FED, stages=[FIRST]), "`stages` must be left out")
    refused(lambda: mo.resume(ended.parent), "a run folder with a config.toml")
    refused(lambda: mo.fit(mlp(), FED, AVG, rounds=1, start=ended), "a run folder with a config.toml")
    assert tree_hash(ended) == before
    other = federation(seed=1)
    refused(lambda: mo.resume(ended, data=other), "`folder` must be of this run, with data")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[run]", "[ran]", r"\[run\]"),
        ("stage", "stag", r"\[\[stage\]\]"),
        ("seed = 0", 'seed = "0"', "`run.seed` must be a whole number, got '0'"),
        ("rounds = 1", "roundz = 1", "`stage.1` must be a table of known keys, got roundz.*rounds"),
        ('name = "fedavg"', 'name = "fedavgg"', "`stages` must be given again.*algorithm of stage 1"),
        ("shared = 0.1", "sharde = 0.1", "`stage.1.algorithm`.*shared"),
        ("[data]", "[data", "readable TOML"),
    ],
)
def test_a_broken_file(ended: Path, tmp_path: Path, old: str, new: str, words: str) -> None:
    text = (ended / "pipeline.toml").read_text()
    assert old in text
    (tmp_path / "pipeline.toml").write_text(text.replace(old, new))
    reseal(tmp_path / "pipeline.toml")
    refused(lambda: mo.resume(tmp_path, data=FED), words)


def test_what_was_of_the_users_own_is_given_again(tmp_path: Path) -> None:
    def loss(output: Any, batch: Any) -> Any:
        return output.square().sum(1)

    stages = [FIRST, alt(lambda model: mo.split.output_layer(model))]
    mo.pipeline(stages, mlp(), FED, loss=loss, engine="sequential", out=tmp_path / "out")
    refused(lambda: mo.resume(tmp_path / "out", data=FED, stages=stages), "`loss` must be given again")
    refused(lambda: mo.resume(tmp_path / "out", data=FED, loss=loss), "`stages` must be given again.*split of stage 2")
    runs = mo.resume(tmp_path / "out", data=FED, loss=loss, stages=stages)
    assert [run.config["algorithm"]["name"] for run in runs] == ["fedavg", "fedalt"]
