"""Federations of real processes. ``make test-deploy`` runs a part of them, ``make nightly`` all; ``make test`` none."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # what these tests share with those of one process

if not os.environ.get("MOIETY_DEPLOY"):
    collect_ignore_glob = ["*.py"]


@pytest.fixture(autouse=True)
def _leave_the_federation_whole(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that fails, or leaves a process behind, does not make the next one fail."""
    trial = request.getfixturevalue("trial") if "trial" in request.fixturenames else None
    yield
    if trial is not None:
        trial.recover()
