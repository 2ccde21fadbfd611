"""Norms of Hessian blocks against matrices: written down, or made entry by entry by torch.autograd.functional."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from moiety.analysis.estimates import block_norms, gradient_spread
from moiety.task import from_module


def norms(loss, model, batch, u, v, tolerance=1e-7):
    return block_norms(loss, model, batch, u, v, tolerance=tolerance, start=np.random.default_rng(0))


def test_a_saddle_with_eigenvalues_of_both_signs():
    """f = (3 u1^2 - 3 u2^2) / 2 + 2 u1 v - v^2 / 4.

    The blocks are diag(3, -3), (-1/2) and (2, 0)': norms 3, 1/2 and 2. Plain power iteration would turn for ever.
    """

    def loss(p, batch):
        u, v = p["u"], p["v"]
        return (1.5 * (u[0] ** 2 - u[1] ** 2) + 2 * u[0] * v - v**2 / 4).expand(len(batch["x"])), {}

    model = {"u": torch.tensor([0.3, -1.0]).double(), "v": torch.tensor(2.0).double()}
    values = norms(loss, model, {"x": torch.zeros(3)}, ("u",), ("v",))
    assert values == pytest.approx((3, 0.5, 2), rel=1e-6)


def test_a_loss_that_is_linear_in_one_part():
    """f = u v x: no curvature in either part alone, L_uv = |mean x| = 2; and of a part that plays no role, nothing."""
    batch = {"x": torch.tensor([1.0, 3.0]).double()}
    model = {name: torch.tensor(1.0).double() for name in ("u", "v", "w")}
    assert norms(lambda p, b: (p["u"] * p["v"] * b["x"], {}), model, batch, ("u",), ("v",)) == (0, 0, 2)
    assert norms(lambda p, b: (p["u"].square() * b["x"], {}), model, batch, ("u",), ("w",)) == pytest.approx((4, 0, 0))


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.ReLU()])
def test_a_network_against_its_full_hessian(activation):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), activation, nn.Linear(5, 4)).double()
    task = from_module(net, loss="cross_entropy")
    batch = {"x": torch.randn(20, 3).double() * 2, "y": torch.randint(0, 4, (20,))}
    u, v = ("0.weight", "0.bias"), ("2.weight", "2.bias")
    sizes = [task.init[n].numel() for n in (*u, *v)]

    def flat(x):
        parts = [c.view(task.init[n].shape) for c, n in zip(x.split(sizes), (*u, *v), strict=True)]
        return task.loss(dict(zip((*u, *v), parts, strict=True)), batch)[0].mean()

    at = torch.cat([task.init[n].flatten() for n in (*u, *v)])
    hessian = torch.autograd.functional.hessian(flat, at).numpy()
    cut = sum(sizes[:2])
    expected = [np.linalg.norm(b, 2) for b in (hessian[:cut, :cut], hessian[cut:, cut:], hessian[:cut, cut:])]
    actual = norms(task.loss, task.init, batch, u, v)
    assert actual == pytest.approx(expected, rel=1e-4)
    assert all(f <= e * (1 + 1e-9) for f, e in zip(actual, expected, strict=True))


class Attention(nn.Module):
    def __init__(self, fused: bool):
        super().__init__()
        self.inner, self.outer, self.fused = nn.Linear(4, 12, bias=False), nn.Linear(4, 2), fused

    def forward(self, x):
        q, k, v = self.inner(x).chunk(3, -1)
        if self.fused:
            output = functional.scaled_dot_product_attention(q, k, v)
        else:
            output = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v  # the root of 4 features
        return self.outer(output.mean(1))


def test_fused_attention_has_the_curvature_of_attention_written_out():
    torch.manual_seed(0)
    fused, plain = Attention(True), Attention(False)
    plain.load_state_dict(fused.state_dict())
    batch = {"x": torch.randn(6, 3, 4), "y": torch.randint(0, 2, (6,))}
    u, v = ("inner.weight",), ("outer.weight", "outer.bias")
    actual, expected = (
        norms(task.loss, task.init, batch, u, v, 1e-5)
        for task in (from_module(net, loss="cross_entropy") for net in (fused, plain))
    )
    assert actual == pytest.approx(expected, rel=1e-3)


def test_the_spread_of_gradients_by_hand():
    """f = (u - x)^2 / 2 + v x at u = 1, x = 0, 2, 4: gradients in u 1, -1, -3, mean -1, variance (4 + 0 + 4) / 2 = 4;

    in v 0, 2, 4, mean 2, variance 4. Losses at v = 3: 1/2, 1/2 + 6, 9/2 + 12, mean 47/6.
    """
    model = {"u": torch.tensor(1.0), "v": torch.tensor(3.0)}
    batch = {"x": torch.tensor([0.0, 2.0, 4.0])}
    spread = gradient_spread(
        lambda p, b: ((p["u"] - b["x"]).square() / 2 + p["v"] * b["x"], {}), model, batch, ("u",), ("v",)
    )
    assert (spread.mean_u.tolist(), spread.mean_v.tolist()) == ([-1], [2])
    assert (spread.variance_u, spread.variance_v, spread.loss) == pytest.approx((4, 4, 47 / 6))
