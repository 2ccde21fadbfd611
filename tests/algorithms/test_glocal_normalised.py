"""The normalised rule against ``oracle_normalised``, which is written from the papers' formulas in plain Python."""

import numpy as np
import pytest
import torch
from oracle_normalised import simulate
from oracle_problems import federated, split_of, vector_clients

import moiety as mo
from moiety.task import from_functions

PAIR = split_of(["u"], ["v"], {"u": 2, "v": 2})
START = {"u": [0.5, -1.0], "v": [0.25, 2.0]}
LR = 0.3


def task(start):
    init = {name: torch.tensor(value, dtype=torch.float64) for name, value in start.items()}

    def predict(p, d):
        return d["a"] @ p["u"] + d["b"] @ p["v"]

    return from_functions(init, lambda p, d: (predict(p, d) - d["y"]).square(), predict)


def fit(clients, rounds=17, engine="sequential", clock=None, batch=1, start=START, **options):
    algorithm = mo.glocal_sgd(
        shared=mo.online(LR, rule="normalised", batch_size=batch, shuffle=False),
        personal=mo.online(LR, rule="normalised"),
        **options,
    )
    settings = mo.Settings(clock=clock, evaluate_every=rounds)
    return mo.fit(
        task(start), federated(clients), algorithm, split=PAIR, rounds=rounds, engine=engine, settings=settings, seed=0
    )


CASES = {
    "no delay": {},
    "delays": {"down": [0, 2, 1], "up": [2, 0, 3]},
    "batches and weights": {"down": [1] * 3, "up": [1] * 3, "batch": 2, "lam": [5.0, 3.0, 4.0]},
    "asymmetric": {"down": [2, 0, 1], "up": [1, 2, 1], "alignment": "asymmetric"},
    "misaligned": {"down": [2, 0, 1], "up": [1, 2, 1], "alignment": "misaligned"},
}


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_update_is_that_of_the_papers(case, engine):
    clients = vector_clients([5, 3, 4])
    down, up = case.get("down", [0] * 3), case.get("up", [0] * 3)
    alignment, batch, lam = case.get("alignment", "aligned"), case.get("batch", 1), case.get("lam", [1.0] * 3)
    trip = max(a + b for a, b in zip(down, up, strict=True))
    at = "arrival" if alignment == "misaligned" else "dispatch"
    run = fit(
        clients,
        engine=engine,
        clock=mo.clock.delayed(down=down, up=up, at=at) if "down" in case else None,
        batch=batch,
        alignment=alignment,
        longest_round_trip=trip if alignment == "aligned" else 0,
        weighting="examples" if "lam" in case else "uniform",
    )
    u, v = simulate(clients, 17, down, up, lam, batch, alignment, start=START, rates=(LR, LR))
    np.testing.assert_allclose(run.shared_parameters()["u"].numpy(), u, rtol=0, atol=1e-12)
    for i in range(3):
        np.testing.assert_allclose(run.parameters(i)["v"].numpy(), v[i], rtol=0, atol=1e-12)


def test_the_scale_of_a_feature_does_not_matter():
    """Features 1,000 and 1/50 times as large, from weights that are as much smaller: the same predictions."""
    clients = [{**c, "a": c["a"] * [1000, 1], "b": c["b"] * [1, 0.02]} for c in vector_clients([5, 3])]
    plain, other = fit(vector_clients([5, 3])), fit(clients, start={"u": [0.5 / 1000, -1.0], "v": [0.25, 2.0 * 50]})
    u, v = (run.shared_parameters()["u"].numpy() for run in (plain, other))
    np.testing.assert_allclose(v * [1000, 1], u, rtol=1e-10)


def test_an_example_of_weight_three_is_three_examples():
    one, other = vector_clients([3, 1])
    thrice = {k: np.repeat(c, 3, axis=0) for k, c in other.items()}  # 3 rows: weight 3, and the mean of copies
    copies = fit([one, other, other, other], weighting="uniform")
    weighted = fit([{**one, "lam": np.ones(3)}, {**thrice, "lam": np.full(3, 3.0)}], weight_column="lam")
    np.testing.assert_allclose(
        copies.shared_parameters()["u"].numpy(), weighted.shared_parameters()["u"].numpy(), rtol=1e-12
    )


def test_no_step_goes_beyond_the_label():
    """Whatever the rate, one example ends at its label: u alone has a feature."""
    client = {"a": np.array([[3.0, -2.0]]), "b": np.zeros((1, 2)), "y": np.array([7.0])}
    algorithm = mo.glocal_sgd(shared=mo.online(1e6, rule="normalised"), personal=0.1)
    run = mo.fit(task(START), federated([client]), algorithm, split=PAIR, rounds=1)
    assert float(client["a"][0] @ run.shared_parameters()["u"].numpy()) == pytest.approx(7.0, abs=1e-12)


def test_clients_alone_are_learners_of_their_own():
    clients = vector_clients([3, 4])
    blind = [{**c, "a": np.zeros_like(c["a"])} for c in clients]
    algorithm = mo.independent(personal=mo.online(LR, rule="normalised", steps=7, shuffle=False))
    run = mo.fit(task(START), federated(blind), algorithm, split=split_of([], ["u", "v"], {"u": 2, "v": 2}), rounds=1)
    _, v = simulate(blind, 7, [0] * 2, [0] * 2, [1.0] * 2, 1, "aligned", start=START, rates=(LR, LR))
    for i in range(2):
        np.testing.assert_allclose(run.parameters(i)["v"].numpy(), v[i], rtol=0, atol=1e-12)
