"""The figures of Pillutla et al. 2022 for one setting, as PNG files in its folder."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from moiety.recipes.partial_summary import Found
from moiety.recipes.setting import FULL
from moiety.recipes.steps import swept_name
from moiety.reports.words import per_cent

if TYPE_CHECKING:
    from moiety.reports.figures import Figure


def figures(found: Found) -> list[str]:
    """Draw them all; a line of Markdown for each."""
    if found.folder is None:
        return []
    if importlib.util.find_spec("matplotlib") is None:
        return ["- none were drawn: they need the extra `report`, as in `pip install moiety[report]`"]
    from moiety.reports.figures import save

    lines = []
    for name, title, figure in _drawn(found):
        save(figure, found.folder / f"{name}.png")
        lines.append(f"- [{found.setting.name}: {title}]({found.setting.name}/{name}.png)")
    return lines


def _drawn(found: Found) -> Iterator[tuple[str, str, Figure]]:
    from moiety.analysis.harm import over_seeds
    from moiety.reports.figures import accuracy_against_parameters, scatter_change, seed_bands, violins

    share = per_cent(found.first.metric)
    how: dict[str, Any] = {"unit": "pp" if share else found.first.metric, "scale": 100 if share else 1}
    best = found.best([f"{split}-fedalt-final" for split in found.setting.splits])[0]
    steps = {"full, finetuned": f"{FULL}-finetune"}
    steps |= {f"{split}, FedAlt": f"{split}-fedalt-final" for split in found.setting.splits}

    title = "change against FedAvg by the number of personal parameters (Figure 4)"
    yield "figure4", title, accuracy_against_parameters(_by_parameters(found), **how, title=found.setting.name)

    title = "change of every client by its training rows, first seed (Figures 5 and 8)"
    chosen = {"full, finetuned": steps["full, finetuned"], f"{best.split('-')[0]}, FedAlt": best}
    yield "figure5", title, scatter_change({n: found.changes(s)[0] for n, s in chosen.items()}, **how)

    for column in ("train", "test"):
        numbers = {n: [row[column] for rows in found.changes(s) for row in rows] for n, s in steps.items()}
        title = f"change of clients on {column} rows, all seeds (Figure 7)"
        yield f"figure7-{column}", title, violins(numbers, label="personal part", **how)

    title = f"change of every client over seeds, {best.split('-')[0]} with FedAlt (Figure 11)"
    yield "figure11", title, seed_bands(over_seeds(found.changes(best)), **how)

    for sweep in found.setting.stages.sweeps:
        swept = {f"{value:g}": found.changes(swept_name(found.setting.stages, sweep, value)) for value in sweep.values}
        numbers = {value: [row["test"] for rows in seeds for row in rows] for value, seeds in swept.items()}
        title = f"change of clients by {sweep.option}, {sweep.split} finetuned (Figure 10)"
        yield f"figure10-{sweep.option}", title, violins(numbers, label=sweep.option, **how)


def _by_parameters(found: Found) -> list[dict[str, Any]]:
    from moiety.analysis.effects import against_parameters
    from moiety.analysis.memory import EVERYTHING

    plain, parts = found.rows("fedavg"), {}
    for row in found.memory:
        personal, name = row["personal"], row["row"]
        step = f"{FULL}-finetune" if name == EVERYTHING else f"{name}-fedalt-final"
        if personal:
            total = personal if name == EVERYTHING else personal + row["shared"]
            parts[name] = (personal, total, found.rows(step), plain)
    return against_parameters(parts, higher_is_better=found.higher_is_better)
