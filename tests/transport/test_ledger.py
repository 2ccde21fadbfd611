"""Bytes and arithmetic by hand, for the 4 -> 6 -> 3 network: 30 numbers in ``hidden1``, 21 in ``head``."""

import pytest
import torch
from oracle_problems import federated, image_clients

import moiety as mo
from moiety.transport import pack

SIZES = (5, 1, 9)


def fit(algorithm, personal, rounds=1, cohort=None, dtype=torch.float32, engine="sequential"):
    net = mo.models.mlp(4, 3, hidden=(6,)).to(dtype)
    split = mo.split.by_name(net, personal=personal)
    data = federated(image_clients(SIZES))
    return mo.fit(net, data, algorithm, split=split, rounds=rounds, cohort=cohort, engine=engine), net


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.float64, 8)], ids=["float32", "float64"])
def test_bytes_of_fedalt(dtype, size, engine):
    """Head personal: 30 shared numbers to and from each of 2 clients in each of 3 rounds."""
    run, net = fit(mo.fedalt(shared=0.1, personal=0.1), ["head"], rounds=3, cohort=2, dtype=dtype, engine=engine)
    one = len(pack({n: p for n, p in net.named_parameters() if n.startswith("hidden1")}))
    ledger = run.ledger
    assert (ledger["rounds"], ledger["client_updates"]) == (3, 6)
    assert ledger["down_values"] == ledger["up_values"] == 6 * 30 * size
    assert ledger["down_payload"] == ledger["up_payload"] == 6 * one
    assert one > 30 * size


def test_bytes_of_fedavg_and_of_local_training():
    run, _ = fit(mo.fedavg(shared=0.1), [], rounds=2)
    assert run.ledger["down_values"] == run.ledger["up_values"] == 2 * 3 * 51 * 4
    run, _ = fit(mo.local_only(personal=0.1), ["hidden1", "head"], rounds=2)
    assert [run.ledger[k] for k in ("down_values", "up_values", "down_payload", "up_payload")] == [0, 0, 0, 0]
    assert run.ledger["client_updates"] == 6


FORWARD = 2 * 4 * 6 + 2 * 6 * 3
"""A product of [rows, n] and [n, m] is 2 n m operations a row: 48 for the first layer, 36 for the head."""
HEAD_WEIGHT, HIDDEN_OUTPUT, HIDDEN_WEIGHT = 2 * 6 * 3, 2 * 6 * 3, 2 * 4 * 6
"""Backwards: the head's weight, the hidden layer's output (to go on below the head), and the hidden layer's weight. The
gradient of the first layer's input is never needed."""
WHOLE = FORWARD + HEAD_WEIGHT + HIDDEN_OUTPUT + HIDDEN_WEIGHT


@pytest.mark.parametrize(
    ("algorithm", "personal", "flops"),
    [
        (mo.fedavg(shared=0.1), [], 15 * WHOLE),
        (mo.fedavg(shared=mo.sgd(0.1, epochs=3)), [], 3 * 15 * WHOLE),
        (mo.fedavg(shared=mo.sgd(0.1, steps=2, batch_size=4)), [], (4 + 1 + 1 + 1 + 4 + 4) * WHOLE),
        (mo.local_only(personal=0.1), ["hidden1", "head"], 15 * WHOLE),
        (mo.fedsim(shared=mo.sgd(0.1, epochs=2), personal=0.1), ["head"], 2 * 15 * WHOLE),
        # The personal steps stop below the head; the shared steps need no gradient of the head's weight.
        (
            mo.fedalt(shared=0.1, personal=mo.sgd(0.1, epochs=2)),
            ["head"],
            # In the second personal epoch the hidden layer's outputs are known: its 48 operations are saved.
            15 * (2 * (FORWARD + HEAD_WEIGHT) - 2 * 4 * 6 + FORWARD + HIDDEN_OUTPUT + HIDDEN_WEIGHT),
        ),
        # First layer personal: the personal steps go all the way down, the shared ones stop at the head.
        (
            mo.fedalt(shared=0.1, personal=mo.sgd(0.1, epochs=2)),
            ["hidden1"],
            15 * (2 * (FORWARD + HIDDEN_OUTPUT + HIDDEN_WEIGHT) + FORWARD + HEAD_WEIGHT),
        ),
        # Nothing personal: no personal step at all.
        (mo.fedalt(shared=0.1, personal=mo.sgd(0.1, epochs=2)), [], 15 * WHOLE),
    ],
    ids=["fedavg", "epochs", "steps", "local_only", "fedsim", "fedalt-head", "fedalt-first", "fedalt-nothing"],
)
def test_operations(algorithm, personal, flops):
    """15 rows in all. With 2 steps of at most 4 rows: 4 + 1, 1 + 1 and 4 + 4."""
    run, _ = fit(algorithm, personal)
    assert run.ledger["flops"] == flops


def test_operations_do_not_depend_on_the_engine():
    flops = [
        fit(mo.fedalt(shared=0.1, personal=0.1), ["head"], rounds=2, engine=e)[0].ledger["flops"]
        for e in ("sequential", "vectorised")
    ]
    expected = 2 * 15 * (2 * FORWARD + HEAD_WEIGHT + HIDDEN_OUTPUT + HIDDEN_WEIGHT)
    assert flops == [expected, expected]


def test_the_history_shows_the_sums_so_far():
    net = mo.models.mlp(4, 3, hidden=(6,))
    data = federated(image_clients(SIZES))
    run = mo.fit(
        net, data, mo.fedavg(shared=0.1), rounds=3, engine="sequential", settings=mo.Settings(evaluate_every=1)
    )
    assert [row["up_values"] for row in run.history] == [3 * 51 * 4 * k for k in (1, 2, 3)]
    assert [row["flops"] for row in run.history] == [15 * WHOLE * k for k in (1, 2, 3)]
