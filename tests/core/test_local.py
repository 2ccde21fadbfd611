"""Local SGD against ``torch.optim.SGD`` and ``clip_grad_norm_`` on ordinary modules, and its masked steps."""

import copy

import numpy as np
import pytest
import torch
from flat_options import flat
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_problems import federated, scalar_task, split_of
from torch import nn

import moiety as mo
from moiety.errors import MoietyError
from moiety.local.descent import train
from moiety.local.sgd import check_rate, sgd_work
from moiety.local.verbs import autograd_gradient, clip_gradients, difference, mean_loss
from moiety.task import from_module
from moiety.task.block import block_gradient
from moiety.types import Phase, Work

GRADIENTS = pytest.mark.parametrize("gradient", [autograd_gradient, block_gradient], ids=["autograd", "func"])
OPTIONS = [(0.0, 0.0, None), (0.9, 0.0, None), (0.0, 0.1, None), (0.0, 0.0, 0.3), (0.5, 0.2, 0.3)]


def work_for(task, gradient=autograd_gradient, shared=(), personal=(), scale=1.0, dtype=torch.float64):
    return Work(
        task=task,
        shared=tuple(shared),
        personal=tuple(personal),
        compose=lambda u, v: {**u, **v},
        parts=lambda w: ({n: w[n] for n in shared}, {n: w[n] for n in personal}),
        batches=lambda name: [],
        gradient=gradient,
        scale=scale,
        examples=torch.tensor(1.0, dtype=dtype),
    )


def parts(rates, momentum=0.0, decay=0.0, clip=None):
    """How each parameter is trained, by its name and its rate."""
    return {(n,): mo.sgd(lr, momentum=momentum, weight_decay=decay, clip=clip) for n, lr in rates.items()}


def batches_of(count=5, size=6, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {"x": torch.tensor(rng.normal(size=(size, 4))), "y": torch.tensor(rng.integers(0, 3, size=size))}
        for _ in range(count)
    ]


def net():
    return mo.models.mlp(4, 3, hidden=(5,), seed=3).double()


def torch_sgd(module, batches, lr, momentum, decay, clip, names):
    """The same descent by PyTorch's own parts, on the parameters named in ``names`` only."""
    module = copy.deepcopy(module)
    groups = []
    for name, p in module.named_parameters():
        p.requires_grad_(name in names)
        if name in names:
            groups.append({"params": [p], "lr": lr[name]})
    optimiser = torch.optim.SGD(groups, lr=1.0, momentum=momentum, weight_decay=decay)
    losses = []
    for batch in batches:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(module(batch["x"]), batch["y"])
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_([g["params"][0] for g in groups], clip)
        optimiser.step()
        losses.append(loss.item())
    return {n: p.detach() for n, p in module.named_parameters()}, np.mean(losses)


@GRADIENTS
@pytest.mark.parametrize(("momentum", "decay", "clip"), OPTIONS)
@pytest.mark.parametrize("block", ["all", "head", "hidden1"])
def test_sgd_is_torch_sgd(gradient, momentum, decay, clip, block):
    module = net()
    names = [n for n, _ in module.named_parameters() if block == "all" or n.startswith(block)]
    lr = {n: 0.1 if n.startswith("head") else 0.4 for n in names}
    work = work_for(from_module(module, loss="cross_entropy"), gradient)
    start = dict(work.task.init)
    with torch.no_grad():
        params, loss = train(work, start, batches_of(), parts(lr, momentum, decay, clip))
    expected, mean = torch_sgd(module, batches_of(), lr, momentum, decay, clip, names)
    for name, p in expected.items():
        torch.testing.assert_close(params[name], p, rtol=1e-12, atol=1e-14)
    assert float(loss) == pytest.approx(mean, rel=1e-12)
    for name, p in module.named_parameters():
        assert torch.equal(start[name], p), "the given model is not changed"


