"""Relative links of all Markdown files: the file is there, and so is the heading that an anchor names.

Anchors are GitHub's: a heading in lower case, without punctuation, with hyphens for spaces. `make docs` checks those of
the site.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.md"), *(ROOT / "docs").rglob("*.md")])
CODE = re.compile(r"^(```+|~~~+).*?^\1[ \t]*$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|<(?:img|a)\b[^>]*?\b(?:src|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
ELSEWHERE = ("http://", "https://", "mailto:")


def find_links(text: str) -> list[str]:
    """Where a page's links go.

    >>> find_links("[a](b.md#c), `[no](link.md)`, ![d](e.png)")
    ['b.md#c', 'e.png']
    """
    return [one or other for one, other in LINK.findall(CODE.sub("", text))]


def list_anchors(text: str) -> set[str]:
    r"""The anchors of a page's headings; the second of two that are alike ends in -1.

    >>> sorted(list_anchors("# It's `a_b`: two\n## [Links](c.md) too\n## It's `a_b`: two"))
    ['its-a_b-two', 'its-a_b-two-1', 'links-too']
    """
    counts: Counter[str] = Counter()
    anchors = set()
    fences = re.compile(r"^(```+|~~~+).*?^\1[ \t]*$", re.DOTALL | re.MULTILINE)
    for heading in HEADING.findall(fences.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "").lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        anchors.add(f"{name}-{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return anchors


def find_broken(page: Path) -> list[str]:
    links = []
    for link in find_links(page.read_text(encoding="utf-8")):
        if link.startswith(ELSEWHERE):
            continue
        address, _, anchor = link.partition("#")
        target = (page.parent / unquote(address)).resolve() if address else page
        valid = target.is_relative_to(ROOT) and target.exists()
        if valid and anchor and target.suffix == ".md":
            valid = anchor in list_anchors(target.read_text(encoding="utf-8"))
        links += [] if valid else [link]
    return links


def test_there_is_something_to_check() -> None:
    names = {page.name for page in PAGES}
    assert {"README.md", "SECURITY.md", "NOTICE.md", "RELEASE.md", "CONTRIBUTING.md", "ARCHITECTURE.md"} <= names
    assert sum(len(find_links(page.read_text(encoding="utf-8"))) for page in PAGES) > 300


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    assert find_broken(page) == []


def test_broken_links_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_docs_links.ROOT", tmp_path)
    (tmp_path / "other.md").write_text("# Here it is\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text("[a](other.md#here-it-is) [b](other.md#there) [c](gone.md) [d](#no)\n", encoding="utf-8")
    assert find_broken(page) == ["other.md#there", "gone.md", "#no"]
