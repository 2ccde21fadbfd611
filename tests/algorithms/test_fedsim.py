"""What is FedSim's own; its numbers are in tests/oracles, its row in tests/conformance."""

import numpy as np
import pytest
import torch
from oracle_problems import federated, scalar_task, split_of

import moiety as mo

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorised"])


@ENGINES
def test_one_pass_serves_both_blocks(engine):
    """Rows (1, 1, 1) then (1, 1, 3) in order, batches of 1, from u = v = 0 with rates 1/2 and 1/4.

    Residual -1: u = 1/2, v = 1/4. Residual 3/4 - 3 = -9/4: u = 1/2 + 9/8 = 13/8, v = 1/4 + 9/16 = 13/16.
    """
    data = federated([{"a": np.ones(2), "b": np.ones(2), "y": np.array([1.0, 3.0])}])
    algorithm = mo.fedsim(shared=mo.sgd(0.5, batch_size=1, shuffle=False), personal=0.25)
    run = mo.fit(scalar_task(0.0, 0.0), data, algorithm, split=split_of(["u"], ["v"]), rounds=1, engine=engine)
    assert {k: float(p) for k, p in run.parameters(0).items()} == {"u": 13 / 8, "v": 13 / 16}


@ENGINES
def test_momentum_is_kept_for_each_block_and_starts_anew_in_each_round(engine):
    """As in test_fedalt.

    U and v are apart, so the joint steps are those of each; both are at 1 after one round and stay.
    """
    data = federated([{"a": np.array([1.0, 0]), "b": np.array([0, 1.0]), "y": np.ones(2)}])
    algorithm = mo.fedsim(shared=mo.sgd(1.0, steps=2, momentum=0.5), personal=mo.sgd(1.0, momentum=0.5))
    for rounds in (1, 2):
        run = mo.fit(
            scalar_task(0.0, -1.0), data, algorithm, split=split_of(["u"], ["v"]), rounds=rounds, engine=engine
        )
        assert {k: float(p) for k, p in run.parameters(0).items()} == {"u": 1.0, "v": 1.0}


def test_onboarding_is_the_personal_part_of_the_joint_work():
    """y = w x + c with c personal, from 0; the run's client (x = 0, y = 4) leaves w at 0.

    Onboard x = 1, y = 8 with rates 1/8 and two steps. The loss is (w + c - 8)^2. First residual -8: w = c = 2. Second
    residual -4: w = c = 3. The new client's c is 3, with w back at the server's 0. Holding w fixed throughout would
    have given c = 2 + 6/4 = 3.5.
    """
    line = torch.nn.Linear(1, 1).double()
    with torch.no_grad():
        line.weight.zero_()
        line.bias.zero_()
    data = federated([{"x": np.zeros((2, 1)), "y": np.full((2, 1), 4.0)}])
    algorithm = mo.fedsim(shared=mo.sgd(0.125, steps=2), personal=0.125)
    run = mo.fit(line, data, algorithm, split=mo.split.by_name(line, personal=["bias"]), rounds=1, engine="sequential")
    new = run.onboard({"x": np.ones((1, 1)), "y": np.full((1, 1), 8.0)})
    assert (float(new.bias.detach()), float(new.weight.detach())) == (3.0, 0.0)


def test_an_order_of_rows_for_the_personal_part_alone_is_refused():
    """Both parts are trained on the same batches."""
    with pytest.raises(mo.MoietyError, match=r"`personal.shuffle` must be left out, or as in shared, got False"):
        mo.fedsim(shared=0.1, personal=mo.sgd(0.1, shuffle=False))
    mo.fedsim(shared=mo.sgd(0.1, shuffle=False), personal=mo.sgd(0.1, shuffle=False))