@pytest.mark.parametrize("clip", [0.05, 1.0, 1e6])
def test_clipped_is_clip_grad_norm(clip):
    torch.manual_seed(0)
    gradients = {"a": torch.randn(3, 2, dtype=torch.float64), "b": torch.randn(4, dtype=torch.float64)}
    params = [nn.Parameter(torch.zeros_like(g)) for g in gradients.values()]
    for p, g in zip(params, gradients.values(), strict=True):
        p.grad = g.clone()
    nn.utils.clip_grad_norm_(params, clip)
    for p, g in zip(params, clip_gradients(gradients, clip).values(), strict=True):
        torch.testing.assert_close(g, p.grad, rtol=1e-14, atol=0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6), st.floats(1e-3, 1e3))
def test_a_clipped_gradient_is_short_and_points_the_same_way(values, limit):
    g = np.array(values)
    gradient = clip_gradients({"p": torch.tensor(g)}, limit)["p"].numpy()
    assert np.linalg.norm(gradient) <= min(limit, np.linalg.norm(g)) * (1 + 1e-12)
    np.testing.assert_allclose(gradient * np.linalg.norm(g), g * np.linalg.norm(gradient), rtol=1e-9, atol=1e-9)


def one_row(a, b, y):
    return {k: torch.tensor([float(x)], dtype=torch.float64) for k, x in {"a": a, "b": b, "y": y}.items()}


@GRADIENTS
def test_the_norm_clipped_in_the_shared_phase_is_that_of_u_alone(gradient):
    """F = (u + 100 v - 3)^2 / 2 at u = 1, v = 0: dF/du = -2, dF/dv = -200.

    Clipped at 1 with the gradient of u alone, u moves by 1/2 * 1 = 1/2 (to about 1e-6, the constant that torch adds
    too). With v's gradient in the norm u would move by 1/2 * 2/200 = 1/200.
    """
    work = work_for(scalar_task(1.0, 0.0), gradient)
    with torch.no_grad():
        params, _ = train(work, dict(work.task.init), [one_row(1, 100, 3)], parts({"u": 0.5}, clip=1.0))
    assert float(params["u"]) == pytest.approx(1 + 0.5, abs=1e-6)
    assert float(params["v"]) == 0.0


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_fedalt_clips_each_block_alone_and_fedsim_both_together(engine):
    """One client with one row, (a, b, y) = (3, 4, 5), from u = v = 0 and clip 1, one step per block of rates 1/10.

    FedAlt. v: dF/dv = 4 (0 - 5) = -20, clipped to -1, v = 1/10. u: residual 4/10 - 5 = -4.6, dF/du = -13.8, clipped
    to -1: u = 1/10. A stale dF/dv = -20 (or -18.4) in the norm would have left 13.8 / 24.3 = 0.57 of it. FedSim.
    (dF/du, dF/dv) = (-15, -20), norm 25: u = 15/25/10 = 0.06 and v = 0.08.
    """
    data = federated([{"a": np.array([3.0]), "b": np.array([4.0]), "y": np.array([5.0])}])
    common = {"shared_lr": 0.1, "personal_lr": 0.1, "clip": 1.0}
    expected = {"fedalt": (0.1, 0.1), "fedsim": (0.06, 0.08)}
    for name, build in (("fedalt", mo.fedalt), ("fedsim", mo.fedsim)):
        run = mo.fit(
            scalar_task(0.0, 0.0), data, flat(build, **common), split=split_of(["u"], ["v"]), rounds=1, engine=engine
        )
        params = run.parameters(0)
        assert (float(params["u"]), float(params["v"])) == pytest.approx(expected[name], abs=1e-7)


