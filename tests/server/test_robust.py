"""Robust aggregators against NumPy and SciPy written from the papers, in limit cases, and under attacks of any size."""

import dataclasses

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from oracle_problems import federated, scalar_task, split_of

import moiety as mo
from moiety.errors import MoietyError
from moiety.random import generator
from moiety.server.aggregators import AGGREGATORS, aggregator_from
from moiety.server.geometric import geometric_median
from moiety.server.preaggregation import bucket_means, bucketing, mix_with_nearest, nearest_neighbour_mixing
from moiety.server.robust import (
    centred_clipping,
    krum,
    mean,
    median,
    multi_krum,
    trimmed_mean,
)
from moiety.types import ClientUpdate

N, D, F = 11, 6, 3
ROWS = np.random.default_rng(1).normal(size=(N, D)) * np.array([1.0, 0.1, 5.0, 1.0, 2.0, 0.01]) + 3.0
ROBUST = [
    median(),
    trimmed_mean(byzantine=F),
    krum(byzantine=F),
    multi_krum(byzantine=F, keep=4),
    geometric_median(),
    centred_clipping(radius=2.0, iterations=5),
]


def name_of(aggregator):
    inner = aggregator.spec.get("then")
    return aggregator.spec["name"] + (f"-{inner['name']}" if inner else "")


def updates(rows, dtype=torch.float64):
    """A row's first number as a number, the others as a matrix of one row; weights 1, 2, ..."""
    rows = torch.as_tensor(np.array(rows), dtype=dtype)
    return [ClientUpdate({"b": r[0].clone(), "w": r[1:][None]}, torch.tensor(i + 1.0), {}) for i, r in enumerate(rows)]


def vector(upload):
    return np.concatenate([upload["b"].reshape(-1).numpy(), upload["w"].reshape(-1).numpy()])


def aggregate(aggregator, rows, chance=None):
    return vector(aggregator.aggregate(updates(rows), chance))


def numpy_krum(rows, f):
    """Blanchard et al. 2017: scores s(i), the sum over i -> j of |V_i - V_j|^2 for the n - f - 2 closest j."""
    scores = []
    for i, x in enumerate(rows):
        others = sorted(float(np.sum((x - y) ** 2)) for j, y in enumerate(rows) if j != i)
        scores.append(sum(others[: len(rows) - f - 2]))
    return np.array(scores)


def test_median_and_trimmed_mean_against_numpy_and_scipy():
    np.testing.assert_allclose(aggregate(median(), ROWS), np.median(ROWS, 0), rtol=1e-15)
    np.testing.assert_allclose(aggregate(median(), ROWS[:10]), np.median(ROWS[:10], 0), rtol=1e-15)
    for f in range(6):
        expected = scipy.stats.trim_mean(ROWS, (f + 0.5) / N)
        np.testing.assert_allclose(aggregate(trimmed_mean(byzantine=f), ROWS), expected, rtol=1e-14)


def test_krum_against_numpy():
    for f in range(5):
        order = np.argsort(numpy_krum(ROWS, f))
        np.testing.assert_array_equal(aggregate(krum(byzantine=f), ROWS), ROWS[order[0]])
        actual = aggregate(multi_krum(byzantine=f, keep=N - f), ROWS)
        np.testing.assert_allclose(actual, ROWS[order[: N - f]].mean(0), rtol=1e-14)


def test_krum_picks_the_middle_of_the_cluster():
    """A cluster (0,0), (1,0), (-1,0), (0,1), (0,-1) and two far points; f = 2, so 7 - 2 - 2 = 3 neighbours count.

    The centre scores 1 + 1 + 1 = 3, an arm 1 + 2 + 2 = 5, and the far ones more than 1000: the centre is picked. With
    two kept, the arms tie at 5 and the first in lexicographic order, (-1, 0), joins: the mean is (-1/2, 0).
    """
    rows = np.array([[50.0, 50.0], [1, 0], [0, 1], [0, 0], [-1, 0], [0, -1], [50.0, 51.0]])
    assert aggregate(krum(byzantine=2), rows).tolist() == [0, 0]
    assert aggregate(multi_krum(byzantine=2, keep=2), rows).tolist() == [-0.5, 0]


EXACT = {"xatol": 1e-9, "fatol": 1e-14, "maxiter": 5000}


def mean_distance(z, rows):
    return np.linalg.norm(rows - z, axis=1).mean()


