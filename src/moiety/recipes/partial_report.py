"""The tables of ``partial_table`` as a page of Markdown and as JSON, the paper's numbers beside ours."""

from __future__ import annotations

import datetime
import json
import platform
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moiety.recipes.base import ONLY_RUNS
from moiety.recipes.partial_summary import BASELINES, COLUMNS, Found, summary
from moiety.recipes.setting import FULL, Paper
from moiety.reports.words import per_cent

Table = dict[str, Any]
ABOUT = (
    'Pillutla et al. 2022, "Federated Learning with Partial Model Personalization", Tables 2 to 4 and 10 to 13. All'
    " runs of a seed start from the same run of FedAvg. A score is the mean over clients, weighted by their test"
    " rows, or by the words in these where words are counted; in brackets is the 95% interval of its mean over"
    " seeds (Student's t). The paper's numbers are of another data set, named in brackets. Rates are chosen on"
    " validation rows of the first seed, from grids that were narrowed before, like the sizes, by validation scores"
    " of wider ones. What is called the best split, the best full personalisation or the best value of a sweep is"
    " so by the test scores shown here, which favours it."
)


def report(recipe: str, asked: Mapping[str, Any], found: Sequence[Found], out: Path | None) -> tuple[str, str]:
    """The page and its closing sentence; with a folder the page, the numbers and the figures are written there."""
    tables = [summary(each) for each in found]
    made = head(recipe, asked, tables)
    page = "\n\n".join([made["page"], *(section(t, each) for t, each in zip(tables, found, strict=True))])
    if len(tables) > 1:
        page += "\n\n" + across(tables)
    if out is not None:
        from moiety.engines.checkpoint import write_file
        from moiety.recipes.partial_figures import figures

        drawn = [line for each in found for line in figures(each)]
        page += "\n\n" + "\n".join(["## Figures", "", *drawn])
        flat = [row for table, each in zip(tables, found, strict=True) for row in rows(table, each)]
        whole = {key: value for key, value in made.items() if key != "page"} | {"rows": flat, "settings": tables}
        write_file(out / "table.json", (json.dumps(whole, indent=1, allow_nan=False) + "\n").encode())
        write_file(out / "table.md", (page + "\n").encode())
    return page, sentence(tables)


def head(recipe: str, asked: Mapping[str, Any], tables: Sequence[Table], about: str = ABOUT) -> dict[str, Any]:
    """What was run, with what and when, and what it is about."""
    import numpy
    import torch

    from moiety import __version__

    words = ["moiety", "run", recipe, "--scale", asked["scale"]]
    words += [] if asked["rounds"] is None else ["--rounds", str(asked["rounds"])]
    words += ["--seed", str(asked["seed"])] if asked["seed"] else []
    versions = {"moiety": __version__, "torch": torch.__version__, "numpy": numpy.__version__}
    versions["Python"] = platform.python_version()
    date = datetime.date.today().isoformat()
    seconds = sum(table["seconds"] for table in tables)
    lines = [
        f"# {recipe}, scale {asked['scale']}",
        "",
        f"`{shlex.join(words)}`, {date}; {', '.join(f'{k} {v}' for k, v in versions.items())};"
        f" {seconds / 60:.1f} minutes in all.",
        "",
        *([ONLY_RUNS, ""] if asked["scale"] == "ci" else []),
        about,
    ]
    known = {"recipe": recipe, **asked, "command": shlex.join(words), "versions": versions, "date": date}
    return {**known, "page": "\n".join(lines)}


def rows(table: Table, found: Found) -> list[Table]:
    """One after the other: every score with the paper's number beside it, then every claim with its verdict."""
    paper, scale = found.setting.paper, _scale(table)
    theirs = {step: paper.baselines.get(name.lower()) for name, step in BASELINES.items()}
    for split, numbers in paper.table.items():
        theirs |= {step.format(split): number for step, number in zip(COLUMNS.values(), numbers, strict=True)}
    made = [(step, theirs.get(step), score, None, scale) for step, score in table["scores"].items()] + [
        (made["claim"], None, made, made["verdict"], 100 if "share" in made else scale) for made in table["claims"]
    ]
    return [
        {
            "setting": table["setting"],
            "row": name,
            "paper": number,
            "ours": times * each["mean"],
            "interval": None if each["low"] is None else [times * each["low"], times * each["high"]],
            "verdict": verdict,
        }
        for name, number, each, verdict, times in made
    ]


