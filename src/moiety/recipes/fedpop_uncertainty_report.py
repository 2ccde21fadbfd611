"""What ``fedpop_uncertainty`` found as figures, a page of Markdown and JSON, with a verdict for each claim."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moiety.recipes.fedpop_images import FEDPOP, TUNED
from moiety.recipes.fedpop_people_report import together
from moiety.recipes.fedpop_uncertainty import NAME, SHOWN, Plan
from moiety.recipes.partial_report import head

Row = dict[str, Any]

MEASURES = {
    "accuracy": "accuracy (%)",
    "ece": "calibration error (%)",
    "client_ece": "mean of the clients' own (%)",
    "nll": "negative log-likelihood",
    "brier": "Brier score",
    "auroc": "AUROC of entropy (%)",
}
SHARES = ("accuracy", "ece", "client_ece", "auroc")
CLAIMS = {"ece": (-1, "is better calibrated than"), "auroc": (1, "tells strange pictures better than")}
ABOUT = (
    'Kotelevskii et al. 2022, "FedPop: A Bayesian Approach for Personalised Federated Learning", Figures 4 and S9,'
    " which the paper shows for single clients and without others beside them. In brackets is the 95% interval of the"
    " mean over seeds (Student's t); a claim is judged by the differences of the same seed."
)
NOTES = (
    "Predictions of FedSOUL are averaged over its samples, drawn anew at the parameters that training ended with;"
    " FedRep has one model a client, that of its last turn.",
    "The calibration error is over all pictures of the clients looked at; a client's own, of few pictures, is larger by"
    " chance. AUROC is the mean over clients: 50 is chance.",
    TUNED,
    "At scale laptop pictures are averaged to half their side, clients have 50 of them, and rounds are few.",
    "CIFAR-10 against SVHN (Figure S8) is left out: SVHN is not among the sources.",
)


def report(
    asked: Mapping[str, Any], plan: Plan, found: Mapping[str, Sequence[Row]], seconds: float, out: Path | None
) -> tuple[str, str]:
    """The page and its closing sentence; with a folder the page, the numbers and the figures are written there."""
    from moiety.reports.tables import markdown

    rows, verdicts = table(plan, found), claims(plan, found)
    known = head(NAME, asked, [{"seconds": seconds}], ABOUT)
    size = (
        f"{plan.rounds} rounds, {plan.cohort} clients a round, {plan.seeds} seeds; {plan.looked_at} clients looked at."
    )
    parts = [known.pop("page"), size]
    for setting in plan.settings:
        some = [row for row in rows if row["setting"] == setting.name]
        parts.append(f"## {setting.shown}\n\n" + markdown(_wide(some), columns={"method": "", **_known(some)}))
    said = {"row": "claim", "ours": "difference", "interval": "95% interval over seeds", "verdict": "verdict"}
    parts.append("## Claims\n\n" + markdown(verdicts, columns=said, digits=3))
    parts.append("## Decided here\n\n" + "\n".join(f"- {note}" for note in NOTES))
    page = "\n\n".join(parts)
    if out is not None:
        from moiety.files import write_file

        page += "\n\n" + _figures(plan, found, out)
        whole = {**known, "notes": list(NOTES), "rows": [*rows, *verdicts]}
        write_file(out / "table.json", (json.dumps(whole, indent=1, allow_nan=False) + "\n").encode())
        write_file(out / "table.md", (page + "\n").encode())
    return page, sentence(verdicts)


def table(plan: Plan, found: Mapping[str, Sequence[Row]]) -> list[Row]:
    """A row for each setting, method and measure."""
    from moiety.analysis.intervals import table_row

    made = []
    for setting in plan.settings:
        for method in SHOWN:
            for measure, name in MEASURES.items():
                values = [seed[method]["scores"].get(measure) for seed in found[setting.name]]
                if None not in values:
                    scale = 100 if measure in SHARES else 1
                    row = table_row(f"{setting.shown}, {method}, {name}", values, scale=scale)
                    made.append({"setting": setting.name, "method": method, "measure": measure, **row})
    return made


def claims(plan: Plan, found: Mapping[str, Sequence[Row]]) -> list[Row]:
    """That FedSOUL is better calibrated than FedRep, and tells strange pictures better, also than chance."""
    from moiety.analysis.intervals import claim, table_row

    made = []
    for setting in plan.settings:
        scores = {m: [seed[m]["scores"] for seed in found[setting.name]] for m in SHOWN}
        for measure, (sign, words) in CLAIMS.items():
            if measure in scores[FEDPOP][0]:
                pairs = zip(scores[FEDPOP], scores[SHOWN[1]], strict=True)
                ahead = [sign * (a[measure] - b[measure]) for a, b in pairs]
                name = f"{setting.shown}: {FEDPOP} {words} {SHOWN[1]}"
                made.append({**table_row(name, ahead, verdict=claim(name, ahead).verdict), "setting": setting.name})
        if "auroc" in scores[FEDPOP][0]:
            above = [a["auroc"] - 0.5 for a in scores[FEDPOP]]
            name = f"{setting.shown}: {FEDPOP} tells strange pictures better than chance"
            made.append({**table_row(name, above, verdict=claim(name, above).verdict), "setting": setting.name})
    return made


def sentence(verdicts: Sequence[Row]) -> str:
    """What the page shows, in one line."""
    count = {word: sum(row["verdict"] == word for row in verdicts) for word in ("holds", "does not hold")}
    return f"Of {len(verdicts)} claims {count['holds']} hold and {count['does not hold']} do not."


def _known(rows: Sequence[Row]) -> dict[str, str]:
    return {key: text for key, text in MEASURES.items() if any(row["measure"] == key for row in rows)}


def _wide(rows: Sequence[Row]) -> list[Row]:
    """One line for each method, a column for each measure."""
    lines: dict[str, Row] = {}
    for row in rows:
        digits = 1 if row["measure"] in SHARES else 2
        bracket = "" if row["low"] is None else f" ({row['low']:.{digits}f} to {row['high']:.{digits}f})"
        line = lines.setdefault(row["method"], {"method": row["method"]})
        line[row["measure"]] = f"{row['ours']:.{digits}f}{bracket}"
    return list(lines.values())


def _figures(plan: Plan, found: Mapping[str, Sequence[Row]], out: Path) -> str:
    if importlib.util.find_spec("matplotlib") is None:
        return "The figures need matplotlib: pip install 'moiety[report]'."
    from moiety.reports.figures import save
    from moiety.reports.reliability import densities, reliability_diagram

    lines = []
    for setting in plan.settings:
        seeds = found[setting.name]
        shown = {method: together([seed[method]["bins"] for seed in seeds]) for method in SHOWN}
        save(reliability_diagram(shown, title=setting.shown), out / f"reliability-{setting.name}.png")
        lines.append(f"![reliability](reliability-{setting.name}.png)")
        curves = seeds[0][FEDPOP].get("entropies")
        if curves:
            named = {f"client {i + 1}": kinds for i, kinds in enumerate(curves)}
            save(densities(named, title=f"{setting.shown}: {FEDPOP}"), out / f"entropy-{setting.name}.png")
            lines.append(f"![entropy](entropy-{setting.name}.png)")
    return "\n\n".join(lines)
