import ctypes
import functools
import gc
import logging
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# The oracles are plain modules that tests in several folders use.
sys.path.insert(0, str(Path(__file__).parent / "oracles"))

if TYPE_CHECKING:
    from recipe_runs import RecipeRun

if not os.environ.get("MOIETY_DATA"):  # set to nothing is not set
    os.environ.pop("MOIETY_DATA", None)

# A shell that starts us in the background has Ctrl-C ignored, and what tests start and interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Python looks for cycles among all that is alive. Thousands of tests and modules stay alive to the end: a sixth of the
# time of small tests went into looking through them again and again.
gc.set_threshold(20_000, 50, 50)

GIVE_BACK = getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: None)  # of glibc alone

LONGEST = (
    "golden/test_golden.py",
    "conformance/test_conformance_processes.py",
    "engines/test_processes.py",
    "engines/test_killed_run.py",
    "conformance/test_conformance_engines.py",
    "engines/test_storage_faults.py",
    "engines/test_resume.py",
    "conformance/test_conformance_convergence.py",
    "split/test_split_runs.py",
    "algorithms/test_ffgg_byzantine.py",
    "recipes/test_fedspa_recipes.py",
    "core/test_adding_an_algorithm.py",
)
"""Files that take longest. First, so that no worker is left with one of them at the end; those that fork before others,
while there is little to copy."""
LAST = ("core/test_only_files_writes.py",)
"""Files that slow down what comes after them: Python calls an audit hook ever after."""


def pytest_configure(config):
    """Import what all tests need, but not where pytest-xdist hands out tests: its workers begin after that."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    import hypothesis  # noqa: F401  # before the freeze below: plugins of it ask the collector who holds an object
    import torch  # noqa: F401

    # pytest hangs two handlers into every logger that does not propagate, three times a test. PyTorch has fifty.
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger) and logger.name.startswith("torch"):
            logger.propagate = True


def pytest_collection_modifyitems(items):
    """Let the longest files begin; the order of those between the first and the last is as it was."""
    here = Path(__file__).parent
    place = {here / name: at for at, name in enumerate(LONGEST)} | {here / name: len(LONGEST) + 1 for name in LAST}
    items.sort(key=lambda item: place.get(item.path, len(LONGEST)))


def pytest_collection_finish():
    """Leave what is alive before the first test out of the search for cycles."""
    gc.collect()
    gc.freeze()


def seed_global_generators():
    """Let draws from the generators of a process (``torch.randn``, a layer's weights) not depend on other tests."""
    import numpy as np
    import torch

    torch.default_generator.manual_seed(0)  # torch.manual_seed makes a stack trace each time, for each kind of device
    np.random.seed(0)
    random.seed(0)


def pytest_collectstart(collector):
    """A file draws at import what it would draw by itself."""
    if isinstance(collector, pytest.Module):
        seed_global_generators()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Fixtures that several tests share draw the same, whichever test is the first to ask for them."""
    seed_global_generators()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    """A test draws the same, whether its shared fixtures were made before or are new."""
    seed_global_generators()


def pytest_runtest_teardown(item, nextitem):
    """Give back, after each file, memory that is free: what a process holds is what it costs to fork it."""
    if nextitem is None or nextitem.path != item.path:
        GIVE_BACK(0)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _without_fsync():
    """Leave out the flush to disk, which takes most of the time of a small run; the order of writes is the same."""

    def fsync(handle):
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_command():
    """Build the command once: typer does so at every call, and a process of a user calls it once."""
    import typer.main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(autouse=True, scope="session")
def _without_cache(tmp_path_factory):
    """Look for data sets in MOIETY_DATA alone, and not in what the user of this machine has fetched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moiety.data.sources.folders.cache_folder", lambda: tmp_path_factory.getbasetemp() / "no cache")
        yield


@pytest.fixture(scope="session")
def recipe_run(tmp_path_factory) -> "Callable[[str], RecipeRun]":
    """``recipe_run(name)`` is the recipe's run at scale ci: made once, and shared by all tests and workers.

    Nobody may write to its folder: a test that resumes it, or damages it, takes a copy.
    """
    from recipe_runs import run_recipe_once

    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return lambda name: run_recipe_once(name, root / "recipes")


def pytest_terminal_summary(terminalreporter):
    """Say how many tests were left out for want of data; under xdist this runs in the controller, which has all."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [r.longrepr[2] if isinstance(r.longrepr, tuple) else str(r.longrepr) for r in skipped]
    count = sum("MOIETY_DATA" in reason for reason in reasons)
    terminalreporter.write_line(
        f"{count} test{'s' * (count != 1)} skipped: MOIETY_DATA is not set"
        if count
        else "no test was skipped for want of MOIETY_DATA"
    )