@pytest.mark.parametrize("seed", range(4))
def test_geometric_median_against_scipy(seed):
    """BFGS and Nelder-Mead on the mean distance itself; theirs is not below ours by more than tolerance times s."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(9 + seed, 3)) * rng.exponential(size=(9 + seed, 1)) * 10 - 7
    s = np.median(np.linalg.norm(rows - np.median(rows, 0), axis=1))
    centre = aggregate(geometric_median(tolerance=1e-8), rows)
    results = [
        scipy.optimize.minimize(mean_distance, centre + rng.normal(size=3), args=(rows,), method=m, options=o)
        for m, o in [("BFGS", {"gtol": 1e-10}), ("Nelder-Mead", EXACT)]
    ]
    best = min(results, key=lambda t: t.fun)
    assert mean_distance(centre, rows) <= best.fun + 1e-8 * s
    np.testing.assert_allclose(centre, best.x, atol=1e-5 * s)


@pytest.mark.parametrize("size", [1e12, 1e30, 1e90, 1e250])
@pytest.mark.parametrize("seed", range(4))
def test_far_attackers_pull_a_geometric_median_by_one_unit_each(seed, size):
    """As size grows, |z - size e| - size tends to -<e, z>: SciPy minimises what is left, in which no size stands."""
    rng = np.random.default_rng(seed)
    honest = rng.normal(size=(6, 3)) * rng.exponential(size=(6, 1))
    pull = np.eye(3)[[seed % 3, (seed + 1) % 3]] * [[1.0], [-1.0]]
    centre = aggregate(geometric_median(tolerance=1e-8), np.concatenate([honest, size * pull]))

    def measure(z):
        return np.linalg.norm(honest - z, axis=1).sum() - (pull @ z).sum()

    results = [
        scipy.optimize.minimize(measure, z, method="Nelder-Mead", options=EXACT) for z in (centre + 0.1, centre - 0.1)
    ]
    best = min(results, key=lambda t: t.fun)
    assert measure(centre) <= best.fun + 1e-7
    np.testing.assert_allclose(centre, best.x, atol=1e-4)


def test_geometric_median_where_geometry_knows_it():
    """Fermat's point of the triangle (0,0), (1,0), (1/2, sqrt(3)/2 * 5) sees all sides under 120 degrees.

    It is on the axis x = 1/2 and sees the base under 120 degrees: its height is (1/2) / tan(60 degrees) = 1 / (2 sqrt
    3). A corner of 120 degrees or more is the point itself: here (0, 0) between (1, 0) and (-1, 1). On a line it is the
    median, and where half or more say the same, it is that.
    """
    exact = geometric_median(tolerance=1e-10)
    triangle = [[0, 0], [1, 0], [0.5, np.sqrt(3) / 2 * 5]]
    np.testing.assert_allclose(aggregate(exact, triangle), [0.5, 1 / (2 * np.sqrt(3))], atol=1e-8)
    np.testing.assert_allclose(aggregate(exact, [[0.0, 0], [1, 0], [-1, 1]]), [0, 0], atol=1e-8)
    np.testing.assert_allclose(aggregate(exact, [[0.0, 0], [1, 1], [3, 3], [4, 4], [1000, 1000]]), [3, 3], atol=1e-8)
    assert aggregate(exact, [[2.0, 5], [2, 5], [9, 9], [-700, 3]]).tolist() == [2, 5]


@pytest.mark.parametrize("size", [0, 1e20])
def test_geometric_median_is_certified_quickly(size):
    """A warning, here an error, would tell of a case that took more than 150 steps; two of six may be far away."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        rows = rng.normal(size=(6, 2)) * rng.exponential(size=(6, 1))
        if size:
            rows[:2] = rng.normal(size=(2, 2)) * size
        assert np.isfinite(aggregate(geometric_median(iterations=150), rows)).all()


def test_geometric_median_says_when_it_was_stopped():
    with pytest.warns(UserWarning, match="tolerance 1e-06 is not certified after 2 iterations"):
        centre = aggregate(geometric_median(iterations=2), [[0, 0], [1, 0], [0.5, 4.0]])
    assert 0 < centre[1] < 4


def test_centred_clipping_against_numpy():
    centre = np.median(ROWS, 0)
    for _ in range(4):
        steps = ROWS - centre
        centre = centre + np.mean([s * min(1, 0.7 / np.linalg.norm(s)) for s in steps], 0)
    np.testing.assert_allclose(aggregate(centred_clipping(radius=0.7, iterations=4), ROWS), centre, rtol=1e-13)


