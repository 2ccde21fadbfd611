"""The Python of the documentation: every block compiles, and every page runs from its first block to its last.

Pages are run with the trainings cut to one round, client by client: whether a block runs does not depend on how long
it trains. The README's blocks are doctests and run as such.
"""

import ast
import doctest
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import moiety as mo

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FENCED = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NEEDS_DATA = {"docs/algorithms/glocal_sgd.md": "letter.npz"}
NEEDS_EXTRAS = {"docs/models.md": "transformers and peft; tests/extras/test_library_models.py runs it"}
"""Pages whose blocks need heavy libraries, and where they run instead."""
SHORT = {
    "fit": {"rounds": 1, "engine": "sequential"},
    "Stage": {"rounds": 1},
    "pipeline": {"engine": "sequential"},
    "resume": {"rounds": 2},
    "recommend": {"budget": 60_000, "rates": (0.3,), "cohort": 2, "rounds": 12},
    "PersonalisedClassifier": {"rounds": 1, "engine": "sequential"},
}


def shortened(function: Callable[..., Any], always: dict[str, Any]) -> Callable[..., Any]:
    return lambda *args, **options: function(*args, **{**options, **always})


def blocks(page: Path) -> list[str]:
    return FENCED.findall(page.read_text(encoding="utf-8"))


def name_page(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


WITH_BLOCKS = [page for page in PAGES if blocks(page)]


def test_there_is_something_to_run() -> None:
    assert len(WITH_BLOCKS) > 20
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(doctest.DocTestParser().get_examples(readme)) > 10


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=name_page)
def test_every_block_compiles(page: Path) -> None:
    for block in blocks(page):
        ast.parse(block, filename=name_page(page))


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=name_page)
def test_every_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name_page(page) in NEEDS_EXTRAS:
        pytest.skip(NEEDS_EXTRAS[name_page(page)])
    file = NEEDS_DATA.get(name_page(page))
    if file and not (Path(os.environ.get("MOIETY_DATA", "nowhere")) / file).is_file():
        pytest.skip(f"{file} is not in MOIETY_DATA")
    if "reports.figures" in "".join(blocks(page)):
        pytest.importorskip("matplotlib")
    for name, always in SHORT.items():
        monkeypatch.setattr(mo, name, shortened(getattr(mo, name), always), raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # What CONTRIBUTING.md tells one to do.
    shutil.copy(ROOT / "src/moiety/algorithms/_skeleton.py", tmp_path / "mine.py")
    names = {"mo": mo}
    for block in blocks(page):
        exec(compile(block, name_page(page), "exec"), names)
