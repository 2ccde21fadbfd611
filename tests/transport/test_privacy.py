"""Clipping by hand, the size of the noise, the clip that follows a quantile, and who takes part in secret."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

import moiety as mo
from moiety.loop.private_sum import PrivateSum
from moiety.transport.privacy import (
    COUNT_NOISE,
    PrivacyState,
    add_noise,
    clip_upload,
    draw_cohort,
    draw_normal,
    move_clip,
    privatise_update,
)
from moiety.types import ClientUpdate

LEVEL = 1e-7
"""Draws of the operating system differ each time: a right one fails a test of this level once in ten million runs."""


def update(**tensors: list[float]) -> ClientUpdate:
    upload = {name: torch.tensor(values, dtype=torch.float64) for name, values in tensors.items()}
    return ClientUpdate(upload, torch.tensor(1.0), {"loss": torch.tensor(0.5)})


def make(**options) -> mo.privacy.Gaussian:
    return mo.privacy.gaussian(**{"clip": 2.0, "noise": 1.5, "delta": 1e-5, **options})


def test_an_upload_is_one_vector_over_all_names():
    """(3, 4, 12) has the norm 13: times 2 / 13. (1, 0, 1) is short enough, and 0 has no direction."""
    vector, norm = clip_upload({"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([[12.0]])}, 2.0)
    assert norm == 13.0
    assert vector["a"].tolist() == pytest.approx([6 / 13, 8 / 13], rel=1e-15)
    assert vector["b"].tolist() == [[pytest.approx(24 / 13, rel=1e-15)]]
    short, norm = clip_upload({"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([1.0])}, 2.0)
    assert norm == math.sqrt(2)
    assert short["a"].tolist() == [1.0, 0.0]
    assert clip_upload({"a": torch.zeros(2)}, 2.0)[0]["a"].tolist() == [0.0, 0.0]


def test_what_one_client_adds_is_never_longer_than_the_clip():
    draw = np.random.default_rng(0)
    for scale in (1e-30, 1e-3, 1.0, 1e20, 1e38):
        upload = {"a": torch.tensor(scale * draw.normal(size=50), dtype=torch.float32)}
        vector, _ = clip_upload(upload, 0.7)
        assert float(vector["a"].norm()) <= 0.7 * (1 + 1e-14)


@pytest.mark.parametrize("mean", [True, False])
def test_the_sum_of_clipped_uploads_is_divided_by_a_fixed_number(mean):
    """Norms 5 and 1, clip 2: (3, 4) becomes (1.2, 1.6), (0, 1) stays. Five were expected, two came."""
    privacy = make(noise=0.0)
    state = PrivacyState(0.0, 2.0)
    total = PrivateSum(privacy, state, update(a=[0.0, 0.0]).upload, expected=5, mean=mean)
    total.add([update(a=[3.0, 4.0]), update(a=[0.0, 1.0])])
    aggregate, _ = total.release(state._replace(sums=1))
    divisor = 5 if mean else 1
    assert aggregate["a"].tolist() == pytest.approx([1.2 / divisor, 2.6 / divisor], rel=1e-15)


def assert_normal(draws: np.ndarray, deviation: float) -> None:
    """Mean, variance and shape, each at LEVEL."""
    n = len(draws)
    bound = stats.norm.isf(LEVEL / 2)
    assert abs(draws.mean()) < bound * deviation / math.sqrt(n)
    low, high = stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], n)
    assert low < (draws**2).sum() / deviation**2 < high
    assert stats.kstest(draws / deviation, "norm").pvalue > LEVEL


@pytest.mark.parametrize("seed", [None, 3])
def test_central_noise_is_normal_of_deviation_noise_times_clip(seed):
    """Of 100,000 numbers: the variance is right to 2.4%. No two names, and no two sums, have the same noise."""
    privacy, layout = make(insecure_seed=seed), {"a": torch.zeros(50_000), "b": torch.zeros(200, 250)}
    releases = []
    for number in (1, 2):
        total = PrivateSum(privacy, PrivacyState(1.5, 2.0), layout, expected=4)
        aggregate, _ = total.release(PrivacyState(1.5, 2.0, number))
        releases.append(torch.cat([aggregate["a"], aggregate["b"].flatten()]).double().numpy())
        assert_normal(releases[-1], 1.5 * 2.0 / 4)
    bound = stats.norm.isf(LEVEL / 2) / math.sqrt(50_000)
    first, second = releases
    assert abs(np.corrcoef(first, second)[0, 1]) < bound
    assert abs(np.corrcoef(first[:50_000], first[50_000:])[0, 1]) < bound


@pytest.mark.parametrize("seed", [None, 3])
def test_local_noise_is_on_each_upload(seed):
    """An upload of norm 500 sqrt(40,000) = 1e5 becomes one of norm 2, and noise of deviation 3 on each number."""
    privacy = make(insecure_seed=seed, where="local")
    uploads = [
        privatise_update(privacy, PrivacyState(1.5, 2.0, 1), update(a=[500.0] * 40_000), client).upload["a"].numpy()
        for client in (0, 1)
    ]
    for each in uploads:
        assert_normal(each - 2.0 / math.sqrt(40_000), 3.0)
    assert abs(np.corrcoef(*uploads)[0, 1]) < stats.norm.isf(LEVEL / 2) / math.sqrt(40_000)


def test_noise_keeps_the_types_of_uploads():
    privacy, half = make(where="local"), torch.ones(3, dtype=torch.float16)
    message = privatise_update(privacy, PrivacyState(1.5, 2.0, 1), update()._replace(upload={"a": half}), 0)
    assert message.upload["a"].dtype == torch.float16
    total = PrivateSum(privacy, PrivacyState(1.5, 2.0), {"a": half}, expected=1)
    assert total.release(PrivacyState(1.5, 2.0, 1))[0]["a"].dtype == torch.float16


def test_the_operating_system_draws_otherwise_each_time_and_a_seed_the_same():
    secret, seeded = make(), make(insecure_seed=3)
    assert (draw_normal(secret, 100, "sum", 1) != draw_normal(secret, 100, "sum", 1)).all()
    assert (draw_normal(seeded, 100, "sum", 1) == draw_normal(seeded, 100, "sum", 1)).all()
    zero = {"a": torch.zeros(100)}
    assert (add_noise(seeded, zero, 1.0, "sum", 1)["a"] != add_noise(seeded, zero, 1.0, "sum", 2)["a"]).all()


def test_the_noise_on_the_count_of_a_quantile():
    """log(next / clip) = -rate ((below + 2.5 noise N) / expected + 1/2 - quantile): N, taken from 20,000 of them."""
    privacy = make(quantile=0.6, clip_rate=0.3)
    draws = []
    for number in range(20_000):
        after = move_clip(privacy, PrivacyState(1.5, 2.0, number), 3.0, 8)
        draws.append((math.log(after / 2.0) / -0.3 - 0.5 + 0.6) * 8 - 3.0)
    assert_normal(np.array(draws), COUNT_NOISE * 1.5)


def test_the_clip_finds_the_quantile():
    """Norms 1 to 100, one client each, nearly no noise: 75% of them are at most 75."""
    privacy, state = make(quantile=0.75, insecure_seed=0), PrivacyState(1e-3, 1.0)
    for number in range(1, 200):
        total = PrivateSum(privacy, state, {"a": torch.zeros(1)}, expected=100)
        total.add([update(a=[float(size)]) for size in range(1, 101)])
        state = total.release(state._replace(sums=number))[1]
    assert 74 < state.clip < 77


def test_without_a_quantile_the_clip_stays():
    assert move_clip(make(), PrivacyState(1.5, 2.0, 1), 3.0, 8) == 2.0


@pytest.mark.parametrize("seed", [None, 3])
def test_clients_take_part_independently(seed):
    """Ten clients, three expected, 5,000 rounds: shares of clients and of pairs, each at LEVEL / 55."""
    privacy, presence = make(insecure_seed=seed), np.zeros((5_000, 10))
    for number in range(len(presence)):
        presence[number, draw_cohort(privacy, PrivacyState(1.5, 2.0, number), 10, 3)] = 1
    pairs = (presence.T @ presence)[np.triu_indices(10, 1)]
    for counts, p in ((presence.sum(0), 0.3), (pairs, 0.09)):
        low, high = stats.binom.ppf([LEVEL / 110, 1 - LEVEL / 110], len(presence), p)
        assert ((counts >= low) & (counts <= high)).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clip": 0.0}, "`clip` must be > 0"),
        ({"clip": math.inf}, "`clip` must be > 0 and finite"),
        ({"noise": -1.0}, "`noise` must be >= 0"),
        ({"noise": None}, "`noise` must be given, or epsilon"),
        ({"epsilon": 1.0}, "`noise` must be given, or epsilon, not both"),
        ({"noise": None, "epsilon": 0.0}, "`epsilon` must be > 0"),
        ({"delta": 0.0}, "`delta` must be > 0 and < 1"),
        ({"where": "cloud"}, "`where` must be one of the known names"),
        ({"quantile": 1.0}, "`quantile` must be > 0 and < 1"),
        ({"quantile": 0.5, "where": "local"}, "`quantile` must be left out where noise is local"),
        ({"clip_rate": 0.0}, "`clip_rate` must be > 0"),
        ({"insecure_seed": 0.5}, "`insecure_seed` must be a whole number"),
    ],
)
def test_wrong_arguments_are_refused(options, words):
    with pytest.raises(mo.MoietyError, match=words):
        make(**options)
