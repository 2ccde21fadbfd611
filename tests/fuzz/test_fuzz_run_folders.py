"""Folders of every kind of run, mutated: verify, resume and compare refuse them in one line, or are right."""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from folder_mutations import damage, forge, list_files
from fuzz_classes import call_command, classify, counts
from night import NIGHTLY

import moiety as mo
from moiety.cli.results import read_result
from moiety.run.folder import read_id
from moiety.seals import write_sealed

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(32, 3)).astype(np.float32)
DATA = mo.data.from_arrays({"x": X, "y": np.arange(32) % 2}, client=np.repeat(["a", "b", "c", "d"], 8), test=0.25)
ALT = mo.fedalt(shared=mo.sgd(0.1, batch_size=4), personal=mo.sgd(0.1, batch_size=4))
COARSE = mo.fedalt(shared=mo.sgd(5.0, batch_size=4), personal=mo.sgd(5.0, batch_size=4))
TIMES = mo.clock.exponential(1.0, spread=1.0)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clock": {"clock": mo.clock.asynchronous(active=2, compute=TIMES, up=0.1), "cohort": None},
    "codec": {"codec": mo.codec.qsgd(levels=4)},
    "pipeline": {},
    "processes": {"engine": "processes:sequential", "workers": 2},
    "robust": {"aggregator": mo.aggregator.median(), "attack": mo.attack.sign_flip(), "attackers": [1], "cohort": None},
    "sparse": {"algorithm": mo.fedspa(shared=0.1, density=0.5), "split": mo.split.nothing},
    "best": {"algorithm": COARSE},
    "sweep": {},
    "posterior": {"algorithm": mo.fedpop(shared=0.01, personal=mo.kernel.langevin(step=1e-3))},
}
PER_KIND = 250 if NIGHTLY else 16
"""Two and a half thousand cases in ``make nightly``. In the gate so many, or as many as a folder has files."""
DIRECT = ("algorithm", "split", "cohort", "engine")
PLAIN: dict[str, Any] = {"checkpoint_every": 1, "partial": False}
"""How all are trained: to cut the model would take longer than to train it."""
ROUNDS = 3
EVERYTHING = ("history", "clients", "ledger", "models", "config", "rows")
MAY_CHANGE = {
    "history.jsonl": ("history",),
    "ledger.json": ("ledger",),
    "clients.parquet": ("clients",),
    "state.json": EVERYTHING,
    "seed-0.json": ("rows",),
}
"""What may be another after a file and its checksum were changed: what the file alone says. A checkpoint says all."""


forged_results: Counter[str] = Counter()
"""How often something was accepted that another had written with right checksums; no checksum can tell."""


class StopHereError(Exception):
    """Ends a run in the middle."""


class Case(NamedTuple):
    """A folder, copies of it in two states, the runs in it, and what they give where nobody touches them."""

    out: Path
    copies: dict[str, Path]
    runs: list[Path]
    expected: Any


def start(kind: str, out: Path, stop: int = 0) -> Any:
    """Begin a run of that kind, and interrupt it after some round."""

    def on_round(run: Any, record: Any) -> None:
        if record.round == stop:
            raise StopHereError

    if kind == "sweep":
        return sweep(out, lambda label, place: on_round)
    model = mo.models.mlp(3, 2, hidden=(2,), seed=0)
    if kind == "pipeline":
        stages = [mo.Stage(mo.fedavg(shared=0.1), rounds=1), mo.Stage(ALT, rounds=ROUNDS, split="output_layer")]
        second = lambda run, record: on_round(run, record) if run.folder.name.startswith("2") else None  # noqa: E731
        settings = mo.Settings(partial=False)
        return mo.pipeline(stages, model, DATA, engine="sequential", out=out, callbacks=[second], settings=settings)
    options = {"algorithm": ALT, "split": mo.split.output_layer, "cohort": 2, "engine": "sequential", **KINDS[kind]}
    algorithm, split, cohort, engine = (options.pop(name) for name in DIRECT)
    settings = mo.Settings(evaluate_every=1, **PLAIN, **options)
    return mo.fit(
        model,
        DATA,
        algorithm,
        split=split(model),
        rounds=ROUNDS,
        cohort=cohort,
        engine=engine,
        out=out,
        settings=settings,
        callbacks=[*stopping(kind), on_round],
    )


def stopping(kind: str) -> list[Any]:
    """What ends a run that gets no better, with the models of its best round."""
    return [mo.callbacks.EarlyStopping(2, metric="loss")] if kind == "best" else []


def sweep(out: Path, watch: Any = lambda label, place: None) -> mo.Sweep:
    """Begin a sweep of one run, or go on with it."""

    def arguments(point: dict[str, Any]) -> dict[str, Any]:
        model, work = mo.models.mlp(3, 2, hidden=(2,), seed=0), mo.sgd(point["lr"], batch_size=4)
        algorithm, settings = mo.fedalt(shared=work, personal=work), mo.Settings(evaluate_every=1, **PLAIN)
        options = {"rounds": ROUNDS, "cohort": 2, "engine": "sequential", "settings": settings}
        return {"model": model, "data": DATA, "algorithm": algorithm, "split": mo.split.output_layer(model), **options}

    return mo.sweep(arguments, {"lr": [0.1]}, seeds=1, out=out, jobs=1, watch=watch)


