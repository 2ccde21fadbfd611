"""Asynchronous FFGG (Mishchenko et al. 2023, Algorithm 3) against rounds that wait: accuracy in virtual time.

The paper proves that asynchronous FFGG converges exactly under arbitrary delays and has no experiment with it. Here
clients differ in speed and every turn's time is drawn from a heavy-tailed distribution. The synchronous form asks a
cohort in each round and waits for its slowest client; the asynchronous form has as many clients at work at a time, and
steps at each arrival. Both make the same number of client updates, and a turn of a client takes the same time in both.
FedAvg, with the same local work and nothing personal, stands beside it: asynchronous, it hears fast clients more often.

At scale ``laptop`` the data are Fashion-MNIST, averaged to 14 x 14 pixels, on 20 clients whose label ratios are drawn
from Dirichlet(0.3); at scale ``paper`` they are whole, on 100 clients with the CNN of McMahan et al. (2017). Scale
``ci`` has other data and fewer of all, and shows that everything runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import moiety as mo
from moiety.errors import MoietyError, message, whole
from moiety.recipes.base import Outcome, Watch, is_run, unwatched
from moiety.recipes.partial_table import asked_for, keep_asked

if TYPE_CHECKING:
    from torch import nn

    from moiety.clients.speed import Times
    from moiety.data import FederatedData
    from moiety.types import Algorithm, ServerOptimiser

NAME = "ffgg-async"
METHODS = ("ffgg", "fedavg")
FORMS = ("synchronous", "asynchronous")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is run at one scale.

    ``algorithm(method, server)`` makes it. ``active`` clients are at work at a time, in both forms; ``rounds`` are
    those of the synchronous form, so that both have rounds * active updates. A time to accuracy is the virtual time
    until ``share`` of what the synchronous form has in the end; ``margin`` is how much accuracy counts as the same.
    """

    title: str
    data: Callable[[int], FederatedData]
    model: Callable[[int], nn.Module]
    algorithm: Callable[[str, ServerOptimiser | None], Algorithm]
    compute: Times
    link: Times
    active: int
    rounds: int
    seeds: int
    share: float = 0.95
    margin: float = 0.02
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Course:
    """What is left of a run: accuracy along the virtual time, a row per client, and the time that it took in truth."""

    times: list[float]
    scores: list[float]
    staleness: list[float]
    rows: list[dict[str, Any]]
    seconds: float

    def reached(self, score: float) -> float | None:
        """The virtual time of the first evaluation with at least that score; None where there is none."""
        return next((t for t, s in zip(self.times, self.scores, strict=True) if s >= score), None)


Courses = dict[tuple[str, str, int], Course]
"""By method, form and seed."""


def ffgg_async(
    *,
    out: Path | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    engine: str | None = None,
    resume: bool = False,
    watch: Watch = unwatched,
    scale: str | None = None,
) -> Outcome:
    """Asynchronous FFGG and FedAvg against rounds that wait for the slowest client: accuracy in virtual time.

    Args:
        out: a folder for runs, tables and the figure; nothing is written without one.
        rounds: of the synchronous form, instead of the scale's.
        seed: the first of the seeds, and the seed of the data; 0 by default.
        engine: as in ``moiety.fit``; by default ``vectorised`` for cohorts and ``sequential`` for single clients.
        resume: continue what has begun in ``out``.
        watch: called before each run; gives what is to be called after every round.
        scale: ``ci``, ``laptop`` (by default) or ``paper``.
    """
    from moiety.engines.auto import check_engine
    from moiety.recipes.ffgg_async_report import report

    asked = asked_for(out, {"recipe": NAME, "scale": scale, "rounds": rounds, "seed": seed}, resume)
    if engine is not None:
        check_engine(engine)
    made = trial(asked["scale"])
    if asked["rounds"] is not None:
        whole("rounds", asked["rounds"], 1)
        made = replace(made, rounds=asked["rounds"])
    data = made.data(asked["seed"])  # before anything is written: it may not be at hand
    keep_asked(out, asked)
    courses = {
        (method, form, each): _run(made, data, method, form, each, out, engine, watch)
        for each in range(asked["seed"], asked["seed"] + made.seeds)
        for method in METHODS
        for form in FORMS
    }
    text, sentence = report(asked, made, data, courses, out)
    return Outcome({}, sentence, text)


