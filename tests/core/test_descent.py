"""SGD, Adagrad and the projection on a ball, against torch.optim and by hand."""

import pytest
import torch

from moiety.errors import MoietyError
from moiety.local.online import Online, project_to_ball


@pytest.mark.parametrize("rule", ["sgd", "adagrad"])
def test_steps_are_those_of_torch(rule):
    generator = torch.Generator().manual_seed(0)
    first = {"a": torch.randn(3, 2, generator=generator).double(), "b": torch.randn(4, generator=generator).double()}
    theirs = [p.clone().requires_grad_() for p in first.values()]
    optimiser = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}[rule](theirs, lr=0.3)
    descent = Online(0.3, rule=rule)
    point, squares = first, descent.init(first)
    for _ in range(5):
        gradient = {n: torch.randn(p.shape, generator=generator).double() for n, p in first.items()}
        for p, g in zip(theirs, gradient.values(), strict=True):
            p.grad = g.clone()
        optimiser.step()
        point, squares = descent.step(point, gradient, squares)
    for ours, p in zip(point.values(), theirs, strict=True):
        torch.testing.assert_close(ours, p.detach(), rtol=1e-9, atol=1e-12)


def test_no_gradient_is_no_step():
    """0 / sqrt(0): before the first delayed gradient there is none."""
    descent = Online(1.0, rule="adagrad")
    zero = {"a": torch.zeros(2)}
    assert torch.equal(descent.step({"a": torch.ones(2)}, zero, descent.init(zero))[0]["a"], torch.ones(2))


def test_the_projection_is_of_all_parameters_as_one_vector():
    """(3, 4) and 12 have the norm 13; on the ball of radius 6.5 all are halved, on that of 13 nothing changes."""
    point = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor(12.0)}
    assert {n: p.tolist() for n, p in project_to_ball(point, 6.5).items()} == {"a": [1.5, 2.0], "b": 6.0}
    assert all(torch.equal(project_to_ball(point, 13.0)[n], p) for n, p in point.items())
    assert project_to_ball({}, 1.0) == {}


def test_bad_options():
    with pytest.raises(MoietyError, match=r"^`radius` must be > 0 and finite, got -1\. Leave it out"):
        Online(0.1, radius=-1)
    with pytest.raises(MoietyError, match=r"^`rule` must be one of the known names, got 'rmsprop'\."):
        Online(0.1, rule="rmsprop")
