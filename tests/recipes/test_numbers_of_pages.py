"""Numbers that stand twice: pages and their tables, pages of what holds, the page of all results, newcomers."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

import moiety as mo
from moiety.experiments import UNDECIDED
from moiety.experiments.page import show_section
from moiety_recipes import fedalt_holds, fedpop_holds, fedspa_holds, ffgg_holds, glocal_holds
from moiety_recipes import fedalt_night_page as night_page
from moiety_recipes.claims import show_claims

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


FEDALT = ("fedalt-people", "fedalt-roles", "fedalt-labels", "fedalt-numbers")
FFGG = ("ffgg-readings", "ffgg-theorem8", "ffgg-splits", "ffgg-speeds", "ffgg-byzantine", "ffgg-diagnosis")


def read_table(name):
    return json.loads((RESULTS / name / "table.json").read_text())


def read_page(name):
    return (RESULTS / name / "README.md").read_text()


def test_what_holds_of_fedalt_is_what_the_tables_say():
    page, rows, figures = fedalt_holds.make_page([read_table(name) for name in FEDALT])
    assert page == read_page("fedalt-holds")
    assert json.loads(json.dumps(rows)) == read_table("fedalt-holds")["questions"]
    assert set(figures) == {file.name for file in (RESULTS / "fedalt-holds").glob("*.png")}


@pytest.mark.parametrize("name", FEDALT)
def test_claims_on_pages_of_fedalt_are_those_of_their_tables(name):
    text = read_page(name)
    for setting in read_table(name)["settings"]:
        rows = list(night_page.show_claims(setting["claims"]))
        assert mo.reports.markdown(rows, columns={key: key for key in rows[0]}) in text
        assert all(row["seeds needed"] != "-" for row in rows if UNDECIDED in row["verdict"])


@pytest.mark.parametrize("name", FFGG)
def test_claims_on_pages_of_ffgg_are_those_of_their_tables(name):
    """Theorem 8's cells stand in a matrix, those of ffgg-byzantine in a table of their own."""
    lines = set(read_page(name).splitlines())
    claims = [row for row in read_table(name)["rows"] if "headline" in row and "error" not in row]
    assert claims
    for row in claims:
        assert show_section(show_claims("", [row])).splitlines()[-1] in lines


@pytest.mark.parametrize("name", FFGG)
def test_every_open_claim_says_how_many_seeds_it_would_take(name):
    lines = [line for line in read_page(name).splitlines() if UNDECIDED in line and line.startswith("|")]
    number = r"\| (over 1,000|the same in every seed|[\d,]+) \|$"
    assert [line for line in lines if not re.search(number, line)] == []


@pytest.mark.parametrize("name", ["fedalt-holds", "ffgg-holds"])
def test_every_headline_links_to_a_figure(name):
    text = read_page(name)
    links = re.findall(
        r"^\|[^|]*?\[[^]]+\]\(([\w-]+\.png)\)|^\| \[[^|]*\| \[[^|]*\]\(([\w-]+\.png)\)", text, re.MULTILINE
    )
    files = [first or second for first, second in links]
    headlines = 10 if name == "fedalt-holds" else int(re.search(r"Of (\d+) headlines", text)[1])
    assert len(files) == headlines
    assert set(files) == {file.name for file in (RESULTS / name).glob("*.png")}


def list_triples(name):
    """Mean and interval of every claim of a paper, in points."""
    if name == "fedalt":
        rows = read_table("fedalt-holds")["questions"].values()
        return [[100 * row[key] for key in ("mean", "low", "high")] for row in rows if row["low"] is not None]
    rows = [row for recipe in FFGG for row in read_table(recipe)["rows"] if row.get("low") is not None]
    return [[row[key] for key in ("mean", "low", "high")] for row in rows]


@pytest.mark.parametrize(("name", "title", "least"), [("fedalt", "Partial pers", 7), ("ffgg", "FFGG", 5)])
def test_intervals_of_the_page_of_all_results_are_those_of_the_tables(name, title, least):
    """Each number with its interval is that of a claim, to the digits shown and up to the sign in words."""
    section = (RESULTS / "README.md").read_text().partition(f"## {title}")[2].partition("\n## ")[0]
    number = r"([+-]?\d+\.\d+)"
    quotes = re.findall(rf"{number}(?: [a-z,]+)* \[{number}, {number}\]", " ".join(section.split()))
    assert len(quotes) >= least
    triples = list_triples(name)
    for quote in quotes:
        step = 0.51 * 10 ** -len(quote[0].partition(".")[2])
        mean, *ends = map(float, quote)
        assert any(
            abs(abs(mean) - abs(own)) <= step and (all(abs(a - b) <= step for a, b in zip(ends, own_ends, strict=True)))
            for own, *own_ends in triples
        ), quote


@pytest.mark.parametrize("name", ["fedalt-holds", "ffgg-holds"])
def test_counts_of_the_page_of_all_results_are_those_of_what_holds(name):
    text = " ".join((RESULTS / "README.md").read_text().split())
    hold, fail, rest = map(
        int, re.search(r"(\d+) (?:claims )?hold, (\d+) do not, (\d+) are not", read_page(name)).groups()
    )
    before = text.partition(f"([what holds]({name}/README.md))")[0][-120:]
    assert before.endswith(f"{hold} hold, {fail} do not, and {rest} are not decided ")


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