def test_nearest_neighbour_mixing_against_numpy():
    near = [sorted(range(N), key=lambda j: np.sum((ROWS[i] - ROWS[j]) ** 2))[: N - F] for i in range(N)]
    means = np.stack([ROWS[rows].mean(0) for rows in near])
    np.testing.assert_allclose(mix_with_nearest(torch.tensor(ROWS), F).numpy(), means, rtol=1e-14)
    actual = aggregate(nearest_neighbour_mixing(byzantine=F, then=median()), ROWS)
    np.testing.assert_allclose(actual, np.median(means, 0), rtol=1e-14)


def test_bucketing_given_its_permutation():
    """Rows in the order 3, 0, 4, 1, 2, by twos: (30 + 0) / 2, (60 + 10) / 2, 20; by threes: 90 / 3, 30 / 2."""
    rows = torch.tensor([[0.0], [10.0], [20.0], [30.0], [60.0]])
    assert bucket_means(rows, torch.tensor([3, 0, 4, 1, 2]), 2).tolist() == [[15], [35], [20]]
    assert bucket_means(rows, torch.tensor([3, 0, 4, 1, 2]), 3).tolist() == [[30], [15]]


@pytest.mark.parametrize("round", range(3))
def test_bucketing_draws_from_the_generator_alone(round):
    """The permutation is of the vectors in lexicographic order: Python sorts, NumPy averages."""
    order = generator(7, "aggregate", round).permutation(N)
    rows = np.array(sorted(ROWS.tolist()))[order]
    expected = np.median([rows[i : i + 2].mean(0) for i in range(0, N, 2)], 0)
    aggregator = bucketing(size=2, then=median())
    actual = aggregate(aggregator, ROWS, generator(7, "aggregate", round))
    np.testing.assert_allclose(actual, expected, rtol=1e-14)
    again = aggregate(aggregator, ROWS[::-1], generator(7, "aggregate", round))
    np.testing.assert_array_equal(again, actual)


def test_limits_are_the_mean():
    """Nobody cut, a radius without bound, all in one bucket, all mixed with all, all kept.

    With nobody Byzantine (delta = 0), Definition 2 of Mishchenko et al. 2023 asks for the mean: before any aggregator a
    bucket of all, or mixing with all, gives it; the median and Krum alone do not.
    """
    plain = ROWS.mean(0)
    same = [
        trimmed_mean(byzantine=0),
        centred_clipping(radius=float("inf"), iterations=2),
        multi_krum(byzantine=0, keep=N),
        bucketing(size=1, then=mean()),
        *[bucketing(size=N, then=a) for a in (mean(), median(), geometric_median())],
        *[nearest_neighbour_mixing(byzantine=0, then=a) for a in (mean(), *ROBUST)],
    ]
    for aggregator in same:
        np.testing.assert_allclose(
            aggregate(aggregator, ROWS, generator(0)), plain, rtol=1e-12, err_msg=str(aggregator)
        )
    for aggregator in (median(), krum(byzantine=0), geometric_median()):
        assert np.linalg.norm(aggregate(aggregator, ROWS) - plain) > 0.1


def test_the_mean_is_weighted_and_the_others_are_not():
    """Clients 1, 2, 4 with weights 1, 2, 3: (1 + 4 + 12) / 6, and the plain mean is 7 / 3."""
    rows = [[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]]
    np.testing.assert_allclose(aggregate(mean(), rows), [17 / 6] * 2, rtol=1e-14)
    np.testing.assert_allclose(aggregate(trimmed_mean(byzantine=0), rows), [7 / 3] * 2, rtol=1e-14)


