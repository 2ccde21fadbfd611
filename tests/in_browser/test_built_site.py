"""The built site in headless Chromium, from disk and from a server.

No message, no request to another place, a search that finds, two themes.
"""

from __future__ import annotations

import functools
import http.server
import threading
from pathlib import Path

import pytest
from browser import CHROMIUM, DRIVER, Browser, open_browser
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

if not (CHROMIUM and DRIVER):
    pytest.skip("no Chromium with its driver here: apt-get install chromium chromium-driver", allow_module_level=True)

SITE = Path(__file__).parents[2] / "build" / "site"
if not (SITE / "index.html").is_file():
    pytest.skip("there is no site in build/site: make docs", allow_module_level=True)

PAGES = ("index.html", "start.html", "tutorials/hospital.html", "api.html", "api-data.html")
SCHEMES = {"light": "default", "dark": "slate"}
SIZES = {"phone": (390, 844), "tablet": (820, 1180), "desk": (1280, 900)}


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Says nothing of what it serves."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module", params=["disk", "server"])
def address(request):
    """Where the site is: its folder, or a server for it."""
    if request.param == "disk":
        yield f"{SITE.as_uri()}/"
        return
    serve = functools.partial(Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser():
    with open_browser() as session:
        session.size(*SIZES["desk"])
        yield session


def leaving(browser: Browser, address: str) -> list[str]:
    """Requests that did not go to the site."""
    return [url for url in browser.requests() if not url.startswith((address, "data:", "blob:"))]


@pytest.mark.parametrize("theme", SCHEMES)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_nothing_asks_nobody_else_and_fits(browser, address, page, theme):
    browser.prefer(theme)
    browser.size(*SIZES["desk"])
    browser.open(address + page)
    assert browser.run("return document.body.dataset.mdColorScheme") == SCHEMES[theme]
    assert browser.run("return document.querySelector('h1').textContent.trim()")
    script = "[...document.images].filter((e) => e.complete && !e.naturalWidth).map((e) => e.src)"
    assert browser.run(f"return {script}") == []
    for size in SIZES.values():
        browser.size(*size)
        assert browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0, size
    assert browser.messages() == []
    assert leaving(browser, address) == []


def test_light_and_dark_are_light_and_dark(browser, address):
    shades = []
    for theme in SCHEMES:
        browser.prefer(theme)
        browser.open(address + "index.html")
        colour = browser.run("return getComputedStyle(document.body).backgroundColor")
        shades.append(sum(int(part) for part in colour.removeprefix("rgb(").rstrip(")").split(",")) / 3)
    assert shades[0] > 200
    assert shades[1] < 60


CONTRASTS = """
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const light = (parts) => parts.slice(0, 3).map((part) => part / 255)
  .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
  .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
const over = (top, below) => top.slice(0, 3).map((part, at) => part * (top[3] ?? 1) + below[at] * (1 - (top[3] ?? 1)));
return arguments[0].map(([text, ground]) => {
  const below = parse(getComputedStyle(document.querySelector(ground)).backgroundColor);
  const [a, b] = [light(over(parse(getComputedStyle(document.querySelector(text)).color), below)), light(below)];
  return [text, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
});
"""
"""The contrast of texts with the ground that they stand on, as WCAG 2 defines it."""


@pytest.mark.parametrize("theme", SCHEMES)
def test_text_has_enough_contrast(browser, address, theme):
    browser.prefer(theme)
    browser.size(*SIZES["desk"])
    browser.open(address + "index.html")
    places = [(f"article {name}", "body") for name in ("h1", "p", "td", "td a")]
    places.append((".md-header__title .md-ellipsis", ".md-header"))
    assert [pair for pair in browser.run(CONTRASTS, places) if pair[1] < 4.5] == []


@pytest.mark.parametrize("page", ["index.html", "algorithms/fedavg.html"])
def test_search_finds_an_algorithm_and_its_page_opens(browser, address, page):
    browser.prefer("light")
    browser.open(address + page)
    browser.run("document.querySelector('input[name=query]').focus()")
    browser.driver.find_element(By.CSS_SELECTOR, "input[name=query]").send_keys("fedalt")
    links = "return [...document.querySelectorAll('a.md-search-result__link')].map((e) => e.href)"
    results = WebDriverWait(browser.driver, 60).until(lambda _: browser.run(links))
    place = next(k for k, link in enumerate(results) if link.startswith(f"{address}algorithms/fedalt.html"))
    browser.run("document.querySelectorAll('a.md-search-result__link')[arguments[0]].click()", place)
    heading = "return document.querySelector('h1').textContent.startsWith('FedAlt')"
    assert WebDriverWait(browser.driver, 60).until(lambda _: browser.run(heading))
    assert browser.messages() == []
    assert leaving(browser, address) == []


def test_search_says_when_there_is_nothing(browser, address):
    browser.open(address + "index.html")
    browser.run("document.querySelector('input[name=query]').focus()")
    browser.driver.find_element(By.CSS_SELECTOR, "input[name=query]").send_keys("xylophone")
    answer = "return document.querySelector('.md-search-result__meta').textContent.trim()"
    WebDriverWait(browser.driver, 60).until(lambda _: browser.run(answer) == "No matching documents")
    assert browser.run("return document.querySelectorAll('a.md-search-result__link').length") == 0
