"""Who is hurt by a personal part, how often, and whether an option helps.

Pillutla et al. (2022), section 4.2 and appendix C.3: the change of every client's metric on training and on test rows
against the number of its training rows (Figures 5, 8, 9, 10), its distribution (Figure 7), and how it depends on the
seed (Figure 11). Functions take rows as ``Run.clients`` and ``Run.evaluate`` give them; changes are signed such
that more is better, in the metric's own unit.

A client is hurt where its metric is worse. It is hurt *beyond noise* where it is worse by more than chance explains:
``judge_clients`` decides by the interval of the differences on its rows, which ``Run.score_rows`` gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median, pstdev
from typing import TYPE_CHECKING

from moiety.analysis.intervals import Interval, interval
from moiety.analysis.versus import Row
from moiety.errors import choice, must
from moiety.reports.versus import Rows, changes
from moiety.reports.versus import column as by_name

if TYPE_CHECKING:
    from moiety.evaluation.paired import RowScores

PARTS = ("test", "train")


def change_rows(
    personal: Rows, plain: Rows, *, train: tuple[Rows, Rows] | None = None, higher_is_better: bool = True
) -> list[Row]:
    """A row per client: how its metric changed from a run without a personal part to a run with one.

    Args:
        personal: rows of the personalised run, on test rows.
        plain: rows of the run it is compared with, of the same clients.
        train: rows of the same two runs, on training rows (``run.evaluate(part="train")``).
        higher_is_better: the direction of the metric.

    Returns:
        Rows with ``client``, ``n`` (training rows), ``n_test``, and the changes ``test`` and ``train``: 0 where they
        are rounding only, None for a client without rows of that part.
    """
    sides = {"test": (personal, plain), **({} if train is None else {"train": train})}
    gains: dict[str, dict[str, float]] = {part: {} for part in PARTS}
    for part, (new, old) in sides.items():
        _check_same_clients([new, old])
        gains[part] = changes(by_name(new), by_name(old), higher_is_better=higher_is_better)
    return [
        {
            "client": str(row["client"]),
            "n": int(row["n"]),
            "n_test": int(row["n_test"]),
            **{part: gains[part].get(str(row["client"])) for part in PARTS},
        }
        for row in personal
    ]


def judge_clients(
    new: Mapping[str, RowScores], old: Mapping[str, RowScores], *, higher_is_better: bool = True, level: float = 0.95
) -> list[Row]:
    """A row per client: the change of its metric from ``old`` to ``new`` on the same rows, and what chance explains.

    Args:
        new: scores by client, as ``Run.score_rows`` gives them.
        old: those of the same clients with the model that is compared with.
        higher_is_better: the direction of the metric.
        level: of each client's interval; ``moiety.evaluation.paired.measure_change`` says how it is made.

    Returns:
        Rows with ``client``, ``n_test`` (rows that count), ``change``, its interval (``low``, ``high``), ``hurt`` (the
        metric is worse), ``hurt_beyond_noise`` and ``helped_beyond_noise``. Clients without rows are left out.

    >>> import numpy as np
    >>> from moiety.evaluation.paired import RowScores
    >>> loss, weight = np.zeros(6), np.ones(6)  # six test rows, wrong before and right now
    >>> new, old = (RowScores(loss, np.full(6, right), weight) for right in (1.0, 0.0))
    >>> row = judge_clients({"ann": new}, {"ann": old})[0]
    >>> print(row["change"], round(row["low"], 2), row["helped_beyond_noise"])
    1.0 0.08 True
    """
    from moiety.evaluation.paired import measure_change  # here: lists of recipes do without NumPy

    odd = sorted(set(new) ^ set(old))
    must(not odd, "clients", "the same on both sides", f"{odd[:3]} on one only")
    rows = []
    for client, scores in new.items():
        pair = (scores.metric, old[client].metric)
        change = measure_change(*pair, scores.weight, higher_is_better=higher_is_better, level=level)
        if change.rows:
            rows.append(
                {
                    "client": client,
                    "n_test": change.rows,
                    "change": change.mean,
                    "low": change.low,
                    "high": change.high,
                    "hurt": change.hurt,
                    "hurt_beyond_noise": change.hurt_beyond_noise,
                    "helped_beyond_noise": change.helped_beyond_noise,
                }
            )
    return rows


def _check_same_clients(tables: Sequence[Rows]) -> None:
    """Raise where rows cannot be compared client by client."""
    sets = [{str(row["client"]) for row in rows} for rows in tables]
    for other in sets[1:]:
        odd = sorted(sets[0] ^ other)
        hint = "Deal the data to the clients with one seed, and train with several."
        must(not odd, "clients", "the same on both sides and in all seeds", f"{odd[:3]} on one only", hint)


def over_seeds(seeds: Sequence[Rows], *, column: str = "test") -> list[Row]:
    """Figure 11: a row per client with the mean, least and largest change over seeds, in ascending order of the mean.

    ``seeds`` holds the change rows of each seed. ``hurt`` counts the seeds in which the client lost.
    """
    tables = _list_changes_by_client(seeds, column)
    sizes = {str(row["client"]): int(row["n"]) for row in seeds[0]}
    rows = [
        {
            "client": client,
            "n": sizes[client],
            "mean": fmean(changes),
            "min": min(changes),
            "max": max(changes),
            "hurt": sum(change < 0 for change in changes),
            "seeds": len(changes),
        }
        for client, changes in tables.items()
    ]
    return sorted(rows, key=lambda row: (row["mean"], row["client"]))


def _list_changes_by_client(seeds: Sequence[Rows], column: str) -> dict[str, list[float]]:
    """Each client's change in every seed, of the clients that have one."""
    choice("column", column, PARTS)
    must(len(seeds) > 0, "seeds", "at least one", "none")
    _check_same_clients(seeds)
    tables = [{str(row["client"]): row[column] for row in rows} for rows in seeds]
    return {client: [t[client] for t in tables] for client in tables[0] if all(t[client] is not None for t in tables)}


