"""Appendix C.4: v_i is initialised anew each time its client is asked.

Clients and rates as in tests/oracles/test_hand_rounds.py: from u, v = 0, two full steps,
client 1: v <- v/2 + (3 - u)/4, u <- 3u/4 - v/2 + 3/4; client 2: v <- 7v/8 + (2 - u)/8, u <- u/2 + (1 - v)/4.
"""

from fractions import Fraction as Q

import numpy as np
import pytest
import torch
from flat_options import flat
from oracle_problems import federated, problem_of, scalar_task, serve, split_of
from run_settings import with_settings
from safetensors.torch import load_file

import moiety as mo
from moiety.engines.base import RoundInfo
from moiety.engines.sequential import Sequential

CLIENTS = [
    {"a": np.array([1.0]), "b": np.array([2.0]), "y": np.array([3.0])},
    {"a": np.array([2.0, 0, 2, 0]), "b": np.ones(4), "y": np.array([1.0, 3, 1, 3])},
]
RATES = {"shared_lr": 1 / 4, "personal_lr": 1 / 8, "batch_size": 4, "shuffle": False, "stateful": False}
ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorised"])


def alt(u):
    """One round of stateless FedAlt from u, in fractions: the new u, and the two v on the way."""
    v1 = v2 = Q(0)
    for _ in range(2):
        v1, v2 = v1 / 2 + (3 - u) / 4, v2 * Q(7, 8) + (2 - u) / 8
    u1 = u2 = u
    for _ in range(2):
        u1, u2 = u1 * Q(3, 4) - v1 / 2 + Q(3, 4), u2 / 2 + (1 - v2) / 4
    return (u1 + 4 * u2) / 5, v1, v2


def sim(u):
    """The same of FedSim."""
    w1 = w2 = (u, Q(0))
    for _ in range(2):
        w1 = (w1[0] - (w1[0] + 2 * w1[1] - 3) / 4, w1[1] - (2 * w1[0] + 4 * w1[1] - 6) / 8)
        w2 = (w2[0] - (2 * w2[0] + w2[1] - 1) / 4, w2[1] - (w2[0] + w2[1] - 2) / 8)
    return (w1[0] + 4 * w2[0]) / 5, w1[1], w2[1]


CASES = pytest.mark.parametrize(
    ("algorithm", "one_round"),
    [(flat(mo.fedalt, **RATES, shared_steps=2, personal_steps=2), alt), (flat(mo.fedsim, **RATES, steps=2), sim)],
    ids=["fedalt", "fedsim"],
)


def fit(algorithm, engine, rounds, **options):
    split = split_of(["u"], ["v"])
    return mo.fit(
        scalar_task(),
        federated(CLIENTS),
        algorithm,
        **with_settings(split=split, rounds=rounds, engine=engine, **options),
    )


def test_the_fractions_agree_with_the_hand_derived_first_round():
    assert alt(Q(1)) == (Q(431, 640), Q(3, 4), Q(15, 64))
    assert sim(Q(1)) == (Q(4, 5), Q(5, 8), Q(17, 64))


@ENGINES
@CASES
def test_v_starts_from_its_first_value_in_every_round(algorithm, one_round, engine):
    u = Q(1)
    for rounds in (1, 2, 3):
        u, _, _ = one_round(u)
        run = fit(algorithm, engine, rounds)
        assert float(run.shared_parameters()["u"]) == pytest.approx(float(u), rel=1e-13)
        assert run._loop.progress.store.owners() == []


@ENGINES
@CASES
def test_personal_models_come_from_the_algorithms_own_rule(algorithm, one_round, engine):
    """After two rounds, v_i is what the local work makes of the first v with the server's u.

    Scores are those of that model.
    """
    run = fit(algorithm, engine, 2)
    u, _, _ = one_round(one_round(Q(1))[0])
    _, v1, v2 = one_round(u)
    for client, v in enumerate((v1, v2)):
        parameters = run.parameters(client)
        assert float(parameters["u"]) == pytest.approx(float(u), rel=1e-13)
        assert float(parameters["v"]) == pytest.approx(float(v), rel=1e-13)
        rows = CLIENTS[client]
        residual = rows["a"] * float(u) + rows["b"] * float(v) - rows["y"]
        assert run.clients[client]["loss"] == pytest.approx((residual**2 / 2).mean(), rel=1e-12)
        shared_residual = rows["a"] * float(u) - rows["y"]
        assert run.clients[client]["shared_loss"] == pytest.approx((shared_residual**2 / 2).mean(), rel=1e-12)


@CASES
def test_nothing_personal_is_stored(algorithm, one_round, tmp_path):
    run = fit(algorithm, "sequential", 2, out=tmp_path / "run")
    (file,) = (tmp_path / "run").glob("checkpoint/*/index.safetensors")
    tensors = load_file(file)
    assert tensors.keys() == {"changes"}
    assert len(tensors["changes"]) == 0
    assert not (tmp_path / "run/clients").exists()
    assert torch.equal(run._loop.progress.store.first().personal["v"], torch.tensor(0.0, dtype=torch.float64))


def test_evaluating_in_between_changes_nothing():
    """The rule used at an evaluation leaves no trace in the next round."""
    algorithm = flat(mo.fedalt, **RATES, shared_steps=2, personal_steps=2)
    often, once = (fit(algorithm, "sequential", 3, evaluate_every=k) for k in (1, 3))
    assert torch.equal(often.shared_parameters()["u"], once.shared_parameters()["u"])


@CASES
def test_local_work_hands_back_the_state_it_was_given(algorithm, one_round):
    problem = problem_of(scalar_task(), federated(CLIENTS), split_of(["u"], ["v"]))
    state = problem.first_state(algorithm)
    jobs = problem.make_jobs(algorithm.phases, [0], [state], "train", 0, part="train")
    received = algorithm.broadcast(problem.first_server(algorithm))
    ((update, after),) = serve(Sequential, problem, algorithm.client_update, jobs, received, RoundInfo())
    assert float(after.personal["v"]) == 0.0
    assert float(update.upload["u"]) != 0.0
