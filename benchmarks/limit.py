"""``python -m benchmarks.limit``: how long the products and convolutions of a round take alone.

Each layer's product is timed by itself on one thread, at the shapes of one client's batch: forward, the weight's
gradient, and the gradient of the layer's input (the first layer needs none). Nothing else of a round is counted, and
the time is divided by the number of cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_input, conv2d_weight

from benchmarks import results
from benchmarks.variants import CORES
from benchmarks.work import BATCH, EXAMPLES, WORKS, module

TURNS, CALLS = 15, 20


def products(layer: nn.Module, x: Tensor, y: Tensor, first: bool) -> list[Callable[[], Tensor]]:
    """The products of one layer in a step of SGD; ``y`` stands for its output and for the output's gradient."""
    weight = layer.weight.detach()
    if isinstance(layer, nn.Conv2d):
        pad = {"stride": layer.stride, "padding": layer.padding}
        forward = lambda: nn.functional.conv2d(x, weight, None, **pad)  # noqa: E731
        for_weight = lambda: conv2d_weight(x, weight.shape, y, **pad)  # noqa: E731
        for_input = lambda: conv2d_input(x.shape, weight, y, **pad)  # noqa: E731
    else:
        forward, for_weight, for_input = (lambda: x @ weight.T), (lambda: y.T @ x), (lambda: y @ weight)
    return [forward, for_weight, *([] if first else [for_input])]


def time_calls(call: Callable[[], Tensor]) -> float:
    """Seconds of one call: the median over turns of the mean of several calls."""
    each = []
    for _ in range(TURNS):
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        each.append((time.perf_counter() - began) / CALLS)
    return median(each)


@torch.no_grad()
def limit(name: str) -> float:
    """The seconds of a round of a work."""
    work = WORKS[name]
    net, seen = module(work), list[tuple[nn.Module, Tensor, Tensor]]()
    for layer in net.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.register_forward_hook(lambda layer, inputs, output: seen.append((layer, inputs[0], output)))
    net(torch.randn(BATCH, *work.shape))
    calls = [call for k, (layer, x, y) in enumerate(seen) for call in products(layer, x, y, k == 0)]
    return sum(map(time_calls, calls)) * (EXAMPLES // BATCH) * work.cohort / CORES


def main() -> None:
    """The limits of (a), (b) and (d)."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    found = {name: {"seconds": limit(name)} for name in "abd"}
    print(*(f"({name}) {1e3 * row['seconds']:.2f} ms a round" for name, row in found.items()), sep="\n")
    results.update("limits", found, (time.perf_counter() - began) / 60)


if __name__ == "__main__":
    main()