def section(table: Table, found: Found) -> str:
    """One setting: its tables, claims and notes."""
    unit = "per cent" if per_cent(table["metric"]) else "its own unit"
    better = "higher" if table["higher_is_better"] else "lower"
    seeds = ", ".join(map(str, table["seeds"]))
    name = table["metric"].replace("_", " ")
    intro = f"{table['title']} {table['clients']} clients; seeds {seeds}; {name} in {unit}, {better} is better."
    paper, split_names = found.setting.paper, list(found.setting.splits)
    parts = [f"## {table['setting']}", intro, _table4(table, paper, split_names), _baselines(table, paper)]
    parts += [
        "### Claims",
        _claims(table),
        "### Before the final finetuning (Table 12)",
        _final(table, paper, split_names),
    ]
    if found.setting.stages.stateless is not None:
        parts += ["### Clients without state (Table 13)", _stateless(table, paper, found.setting.stages.stateless)]
    parts += ["### Memory on one device (Table 10)", _memory(table, paper)]
    parts += ["### Who is hurt", _hurt(table, split_names)]
    for option, swept in table["sweeps"].items():
        parts += [f"### {option}, finetuning of {swept['split']} (Figure 10)", _swept(table, swept)]
    parts += ["### Learning rates", _rates(table)]
    parts += (
        ["\n".join(["### Notes", "", *(f"- {note}" for note in found.setting.notes)])] if found.setting.notes else []
    )
    return "\n\n".join(parts)


def _table4(table: Table, paper: Paper, splits: Sequence[str]) -> str:
    sizes = {row["row"]: row for row in table["memory"]}
    rows = []
    for split in splits:
        theirs = paper.table.get(split, (None, None, None))
        cells = []
        for step, other in zip(COLUMNS.values(), theirs, strict=True):
            cells += [_shown(table, step.format(split)), _plain(other)]
        personal = sizes[split]["personal"]
        rows.append([split, f"{personal:,} ({personal / (personal + sizes[split]['shared']):.2%})", *cells])
    headers = ["personal part", "personal parameters"]
    for column in COLUMNS:
        headers += [column, f"{column}, paper ({paper.task})"]
    return _table(headers, rows)


def _baselines(table: Table, paper: Paper) -> str:
    ours = ["here", *(_shown(table, step) for step in BASELINES.values())]
    theirs = [f"paper ({paper.task})", *(_plain(paper.baselines.get(name.lower())) for name in BASELINES)]
    return _table(["", *BASELINES], [ours, theirs])


def _claims(table: Table) -> str:
    rows = []
    for made in table["claims"]:
        shown = _share(made) if "share" in made else _interval(made, _scale(table), sign=True)
        claimed = made.get("share", "> 0")
        if "within" in made:
            claimed = f"within ±{_number(made['within'], table)}"
        elif "above" in made:
            claimed = f"> {_number(made['above'], table)}"
        rows.append([made["claim"], f"**{made['verdict']}**", shown, claimed])
    return _table(["claim", "verdict", "difference, or share", "claimed"], rows)


def _final(table: Table, paper: Paper, splits: Sequence[str]) -> str:
    found = {made["claim"]: made for made in table["claims"]}
    rows = []
    for split in splits:
        cells = []
        for at, method in enumerate(("FedAlt", "FedSim")):
            made = found[f"final finetuning changes {method} little: {split}"]
            theirs = paper.final[split][at] if split in paper.final else None
            cells += [
                _shown(table, f"{split}-{method.lower()}"),
                _interval(made, _scale(table), sign=True),
                _plain(theirs),
            ]
        rows.append([split, *cells])
    headers = ["personal part"]
    for method in ("FedAlt", "FedSim"):
        headers += [f"{method} before", "change by finetuning", f"change, paper ({paper.task})"]
    return _table(headers, rows)


def _stateless(table: Table, paper: Paper, split: str) -> str:
    theirs = paper.stateless.get(split, (None, None, None))
    steps = {"FT (part.)": "{}-finetune", "FedAlt": "{}-fedalt-stateless-final", "FedSim": "{}-fedsim-stateless-final"}
    ours = [f"{split}, here", *(_shown(table, step.format(split)) for step in steps.values())]
    return _table(["", *steps], [ours, [f"{split}, paper ({paper.task})", *map(_plain, theirs)]])


