"""FedAvg on means, where its answer is a one-line formula."""

import numpy as np
import pytest
import torch
from flat_options import flat
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_problems import federated, image_clients, split_of

import moiety as mo
from moiety.errors import MoietyError
from moiety.task import from_functions


def mean_task():
    """F_k(w) = mean (w - x)^2 / 2, so E steps of rate r take w to m_k + (1 - r)^E (w - m_k)."""
    return from_functions({"w": torch.zeros((), dtype=torch.float64)}, lambda p, d: (p["w"] - d["y"]).square() / 2)


def fit(clients, algorithm, rounds=1, **options):
    data = federated([{"y": np.array(c, dtype=float)} for c in clients])
    run = mo.fit(mean_task(), data, algorithm, split=split_of(["w"]), rounds=rounds, engine="sequential", **options)
    return float(run.shared_parameters()["w"])


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=5), min_size=1, max_size=4),
    st.integers(1, 3),
    st.floats(0.05, 1.0),
    st.sampled_from(["examples", "uniform"]),
)
def test_full_batches_contract_towards_the_weighted_mean_of_means(clients, epochs, lr, weighting):
    """After t rounds, w = M (1 - (1 - r)^(E t)) with M the weighted mean of the clients' means."""
    sizes = [len(c) if weighting == "examples" else 1 for c in clients]
    target = np.average([np.mean(c) for c in clients], weights=sizes)
    w = fit(clients, mo.fedavg(shared=mo.sgd(lr, epochs=epochs, batch_size=5), weighting=weighting), rounds=2)
    assert w == pytest.approx(target * (1 - (1 - lr) ** (2 * epochs)), rel=1e-10, abs=1e-12)


def test_by_hand():
    """Clients {1}, {4, 8}, rate 1/2, one epoch of batches of 1 in order: 0 -> 1/2 and 0 -> 2 -> 5.

    By examples (1/2 + 2 * 5) / 3 = 7/2, by batches the same here, uniform 11/4.
    """
    common = {"lr": 0.5, "batch_size": 1, "shuffle": False}
    assert fit([[1], [4, 8]], flat(mo.fedavg, **common)) == pytest.approx(7 / 2, rel=1e-14)
    assert fit([[1], [4, 8]], flat(mo.fedavg, **common, weighting="batches")) == pytest.approx(7 / 2, rel=1e-14)
    assert fit([[1], [4, 8]], flat(mo.fedavg, **common, weighting="uniform")) == pytest.approx(11 / 4, rel=1e-14)


def test_shuffling_uses_each_row_once_per_epoch():
    """Batches of 1, two rows, rate 1/2: 0 -> 2 -> 5 in one order and 0 -> 4 -> 4 in the other; nothing else."""
    values = {fit([[4, 8]], mo.fedavg(shared=mo.sgd(0.5, batch_size=1)), seed=seed) for seed in range(8)}
    assert values == {5.0, 4.0}


def test_it_refuses_a_split_with_something_personal():
    net = mo.models.mlp(4, 3)
    with pytest.raises(MoietyError, match=r"^`split` must be one with nothing personal for fedavg, got "):
        mo.fit(
            net,
            federated(image_clients([3])),
            mo.fedavg(shared=0.1),
            split=mo.split.output_layer(net),
            rounds=1,
            engine="sequential",
        )


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("shared", lambda: mo.fedavg(shared=0)),
        ("lr", lambda: mo.fedavg(shared=mo.sgd(0))),
        ("epochs", lambda: mo.fedavg(shared=mo.sgd(0.1, epochs=0))),
        ("epochs", lambda: mo.fedavg(shared=mo.sgd(0.1, epochs=1, steps=2))),
        ("batch_size", lambda: mo.fedavg(shared=mo.sgd(0.1, batch_size=0))),
    ],
)
def test_wrong_hyper_parameters_are_one_line(name, build):
    with pytest.raises(MoietyError, match=rf"^`{name}` must be [^\n]*, got [^\n]*$"):
        build()


def test_options_are_given_by_name():
    with pytest.raises(TypeError):
        mo.fedavg(0.1)
