"""A client whose update is not finite is left out, counted and named; the rest is as if it had not been asked.

Clients and numbers as in tests/oracles/test_hand_rounds.py; the third client's target is so large that its loss
overflows.
"""

from fractions import Fraction as Q

import numpy as np
import pytest
import torch
from flat_options import flat
from oracle_problems import federated, scalar_task, split_of
from run_settings import with_settings

import moiety as mo
from moiety.types import Schedule

GOOD = [
    {"a": np.array([1.0]), "b": np.array([2.0]), "y": np.array([3.0])},
    {"a": np.array([2.0, 0, 2, 0]), "b": np.ones(4), "y": np.array([1.0, 3, 1, 3])},
]
BAD = {"a": np.ones(2), "b": np.ones(2), "y": np.full(2, 1e200)}
RATES = {"shared_lr": 1 / 4, "personal_lr": 1 / 8, "batch_size": 4, "shuffle": False}
ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorised"])
CASES = pytest.mark.parametrize(
    ("build", "u", "v1", "v2"),
    [
        (lambda **o: flat(mo.fedalt, **RATES, shared_steps=2, personal_steps=2, **o), Q(431, 640), Q(3, 4), Q(15, 64)),
        (lambda **o: flat(mo.fedsim, **RATES, steps=2, **o), Q(4, 5), Q(5, 8), Q(17, 64)),
    ],
    ids=["fedalt", "fedsim"],
)


def fit(clients, algorithm, engine, rounds=1, **options):
    names = ["ann", "bob", "eve"][: len(clients)]
    records = []
    run = mo.fit(
        scalar_task(),
        federated(clients, [GOOD[0]] * len(clients), names=names),
        algorithm,
        **with_settings(
            split=split_of(["u"], ["v"]),
            rounds=rounds,
            engine=engine,
            callbacks=[lambda run, record: records.append(record)],
            **options,
        ),
    )
    return run, records


@ENGINES
@CASES
def test_it_is_left_out_and_the_others_are_as_without_it(build, u, v1, v2, engine):
    run, records = fit([*GOOD, BAD], build(), engine)
    assert records[0].cohort == (0, 1, 2)
    assert records[0].dropped == ("eve",)
    assert run.history[-1]["dropped"] == ["1:eve"]
    assert float(run.shared_parameters()["u"]) == pytest.approx(float(u), rel=1e-13)
    assert [float(run.parameters(c)["v"]) for c in (0, 1)] == pytest.approx([float(v1), float(v2)], rel=1e-13)
    assert float(run.parameters("eve")["v"]) == 0.0, "its state stays"
    without, _ = fit(GOOD, build(), engine)
    assert run.history[-1]["train_loss"] == pytest.approx(without.history[-1]["train_loss"], rel=1e-13)
    assert run.ledger["client_updates"] == 3, "it was asked and it did send"


@ENGINES
@CASES
def test_it_is_named_in_every_round_since_the_last_evaluation(build, u, v1, v2, engine):
    run, _ = fit([*GOOD, BAD], build(), engine, rounds=3, evaluate_every=2)
    assert [row["dropped"] for row in run.history] == [["1:eve", "2:eve"], ["3:eve"]]


def blowing_up(at):
    """A schedule under which every client's second step overflows in round ``at``."""
    return Schedule(lambda t, rounds: 1e300 if t == at else 1.0)


@pytest.mark.filterwarnings("ignore:.updates. must be finite for some client")
@ENGINES
@CASES
def test_a_round_in_which_all_fail_changes_nothing(build, u, v1, v2, engine):
    """Good, bad: the server and the states are those after the first round."""
    run, records = fit(GOOD, build(schedule=blowing_up(1)), engine, rounds=2)
    assert [r.dropped for r in records] == [(), ("ann", "bob")]
    assert np.isnan(records[1].train_loss)
    assert float(run.shared_parameters()["u"]) == pytest.approx(float(u), rel=1e-13)
    assert [float(run.parameters(c)["v"]) for c in (0, 1)] == pytest.approx([float(v1), float(v2)], rel=1e-13)


@pytest.mark.filterwarnings("ignore:.updates. must be finite for some client")
@pytest.mark.parametrize("server", [mo.server.sgd(momentum=0.5), mo.server.adam(lr=0.1)], ids=["momentum", "adam"])
def test_a_round_in_which_all_fail_leaves_the_optimiser_alone(server):
    """Good, bad, good is good, good: no step with a change of zero, no decay of momentum, no count of a step."""
    build = CASES.args[1][0][0]
    three, _ = fit(GOOD, build(schedule=blowing_up(1), server=server), "sequential", rounds=3)
    two, _ = fit(GOOD, build(server=server), "sequential", rounds=2)
    assert torch.equal(three.shared_parameters()["u"], two.shared_parameters()["u"])


@ENGINES
def test_local_training_drops_it_too(engine):
    """Nothing is sent, but a state that is not finite must not be kept."""
    data = federated([GOOD[0], BAD], [GOOD[0]] * 2, names=["ann", "eve"])
    algorithm = mo.local_only(personal=mo.sgd(0.1, steps=2))
    run = mo.fit(scalar_task(), data, algorithm, split=split_of([], ["u", "v"]), rounds=1, engine=engine)
    assert run.history[-1]["dropped"] == ["1:eve"]
    assert {k: float(p) for k, p in run.parameters("eve").items()} == {"u": 1.0, "v": 0.0}
    assert float(run.parameters("ann")["u"]) != 1.0


@ENGINES
def test_a_state_that_is_not_finite_counts_even_where_the_upload_is_fine(engine):
    """One joint step with gamma_v = 1e308: u and the loss are finite, v_1 = 4e308 is not (v_2 = 1e308 is).

    So client 1 is left out, its v stays 0, and u is client 2's alone: 1 - 1/4 * 1 = 3/4.
    """
    algorithm = mo.fedsim(shared=mo.sgd(1 / 4, steps=1, batch_size=4), personal=1e308)
    run, records = fit(GOOD, algorithm, engine)
    assert records[0].dropped == ("ann",)
    assert float(run.parameters("ann")["v"]) == 0.0
    assert float(run.parameters("bob")["v"]) == 1e308
    assert float(run.shared_parameters()["u"]) == 0.75
