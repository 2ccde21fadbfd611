"""The report in headless Chromium: no message, no request, and everything works by mouse and by keyboard."""

from __future__ import annotations

import itertools
import threading

import pytest
from browser import CHROMIUM, DRIVER, Browser, open_browser
from pages import HOSTILE, make_group, one_run, posterior, several_runs
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select
from waiting import wait_until

import moiety as mo
from moiety.reports.page import write_report

if not (CHROMIUM and DRIVER):
    pytest.skip("no Chromium with its driver here: apt-get install chromium chromium-driver", allow_module_level=True)

SIZES = {"phone": (390, 844), "tablet": (820, 1180), "desk": (1280, 900)}
COLOURS = {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 21, 26)"}
"""The page's own."""
PAGES = {"one": one_run, "several": several_runs, "posterior": posterior}


@pytest.fixture(scope="module")
def browser():
    with open_browser() as session:
        yield session


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return {name: make(folder) for name, make in PAGES.items()}


def find(browser: Browser, place: str):
    return browser.driver.find_element(By.CSS_SELECTOR, place)


def list_names(browser: Browser) -> list[str]:
    return browser.run("return [...document.querySelectorAll('#client-table tbody th')].map((e) => e.textContent)")


def show(browser: Browser, page) -> None:
    browser.size(*SIZES["desk"])
    browser.prefer("light")
    browser.open(page)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_nothing_asks_for_nothing_and_fits(browser, pages, name, size, theme):
    browser.prefer(theme)
    browser.size(*SIZES[size])
    browser.open(pages[name])
    assert browser.messages() == []
    assert browser.requests() == [pages[name].as_uri()]
    assert browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0
    assert browser.run("return window.broken") is None
    assert browser.run("return document.querySelectorAll('script').length") == 2
    # Every figure is drawn, within the page, and no two labels of one axis overlap.
    script = "return [...document.querySelectorAll('.plot[id]')].map((e) => e.querySelectorAll('svg, canvas').length)"
    assert all(count >= 1 for count in browser.run(script))
    assert browser.run(OVERLAPS) == []
    dark = browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(18, 21, 26)"
    assert dark == (theme == "dark")


OVERLAPS = """
const clashes = [];
for (const svg of document.querySelectorAll('.plot svg[role=img]')) {
  const room = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll('text')].map((e) => [e.textContent, e.getBoundingClientRect()]);
  for (const [text, box] of boxes)
    if (box.left < room.left - 2 || box.right > room.right + 2) clashes.push('outside: ' + text);
  boxes.forEach(([text, a], at) => boxes.slice(at + 1).forEach(([other, b]) => {
    const across = a.left < b.right && b.left < a.right, down = a.top < b.bottom - 3 && b.top < a.bottom - 3;
    if (across && down) clashes.push(text + ' | ' + other);
  }));
}
return clashes;
"""


def test_the_table_sorts_searches_filters_and_turns_pages(browser, pages):
    show(browser, pages["one"])
    rows = "return [...document.querySelectorAll('#client-table tbody tr')]"
    gains = f"{rows}.map((e) => parseFloat(e.children[6].textContent))"
    first = browser.run(gains)
    assert first == sorted(first)
    find(browser, "#client-table [data-key=gain]").click()
    down = browser.run(gains)
    assert down == sorted(down, reverse=True)
    assert find(browser, "#client-table th[aria-sort=descending]").text.startswith("gain")
    find(browser, "#client-table [data-key=name]").send_keys(Keys.ENTER)
    assert list_names(browser)[:2] == sorted(HOSTILE)[:2] or list_names(browser)[0] in HOSTILE
    search = find(browser, "#client-search")
    search.send_keys("site-1")
    assert list_names(browser)[:3] == ["site-1", "site-10", "site-11"]
    assert browser.run("return document.activeElement.id") == "client-search"
    search.clear()
    search.send_keys("</script>")
    assert set(list_names(browser)) == {name for name in HOSTILE if "</script>" in name}
    search.send_keys(Keys.CONTROL + "a", Keys.DELETE)
    Select(find(browser, "#client-table select")).select_by_visible_text("helped beyond noise")
    words = browser.run(f"{rows}.map((e) => e.lastChild.textContent)")
    assert set(words) == {"helped beyond noise"}
    Select(find(browser, "#client-table select")).select_by_visible_text("all clients")
    before = list_names(browser)
    find(browser, "#client-table .pages button:last-child").click()
    assert "page 2 of 3" in find(browser, "#client-count").text
    assert not set(before) & set(list_names(browser))
    assert browser.messages() == []


