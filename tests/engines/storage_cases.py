"""Small runs of several kinds, begun and continued; for tests of what is left on disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from engine_cases import exact, federation, folder_contents, mlp, stored_states, without_seal
from safetensors.torch import load_file

import moiety as mo

FED = federation((4, 6, 8))
ALT = mo.fedalt(shared=mo.sgd(0.1, batch_size=5), personal=mo.sgd(0.2, batch_size=5))
COARSE = mo.fedalt(shared=mo.sgd(2.5, batch_size=5), personal=mo.sgd(2.5, batch_size=5))
"""Its first round is better than its second, and its third is the best of five."""
SETTINGS: dict[str, dict[str, Any]] = {
    "fit": {},
    "clock": {"clock": mo.clock.asynchronous(active=2, compute=mo.clock.exponential(1.0, spread=1.0), up=0.1)},
    "codec": {"codec": mo.codec.qsgd(levels=7)},
    "best": {},
}
PLAIN: dict[str, Any] = {"checkpoint_every": 1, "partial": False}
"""How all are trained: to cut the model would take longer than to train it."""
PATIENCE = 2
ROUNDS = {"best": 5}
"""Of kinds that need more than others."""
MARKS = ("config.toml", "pipeline.toml", "recipe.json")
"""Files that say what a folder holds."""


def run_kind(kind: str, out: Path, rounds: int | None = None, **options: Any) -> None:
    """Begin a run of that kind, or go on with it: what a user does after an error."""
    if kind == "sweep":
        mo.sweep(sweep_arguments, {"lr": [0.1, 0.3]}, seeds=1, out=out, jobs=1)
        return
    if kind == "pipeline":
        if (out / "pipeline.toml").exists():
            mo.resume(out, data=FED)
            return
        stages = [mo.Stage(mo.fedavg(shared=0.1), rounds=1), mo.Stage(ALT, rounds=1, split="output_layer")]
        mo.pipeline(stages, mlp(), FED, engine="sequential", out=out, settings=mo.Settings(partial=False))
        return
    options["callbacks"] = [*([stopping()] if kind == "best" else []), *options.get("callbacks", [])]
    if (out / "config.toml").exists():
        mo.resume(out, data=FED, callbacks=options["callbacks"])
        return
    model, settings = mlp(), mo.Settings(evaluate_every=1, **PLAIN, **SETTINGS[kind])
    cohort = None if kind == "clock" else 2
    split = mo.split.output_layer(model)
    options = {
        "split": split,
        "rounds": rounds or ROUNDS.get(kind, 2),
        "cohort": cohort,
        "engine": "sequential",
        "settings": settings,
    } | options
    mo.fit(model, FED, COARSE if kind == "best" else ALT, seed=5, out=out, **options)


def sweep_arguments(point: dict[str, Any]) -> dict[str, Any]:
    """The arguments of ``fit`` at a point of the sweep."""
    model, algorithm = mlp(), mo.fedalt(shared=point["lr"], personal=0.1)
    split, settings = mo.split.output_layer(model), mo.Settings(**PLAIN)
    return {
        "model": model,
        "data": FED,
        "algorithm": algorithm,
        "split": split,
        "rounds": 2,
        "cohort": 2,
        "engine": "sequential",
        "settings": settings,
    }


def stopping() -> mo.callbacks.EarlyStopping:
    """Ends a run that gets no better, and keeps the models of its best round."""
    return mo.callbacks.EarlyStopping(PATIENCE, metric="loss")


def kind_contents(out: Path) -> list[dict[str, Any]]:
    """What the folders of a run's or a pipeline's runs say, without times and without where they lie."""
    places = sorted(file.parent for file in out.rglob("config.toml"))
    parts = [folder_contents(place) for place in places]
    for each, place in zip(parts, places, strict=True):
        each["config"] = each["config"].replace(str(out), "OUT")
        each["best"] = kept_rounds(place)
    return parts + [cell_result(file) for file in sorted(out.glob("*/seed-*.json"))]


def kept_rounds(folder: Path) -> dict[str, Any]:
    """The rounds whose models were kept: the tensors of the server, and the personal states by client."""
    return {
        place.name: (
            exact(load_file(next(place.glob("checkpoint/*/server.safetensors")))),
            stored_states(place / "clients"),
        )
        for place in sorted((folder / "best").glob("round-*"))
    }


def cell_result(file: Path) -> dict[str, Any]:
    """What a sweep kept of a run, without times."""
    table = without_seal(json.loads(file.read_text()))
    table["result"] = {key: value for key, value in table["result"].items() if key != "seconds"}
    return {"cell": table}


def fresh(out: Path) -> Path:
    """The folder, without what an earlier try left there."""
    shutil.rmtree(out, ignore_errors=True)
    return out
