"""The report: one page of HTML that needs nothing but itself, from the rows of runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moiety.errors import must
from moiety.files import check_path, make_folder, write_file
from moiety.reports.groups import Group, check_alike
from moiety.reports.page.content import gather
from moiety.reports.page.data import make_data
from moiety.reports.page.document import fill_template
from moiety.reports.page.sections import write_sections


def write_report(groups: Sequence[Group], path: str | os.PathLike[str]) -> Path:
    """Write the report of ended runs as one HTML file; it names clients, so it is for its owner alone.

    Args:
        groups: runs of one configuration each, by seed, all of the same data; the others are compared with the first.
        path: the file; one that is there is written over.
    """
    check_path("path", path, "a file's path, as in report.html")
    target = Path(path)
    must(not target.is_dir(), "path", "a file, as in report.html", f"the folder {target}")
    if not target.parent.is_dir():
        make_folder(target.parent)
    write_file(target, make_page(groups).encode())
    return target


def make_page(groups: Sequence[Group], *, live: bool = False) -> str:
    """The report as text. With ``live`` the runs may not have ended, and the page asks for news of them."""
    title, main, data = make_parts(groups, live=live)
    return fill_template(title, main, data, live=live)


def make_parts(groups: Sequence[Group], *, live: bool = False) -> tuple[str, str, dict[str, Any]]:
    """The title of the page, its content as HTML, and the numbers that its figures are drawn from."""
    results = [result for group in groups for result in group.results.values()]
    must(len(results) > 0, "runs", "at least one", "none")
    ended_results = [result for result in results if result.clients]
    must(live or len(ended_results) == len(results), "runs", "ones that have ended", "one without rows of clients")
    for other in ended_results[1:]:
        check_alike(ended_results[0], other)
    content = gather(groups)
    names = " and ".join(dict.fromkeys(group.name for group in groups[:2]))
    more = f" and {len(groups) - 2} more" if len(groups) > 2 else ""
    return f"{names}{more}: moiety report", write_sections(content), make_data(content)
