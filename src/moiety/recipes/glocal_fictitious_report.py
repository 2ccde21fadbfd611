"""The page of ``glocal_fictitious``: where each way ends, claims with verdicts, and the two figures."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from moiety.analysis.intervals import HOLDS, claim, interval
from moiety.recipes.glocal_fictitious import ABOUT, LABELS, NOTES
from moiety.recipes.glocal_trials import Result
from moiety.recipes.partial_report import head
from moiety.reports.tables import markdown

Row = dict[str, Any]
NEAR = 0.05
"""How near to (0, 1) counts as having found it."""


def report(name: str, asked: Mapping[str, Any], cells: Mapping[str, Result], out: Path | None) -> tuple[str, str]:
    """The page and its closing sentence."""
    rows = [_ending(key, found) for key, found in cells.items()]
    claims = [_judged(key, found) for key, found in cells.items()]
    steps, count = cells["sgd"]["rounds"], len(cells["sgd"]["losses"])
    spans = f"{count} rollouts; in brackets is the 95% interval of the mean over rollouts (Student's t)."
    known = head(name, asked, [{"seconds": sum(c["seconds"] for c in cells.values())}], f"{ABOUT} {spans}")
    ends = {"row": "", "first": "w^g, first (best: 0)", "second": "w^g, second (best: 1)", "loss": "average loss"}
    judged = {"row": "claim", "verdict": "verdict", "shown": "distance to (0, 1)", "claimed": "claimed"}
    parts = [known.pop("page"), f"## After {steps:,} steps", markdown(rows, columns=ends)]
    parts += ["## Claims", markdown(claims, columns=judged)]
    parts += ["\n".join(["## Notes", "", *(f"- {note}" for note in NOTES)])]
    page = "\n\n".join(parts)
    if out is not None:
        from moiety.files import write_file

        page += _figures(cells, out)
        flat = [{**r, "paper": None} for r in (*rows, *claims)]
        whole = {**known, "about": ABOUT, "notes": list(NOTES), "rows": flat}
        write_file(out / "table.json", (json.dumps(whole, indent=1, allow_nan=False) + "\n").encode())
        write_file(out / "table.md", (page + "\n").encode())
    found = [LABELS[key] for key, c in zip(cells, claims, strict=True) if c["verdict"] == HOLDS]
    verb = "reach" if len(found) > 1 else "reaches"
    return page, f"{' and '.join(found) or 'None'} {verb} (0, 1) within {steps:,} steps."


def _distances(found: Result) -> list[float]:
    return [float(np.linalg.norm(np.array(each[-1]) - [0, 1])) for each in found["shared"]]


def _ending(key: str, found: Result) -> Row:
    last = np.array([each[-1] for each in found["shared"]])
    losses = [each[-1] for each in found["losses"]]
    both = interval(list(last[:, 0])), interval(list(last[:, 1])), interval(losses)
    row: Row = {"row": LABELS[key], "ours": float(np.mean(_distances(found))), "each": _distances(found)}
    return row | {k: _shown(i) for k, i in zip(("first", "second", "loss"), both, strict=True)}


def _judged(key: str, found: Result) -> Row:
    """Whether it is there for certain: the whole interval of its mean distance is below ``NEAR``."""
    gaps = [NEAR - gap for gap in _distances(found)]
    verdict = claim(f"{LABELS[key]} reaches (0, 1)", gaps).verdict
    made = interval(_distances(found))
    text = f"{LABELS[key]} reaches (0, 1) on the shared side"
    span = None if made.low is None else [made.low, made.high]
    said = {"row": text, "verdict": verdict, "ours": made.mean, "interval": span}
    return {**said, "shown": _shown(made), "claimed": f"< {NEAR}"}


def _shown(found: Any) -> str:
    return f"{found.mean:.4f}" + ("" if found.low is None else f" [{found.low:.4f}, {found.high:.4f}]")


def _lines(values: list[list[float]], shown: list[int]) -> list[Row]:
    """The mean over rollouts with its interval, at every round shown."""
    made = []
    for k, at in enumerate(shown):
        found = interval([each[k] for each in values])
        made.append({"x": float(np.log10(at)), "mean": found.mean, "low": found.low, "high": found.high})
    return made


def _figures(cells: Mapping[str, Result], out: Path) -> str:
    if importlib.util.find_spec("matplotlib") is None:
        return "\n\nThere are no figures: they need `pip install 'moiety[report]'`."
    from moiety.reports.figures import save
    from moiety.reports.lines import bands, log_panels

    losses = {
        LABELS[key]: list(zip(found["shown"], np.mean(found["losses"], axis=0).tolist(), strict=True))
        for key, found in cells.items()
    }
    save(log_panels({"mean over rollouts": losses}, x="steps", y="average loss so far", columns=1), out / "figure3.png")
    moves = {}
    for key, found in cells.items():
        parts = {
            f"{word} component": [[w[axis] for w in each] for each in found["shared"]]
            for axis, word in enumerate(("first", "second"))
        }
        moves[LABELS[key]] = {label: _lines(values, found["shown"]) for label, values in parts.items()}
    save(bands(moves, x="steps (log10)", y="w^g"), out / "figure4.png")
    return "\n\n## Figures\n\n![Average loss](figure3.png)\n\n![The shared part on its way](figure4.png)"
