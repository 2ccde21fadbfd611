"""``benchmarks.masks``: labels are guessed from masks where these depend on them, and else by chance."""

import importlib.util
from pathlib import Path

import numpy as np

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "masks.py"
spec = importlib.util.spec_from_file_location("masks_program", PROGRAM)
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)


def test_labels_are_guessed_from_masks_that_depend_on_them():
    rng = np.random.default_rng(0)
    labels = rng.integers(10, size=100)
    patterns = rng.random((10, 300)) < 0.5
    masks = (patterns[labels] ^ (rng.random((100, 300)) < 0.2)).astype(float)
    assert (program.guess_labels(masks, labels, 0) == labels).mean() > 0.95


def test_masks_by_chance_tell_nothing():
    """A share of 10% is expected, with a deviation of 3 points."""
    rng = np.random.default_rng(1)
    labels, masks = rng.integers(10, size=100), (rng.random((100, 300)) < 0.5).astype(float)
    assert (program.guess_labels(masks, labels, 0) == labels).mean() < 0.22
