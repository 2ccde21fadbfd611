"""Attacks by hand and by NumPy; and Theorem 8 of Mishchenko et al. 2023 under them."""

import numpy as np
import pytest
import scipy.stats
import torch

from moiety.errors import MoietyError
from moiety.random import generator
from moiety.server.attacks import (
    ATTACKS,
    a_little_is_enough,
    gaussian,
    inner_product_manipulation,
    label_flip,
    largest_shift,
    mimic,
    mimic_target,
    not_finite,
    sign_flip,
)
from moiety.server.geometric import geometric_median
from moiety.server.preaggregation import bucketing, nearest_neighbour_mixing
from moiety.server.robust import krum, mean, median, trimmed_mean
from moiety.spec import build
from moiety.types import ClientUpdate

RNG = np.random.default_rng(5)
HONEST, OWN = RNG.normal(size=(7, 4)), RNG.normal(size=(3, 4))


def updates(rows, dtype=torch.float64, weight=2.0):
    rows = torch.as_tensor(np.asarray(rows), dtype=dtype)
    return [
        ClientUpdate({"n": torch.tensor(i), "a": r[:1].clone(), "b": r[1:].reshape(1, -1)}, torch.tensor(weight), {})
        for i, r in enumerate(rows)
    ]


def vectors(batch):
    return np.array([[*u.upload["a"].tolist(), *u.upload["b"].reshape(-1).tolist()] for u in batch])


def send_attack(attack, chance=None):
    return vectors(attack.send(updates(HONEST), updates(OWN), chance))


def test_each_against_numpy():
    m, s = HONEST.mean(0), HONEST.std(0)
    np.testing.assert_allclose(send_attack(sign_flip(scale=3.0)), -3 * OWN, rtol=1e-14)
    np.testing.assert_allclose(send_attack(inner_product_manipulation(epsilon=0.1)), [-0.1 * m] * 3, rtol=1e-14)
    np.testing.assert_allclose(send_attack(a_little_is_enough(z=1.5)), [m - 1.5 * s] * 3, rtol=1e-13)
    np.testing.assert_array_equal(send_attack(mimic(client=2)), [HONEST[2]] * 3)
    assert np.isnan(send_attack(not_finite())).all()
    draw = np.random.Generator(np.random.Philox(key=generator(1, "attack", 4).bit_generator.state["state"]["key"]))
    np.testing.assert_array_equal(
        send_attack(gaussian(std=200.0), generator(1, "attack", 4)), draw.normal(size=(3, 4)) * 200
    )


def test_the_largest_shift():
    """Ten clients, three of them attackers: s = floor(10/2 + 1) - 3 = 3 and (10 - 3 - 3) / (10 - 3) = 4/7.

    For n = 50 and f = 24 s is 2 and 24/26 the quantile; of one attacker in ten s is 5 and 4/9 the quantile, below 1/2.
    """
    z = scipy.stats.norm.ppf(4 / 7)
    np.testing.assert_allclose(send_attack(a_little_is_enough()), [HONEST.mean(0) - z * HONEST.std(0)] * 3, rtol=1e-12)
    assert largest_shift(50, 24) == pytest.approx(scipy.stats.norm.ppf(24 / 26), rel=1e-12)
    assert largest_shift(10, 1) == pytest.approx(scipy.stats.norm.ppf(4 / 9), rel=1e-12)
    with pytest.raises(MoietyError, match="`byzantine` must be less than half of the 10 clients, got 5"):
        largest_shift(10, 5)


def test_the_client_to_mimic():
    """Two rounds of three clients: client 1 is 5 and 7 out on the axis (3, 4) / 5 along which all vary most.

    NumPy: the eigenvector of the covariance with the greatest eigenvalue, by eigh.
    """
    rng = np.random.default_rng(6)
    axis = np.array([0.6, 0.8])
    out = np.array([[1.0, 5.0, -2.0], [0.5, 7.0, -3.0]])
    offsets = np.array([[0.1, -0.1, 0.0], [0.0, 0.2, -0.1]])
    rounds = out[..., None] * axis + offsets[..., None] * np.array([-0.8, 0.6])
    assert mimic_target(torch.tensor(rounds)) == 1
    history = rng.normal(size=(4, 6, 5)) + rng.normal(size=(6, 5))
    flat = history.reshape(-1, 5)
    direction = np.linalg.eigh(np.cov(flat.T))[1][:, -1]
    assert mimic_target(torch.tensor(history)) == np.abs((history @ direction).sum(0)).argmax()
    with pytest.raises(MoietyError, match="`rounds` must be of axes rounds, clients, coordinates"):
        mimic_target(torch.zeros(3, 2))


