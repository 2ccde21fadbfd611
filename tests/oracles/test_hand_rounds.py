"""One and two rounds of FedAlt and FedSim against numbers worked out by hand.

The problem of all tests here. f(u, v; a, b, y) = (a u + b v - y)^2 / 2 with numbers u and v, start u = 1, v = 0.

Client 1 has one example (a, b, y) = (1, 2, 3). Client 2 has four, in this order: (2, 1, 1), (0, 1, 3), and the two
again; so both its whole data and each half of them have the means a^2 = 2, ab = 1, b^2 = 1, ay = 1, by = 2. Hence

    client 1:  dF/du = u + 2 v - 3     dF/dv = 2 u + 4 v - 6
    client 2:  dF/du = 2 u + v - 1     dF/dv = u + v - 2

and with gamma_u = 1/4, gamma_v = 1/8 a step is

    client 1:  u <- 3u/4 - v/2 + 3/4   v <- v/2 + (3 - u)/4
    client 2:  u <- u/2 + (1 - v)/4    v <- 7v/8 + (2 - u)/8
"""

from fractions import Fraction as Q

import numpy as np
import pytest
from flat_options import flat
from oracle_problems import federated, scalar_task, split_of

import moiety as mo

CLIENTS = [
    {"a": np.array([1.0]), "b": np.array([2.0]), "y": np.array([3.0])},
    {"a": np.array([2.0, 0, 2, 0]), "b": np.ones(4), "y": np.array([1.0, 3, 1, 3])},
]
RATES = {"shared_lr": 1 / 4, "personal_lr": 1 / 8}
ENGINES = ["sequential", "vectorised"]


def run(algorithm, engine, rounds=1, **options):
    split = split_of(["u"], ["v"])
    return mo.fit(scalar_task(), federated(CLIENTS), algorithm, split=split, rounds=rounds, engine=engine, **options)


def read_models(run):
    return float(run.shared_parameters()["u"]), *(float(run.parameters(i)["v"]) for i in (0, 1))


def agree(run, u, v1, v2):
    assert read_models(run) == pytest.approx([float(u), float(v1), float(v2)], rel=1e-13, abs=1e-15)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("weighting", "u"), [("examples", Q(431, 640)), ("batches", Q(899, 1024)), ("uniform", Q(899, 1024))]
)
def test_fedalt_two_steps_each(engine, weighting, u):
    """tau_v = tau_u = 2, full batches.

    Client 1: v with u = 1: 0 -> 1/2 -> 3/4. Then u with v = 3/4, u <- 3u/4 + 3/8: 1 -> 9/8 -> 39/32.
    Client 2: v with u = 1: 0 -> 1/8 -> 7/64 + 8/64 = 15/64. Then u with v = 15/64, u <- u/2 + 49/256:
    1 -> 177/256 -> 177/512 + 98/512 = 275/512.
    Server: by examples (1 : 4), (39/32 + 4 * 275/512) / 5 = (624 + 1100) / 2560 = 431/640.
    By batches both did 2, which is uniform: (624 + 275) / 1024 = 899/1024.
    """
    algorithm = flat(
        mo.fedalt, **RATES, shared_steps=2, personal_steps=2, batch_size=4, weighting=weighting, shuffle=False
    )
    agree(run(algorithm, engine), u, Q(3, 4), Q(15, 64))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("weighting", "u"), [("examples", Q(87, 128)), ("batches", Q(595, 768)), ("uniform", Q(915, 1024))]
)
def test_fedalt_one_epoch_of_halves(engine, weighting, u):
    """One epoch of batches of 2: client 1 does one step (its one row), client 2 does two, each with the means above.

    Client 1: v = 1/2; u = 3/4 - 1/4 + 3/4 = 5/4. Client 2: as with two full steps, v = 15/64 and u = 275/512.
    Server: examples 1 : 4, (640 + 4 * 275) / 512 / 5 = 1740/2560 = 87/128; batches 1 : 2,
    (640 + 2 * 275) / 512 / 3 = 1190/1536 = 595/768; uniform, (640 + 275) / 1024 = 915/1024.
    """
    algorithm = flat(mo.fedalt, **RATES, batch_size=2, weighting=weighting, shuffle=False)
    agree(run(algorithm, engine), u, Q(1, 2), Q(15, 64))


