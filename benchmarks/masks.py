"""What do FedSpa's masks tell the server about its clients' labels?

    python -m benchmarks.masks

A client uploads its mask, so the server knows it. FedSpa is trained with the sizes of the recipes at scale ``night``
(100 clients, setting B). Then a ridge regression on the masks alone guesses each client's commonest label, with the
labels of the others known: ten groups of clients, each guessed from the other nine. *Chance* always guesses the label
that is most often the commonest one.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import torch

import moiety as mo
from moiety_recipes.fedspa_tasks import SMALL, B, build_fedspa, fit_options
from moiety_recipes.fedspa_theorem1 import read_masks

LABELS, GROUPS = 10, 10


def guess_labels(masks: np.ndarray, labels: np.ndarray, seed: int) -> np.ndarray:
    """Guess the label of every client from its mask, by a regression on the masks and labels of other groups.

    Ridge regression in its dual form; its penalty is the mean squared norm of a mask's difference from the mean mask.
    """
    guesses = np.empty_like(labels)
    for group in np.array_split(np.random.default_rng(seed).permutation(len(labels)), GROUPS):
        others = np.setdiff1d(np.arange(len(labels)), group)
        x, y = masks[others] - masks[others].mean(0), np.eye(LABELS)[labels[others]]
        products = x @ x.T
        dual = np.linalg.solve(products + np.eye(len(x)) * products.diagonal().mean(), y - y.mean(0))
        guesses[group] = (y.mean(0) + (masks[group] - masks[others].mean(0)) @ x.T @ dual).argmax(1)
    return guesses


def measure_seed(seed: int, rounds: int) -> tuple[float, float]:
    """The share of clients whose commonest label is guessed from their masks, and the same by chance."""
    task = replace(SMALL, rounds=rounds, every=rounds)
    fed = task.load(B, seed)
    run = mo.fit(**fit_options(task, fed, build_fedspa(task), seed), engine="vectorised", progress=False)
    masks = np.stack([mask.numpy() for mask in read_masks(fed, run)]).astype(np.float64)
    labels = np.array([np.bincount(fed.at(k, "train")["y"]).argmax() for k in range(len(fed))])
    return float((guess_labels(masks, labels, seed) == labels).mean()), float(np.bincount(labels).max() / len(labels))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=SMALL.rounds)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(given.seeds):
        ours, chance = measure_seed(seed, given.rounds)
        print(f"seed {seed}: named {ours:.0%} of the commonest labels, by chance {chance:.0%}", flush=True)


if __name__ == "__main__":
    main()
