"""Writes the page of an experiment: ``table.md``, ``table.json`` and the figures; and pages that sum up others."""

from __future__ import annotations

import datetime
import functools
import importlib.util
import json
import math
import platform
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moiety.experiments.records import Outcome, Page, Results, Row, Section
from moiety.reports.tables import markdown

if TYPE_CHECKING:
    from moiety.experiments.experiment import Experiment
    from moiety.reports.figures import Figure

CI_NOTICE = "Scale ci only shows that the recipe runs: scores of so little training say nothing about the methods."
"""What the page says at that scale, and its closing sentence."""
NIGHT_NOTICE = "This experiment has no sizes of its own for the scale night: these are the sizes of the scale laptop."
NO_FIGURES = "No figure was drawn: figures need matplotlib, as in `pip install 'moiety[report]'`."


def write_page(
    experiment: Experiment[Any], options: Row, page: Page, results: Results, out: Path | None, run: str
) -> Outcome:
    """The page as text; with a folder it is written there, with the numbers and the figures. ``run`` is the id."""
    head = describe_run(experiment.name, options, results)
    parts = [*_write_opening(experiment, head), page.about, *(show_section(section) for section in page.sections)]
    if out is not None:
        from moiety.files import write_file
        from moiety.seals import TABLE, TABLE_FORMAT, write_sealed

        parts += _draw(page, out)
        content = _replace_not_finite({**head, **page.more, "rows": page.rows})
        write_sealed(out / TABLE, content, run, format=TABLE_FORMAT, private=False)
        write_file(out / "table.md", ("\n\n".join(parts) + "\n").encode(), private=False)
    sentence = CI_NOTICE if head["scale"] == "ci" else page.sentence
    return Outcome("\n\n".join(parts), sentence, results)


def write_summary(out: Path, text: str, *, figures: Mapping[str, Figure], table: Row | None = None) -> None:
    """Write a page that sums up the pages of several recipes: ``README.md``, the figures and, if given, ``table.json``.

    For pages that are made from tables of runs that have ended. ``figures`` are by file name.
    """
    from moiety.files import make_folder, write_file, write_json
    from moiety.reports.figures import save

    make_folder(out, private=False)
    for file, figure in figures.items():
        save(figure, out / file)
    if table is not None:
        write_json(out / "table.json", table, private=False)
    write_file(out / "README.md", text.encode(), private=False)


def describe_run(name: str, options: Row, results: Results) -> Row:
    """What was run, by which command, with which engines and versions, when, and how long it took."""
    import numpy
    import torch

    from moiety import __version__

    words = ["moiety", "run", name, "--scale", options["scale"]]
    for option in ("rounds", "seed", "seeds", "engine", "device"):
        words += [f"--{option}", str(options[option])] if options[option] else []
    for field, value in options["changes"].items():
        words += ["--set", f"{field}={value if isinstance(value, str) else json.dumps(value)}"]
    versions = {"moiety": __version__, "torch": torch.__version__, "numpy": numpy.__version__}
    files = {use["file"] + use["digest"]: use for row in results.values() for use in row.get("files", ())}
    commits = sorted({row["commit"] for row in results.values() if row.get("commit")})
    return {
        "recipe": name,
        **options,
        **({"commit": " and ".join(commits)} if commits else {}),
        **({"files": list(files.values())} if files else {}),
        "command": shlex.join(words),
        "engines": sorted({row["engine"] for row in results.values() if row.get("engine")}),
        "versions": {**versions, "Python": platform.python_version()},
        "date": datetime.date.today().isoformat(),
        "seconds": sum(row["seconds"] for row in results.values()),
    }


@functools.cache
def find_commit() -> str | None:
    """The commit of moiety's own sources, with "and changes" where files differ from it; None outside a repository.

    A repository that holds an environment in which moiety is installed is not meant: it does not track this file.
    """
    source = Path(__file__)

    def ask(*words: str) -> str:
        answer = subprocess.run(["git", *words], cwd=source.parent, capture_output=True, text=True, check=True)
        return answer.stdout.strip()

    try:
        ask("ls-files", "--error-unmatch", source.name)
        changes = ask("status", "--porcelain", "--untracked-files=no", "--", str(source.parents[2]))
        return ask("rev-parse", "--short=12", "HEAD") + (" and changes" if changes else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _write_opening(experiment: Experiment[Any], head: Mapping[str, Any]) -> Iterator[str]:
    yield f"# {head['recipe']}, scale {head['scale']}"
    versions = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
    engines = f"engine {' and '.join(head['engines'])}; " if head["engines"] else "no engine, but a loop of its own; "
    commit = f"commit {head['commit']}; " if head.get("commit") else ""
    minutes = f"{head['seconds'] / 60:.1f} minutes in all."
    yield f"`{head['command']}`, {head['date']}; {commit}{engines}{versions}; {minutes}"
    if head.get("files"):
        from moiety.data.sources.provenance import FileUse  # here: lists of recipes do without NumPy

        uses = "\n".join(f"- {FileUse(**use)}" for use in head["files"])
        yield f"Data:\n\n{uses}"
    if head["scale"] == "ci":
        yield CI_NOTICE
    if head["scale"] == "night" and not experiment.night:
        yield NIGHT_NOTICE


def show_section(section: Section) -> str:
    """A section as Markdown."""
    columns = section.columns
    if columns is None and section.rows and "ours" not in section.rows[0]:
        columns = {key: key for key in section.rows[0]}
    table = markdown(section.rows, columns=columns, digits=section.digits) if section.rows else ""
    title = f"{'#' * section.level} {section.title}" if section.title else ""
    notes = "\n".join(f"- {note}" for note in section.notes)
    return "\n\n".join(part for part in (title, section.text, table, notes) if part)


def _draw(page: Page, out: Path) -> Iterator[str]:
    """Draw the figures; the lines that show them."""
    if not page.figures:
        return
    yield "## Figures"
    if importlib.util.find_spec("matplotlib") is None:
        yield NO_FIGURES
        return
    from moiety.reports.figures import save

    for file, (title, draw) in page.figures.items():
        save(draw(), out / file)
        yield f"![{title}]({file})"


def _replace_not_finite(value: Any) -> Any:
    """The value with null for numbers that are not finite, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _replace_not_finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_not_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