def test_long_names_of_runs_push_no_column_off_a_tablet(browser, tmp_path):
    groups = [make_group(f"algorithm.personal={rate}", 20, lift, 3) for rate, lift in (("0.05", 0), ("0.125", 0.1))]
    page = write_report(groups, tmp_path / "sweep.html")
    browser.prefer("light")
    browser.size(*SIZES["tablet"])
    browser.open(page)
    wide = "const e = document.querySelector('#client-table .scroll'); return e.scrollWidth - e.clientWidth"
    assert browser.run(wide) <= 0
    heads = browser.run("return [...document.querySelectorAll('#client-table thead button')].map((e) => e.textContent)")
    assert [head.replace("\u200b", "") for head in heads[3:5]] == [
        "algorithm.personal=0.125",
        "algorithm.personal=0.05",
    ]


def test_points_name_their_client_and_are_selected_by_mouse_and_keyboard(browser, pages):
    show(browser, pages["one"])
    canvas = find(browser, "#plot-clients canvas")
    browser.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", canvas)
    (x, y), (width, height) = browser.run(
        "const i = POINTS.order[30], c = arguments[0]; return [POINTS.places[i], [c.clientWidth, c.clientHeight]]",
        canvas,
    )
    ActionChains(browser.driver).move_to_element_with_offset(
        canvas, round(x - width / 2), round(y - height / 2)
    ).perform()
    tip = find(browser, "#tip")
    assert tip.is_displayed()
    near = browser.run("return DATA.clients.names[POINTS.current]")
    assert tip.text.startswith(f"client {near}\ngain ")
    assert "training rows" in tip.text
    ActionChains(browser.driver).click().perform()
    assert browser.run("return [...POINTS.chosen].length") == 1
    assert "1 selected" in find(browser, "#client-count").text
    find(browser, "#only-chosen").click()
    assert list_names(browser) == [near]
    find(browser, "#clear-chosen").click()
    assert "0 selected" in find(browser, "#client-count").text
    canvas = find(browser, "#plot-clients canvas")
    canvas.send_keys(Keys.ARROW_RIGHT)
    canvas.send_keys(Keys.ARROW_RIGHT)
    name = browser.run("return DATA.clients.names[POINTS.order[1]]")
    assert f"client {name}" in browser.run("return document.getElementById('announce').textContent")
    find(browser, "#plot-clients canvas").send_keys(Keys.ENTER)
    assert browser.run("return [...POINTS.chosen].map((i) => DATA.clients.names[i])") == [name]
    assert browser.run("return document.activeElement.tagName") == "CANVAS"
    find(browser, "#plot-clients canvas").send_keys(Keys.ESCAPE)
    assert browser.run("return POINTS.chosen.size") == 0
    find(browser, "#client-table tbody input").send_keys(Keys.SPACE)
    assert browser.run("return POINTS.chosen.size") == 1
    assert browser.messages() == []


