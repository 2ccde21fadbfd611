"""Chance as a pure function, against SplitMix64's published stream and against moments."""

from __future__ import annotations

import torch

from moiety import random


def test_it_is_splitmix64():
    """The first two outputs of SplitMix64 from the state 1234567 (published test vectors of the generator)."""
    golden = random._to_signed(0x9E3779B97F4A7C15)
    outputs = random._mix(torch.tensor([1234567]) + torch.tensor([1, 2]) * golden)
    assert [int(x) % 2**64 for x in outputs] == [6457827717110365317, 3203168211198807973]


def test_moments_of_a_normal():
    """Mean, variance, third and fourth moment of 400,000 normals, each within six standard errors of 0, 1, 0, 3.

    The variances of x, x^2, x^3 and x^4 are 1, 2, 15 and 96.
    """
    x = random.normal(torch.tensor(3), torch.zeros(400_000, dtype=torch.float64), "test")
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float((x**power).mean()) - mean) < 6 * (variance / len(x)) ** 0.5


def test_keys_words_and_places_are_apart():
    """Correlations of 100,000 numbers under neighbouring keys, words and places, all within six standard errors."""
    like = torch.zeros(100_000, dtype=torch.float64)
    base = random.normal(torch.tensor(3), like, "a", 0)
    others = [random.normal(torch.tensor(k), like, *w) for k, w in ((4, ("a", 0)), (3, ("a", 1)), (3, ("b", 0)))]
    for other in [*others, base.roll(1)]:
        assert abs(float((base * other).mean())) < 6 / len(like) ** 0.5


def test_a_block_of_clients_draws_what_each_draws_alone():
    keys, like = torch.tensor([5, -7, 11]), torch.zeros(2, 3)
    together = torch.func.vmap(lambda key: random.normal(key, like, "step", 4))(keys)
    assert torch.equal(together, torch.stack([random.normal(key, like, "step", 4) for key in keys]))


def test_the_largest_hash_stays_below_1(monkeypatch):
    """53 bits of ones and a half are 2^53 - 1/2, which float64 rounds to 2^53."""
    monkeypatch.setattr(random, "_mix", lambda z: torch.full_like(z, -1))
    assert random.uniform(torch.tensor(0), (3,)).max() < 1
    assert random.normal(torch.tensor(0), torch.zeros(3, dtype=torch.float64)).isfinite().all()
