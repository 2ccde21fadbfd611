"""What the theory of Glocal says of regret under delay, on a problem whose slow direction is known in closed form."""

import numpy as np
import pytest
from oracle_problems import federated, split_of, vector_task

import moiety as mo
from moiety.analysis.online import OnlineLoss, best_pair

RHO, ETA, TAU = 0.9, 0.1, 2
ROUNDS = (50, 100, 200, 400)


def averages(alignment, tau):
    """The mean loss up to each round: 20 rows with a, b = ±1, equal in 19 of them, y = a - b, all of them each round.

    So the gradients are exact and the Hessian is [[1, 0.9], [0.9, 1]], with the solution (1, -1) in its slow direction
    (eigenvalue 0.1): shared and personal part must move apart, while each sees the other as the cause of its residual.
    """
    a = np.tile([1.0, -1.0], 10)
    b = a.copy()
    b[0] = -1.0
    rows = [{"a": a[:, None], "b": b[:, None], "y": a - b}]
    online = OnlineLoss()
    trip = 2 * tau if alignment == "aligned" else 0
    at = "arrival" if alignment == "misaligned" else "dispatch"
    algorithm = mo.glocal_sgd(
        shared=mo.online(ETA, batch_size=20), personal=ETA, alignment=alignment, longest_round_trip=trip
    )
    mo.fit(
        vector_task([0.0], [0.0]),
        federated(rows),
        algorithm,
        split=split_of(["u"], ["v"]),
        rounds=ROUNDS[-1],
        engine="sequential",
        settings=mo.Settings(
            clock=mo.clock.delayed(down=tau, up=tau, at=at) if tau else None, evaluate_every=ROUNDS[-1]
        ),
        callbacks=[online],
    )
    return online.regret(0.0)[np.array(ROUNDS) - 1]


@pytest.fixture(scope="module")
def ratios():
    """Regret (the best pair has no loss) over that without delay."""
    plain = averages("aligned", 0)
    # Without delay the slow direction alone is excited: the loss of round t is 0.1 (1 - ETA 0.1)^(2 t).
    losses = [0.1 * np.mean((1 - ETA * 0.1) ** (2 * np.arange(t))) for t in ROUNDS]
    np.testing.assert_allclose(plain, losses, rtol=1e-9)
    return {name: averages(name, TAU) / plain for name in ("aligned", "misaligned")}


def test_doubling_the_rounds_takes_the_aligned_rule_to_the_undelayed_one(ratios):
    """The delay is in a lower-order term: the excess shrinks with every doubling until nothing is incurred any more."""
    excess = ratios["aligned"] - 1
    assert (np.diff(excess) < 0).all()
    assert 0 < excess[-1] < 0.05


def test_the_misaligned_rule_pays_in_the_dominant_term(ratios):
    """It is slower in the slow direction, by a factor that no number of rounds takes away.

    With z^t for the mode u = -v: z = 1 - eta (1 - rho z^-tau), so z - 1 is about -eta (1 - rho) / (1 + eta rho tau),
    against -eta (1 - rho) for joint descent: slower by 1 + eta rho tau = 1.18.
    """
    assert (np.diff(ratios["misaligned"]) > 0).all()
    assert ratios["misaligned"][-1] > 1 + ETA * RHO * TAU
    assert (ratios["aligned"] < ratios["misaligned"]).all()


def test_the_best_pair_is_the_one_of_all_coefficients_at_once():
    """Against one least-squares problem with a block of columns for u and one for every u_i, weighted rows."""
    rng = np.random.default_rng(0)
    sizes, lam = (12, 7, 9), np.array([1.0, 3.0, 0.5])
    x, y = rng.normal(size=(28, 5)), rng.normal(size=28)
    owner = np.repeat(np.arange(3), sizes)
    data = mo.data.from_arrays({"x": x, "y": y}, client=owner, test=0.0)
    pair = best_pair(data, global_features=[0, 1, 4], local_features=[2, 3], weights=lam.tolist())
    g = np.hstack([x[:, [0, 1, 4]], np.ones((28, 1))])
    own = np.hstack([x[:, [2, 3]], np.ones((28, 1))])
    blocks = np.hstack([g] + [own * (owner == i)[:, None] for i in range(3)])
    root = np.sqrt(lam[owner] / np.array(sizes)[owner])
    w, *_ = np.linalg.lstsq(blocks * root[:, None], y * root, rcond=None)
    assert pair.loss == pytest.approx(((blocks @ w - y) ** 2 * root**2).sum() / lam.sum())
    # The constant may stand on either side; the slopes are determined.
    np.testing.assert_allclose(pair.shared[:3, 0], w[:3], rtol=1e-8)
    for i in range(3):
        np.testing.assert_allclose(pair.personal[i][:2, 0], w[4 + 3 * i : 6 + 3 * i], rtol=1e-8)


def test_the_best_pair_of_several_classes_is_one_regression_for_each():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(30, 2)), rng.integers(0, 3, size=30)
    data = mo.data.from_arrays({"x": x, "y": y}, client=np.repeat([0, 1], 15), test=0.0)
    total = 0.0
    for k in range(3):
        hot = mo.data.from_arrays({"x": x, "y": (y == k).astype(float)}, client=np.repeat([0, 1], 15), test=0.0)
        total += best_pair(hot).loss
    assert best_pair(data).loss == pytest.approx(total)


def test_one_line_for_a_wrong_feature():
    data = mo.data.from_arrays({"x": np.zeros((4, 3)), "y": np.zeros(4)}, client=[0, 0, 1, 1], test=0.0)
    with pytest.raises(mo.MoietyError, match=r"^`local_features` must be <= 2, got 3\.$"):
        best_pair(data, local_features=[3])
    with pytest.raises(mo.MoietyError, match=r"^`weights` must be 2 numbers >= 0, not all 0, got \[1\]\.$"):
        best_pair(data, weights=[1])
