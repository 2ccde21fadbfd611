"""Write what the docs say of algorithms in more than one place.

The deviations in an algorithm's docstring go into its page. The table in the page's section "Local work" goes into
``local-work.md``. The names go into the README, and their number into it and into ``comparison.md``.
``python docs/deviations.py`` writes all of these; with ``--check`` it only says which are out of date, and ends with 1.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

from moiety.algorithms import ALGORITHMS

DOCS = Path(__file__).parent
PAGES, TABLE, README = DOCS / "algorithms", DOCS / "local-work.md", DOCS.parent / "README.md"
COMPARISON = DOCS / "comparison.md"
HEADER = "| `shared=` | `personal=` | `pull` pulls towards |\n|---|---|---|\n"
ROW = re.compile(rf"^## Local work\n\n{re.escape(HEADER)}(\|(?:[^|\n]*\|){{3}})$", re.MULTILINE)


def read_deviations(name: str) -> str:
    """The deviations of an algorithm, from the docstring of its file."""
    text = importlib.import_module(f"moiety.algorithms.{name}").__doc__ or ""
    start = re.search(r"^Deviations[^:\n]*:", text, re.MULTILINE)
    if start is None:
        raise SystemExit(f"{name} has no paragraph that begins with Deviations")
    rest = text[start.end() :].strip()
    return re.sub(r"``", "`", rest[:1].upper() + rest[1:])


def fill_page(page: str, deviations: str) -> str:
    """The page with these deviations in its section, which may be empty before."""
    section = re.search(r"^## Deviations\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    if section is None:
        raise SystemExit(f"a page has no section Deviations: {page.splitlines()[0]}")
    rest = page[section.end() :]
    return f"{page[: section.start(1)]}\n{deviations}\n" + (f"\n{rest}" if rest else "")


def read_row(name: str) -> str:
    """The row on local work in an algorithm's page."""
    row = ROW.search((PAGES / f"{name}.md").read_text(encoding="utf-8"))
    if row is None:
        raise SystemExit(f"{name}.md has no section Local work with a table of one row, as in apfl.md")
    return row[1]


def fill_table(page: str) -> str:
    """The page on local work with the rows of all algorithms."""
    rows = "".join(f"| [`{name}`](algorithms/{name}.md) {read_row(name)}\n" for name in sorted(ALGORITHMS))
    return re.sub(r"(?<=^\|---\|---\|---\|---\|\n)(\|.*\n)*", lambda _: rows, page, flags=re.MULTILINE)


def fill_readme(page: str) -> str:
    """The README with the names of all algorithms."""
    names = ", ".join(f"`{name}`" for name in sorted(ALGORITHMS))
    return re.sub(r"(?<=^\| algorithms \| ).*(?= \|$)", names, page, flags=re.MULTILINE)


def fill_number(page: str) -> str:
    """The page with the number of algorithms, where it says "24 algorithms, ..." or "24 algorithms: ..."."""
    return re.sub(r"\b\d+(?= algorithms[,:])", str(len(ALGORITHMS)), page)


def main() -> int:
    """Write or check all pages."""
    before = {path: path.read_text(encoding="utf-8") for path in (TABLE, README, COMPARISON)}
    after = {
        TABLE: fill_table(before[TABLE]),
        README: fill_number(fill_readme(before[README])),
        COMPARISON: fill_number(before[COMPARISON]),
    }
    for name in ALGORITHMS:
        path = PAGES / f"{name}.md"
        before[path] = path.read_text(encoding="utf-8")
        after[path] = fill_page(before[path], read_deviations(name))
    stale = [path for path in before if after[path] != before[path]]
    check = "--check" in sys.argv
    for path in stale if not check else ():
        path.write_text(after[path], encoding="utf-8")
    if stale:
        print("out of date:" if check else "written:", ", ".join(path.name for path in stale))
    return int(bool(stale) and check)


if __name__ == "__main__":
    raise SystemExit(main())
