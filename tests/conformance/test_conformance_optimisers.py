"""Which algorithms take any optimiser: the engines agree about each, the others refuse it, and the docs say so."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from conformance_table import TABLE
from test_conformance_engines import agree, results

import moiety as mo
from moiety.algorithms import ALGORITHMS
from moiety.engines.sequential import Sequential
from moiety.engines.vectorised import Vectorised
from moiety.errors import MoietyError

DOCS = Path(__file__).parents[2] / "docs" / "local-work.md"
PULLED = mo.sgd(0.1, pull=1.0)
ANY = {
    "fedavg": lambda how, stateful: mo.fedavg(shared=how),
    "local_only": lambda how, stateful: mo.local_only(personal=stateful),
    "fedalt": lambda how, stateful: mo.fedalt(shared=how, personal=stateful),
    "fedsim": lambda how, stateful: mo.fedsim(shared=how, personal=stateful),
    "finetune": lambda how, stateful: mo.finetune(personal=stateful),
    "ditto": lambda how, stateful: mo.ditto(shared=how, personal=replace(how, pull=0.5)),
    "pfedme": lambda how, stateful: mo.pfedme(shared=mo.sgd(0.1, batch_size=16), personal=mo.adamw(0.01, pull=0.5)),
    "ffgg": lambda how, stateful: mo.ffgg(shared=0.1, personal=how),
    "local_ffgg": lambda how, stateful: mo.local_ffgg(shared=0.1, personal=0.1, solver=how),
    "fedspa": lambda how, stateful: mo.fedspa(shared=how),
    "subsampling": lambda how, stateful: mo.subsampling(shared=how),
    "sub_fedavg": lambda how, stateful: mo.sub_fedavg(shared=replace(how, lr_decay="constant", epochs=2)),
    "fedrep": lambda how, stateful: mo.fedrep(shared=how, personal=stateful),
    "fedper": lambda how, stateful: mo.fedper(shared=how, personal=stateful),
    "lg_fedavg": lambda how, stateful: mo.lg_fedavg(shared=how, personal=stateful),
}
"""What makes each algorithm of an optimiser, and of one that keeps its state."""
PLAIN = {
    "scaffold": lambda how: mo.scaffold(shared=how),
    "local_gd": lambda how: mo.local_gd(shared=how),
    "l2gd": lambda how: mo.l2gd(personal=how, probability=0.5),
    "apfl": lambda how: mo.apfl(shared=how),
    "per_fedavg": lambda how: mo.per_fedavg(shared=how, personal=0.1),
    "fedpop": lambda how: mo.fedpop(shared=how, personal=mo.kernel.langevin(step=0.01)),
}
PARTS = {
    "apfl-personal": lambda how: mo.apfl(shared=0.1, personal=how),
    "per_fedavg-personal": lambda how: mo.per_fedavg(shared=0.1, personal=how),
    "pfedme-shared": lambda how: mo.pfedme(shared=how, personal=PULLED),
    "ffgg-shared": lambda how: mo.ffgg(shared=how, personal=mo.adam(0.1, steps=2)),
    "local_ffgg-personal": lambda how: mo.local_ffgg(shared=0.1, personal=how, solver=mo.adam(0.1, steps=2)),
}
ONLINE = {"glocal_sgd", "central", "independent"}


@pytest.mark.parametrize("name", ANY)
def test_engines_agree(name):
    """On clients of unequal size, in two rounds, with micro-batches and a rate that decays."""
    how = mo.adamw(0.01, epochs=1, batch_size=8, accumulate=2, lr_decay="cosine")
    stateful = replace(how, keep_state=True)
    row = next(row for row in TABLE if row.name == name)
    row = replace(row, build=lambda batch_size: ANY[name](how, stateful))
    one, other = (results(row, engine, torch.float64) for engine in (Sequential, partial(Vectorised, block=3)))
    agree(one, other, 1e-10)


@pytest.mark.parametrize("name", [*PLAIN, *PARTS])
def test_an_algorithm_of_plain_sgd_refuses_other_steps(name):
    build = (PLAIN | PARTS)[name]
    with pytest.raises(
        MoietyError, match=r"^`(shared|personal)` must be .* moiety.sgd makes, got AdamW.* plain SGD\.$"
    ):
        build(mo.adamw(0.1))
    for option, value in {"accumulate": 2, "lr_decay": "linear", "momentum": 0.9}.items():
        with pytest.raises(MoietyError, match=rf"\.{option}` must be left out for this algorithm, got {value}"):
            build(mo.sgd(0.1, **{option: value}))


def test_the_table_of_the_docs_is_right():
    assert set(ANY) | set(PLAIN) | ONLINE == set(ALGORITHMS)
    rows = [
        line.split(" | ") for line in DOCS.read_text().splitlines() if line.startswith("| `") and "online" not in line
    ]
    table = {name: cells[1:3] for cells in rows for name in re.findall(r"`(\w+)`", cells[0]) if name in ALGORITHMS}
    assert {name for name, cells in table.items() if re.search(r"\bany\b|as in `ffgg`", " ".join(cells))} == set(ANY)
    assert set(table) == set(ANY) | set(PLAIN)
