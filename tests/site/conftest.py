"""Tests of the documentation's files and commands, and of the built site: ``make docs`` runs them, not the gate."""

import os
import sys
import sysconfig
from pathlib import Path

import pytest
from outside import call

if not os.environ.get("MOIETY_SITE"):
    collect_ignore_glob = ["*.py"]


@pytest.fixture(scope="session")
def dist(tmp_path_factory) -> Path:
    """A folder with what a release uploads: the source archive, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    root = Path(__file__).parents[2]
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(root), cwd=folder)
    return folder


@pytest.fixture(scope="session")
def bin_folder(dist, tmp_path_factory) -> Path:
    """The programs of an environment that has the wheel, and the dependencies of this one, but not the repository.

    A path in a .pth file is searched, but .pth files in it are not read: what points to ``src`` is one of these.
    """
    place = tmp_path_factory.mktemp("environment")
    call(sys.executable, "-m", "venv", "--without-pip", str(place), cwd=place)
    python, wheel = place / "bin" / "python", next(dist.glob("*.whl"))
    call(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel), cwd=place)
    below = [path for path in sys.path if Path(path).name == "site-packages"]
    inside = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    (inside / "below.pth").write_text("".join(f"{path}\n" for path in below), encoding="utf-8")
    return place / "bin"