@GRADIENTS
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["padding last", "padding first"])
def test_a_step_of_padding_moves_no_running_statistics(gradient, order):
    """BatchNorm on x = 1 and 3 (mean 2, unbiased variance 2), from mean 0 and variance 1 with momentum 0.1.

    One real batch: mean 0.2, variance 0.9 + 0.2 = 1.1, one batch counted. The batch of padding holds 100 and 300: as a
    step of its own it would make the mean 20 or more, and count a second batch.
    """
    module = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1)).double()
    work = work_for(from_module(module, loss="mse"), gradient)
    y = torch.ones(2, 1, dtype=torch.float64)
    x = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    batches = [add_mask({"x": x, "y": y}, [True, True]), add_mask({"x": 100 * x, "y": y}, [False, False])]
    with torch.no_grad():
        params, _ = train(work, dict(work.task.init), [batches[i] for i in order], parts({"1.weight": 0.1}))
    statistics = [float(params[f"0.{name}"]) for name in ("running_mean", "running_var", "num_batches_tracked")]
    assert statistics == pytest.approx([0.2, 1.1, 1], rel=1e-12)


def add_mask(batch, mask):
    return {**batch, "mask": torch.tensor(mask)}


PADDING = add_mask(one_row(7, 7, 7), [False])
ROWS = [one_row(1, 2, 3), one_row(2, -1, 1), one_row(0.5, 1, -2)]
REAL = [add_mask(row, [True]) for row in ROWS]


@GRADIENTS
@pytest.mark.parametrize(("momentum", "decay", "clip"), OPTIONS)
@pytest.mark.parametrize(
    "places", [[3], [3, 3], [1], [1, 2, 2], [0], [0, 0, 2]], ids=["last", "end", "middle", "between", "first", "start"]
)
def test_a_step_that_is_all_padding_changes_nothing(gradient, momentum, decay, clip, places):
    """Neither the parameters (weight decay!), nor the momentum, nor the mean loss, wherever the padding stands."""
    work = work_for(scalar_task(1.0, -1.0), gradient)
    how = parts({"u": 0.1, "v": 0.2}, momentum, decay, clip)
    steps = list(REAL)
    for place in sorted(places, reverse=True):
        steps.insert(place, PADDING)
    with torch.no_grad():
        expected, loss = train(work, dict(work.task.init), ROWS, how)
        params, other = train(work, dict(work.task.init), steps, how)
    for name in expected:
        assert float(params[name]) == pytest.approx(float(expected[name]), rel=1e-14)
    assert float(other) == pytest.approx(float(loss), rel=1e-14)


@GRADIENTS
def test_rows_that_are_padding_count_for_nothing(gradient):
    """The mean is over the real rows: two of three here."""
    work = work_for(scalar_task(1.0, -1.0), gradient)
    two = {k: torch.cat([ROWS[0][k], ROWS[1][k]]) for k in ROWS[0]}
    three = {k: torch.cat([two[k], torch.tensor([1e6], dtype=torch.float64)]) for k in two}
    with torch.no_grad():
        expected, _ = train(work, dict(work.task.init), [two], parts({"u": 0.1}))
        params, _ = train(work, dict(work.task.init), [add_mask(three, [True, True, False])], parts({"u": 0.1}))
    assert float(params["u"]) == pytest.approx(float(expected["u"]), rel=1e-14)


def test_mean_loss_of_a_batch_of_padding_is_zero():
    losses = torch.tensor([3.0, 5.0])
    assert float(mean_loss(losses, {})) == 4.0
    assert float(mean_loss(losses, {"mask": torch.tensor([False, True])})) == 5.0
    assert float(mean_loss(losses, {"mask": torch.tensor([False, False])})) == 0.0


def test_an_empty_block_takes_no_step_and_moves_no_buffer():
    """A BatchNorm's statistics must not see a pass for a block that has nothing to train."""
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    work = work_for(from_module(module, loss="cross_entropy"))
    params, loss = train(
        work, dict(work.task.init), batches_of(), {(): mo.sgd(0.1, momentum=0.9, weight_decay=0.1, clip=1.0)}
    )
    assert params.keys() == work.task.init.keys()
    assert all(torch.equal(params[n], p) for n, p in work.task.init.items())
    assert float(loss) == 0.0