@pytest.mark.parametrize("engine", ENGINES)
def test_fedalt_second_round(engine):
    """The second round of the first test, by examples, from u = 431/640, v_1 = 3/4, v_2 = 15/64.

    Client 1: (3 - u)/4 = 1489/2560. v: 3/4 -> 960/2560 + 1489/2560 = 2449/2560 -> 2449/5120 + 2978/5120 = 5427/5120.
    u <- 3u/4 + (3/4 - 5427/10240) = 3u/4 + 2253/10240: 431/640 -> 5172/10240 + 2253/10240 = 7425/10240 = 1485/2048
    -> 4455/8192 + 2253/10240 = 22275/40960 + 9012/40960 = 31287/40960.
    Client 2: (2 - u)/8 = 849/5120. v: 15/64 -> 1050/5120 + 849/5120 = 1899/5120
    -> 13293/40960 + 6792/40960 = 20085/40960 = 4017/8192. u <- u/2 + (1 - 4017/8192)/4 = u/2 + 4175/32768:
    431/640 -> 55168/163840 + 20875/163840 = 76043/163840 -> 76043/327680 + 41750/327680 = 117793/327680.
    Server: (250296 + 4 * 117793) / 327680 / 5 = 721468/1638400 = 180367/409600.
    """
    algorithm = flat(mo.fedalt, **RATES, shared_steps=2, personal_steps=2, batch_size=4, shuffle=False)
    agree(run(algorithm, engine, rounds=2), Q(180367, 409600), Q(5427, 5120), Q(4017, 8192))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("weighting", "u"), [("examples", Q(4, 5)), ("batches", Q(71, 64)), ("uniform", Q(71, 64))])
def test_fedsim_two_steps(engine, weighting, u):
    """tau = 2, full batches; both gradients of a step are taken at the same point.

    Client 1 from (u, v) = (1, 0): dv = 2 - 6 = -4, du = 1 - 3 = -2 -> (3/2, 1/2); dv = 3 + 2 - 6 = -1,
    du = 3/2 + 1 - 3 = -1/2 -> (13/8, 5/8).
    Client 2 from (1, 0): dv = -1, du = 1 -> (3/4, 1/8); dv = 3/4 + 1/8 - 2 = -9/8, du = 3/2 + 1/8 - 1 = 5/8
    -> (3/4 - 5/32, 1/8 + 9/64) = (19/32, 17/64).
    Server: examples 1 : 4, (52 + 76) / 32 / 5 = 4/5; batches (both 2) and uniform, (52 + 19) / 64 = 71/64.

    With the second gradient at the new v, as an alternating method has it, client 1's u would be 5/4 after one step.
    """
    algorithm = flat(mo.fedsim, **RATES, steps=2, batch_size=4, weighting=weighting, shuffle=False)
    agree(run(algorithm, engine), u, Q(5, 8), Q(17, 64))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("weighting", "u"), [("examples", Q(31, 40)), ("batches", Q(43, 48)), ("uniform", Q(67, 64))])
def test_fedsim_one_epoch_of_halves(engine, weighting, u):
    """One epoch of batches of 2: client 1 stops at (3/2, 1/2), client 2 does both steps to (19/32, 17/64).

    Examples 1 : 4, (48 + 76) / 32 / 5 = 31/40; batches 1 : 2, (48 + 38) / 32 / 3 = 43/48; uniform, 67/64.
    """
    algorithm = flat(mo.fedsim, **RATES, batch_size=2, weighting=weighting, shuffle=False)
    agree(run(algorithm, engine), u, Q(1, 2), Q(17, 64))


