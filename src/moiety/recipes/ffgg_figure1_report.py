"""The lines of ``ffgg_figure1`` as a figure, a page of Markdown and JSON, with a verdict for what the paper says."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moiety.recipes import ffgg_figure1_limits as limits
from moiety.recipes.ffgg_figure1 import NAME, OTHERS, PULL, Drawn, Plan
from moiety.recipes.ffgg_figure1_problem import Quadratics
from moiety.recipes.partial_report import head

Row = dict[str, Any]

FIGURE = "figure1.png"
ABOUT = (
    'Mishchenko et al. 2023, "Partially Personalized Federated Learning: Breaking the Curse of Data Heterogeneity",'
    " Figure 1, which the paper shows without numbers. The error is the mean of f_m over clients, each at the model"
    " that it would use: theta and the w that its tau steps find for FFGG, the one shared model for SCAFFOLD and Local"
    " GD, the client's own for L2GD. The least possible is 0. *In the end* is where a line leads after endless rounds,"
    " by linear algebra and not by a run; for L2GD it is the minimiser of its problem, around which its coin keeps it:"
    " after a run of local steps, as here, its error may be less. F and theta* are those of"
    " the paper; for L2GD they are taken at the mean of all models."
)
NOTES = [
    "The paper does not say how b_m and y_m are made: here one theta* and for each client a w_m*, uniform on [0, 1],"
    " solve everything exactly (the paper's Assumption 2). Both readings were tried before one was chosen. With b_m and"
    " y_m uniform instead, the least error is not 0,"
    " and models of the clients' own (L2GD) have less loss than any shared theta allows.",
    "Nor its error measure, its number of rounds, and its starts: here as above, theta = 0 and w = 0 (SciPy's start).",
    "FFGG's step size in theta is 1 / L, L the cocoercivity constant itself (the largest norm of the linear F_m, half"
    " of Example 1's bound here); in Algorithm 2 it is 1 over the largest curvature in w.",
    "Conjugate gradients take exactly tau steps, without SciPy's tolerance.",
    "L_f is the largest curvature of any f_m. The step size of L2GD is the largest that its own theory has, which is"
    " the inverse of what section 3.2 prints.",
    "Panels (b) to (d) are judged by the mean error over the last quarter of the points, since a single point of L2GD"
    " is a matter of its coin; *noise* is two standard errors of its mean, and within it nothing is decided.",
    "A round of L2GD is one communication, with the number of local steps drawn (1 / p = tau in the mean).",
    "Products of the rows are made once: all methods see f_m through its (d + e) x (d + e) matrix, in float64.",
]


def report(
    asked: Mapping[str, Any], plan: Plan, found: Quadratics, made: Mapping[str, Drawn], out: Path | None
) -> tuple[str, str]:
    """The page and its closing sentence; with a folder the page, the numbers and the figure are written there."""
    from moiety.reports.tables import markdown

    rows, verdicts = table(plan, found, made), claims(plan, found, made)
    known = head(NAME, asked, [{"seconds": sum(line.seconds for line in made.values())}], ABOUT)
    shown = {"row": "", "rounds": "rounds", "ours": "error", "end": "in the end"}
    shown |= {"operator": "norm of F, squared", "distance": "distance to theta*, squared", "seconds": "seconds"}
    said = {"row": "claim", "verdict": "verdict", "ours": "error", "against": "against", "noise": "noise"}
    page = "\n\n".join(
        [
            known.pop("page"),
            _constants(plan, found),
            "## Errors\n\n" + markdown([_short(row) for row in rows], columns=shown),
            "## Claims\n\n" + markdown([_short(row) for row in verdicts], columns=said),
            "## Decided here\n\n" + "\n".join(f"- {note}" for note in NOTES),
        ]
    )
    if out is not None:
        from moiety.files import write_file

        page += "\n\n" + _figure(plan, made, out)
        points = {name: line.points for name, line in made.items()}
        whole = {**known, "notes": NOTES, "rows": [*rows, *verdicts], "points": points}
        write_file(out / "table.json", (json.dumps(whole, indent=1, allow_nan=False) + "\n").encode())
        write_file(out / "table.md", (page + "\n").encode())
    return page, sentence(verdicts)


def table(plan: Plan, found: Quadratics, made: Mapping[str, Drawn]) -> list[Row]:
    """A row for each line: its error after the last round, and where it leads."""
    rows = []
    for name, line in made.items():
        what = "CG steps" if name.startswith("cg-") else "local steps"
        numbers = {"rounds": line.points[-1][0], "ours": line.error, "end": _end(name, line, found), "paper": None}
        numbers |= {"operator": line.operator, "distance": line.distance, "seconds": line.seconds}
        rows.append({"row": f"{line.method}, {line.tau} {what}", "line": name, **numbers, "verdict": None})
    return rows


def _end(name: str, line: Drawn, found: Quadratics) -> float | None:
    if name.startswith("cg-"):
        return None
    if line.method == "FFGG":
        return limits.ffgg(found, line.tau)
    if line.method == "SCAFFOLD":
        return limits.one_model(found)
    if line.method == "L2GD":
        return limits.l2gd(found, PULL)
    return limits.local_gd(found, 1 / (found.smooth() * line.tau), line.tau)


def claims(plan: Plan, found: Quadratics, made: Mapping[str, Drawn]) -> list[Row]:
    """What sections 3.1 and 3.2 say, each with both numbers. Only L2GD has chance in it: its coin."""
    step, last = 1 / found.cocoercive(), plan.first_rounds
    exact = limits.exact_ffgg(found, step, last)
    least, most = plan.inner[0], plan.inner[-2:]
    rows = [_claim(f"FFGG with {least} CG steps reaches an error of 1e-4", made[f"cg-{least}"].error, 1e-4)]
    for tau in most:
        text = f"FFGG with {tau} CG steps is as good as with exact solutions (by 1%), which end at 0"
        rows.append(_claim(text, made[f"cg-{tau}"].error, 1.01 * exact))
    text = f"FFGG gains by CG steps: {most[0]} instead of {least}"
    rows.append(_claim(text, made[f"cg-{most[0]}"].error, made[f"cg-{least}"].error))
    for tau in plan.local:
        ours, rounds = made[f"ffgg-{tau}"].late, f"last quarter of {plan.rounds} rounds"
        for method in OTHERS:
            other = made[f"{method.lower().replace(' ', '-')}-{tau}"]
            text = f"FFGG is ahead of {method}: {tau} local steps, {rounds}"
            rows.append(_claim(text, ours, other.late, other.noise if method == "L2GD" else 0.0))
    for tau in plan.local:
        text = f"FFGG ends below the minimiser of L2GD's problem: {tau} local steps, endless rounds"
        rows.append(_claim(text, limits.ffgg(found, tau), limits.l2gd(found, PULL)))
    for few, many in zip(plan.local, plan.local[1:], strict=False):
        text = f"FFGG gains by local steps: {many} instead of {few}"
        rows.append(_claim(text, made[f"ffgg-{many}"].error, made[f"ffgg-{few}"].error))
    return rows


def _claim(text: str, ours: float, against: float, noise: float = 0.0) -> Row:
    verdict = "holds" if ours < against else "does not hold"
    if abs(ours - against) < noise:
        verdict = "not decided at this scale"
    return {"row": text, "paper": None, "ours": ours, "against": against, "noise": noise, "verdict": verdict}


def _short(row: Row) -> Row:
    """Numbers over many powers of ten, as they are written."""
    return {k: f"{v:.3g}" if isinstance(v, float) else v for k, v in row.items()}


def _constants(plan: Plan, found: Quadratics) -> str:
    import numpy as np

    size = plan.size
    bulk = np.linalg.eigvalsh(found.gram[:, found.d :, found.d :])[:, :-1]
    printed = found.smooth() / (2 * size.clients**2)
    return (
        f"{size.clients} clients of {size.rows:,} rows, {size.shared} shared and {size.personal} personal dimensions."
        f" L = {found.cocoercive():.4g} (Assumption 1), L_f = {found.smooth():.4g}, curvature in w up to"
        f" {found.smooth_in_w():.4g} in one direction and between {bulk.min():.3g} and {bulk.max():.3g} in the"
        " others: the narrower this range, the fewer steps of conjugate gradients are enough. With L2GD's step size as"
        f" printed a local step would be at least {printed:.3g} times the gradient,"
        f" {printed * found.smooth():.3g} times 1 / L_f; beyond 2 it diverges."
    )


def _figure(plan: Plan, made: Mapping[str, Drawn], out: Path) -> str:
    """The figure, where matplotlib is at hand, as it stands on the page."""
    if importlib.util.find_spec("matplotlib") is None:
        return "Figures need matplotlib: pip install 'moiety[report]'."
    from moiety.reports.figures import save
    from moiety.reports.lines import log_panels

    shown = {
        "(a) FFGG by steps of conjugate gradients": {f"{tau} steps": made[f"cg-{tau}"].points for tau in plan.inner}
    }
    for letter, tau in zip("bcdefgh", plan.local, strict=False):
        names = {m: f"{m.lower().replace(' ', '-')}-{tau}" for m in ("FFGG", *OTHERS)}
        shown[f"({letter}) {tau} local steps"] = {m: made[name].points for m, name in names.items()}
    save(log_panels(shown, y="mean of f_m over clients"), out / FIGURE)
    return f"## Figure\n\n![Errors over rounds]({FIGURE})"


def sentence(verdicts: list[Row]) -> str:
    """What holds, in one sentence."""
    held = sum(row["verdict"] == "holds" for row in verdicts)
    lost = [row["row"] for row in verdicts if row["verdict"] != "holds"]
    return f"{held} of {len(verdicts)} claims hold" + (f"; not, or not decided: {'; '.join(lost)}." if lost else ".")