def test_no_batches_no_change():
    work = work_for(scalar_task(1.0, -1.0))
    params, loss = train(work, dict(work.task.init), [], parts({"u": 0.1}, 0.9, 0.1, 1.0))
    assert {n: float(p) for n, p in params.items()} == {"u": 1.0, "v": -1.0}
    assert float(loss) == 0.0


@GRADIENTS
def test_a_parameter_that_does_not_reach_the_loss_has_gradient_zero(gradient):
    at = {"p": torch.tensor(2.0), "q": torch.tensor(3.0)}
    gradients, loss, _ = gradient(lambda w: (w["p"].square(), {}), at)
    assert (float(gradients["p"]), float(gradients["q"]), float(loss)) == (4.0, 0.0, 4.0)
    gradients, loss, _ = gradient(lambda w: (torch.tensor(7.0), {}), {"q": torch.tensor(3.0)})
    assert (float(gradients["q"]), float(loss)) == (0.0, 7.0)


def test_the_schedule_scales_every_rate():
    """F = (u + 2 v - 3)^2 / 2 at u = 1, v = -1: dF/du = -4, dF/dv = -8. A quarter of the rates 0.4 and 0.8."""
    work = work_for(scalar_task(1.0, -1.0), scale=0.25)
    params, _ = train(work, dict(work.task.init), [ROWS[0]], parts({"u": 0.4, "v": 0.8}))
    assert {n: float(p) for n, p in params.items()} == pytest.approx({"u": 1 + 0.1 * 4, "v": -1 + 0.2 * 8}, rel=1e-14)


def test_difference():
    result = difference({"u": torch.tensor(3.0)}, {"u": torch.tensor(5.0), "other": torch.tensor(0.0)})
    assert {n: float(p) for n, p in result.items()} == {"u": -2.0}


def test_a_phase_is_one_epoch_unless_told():
    assert sgd_work("shared", 0.1).phase[:2] == (1, None)
    assert sgd_work("shared", mo.sgd(0.1, batch_size=8)).phase == Phase(1, None, 8, True)
    assert sgd_work("shared", mo.sgd(0.1, steps=5)).phase[:2] == (None, 5)
    assert sgd_work("shared", mo.sgd(0.1, epochs=3)).phase[:2] == (3, None)
    for wrong in ({"epochs": 1, "steps": 1}, {"epochs": 0, "steps": None}, {"epochs": None, "steps": 0}):
        with pytest.raises(MoietyError, match=r"^`(epochs|steps)` must be "):
            mo.sgd(0.1, **wrong)
    with pytest.raises(MoietyError, match=r"^`batch_size` must be >= 1, got 0"):
        mo.sgd(0.1, batch_size=0)
    for odd in ("no", 1, None):
        with pytest.raises(MoietyError, match=r"^`shuffle` must be true or false, got "):
            mo.sgd(0.1, shuffle=odd)


@pytest.mark.parametrize("lr", [0, -1, float("nan"), float("inf")])
def test_a_learning_rate_is_positive_and_finite(lr):
    with pytest.raises(MoietyError, match=r"^`lr` must be > 0 and finite, got "):
        check_rate("lr", lr)
    with pytest.raises(MoietyError, match=r"^`lr` must be > 0 and finite, got "):
        mo.sgd(lr)
    with pytest.raises(MoietyError, match=rf"^`shared` must be > 0 and finite, got {lr}\. "):
        mo.fedavg(shared=lr)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"momentum": 1.0}, "momentum"),
        ({"momentum": -0.1}, "momentum"),
        ({"weight_decay": -1}, "weight_decay"),
        ({"pull": -1}, "pull"),
        ({"clip": 0.0}, "clip"),
    ],
)
def test_options_are_checked(options, name):
    with pytest.raises(MoietyError, match=f"^`{name}` must be "):
        mo.sgd(0.1, **options)