@pytest.mark.parametrize("engine", ENGINES)
def test_fedsim_second_round(engine):
    """The second round by examples, from u = 4/5, v_1 = 5/8, v_2 = 17/64.

    Client 1: dv = 8/5 + 5/2 - 6 = -19/10, du = 4/5 + 5/4 - 3 = -19/20 -> u = 4/5 + 19/80 = 83/80,
    v = 5/8 + 19/80 = 69/80; dv = (83 + 138 - 240)/40 = -19/40, du = (83 + 138 - 240)/80 = -19/80
    -> u = 332/320 + 19/320 = 351/320, v = 276/320 + 19/320 = 295/320 = 59/64.
    Client 2: dv = (256 + 85 - 640)/320 = -299/320, du = (512 + 85 - 320)/320 = 277/320
    -> u = 1024/1280 - 277/1280 = 747/1280, v = 680/2560 + 299/2560 = 979/2560;
    dv = (1494 + 979 - 5120)/2560 = -2647/2560, du = (2988 + 979 - 2560)/2560 = 1407/2560
    -> u = 5976/10240 - 1407/10240 = 4569/10240, v = 7832/20480 + 2647/20480 = 10479/20480.
    Server: (11232 + 4 * 4569) / 10240 / 5 = 29508/51200 = 7377/12800.
    """
    algorithm = flat(mo.fedsim, **RATES, steps=2, batch_size=4, shuffle=False)
    agree(run(algorithm, engine, rounds=2), Q(7377, 12800), Q(59, 64), Q(10479, 20480))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("build", "column"),
    [
        (lambda: flat(mo.fedalt, **RATES, shared_steps=2, personal_steps=2, batch_size=4, shuffle=False), 0),
        (lambda: flat(mo.fedsim, **RATES, steps=2, batch_size=4, shuffle=False), 1),
    ],
    ids=["fedalt", "fedsim"],
)
def test_a_client_that_is_not_asked_keeps_its_v(engine, build, column):
    """With a cohort of one, u is that client's u and the other's v stays 0; numbers as in the two-step tests."""
    of_client = {
        0: [(Q(39, 32), Q(3, 4)), (Q(13, 8), Q(5, 8))][column],
        1: [(Q(275, 512), Q(15, 64)), (Q(19, 32), Q(17, 64))][column],
    }
    clients = set()
    for seed in range(6):
        records = []
        result = run(
            build(),
            engine,
            cohort=1,
            seed=seed,
            callbacks=[lambda run, record, records=records: records.append(record)],
        )
        (client,) = records[0].cohort
        clients.add(client)
        u, v = of_client[client]
        agree(result, u, v if client == 0 else 0, v if client == 1 else 0)
    assert clients == {0, 1}


def test_train_loss_of_the_record():
    """FedAlt's record shows the mean loss over the u-steps, before each step, weighted as the aggregate.

    F_1 = (u + 2v - 3)^2 / 2 with v = 3/4: at u = 1 it is (1/2)^2 / 2 = 1/8, at u = 9/8 it is (3/8)^2 / 2 = 9/128;
    mean 25/256. F_2 is the mean of (2u + v - 1)^2 / 2 and (v - 3)^2 / 2 with v = 15/64. At u = 1: ((79/64)^2 +
    (177/64)^2) / 4 = (6241 + 31329) / 16384 = 37570/16384. At u = 177/256: 2u + v - 1 = 354/256 + 60/256 - 256/256 =
    158/256 = 79/128, so (6241/16384 + 31329/4096) / 4 = (6241 + 125316) / 65536 = 131557/65536. Mean (150280 +
    131557) / 131072. By examples: (25/256 + 4 * 281837/131072) / 5.
    """
    records = []
    algorithm = flat(mo.fedalt, **RATES, shared_steps=2, personal_steps=2, batch_size=4, shuffle=False)
    run(algorithm, "sequential", callbacks=[lambda run, record: records.append(record)])
    assert records[0].train_loss == pytest.approx(float((Q(25, 256) + 4 * Q(281837, 131072)) / 5), rel=1e-13)
