"""What holds for the pages of all recipes: no claims at scale ci, and tables without matplotlib."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from moiety.cli import main
from moiety.recipes import RECIPES, Outcome
from moiety.recipes.base import ONLY_RUNS
from moiety.recipes.partial_report import head


@pytest.mark.parametrize(("scale", "said"), [("ci", 1), ("laptop", 0), ("paper", 0)])
def test_a_page_at_scale_ci_says_that_it_shows_nothing(scale, said):
    asked = {"scale": scale, "rounds": None, "seed": 0}
    page = head("glocal-table1", asked, [{"seconds": 1.0}], "About.")["page"]
    assert page.count(ONLY_RUNS) == said
    ended = Outcome({}, "3 claims hold.", f"{page}\n\n## Claims")
    assert ended.closing == (ONLY_RUNS if said else "3 claims hold.")


def test_every_page_begins_with_that_head():
    # The two places where a recipe can have its page from: its own module, or one that this imports.
    for name, recipe in RECIPES.items():
        module = Path(sys.modules[recipe.__module__].__file__ or "")
        texts = [module.read_text()]
        for other in module.parent.glob("*.py"):
            if f"moiety.recipes.{other.stem} import" in texts[0]:
                texts.append(other.read_text())
        assert name == "quickstart" or any("_report import" in text for text in texts), name
    for file in Path(sys.modules["moiety.recipes"].__file__ or "").parent.glob("*_report.py"):
        assert "head(" in file.read_text(), file.name


@pytest.mark.parametrize("name", ["fedpop-toy", "glocal-fictitious", "glocal-delay", "ffgg-figure1"])
def test_tables_are_written_where_matplotlib_is_not_installed(name, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not there: neither found nor imported
    engine = [] if name.startswith("glocal") else ["--engine", "sequential"]
    assert main(["run", name, "--scale", "ci", *engine, "--out", str(tmp_path / "out"), "-q"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == [ONLY_RUNS, f"results in {tmp_path / 'out'}"]
    page = (tmp_path / "out/table.md").read_text()
    assert "moiety[report]" in page
    assert page.count(ONLY_RUNS) == 1
    assert json.loads((tmp_path / "out/table.json").read_text())["rows"]
    assert not list((tmp_path / "out").rglob("*.png"))
