"""Recipes on data that ``moiety data fetch`` made, here from small files of a server on this machine."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import small_originals as small
from local_server import serve

from moiety.cli import main
from moiety.data.catalogue import DATA_SETS
from moiety.data.sources.provenance import note_files
from moiety.experiments import list_recipes, load_recipe

MAKERS = {
    "audiomnist": lambda: small.audiomnist(speakers=3),
    "chars74k": small.chars74k,
    "cifar10": lambda: small.cifar10(rows=250),
    "fashion_mnist": lambda: small.mnist(rows=60_000, tests=400, lit=1),
    "mnist": lambda: small.mnist(rows=6_400, tests=400),
    "pendigits": lambda: small.pendigits(each=90),
    "shakespeare-roles": lambda: small.shakespeare_roles(plays=40, more=" So it is." * 5),
    "uci_har": lambda: small.uci_har(rows=54, tests=36, subjects=9),
}
WITHOUT_DATA = {"fedpop-toy", "ffgg-figure1", "glocal-fictitious", "quickstart"}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's cache, filled by the command."""
    folder = tmp_path_factory.mktemp("user") / "cache"
    with pytest.MonkeyPatch.context() as patch, serve() as publisher:
        patch.delenv("MOIETY_DATA", raising=False)
        patch.setattr("moiety.data.sources.folders.cache_folder", lambda: folder)
        for name, maker in MAKERS.items():
            patch.setitem(DATA_SETS, name, publisher.publish(name, maker()[0]))
        assert main(["data", "fetch", *MAKERS]) == 0
        yield folder


@pytest.mark.parametrize("name", sorted(set(list_recipes()) - WITHOUT_DATA))
def test_every_recipe_begins_with_what_was_fetched(name: str) -> None:
    recipe = load_recipe(name)
    with note_files() as files:
        assert next(recipe.cells(recipe.plan("laptop"), range(1))).key
    assert files
    assert {use["state"] for use in files.values()} == {"made"}


def run_small_table(out: Path | None) -> Any:
    """The first table of the Glocal paper on one data set, with few clients and one rate."""
    recipe = load_recipe("glocal-table1")
    plan = dataclasses.replace(recipe.plan("ci"), sources=("pendigits",))
    return dataclasses.replace(recipe, plan=lambda scale: plan).run(scale="laptop", seeds=1, rounds=2, out=out)


def test_a_recipe_runs_and_its_page_names_the_file(tmp_path: Path) -> None:
    page = run_small_table(tmp_path / "run").page
    lines = [line for line in page.splitlines() if line.startswith("- pendigits (`pendigits.npz`, digest ")]
    assert [line.partition("), ")[2] for line in lines] == ["made by `moiety data fetch` from the publisher's files"]


def test_a_page_says_that_a_file_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    (tmp_path / "pendigits.npz").write_bytes((cache / "pendigits.npz").read_bytes())  # without its record
    monkeypatch.setenv("MOIETY_DATA", str(tmp_path))
    with pytest.warns(UserWarning, match="results are not of that data set"):
        page = run_small_table(None).page
    assert "**a file that moiety does not know: results are not of that data set**" in page


@pytest.mark.skipif(not os.environ.get("MOIETY_DATA"), reason="MOIETY_DATA is not set")
def test_a_recipe_runs_on_the_folder_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOIETY_DATA", NAMED)
    assert "the file that the results of this project were computed from" in run_small_table(None).page


NAMED = os.environ.get("MOIETY_DATA", "")


def test_a_recipe_without_its_data_says_how_to_fetch_them(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("moiety.data.sources.folders.cache_folder", lambda: tmp_path / "none")
    for recipe, name in {
        "fedpop-people": "uci_har",
        "fedpop-small": "cifar10",
        "fedalt-text": "shakespeare-roles",
    }.items():
        assert main(["run", recipe, "--out", str(tmp_path / "out")]) == 2
        err = capsys.readouterr().err
        assert err.endswith(f"To make the file, run: moiety data fetch {name}.\n")
        assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()
