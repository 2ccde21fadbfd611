"""Questions asked of a problem or of runs: which algorithm, who is hurt, at what cost."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from moiety.analysis.harm import change_rows, hurt_when, judge_clients, over_seeds, share_hurt, sweep
from moiety.analysis.intervals import Claim, Interval, claim, interval, table_row
from moiety.analysis.versus import against_parameters
from moiety.reports.versus import Versus, changes, column, higher_is_better, mean, versus

if TYPE_CHECKING:
    from moiety.analysis.costs import bytes_of_run, flops_of_run, memory_rows, search_share, sparse_memory
    from moiety.analysis.safeguard import HarmReport, report_harm, share_interval, summarise_harm

_HEAVY = {
    "HarmReport": "moiety.analysis.safeguard",
    "report_harm": "moiety.analysis.safeguard",
    "share_interval": "moiety.analysis.safeguard",
    "summarise_harm": "moiety.analysis.safeguard",
    "bytes_of_run": "moiety.analysis.costs",
    "flops_of_run": "moiety.analysis.costs",
    "memory_rows": "moiety.analysis.costs",
    "search_share": "moiety.analysis.costs",
    "sparse_memory": "moiety.analysis.costs",
}
"""Names whose modules import torch or NumPy: they are looked up when first used."""

__all__ = [
    "Claim",
    "HarmReport",
    "Interval",
    "Versus",
    "against_parameters",
    "bytes_of_run",
    "change_rows",
    "changes",
    "claim",
    "column",
    "flops_of_run",
    "higher_is_better",
    "hurt_when",
    "interval",
    "judge_clients",
    "mean",
    "memory_rows",
    "over_seeds",
    "report_harm",
    "search_share",
    "share_hurt",
    "share_interval",
    "sparse_memory",
    "summarise_harm",
    "sweep",
    "table_row",
    "versus",
]


def __getattr__(name: str) -> Any:
    if name not in _HEAVY:
        raise AttributeError(f"module 'moiety.analysis' has no attribute {name!r}")
    return getattr(importlib.import_module(_HEAVY[name]), name)
