"""Questions about a problem or about runs: which algorithm, which split, who is hurt, at what cost."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from moiety.analysis.harm import by_size, change_rows, hurt_when, over_seeds, share_hurt, sweep
from moiety.analysis.intervals import FAILS, HOLDS, UNDECIDED, Claim, Interval, claim, interval, table_row
from moiety.analysis.versus import (
    Versus,
    against_parameters,
    average,
    changes,
    column,
    differences,
    higher_is_better,
    mean,
    versus,
)

if TYPE_CHECKING:
    from moiety.analysis.costs import bytes_of_run, flops_of_run, layer_flops, memory_rows, search_share
    from moiety.analysis.online import OnlineLoss, best_pair

_HEAVY = {
    "OnlineLoss": "moiety.analysis.online",
    "best_pair": "moiety.analysis.online",
    "bytes_of_run": "moiety.analysis.costs",
    "flops_of_run": "moiety.analysis.costs",
    "layer_flops": "moiety.analysis.costs",
    "memory_rows": "moiety.analysis.costs",
    "search_share": "moiety.analysis.costs",
}
"""Names whose modules import torch: they are looked up when first used."""

__all__ = [
    "FAILS",
    "HOLDS",
    "UNDECIDED",
    "Claim",
    "Interval",
    "OnlineLoss",
    "Versus",
    "against_parameters",
    "average",
    "best_pair",
    "by_size",
    "bytes_of_run",
    "change_rows",
    "changes",
    "claim",
    "column",
    "differences",
    "flops_of_run",
    "higher_is_better",
    "hurt_when",
    "interval",
    "layer_flops",
    "mean",
    "memory_rows",
    "over_seeds",
    "search_share",
    "share_hurt",
    "sweep",
    "table_row",
    "versus",
]


def __getattr__(name: str) -> Any:
    if name not in _HEAVY:
        raise AttributeError(f"module 'moiety.analysis' has no attribute {name!r}")
    return getattr(importlib.import_module(_HEAVY[name]), name)