SIZES = [1e3, 1e30, 1e250]
RULES = [
    *ROBUST,
    *[bucketing(size=2, then=a) for a in (median(), trimmed_mean(byzantine=2), geometric_median())],
    *[nearest_neighbour_mixing(byzantine=2, then=a) for a in (median(), krum(byzantine=2), geometric_median())],
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("aggregator", RULES, ids=name_of)
def test_two_of_eleven_cannot_carry_it_away(aggregator, size):
    """Nine honest in a ball of radius R around c, at most D apart; two Byzantine, together or opposite, of any size.

    The bounds of the builders' docstrings: between honest values in each of the six coordinates is within sqrt(6) R
    of c; Krum's pick is within sqrt(n - f - 2) D = sqrt(7) D of an honest vector; a geometric median is within 2 (n -
    f) / (n - 2 f) R = 18/7 R of c, behind buckets of two, of which 2 in 6 are spoilt, within 8/2 R; centred clipping
    is within 5 radii, 10, of the median. Mixing moves honest vectors by D at most, so that R becomes R + D and D 3 D.
    The widest is Krum's behind mixing, R + D + 3 sqrt(7) D: all are within 10 + 10 (R + D).
    """
    honest = ROWS[:9]
    c = honest.mean(0)
    R = np.linalg.norm(honest - c, axis=1).max()
    D_ = max(np.linalg.norm(x - y) for x in honest for y in honest)
    for signs in ([1.0, 1.0], [1.0, -1.0]):
        vectors = np.concatenate([honest, np.outer(signs, np.full(D, size))])
        centre = aggregate(aggregator, vectors, generator(3))
        assert np.linalg.norm(centre - c) <= 10 + 10 * (R + D_), signs
        if aggregator.spec["name"] in ("median", "trimmed_mean"):
            assert ((centre >= honest.min(0)) & (centre <= honest.max(0))).all()
        if aggregator.spec["name"] == "krum":
            assert centre.tolist() in honest.tolist()
    assert aggregate(mean(), vectors[:10]).max() > size / 20


def test_a_median_of_nearly_half_attackers_still_holds():
    """Five of eleven far away: median and trimmed mean stay in the honest box, the geometric median in its ball.

    2 (n - f) R / (n - 2 f) = 12 R with n = 11, f = 5.
    """
    honest, c = ROWS[:6], ROWS[:6].mean(0)
    vectors = np.concatenate([honest, np.full((5, D), 1e40)])
    for aggregator in (median(), trimmed_mean(byzantine=5)):
        centre = aggregate(aggregator, vectors)
        assert ((centre >= honest.min(0)) & (centre <= honest.max(0))).all()
    R = np.linalg.norm(honest - c, axis=1).max()
    assert np.linalg.norm(aggregate(geometric_median(), vectors) - c) <= 12 * R


@pytest.mark.parametrize("aggregator", [mean(), *RULES], ids=name_of)
def test_names_shapes_dtypes_are_kept_and_nothing_is_changed(aggregator):
    def upload(i):
        return {
            "whole": torch.tensor([i, 10 * i], dtype=torch.int32),
            "single": torch.full((2, 3), 0.1 * i, dtype=torch.float32),
            "flag": torch.tensor(i > 4),
            "double": torch.tensor(0.3 * i, dtype=torch.float64),
        }

    uploads = [ClientUpdate(upload(i), torch.tensor(1.0), {}) for i in range(N)]
    result = aggregator.aggregate(uploads, generator(0))
    assert list(result) == list(upload(0))
    for name, x in upload(0).items():
        assert (result[name].shape, result[name].dtype) == (x.shape, x.dtype)
    for i, update in enumerate(uploads):
        for name, x in upload(i).items():
            assert torch.equal(update.upload[name], x)
    # Clients 0 ... 10: the middle one is 5; the mean is 5 too.
    assert result["whole"].tolist() == [5, 50]
    assert bool(result["flag"]) is True


def test_whole_numbers_take_the_median_rounded_down():
    """3, 4, 9 and 10^9: between 4 and 9 is 6.5, so 6; 2^60 + 1 has no float64 and is kept."""
    counts = [[9, 2**60 + 1], [3, 2**60 + 1], [10**9, 0], [4, 2**60 + 1]]
    uploads = [ClientUpdate({"n": torch.tensor(c)}, torch.tensor(1.0), {}) for c in counts]
    assert median().aggregate(uploads)["n"].tolist() == [6, 2**60 + 1]


def test_distances_are_over_the_whole_upload():
    """Of (0, 0), (0, 9), (0, -9), (1, 1), (-1, 1) three agree in the first tensor, but (1, 1) and (-1, 1) score least.

    With f = 0 n - 2 = 3 neighbours count. Of (0, 0) the squares are 2 + 2 + 81 = 85; of (1, 1) 2 + 4 + 65 = 71, of (-1,
    1) the same; of (0, 9) 65 + 65 + 81. The tie goes to (-1, 1), first in lexicographic order.
    """
    rows = [[0.0, 0.0], [0, 9], [0, -9], [1, 1], [-1, 1]]
    assert aggregate(krum(byzantine=0), rows).tolist() == [-1, 1]


def test_distances_are_in_float64():
    """Squared distances 4096^2 and 4096^2 + 1 from (0, 0), which are the same in float32.

    The nearest of (0, 0) is (4096, 0) and not (-4096, 1), which comes first where they tie: mixed by twos, the vectors
    are (2048, 0), (2048, 0) and (-2048, 1/2), of median (2048, 0).
    """
    uploads = updates([[0, 0], [-4096, 1], [4096, 0]], torch.float32)
    result = nearest_neighbour_mixing(byzantine=1, then=median()).aggregate(uploads)
    assert vector(result).tolist() == [2048, 0]


def test_it_stands_in_for_the_mean_of_an_algorithm():
    """Clients with loss (u - y)^2 / 2 and y = 1, 2, 4, 1000 send u - 0 = y / 2 after one step from 0 of rate 1/2.

    The median of 0.5, 1, 2, 500 is 1.5, and without the least and the greatest the mean is 1.5 too.
    """
    data = federated([{"a": np.ones(1), "b": np.zeros(1), "y": np.full(1, y)} for y in (1000.0, 2.0, 1.0, 4.0)])
    for aggregator in (median(), trimmed_mean(byzantine=1)):
        algorithm = dataclasses.replace(mo.fedavg(shared=0.5), aggregator=aggregator.aggregate)
        run = mo.fit(scalar_task(0.0), data, algorithm, split=split_of(["u", "v"]), rounds=1, engine="sequential")
        assert float(run.shared_parameters()["u"]) == pytest.approx(1.5, rel=1e-12)


def test_nothing_to_send_is_nothing():
    assert median().aggregate([ClientUpdate({}, torch.tensor(1.0), {})] * 3) == {}


def one_line(aggregator, uploads, text):
    with pytest.raises(MoietyError) as error:
        aggregator.aggregate(uploads)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("aggregator", [mean(), *ROBUST], ids=name_of)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_refused(aggregator, bad):
    rows = ROWS.copy()
    rows[4, 2] = bad
    one_line(aggregator, updates(rows), "`updates` must be finite, got a NaN or an infinity in update 4. Drop it")


@pytest.mark.parametrize(
    ("aggregator", "n", "text"),
    [
        (trimmed_mean(byzantine=2), 4, "`updates` must be at least 5 for trimmed_mean(byzantine=2), got 4."),
        (krum(byzantine=2), 6, "`updates` must be at least 7 for krum(byzantine=2), got 6."),
        (multi_krum(byzantine=2, keep=6), 7, "at least 8 for multi_krum(byzantine=2, keep=6), got 7."),
        (multi_krum(byzantine=2, keep=1), 6, "at least 7 for multi_krum(byzantine=2), got 6."),
        (nearest_neighbour_mixing(byzantine=2, then=mean()), 4, "at least 5 for nearest_neighbour_mixing(byzantine=2)"),
        (bucketing(size=2, then=median()), 4, "`generator` must be given to what draws at random, got None."),
        (median(), 0, "`updates` must be at least one, got none."),
    ],
)
def test_too_few_is_one_line(aggregator, n, text):
    one_line(aggregator, updates(ROWS[:n]) if n else [], text)


def test_buckets_can_be_too_few():
    with pytest.raises(MoietyError, match=r"at least 5 for trimmed_mean\(byzantine=2\), got 3.*fewer in a bucket"):
        bucketing(size=4, then=trimmed_mean(byzantine=2)).aggregate(updates(ROWS), generator(0))


@pytest.mark.parametrize(
    ("aggregator", "least"),
    [
        (mean(), 1),
        (median(), 1),
        (trimmed_mean(byzantine=2), 5),
        (krum(byzantine=2), 7),
        (multi_krum(byzantine=2, keep=3), 7),
        (multi_krum(byzantine=2, keep=6), 8),
        (bucketing(size=3, then=trimmed_mean(byzantine=1)), 7),
        (nearest_neighbour_mixing(byzantine=2, then=median()), 5),
        (nearest_neighbour_mixing(byzantine=1, then=krum(byzantine=2)), 7),
    ],
    ids=lambda value: name_of(value) if isinstance(value, mo.aggregator.Aggregator) else str(value),
)
def test_each_says_how_many_uploads_it_needs(aggregator, least):
    """n > 2 f for trimming and mixing, n >= 2 f + 3 for Krum, n - f to keep of; three buckets of three need seven."""
    assert aggregator.least == least
    aggregator.aggregate(updates(ROWS[:least]), generator(0))
    if least > 1:
        with pytest.raises(MoietyError, match="`updates` must be at least"):
            aggregator.aggregate(updates(ROWS[: least - 1]), generator(0))


def test_uploads_that_differ_in_shape_are_one_line():
    one_line(median(), [*updates(ROWS), *updates(ROWS[:, :4])], "same names and shapes, got others in update 11.")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: trimmed_mean(byzantine=-1), "`byzantine` must be >= 0, got -1."),
        (lambda: krum(byzantine=1.5), "`byzantine` must be a whole number, got 1.5."),
        (lambda: multi_krum(byzantine=1, keep=0), "`keep` must be >= 1, got 0."),
        (lambda: geometric_median(tolerance=0), "`tolerance` must be >= 1e-12 and < 1, got 0."),
        (lambda: geometric_median(iterations=0), "`iterations` must be >= 1, got 0."),
        (lambda: centred_clipping(radius=0.0), "`radius` must be > 0, got 0.0."),
        (lambda: bucketing(size=0, then=median()), "`size` must be >= 1, got 0."),
        (lambda: bucketing(size=2, then="median"), "`then` must be an aggregator, got 'median' (str)."),
        (lambda: nearest_neighbour_mixing(byzantine=1, then=None), "`then` must be an aggregator, got None"),
    ],
)
def test_bad_arguments_are_one_line(make, text):
    with pytest.raises(MoietyError) as error:
        make()
    assert str(error.value).startswith(text)


