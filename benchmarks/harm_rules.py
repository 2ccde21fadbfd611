"""``python -m benchmarks.harm_rules --out DIR``: other rules of the safeguard, on development populations.

Nothing here is one of the six sets of ``benchmarks.harm``. Models are trained as there, once; a file for each
population and seed keeps what clients know and what their test rows say. Rules are then compared without training.
"""

from __future__ import annotations

import argparse
import contextlib
import pickle
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import ndtr

import moiety as mo
from benchmarks.harm import PERSONAL_ROUNDS, ROUNDS, scale
from moiety.evaluation import worst_decile
from moiety.evaluation.safeguard import AHEAD, ALPHA, WEIGHTS, Evidence, conclude, describe_population
from moiety.run import safeguard
from moiety.run.safeguard import Chooser, take_one_model
from moiety_recipes.pictures import average_pixels, choose_clients

MIXTURES = (0.125, 0.25, 0.5, 0.75, 0.875, 1.0)
SEEDS = (100, 101)
Clients = list[dict[str, Any]]
Load = Callable[[int], mo.FederatedData]


def deal(
    name: str, alpha: float, clients: int, rows: int | None, test: int | None, halvings: int = 0, least: int = 12
) -> Load:
    """Clients by Dirichlet, with sizes that differ."""

    def load(seed: int) -> mo.FederatedData:
        how = mo.data.dirichlet(alpha, balanced=False, min_examples=1)
        sizes: dict[str, Any] = {"per_client": rows, "test_per_client": test, "validation": 0.2}
        fed = mo.data.load(name, clients=clients, partition=how, **sizes, seed=seed)
        fed = choose_clients(fed, least=least, count=min(50, len(fed)))
        for _ in range(halvings):
            fed = average_pixels(fed)
        return scale(fed)

    return load


def make_people(shift: float) -> Load:
    """Six classes around centres that are shifted: much for some clients, little for most."""

    def load(seed: int) -> mo.FederatedData:
        rng = np.random.default_rng([seed, int(100 * shift), 40])
        centres, parts = rng.normal(size=(6, 20)), []
        for client in range(50):
            own = centres + shift * rng.exponential() * rng.normal(size=centres.shape)
            count = int(rng.integers(20, 80)) + 150
            y = rng.integers(6, size=count)
            parts.append((own[y] + 1.6 * rng.normal(size=(count, 20)), y, np.full(count, client)))
        x, y, ids = (np.concatenate(column) for column in zip(*parts, strict=True))
        return scale(
            mo.data.from_arrays({"x": x.astype(np.float32), "y": y}, ids, test=0.6, validation=0.08, seed=seed)
        )

    return load


def load_writers(seed: int) -> mo.FederatedData:
    """Letters and digits by 55 writers, each character once: 28 rows to train on, 9 to choose by, 25 to test."""
    return scale(average_pixels(mo.data.load("chars74k", test=0.4, validation=0.15, seed=seed)))


def shift_people(name: str, shift: float, halvings: int = 0) -> Load:
    """Real rows dealt evenly; each client's inputs are stretched and moved a little, as by a voice or an instrument."""

    def load(seed: int) -> mo.FederatedData:
        sizes: dict[str, Any] = {"per_client": 30, "test_per_client": 25, "validation": 0.2}
        fed = mo.data.load(name, clients=50, partition=mo.data.dirichlet(100.0), **sizes, seed=seed)
        for _ in range(halvings):
            fed = average_pixels(fed)
        fed = scale(fed)
        x, rng = fed.columns["x"].copy(), np.random.default_rng([seed, int(100 * shift), 41])
        for client in range(len(fed)):
            stretch, move = 1 + shift * rng.normal(size=x.shape[1]), shift * rng.normal(size=x.shape[1])
            for part in ("train", "validation", "test"):
                start, stop = fed.rows(client, part)
                x[start:stop] = x[start:stop] * stretch + move
        return replace(fed, columns={**fed.columns, "x": x})

    return load


POPULATIONS = {
    f"{name}, Dirichlet({alpha:g})": deal(name, alpha, *sizes)
    for alpha in (0.1, 0.3, 1.0)
    for name, *sizes in (
        ("digits", 40, None, None),
        ("pendigits", 100, 100, 100),
        ("letter", 150, 120, 100),
        ("satimage", 80, 100, 80),
        ("usps", 100, 100, 80, 1),
        ("mnist", 500, 120, 150, 1, 20),
    )
} | {f"made up, shift {shift:g}": make_people(shift) for shift in (0.2, 0.6)}


