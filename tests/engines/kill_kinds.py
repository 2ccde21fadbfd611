"""Kills runs of many kinds with SIGKILL at random moments, resumes them, and compares them with runs left alone.

    python tests/engines/kill_kinds.py --kills 200

Each run is killed up to four times, resumed after each, and left to end at last. What counts is what a user gets from
``moiety.load``: the history, a row per client, the ledger, and every client's parameters, bit for bit; of a sweep also
its table. ``auto`` may choose differently from run to run, so it is compared with a run of the engine that it chose.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import kill_harness
import torch
from engine_cases import federation, mlp
from storage_cases import COARSE, stopping

import moiety as mo
from moiety.run.folder import read_config

FED = federation()
ROUNDS, KILLS_OF_A_RUN, SEED = 8, 4, 5
WORK = {"shared": mo.sgd(0.1, batch_size=5), "personal": mo.sgd(0.2, batch_size=5)}


def fit(
    out: Path,
    algorithm: Any,
    split: Any = None,
    engine: str = "sequential",
    callbacks: Sequence[Any] = (),
    **settings: Any,
) -> None:
    """Begin a run that evaluates and saves a checkpoint in every round."""
    options = mo.Settings(**{"evaluate_every": 1, "checkpoint_every": 1, **settings})
    cohort = None if "clock" in settings or "aggregator" in settings else 3
    model = mlp()
    split = split or mo.split.output_layer
    mo.fit(
        model,
        FED,
        algorithm,
        split=split(model),
        rounds=ROUNDS,
        cohort=cohort,
        seed=SEED,
        out=out,
        engine=engine,
        callbacks=callbacks,
        settings=options,
    )


def sweep(out: Path) -> None:
    """Begin a sweep of four runs, two at a time, or go on with it; a run of a killed one may end a moment later."""
    for _ in range(3_000):
        try:
            mo.sweep(sweep_arguments, {"lr": [0.1, 0.3]}, seeds=2, out=out)
            return
        except mo.MoietyError as error:
            if "in use" not in str(error):
                raise
        time.sleep(0.1)
    sys.exit(f"{out}: a run of a killed sweep goes on for five minutes")


def sweep_arguments(point: dict[str, Any]) -> dict[str, Any]:
    """What ``fit`` gets at a point of the sweep."""
    model, algorithm = mlp(), mo.fedalt(shared=mo.sgd(point["lr"], batch_size=5), personal=WORK["personal"])
    common = {"rounds": ROUNDS // 2, "cohort": 3, "engine": "sequential", "settings": mo.Settings(checkpoint_every=1)}
    return {"model": model, "data": FED, "algorithm": algorithm, "split": mo.split.output_layer(model), **common}


def fit_pipeline(out: Path) -> None:
    """Begin a pipeline of two stages."""
    stages = [
        mo.Stage(mo.fedalt(**WORK), rounds=ROUNDS // 2, cohort=3, split={"name": "output_layer"}),
        mo.Stage(mo.finetune(personal=0.1), rounds=ROUNDS // 2, cohort=4),
    ]
    mo.pipeline(stages, mlp(), FED, seed=SEED, engine="sequential", out=out)


def build_clock(name: str) -> Any:
    """A clock on which uploads are under way when a run is killed."""
    times = mo.clock.exponential(1.0, spread=1.0)
    if name == "asynchronous":
        return mo.clock.asynchronous(active=3, compute=times, up=0.1)
    return mo.clock.delayed(down=[0, 1, 2, 0, 1, 2], up=2)


KINDS: dict[str, Callable[[Path], None]] = {
    "sequential": lambda out: fit(out, mo.fedalt(**WORK, server=mo.server.adam(lr=0.05))),
    "vectorised": lambda out: fit(out, mo.fedsim(**WORK), engine="vectorised"),
    "processes": lambda out: fit(out, mo.fedalt(**WORK), engine="processes", workers=2),
    "auto": lambda out: fit(out, mo.fedalt(**WORK), engine="auto"),
    "asynchronous": lambda out: fit(out, mo.fedalt(**WORK), clock=build_clock("asynchronous")),
    "delayed": lambda out: fit(out, mo.fedalt(**WORK), clock=build_clock("delayed")),
    "codec": lambda out: fit(out, mo.fedalt(**WORK), codec=mo.codec.qsgd(levels=4)),
    "robust": lambda out: fit(
        out,
        mo.fedalt(**WORK),
        aggregator=mo.aggregator.median(),
        attack=mo.attack.sign_flip(),
        attackers=[1],
    ),
    "scaffold": lambda out: fit(
        out, mo.scaffold(shared=mo.sgd(0.1, steps=3, batch_size="all")), split=mo.split.nothing
    ),
    "fedspa": lambda out: fit(out, mo.fedspa(shared=mo.sgd(0.1, batch_size=5), density=0.5), split=mo.split.nothing),
    "fedpop": lambda out: fit(out, mo.fedpop(shared=0.01, personal=mo.kernel.langevin(step=1e-3))),
    "apfl": lambda out: fit(out, mo.apfl(shared=0.1, personal=0.1), split=mo.split.nothing),
    "pipeline": fit_pipeline,
    "best": lambda out: fit(out, COARSE, callbacks=[stopping()]),
    "sweep": sweep,
}


def begin_or_resume(out: Path, rounds: int) -> None:
    """Do what a user does after a crash. The name of the folder begins with the kind of run, or with an engine."""
    kind, _, engine = out.name.partition("@")
    kind = kind.partition(" ")[0]
    if kind != "sweep" and ((out / "config.toml").exists() or (out / "pipeline.toml").exists()):
        mo.resume(out, data=FED, callbacks=[stopping()] if kind == "best" else [])
    elif engine:
        fit(out, mo.fedalt(**WORK), engine=engine.partition(" ")[0])
    else:
        KINDS[kind](out)


def describe(out: Path) -> None:
    """Write what a user gets of a run that has ended next to its folder."""
    places = sorted(file.parent for file in out.rglob("config.toml"))
    rows: list[Any] = [json.loads(file.read_text())["rows"] for file in out.glob("table.json")]
    for run in (mo.load(place, data=FED) for place in places):
        parameters = hashlib.blake2b()
        for client in range(len(FED)):
            for name, value in run.parameters(client).items():
                parameters.update(name.encode() + value.contiguous().numpy().tobytes())
        history = [{key: value for key, value in row.items() if key != "seconds"} for row in run.history]
        rows.append([history, run.clients, run.ledger, parameters.hexdigest(), run.restored, run.stopped])
    out.with_suffix(".result").write_text(json.dumps(rows))


def fork(function: Callable[[], Any], out: Path) -> None:
    """Run a function in a process of its own, which must end well."""
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException as error:
            out.with_suffix(".error").write_text(repr(error))
            os._exit(1)
        os._exit(0)
    if kill_harness.wait(child) != "done":
        sys.exit(f"{out.name}: {out.with_suffix('.error').read_text()}")


def read_result(out: Path) -> Any:
    """What ``describe`` says of a folder."""
    if not out.with_suffix(".result").exists():
        fork(lambda: describe(out), out)
    return json.loads(out.with_suffix(".result").read_text())


def run_to_the_end(out: Path) -> float:
    """A run that nobody kills, or the rest of one; how many seconds it took."""
    start = time.perf_counter()
    fork(lambda: begin_or_resume(out, ROUNDS), out)
    return time.perf_counter() - start


def reference(folder: Path, kind: str, killed: Path) -> Path:
    """The run to compare a killed one with: of the same kind, or for ``auto`` of the engine that it chose."""
    if kind not in ("auto", "processes"):
        return folder / f"{kind} whole"
    whole = folder / f"{kind}@{read_config(killed)['run']['engine']} whole"
    if not whole.exists():
        run_to_the_end(whole)
    return whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200, help="how many runs to kill at least")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--only", help="kinds of runs, separated by commas")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kill_harness.work = begin_or_resume
    kinds = options.only.split(",") if options.only else list(KINDS)
    rng, kills, different = Random(options.seed), Counter[str](), 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        warm = folder / "sequential warm"
        assert kill_harness.wait(kill_harness.start(warm, ROUNDS)) == "done", warm.with_suffix(".error").read_text()
        kill_harness.import_all(json.loads(warm.with_suffix(".modules").read_text()))
        seconds = {kind: run_to_the_end(folder / f"{kind} whole") for kind in kinds}
        number = 0
        while sum(kills.values()) < options.kills:
            kind = kinds[number % len(kinds)]
            out = folder / f"{kind} {number}"
            number += 1
            for _ in range(KILLS_OF_A_RUN):
                end = kill_harness.kill_after(rng.uniform(0, 0.6 * seconds[kind]), out, ROUNDS)["end"]
                kills[kind] += end == "killed"
            run_to_the_end(out)
            same = read_result(out) == read_result(reference(folder, kind, out))
            different += not same
            print(f"{sum(kills.values())} kills; {out.name}: {'the same' if same else 'DIFFERENT'}", flush=True)
    print(f"{sum(kills.values())} kills of {number} runs of {len(kinds)} kinds: {different} ended with other bits")
    print(", ".join(f"{kind} {count}" for kind, count in sorted(kills.items())))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
