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
from night import NIGHTLY

from moiety.cli import main
from moiety.data.catalogue import DATA_SETS
from moiety.data.sources.provenance import note_files
from moiety.experiments import Experiment, list_recipes, load_recipe
from moiety_recipes import fedpop_work, ffgg_stages

MAKERS = {
    "audiomnist": lambda: small.audiomnist(speakers=3),
    "chars74k": small.chars74k,
    "cifar10": lambda: small.cifar10(rows=250),
    "fashion_mnist": lambda: small.mnist(rows=20_000, tests=400, lit=2),
    "mnist": lambda: small.mnist(rows=1_000, tests=400),
    "pendigits": lambda: small.pendigits(each=90),
    "shakespeare-tff": lambda: small.shakespeare_tff(roles=260, times=32),
    "uci_har": lambda: small.uci_har(rows=54, tests=36, subjects=9),
}
SOURCES = {
    "fedalt-images": {"chars74k"},
    "fedalt-labels": {"fashion_mnist"},
    "fedalt-numbers": {"audiomnist"},
    "fedalt-people": {"uci_har"},
    "fedalt-roles": {"shakespeare-tff"},
    "fedalt-speech": {"audiomnist"},
    "fedalt-text": {"shakespeare-tff"},
    "fedpop-full": {"cifar10"},
    "fedpop-network": {"cifar10"},
    "fedpop-people": {"uci_har"},
    "fedpop-small": {"cifar10"},
    "fedpop-uncertainty": {"mnist", "fashion_mnist"},
    "fedpop-work": {"cifar10"},
    "fedspa-ablations": {"fashion_mnist"},
    "fedspa-sparsity": {"fashion_mnist"},
    "fedspa-table1": {"fashion_mnist"},
    "fedspa-table2": {"fashion_mnist"},
    "fedspa-lenet": {"fashion_mnist"},
    "fedspa-theorem1": {"fashion_mnist"},
    "ffgg-async": {"fashion_mnist"},
    "ffgg-byzantine": {"fashion_mnist"},
    "ffgg-diagnosis": {"audiomnist"},
    "ffgg-speeds": {"fashion_mnist"},
    "ffgg-splits": {"audiomnist"},
    "ffgg-table1": {"chars74k"},
    "glocal-clients": {"pendigits"},
    "glocal-delay": {"pendigits"},
    "glocal-features": {"pendigits"},
    "glocal-readings": {"pendigits"},
    "glocal-rules": {"pendigits"},
    "glocal-table1": {"pendigits"},
}
"""The data sets of a recipe's first setting, and of the last deal of one."""
WITHOUT_DATA = {"fedpop-toy", "ffgg-figure1", "ffgg-readings", "ffgg-theorem8", "glocal-fictitious", "quickstart"}
QUICK = {"fedpop-small", "ffgg-async", "glocal-clients", "glocal-delay", "glocal-features", "glocal-table1"}
"""Recipes whose smallest form takes less than a second; the others run at night."""
ONE = {"seeds", "rounds", "personal_rounds", "finetune_epochs", "epochs", "every", "passes", "inner_steps"}
FEW = {"clients": 8, "clients_figure2": 3, "clients_figure6": 3, "cohort": 2, "active": 2, "held_out": 2}
FEW |= {"rows": 20, "test": 10, "test_rows": 10, "inspected": 2}
FIRST = {"clients", "delays", "lr", "personal_lr", "finetune_lr", "rates", "settings", "sweeps", "tasks"}


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


def shrink(plan: Any) -> Any:
    """The plan with one seed, one round, one data set, few clients and few rows."""
    fields: dict[str, Any] = {}
    for name, value in ((field.name, getattr(plan, field.name)) for field in dataclasses.fields(plan)):
        if name == "sources":
            value = ("pendigits",)
        elif name == "deals":
            value = value[-1:]
        elif isinstance(value, tuple) and name in FIRST:
            value = value[:1]
        elif isinstance(value, int) and name in {*ONE, *FEW}:
            value = min(value, FEW.get(name, 1)) if name != "passes" else 1
        if dataclasses.is_dataclass(value):
            value = shrink(value)
        elif isinstance(value, tuple):
            value = tuple(shrink(each) if dataclasses.is_dataclass(each) else each for each in value)
        fields[name] = value
    return dataclasses.replace(plan, **fields)


def make_small(name: str) -> Experiment[Any]:
    for module in (ffgg_stages, fedpop_work):
        module.load.cache_clear()  # rows of another recipe were noted as that one's
    recipe = load_recipe(name)
    plan = shrink(recipe.plan("laptop"))
    return dataclasses.replace(recipe, plan=lambda scale: plan)


def test_every_recipe_is_looked_at() -> None:
    assert {*SOURCES, *WITHOUT_DATA} == set(list_recipes())
    assert set(MAKERS) == set().union(*SOURCES.values())


@pytest.mark.skipif(NIGHTLY, reason="at night they run to their ends")
@pytest.mark.parametrize("name", sorted(set(SOURCES) - QUICK))
def test_every_recipe_begins_with_what_was_fetched(name: str) -> None:
    recipe = make_small(name)
    with note_files() as files:
        first = next(recipe.cells(recipe.plan("laptop"), range(1)))
    assert first
    assert {use["state"] for use in files.values()} == {"made"}


@pytest.mark.parametrize("name", sorted(SOURCES if NIGHTLY else QUICK))
def test_a_recipe_runs_to_its_page_which_names_the_files(name: str, tmp_path: Path) -> None:
    make_small(name).run(out=tmp_path / "run")
    page = (tmp_path / "run" / "table.md").read_text()
    lines = [line for line in page.splitlines() if ".npz`, digest " in line]
    assert {line.partition(" (`")[0].removeprefix("- ") for line in lines} == SOURCES[name]
    assert {line.partition("), ")[2] for line in lines} == {"made by `moiety data fetch` from the publisher's files"}


def test_a_page_says_that_a_file_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    (tmp_path / "pendigits.npz").write_bytes((cache / "pendigits.npz").read_bytes())  # without its record
    monkeypatch.setenv("MOIETY_DATA", str(tmp_path))
    with pytest.warns(UserWarning, match="results are not of that data set"):
        page = make_small("glocal-table1").run().page
    assert "**a file that moiety does not know: results are not of that data set**" in page


@pytest.mark.skipif(not os.environ.get("MOIETY_DATA"), reason="MOIETY_DATA is not set")
def test_a_recipe_runs_on_the_folder_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOIETY_DATA", DATA_FOLDER)
    assert "the file that the results of this project were computed from" in make_small("glocal-table1").run().page


DATA_FOLDER = os.environ.get("MOIETY_DATA", "")


def test_a_recipe_without_its_data_says_how_to_fetch_them(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("moiety.data.sources.folders.cache_folder", lambda: tmp_path / "none")
    for recipe, name in {
        "fedpop-people": "uci_har",
        "fedpop-small": "cifar10",
        "fedalt-text": "shakespeare-tff",
    }.items():
        assert main(["run", recipe, "--out", str(tmp_path / "out")]) == 2
        err = capsys.readouterr().err
        assert err.endswith(f"To make the file, run: moiety data fetch {name}.\n")
        assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()
