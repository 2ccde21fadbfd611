"""Where does sparse arithmetic pay on a CPU, and how long is FedSpa's search for masks?

    python -m benchmarks.sparse --out sparse.json

Take it on a quiet machine; it needs about two minutes. It prints two tables for docs/algorithms/fedspa.md.

1. A step of one layer, y = x W^T forwards and backwards (the gradients of W and of x), for the layers that the recipes
   and the paper's LeNet-5 have. *dense* is one with all weights, *masked* multiplies W and its gradient by a mask, as
   moiety does, *CSR* keeps the active weights alone: products with a sparse matrix, and the gradient of the active
   weights only. Times are medians, given as multiples of the dense step.
2. Table 5 of Huang et al. 2022: the time of a mask search as a share of the time of local training, for the small
   perceptron of scale ``night``, for LeNet-5 and for Caffe's LeNet-5, the paper's.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from timeit import timeit
from typing import Any

import torch

import moiety as mo
from moiety_recipes.fedspa_tasks import LENET, SMALL, B, Task

DENSITIES = (0.05, 0.1, 0.2, 0.5)
LAYERS = {
    "196 to 64 (small perceptron)": (196, 64, 64),
    "400 to 120 (LeNet-5)": (400, 120, 16),
    "800 to 500 (Caffe's LeNet-5)": (800, 500, 32),
    "1024 to 1024": (1024, 1024, 32),
}
"""By name: inputs, outputs, and rows in a batch."""
TASKS: dict[str, Task] = {
    "perceptron 196-64-32-10": SMALL,
    "LeNet-5": LENET,
    "Caffe's LeNet-5": replace(LENET, network="caffe_lenet5", rows=96, batch_size=32),
}
REPEATS = 9
LEAST = 0.02
"""Seconds that a repeat lasts at least."""
Step = Callable[[], Any]


def make_dense(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> Step:
    """Output, gradient of W, gradient of x."""
    return lambda: (x @ w.T, g.T @ x, g @ w)


def make_masked(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor, mask: torch.Tensor) -> Step:
    """The same with a mask on W and on its gradient."""

    def step() -> tuple[torch.Tensor, ...]:
        active = w * mask
        return x @ active.T, (g.T @ x) * mask, g @ active

    return step


def make_csr(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor, mask: torch.Tensor) -> Step:
    """The same with active weights alone; W and its transpose are kept as CSR, outputs are transposed."""
    forward, backward = (w * mask).to_sparse_csr(), (w * mask).T.contiguous().to_sparse_csr()
    xt, gt = x.T.contiguous(), g.T.contiguous()
    return lambda: (forward @ xt, torch.sparse.sampled_addmm(forward, gt, x, beta=0.0).values(), backward @ gt)


def time_step(step: Step) -> float:
    """The median time of a step, in seconds."""
    step()
    number = max(1, round(LEAST / max(timeit(step, number=3) / 3, 1e-7)))
    return float(median(timeit(step, number=number) / number for _ in range(REPEATS)))


def time_layer(inputs: int, outputs: int, batch: int, density: float) -> dict[str, float]:
    """The times of the three steps of one layer."""
    draw = torch.Generator().manual_seed(0)
    x, g = (torch.randn(batch, size, generator=draw) for size in (inputs, outputs))
    w = torch.randn(outputs, inputs, generator=draw)
    mask = torch.rand(outputs, inputs, generator=draw) < density
    steps = {
        "dense": make_dense(x, w, g),
        "masked": make_masked(x, w, g, mask),
        "CSR": make_csr(x, w, g, mask),
    }
    return {name: time_step(step) for name, step in steps.items()}


def time_search(task: Task, repeats: int) -> float:
    """The time of a mask search as a share of that of local training, for three clients of setting B."""
    work = mo.sgd(task.lr, epochs=task.epochs, batch_size=task.batch_size)
    return mo.analysis.search_share(task.model(0), task.load(B, 0), repeats=repeats, shared=work)


def show(layers: Sequence[Mapping[str, Any]], searches: Sequence[Mapping[str, Any]]) -> list[str]:
    """Both tables."""
    lines = ["| layer | density | dense | masked | CSR |", "|---|---|---|---|---|"]
    for row in layers:
        shares = " | ".join(f"{row[name] / row['dense']:.2f}" for name in ("masked", "CSR"))
        lines.append(f"| {row['layer']} | {row['density']:g} | {1e6 * row['dense']:.0f} µs | {shares} |")
    lines += ["", "| network | mask search, share of local training (%) |", "|---|---|"]
    return lines + [f"| {row['network']} | {100 * row['share']:.1f} |" for row in searches]


def main() -> None:
    """Measure, print both tables and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=len(LAYERS), help="how many layers are timed")
    parser.add_argument("--repeats", type=int, default=9, help="turns of the clients whose search is timed")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    layers = [
        {"layer": name, "density": density, **time_layer(*sizes, density)}
        for name, sizes in list(LAYERS.items())[: given.layers]
        for density in DENSITIES
    ]
    searches = [{"network": name, "share": time_search(task, given.repeats)} for name, task in TASKS.items()]
    print(*show(layers, searches), sep="\n")
    if given.out is not None:
        given.out.write_text(json.dumps({"layers": layers, "searches": searches}, indent=1) + "\n")


if __name__ == "__main__":
    main()
