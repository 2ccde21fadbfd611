"""What ``ffgg_async`` found, as a page of Markdown, as JSON and as curves, with verdicts."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moiety.recipes.ffgg_async import FORMS, METHODS, NAME, Course, Courses, Trial
from moiety.recipes.partial_report import head

if TYPE_CHECKING:
    from moiety.data import FederatedData

Row = dict[str, Any]

FIGURE = "curves.png"
TITLES = {"ffgg": "FFGG", "fedavg": "FedAvg"}
ABOUT = (
    'Mishchenko et al. 2023, "Partially Personalized Federated Learning: Breaking the Curse of Data Heterogeneity",'
    " Algorithm 3; the paper has a theorem on it (Theorem 7) and no experiment, so no number of its own stands here."
)


def report(
    asked: Mapping[str, Any], made: Trial, data: FederatedData, courses: Courses, out: Path | None
) -> tuple[str, str]:
    """The page and its closing sentence; with a folder the page, the numbers and the figure are written there."""
    rows = [row for method in METHODS for row in judged(made, data, courses, method)]
    known = head(NAME, asked, [{"seconds": sum(course.seconds for course in courses.values())}], ABOUT)
    page = "\n\n".join([known.pop("page"), *_parts(made, courses, rows)])
    if out is not None:
        from moiety.files import write_file

        page += "\n\n" + _figure(made, courses, out)
        whole = {**known, "title": made.title, "margin": made.margin, "share": made.share, "notes": list(made.notes)}
        whole |= {"rows": rows, "curves": _lines(courses)}
        write_file(out / "table.json", (json.dumps(whole, indent=1, allow_nan=False) + "\n").encode())
        write_file(out / "table.md", (page + "\n").encode())
    return page, sentence(rows)


def judged(made: Trial, data: FederatedData, courses: Courses, method: str) -> list[Row]:
    """The rows of one method: accuracy in the end, of all and of slow clients, and virtual time to accuracy."""
    from moiety.analysis.intervals import FAILS, claim, table_row

    seeds = sorted({seed for _, _, seed in courses})
    waits, goes = ([courses[method, form, seed] for seed in seeds] for form in FORMS)
    name, margin = TITLES[method], 100 * made.margin
    rows = [
        table_row(f"{name}, {form}: accuracy (%)", [each.scores[-1] for each in found], scale=100)
        for form, found in zip(FORMS, (waits, goes), strict=True)
    ]
    lost = [100 * (b.scores[-1] - a.scores[-1]) for a, b in zip(waits, goes, strict=True)]
    same = claim("", lost, within=margin).verdict
    rows.append(table_row(f"{name}: asynchronous less synchronous (points), within {margin:g}", lost, verdict=same))
    slow = [
        100 * (_slow(made, data, b, seed) - _slow(made, data, a, seed))
        for a, b, seed in zip(waits, goes, seeds, strict=True)
    ]
    same = claim("", slow, within=margin).verdict
    rows.append(table_row(f"{name}: the same for the slowest quarter, within {margin:g}", slow, verdict=same))
    target = [made.share * each.scores[-1] for each in waits]
    first = [each.reached(score) for each, score in zip(waits, target, strict=True)]
    second = [each.reached(score) for each, score in zip(goes, target, strict=True)]
    for form, found in zip(FORMS, (first, second), strict=True):
        label = f"{name}, {form}: virtual seconds to {made.share:.0%} of the synchronous end"
        known = [t for t in found if t is not None]
        rows.append(_times(label, known) if known else {"row": label, "paper": None, "ours": None, "seeds": 0})
    label = f"{name}: times sooner, above 1"
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if len(pairs) < len(seeds):  # the asynchronous form never came so far
        return [*rows, {"row": label, "paper": None, "ours": None, "seeds": len(pairs), "verdict": FAILS}]
    verdict = claim("", [math.log(a / b) for a, b in pairs]).verdict
    return [*rows, _times(label, [a / b for a, b in pairs], verdict=verdict)]


def _times(row: str, values: Sequence[float], *, verdict: str | None = None) -> Row:
    """A row of times, or of ratios of times: their geometric mean, with the interval of the mean logarithm."""
    from moiety.analysis.intervals import table_row

    found = table_row(row, [math.log(value) for value in values], verdict=verdict)
    turned = {key: None if found[key] is None else math.exp(found[key]) for key in ("ours", "low", "high")}
    return {**found, **turned, "std": None}


def _slow(made: Trial, data: FederatedData, course: Course, seed: int) -> float:
    """The mean accuracy of the slowest quarter of clients, by what their first hundred turns would take."""
    import numpy as np

    turns = [
        np.mean([made.compute.of(seed, "compute", client, str(name), turn) for turn in range(100)])
        for client, name in enumerate(data.ids)
    ]
    slowest = {str(data.ids[client]) for client in np.argsort(turns)[-max(1, len(turns) // 4) :]}
    own = [row for row in course.rows if str(row["client"]) in slowest]
    return float(np.average([row["metric"] for row in own], weights=[row["n_test"] for row in own]))


def sentence(rows: Sequence[Row]) -> str:
    """How much sooner, in one line."""
    found = []
    for title in TITLES.values():
        (row,) = [row for row in rows if row["row"].startswith(f"{title}: times sooner")]
        much = "did not get as far" if row["ours"] is None else f"was {row['ours']:.1f} times as fast"
        found.append(f"asynchronous {title} {much} as rounds that wait ({row['verdict']})")
    return "; ".join(found) + "."


def _lines(courses: Courses) -> list[Row]:
    return [
        {"method": m, "form": f, "seed": s, "time": c.times, "accuracy": c.scores, "staleness": c.staleness}
        for (m, f, s), c in courses.items()
    ]


def _parts(made: Trial, courses: Courses, rows: Sequence[Row]) -> list[str]:
    from moiety.reports.tables import markdown

    updates = made.rounds * made.active
    stale = [s for (_, form, _), course in courses.items() if form == "asynchronous" for s in course.staleness]
    about = (
        f"{made.active} clients are at work at a time: as a cohort that is waited for in each of {made.rounds} rounds,"
        f" or one by one as they arrive, {updates} client updates either way. Local work takes a time drawn from a"
        f" Pareto distribution (table `{json.dumps(made.compute.spec)}`), each link one from"
        f" `{json.dumps(made.link.spec)}`. In FFGG the output layer is personal; FedAvg has nothing personal. A score"
        " is the mean test accuracy of the clients' models. An asynchronous update was computed"
        f" {sum(stale) / max(1, len(stale)):.1f} steps of the server before it arrived, on average."
    )
    verdicts = (
        "Ours is the mean over seeds, with its 95% interval (Student's t). *holds* and *does not hold*: the whole"
        " interval says so. Of times, and of how many times sooner, it is the geometric mean, with the interval of its"
        " logarithm; sooner does not hold where some seed never got so far."
    )
    notes = ["\n".join(["## Notes", "", *(f"- {note}" for note in made.notes)])] if made.notes else []
    return [made.title, about, "## Accuracy and virtual time", verdicts, markdown(rows), *notes]


def _figure(made: Trial, courses: Courses, out: Path) -> str:
    if importlib.util.find_spec("matplotlib") is None:
        return "No figure was drawn: it needs the extra `report`, as in `pip install moiety[report]`."
    from moiety.reports.figures import save
    from moiety.reports.lines import courses as drawn

    series = {
        f"{TITLES[method]}, {form}": [
            (course.times, course.scores) for (m, f, _), course in courses.items() if (m, f) == (method, form)
        ]
        for method in METHODS
        for form in FORMS
    }
    figure = drawn(series, across="virtual seconds", label="accuracy (%)", scale=100)
    save(figure, out / FIGURE)
    return f"![Accuracy along virtual time, a line for every seed]({FIGURE})"
