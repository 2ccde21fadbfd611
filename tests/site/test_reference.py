"""The reference shows an example of what a user calls: from the docstring, or from a page whose blocks tests run."""

import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest

import moiety as mo

ROOT = Path(__file__).parents[2]
WITHOUT = {"mo.tune", "mo.data.fetch", "mo.data.tokenise"}
"""What needs Optuna, the network or a tokeniser: pages show it."""


@pytest.fixture
def hooks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "site")
    import hooks

    return hooks


def test_what_a_user_calls_has_an_example(hooks) -> None:
    names = {f"mo.{name}": getattr(mo, name) for name in mo.__all__}
    for package in ("data", "split", "models", "privacy", "loss"):
        names |= hooks.list_members(package)
    functions = {name: member for name, member in names.items() if inspect.isfunction(member)}
    assert len(functions) > 80
    bare = {name for name, member in functions.items() if ">>>" not in (member.__doc__ or "")}
    assert {name for name in bare if hooks.find_example(name)[0] is None} == WITHOUT


def test_every_public_name_is_on_one_page_of_the_reference(hooks) -> None:
    places = [name for _, names in hooks.REFERENCE.values() for name in names]
    assert len(places) == len(set(places))
    assert set(places) - {"algorithms"} == {name for name in mo.__all__ if not hooks.is_algorithm(name)}
    assert len(hooks.list_names("algorithms")) == len(list(filter(hooks.is_algorithm, mo.__all__))) >= 24
    index = hooks.write_index()
    assert all(f"[`mo.{name}`]" in index for name in ("fit", "fedalt", "data.from_frame", "experiments.Cell"))
    assert all(f"]({page})" in index for page in hooks.REFERENCE)


def test_an_algorithm_has_the_example_of_its_own_page(hooks) -> None:
    page, block = hooks.find_example("mo.ditto")
    assert page == Path("algorithms/ditto.md")
    assert "mo.ditto(shared=0.1" in block


def test_helpers_of_modules_are_not_in_the_reference(hooks) -> None:
    assert {name.rpartition(".")[2] for name in hooks.list_members("schedule")} == {
        "constant",
        "linear",
        "exponential",
        "geometric",
    }


def test_every_algorithm_is_in_the_navigation(hooks) -> None:
    """``mkdocs.yml`` has one line for all of them."""
    config = SimpleNamespace(nav=[{"Home": "index.md"}, {"Algorithms": "algorithms/*.md"}])
    home, algorithms = hooks.on_config(config).nav
    assert home == {"Home": "index.md"}
    pages = {page: title for entry in algorithms["Algorithms"] for title, page in entry.items()}
    assert {f"algorithms/{name}.md" for name in mo.algorithms.ALGORITHMS} <= set(pages)
    assert (pages["algorithms/lg_fedavg.md"], pages["algorithms/local_only.md"]) == ("LG-FedAvg", "Local training")
    assert "  - Algorithms: algorithms/*.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
