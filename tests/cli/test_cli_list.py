"""``moiety list``: everything that a file can name, with its first line."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_command import call

from moiety.algorithms import ALGORITHMS
from moiety.cli.listing import KINDS, first_line
from moiety.clients.clock import CLOCKS
from moiety.clients.speed import TIMES
from moiety.data import SOURCES
from moiety.data.catalogue import rows_of
from moiety.data.partition import PARTITIONS
from moiety.engines.auto import ENGINES, OPEN
from moiety.experiments import list_recipes, load_recipe
from moiety.local.kernels import KERNELS
from moiety.local.priors import PRIORS
from moiety.local.schedules import SCHEDULES
from moiety.local.solvers import SOLVERS
from moiety.local.work import LOCAL_WORK
from moiety.models import MODELS
from moiety.server.aggregators import AGGREGATORS
from moiety.server.attacks import ATTACKS
from moiety.server.optimisers import SERVERS
from moiety.split import SPLITS
from moiety.task.losses import EVERY_LOSS
from moiety.task.metrics import SET_METRICS
from moiety.task.scores import METRICS
from moiety.transport.codecs import CODECS
from moiety.transport.privacy import PRIVACY

TABLES = {"algorithms": ALGORITHMS, "datasets": SOURCES, "models": MODELS, "splits": SPLITS}
TABLES |= {"aggregators": AGGREGATORS, "attacks": ATTACKS, "partitions": PARTITIONS, "servers": SERVERS}
TABLES |= {"schedules": SCHEDULES, "solvers": SOLVERS, "kernels": KERNELS, "priors": PRIORS, "codecs": CODECS}
TABLES |= {"local": LOCAL_WORK, "clocks": CLOCKS, "times": TIMES, "losses": EVERY_LOSS, "privacy": PRIVACY}
TABLES |= {"metrics": {name: metric.per_example for name, metric in METRICS.items()}}
TABLES["metrics"] |= {name: metric.compute for name, metric in SET_METRICS.items()}


def test_recipes_are_listed_with_their_summaries(capsys):
    result = call(capsys, "list", "recipes")
    assert (result.code, result.err) == (0, "")
    lines = {line.split()[0]: line for line in result.out.splitlines() if line.strip()}
    for name in list_recipes():
        assert " ".join(load_recipe(name).summary.split()[:3]) in lines[name]


@pytest.mark.parametrize("kind", TABLES)
def test_every_name_is_listed(capsys, monkeypatch, kind):
    monkeypatch.delenv("MOIETY_DATA", raising=False)
    result = call(capsys, "list", kind)
    assert (result.code, result.err) == (0, "")
    lines = {line.split()[0]: line for line in result.out.splitlines() if line.strip()}
    for name, maker in TABLES[kind].items():
        assert name in lines
        assert first_line(maker)
        assert " ".join(first_line(maker).split()[:3]) in lines[name]


def test_every_kind_is_tested_and_engines_have_their_own_words(capsys):
    assert set(KINDS) == {*TABLES, "engines", "recipes"}
    text = call(capsys, "list", "engines").out
    names = {line.split()[0] for line in text.splitlines()[2:] if line and not line.startswith("in a file")}
    assert names == {*ENGINES, *OPEN}
    assert text.endswith("in a file: engine in [run]\n")


def test_datasets_say_whether_their_file_is_there(capsys, monkeypatch, tmp_path: Path):
    (tmp_path / "usps.npz").write_bytes(b"")
    monkeypatch.setenv("MOIETY_DATA", str(tmp_path))
    lines = {line.split()[0]: line.split() for line in call(capsys, "list", "datasets").out.splitlines() if line}
    assert (lines["usps"][1], lines["mnist"][1], lines["digits"][1]) == ("found", "absent", "shipped")


def test_files_are_those_that_the_sources_read(monkeypatch, tmp_path: Path):
    # The sources themselves say which file they miss: of variants, the first that can be fetched.
    monkeypatch.setenv("MOIETY_DATA", str(tmp_path))
    assert [name for name in SOURCES if not rows_of(name)] == ["digits"]
    for name in SOURCES:
        for row in sorted(rows_of(name), key=lambda row: row.by_hand)[:1]:
            with pytest.raises(ValueError, match=f"a folder that holds {row.file}, got .*run: {row.command}"):
                SOURCES[name]()