def test_curves_follow_the_pointer_and_the_arrow_keys_and_change_their_axes(browser, pages):
    show(browser, pages["several"])
    figure = find(browser, "#plot-curves svg[role=img]")
    assert browser.run("return document.querySelectorAll('#plot-curves .band').length") == 3
    figure.send_keys(Keys.ARROW_LEFT)
    text = browser.run("return document.getElementById('announce').textContent")
    assert text.startswith("round 29\nfedavg: ")
    selects = browser.driver.find_elements(By.CSS_SELECTOR, "#plot-curves select")
    Select(selects[1]).select_by_value("sent")
    assert "sent (bytes)" in find(browser, "#plot-curves svg[role=img]").get_attribute("textContent")
    Select(find(browser, "#plot-curves select")).select_by_value("worst_decile")
    assert "worst tenth" in find(browser, "#plot-curves svg[role=img]").get_attribute("textContent")
    Select(find(browser, "#plot-clients select")).select_by_visible_text("ditto against fedavg")
    heads = browser.run("return [...document.querySelectorAll('#client-table th button')].map((e) => e.textContent)")
    assert heads[3:5] == ["ditto", "fedavg"]
    assert browser.messages() == []


def test_colours_can_be_chosen_and_figures_have_tables_for_those_who_do_not_see_them(browser, pages):
    show(browser, pages["one"])
    button = find(browser, "#theme")
    colours = []
    for _ in range(3):
        button.click()
        colours.append((button.text, browser.run("return getComputedStyle(document.body).backgroundColor")))
    assert colours == [("Light", "rgb(255, 255, 255)"), ("Dark", "rgb(18, 21, 26)"), ("Auto", "rgb(255, 255, 255)")]
    unseen = "[...document.querySelectorAll('svg[role=img], canvas')].filter((e) => !e.getAttribute('aria-label'))"
    assert browser.run(f"return {unseen}.length") == 0
    label = "e.textContent.trim() || e.labels?.length || e.getAttribute('aria-label')"
    unnamed = f"[...document.querySelectorAll('button, select, input')].filter((e) => !({label}))"
    assert browser.run(f"return {unnamed}.length") == 0
    for summary in browser.driver.find_elements(By.CSS_SELECTOR, "figure summary"):
        summary.send_keys(Keys.ENTER)
    script = "return [...document.querySelectorAll('figure table')].every((e) => e.getBoundingClientRect().height > 0)"
    assert browser.run(script)
    browser.prefer("dark", "print")
    assert find(browser, ".bar").is_displayed() is False
    browser.prefer("light")


def test_text_has_enough_contrast_in_both_themes(browser, pages):
    for theme in ("light", "dark"):
        browser.prefer(theme)
        browser.open(pages["several"])
        for name, least in (("--text", 7), ("--soft", 4.5), ("--good", 4.5), ("--bad", 4.5)):
            style = "const s = getComputedStyle(document.documentElement);"
            colours = browser.run(f"{style} return ['{name}', '--page'].map((n) => s.getPropertyValue(n).trim())")
            assert contrast(*colours) >= least, (theme, name)


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, as WCAG 2 defines it."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_ten_thousand_clients_are_drawn_sorted_and_searched_while_one_waits(browser, tmp_path):
    page = one_run(tmp_path, 10_000)
    assert page.stat().st_size < 4_000_000
    show(browser, page)
    assert browser.run("return POINTS.order.length") == 10_000
    work = """
    const times = {};
    const take = (name, act) => { const a = performance.now(); act(); times[name] = performance.now() - a; };
    take('draw', drawPoints);
    take('sort', () => sortBy('name'));
    take('search', () => { TABLE.search = 'site-99'; fillTable(); });
    take('hover', () => { for (let k = 0; k < 100; k += 1) nearest(k * 8, 200); });
    take('select', () => toggleClient(5));
    return times;
    """
    times = browser.run(work)
    print("milliseconds with 10,000 clients:", {name: round(value) for name, value in times.items()})
    # How long it takes is the machine's; how many elements are made is the page's, and does not grow with clients.
    nodes = browser.run(COUNT_NODES)
    print("nodes made:", nodes)
    assert max(nodes[name] for name in ("sort", "search", "page", "select")) < 700
    assert nodes["hover"] <= 100  # the text of the tip, once for each of a hundred moves
    assert browser.run("return document.querySelectorAll('#client-table tbody tr').length") == 20
    assert browser.run("return document.querySelectorAll('*').length") < 3000
    assert browser.messages() == []


