"""Who takes part: fixed cohorts, and each client by itself."""

from __future__ import annotations

import numpy as np
import pytest
from engine_cases import federation, mlp, same_runs
from run_settings import with_settings

import moiety as mo
from moiety.clients import bernoulli_cohort

DATA = federation((4, 9, 12, 7))


def test_every_client_takes_part_as_often_and_by_itself():
    """Ten clients, three expected, 20,000 rounds: shares of clients and of pairs against p = 0.3 and p^2 = 0.09.

    Six standard errors, sqrt(p (1 - p) / 20,000) each, are 0.0194 for clients and 0.0121 for pairs.
    """
    presence = np.zeros((20_000, 10))
    for t in range(len(presence)):
        presence[t, bernoulli_cohort(10, 3, seed=0, round=t)] = 1
    pairs = (presence.T @ presence / len(presence))[np.triu_indices(10, 1)]
    assert np.abs(presence.mean(0) - 0.3).max() < 0.0194
    assert np.abs(pairs - 0.09).max() < 0.0121


def test_all_expected_is_everyone():
    assert bernoulli_cohort(5, 5, seed=0, round=3).tolist() == [0, 1, 2, 3, 4]
    same = [
        mo.fit(
            mlp(), DATA, mo.fedavg(shared=0.1), rounds=2, settings=mo.Settings(participation=how), engine="sequential"
        )
        for how in ("fixed", "bernoulli")
    ]
    same_runs(*same)


def test_an_aggregator_may_need_more_than_are_expected():
    """Two of five are expected, but as many as five may come: rounds with fewer than Krum needs are left out."""
    data = federation((4, 9, 12, 7, 5))
    options = {"cohort": 2, "rounds": 12, "aggregator": mo.aggregator.krum(byzantine=1), "engine": "sequential"}
    with pytest.raises(mo.MoietyError, match="`aggregator` must be"):
        mo.fit(mlp(), data, mo.fedavg(shared=0.1), **with_settings(**options))
    with pytest.warns(UserWarning, match="is left out"):
        mo.fit(mlp(), data, mo.fedavg(shared=0.1), **with_settings(participation="bernoulli", **options))


@pytest.mark.parametrize("engine", ["sequential", "vectorised", "auto"])
def test_an_empty_round_moves_nothing(engine):
    """With one of four expected, a round is empty with probability 0.75^4 = 0.32: of the first 12 some are."""
    cohorts = [bernoulli_cohort(4, 1, seed=0, round=t).tolist() for t in range(12)]
    assert [] in cohorts
    members = []
    run = mo.fit(
        mlp(),
        DATA,
        mo.fedavg(shared=0.1),
        rounds=12,
        cohort=1,
        settings=mo.Settings(participation="bernoulli"),
        engine=engine,
        callbacks=[lambda run, record: members.append(list(record.cohort))],
    )
    assert members == cohorts
    assert run.ledger["client_updates"] == sum(map(len, cohorts))
    if engine == "sequential":  # against rounds that leave the empty ones out: their number is all that differs
        first = cohorts.index([])
        before = [
            mo.fit(
                mlp(),
                DATA,
                mo.fedavg(shared=0.1),
                rounds=t,
                cohort=1,
                settings=mo.Settings(participation="bernoulli"),
                engine=engine,
            )
            for t in (first, first + 1)
            if t
        ]
        if len(before) == 2:
            a, b = (each.shared_parameters() for each in before)
            assert all((a[name] == b[name]).all() for name in a)


def test_resumed(tmp_path):
    how = {"cohort": 2, "participation": "bernoulli", "engine": "sequential"}
    whole = mo.fit(mlp(), DATA, mo.fedavg(shared=0.1), **with_settings(rounds=6, **how))
    mo.fit(mlp(), DATA, mo.fedavg(shared=0.1), **with_settings(rounds=3, out=tmp_path / "run", **how))
    same_runs(whole, mo.resume(tmp_path / "run", rounds=6, model=mlp(), data=DATA))


@pytest.mark.parametrize("options", [{"participation": "poisson"}, {"participation": 3}])
def test_another_word_is_refused(options):
    with pytest.raises(mo.MoietyError, match="`participation` must be"):
        mo.fit(mlp(), DATA, mo.fedavg(shared=0.1), **with_settings(rounds=1, **options))


def test_not_with_an_asynchronous_clock():
    with pytest.raises(mo.MoietyError, match="`participation` must be left out"):
        mo.fit(
            mlp(),
            DATA,
            mo.fedavg(shared=0.1),
            rounds=1,
            settings=mo.Settings(participation="bernoulli", clock=mo.clock.asynchronous(active=2)),
        )