def _memory(table: Table, paper: Paper) -> str:
    keys = {"no personalisation": "none", "full personalisation": FULL}
    rows = []
    for row in table["memory"]:
        theirs = paper.memory.get(keys.get(row["row"], row["row"]))
        saving = f"{row['saving']:.0%}"
        rows.append([row["row"], f"{row['megabytes']:.2f}", saving, "-" if theirs is None else f"{theirs:g}"])
    return _table(["personal part", "megabytes", "saved against full", f"megabytes, paper ({paper.task})"], rows)


def _hurt(table: Table, splits: Sequence[str]) -> str:
    steps = {f"{column}, {split}": step.format(split) for split in splits for column, step in COLUMNS.items()}
    steps |= {name: step for name, step in BASELINES.items() if step != "fedavg"}
    rows = []
    for name, step in steps.items():
        score = table["scores"][step]
        when = score["hurt_when"]
        counts = [str(when[key]) for key in ("always", "sometimes", "never")]
        rows.append([name, _share(score["hurt"]), *counts])
    note = "Clients whose test score is worse than with FedAvg in the same seed; the last three columns count clients."
    return note + "\n\n" + _table(["", "share hurt", "in all seeds", "in some", "in none"], rows)


def _swept(table: Table, swept: Table) -> str:
    rows = []
    for row in swept["rows"]:
        change = {"mean": row["mean"], "low": row["mean_low"], "high": row["mean_high"]}
        hurt = {"mean": row["share_hurt"], "low": row["share_hurt_low"], "high": row["share_hurt_high"]}
        scale = _scale(table)
        shown = [_interval(change, scale, sign=True), f"{scale * row['spread']:.2f}", _share(hurt)]
        rows.append([f"{float(row['value']):g}", *shown])
    return _table(["value", "mean change against FedAvg", "spread over clients", "share hurt"], rows)


def _rates(table: Table) -> str:
    rows = []
    for step, rate in table["rates"].items():
        tried = table["tried"].get(step)
        scores = "fixed" if tried is None else ", ".join(f"{lr}: {_number(s, table)}" for lr, s in tried.items())
        rows.append([step, f"{rate:g}", scores])
    return _table(["run", "rate", "rates tried, and their scores on validation rows (first seed)"], rows)


def across(tables: Sequence[Table]) -> str:
    """Whether the best split depends on the task, as far as this recipe's settings can say."""
    lines = ["## Across the settings", ""]
    decided = {}
    for table in tables:
        made = next((c for c in table["claims"] if c["claim"].startswith("the best split is ")), None)
        if made is not None:
            lines.append(f"- {table['setting']}: {made['claim']}: {made['verdict']}.")
            if made["verdict"] == "holds":
                decided[table["setting"]] = made["claim"]
    best = {claim.split(",")[0] for claim in decided.values()}
    if len(decided) < len(tables):
        verdict = "not decided at this scale"
    else:
        verdict = "holds" if len(best) > 1 else "does not hold"
    return "\n".join([*lines, f"- The best split depends on the task: **{verdict}** between these settings."])


def sentence(tables: Sequence[Table]) -> str:
    """How many claims hold, in one line."""
    verdicts = [made["verdict"] for table in tables for made in table["claims"]]
    counts = {key: verdicts.count(key) for key in ("holds", "does not hold")}
    rest = len(verdicts) - sum(counts.values())
    return f"{counts['holds']} claims hold, {counts['does not hold']} do not, {rest} are not decided at this scale."


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from moiety.reports.tables import markdown

    cells = [{str(at): cell for at, cell in enumerate(row)} for row in rows]
    return markdown(cells, columns={str(at): header for at, header in enumerate(headers)})


def _scale(table: Table) -> float:
    return 100 if per_cent(table["metric"]) else 1


def _shown(table: Table, step: str) -> str:
    return _interval(table["scores"][step], _scale(table))


def _number(value: float | None, table: Table) -> str:
    return "-" if value is None else f"{_scale(table) * value:.2f}"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _interval(found: Mapping[str, Any], scale: float, *, sign: bool = False) -> str:
    how = "+.2f" if sign else ".2f"
    mean = format(scale * found["mean"], how)
    if found["low"] is None:
        return mean
    return f"{mean} [{format(scale * found['low'], how)}, {format(scale * found['high'], how)}]"


def _share(found: Mapping[str, Any]) -> str:
    """A share of clients in per cent; the interval does not know that there are none below 0 or above 100."""
    if found["low"] is None:
        return f"{found['mean']:.1%}"
    return f"{found['mean']:.1%} [{max(0.0, found['low']):.1%}, {min(1.0, found['high']):.1%}]"