COUNT_NODES = """
const made = {}, seen = new MutationObserver(() => {});
seen.observe(document.body, { childList: true, subtree: true });
const count = (node) => 1 + (node.querySelectorAll ? node.querySelectorAll('*').length : 0);
const take = (name, act) => {
  act();
  made[name] = seen.takeRecords().flatMap((each) => [...each.addedNodes]).reduce((sum, node) => sum + count(node), 0);
};
const canvas = document.querySelector('#plot-clients canvas'), room = canvas.getBoundingClientRect();
const search = document.getElementById('client-search');
take('search', () => { search.value = 'site-9'; search.dispatchEvent(new Event('input')); });
take('sort', () => document.querySelector('#client-table [data-key=name]').click());
take('page', () => document.querySelector('#client-table .pages button:last-child').click());
take('select', () => document.querySelector('#client-table tbody input').click());
const move = (x) => new PointerEvent('pointermove', { clientX: room.left + x, clientY: room.top + 200 });
take('hover', () => { for (let k = 0; k < 100; k += 1) canvas.dispatchEvent(move(60 + 8 * k)); });
return made;
"""


def test_the_live_page_follows_a_run_to_its_end(browser, tmp_path):
    from moiety.cli.live import make_server

    server, _ = make_server(tmp_path)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    gate, answers = threading.Event(), []

    class Wait(mo.callbacks.Callback):
        def on_evaluate(self, run, row):
            if row["round"] == 2:
                gate.wait(60)

    def train() -> None:
        digits = mo.data.load("digits", clients=6, partition=mo.data.iid(), seed=0, test=0)
        names = (*HOSTILE, "a", "b", "c")
        fed = mo.data.from_clients({name: digits.client(k) for k, name in enumerate(names)}, test=0.2)
        model = mo.models.mlp(64, 10, hidden=(8,), seed=0)
        algorithm, split = mo.fedalt(shared=0.1, personal=0.1), mo.split.output_layer(model)
        settings = mo.Settings(evaluate_every=1)
        folder = tmp_path / "<img src=x onerror=window.broken=4>"
        mo.fit(
            model,
            fed,
            algorithm,
            split=split,
            rounds=4,
            out=folder,
            callbacks=[Wait()],
            settings=settings,
            engine="sequential",
        )

    worker = threading.Thread(target=train)
    try:
        address = f"http://127.0.0.1:{server.server_port}/"
        browser.open(address)
        worker.start()
        answers.append(wait_for(browser, "Round 2 of 4"))
        for size, theme in itertools.product(SIZES.values(), ("light", "dark")):
            browser.size(*size)
            browser.prefer(theme)
            assert browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0
            assert browser.run("return getComputedStyle(document.body).backgroundColor") == COLOURS[theme]
        gate.set()
        answers.append(wait_for(browser, "Personal models"))
        assert all(answers)
        assert set(list_names(browser)) == {*HOSTILE, "a", "b", "c"}
        assert browser.run("return window.broken") is None
        assert browser.run("return document.querySelectorAll('script').length") == 2
        assert browser.run("return document.querySelectorAll('main img').length") == 0
        assert {place.split("?")[0] for place in browser.requests()} == {address, f"{address}state"}
        assert browser.messages() == []
    finally:
        gate.set()
        worker.join()
        server.shutdown()
        server.server_close()
        thread.join()


def wait_for(browser: Browser, words: str) -> bool:
    """Whether the headline begins with these words before long."""
    headline = "return document.querySelector('h1').textContent"
    return bool(wait_until(lambda: browser.run(headline).startswith(words), pause=0.1))
