"""The built site asks the network for nothing, has its own search, and ran its notebooks."""

import re
from pathlib import Path

import pytest

SITE = Path(__file__).parents[2] / "build" / "site"
LOADED = re.compile(r"<(?:script|img|iframe|source)[^>]*?\ssrc=[\"']?([^\"'\s>]+)|<link[^>]*?\shref=[\"']?([^\"'\s>]+)")
PAGES = sorted(SITE.rglob("*.html"))


def test_there_is_a_site() -> None:
    assert len(PAGES) > 60


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(SITE).as_posix())
def test_a_page_loads_nothing_from_elsewhere(page: Path) -> None:
    """Links that a reader follows may leave the site; what a browser loads by itself may not."""
    addresses = [one or other for one, other in LOADED.findall(page.read_text(encoding="utf-8"))]
    assert addresses
    assert [address for address in addresses if address.startswith(("http:", "https:", "//"))] == []


def test_search_is_part_of_the_site() -> None:
    """The index, for a server and for pages from disk, and the program that searches it are files of the site."""
    index = (SITE / "search" / "search_index.json").read_text(encoding="utf-8")
    assert len(index) > 100_000
    assert (SITE / "search" / "search_index.js").read_text(encoding="utf-8") == f"var __index = {index}"
    assert list((SITE / "assets" / "javascripts" / "workers").glob("search*.js"))


@pytest.mark.parametrize("name", ["hospital", "researcher", "lora", "devices"])
def test_notebooks_were_executed(name: str) -> None:
    assert "jp-OutputArea-output" in (SITE / "tutorials" / f"{name}.html").read_text(encoding="utf-8")
