"""The report on paper, on a phone, and as assistive technology meets it: Chromium's own tree of names and roles."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from itertools import pairwise

import pytest
from browser import CHROMIUM, DRIVER, Browser, open_browser
from pages import one_run, posterior, several_runs
from selenium.webdriver.common.by import By

if not (CHROMIUM and DRIVER):
    pytest.skip("no Chromium with its driver here: apt-get install chromium chromium-driver", allow_module_level=True)

PAGES = {"one": one_run, "several": several_runs, "posterior": posterior}
NAMED = {
    "RootWebArea", "button", "checkbox", "columnheader", "combobox", "heading", "image", "img", "link", "region",
    "rowheader", "searchbox", "table", "textbox",
}  # fmt: skip
"""Roles whose elements a screen reader announces by name."""


@pytest.fixture(scope="module")
def browser():
    with open_browser() as session:
        yield session


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return {name: make(folder) for name, make in PAGES.items()}


def read_tree(browser: Browser) -> list[tuple[str, str, dict]]:
    """Role, name and properties of all that assistive technology is told of."""
    nodes = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    return [
        (
            node["role"]["value"],
            str(node.get("name", {}).get("value", "")).strip(),
            {each["name"]: each["value"].get("value") for each in node.get("properties", [])},
        )
        for node in nodes
        if not node["ignored"]
    ]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_everything_has_a_name_and_a_role(browser, pages, name, width):
    browser.size(width, 900)
    browser.prefer("light")
    browser.open(pages[name])
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    tree = read_tree(browser)
    assert [(role, label) for role, label, _ in tree if role in NAMED and not label] == []
    roles = [role for role, _, _ in tree]
    assert roles.count("main") == 1
    levels = [properties["level"] for role, _, properties in tree if role == "heading"]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    # What can be reached by Tab is a control, a link, a figure that takes the arrow keys, or a table that scrolls.
    stops = {role for role, _, properties in tree if properties.get("focusable")}
    assert stops <= {
        "DisclosureTriangle", "RootWebArea", "button", "checkbox", "combobox", "image", "img", "link", "main", "option",
        "menuListOption", "region", "searchbox",
    }, stops  # fmt: skip
    figures = browser.run("return document.querySelectorAll('svg[role=img], canvas[role=img]').length")
    assert sum(role in ("image", "img") for role in roles) >= figures > 2


def print_page(browser: Browser) -> bytes:
    return base64.b64decode(browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])


@pytest.mark.parametrize("name", PAGES)
def test_paper_has_what_is_folded_on_the_screen(browser, pages, name, tmp_path):
    browser.size(1280, 900)
    browser.prefer("dark")
    browser.open(pages[name])
    browser.run("document.querySelector('details').open = true")
    states = "return [...document.querySelectorAll('details')].map((each) => each.open)"
    before = browser.run(states)
    assert before.count(True) == 1
    folded = browser.run("return [...document.querySelectorAll('details table')].map((t) => t.rows.length)")
    (tmp_path / "page.pdf").write_bytes(print_page(browser))
    assert browser.run(states) == before
    assert browser.run("return document.documentElement.dataset.theme || null") is None
    assert browser.messages() == []
    if not shutil.which("pdftotext"):
        pytest.skip("no pdftotext here: apt-get install poppler-utils")
    text = subprocess.run(
        ["pdftotext", "-layout", tmp_path / "page.pdf", "-"], capture_output=True, text=True, check=True
    ).stdout
    words = " ".join(text.split())
    captions = browser.run("return [...document.querySelectorAll('details caption')].map((each) => each.textContent)")
    assert [each for each in captions if each not in words] == []
    assert sum(folded) > 30
    for setting in ("run.rounds", "algorithm.name", "data.name"):
        assert setting in words or name == "posterior"
    assert re.search(r"\d clients, page 1 of \d", words)


def test_a_phone_reaches_every_column(browser, pages):
    browser.size(390, 844)
    browser.prefer("light")
    browser.open(pages["one"])
    columns = "[...document.querySelectorAll('#client-table th')].filter((e) => e.offsetWidth > 9)"
    heads = f"return {columns}.map((e) => e.textContent)"
    few = browser.run(heads)
    assert "95% interval" not in few
    button = browser.driver.find_element(By.ID, "all-columns")
    assert button.is_displayed()
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    names = browser.run(heads)
    assert {"test rows", "95% interval"} <= set(names)
    assert len(names) == len(few) + 4
    assert (
        browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0
    )  # the table scrolls, not the page
    button.click()
    assert browser.run(heads) == few
    browser.size(1280, 900)
    assert not browser.driver.find_element(By.ID, "all-columns").is_displayed()
    assert browser.messages() == []
