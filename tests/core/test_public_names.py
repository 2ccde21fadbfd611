"""The names of ``moiety``: all there, all named in the documentation, and none imported before it is used."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import moiety
from moiety.algorithms import ALGORITHMS

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "algorithms").glob("*.md")]
DOCUMENTED = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page.name != "CHANGELOG.md")


def test_the_names_are_sorted_and_dir_shows_them():
    assert moiety.__all__ == sorted(set(moiety.__all__))
    assert dir(moiety) == sorted([*moiety.__all__, "__version__"])


@pytest.mark.parametrize("name", moiety.__all__)
def test_every_public_name_is_there_and_documented(name):
    """As a user writes it, ``mo.fit`` or ``moiety.fit``."""
    assert getattr(moiety, name) is not None
    assert re.search(rf"\b(mo|moiety)\.{name}\b", DOCUMENTED)


def test_what_the_documentation_names_is_there():
    names = set(re.findall(r"\bmo\.([A-Za-z]\w*)", DOCUMENTED)) - {"NAME"}  # stands for any name
    assert len(names) > 40
    assert names <= set(moiety.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="fedalt2"):
        _ = moiety.fedalt2


def test_every_file_of_an_algorithm_has_its_line_and_is_public():
    """``dir`` knows algorithms by their files, so that it need not import them; the table knows the builders."""
    files = (path.stem for path in (ROOT / "src" / "moiety" / "algorithms").glob("*.py"))
    assert sorted(ALGORITHMS) == sorted(name for name in files if not name.startswith("_"))
    assert all(getattr(moiety, name) is builder for name, builder in ALGORITHMS.items())
    assert set(ALGORITHMS) <= set(moiety.__all__)


def test_every_algorithm_has_its_page():
    for name in ALGORITHMS:
        assert (ROOT / "docs" / "algorithms" / f"{name}.md").is_file(), name


def test_importing_does_not_import_torch():
    heavy = ("torch", "numpy", "sklearn", "pyarrow", "pydantic", "safetensors")
    code = f"import sys, moiety; dir(moiety); print([m for m in {heavy} if m in sys.modules], moiety.__version__)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["[]", moiety.__version__]


def test_any_module_can_be_imported_first():
    """A module that says ``from moiety import tree`` asks the package for a name while it is itself half imported."""
    code = """
import os, torch, numpy, pydantic
for module in ("tree", "local.verbs", "local.online", "local.states", "server.mean", "spec"):
    child = os.fork()
    if child == 0:
        __import__("moiety." + module)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, module
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    assert version("moiety") == moiety.__version__
