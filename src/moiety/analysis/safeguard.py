"""What a safeguard did: who is hurt with personal models and with the models that clients chose, and at what price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from moiety.analysis.harm import judge_clients
from moiety.analysis.versus import Row
from moiety.errors import must, proper_fraction
from moiety.evaluation import worst_decile
from moiety.evaluation.paired import RowScores
from moiety.evaluation.safeguard import find_discoveries
from moiety.reports.console import print_plain, table

if TYPE_CHECKING:
    from moiety.run.result import Run

Scores = Mapping[str, RowScores]
MODELS = ("personal", "chosen")


@dataclass(frozen=True)
class HarmReport:
    """Who is hurt, before the safeguard (``personal`` models) and after it (``chosen`` ones).

    ``rows`` has a row for each pair of models and baseline (``against``: ``one model`` or ``alone``), for all clients
    and by size: shares of clients hurt at all (``hurt``) and beyond noise (``beyond_noise``), with intervals, and
    the mean, worst decile and spread (standard deviation) of the clients' metric. ``discoveries`` counts clients whose
    held-out rows show that their personal model is better, and worse, than one model for all: of each at most a
    twentieth is expected to be false.
    """

    metric: str
    rows: list[Row]
    discoveries: dict[str, int]

    def __str__(self) -> str:
        heads = ["against", "clients", "models", "hurt", "beyond noise", f"mean {self.metric}", "worst tenth", "spread"]
        body = [
            [
                row["against"],
                f"{row['group']} ({row['clients']})",
                row["models"],
                _show_share(row, "hurt"),
                _show_share(row, "beyond_noise"),
                *(f"{row[name]:.4g}" for name in ("mean", "worst_decile", "spread")),
            ]
            for row in self.rows
        ]
        counts = self.discoveries
        words = f"Held-out rows show personal models better for {counts['better']}, worse for {counts['worse']} clients"
        return f"{print_plain(table(heads, body, text=(0, 1, 2)))}\n{words} (false discovery rate 5%)."


def _show_share(row: Row, name: str) -> str:
    return f"{row[name]:.1%} [{row[name + '_low']:.1%}, {row[name + '_high']:.1%}]"


def report_harm(
    run: Run, *, one_model: Run | None = None, local_run: Run | None = None, part: str = "test", level: float = 0.95
) -> HarmReport:
    """Compare personal and chosen models of a run with one model for all, and with training alone.

    Args:
        run: one in which clients have chosen (``safeguard=True``, or ``run.safeguard()``).
        one_model: a run whose shared model is the one model for all. By default it is that of ``run``: what its
            safeguard was given, or the server's part with the first personal part, which may be much worse than a model
            that FedAvg trained.
        local_run: a run by ``local_only`` on the same clients.
        part: the rows to compare on.
        level: of the intervals of shares (Wilson 1927).
    """
    hint = "Call run.safeguard()."
    must(bool(getattr(run, "choices", None)), "run", "one in which clients have chosen", "one without", hint)
    proper_fraction("level", level)
    metric = run._loop.problem.task.metric
    models = {"personal": run.score_rows(part, personal=True), "chosen": run.score_rows(part)}
    baselines = {
        "one model": run.score_rows(part, shared=True) if one_model is None else one_model.score_rows(part, shared=True)
    }
    if local_run is not None:
        baselines["alone"] = local_run.score_rows(part)
    for name, scores in zip(("one_model", "local_run"), baselines.values(), strict=False):
        missing = sorted(set(models["chosen"]) - set(scores))
        must(not missing, name, "a run on the same clients", f"one without {missing[:3]}")
    sizes = {
        str(name): int(n) for name, n in zip(run._loop.problem.data.ids, run._loop.problem.data.sizes(), strict=True)
    }
    cut = median(sizes[client] for client in models["chosen"])
    groups = {"all": list(models["chosen"])}
    halves = {
        f"n <= {cut:g}": [client for client in models["chosen"] if sizes[client] <= cut],
        f"n > {cut:g}": [client for client in models["chosen"] if sizes[client] > cut],
    }
    groups |= halves if all(halves.values()) else {}
    rows = [
        {"against": against, "group": group, "models": name}
        | summarise_harm(models[name], old, clients, higher_is_better=metric.higher_is_better, level=level)
        for against, old in baselines.items()
        for group, clients in groups.items()
        for name in MODELS
    ]
    choices = run.choices.values()
    discoveries = {
        "better": len(find_discoveries([each.p_better for each in choices])),
        "worse": len(find_discoveries([each.p_worse for each in choices])),
    }
    return HarmReport(metric.name, rows, discoveries)


def summarise_harm(
    new: Scores, old: Scores, clients: Sequence[str], *, higher_is_better: bool = True, level: float = 0.95
) -> Row:
    """How ``clients`` fare with new models against old ones: shares hurt with intervals, mean, worst decile, spread."""
    rows = judge_clients(
        {client: new[client] for client in clients},
        {client: old[client] for client in clients},
        higher_is_better=higher_is_better,
    )
    means = [float(np.average(new[row["client"]].metric, weights=new[row["client"]].weight)) for row in rows]
    shares: Row = {}
    for name, key in (("hurt", "hurt"), ("beyond_noise", "hurt_beyond_noise")):
        count = sum(row[key] for row in rows)
        low, high = share_interval(count, len(rows), level)
        shares |= {name: count / len(rows), f"{name}_low": low, f"{name}_high": high, f"{name}_count": count}
    with np.errstate(invalid="ignore"):  # scores that are infinite have no spread, and may have no mean
        spread, mean = float(np.std(means)), float(np.mean(means))
        change = float(np.mean([row["change"] for row in rows]))
    return {
        "clients": len(rows),
        **shares,
        "mean": mean,
        "mean_change": change,
        "worst_decile": worst_decile(np.array(means), higher_is_better=higher_is_better),
        "spread": spread,
    }


def share_interval(count: int, of: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval for a share.

    >>> low, high = share_interval(0, 20)
    >>> low, round(high, 3)
    (0.0, 0.161)
    """
    from scipy.stats import binomtest

    ends = binomtest(count, of).proportion_ci(level, method="wilson")
    return float(ends.low), float(ends.high)
