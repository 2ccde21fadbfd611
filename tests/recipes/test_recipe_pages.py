"""What holds for the pages of all recipes: every name can be run, and tables need no matplotlib."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from moiety import MoietyError
from moiety.cli import main
from moiety.experiments import CI_NOTICE, SCALES, list_recipes, load_recipe
from moiety.experiments.plans import describe_plan, plain_fields
from moiety_recipes import fedpop_holds, fedpop_work, fedspa_ablations, fedspa_holds, ffgg_holds, glocal_holds

NOT_THE_PAPERS = {"fedalt-people", "fedalt-labels", "fedalt-roles", "fedalt-numbers"}
"""Recipes whose tasks the paper does not have."""


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_has_its_name_and_sizes_at_every_scale(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.summary.endswith(".")
    for scale in SCALES:
        if scale == "paper" and name in NOT_THE_PAPERS:
            with pytest.raises(MoietyError, match="`scale` must be ci, laptop or night, got 'paper'"):
                recipe.plan(scale)
        elif scale != "night" or recipe.night:
            fields = plain_fields(recipe.plan(scale))
            assert "rounds" in fields or "rounds" in recipe.refused
            assert "seeds" in fields or "seeds" in recipe.refused


def test_every_recipe_of_a_plan_has_sizes_for_the_night():
    """Without the flag, the sizes of ``laptop`` would run under the name of ``night``."""
    texts = [path.read_text() for path in (Path(__file__).parents[2] / "docs").glob("*plan.md")]
    rows = {name for text in texts for name in re.findall(r"^\| `([\w-]+)` \|", text, flags=re.M)}
    names = rows & set(list_recipes())  # others are settings
    assert len(names) >= 20
    for name in names:
        recipe = load_recipe(name)
        assert recipe.night
        assert describe_plan(recipe.plan("night")) != describe_plan(recipe.plan("laptop"))


@pytest.mark.parametrize("page", [fedpop_holds, fedspa_holds, ffgg_holds, glocal_holds])
def test_what_holds_is_of_recipes_with_sizes_for_the_night_and_of_a_plan(page):
    plan = (Path(__file__).parents[2] / page.PAPER.plan).read_text()
    for name in page.PAPER.titles:
        assert load_recipe(name).night
        assert f"| `{name}` |" in plan


@pytest.mark.parametrize("page", [fedpop_holds, fedspa_holds])
def test_every_headline_has_a_figure(page):
    """Those of the pages that are there, and those that ``fedpop-work`` and ``fedspa-ablations`` will have."""
    folder, claims = Path(__file__).parents[2] / "docs/results", []
    for name in page.PAPER.titles:
        file = folder / name / "table.json"
        table = json.loads(file.read_text()) if file.exists() else {"rows": []}
        claims += [(name, row["row"]) for row in table["rows"] if row.get("headline")]
    work = [("Table 2", 0), ("Figure 3", -1)]
    plan = fedpop_work.plan("night")
    claims += [
        ("fedpop-work", f"{title}, equal work: FedSOUL beats {other}")
        for title, at in work
        for other in plan.methods_of(plan.deals[at])
        if other != "FedSOUL"
        if page is fedpop_holds
    ]
    claims += [("fedspa-ablations", str(s)) for s in fedspa_ablations.STATEMENTS if page is fedspa_holds]
    drawings = page.PAPER.drawings.values()
    for recipe, text in claims:
        fits = [d for d in drawings if d.recipe == recipe and re.fullmatch(d.pattern, text)]
        assert len(fits) == 1, text
    for drawing in drawings:
        assert any(drawing.recipe == recipe and re.fullmatch(drawing.pattern, text) for recipe, text in claims)


@pytest.mark.parametrize("name", ["fedpop-toy", "glocal-fictitious", "glocal-delay", "ffgg-figure1"])
def test_tables_are_written_where_matplotlib_is_not_installed(name, recipe_run, tmp_path, capsys, monkeypatch):
    """A recipe that has ended writes its page and table anew."""
    shutil.copytree(recipe_run(name).folder, tmp_path / "out", ignore=shutil.ignore_patterns("*.png", "table.*"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not there: neither found nor imported
    assert main(["run", name, "--out", str(tmp_path / "out"), "--resume", "-q"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [CI_NOTICE, f"results in {tmp_path / 'out'}"]
    page = (tmp_path / "out/table.md").read_text()
    assert "moiety[report]" in page
    assert page.count(CI_NOTICE) == 1
    assert json.loads((tmp_path / "out/table.json").read_text())["rows"]
    assert not list((tmp_path / "out").rglob("*.png"))