FEW_ROWS = {
    "chars74k, writers": load_writers,
    "covtype, Dirichlet(0.3)": deal("covtype", 0.3, 80, 160, None),
    "letter, 30 rows, Dirichlet(1)": deal("letter", 1.0, 60, 30, 25),
    "letter, 30 rows, Dirichlet(10)": deal("letter", 10.0, 60, 30, 25),
    "pendigits, 30 rows, Dirichlet(1)": deal("pendigits", 1.0, 60, 30, 25),
    "pendigits, 30 rows, Dirichlet(10)": deal("pendigits", 10.0, 60, 30, 25),
    "usps, 30 rows, Dirichlet(1)": deal("usps", 1.0, 60, 30, 25, 1),
} | {
    f"{name}, 30 rows, shift {shift:g}": shift_people(name, shift, *halvings)
    for shift in (0.1, 0.3)
    for name, *halvings in (("letter",), ("pendigits",), ("usps", 1))
}
"""Populations with few rows and small gains."""


def train(load: Load, seed: int) -> list[Clients]:
    """What the clients of finetuning and of FedAlt know, and the accuracy of each mixture on their test rows."""
    fed = load(seed)
    model = mo.models.mlp(fed.columns["x"].shape[1], int(fed.columns["y"].max()) + 1, hidden=(64, 32), seed=seed)
    work, settings = mo.sgd(0.1, epochs=1, batch_size=16), mo.Settings(evaluate_every=ROUNDS + PERSONAL_ROUNDS)
    how: dict[str, Any] = {"seed": seed, "engine": "vectorised", "settings": settings, "progress": False}
    some = {**how, "cohort": min(10, len(fed))}
    first = mo.fit(model, fed, mo.fedavg(shared=work), rounds=ROUNDS, **some)
    one = mo.fit(model, fed, mo.fedavg(shared=work), rounds=PERSONAL_ROUNDS, start=first, **some)
    finetune, both = mo.finetune(personal=mo.sgd(0.03, epochs=5, batch_size=16)), mo.fedalt(shared=work, personal=work)
    output = mo.split.output_layer(model)
    return [
        gather(mo.fit(model, fed, finetune, split=mo.split.everything(model), rounds=1, start=one, **how), one),
        gather(mo.fit(model, fed, both, split=output, rounds=PERSONAL_ROUNDS, start=first, **some), one),
    ]


def gather(run: mo.Run, one: mo.Run) -> Clients:
    """Gains on validation rows and on folds [measures, mixtures, rows], hints, and test accuracy of each mixture."""
    loop = run._loop
    chooser, data = Chooser(loop, run._loss, "predictions", take_one_model(loop.problem, one)), loop.problem.data
    clients = []
    with contextlib.closing(loop):
        folds = chooser._fold_clients(range(len(data)))
        for at in range(len(data)):
            pair, rows = chooser.pair_of(at), chooser.columns(at, "test")
            if data.sizes("test")[at]:
                client = {"val": pair.measure_gains(chooser.columns(at, "validation"))}
                client["fold"] = np.concatenate([client["val"][..., :0], *folds[at]], axis=2)
                client["hint"] = pair.measure_hint(chooser.columns(at, "train"))
                client["test"] = np.array([pair.score(rows, weight).metric.mean() for weight in (0.0, *MIXTURES)])
                clients.append(client)
    return clients


def find_offsets(clients: Clients) -> np.ndarray:
    """How much more clients gain on validation rows than on folds, by measure and mixture; shrunk where uncertain."""
    some = [each for each in clients if each["val"].shape[2] and each["fold"].shape[2]]
    apart = np.array([each["val"].mean(2) - each["fold"].mean(2) for each in some])
    weight = np.array([1 / (1 / each["val"].shape[2] + 1 / each["fold"].shape[2]) for each in some])[:, None, None]
    mean = (weight * apart).sum(0) / weight.sum()
    error = ((weight * (apart - mean)) ** 2).sum(0) / weight.sum() ** 2
    signal = np.maximum(mean**2 - error, 0)
    return np.asarray(mean * signal / (signal + error + 1e-30))


def apply_rule(
    clients: Clients,
    *,
    weights: Sequence[float] = WEIGHTS,
    alpha: float = ALPHA,
    measures: tuple[int, ...] = (0, 1),
    ahead: float = AHEAD,
    averse: float = 1.0,
    offset: float = 0.0,
    times: int = 1,
    default: bool = True,
) -> np.ndarray:
    """What each client chooses.

    ``measures`` are right or wrong (0) and the probability of the right answer (1); a loss counts over ``ahead`` rows,
    and ``averse`` is the weight of the error. Validation rows may count ``times``, and folds be moved by an offset.
    Without ``default`` clients that cannot tell stay with the one model.
    """
    at = [MIXTURES.index(weight) for weight in weights]
    move = offset * find_offsets(clients) if offset else np.zeros(clients[0]["val"].shape[:2])
    evidence = []
    for each in clients:
        held = np.concatenate([each["val"]] * times + [each["fold"] + move[..., None]], axis=2)
        gains, *likely = held[list(measures)][:, at]
        evidence.append(Evidence(gains, each["hint"], *likely or [None], times * each["val"].shape[2]))
    population = describe_population(evidence)
    assert population is not None
    choices = []
    for one in evidence:
        gain, variance, row_variance = conclude(one, population)
        error = np.sqrt(variance + row_variance / ahead)
        allowed = (ndtr(-gain / error) <= alpha) & (gain > 0)
        best = np.where(allowed, gain - averse * error, -np.inf).argmax()
        choices.append(weights[best] if allowed.any() else population.default * default)
    return np.array(choices)


