"""How much memory training takes on one device: Table 10 and section B.4 of Pillutla et al. (2022).

The estimate is 3 size(u) + 2 size(v) + size(backprop): the broadcast shared part, its current value and its gradient;
the personal part and its gradient; and what autograd keeps for one row between the forward and the backward pass. Full
personalisation has u and v both as large as the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from moiety import task as tasks
from moiety.errors import must
from moiety.split import Split
from moiety.task import backprop_bytes
from moiety.transport import device_memory
from moiety.types import Batch, Params, Task

NOTHING, EVERYTHING = "no personalisation", "full personalisation"


def memory_rows(
    model: nn.Module,
    splits: Mapping[str, Split],
    batch: Batch,
    *,
    loss: tasks.Loss = "cross_entropy",
    inputs: Sequence[str] = ("x",),
) -> list[dict[str, Any]]:
    """A row for no personalisation, for each of ``splits``, and for full personalisation.

    Args:
        model: the model; a split that trains a copy of it with something put in (adapters) brings its own.
        splits: by the name of the row.
        batch: one row of data.
        loss: as in ``fit``.
        inputs: as in ``fit``.

    Returns:
        Rows with ``row``, numbers of ``shared`` and ``personal`` parameters, ``backprop`` and ``bytes`` in bytes,
        ``megabytes`` (10^6 bytes), and ``saving``: the share of full personalisation's bytes that is not needed.
    """
    rows = len(next(iter(batch.values())))
    must(rows == 1, "batch", "one row", f"{rows} rows", "The estimate is for batch size 1.")

    def task_of(module: nn.Module, split: Split | None) -> Task:
        return tasks.from_module(module, loss=loss, inputs=inputs, penalty=split.penalty if split else None)

    def row(name: str, task: Task, shared: Params, personal: Params, trained: Sequence[str]) -> dict[str, Any]:
        backprop = backprop_bytes(task, batch, trained)
        counts = {k: sum(p.numel() for p in v.values()) for k, v in (("shared", shared), ("personal", personal))}
        return {"row": name, **counts, "backprop": backprop, "bytes": device_memory(shared, personal, backprop)}

    whole = task_of(model, None)
    names = [name for name in whole.init if name not in whole.buffers]
    made = [row(NOTHING, whole, whole.init, {}, names)]
    for name, split in splits.items():
        task = task_of(split.model or model, split)
        must(task.init.keys() == split.sizes.keys(), f"splits[{name!r}]", "made for this model", "another's")
        trained = (*split.trained_shared, *split.trained_personal)
        made.append(row(name, task, *split.parts(task.init), trained))
    made.append(row(EVERYTHING, whole, whole.init, whole.init, names))
    full = made[-1]["bytes"]
    return [{**r, "megabytes": r["bytes"] / 1e6, "saving": 1 - r["bytes"] / full} for r in made]
