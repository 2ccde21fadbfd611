"""docs/safeguard.md says what is reached and missed as the runs say: figures of runs.json, intervals of its page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from moiety.evaluation import worst_decile

DOCS = Path(__file__).parents[2] / "docs"
NAMES = {
    "pooled": "pooled",
    "roles": "Shakespeare's roles",
    "isolet": "isolet",
    "audiomnist": "AudioMNIST",
    "clothes": "Fashion-MNIST",
    "uci_har": "UCI HAR",
    "objects": "CIFAR-10",
}
TARGETS = (0.33, 0.33, -0.3, -0.3, 80)
"""Shares hurt at all and beyond noise at most, mean and worst decile at least, per cent of the gain at least."""
CELLS = [json.loads(line) for line in (DOCS / "results/safeguard/runs.json").read_text().splitlines()]


def measure(name):
    """The five figures of a set, without numbers that are not defined, and how many clients are hurt without."""
    cells = [cell for cell in CELLS if name in ("pooled", cell["set"])]
    points = {key: [100 * np.array(cell[key]) for cell in cells] for key in ("one", "personal", "chosen")}
    hurt = {
        key: sum(int((p < o - 1e-6).sum()) for p, o in zip(points[key], points["one"], strict=True)) for key in points
    }
    beyond = {
        key: sum(len(cell[f"beyond noise, {key} against one"]) for cell in cells) for key in ("personal", "chosen")
    }
    mean = {key: np.mean([p.mean() for p in each]) for key, each in points.items()}
    tail = {key: np.mean([worst_decile(p, higher_is_better=True) for p in each]) for key, each in points.items()}
    gain, kept = mean["personal"] - mean["one"], mean["chosen"] - mean["one"]
    return [
        hurt["chosen"] / hurt["personal"],
        beyond["chosen"] / beyond["personal"] if beyond["personal"] else None,
        kept - gain,
        tail["chosen"] - tail["personal"],
        100 * kept / gain if gain > 0 else None,
    ], hurt["personal"]


def read_rows(path, heading=""):
    """The cells of the rows of a Markdown table by their first cell, from a heading on."""
    text = path.read_text()
    lines = text[text.index(heading) :].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {row[0]: row[1:] for row in reversed(rows)}


def read_numbers(cell):
    return [float(each) for each in re.findall(r"[-+]?\d+\.?\d*", cell)]


@pytest.mark.parametrize("name", NAMES)
def test_each_target_of_each_set_is_shown_with_its_interval_and_bold_where_it_is_missed(name):
    shown = read_rows(DOCS / "safeguard.md", "**Reached and missed.**")[NAMES[name]]
    values, hurt = measure(name)
    page = DOCS / "results/safeguard/README.md"
    headings = (
        "hurt at all, with",
        "hurt beyond noise, with",
        "mean accuracy, chosen",
        "worst decile, chosen",
        "share of",
    )
    for k, (cell, value, target) in enumerate(zip(shown, values, TARGETS, strict=True)):
        if value is None:
            assert not read_numbers(cell)
            continue
        number, *rest = read_numbers(cell)
        assert number == pytest.approx(value, abs=0.6 if k == 4 else 0.0051)
        missed = value > 1 / 3 + 1e-9 if k < 2 else value < target
        assert cell.startswith("**") == (missed and (name == "pooled" or hurt >= 20)), cell
        if "[" in cell:
            theirs = read_numbers(read_rows(page, f"### {headings[k]}")[name][0])[1:]
            assert rest == pytest.approx([100 * end for end in theirs] if k == 4 else theirs)