def apply_simple_rule(clients: Clients) -> np.ndarray:
    """The personal model where it is better on validation rows."""
    return np.array([float(each["val"].shape[2] > 0 and each["val"][0, -1].mean() > 0) for each in clients])


EARLIER: dict[str, Any] = {"measures": (0,), "ahead": np.inf, "averse": 0.0, "default": False}
RULES: dict[str, Callable[[Clients], np.ndarray]] = {
    "simple rule": apply_simple_rule,
    "as it is": apply_rule,
    "without the population's default": partial(apply_rule, default=False),
    "the earlier rule": partial(apply_rule, **EARLIER),
    "the earlier rule, alpha 0.05": partial(apply_rule, **EARLIER, alpha=0.05),
    "right or wrong alone": partial(apply_rule, measures=(0,)),
    "probabilities alone": partial(apply_rule, measures=(1,)),
    "risk of a true loss, alpha 0.03": partial(apply_rule, ahead=np.inf, alpha=0.03),
    "risk over 100 rows": partial(apply_rule, ahead=100),
    "risk over 100 rows, alpha 0.15": partial(apply_rule, ahead=100, alpha=0.15),
    "the largest gain, error not counted": partial(apply_rule, averse=0.0),
    "alpha 0.05": partial(apply_rule, alpha=0.05),
    "alpha 0.15": partial(apply_rule, alpha=0.15),
    "folds moved by half an offset": partial(apply_rule, offset=0.5),
    "folds moved by an offset": partial(apply_rule, offset=1.0),
    "validation rows twice": partial(apply_rule, times=2),
    "mixtures of 1/8 and 7/8 too": partial(apply_rule, weights=MIXTURES),
    "a half or all": partial(apply_rule, weights=(0.5, 1.0)),
}


def judge(cells: dict[str, list[Clients]], rule: Callable[[Clients], np.ndarray]) -> str:
    """A row of the table: clients hurt over those that personal models hurt, mean, worst decile, gain kept, misses.

    As in ``benchmarks.harm``, targets are for populations with at least 20 hurt clients.
    """
    columns, rows, missed = [0.0, *MIXTURES], [], 0
    for runs in cells.values():
        sums = []
        for clients in runs:
            test = np.array([each["test"] for each in clients])
            chosen = np.array(
                [values[columns.index(weight)] for values, weight in zip(test, rule(clients), strict=True)]
            )
            one, own = test[:, 0], test[:, -1]
            tail = worst_decile(chosen, higher_is_better=True) - worst_decile(own, higher_is_better=True)
            gain = 100 * (own - one).mean()
            sums.append([(own < one).sum(), (chosen < one).sum(), 100 * (chosen - own).mean(), 100 * tail, gain])
        before, after = np.sum(sums, axis=0)[:2]
        price, tail, gain = np.mean(sums, axis=0)[2:]
        rows.append([before, after, price, tail, gain])
        missed += bool(before >= 20 and (3 * after > before or min(price, tail) < -0.3 or 0 < gain < -5 * price))
    before, after = np.sum(rows, axis=0)[:2]
    price, tail, gain = np.mean(rows, axis=0)[2:]
    kept = 1 + price / gain
    return f"{after:.0f} of {before:.0f} | {after / before:.2f} | {price:+.2f} | {tail:+.2f} | {kept:.0%} | {missed}"


def main() -> None:
    """Train what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    safeguard.WEIGHTS = MIXTURES
    cells: dict[str, list[Clients]] = {}
    for seed in SEEDS:
        for name, load in (POPULATIONS | FEW_ROWS).items():
            file = out / f"{name}, seed {seed}.pickle"
            if not file.exists():
                file.write_bytes(pickle.dumps(train(load, seed)))
            cells.setdefault(name, []).extend(pickle.loads(file.read_bytes()))
    print("| rule | hurt | ratio | mean | worst decile | gain kept | populations with a miss |")
    for name, rule in RULES.items():
        print(f"| {name} | {judge(cells, rule)} |", flush=True)


if __name__ == "__main__":
    main()