@pytest.mark.parametrize("aggregator", [mean(), *RULES], ids=name_of)
def test_a_configuration_can_say_it(aggregator):
    assert aggregator.spec["name"] in AGGREGATORS
    again = aggregator_from(aggregator.spec)
    assert again.spec == aggregator.spec
    np.testing.assert_array_equal(aggregate(again, ROWS, generator(1)), aggregate(aggregator, ROWS, generator(1)))


FINITE = np.random.default_rng(5).normal(size=(5, 3))


@pytest.mark.parametrize(
    ("rule", "dropped", "least", "expected"),
    [
        (mo.aggregator.trimmed_mean(byzantine=2), 1, 3, lambda x: np.sort(x, 0)[1:4].mean(0)),
        (mo.aggregator.trimmed_mean(byzantine=2), 2, 1, lambda x: x.mean(0)),
        (mo.aggregator.trimmed_mean(byzantine=1), 3, 1, lambda x: x.mean(0)),
        (mo.aggregator.median(), 3, 1, lambda x: np.median(x, 0)),
        (mo.aggregator.krum(byzantine=2), 1, 5, lambda x: x[krum_scores(x, 1).argmin()]),
        (mo.aggregator.krum(byzantine=2), 2, 3, lambda x: x[krum_scores(x, 0).argmin()]),
        (mo.aggregator.multi_krum(byzantine=2, keep=2), 1, 5, lambda x: x[krum_scores(x, 1).argsort()[:2]].mean(0)),
        (
            mo.aggregator.bucketing(size=1, then=mo.aggregator.trimmed_mean(byzantine=2)),
            1,
            3,
            lambda x: np.sort(x, 0)[1:4].mean(0),
        ),
        (
            mo.aggregator.nearest_neighbour_mixing(byzantine=1, then=mo.aggregator.trimmed_mean(byzantine=1)),
            1,
            1,
            lambda x: x.mean(0),
        ),
    ],
)
def test_dropped_uploads_are_expected_no_more(rule, dropped, least, expected):
    """The rule for f minus the number dropped, never below 0, in NumPy."""
    rest = rule.without(dropped)
    assert rest.least == least
    result = rest.join(torch.from_numpy(FINITE), np.random.default_rng(0))
    np.testing.assert_allclose(result.numpy(), expected(FINITE), rtol=1e-12)
    assert rule.without(0) is rule


def krum_scores(x, byzantine):
    """The squared distances of each row to its n - f - 2 nearest others, summed."""
    squares = ((x[:, None] - x[None]) ** 2).sum(-1)
    return np.sort(squares, 1)[:, 1 : len(x) - byzantine - 1].sum(1)
