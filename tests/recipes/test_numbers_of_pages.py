"""Numbers that stand twice: pages of what holds and their tables, the table of newcomers and its file."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from moiety_recipes import fedpop_holds, fedspa_holds, ffgg_holds, glocal_holds

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/results"
PAGES = {page.PAPER.program.replace("_", "-"): page for page in (fedpop_holds, fedspa_holds, ffgg_holds, glocal_holds)}
WRITTEN = [name for name in PAGES if (RESULTS / name).exists()]


@pytest.mark.parametrize("name", WRITTEN)
def test_what_holds_is_what_the_tables_say(name):
    """Each page is written anew from the tables of the recipes that it names."""
    text = (RESULTS / name / "README.md").read_text()
    recipes = re.findall(r"^- `moiety run ([\w-]+)", text, flags=re.MULTILINE)
    tables = [json.loads((RESULTS / recipe / "table.json").read_text()) for recipe in recipes]
    page, _, figures = PAGES[name].make_page(tables)
    assert page == text
    assert set(figures) == {file.name for file in (RESULTS / name).glob("*.png")}


def test_the_table_of_newcomers_is_that_of_its_file():
    """docs/uncertainty.md: losses with rows and without, the gain with its interval, who is worse off."""
    spec = importlib.util.spec_from_file_location("newcomers_program", ROOT / "benchmarks/newcomers.py")
    newcomers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(newcomers)
    rows = json.loads((RESULTS / "fedpop-coverage/newcomers.json").read_text())
    table = (ROOT / "docs/uncertainty.md").read_text().partition("| gain | worse with them |")[2]
    titles = {
        "uci_har": "UCI HAR",
        "audiomnist": "AudioMNIST, 12",
        "audiomnist_clipped": "AudioMNIST, clipped",
        "slopes": "`slopes`",
        "logistic": "three classes",
    }
    for line in newcomers.summarise(rows):
        _, name, numbers = line.split("|", 2)
        own = re.search(rf"^\| {titles[name.strip()]}[^|]*\|(.*)", table, flags=re.MULTILINE)
        assert re.findall(r"[-\d.]+", own.group(1)) == re.findall(r"[-\d.]+", numbers)