def hurt_when(seeds: Sequence[Rows], *, column: str = "test") -> dict[str, list[str]]:
    """The clients hurt in every seed (``always``), in some (``sometimes``) and in none (``never``)."""
    clients: dict[str, list[str]] = {"always": [], "sometimes": [], "never": []}
    for row in over_seeds(seeds, column=column):
        when = "always" if row["hurt"] == row["seeds"] else "sometimes" if row["hurt"] else "never"
        clients[when].append(row["client"])
    return clients


def share_hurt(seeds: Sequence[Rows], *, column: str = "test", level: float = 0.95) -> Interval:
    """The share of clients that lost, with an interval over seeds."""
    return interval([fmean(change < 0 for change in one) for one in _list_changes_by_seed(seeds, column)], level=level)


def _list_changes_by_seed(seeds: Sequence[Rows], column: str) -> list[list[float]]:
    """The changes of all clients that have one, for each seed."""
    changes = [list(one) for one in zip(*_list_changes_by_client(seeds, column).values(), strict=True)]
    must(len(changes) > 0, "seeds", f"ones with a client that has {column} rows", "none")
    return changes


def sweep(values: Mapping[object, Sequence[Rows]], *, column: str = "test", level: float = 0.95) -> list[Row]:
    """How an option affects the changes (Figures 7 and 10): a row for each of its values.

    ``values`` maps a value of the option to the change rows of each seed. A row has the ``mean`` over clients and
    its interval over seeds (``mean_low``, ``mean_high``), the mean over seeds of the ``median`` and of the ``spread``
    (the standard deviation over clients), and the share of clients hurt with its interval (``share_hurt``,
    ``share_hurt_low``, ``share_hurt_high``).
    """
    rows = []
    for value, seeds in values.items():
        by_seed = _list_changes_by_seed(seeds, column)
        average = interval([fmean(one) for one in by_seed], level=level)
        hurt = share_hurt(seeds, column=column, level=level)
        rows.append(
            {
                "value": value,
                "mean": average.mean,
                "mean_low": average.low,
                "mean_high": average.high,
                "median": fmean(median(one) for one in by_seed),
                "spread": fmean(pstdev(one) for one in by_seed),
                "share_hurt": hurt.mean,
                "share_hurt_low": hurt.low,
                "share_hurt_high": hurt.high,
                "seeds": average.seeds,
            }
        )
    return rows


def by_size(seeds: Sequence[Rows], *, column: str = "test", level: float = 0.95) -> list[Row]:
    """The rows of ``sweep`` for the clients with at most the median number of training rows, and for the others.

    Section 4.2 says that both the losses and the largest gains are mostly those of clients with few rows.
    """
    must(len(seeds) > 0, "seeds", "at least one", "none")
    cut = median(int(row["n"]) for row in seeds[0])
    halves: dict[object, list[Rows]] = {
        f"n <= {cut:g}": [[row for row in rows if row["n"] <= cut] for rows in seeds],
        f"n > {cut:g}": [[row for row in rows if row["n"] > cut] for rows in seeds],
    }
    return sweep({name: some for name, some in halves.items() if any(some)}, column=column, level=level)
