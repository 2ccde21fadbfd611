"""Is a newcomer of FedPop, at its defaults, no worse with its own rows than without?

For each population a federation is trained with ``mo.fedpop()``. Then clients that it never saw are predicted twice: by
the learned prior alone (``run.predictive(None, x)``) and with a few rows of their own. The score is the mean negative
log-likelihood of their test rows (for regression, of the mixture of normals around the draws).

    python -m benchmarks.newcomers --seeds 5

UCI HAR and AudioMNIST are read from the folder of ``MOIETY_DATA``; the two other populations are drawn here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import logsumexp

import moiety as mo
from benchmarks.coverage import SHAPES, draw_population, draw_rows, fit_population
from moiety.experiments import interval

DRAWS = 20
"""Effective draws, with rows and without: the average of more predictions has less log-loss."""
ROUNDS = 100
Rows = dict[str, np.ndarray]


class Guest(NamedTuple):
    """A client never seen: its own rows, and rows to test on."""

    own: Rows
    test: Rows


def log_loss(prediction: Any, y: np.ndarray) -> float:
    """The mean negative log-likelihood of labels, or of observations where there is noise."""
    if prediction.noise is None:  # by logarithms: a probability may be too small for a number
        outputs = np.asarray(prediction.outputs, dtype=np.float64)
        own = np.take_along_axis(outputs, np.broadcast_to(y, outputs.shape[:2])[..., None], axis=2)[..., 0]
        each = logsumexp(own - logsumexp(outputs, axis=2), axis=0) - np.log(len(outputs))
        return float(-each.mean())
    away = (prediction.outputs[..., 0] - y[:, 0]) / prediction.noise
    each = logsumexp(-(away**2) / 2, axis=0) - np.log(len(away)) - np.log(prediction.noise) - np.log(2 * np.pi) / 2
    return float(-each.mean())


def compare(run: mo.Run, guests: list[Guest], inputs: tuple[str, ...]) -> dict[str, Any]:
    """The loss of newcomers with and without their rows, and how many are worse off with them."""
    pairs = []
    for guest in guests:
        x = guest.test[inputs[0]] if len(inputs) == 1 else {name: guest.test[name] for name in inputs}
        losses = [log_loss(run.predictive(who, x, draws=DRAWS), guest.test["y"]) for who in (guest.own, None)]
        pairs.append(losses)
    with_rows, without = np.array(pairs).T
    sent = run.broadcast()
    return {
        "with": float(with_rows.mean()),
        "without": float(without.mean()),
        "worse": int((with_rows > without).sum()),
        "of": len(guests),
        "scale": float(sent["prior:log_scale"].exp()),
    }


def measure_people(
    name: str, options: dict[str, Any], own: int, train: int, held_out: float, seed: int, *, clip: float | None = None
) -> dict[str, Any]:
    """People of a data set: some are held out, the others have ``train`` rows each, newcomers ``own``.

    Inputs are standardised over the training rows of the others, and with ``clip`` held between -clip and clip.
    """
    fed = mo.data.load(name, test=0.0, **options)
    rng = np.random.default_rng([seed, 6])
    order = rng.permutation(len(fed))
    count = int(held_out * len(fed))
    people = []
    for i in order.tolist():
        rows = fed.at(i)
        some = rng.permutation(len(rows["y"]))[:100]
        people.append({"x": rows["x"][some].reshape(len(some), -1).astype(np.float32), "y": rows["y"][some]})
    known = people[count:]
    seen = np.concatenate([p["x"][:train] for p in known])
    mean, spread = seen.mean(0), seen.std(0) + 1e-3
    for p in people:
        p["x"] = ((p["x"] - mean) / spread).astype(np.float32)
        if clip is not None:
            p["x"] = p["x"].clip(-clip, clip)
    data = mo.data.from_clients({f"p{i}": {k: v[:train] for k, v in p.items()} for i, p in enumerate(known)}, test=0.0)
    classes = int(max(p["y"].max() for p in people)) + 1
    model = mo.models.mlp(seen.shape[1], classes, hidden=(16,), seed=seed)
    run = fit(model, data, mo.split.output_layer(model), seed)
    guests = [Guest({k: v[:own] for k, v in p.items()}, {k: v[own:] for k, v in p.items()}) for p in people[:count]]
    return compare(run, guests, ("x",))


def fit(model: Any, data: mo.FederatedData, split: Any, seed: int) -> mo.Run:
    """A run at the defaults."""
    settings = mo.Settings(evaluate_every=ROUNDS)
    how = {"split": split, "rounds": ROUNDS, "seed": seed, "engine": "vectorised", "settings": settings}
    return mo.fit(model, data, mo.fedpop(), **how)


def measure_slopes(seed: int) -> dict[str, Any]:
    """The population ``slopes`` of ``benchmarks.coverage``."""
    known, new = draw_population(SHAPES["slopes"], 100, seed)
    run, rng, guests = fit_population(known, ROUNDS, seed), np.random.default_rng([seed, 7]), []
    for rows, z in zip(new.clients[:20], new.z, strict=False):
        a, b = draw_rows(new.shape, 50, rng)
        y = a @ new.u + b @ z + new.shape.noise * rng.normal(size=50)
        guests.append(Guest(rows, {"a": a, "b": b, "y": y[:, None]}))
    return compare(run, guests, ("a", "b"))


def measure_logistic(seed: int) -> dict[str, Any]:
    """Three classes by z_i x with z_i ~ N(mu, 1), 4 columns; 12 rows a client, newcomers 5."""
    rng = np.random.default_rng([seed, 8])
    mu = rng.normal(size=(4, 3))

    def draw(count: int) -> Rows:
        x = rng.normal(size=(count, 4)).astype(np.float32)
        logits = x @ (mu + rng.normal(size=(4, 3)))
        y = (logits + rng.gumbel(size=logits.shape)).argmax(1)
        return {"x": x, "y": y}

    data = mo.data.from_clients({f"c{i}": draw(12) for i in range(100)}, test=0.0)
    model = mo.models.linear(4, 3, seed=seed)
    run = fit(model, data, mo.split.everything(model), seed)
    guests = []
    for _ in range(20):
        rows = draw(105)
        guests.append(Guest({k: v[:5] for k, v in rows.items()}, {k: v[5:] for k, v in rows.items()}))
    return compare(run, guests, ("x",))


POPULATIONS: dict[str, Callable[[int], dict[str, Any]]] = {
    "slopes": measure_slopes,
    "logistic": measure_logistic,
    "uci_har": lambda seed: measure_people("uci_har", {"features": "statistics"}, 5, 5, 0.2, seed),
    "audiomnist": lambda seed: measure_people("audiomnist", {}, 20, 40, 0.2, seed),
    "audiomnist_clipped": lambda seed: measure_people("audiomnist", {}, 20, 40, 0.2, seed, clip=5.0),
}


def summarise(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line of a table for each population: mean losses, what rows of one's own gain, with its 95% interval."""
    lines = []
    for name in dict.fromkeys(row["population"] for row in rows):
        some = [row for row in rows if row["population"] == name]
        gain = interval([row["without"] - row["with"] for row in some])
        ends = "" if gain.low is None else f" [{gain.low:+.3f}, {gain.high:+.3f}]"
        means = [f"{np.mean([row[key] for row in some]):.3f}" for key in ("with", "without")]
        worse = f"{sum(row['worse'] for row in some)} of {sum(row['of'] for row in some)}"
        lines.append("| " + " | ".join([name, *means, f"{gain.mean:+.3f}{ends}", worse]) + " |")
    return lines


def main() -> None:
    """Measure and print. What the file holds already is not computed again."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--populations", default=",".join(POPULATIONS))
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    if given.out is not None and given.out.exists():
        rows = json.loads(given.out.read_text())
    known = {(row["population"], row["seed"]) for row in rows}
    for name in given.populations.split(","):
        for seed in range(given.first, given.first + given.seeds):
            if (name, seed) in known:
                continue
            rows.append({"population": name, "seed": seed, **POPULATIONS[name](seed)})
            print(json.dumps(rows[-1]), flush=True)
            if given.out is not None:
                given.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(*summarise(rows), sep="\n")


if __name__ == "__main__":
    main()