def test_uploads_keep_their_shape_and_nothing_is_changed():
    honest, own = updates(HONEST, torch.float32), updates(OWN, torch.float32, weight=5.0)
    forgeries = sign_flip(scale=2.0).send(honest, own)
    np.testing.assert_array_equal(vectors(own), OWN.astype(np.float32))
    np.testing.assert_array_equal(vectors(honest), HONEST.astype(np.float32))
    for before, after in zip(own, forgeries, strict=True):
        assert list(after.upload) == ["n", "a", "b"]
        assert torch.equal(after.upload["n"], before.upload["n"])
        assert after.upload["b"].dtype == torch.float32
        assert after.upload["b"].shape == before.upload["b"].shape
        assert float(after.weight) == 5
    np.testing.assert_array_equal(vectors(forgeries), -2 * OWN.astype(np.float32))
    assert mimic().send(honest, []) == []


def test_tensors_are_matched_by_name():
    """Honest a = 1, b = (2, 3) and the attacker's b before a: epsilon 1 sends a = -1, b = (-2, -3)."""
    own = ClientUpdate({"b": torch.zeros(2), "a": torch.zeros(1)}, torch.tensor(1.0), {})
    honest = ClientUpdate({"a": torch.tensor([1.0]), "b": torch.tensor([2.0, 3.0])}, torch.tensor(1.0), {})
    (forgery,) = inner_product_manipulation(epsilon=1.0).send([honest], [own])
    assert {n: x.tolist() for n, x in forgery.upload.items()} == {"b": [-2, -3], "a": [-1]}


def test_in_a_round_of_attackers_their_own_stand_for_the_honest():
    forgeries = inner_product_manipulation(epsilon=1.0).send([], updates(OWN))
    np.testing.assert_allclose(vectors(forgeries), [-OWN.mean(0)] * 3, rtol=1e-14)


def test_in_a_drawn_round_attackers_may_be_many_and_the_honest_few():
    """Of the two honest the last is mimicked; five attackers against two honest take the shift of three in seven.

    s = floor(7/2 + 1) - 3 = 1 and (7 - 3 - 1) / (7 - 3) = 3/4. Against one honest client the spread is 0.
    """
    two, five = updates(HONEST[:2]), updates(HONEST[2:])
    np.testing.assert_array_equal(vectors(mimic(client=7).send(two, five)), [HONEST[1]] * 5)
    expected = HONEST[:2].mean(0) - scipy.stats.norm.ppf(3 / 4) * HONEST[:2].std(0)
    np.testing.assert_allclose(vectors(a_little_is_enough().send(two, five)), [expected] * 5, rtol=1e-12)
    for attackers in (1, 3):
        rows = vectors(a_little_is_enough().send(two[:1], five[:attackers]))
        np.testing.assert_array_equal(rows, [HONEST[0]] * attackers)


def test_labels_are_turned_round_twice_to_themselves():
    labels, flip = torch.tensor([0, 3, 2, 4]), label_flip(classes=5).labels
    assert flip(labels).tolist() == [4, 1, 2, 0]
    assert torch.equal(flip(flip(labels)), labels)
    words = torch.tensor([[1, 2, -100], [4, -100, -100]])
    assert flip(words).tolist() == [[3, 2, -100], [0, -100, -100]]
    assert label_flip().labels(torch.tensor([1.5, -2.0])).tolist() == [-1.5, 2]
    np.testing.assert_array_equal(send_attack(label_flip(classes=5)), OWN)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: sign_flip(scale=0), "`scale` must be > 0 and finite, got 0."),
        (lambda: inner_product_manipulation(epsilon=-1), "`epsilon` must be > 0 and finite, got -1."),
        (lambda: a_little_is_enough(z=float("nan")), "`z` must be finite, got nan."),
        (lambda: mimic(client=-1), "`client` must be >= 0, got -1."),
        (lambda: gaussian(std=float("inf")), "`std` must be > 0 and finite, got inf."),
        (lambda: label_flip(classes=1), "`classes` must be >= 2, got 1."),
        (
            lambda: label_flip(classes=4).labels(torch.tensor([0, 4])),
            "`classes` must be the number of labels, which count from 0, got 4 with [4].",
        ),
        (
            lambda: label_flip(classes=4).labels(torch.tensor([-100, 0])),
            "`classes` must be the number of labels, which count from 0, got 4 with [-100].",
        ),
        (
            lambda: label_flip(classes=4).labels(torch.tensor([0.5])),
            "`classes` must be left out where targets are real numbers, got 4.",
        ),
        (
            lambda: label_flip().labels(torch.tensor([1])),
            "`classes` must be given where labels are whole numbers, got None.",
        ),
        (lambda: send_attack(gaussian(std=1.0)), "`generator` must be given to what draws at random, got None."),
    ],
)
def test_bad_arguments_are_one_line(make, text):
    with pytest.raises(MoietyError) as error:
        make()
    assert str(error.value).startswith(text)
    assert "\n" not in str(error.value)


