"""A newcomer's walk: the wheel in an environment outside the repository, docs/start.md in a folder, the report.

Nothing is shortened here, and the numbers are checked. What site-k writes down is known: "well" where the dose is above
zero, and the other way round at odd sites. So one model for all is right about half the time.
"""

import json
import re
import sys
import zipfile
from pathlib import Path

import pytest
from docs_files import DOCS, blocks, commands
from outside import call

ROOT = DOCS.parent

SITES = [f"site-{k}" for k in range(8)]
EPILOGUE = """
import json, sys
rows = {"age": [40, 60, 40, 60], "shift": ["day", "night", "day", "night"], "dose": [1.5, 2.0, -1.5, -2.0]}
json.dump(
    {
        "where": mo.__file__,
        "one model": shared.history[-1]["metric"],
        "personal": personal.history[-1]["metric"],
        "again": again.history[-1]["metric"],
        "clients": {row["client"]: row["metric"] for row in personal.clients},
        "predictions": {f"site-{k}": personal.predict(f"site-{k}", rows).tolist() for k in range(8)},
    },
    open("walk.json", "w"),
)
"""


@pytest.fixture(scope="module")
def folder(bin_folder, tmp_path_factory) -> Path:
    """The folder in which a newcomer went through docs/start.md, block by block."""
    place = tmp_path_factory.mktemp("newcomer")
    page = blocks(DOCS / "start.md")
    program = "\n".join(text for kind, text in page if kind == "python") + EPILOGUE
    (place / "walk.py").write_text(program, encoding="utf-8")
    (place / "printed.txt").write_text(call("python", "walk.py", cwd=place, folder=bin_folder), encoding="utf-8")
    for kind, text in page:
        if kind == "toml":
            (place / re.match(r"# (\S+\.toml)", text)[1]).write_text(text, encoding="utf-8")
        for line in commands(text) if kind == "sh" else ():
            if line.startswith("moiety "):  # the others install, which was done
                call("bash", "-c", line, cwd=place, folder=bin_folder)
    return place


def test_what_a_release_uploads_is_whole(dist, tmp_path) -> None:
    files = sorted(dist.iterdir())
    assert [file.suffix for file in files] == [".whl", ".gz"]
    output = call(sys.executable, "-m", "twine", "--no-color", "check", "--strict", *map(str, files), cwd=tmp_path)
    assert output.count("PASSED") == 2
    source = ROOT / "src"
    paths = [file.relative_to(source).as_posix() for file in source.rglob("*") if file.is_file()]
    expected = {name for name in paths if "__pycache__" not in name}
    packed = {name for name in zipfile.ZipFile(files[0]).namelist() if ".dist-info/" not in name}
    assert packed == expected
    assert {"moiety/py.typed", "moiety_recipes/py.typed", "moiety/reports/page/template.html"} <= packed


def test_the_numbers_are_those_that_the_page_promises(folder, bin_folder) -> None:
    results = json.loads((folder / "walk.json").read_text(encoding="utf-8"))
    assert Path(results["where"]).is_relative_to(bin_folder.parent)
    assert 0.3 < results["one model"] < 0.65
    assert results["personal"] > 0.8
    assert results["again"] == results["personal"]
    assert sorted(results["clients"]) == SITES
    right = {
        name: ["well", "well", "ill", "ill"] if k % 2 == 0 else ["ill", "ill", "well", "well"]
        for k, name in enumerate(SITES)
    }
    assert results["predictions"] == right
    text = (folder / "printed.txt").read_text(encoding="utf-8")
    assert f"{results['one model']} {results['personal']}" in text
    assert all(name in text for name in SITES)


def test_files_and_commands_leave_reports(folder) -> None:
    for name in ("from-file", "sweep"):
        text = (folder / "runs" / name / "report.html").read_text(encoding="utf-8")
        assert all(site in text for site in SITES)
    rounds = (folder / "runs" / "from-file" / "history.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(rounds[-1])["round"] == 40
    assert json.loads(rounds[-1])["metric"] > 0.8


def test_recipes_run_from_the_wheel(bin_folder, tmp_path) -> None:
    output = call("moiety", "run", "quickstart", "--rounds", "2", "--out", "demo", cwd=tmp_path, folder=bin_folder)
    assert "fedalt" in output.lower()
    assert (tmp_path / "demo" / "report.html").is_file()


def test_the_report_opens_in_a_browser_and_names_the_sites(folder, monkeypatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests" / "in_browser")
    from browser import CHROMIUM, DRIVER, open_browser

    if not (CHROMIUM and DRIVER):
        pytest.skip("no Chromium with its driver here: apt-get install chromium chromium-driver")
    page = folder / "runs" / "from-file" / "report.html"
    with open_browser() as browser:
        browser.open(page)
        assert browser.messages() == []
        assert browser.requests() == [page.as_uri()]
        names = "return [...document.querySelectorAll('#client-table tbody th')].map((e) => e.textContent)"
        assert sorted(browser.run(names)) == SITES
        assert "8" in browser.run("return document.querySelector('h1').textContent")