def _run(
    made: Trial,
    data: FederatedData,
    method: str,
    form: str,
    seed: int,
    out: Path | None,
    engine: str | None,
    watch: Watch,
) -> Course:
    """One run: read where it has ended, else begun or continued."""
    folder = None if out is None else out / f"seed-{seed}" / f"{method}-{form}"
    file = None if folder is None else folder.with_suffix(".json")
    if file is not None and file.is_file():
        return read(file)
    began = time.perf_counter()
    model = made.model(seed)
    parts: dict[str, Any] = {"model": model, "data": data}
    parts["split"] = mo.split.output_layer(model) if method == "ffgg" else mo.split.nothing(model)
    options: dict[str, Any] = {"on_round": watch(f"seed {seed} {method} {form}", folder)}
    options["engine"] = engine or ("sequential" if form == "asynchronous" else "vectorised")
    if folder is not None and is_run(folder):
        run = mo.resume(folder, **parts, **options)
    else:
        run = mo.fit(**parts, **options, **_how(made, method, form), seed=seed, out=folder)
    course = Course(
        [row["time"] for row in run.history],
        [row["metric"] for row in run.history],
        [row.get("staleness") or 0.0 for row in run.history],
        run.clients,
        time.perf_counter() - began,
    )
    if file is not None:
        from moiety.files import write_file

        write_file(file, json.dumps(asdict(course)).encode())
    return course


def _how(made: Trial, method: str, form: str) -> dict[str, Any]:
    """What tells the forms apart. One upload moves the server as much as it would as one of a cohort."""
    times: dict[str, Any] = {"compute": made.compute, "up": made.link, "down": made.link}
    every = max(1, made.rounds // 30)
    if form == "synchronous":
        clock: Any = mo.clock.synchronous(**times)
        how = {"rounds": made.rounds, "cohort": made.active, "algorithm": made.algorithm(method, None)}
        return {**how, "settings": mo.Settings(clock=clock, evaluate_every=every)}
    clock = mo.clock.asynchronous(active=made.active, **times)
    how = {"rounds": made.rounds * made.active, "algorithm": made.algorithm(method, mo.server.sgd(lr=1 / made.active))}
    return {**how, "settings": mo.Settings(clock=clock, evaluate_every=every * made.active)}


def read(file: Path) -> Course:
    """What is left of a run that has ended."""
    try:
        return Course(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        hint = "Remove the file: the run is then continued from its folder."
        raise MoietyError(message(file.name, "as it was written", f"{file}: {error}", hint)) from None


def trial(scale: str) -> Trial:
    """What is run at a scale."""
    return _digits() if scale == "ci" else _fashion_mnist(paper=scale == "paper")


def _algorithm(lr: float, inner: float, steps: int) -> Callable[[str, ServerOptimiser | None], Algorithm]:
    def algorithm(method: str, server: ServerOptimiser | None) -> Algorithm:
        if method == "ffgg":
            return mo.ffgg(shared=lr, personal=mo.sgd(inner, steps=steps), server=server)
        return mo.fedavg(shared=mo.sgd(lr / 4, steps=steps, batch_size=20), weighting="uniform", server=server)

    return algorithm


def _digits() -> Trial:
    return Trial(
        title="Handwritten digits (scikit-learn), 8 x 8 pixels; 6 clients, label ratios from Dirichlet(0.5).",
        data=lambda seed: mo.data.load("digits", clients=6, per_client=20, partition=mo.data.dirichlet(0.5), seed=seed),
        model=lambda seed: mo.models.mlp(64, 10, hidden=(16, 8), seed=seed),
        algorithm=_algorithm(0.5, 0.5, 3),
        compute=mo.clock.pareto(1.0, shape=1.5, spread=0.7),
        link=mo.clock.exponential(0.1),
        active=3,
        rounds=4,
        seeds=2,
    )


def _fashion_mnist(paper: bool) -> Trial:
    clients, rows, rounds, seeds, active = (100, 480, 1000, 5, 20) if paper else (20, 100, 120, 5, 10)

    def data(seed: int) -> FederatedData:
        from moiety.recipes.fedalt_images import averaged

        options: dict[str, Any] = {"clients": clients, "per_client": rows, "test_per_client": 100, "seed": seed}
        fed = mo.data.load("fashion_mnist", partition=mo.data.dirichlet(0.3), **options)
        return fed if paper else averaged(fed)

    def model(seed: int) -> nn.Module:
        if paper:
            return mo.models.cnn(classes=10, seed=seed)
        return mo.models.mlp(196, 10, hidden=(64, 16), seed=seed)

    size = "28 x 28 pixels, a CNN" if paper else "14 x 14 pixels, a network with hidden layers of 64 and 16"
    return Trial(
        title=f"Pictures of clothes (Fashion-MNIST), {size}; {clients} clients of {rows} training rows each, label"
        " ratios from Dirichlet(0.3).",
        data=data,
        model=model,
        algorithm=_algorithm(0.7, 0.5, 10),
        compute=mo.clock.pareto(1.0, shape=1.5, spread=0.7),
        link=mo.clock.exponential(0.1),
        active=active,
        rounds=rounds,
        seeds=seeds,
        notes=(
            "One deal of the data serves all seeds; they differ in first weights, speeds, times and cohorts.",
            "The asynchronous server steps with 1 / active of an upload, so that as many uploads as a cohort has move"
            " it as much as that cohort's mean would; rates are those of the synchronous form.",
            "Times are virtual: they are drawn, not measured, and the same in both forms for the same turn of a client."
            " A Pareto distribution of shape 1.5 has a mean of three times the least and no variance.",
        ),
    )
