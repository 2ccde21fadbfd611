"""Codecs against what their papers say: every outcome of small vectors, bounds on larger ones, bytes by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import moiety as mo
from moiety.errors import MoietyError
from moiety.transport import CODECS, pack, unpack
from moiety.transport.codecs import draw_places, pack_bits, unpack_bits


class Dice:
    """A generator whose uniform numbers are given."""

    def __init__(self, numbers):
        self.numbers = np.asarray(numbers, dtype=float)

    def random(self, size):
        numbers, self.numbers = self.numbers[:size], self.numbers[size:]
        assert len(numbers) == size
        return numbers


VECTORS = [
    np.array([0.3, -0.7, 2.0, 0.0]),
    np.array([-1e-3, 5.0]),
    np.array([1.0, 1.0, -1.0, 1.0, 1.0]),
    np.array([-4.0]),
    np.array([0.0, 0.0, 3e-300]),
]


def through(codec, tensors, rng):
    """Encoded, packed into bytes, unpacked and decoded."""
    return codec.decode(unpack(pack(codec.encode(tensors, rng))), tensors)


@pytest.mark.parametrize("x", VECTORS, ids=range(len(VECTORS)))
@pytest.mark.parametrize("s", [1, 2, 3, 5, 127])
def test_qsgd_over_all_outcomes(x, s):
    """With a = s |x_i| / ||x||, number i goes up to floor(a) + 1 with probability a - floor(a), else down to floor(a).

    So there are at most 2^d outcomes of known probability. Their mean is x, and their mean squared distance from x is
    sum_i (||x|| / s)^2 p_i (1 - p_i), which Lemma 3.1 bounds by min(d / s^2, sqrt(d) / s) ||x||^2.
    """
    codec, d, norm = mo.codec.qsgd(levels=s), len(x), math.hypot(*x)
    a = s * np.abs(x) / norm
    p = a - np.floor(a + 1e-12)
    p = np.where(np.abs(p) < 1e-9, 0, p)
    mean, variance = np.zeros(d), 0.0
    for ups in itertools.product([False, True], repeat=d):
        chance = float(np.prod(np.where(ups, p, 1 - p)))
        dice = Dice(np.where(ups, np.maximum(p - 1e-7, 0), np.minimum(p + 1e-7, 1 - 1e-16)))
        if chance == 0:
            continue
        output = through(codec, {"x": torch.from_numpy(x)}, dice)["x"].numpy()
        expected = norm * np.sign(x) * (np.floor(a + 1e-12) + ups) / s
        np.testing.assert_allclose(output, expected, rtol=1e-12, atol=0)
        mean, variance = mean + chance * output, variance + chance * ((output - x) / norm) @ ((output - x) / norm)
    np.testing.assert_allclose(mean, x, rtol=1e-12, atol=1e-12 * norm)
    assert variance == pytest.approx((p * (1 - p)).sum() / s**2, abs=1e-9)
    assert variance <= min(d / s**2, math.sqrt(d) / s) + 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("s", [1, 4, 15])
def test_qsgd_is_unbiased_and_within_its_bound_on_larger_tensors(s, dtype):
    """Sized to fail less than once in a million, whatever the seed.

    Each error lies between -||x||/s and ||x||/s, so by Hoeffding the mean of n is off by more than (||x|| / s)
    sqrt(2 log(2 / q) / n) with probability q at most; q = 1e-7 / d for all d numbers together.

    The squared distance is a sum of d independent terms between 0 and (||x|| / s)^2, so its mean over n draws exceeds
    its expectation by (||x|| / s)^2 sqrt(d log(1 / q) / (2 n)) with probability q at most.
    """
    d, n, q = 60, 400, 1e-7
    x = torch.from_numpy(np.random.default_rng(s).normal(size=d)).to(dtype)
    exact, norm = x.double().numpy(), float(x.double().norm())
    rng, codec = np.random.default_rng(7), mo.codec.qsgd(levels=s)
    # Rounding to the type sent, once in the norm and once in the result, is no part of the codec's chance.
    eps = 2 * torch.finfo(dtype).eps * norm
    outputs = np.stack([through(codec, {"x": x.reshape(6, 10)}, rng)["x"].double().numpy().ravel() for _ in range(n)])
    off = np.abs(outputs.mean(0) - exact)
    assert off.max() < norm / s * math.sqrt(2 * math.log(2 * d / q) / n) + eps
    squares = ((outputs - exact) ** 2).sum(1).mean()
    room = (norm / s) ** 2 * math.sqrt(d * math.log(1 / q) / (2 * n)) + eps * norm
    assert squares <= min(d / s**2, math.sqrt(d) / s) * norm**2 + room
    assert squares > 0


@pytest.mark.parametrize("k", [1, 2, 3, 4, 0.5, 0.3])
def test_rand_k_over_all_outcomes(k):
    """Every subset of k of d = 4 numbers is one outcome: x_i d / k where i is in it, else 0.

    Equally likely, they have mean x and mean squared distance (d / k - 1) ||x||^2 from it. The share 0.3 of 4 is
    rounded up to 2.
    """
    x = np.array([0.3, -0.7, 2.0, 0.0])
    many = k if isinstance(k, int) else 2
    codec, rng, outputs = mo.codec.rand_k(k=k), np.random.default_rng(0), {}
    for _ in range(200):
        packed = codec.encode({"x": torch.from_numpy(x)}, rng)
        places = tuple(draw_places(int(packed["rand_k:seed"]), 4, many))
        outputs[places] = codec.decode(packed, {"x": torch.from_numpy(x)})["x"]
    assert set(outputs) == set(itertools.combinations(range(4), many))
    for places, output in outputs.items():
        expected = np.zeros(4)
        expected[list(places)] = x[list(places)] * 4 / many
        np.testing.assert_allclose(output.numpy(), expected, rtol=1e-15)
    outcomes = torch.stack(list(outputs.values())).numpy()
    np.testing.assert_allclose(outcomes.mean(0), x, atol=1e-15)
    assert ((outcomes - x) ** 2).sum(1).mean() == pytest.approx((4 / many - 1) * (x @ x))


@pytest.mark.parametrize(
    ("k", "count", "many"),
    [
        (0.07, 100, 7),  # in binary 7.000000000000001
        (0.29, 100, 29),
        (0.28, 25, 7),
        (0.1, 1_000, 100),
        (0.07, 101, 8),  # 7.07
        (0.501, 1_000, 501),
        (1e-9, 5, 1),
        (1.0, 3, 3),
        (np.float32(0.07), 100, 7),
    ],
)
def test_a_share_is_rounded_up_from_the_decimal_that_was_written(k, count, many):
    upload = {"x": torch.arange(1.0, count + 1)}
    packed = mo.codec.rand_k(k=k).encode(upload, np.random.default_rng(0))
    assert packed["rand_k:values"].numel() == many
    assert int(mo.codec.rand_k(k=k).decode(packed, upload)["x"].count_nonzero()) == many


def test_rand_k_draws_all_subsets_alike():
    """6 subsets of 2 out of 4, n = 3000 draws: a count is off n / 6 by sqrt(n log(2 / q) / 2) with probability q."""
    n, q = 3000, 1e-7
    rng = np.random.default_rng(3)
    draws = [tuple(draw_places(int(rng.integers(1 << 63)), 4, 2)) for _ in range(n)]
    counts = [draws.count(subset) for subset in itertools.combinations(range(4), 2)]
    assert sum(counts) == n
    assert max(abs(c - n / 6) for c in counts) < math.sqrt(n * math.log(2 * 6 / q) / 2)


def test_rand_k_counts_numbers_over_all_tensors():
    """d = 7 over two tensors; all of them are the upload itself, one is seven times itself."""
    upload = {"b": torch.arange(1.0, 5.0).reshape(2, 2), "a": torch.arange(5.0, 8.0)}
    whole = through(mo.codec.rand_k(k=7), upload, np.random.default_rng(0))
    assert list(whole) == ["b", "a"]
    for name, p in upload.items():
        assert torch.equal(whole[name], p)
    one = through(mo.codec.rand_k(k=1), upload, np.random.default_rng(0))
    values = torch.cat([one["b"].flatten(), one["a"]])
    at = int(values.argmax())
    assert values.count_nonzero() == 1
    assert float(values[at]) == pytest.approx(7 * (at + 1))


@pytest.mark.parametrize(
    ("s", "bits"), [(1, 2), (2, 3), (3, 3), (4, 4), (7, 4), (8, 5), (127, 8), (128, 9), (2**20, 22)]
)
def test_a_level_takes_as_few_bits_as_hold_it(s, bits):
    """-s to s are 2 s + 1 values. 1,001 numbers in two tensors take ceil(1001 bits / 8) bytes, and 4 for each norm."""
    assert 2 ** (bits - 1) < 2 * s + 1 <= 2**bits
    rng = np.random.default_rng(0)
    upload = {name: torch.from_numpy(rng.normal(size=n)).float() for name, n in (("p", 1000), ("q", 1))}
    packed = mo.codec.qsgd(levels=s).encode(upload, rng)
    assert {name: (p.numel(), p.dtype) for name, p in packed.items()} == {
        "qsgd:codes": (math.ceil(1001 * bits / 8), torch.uint8),
        "qsgd:norms": (2, torch.float32),
    }
    output = mo.codec.qsgd(levels=s).decode(packed, upload)
    step = float(upload["p"].norm()) / s
    assert float((output["p"] - upload["p"]).abs().max()) <= step * (1 + 1e-5)
    assert float(output["q"]) == float(upload["q"])  # one number is its own norm


@pytest.mark.parametrize("bits", [1, 2, 5, 8, 11, 32])
def test_bits_are_packed_one_after_another(bits):
    """As a whole number in base 2^bits, its first digit the lowest: Python's own arithmetic. Longer than one piece."""
    rng = np.random.default_rng(bits)
    digits = rng.integers(1 << bits, size=65_536 + 13)
    packed = pack_bits(digits, bits)
    assert len(packed) == -(-len(digits) * bits // 8)
    few = digits[:40].tolist()
    number = sum(d << (bits * i) for i, d in enumerate(few))
    assert packed[: 40 * bits // 8].tobytes() == number.to_bytes(40 * bits // 8, "little")
    assert np.array_equal(unpack_bits(packed, bits, len(digits)), digits)
    assert len(pack_bits(np.zeros(0, np.int64), bits)) == 0


ODD = {
    "count": torch.tensor(7),
    "flags": torch.tensor([True, False]),
    "none": torch.zeros(0),
    "w": torch.randn(3, 2, generator=torch.Generator().manual_seed(0)),
    "z": torch.zeros(4),
}


@pytest.mark.parametrize("codec", [mo.codec.qsgd(levels=3), mo.codec.rand_k(k=0.4)], ids=["qsgd", "rand_k"])
def test_whole_numbers_pass_and_nothing_is_changed(codec):
    before = {name: p.clone() for name, p in ODD.items()}
    output = through(codec, ODD, np.random.default_rng(1))
    assert list(output) == list(ODD)
    for name, p in ODD.items():
        assert torch.equal(p, before[name])
        assert (output[name].dtype, output[name].shape) == (p.dtype, p.shape)
    for name in ("count", "flags", "none", "z"):
        assert torch.equal(output[name], ODD[name])
    assert codec.encode({}, np.random.default_rng(1)) == {}
    assert codec.decode({}, {}) == {}
    only = {"count": torch.tensor(7)}
    assert through(codec, only, np.random.default_rng(1)) == only


def test_float64_stays_float64():
    """1/3 in float64 is not a float32: the norm of one number, and a value that is kept, arrive with all digits."""
    upload = {"x": torch.tensor([1 / 3], dtype=torch.float64), "y": torch.tensor([0.5])}
    for codec in (mo.codec.qsgd(levels=1), mo.codec.rand_k(k=2)):
        packed = codec.encode(upload, np.random.default_rng(0))
        output = codec.decode(packed, upload)
        assert output["x"].item() == 1 / 3
        assert (output["x"].dtype, output["y"].dtype) == (torch.float64, torch.float32)
    assert mo.codec.qsgd(levels=1).encode(upload, np.random.default_rng(0))["qsgd:norms"].dtype == torch.float64


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_does_not_arrive_as_if_it_were(odd):
    upload = {"x": torch.tensor([1.0, odd, 0.0])}
    output = through(mo.codec.qsgd(levels=3), upload, np.random.default_rng(0))["x"]
    assert not output.isfinite().any()
    output = through(mo.codec.rand_k(k=3), upload, np.random.default_rng(0))["x"]
    assert output.isfinite().tolist() == [True, False, True]


def test_a_norm_beyond_float32_arrives_as_not_finite():
    """||x|| = 2 x 3e38 > 3.4e38."""
    output = through(mo.codec.qsgd(levels=3), {"x": torch.full((4,), 3e38)}, np.random.default_rng(0))["x"]
    assert not output.isfinite().any()


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: mo.codec.qsgd(levels=0), "`codec.levels` must be >= 1, got 0."),
        (lambda: mo.codec.qsgd(levels=2.5), "`codec.levels` must be a whole number, got 2.5."),
        (lambda: mo.codec.rand_k(k=0), "`codec.k` must be >= 1, got 0."),
        (lambda: mo.codec.rand_k(k=1.5), "`codec.k` must be a whole number >= 1, or a share > 0 and <= 1, got 1.5."),
        (lambda: mo.codec.rand_k(k=True), "`codec.k` must be a whole number, got True."),
        (
            lambda: mo.codec.rand_k(k=9).encode({"x": torch.ones(4)}, np.random.default_rng(0)),
            "`codec.k` must be <= 4, the numbers of an upload, got 9.",
        ),
        (
            lambda: mo.codec.qsgd(levels=3).decode({"qsgd:norms": torch.ones(1)}, {"x": torch.ones(4)}),
            "`payload` must be one with 2 numbers qsgd:codes, got none.",
        ),
    ],
)
def test_bad_input_is_one_line(make, line):
    with pytest.raises(MoietyError) as error:
        make()
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


def test_numbers_of_numpy_will_do():
    upload = {"x": torch.tensor([3.0, -4.0, 0.5])}
    for first, plain in (
        (mo.codec.qsgd(levels=np.int64(5)), mo.codec.qsgd(levels=5)),
        (mo.codec.rand_k(k=np.int64(2)), mo.codec.rand_k(k=2)),
    ):
        one, other = (codec.encode(upload, np.random.default_rng(3)) for codec in (first, plain))
        assert all(torch.equal(one[name], other[name]) for name in other)
        assert first.spec == plain.spec


def test_the_table_names_both():
    assert {"qsgd": mo.codec.qsgd, "rand_k": mo.codec.rand_k, "sparse": mo.codec.sparse} == CODECS
