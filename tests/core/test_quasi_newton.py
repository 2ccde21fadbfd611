"""The directions of L-BFGS against the dense BFGS update of the inverse Hessian, in NumPy."""

import numpy as np
import pytest
import torch

from moiety.local.quasi_newton import begin

RNG = np.random.default_rng(0)
HALF = RNG.normal(size=(6, 6))
HESSIAN, CENTRE = HALF @ HALF.T + 0.1 * np.eye(6), RNG.normal(size=6)


def evaluate(point):
    """f(x) = (x - c) H (x - c) / 2 + 1, and its gradient."""
    off = torch.tensor(HESSIAN) @ (point - torch.tensor(CENTRE))
    return (point - torch.tensor(CENTRE)) @ off / 2 + 1, off


def dense(pairs):
    """From (s.y / y.y) I of the latest pair: (I - rho s y') B (I - rho y s') + rho s s', from the oldest pair on."""
    s, y = pairs[-1]
    inverse = s @ y / (y @ y) * np.eye(len(s))
    for s, y in pairs:
        factor = np.eye(len(s)) - np.outer(s, y) / (s @ y)
        inverse = factor @ inverse @ factor.T + np.outer(s, s) / (s @ y)
    return inverse


@pytest.mark.parametrize("memory", [1, 3, 10])
def test_directions(memory):
    start = torch.zeros(6, dtype=torch.float64)
    search, pairs, count = begin(start, *evaluate(start), memory), [], 0
    for _ in range(12):
        trial = search.trial
        value, gradient = evaluate(trial)
        before, search = search, search.next(value, gradient)
        if torch.equal(search.point, trial):
            count += 1
            pairs.append(((trial - before.point).numpy(), (gradient - before.gradient).numpy()))
            np.testing.assert_allclose(
                search.direction.numpy(), -dense(pairs[-memory:]) @ gradient.numpy(), rtol=1e-8, atol=1e-10
            )
            assert float(search.length) == 1.0
            assert float(search.value) <= float(before.value)
        else:
            assert torch.equal(search.point, before.point)
            assert float(search.length) == float(before.length) / 2
    assert count > 5


def test_the_first_step_is_short_and_one_that_rises_is_halved():
    """f = 100 x^2 from x = 1: gradient 200, so the first step is 1 long, to x = 0, which is taken.

    From a step that ended at f = 400 instead the point stays and the step is half as long; NaN is refused too.
    """
    one = torch.ones(1, dtype=torch.float64)
    search = begin(one, 100 * one[0], 200 * one, 4)
    assert float(search.trial) == 0.0
    assert float(search.next(0 * one[0], 0 * one).point) == 0.0
    for value in (400.0, float("nan")):
        after = search.next(value * one[0], value * one)
        assert (float(after.point), float(after.trial), float(after.value)) == (1.0, 0.5, 100.0)
