"""What a run needs at its peak, before it begins: one that cannot fit is refused, not killed in some later round."""

from __future__ import annotations

import numpy as np
import torch

from moiety import tree
from moiety.engines.problem import Problem
from moiety.engines.rows import count_piece, count_rows
from moiety.loop.exchange import declare_layouts
from moiety.machine import check_room, format_bytes
from moiety.run.settings import Options
from moiety.types import Algorithm, Batch, Tree

HINT = "Ask fewer clients in a round, or use smaller batches or a smaller model."


def check_memory(problem: Problem, algorithm: Algorithm, options: Options, *, on_disk: bool) -> None:
    """Raise where the run needs more memory than there is; ``on_disk`` says whether personal states lie in a folder."""
    parts = estimate_memory(problem, algorithm, options, on_disk=on_disk)
    largest = max(parts, key=lambda part: parts[part])
    check_room("fit", sum(parts.values()), f"Most of it is {largest} ({format_bytes(parts[largest])}). {HINT}")


def estimate_memory(problem: Problem, algorithm: Algorithm, options: Options, *, on_disk: bool) -> dict[str, int]:
    """Bytes that a run surely needs at once, by what they are for, beyond what is there when it begins.

    A cohort's uploads and new states are held until the round is closed, with the lists of rows that its clients go
    through. One client at a time keeps what the backward pass of a batch needs. The server is there twice while it
    moves. Engines that serve many clients at once need more.
    """
    assert options.rounds is not None
    assert options.cohort is not None
    cohort, clients = options.cohort, len(problem.data)
    largest = int(problem.data.sizes("train").max())
    state = count_bytes(problem.first_state(algorithm)) if algorithm.stateful else 0
    rows = sum(count_rows(phase, largest) for phase in algorithm.phases.values())
    batch = max((int(count_piece(phase, np.array(largest))) for phase in algorithm.phases.values()), default=0)
    two = np.resize(np.arange(*problem.data.rows(0, "train")), 2)
    return {
        "uploads": cohort * count_bytes(declare_layouts(problem, algorithm)[1]),
        "new personal states": cohort * state,
        "personal states": 0 if on_disk else min(clients, cohort * options.rounds) * state,
        "lists of rows": cohort * rows * 8,
        "the backward pass": problem.backprop_bytes(two) // 2 * batch,
        "the server": count_bytes(problem.first_server(algorithm)),
    }


def count_bytes(value: Tree | Batch) -> int:
    """The bytes of all tensors in a tree."""
    return sum(x.numel() * x.element_size() for x in tree.leaves(value).values())


def check_columns(columns: dict[str, np.ndarray], dtype: torch.dtype) -> None:
    """Raise where the columns that must be converted to the model's precision need more memory than there is."""
    wide, sizes = torch.empty(0, dtype=dtype).element_size(), {}
    for name, column in columns.items():
        floating = column.dtype.kind == "f" or (column.dtype == np.uint8 and name != "y")
        if column.dtype != (f"f{wide}" if floating else np.int64):
            sizes[name] = column.size * (wide if floating else 8)
    check_room("data", sum(sizes.values()), "Save it in the precision of the model, so that it can be mapped.")
