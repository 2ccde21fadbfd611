"""Every algorithm whose aggregate is a mean or a sum of uploads has privacy; the others refuse it in one line."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from conformance_table import NAMES, TABLE
from oracle_problems import federated, image_clients

import moiety as mo
from moiety.algorithms import ALGORITHMS
from moiety.run.build import algorithm_from
from moiety.server.mean import RUNNING
from moiety.types import Algorithm

DATA = federated(image_clients([3, 5, 2]))
ROWS = dict(zip(NAMES, TABLE, strict=True))


def has_weighting(row) -> bool:
    return "weighting" in inspect.signature(ALGORITHMS[row.name]).parameters


def build(row) -> Algorithm:
    """The row's algorithm, with weights that are all 1 where it lets the user choose."""
    how = row.build()
    return algorithm_from({**how.spec, "weighting": "uniform"}) if has_weighting(row) else how


def fit(row, how: Algorithm, privacy: mo.privacy.Gaussian | None) -> mo.Run:
    net = mo.models.mlp(4, 3, hidden=(5,), seed=2)
    return mo.fit(
        net,
        DATA,
        how,
        split=row.split(net),
        rounds=2,
        engine="sequential",
        settings=mo.Settings(privacy=privacy),
    )


ADDED = {name: row for name, row in ROWS.items() if row.build().aggregator in RUNNING}
JOINED = {name: row for name, row in ADDED.items() if row.alike or has_weighting(row)}


@pytest.mark.parametrize("where", ["central", "local"])
@pytest.mark.parametrize("row", JOINED.values(), ids=JOINED)
def test_with_no_noise_and_a_wide_clip_nothing_changes(row, where):
    """All clients take part, so that the fixed divisor is the number of uploads: the plain run, up to rounding."""
    how = build(row)
    privacy = mo.privacy.gaussian(clip=1e6, noise=0.0, delta=1e-3, where=where)
    plain, private = (fit(row, how, each).shared_parameters() for each in (None, privacy))
    for name, p in plain.items():
        np.testing.assert_allclose(private[name].numpy(), p.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("row", JOINED.values(), ids=JOINED)
def test_noise_reaches_everything_that_goes_up(row):
    """What is broadcast after a round has noise in every tensor that uploads move, controls and priors included."""
    how = build(row)
    privacy = mo.privacy.gaussian(clip=1.0, noise=0.5, delta=1e-3)
    one, other = (fit(row, how, privacy)._loop for _ in range(2))
    a, b = one.broadcast(), other.broadcast()
    for name in one.exchange.up.keys() & a.keys():
        assert (a[name] != b[name]).any(), name


@pytest.mark.parametrize("row", [row for name, row in ROWS.items() if name not in JOINED], ids=lambda row: row.name)
def test_others_refuse_in_one_line(row):
    refusal = "`weight` must be 1 for every client" if row in ADDED.values() else "`privacy` must be left out for"
    with pytest.raises(mo.MoietyError, match=refusal) as error:
        fit(row, row.build(), mo.privacy.gaussian(clip=1.0, noise=0.5, delta=1e-3))
    assert "\n" not in str(error.value)


def test_most_have_it():
    assert len({row.name for row in JOINED.values()}) >= 20
