"""The report without a browser: its content, what names can do to it, and its size."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from report_rows import client, group, history, result

from moiety.errors import MoietyError
from moiety.reports.groups import Group
from moiety.reports.page import make_page, write_report
from moiety.reports.page.content import choose_clients, gather

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    '"><img src=x onerror=alert(3)>',
    "<!--<script>",
    "a' onmouseover='alert(4)",
    "@@data@@",
    "half \ud800 name",
    "\u2028 line",
)
SIZE = 4_000_000


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, texts, tables, and the data."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.texts: dict[str, str] = {}
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.stack: list[str] = []
        self.feed(text)
        self.data = json.loads(next(text for attributes, text in self.scripts if attributes.get("id") == "data"))

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.stack.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag == "script":
            self.scripts.append((dict(attributes), ""))

    def handle_endtag(self, tag):
        while self.stack and self.stack.pop() != tag:
            pass

    def handle_data(self, text):
        tag = self.stack[-1] if self.stack else ""
        if tag == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + text)
        elif tag in ("td", "th"):
            self.tables[-1][-1][-1] += text
        self.texts[tag] = self.texts.get(tag, "") + text

    def table(self, head: str) -> list[list[str]]:
        return next(table for table in self.tables if head in table[0])


def one_run() -> Page:
    rows = [client("ann", 1.0, 0.0), client("bob", 0.0, 1.0), client("cyd", 0.6, 0.5), client("dan", 0.5, 0.5, n=80)]
    return Page(make_page([group("fedalt", result("fedalt", rows))]))


def test_the_headline_and_the_tables_say_what_was_counted_by_hand():
    page = one_run()
    # (1 + 0 + 0.6 + 0.5) / 4 = 0.525 against 2 / 4; ten answers to none are beyond noise, one is not.
    assert page.texts["h1"] == (
        "Personal models reach 52.5% accuracy on average over 4 clients, 2.5 points better than the shared model alone."
        " 1 client gains beyond noise, 1 loses."
    )
    counts = page.table("helped beyond noise")
    assert counts[1] == ["personal against shared alone", "4", "1", "2", "1", "1", "1", "+2.5"]
    sizes = page.table("training rows")
    assert [row[:5] for row in sizes[1:]] == [
        ["at most 20", "3", "+3.3", "2", "1"],
        ["more than 20", "1", "0.0", "0", "0"],
    ]
    assert "bob (-100.0)" in page.texts["p"]
    spread = page.table("mean of the worst tenth")
    assert spread[1][:2] == ["personal models", "4"]
    assert spread[1][2] == "0.0%"
    assert spread[1][5] == "55.0%"  # the median of 0, 0.5, 0.6, 1
    costs = {row[0]: row[1] for row in next(t for t in page.tables if t[0][0] == "rounds")}
    assert costs["sent down"] == "1 kB"
    assert costs["local training"] == "2 MFLOP"


def test_the_data_of_the_figures_are_the_rows_of_the_run():
    data = one_run().data
    assert data["clients"] == {
        "names": ["ann", "bob", "cyd", "dan"],
        "n": [20, 20, 20, 80],
        "n_test": [10] * 4,
        "of": 4,
    }
    view = data["views"][0]
    assert view["gain"] == [1, -1, 0.1, 0]
    assert [data["verdicts"][at] for at in view["verdict"]] == ["helped", "hurt", "within noise", "within noise"]
    curve = data["curves"]["groups"][0]["columns"]
    assert curve["metric"] == [[0.5, 0.5, 0.5], [0.75, 0.75, 0.75]]
    assert curve["sent"] == [[750, 750, 750], [1500, 1500, 1500]]
    assert data["helped"] == [{"label": "personal against shared alone", "counts": [1, 0, 1, 1, 1]}]


def two_groups() -> Page:
    def runs(name, *metrics):
        return group(
            name, *(result(name, [client("a", m, m), client("b", m, m)], history(m), s) for s, m in enumerate(metrics))
        )

    return Page(make_page([runs("fedavg", 0.5, 0.6, 0.7), runs("fedalt", 0.6, 0.8, 0.8)]))


def test_several_runs_have_paired_differences_over_seeds():
    page = two_groups()
    # Differences 0.1, 0.2, 0.1: mean 0.1333, standard deviation 0.057735, t 4.302653: half 0.143422.
    pair = page.data["pairs"][0]
    assert (pair["mean"], pair["low"], pair["high"], pair["n"]) == pytest.approx(
        (0.13333, -0.010089, 0.27676, 3), rel=1e-4
    )
    assert page.table("verdict")[1] == ["fedalt against fedavg", "3", "+13.3 [-1.0, +27.7]", "not decided"]
    assert len(page.data["pairs"]) == 1
    assert "decides nothing" in page.texts["h1"]
    band = page.data["curves"]["groups"][0]["columns"]["metric"]
    assert band == [[0.6, 0.5, 0.7]]
    differ = next(table for table in page.tables if table[0] == ["setting", "fedavg", "fedalt"] and len(table) < 4)
    assert differ[1:] == [["algorithm.name", "fedavg", "fedalt"]]


def test_differences_between_runs_are_not_drawn_with_gains_over_a_shared_model_alone():
    def runs(name, own, shared):
        clients = [client("a", own, shared), client("b", own, shared)]
        return group(name, *(result(name, clients, seed=s) for s in range(3)))

    page = Page(make_page([runs("one", 0.5, 0.5), runs("two", 0.6, 0.0)]))
    assert [pair["label"] for pair in page.data["pairs"]] == ["two against one"]
    assert [view["label"] for view in page.data["views"]] == ["two against one", "two: personal against shared alone"]
    page = Page(
        make_page(
            [group("x", result("x", [client("a", 1.0, 0.0)])), Group("y", {7: result("y", [client("a", 0.5, 0.0)])})]
        )
    )
    assert page.data["pairs"] == []
    assert "These runs share no seed" in page.texts["p"]


def test_the_headline_of_two_runs_with_one_seed_says_what_one_seed_can():
    def run(name, *metrics):
        clients = [client(f"c{k}", metric, metric) for k, metric in enumerate(metrics)]
        return group(name, result(name, clients))

    text = Page(make_page([run("one", 0.0, 0.5), run("two", 1.0, 0.6)])).texts["h1"]
    assert text == (  # (1 + 0.6 - 0 - 0.5) / 2
        "two is 55.0 points better than one in accuracy, with one seed: how far seeds differ is not known. 1 client"
        " gains beyond noise, none loses."
    )
    pair = [
        group(name, result(name, [client("a", m, m)], history(m, name="mse"))) for name, m in (("x", 2.0), ("y", 1.5))
    ]
    assert Page(make_page(pair)).texts["h1"].endswith("how far seeds differ is not known.")


def test_what_is_measured_of_the_engine_is_no_difference_between_runs():
    runs = [result(name, [client("a", 1.0, 0.5)]) for name in ("x", "y")]
    for seconds, run in enumerate(runs):
        run.config["run"]["engine_reason"] = f"expected for a round: {seconds} ms"
    page = Page(make_page([group(run.name, run) for run in runs]))
    assert page.table("setting")[1:] == [["algorithm.name", "x", "y"]]


def test_the_page_says_where_intervals_are_from():
    ends = {"gain_low": 0.1, "gain_high": 0.9}
    rows = [client("a", 0.5, 1.0, **ends), client("b", 0.25, 1.0, **ends)]
    one = result("x", rows, history(1.5, 1.0, name="mse"))
    assert "the differences between two models on its test rows" in Page(make_page([group("x", one)])).texts["p"]
    seeds = [result("x", [client("a", 0.5, 1.0)], history(1.5, 1.0, name="mse"), s) for s in range(3)]
    assert "the 95% interval of a client's gain, over seeds," in Page(make_page([group("x", *seeds)])).texts["p"]


def test_a_run_under_way_has_a_bar_and_one_that_ended_has_none():
    run = result("x", [], history(0.5))
    run.config["run"]["rounds"] = 4
    page = Page(make_page([group("x", run)], live=True))
    (bar,) = (attributes for tag, attributes in page.elements if tag == "progress")
    assert (bar["value"], bar["max"]) == ("1", "4")
    assert page.texts["h1"] == "Round 1 of 4: accuracy 50.0% on test rows."
    assert "<progress" not in make_page([group("x", result("x", [client("a", 1.0, 0.0)]))])


def test_thousands_have_commas():
    page = Page(make_page([group("x", result("x", [client(f"c{k}", 0.5, 0.4) for k in range(1200)]))]))
    assert "over 1,200 clients" in page.texts["h1"]
    assert page.table("helped beyond noise")[1][1] == "1,200"


def test_no_interval_of_a_share_leaves_what_is_possible():
    rows = [result("x", [client("a", m, m)], history(m), s) for s, m in enumerate((1.0, 0.2))]
    others = [result("y", [client("a", m, m)], history(m), s) for s, m in enumerate((0.9, 0.9))]
    page = Page(make_page([group("x", *rows), group("y", *others)]))
    cell = page.table("split")[1][1]
    assert cell == "60.0% [0.0%, 100.0%]"  # Student's interval with two seeds would go far beyond


@pytest.mark.parametrize("hostile", HOSTILE)
def test_names_are_text_wherever_they_stand(hostile):
    rows = [client(hostile, 0.0, 1.0), client("b", 1.0, 0.0)]
    odd = result(hostile, rows)
    odd.config["data"]["name"] = hostile
    odd.config["algorithm"]["name"] = hostile
    plain = [client(hostile, 0.5, 0.5), client("b", 0.5, 0.5)]
    other = result("plain", plain)
    other.config["data"]["name"] = hostile
    text = make_page([group(hostile, odd), group("plain", other)])
    page, clean = Page(text), two_groups()
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in clean.elements} | {"p"}
    assert len(page.scripts) == 2
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert page.data["clients"]["names"][1] == "b"
    text.encode("utf-8")


def test_the_page_asks_for_nothing_and_its_policy_allows_its_script_alone():
    text = make_page([group("fedalt", result("fedalt", [client("a", 1.0, 0.0)]))])
    page = Page(text)
    places = [
        a.get(name) for _, a in page.elements for name in ("src", "href", "action", "data", "poster") if a.get(name)
    ]
    assert places == ["data:,", "#main"]
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text)
    policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    code = next(text for attributes, text in page.scripts if not attributes)
    assert f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'" in str(policy)
    assert "default-src 'none'" in str(policy)
    assert "connect-src" not in str(policy)


def test_the_size_of_the_page_is_bounded_whatever_the_number_of_clients():
    empty = len(make_page([group("x", result("x", [client("a", 1.0, 0.0)]))]).encode())
    assert empty < 150_000
    long = [client("ä" * 300 + str(at), at / 30_000, 0.123456, n=at + 1) for at in range(30_000)]
    text = make_page([group("x", result("x", long))])
    assert len(text.encode()) < SIZE
    page = Page(text)
    assert len(page.data["clients"]["names"]) == 10_000
    assert page.data["clients"]["of"] == 30_000
    assert page.table("helped beyond noise")[1][1] == "30,000"
    assert "Shown are 10,000 of 30,000 clients" in page.texts["p"]


def test_of_many_clients_those_at_both_ends_are_drawn():
    rows = [client(str(at), 0.5 + at / 1e5, 0.5) for at in range(20_000)]
    content = gather([group("x", result("x", rows))])
    clients = choose_clients(content.views, len(rows))
    assert len(clients) == len(set(clients.tolist())) == 10_000
    assert set(range(2500)) <= set(clients.tolist())
    assert set(range(17_500, 20_000)) <= set(clients.tolist())
    assert np.diff(clients).max() <= 4


def test_draws_and_calibration_are_shown_where_there_is_a_posterior():
    rows = [
        client("a", 0.9, 0.5, effective_draws=5.5, rhat=1.25, diverges=False),
        client("b", 0.9, 0.5, effective_draws=7.5, rhat=1.0, diverges=True),
    ]
    bins = [{"low": 0.8, "high": 0.9, "n": 4, "confidence": 0.85, "accuracy": 0.75}]
    page = Page(make_page([group("fedpop", replace(result("fedpop", rows), calibration=bins))]))
    assert page.table("fewest")[1] == ["fedpop", "2", "6.5", "5.5", "1.125", "1", "1"]
    assert page.table("mean confidence")[1] == ["fedpop", "0.80 to 0.90", "4", "0.850", "0.750"]
    assert "Calibration error: fedpop 0.100" in page.texts["figcaption"]
    assert not any("fewest" in table[0] for table in one_run().tables)


def test_what_clients_chose_with_a_safeguard_is_counted():
    shares = [(1.0, 0.02), (1.0, 0.1), (0.5, 0.04), (0.0, 0.7), (0.0, 0.0), (0.0, 0.0)]
    rows = [client(f"c{i}", 0.8, 0.7, personal_share=share, risk=risk) for i, (share, risk) in enumerate(shares)]
    plain = group("plain", result("plain", [client(f"c{i}", 0.8, 0.7) for i in range(6)]))
    page = Page(make_page([plain, group("guarded", result("guarded", rows))]))
    (table,) = [table for table in page.tables if "a mixture" in table[0]]
    assert table[1:] == [["guarded", "6", "2", "1", "3", "10%"]]
    assert not any("a mixture" in table[0] for table in Page(make_page([plain])).tables)


def test_bins_of_several_seeds_are_pooled():
    """Three examples of ten, and one of two, were right: four of twelve."""
    low, high = {"low": 0.0, "high": 0.5}, {"low": 0.5, "high": 1.0}
    first = [{**high, "n": 10, "confidence": 0.9, "accuracy": 0.3}]
    second = [{**low, "n": 1, "confidence": 0.4, "accuracy": 1.0}, {**high, "n": 2, "confidence": 0.6, "accuracy": 0.5}]
    runs = [replace(result("x", [client("a", 1.0, 0.0)]), calibration=bins) for bins in (first, second)]
    page = Page(make_page([group("x", *runs)]))
    assert page.table("mean confidence")[1:] == [
        ["x", "0.00 to 0.50", "1", "0.400", "1.000"],
        ["x", "0.50 to 1.00", "12", "0.850", "0.333"],
    ]


@pytest.mark.parametrize(
    ("split", "algorithm", "words"),
    [
        ("output_layer", "fedalt", "first values that no client has trained"),
        ("output_layer", "fedpop", "the centre of the prior"),
        ("output_layer", "finetune", ""),  # the model that the run began with
        ("nothing", "ditto", ""),  # a model that all clients trained
        ("full", "fedalt", ""),
    ],
)
def test_the_page_says_where_the_shared_model_alone_is_no_model_for_all(split, algorithm, words):
    run = result(algorithm, [client("ann", 1.0, 0.5), client("bob", 0.5, 0.5)])
    run.config["split"]["name"] = split
    text = Page(make_page([group("a", run)])).texts["p"]
    assert ("not one model for all" in text) == bool(words)
    assert words in text


def test_one_model_for_all_has_no_note_on_what_gains_are_over():
    run = result("fedavg", [client("ann", 1.0, 1.0)], history(0.5, 0.75, shared_metric=None))
    run.config["split"]["name"] = "nothing"
    assert "not one model for all" not in make_page([group("a", run)])


def test_what_went_wrong_is_not_among_what_is_well():
    rows = history(0.5, 0.75)
    rows[1]["dropped"] = ["bob"]
    clients = [
        client("ann", 1.0, 0.5, effective_draws=9.0, rhat=1.31),
        client("bob", 1, 0.5, effective_draws=19.0, rhat=1.0),
    ]
    bad = replace(result("fedpop", clients, rows), stopped="no better accuracy")
    marks = re.findall(r'<li class="not"><b>Attention:</b> ([^<]*)</li>', make_page([group("a", bad)]))
    assert [words.split(";")[0] for words in marks] == [
        "1 update was dropped",
        "The halves of the chains of 1 of 2 clients disagree (split R-hat above 1.1), as is usual for the few draws"
        " that training keeps. Intervals need more: run.predictive(client, x, draws=100).",
        "fedpop stopped early: no better accuracy.",
    ]
    good = make_page([group("a", result("fedalt", [client("ann", 1.0, 0.5)]))])
    assert "Attention" not in good
    assert "<li>No update was dropped.</li>" in good


def test_epsilon_is_a_cost_and_a_curve_where_the_history_has_it():
    rows = history(0.5, 0.75, epsilon=1.5, delta=1e-5)
    page = Page(make_page([group("x", result("x", [client("a", 1.0, 0.0)], rows))]))
    costs = {row[0]: row[1] for row in next(t for t in page.tables if t[0][0] == "rounds")}
    assert costs["privacy spent, epsilon"] == "1.5"
    assert "epsilon, the privacy spent" in page.texts["dt"]
    assert "at delta 1e-05" in page.texts["small"]
    assert "They do not cover personal parts, nor the scores and names on this page." in page.texts["p"]
    assert "epsilon" in [each["key"] for each in page.data["curves"]["measures"]]


def test_numbers_that_are_not_finite_and_clients_without_rows_do_no_harm():
    rows = [client("a", 1.0, 0.5), client("b", float("nan"), float("nan"), n_test=0)]
    page = Page(make_page([group("x", result("x", rows, history(0.5, None)))]))
    assert page.data["views"][0]["gain"] == [0.5, None]
    assert page.data["curves"]["groups"][0]["columns"]["metric"][1] == [None, None, None]


def test_every_figure_has_a_table_behind_it_and_every_table_a_caption():
    text = make_page([group("fedalt", result("fedalt", [client("a", 1.0, 0.0)]))])
    figures = re.findall(r'<figure id="figure-(\w+)">(.*?)</figure>', text, re.S)
    assert [name for name, _ in figures] == ["curves", "helped", "clients", "spread"]
    assert all("<table>" in inner for name, inner in figures if name != "clients")  # that one has the table below it
    assert text.count("<table>") == text.count("<caption>")
    assert len(re.findall("<h1>", text)) == 1


def test_runs_of_other_data_are_refused_and_nothing_is_written(tmp_path: Path):
    one, two = result("x", [client("a", 1.0, 0.0)]), result("y", [client("other", 1.0, 0.0)])
    with pytest.raises(MoietyError, match="clients"):
        write_report([group("x", one), group("y", two)], tmp_path / "report.html")
    with pytest.raises(MoietyError, match="`path` must be a file"):
        write_report([group("x", one)], tmp_path)
    assert list(tmp_path.iterdir()) == []
    target = write_report([group("x", one)], tmp_path / "report.html")
    assert target.stat().st_mode & 0o777 == 0o600


def test_cards_of_several_runs_show_what_the_headline_compares():
    """75 and 25 test rows: 0.5 and 0.9 * 0.75 + 0.5 * 0.25 = 0.8, while the plain means are 0.5 and 0.7."""
    groups = [
        group(name, *(result(name, [client("a", score, score, n_test=75), client("b", 0.5, 0.5, n_test=25)],
                             history(score), seed) for seed in range(3)))
        for name, score in (("fedavg", 0.5), ("fedalt", 0.9))
    ]  # fmt: skip
    text = make_page(groups)
    assert "fedalt is 30.0 points better than fedavg in accuracy" in text
    assert "<dd>80.0%</dd>" in text
    assert "<dd>70.0%</dd>" not in text


def compare_scores(scores: dict[str, tuple[float, ...]]) -> Page:
    """A page of runs whose only client has these scores, one for each seed."""
    return Page(
        make_page(
            [
                group(name, *(result(name, [client("a", s, s)], history(s), seed) for seed, s in enumerate(each)))
                for name, each in scores.items()
            ]
        )
    )


def test_the_headline_of_many_runs_says_which_are_better_which_worse_and_how_many_are_open():
    """All seeds of `up` are 20 points better, all of `down` 30 worse; those of `even` are on both sides."""
    base = (0.5, 0.6, 0.7)
    up, down, even = (0.7, 0.8, 0.9), (0.2, 0.3, 0.4), (0.4, 0.7, 0.7)
    page = compare_scores({"fedavg": base, "up": up, "even": even, "down": down})
    assert page.texts["h1"] == (
        "Beyond the noise of seeds, better than fedavg: up (+20.0 points); worse than fedavg: down (-30.0 points);"
        " not decided: 1."
    )
    page = compare_scores({"fedavg": base, "even": even, "same": base})
    assert page.texts["h1"] == "None of 2 runs differs from fedavg beyond the noise of seeds."


def test_the_card_of_helped_and_hurt_says_of_which_comparison():
    text = make_page([group(name, result(name, [client("a", 0.9, 0.5, n_test=100)])) for name in ("fedavg", "fedalt")])
    assert "of 1 client beyond noise, fedalt against fedavg" in text