ALL = [
    sign_flip(scale=10.0),
    inner_product_manipulation(epsilon=0.5),
    inner_product_manipulation(epsilon=5.0),
    a_little_is_enough(),
    a_little_is_enough(z=1.5),
    mimic(client=3),
    gaussian(std=200.0),
]
ATTACK_LIST = [*ALL, label_flip(classes=3), label_flip()]


@pytest.mark.parametrize("attack", ATTACK_LIST, ids=lambda a: a.spec["name"])
def test_a_configuration_can_say_it(attack):
    again = build("attack", ATTACKS, attack.spec)
    assert again.spec == attack.spec
    np.testing.assert_array_equal(send_attack(again, generator(2)), send_attack(attack, generator(2)))


def descend(aggregator, attack, rounds=60, rate=0.2):
    """Algorithm 5 of Mishchenko et al. 2023 with exact operators F_m(x) = A_m (x - x*), eight honest and two others."""
    rng = np.random.default_rng(0)
    curvature = 1 + rng.uniform(-0.05, 0.05, size=(10, 3))
    solution, x = np.array([1.0, -2.0, 3.0]), np.array([4.0, 4.0, -4.0])
    first = np.sum((x - solution) ** 2)
    for r in range(rounds):
        answers = updates(curvature * (x - solution))
        forgeries = attack.send(answers[:8], answers[8:], generator(0, "attack", r))
        aggregate = aggregator.aggregate(answers[:8] + forgeries, generator(0, "aggregate", r))
        x = x - rate * np.array([*aggregate["a"].tolist(), *aggregate["b"].reshape(-1).tolist()])
    return np.sum((x - solution) ** 2) / first


ROBUST = [
    bucketing(size=2, then=median()),
    bucketing(size=2, then=geometric_median()),
    nearest_neighbour_mixing(byzantine=2, then=krum(byzantine=2)),
    nearest_neighbour_mixing(byzantine=2, then=trimmed_mean(byzantine=2)),
]


@pytest.mark.parametrize("aggregator", ROBUST, ids=lambda a: f"{a.spec['name']}-{a.spec['then']['name']}")
@pytest.mark.parametrize("attack", ALL, ids=lambda a: a.spec["name"])
def test_robust_aggregation_converges_at_the_rate_of_theorem_8(attack, aggregator):
    """|x_R - x*|^2 <= (1 - rate mu / 2)^R |x_0 - x*|^2, the honest sharing their solution x* (over-parameterised).

    mu >= 0.95 and L <= 1.05. Of the curvatures within 1 +- 0.05 the variance is at most 0.0025, so (20) holds with
    l_sim = 0.0025 / 0.95. With rho_in = 1, G = 8 and delta = 0.2, (22) asks for c <= 0.95 / (2 * 0.2 * 8/7 * l_sim) =
    789, and (23) with rate 0.2 for 1.05 + 2 c delta 8/7 l_sim <= 1.25, so c <= 166: aggregators of a constant below
    that obey.
    """
    assert descend(aggregator, attack) <= (1 - 0.2 * 0.95 / 2) ** 60


def test_the_mean_diverges_where_they_converge():
    """With epsilon = 5 the mean of ten is (8 m - 2 * 5 m) / 10 = -m / 5: it climbs, by 1 + 0.2 / 5 a round."""
    assert descend(mean(), inner_product_manipulation(epsilon=5.0)) == pytest.approx(1.04**120, rel=0.2)
