"""Which algorithms take any optimiser: the engines agree about each part, and the other parts refuse it.

What a part takes is read from the row on local work in the algorithm's page, which the docs show to users.
"""

import inspect
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from conformance_table import ADAMW, TABLE
from test_conformance_engines import agree, results

import moiety as mo
from moiety.algorithms import ALGORITHMS
from moiety.engines.sequential import Sequential
from moiety.engines.vectorised import Vectorised
from moiety.errors import MoietyError
from moiety.run.build import algorithm_from

PAGES = Path(__file__).parents[2] / "docs" / "algorithms"
ROWS = {row.name: row for row in reversed(TABLE)}
"""The first row of each algorithm."""
LOCAL_WORK = re.compile(r"\b(Optimiser|Online|Solver|Kernel)\b")


def read_parts(name: str) -> dict[str, str]:
    """What each part of an algorithm takes: the words of its page. A cell may go on with a further part."""
    _, _, section = (PAGES / f"{name}.md").read_text(encoding="utf-8").partition("\n## Local work\n")
    shared, personal, _ = section.splitlines()[3].strip("|").split("|")
    further = re.split(r"; `(\w+)=`: ", personal)
    parts = {"shared": shared, "personal": further[0], **dict(zip(further[1::2], further[2::2], strict=True))}
    return {part: words.strip() for part, words in parts.items() if words.strip()}


PARTS = {name: read_parts(name) for name in sorted(ALGORITHMS)}
ANY = {
    name: [part for part, words in parts.items() if re.search(r"\bany\b", words)]
    for name, parts in PARTS.items()
    if re.search(r"\bany\b", " ".join(parts.values()))
}
PLAIN = [(name, part) for name, parts in PARTS.items() for part, words in parts.items() if words.startswith("sgd")]
OTHERS = [
    (name, part)
    for name, parts in PARTS.items()
    for part in parts
    if part not in ANY.get(name, ()) and (name, part) not in PLAIN
]


def build(name, **parts):
    """The algorithm of a row with other local work."""
    spec = ROWS[name].build(batch_size=16).spec
    return algorithm_from({**spec, **{part: how.spec for part, how in parts.items()}})


@pytest.mark.parametrize("name", ANY)
def test_engines_agree(name):
    """On clients of unequal size, in two rounds, with micro-batches and a rate that decays."""
    row = ROWS[name]
    algorithm = build(name, **{part: row.optimisers.get(part, ADAMW) for part in ANY[name]})
    row = replace(row, build=lambda batch_size: algorithm)
    one, other = (results(row, engine, torch.float64) for engine in (Sequential, partial(Vectorised, block=3)))
    agree(one, other, 1e-10)


@pytest.mark.parametrize(("name", "part"), PLAIN)
def test_a_part_of_plain_sgd_refuses_other_steps(name, part):
    with pytest.raises(MoietyError, match=rf"^`{part}` must be .* moiety.sgd makes, got AdamW.* plain SGD\.$"):
        build(name, **{part: mo.adamw(0.1)})
    for option, value in {"accumulate": 2, "lr_decay": "linear", "momentum": 0.9}.items():
        with pytest.raises(MoietyError, match=rf"\.{option}` must be left out for this algorithm, got {value}"):
            build(name, **{part: mo.sgd(0.1, **{option: value})})


@pytest.mark.parametrize(("name", "part"), OTHERS)
def test_a_part_of_another_kind_refuses_optimisers(name, part):
    for how in (mo.sgd(0.1), mo.adamw(0.1)):
        with pytest.raises(MoietyError, match=rf"`(algorithm\.)?{part}` must be "):
            build(name, **{part: how})


def test_pages_have_a_cell_for_every_part():
    """An empty cell means that the algorithm has no such argument."""
    for name, builder in ALGORITHMS.items():
        parameters = inspect.signature(builder).parameters.values()
        arguments = {each.name for each in parameters if LOCAL_WORK.search(str(each.annotation))}
        assert set(PARTS[name]) == arguments, name
    assert len(ANY) >= 15
    assert len(PLAIN) >= 11
