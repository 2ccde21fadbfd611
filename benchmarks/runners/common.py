"""What every runner does alike: read arguments, keep the time of rounds, measure the loss, print one line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.work import STARTED, WARM_UP, Arrays, Work, load


def warm_up(work: Work) -> int:
    """Rounds at the start that do not count: lazy set-up, and what an engine measures for itself.

    The rounds of (c) are long, one is enough; finetuning warms up on one client.
    """
    return {"alternate": 1, "finetune": 0}.get(work.kind, WARM_UP)


def arguments() -> tuple[argparse.Namespace, Arrays]:
    """The command line and the arrays of the work it names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", required=True)
    parser.add_argument("--rounds", type=int, required=True, help="that count; the warm-up comes on top")
    parser.add_argument("--threads", type=int, default=0, help="of PyTorch; 0 leaves them as they are")
    parser.add_argument("--engine", default="auto", help="of moiety")
    parser.add_argument("--no-partial", dest="partial", action="store_false", help="moiety without partial evaluation")
    parser.add_argument("--planned", type=int, default=0, help="rounds that moiety is told of; it is stopped earlier")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    return options, load(options.work)


class Clock:
    """The time at the end of every round."""

    def __init__(self) -> None:
        self.ends = [time.perf_counter()]

    def tick(self) -> None:
        """A round has ended."""
        self.ends.append(time.perf_counter())

    def first_round(self) -> float:
        """Seconds from the start of this process to the end of the first round."""
        since = time.perf_counter() - self.ends[1]
        return time.time() - since - float(os.environ[STARTED])

    def seconds(self, work: Work, rounds: int) -> list[float]:
        """The durations of ``rounds`` rounds after the warm-up."""
        return np.diff(self.ends)[warm_up(work) :][:rounds].tolist()


@torch.no_grad()
def mean_loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Cross-entropy over all rows."""
    model.eval()
    parts = zip(x.split(1024), y.split(1024), strict=True)
    return float(sum(functional.cross_entropy(model(a), b, reduction="sum").double() for a, b in parts)) / len(y)


def tensors(arrays: Arrays) -> tuple[torch.Tensor, torch.Tensor]:
    """All examples as tensors."""
    return torch.from_numpy(arrays.x), torch.from_numpy(arrays.y)


def report(seconds: Sequence[float], loss: float | None, personal_loss: float | None = None, **more: Any) -> None:
    """Print what was found, as the last line."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {"seconds": list(seconds), "loss": loss, "personal_loss": personal_loss, "memory_mb": memory, **more}
    print("\n" + json.dumps(found), flush=True)
