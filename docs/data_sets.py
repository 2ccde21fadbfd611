"""Writes the tables of docs/data-sets.md from the catalogue: ``python docs/data_sets.py``; ``--check`` compares."""

from __future__ import annotations

import sys
from pathlib import Path

from moiety.data.catalogue import DATA_SETS, DataSet
from moiety.data.sources.digests import DIGESTS

PAGE = Path(__file__).with_name("data-sets.md")
BEGIN, END = "<!-- from the catalogue -->", "<!-- end -->"


def describe(row: DataSet) -> str:
    """The section of one data set."""
    lines = [f"### {row.name}", "", row.about, ""]
    originals = []
    for original in row.originals:
        where = ", or ".join(f"<{address}>" for address in original.addresses) or "brought by you"
        check = f"`{original.check}`" if original.check else "no checksum is known"
        originals.append(f"`{original.name}`: {where}{'' if original.folder else f'; {check}'}")
    known = f"; known digest: `{DIGESTS[row.file]}`" if row.file in DIGESTS else ""
    lines += [f"- file: `{row.file}`{known}", *(f"- {original}" for original in originals)]
    lines += [f"- licence: {row.licence}", f"- cite: {row.citation}", f"- source: {row.page}"]
    lines += [f"- {row.note}"] if row.note else []
    return "\n".join(lines)


def write(text: str) -> str:
    """The page with its tables as the catalogue has them now."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return before + BEGIN + "\n\n" + "\n\n".join(map(describe, DATA_SETS.values())) + "\n\n" + END + after


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv:
        sys.exit(
            0 if write(text) == text else "docs/data-sets.md is not as the catalogue: run python docs/data_sets.py"
        )
    PAGE.write_text(write(text), encoding="utf-8")