def go_on(kind: str, out: Path) -> list[dict[str, Any]]:
    """Resume what is in a folder; what a user gets."""
    if kind == "sweep":
        return [{"rows": sweep(out).rows}]
    return describe(mo.resume(out, data=DATA, callbacks=stopping(kind)))


def describe(runs: Any) -> list[dict[str, Any]]:
    """What a user gets of each run: its rows without times, its ledger, every client's parameters."""
    rows = []
    for run in runs if isinstance(runs, list) else [runs]:
        models = [{k: v.numpy().tobytes() for k, v in run.parameters(c).items()} for c in range(len(DATA))]
        history = [{key: value for key, value in row.items() if key != "seconds"} for row in run.history]
        rows.append({"history": history, "clients": run.clients, "ledger": run.ledger, "models": models})
    return rows


@pytest.fixture(scope="module", params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    place, kind = tmp_path_factory.mktemp(request.param), request.param
    out, copies = place / "run", {}
    for state, stop in (("stopped", 2), ("ended", 0)):
        shutil.rmtree(out, ignore_errors=True)
        with contextlib.suppress(StopHereError):
            start(kind, out, stop)
        for folder in [each.parent for each in out.rglob("config.toml")]:
            write_sealed(folder / "command.json", {"set": []}, read_id(folder))
        copies[state] = Path(shutil.copytree(out, place / state))
    runs = sorted(each.parent.relative_to(out) for each in out.rglob("config.toml"))
    expected = describe([mo.load(out / place, data=DATA) for place in runs])
    for one, more in zip(expected, go_on(kind, out), strict=True):
        one |= more
    assert kind != "best" or mo.load(out, data=DATA).restored is not None, "this run is of no use"
    return Case(out, copies, runs, expected)


def act(kind: str, case: Case, how: str) -> tuple[Any, list[str]]:
    """Resume the run, load it, or compare it with itself; what comes of it, and the warnings."""
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        if how == "resume":
            result = go_on(kind, case.out)
        elif how == "load":
            result = describe([mo.load(case.out / place, data=DATA) for place in case.runs])
        else:
            result = []
            for place in case.runs:
                folder = case.out / place
                code, _, lines = call_command(["compare", str(folder), str(folder)])
                if code == 2:
                    raise mo.MoietyError(lines[-1])
                each = read_result(folder, "run")
                history = [{key: value for key, value in row.items() if key != "seconds"} for row in each.history]
                result.append({"history": history, "clients": each.clients, "ledger": each.ledger})
    return result, [str(each.message) for each in records]


def try_case(kind: str, case: Case, number: int) -> str:
    """Mutate the folder, verify it, and resume, load or compare it; what was done."""
    draw = Random(f"{kind} {number}")
    state, forged = draw.choice(["stopped", "ended"]), draw.random() < 0.5
    how = "resume" if state == "stopped" else draw.choice(["resume", "load", "compare"])
    shutil.rmtree(case.out, ignore_errors=True)
    shutil.copytree(case.copies[state], case.out)
    other = case.copies["ended" if state == "stopped" else "stopped"]
    file, what = forge(case.out, number, draw) if forged else damage(case.out, other, number, draw)
    may_change = MAY_CHANGE.get(file, EVERYTHING if file.endswith(".safetensors") else ()) if forged else ()

    def call() -> Any:
        before = {path: path.read_bytes() for path in list_files(case.out)}
        code, _, lines = call_command(["verify", str(case.out)])  # it may be no folder of a run any more
        assert (code == 2) == bool(lines), lines
        assert before == {path: path.read_bytes() for path in list_files(case.out)}, "verify changed a file"
        return act(kind, case, how)

    def is_right(result: Any) -> bool:
        """All is as in the run that nobody touched, but for what may change and for rows that a warning names.

        Without its ledger a run has not ended, and what is loaded of it has no rows of clients.
        """
        results, messages = result
        lost = any("has lost the rows of" in text for text in messages)
        under_way = how == "load" and not all((case.out / place / "ledger.json").exists() for place in case.runs)
        parts = {*may_change, *(["history"] if lost else []), *(["clients", "ledger"] if under_way else [])}
        differs = {
            part for one, two in zip(case.expected, results, strict=True) for part in two if one[part] != two[part]
        }
        forged_results.update([kind] if differs & set(may_change) else [])
        return differs <= parts

    about = f"{kind}, {number}: {state}, {'forged' if forged else 'damaged'} {file}, {what}, {how}"
    try:
        classify(f"folders: {kind}", call, is_right)
    except AssertionError as error:
        return f"{about}: {error}; {error.__cause__!r:.300}"
    return ""


def test_run_folders(case: Case, request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.params["case"]
    cases = max(PER_KIND, len(list_files(case.copies["ended"])))
    failures = [text for number in range(cases) if (text := try_case(kind, case, number))]
    print(kind, dict(counts[f"folders: {kind}"]), "of these with what was forged:", forged_results[kind])
    assert not failures, "\n" + "\n".join(failures)
    assert counts[f"folders: {kind}"]["clean line"] > 0
    assert counts[f"folders: {kind}"]["accepted and right"] > 0
