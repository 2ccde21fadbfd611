"""Copy the deviations that stand in an algorithm's docstring into its docs page.

``python docs/deviations.py`` writes the pages; with ``--check`` it only says which are out of date, and ends with 1.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

from moiety.algorithms import ALGORITHMS

PAGES = Path(__file__).parent / "algorithms"


def read_deviations(name: str) -> str:
    """The deviations of an algorithm, from the docstring of its file."""
    text = importlib.import_module(f"moiety.algorithms.{name}").__doc__ or ""
    start = re.search(r"^Deviations[^:\n]*:", text, re.MULTILINE)
    if start is None:
        raise SystemExit(f"{name} has no paragraph that begins with Deviations")
    rest = text[start.end() :].strip()
    return re.sub(r"``", "`", rest[:1].upper() + rest[1:])


def fill_page(page: str, deviations: str) -> str:
    """The page with these deviations in its section."""
    section = re.compile(r"(?<=^## Deviations\n\n).*?(?=\n^## |\Z)", re.MULTILINE | re.DOTALL)
    return section.sub(lambda _: deviations + "\n", page)


def main() -> int:
    """Write or check all pages."""
    stale = []
    for name in ALGORITHMS:
        path = PAGES / f"{name}.md"
        before = path.read_text()
        after = fill_page(before, read_deviations(name))
        if after != before:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(after)
    if stale:
        print("out of date:" if "--check" in sys.argv else "written:", ", ".join(stale))
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    raise SystemExit(main())
