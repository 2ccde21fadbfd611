"""Full personalisation as partial personalisation: equation 2 against its closed form."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import moiety as mo
from moiety.errors import MoietyError
from moiety.split import full
from moiety.task import from_module

SIZES = (6, 10, 20)


def clients() -> dict[str, dict[str, np.ndarray]]:
    draw = np.random.default_rng(5)
    data = {}
    for i, size in enumerate(SIZES):
        x = draw.normal(size=(size, 3)) * (1.0, 0.7, 1.3)
        data[f"c{i}"] = {
            "x": x,
            "y": x @ np.array([(1.0, -2.0, 3.0)[i], 0.5, -1.0 * i]) + 0.1 * draw.normal(size=size),
        }
    return data


def optimum(pull: float, weights: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The minimum of sum_i alpha_i (F_i(w_i) + (pull / 2) ||w_i - w_0||^2) with F_i(w) = (1 / N_i) ||X w - y||^2.

    The gradient in w_i is (2 / N_i) X^T (X w_i - y) + pull (w_i - w_0), so w_i = M_i^-1 (c_i + pull w_0) with
    M_i = (2 / N_i) X^T X + pull I and c_i = (2 / N_i) X^T y; that in w_0 makes it the weighted mean of the w_i. So
    (I - pull sum_i alpha_i M_i^-1) w_0 = sum_i alpha_i M_i^-1 c_i.
    """
    inverses, targets = [], []
    for client in clients().values():
        x, y = client["x"], client["y"]
        inverses.append(np.linalg.inv(2 / len(y) * x.T @ x + pull * np.eye(3)))
        targets.append(2 / len(y) * x.T @ y)
    left = np.eye(3) - pull * sum(a * m for a, m in zip(weights, inverses, strict=True))
    right = sum(a * m @ c for a, m, c in zip(weights, inverses, targets, strict=True))
    centre = np.linalg.solve(left, right)
    return centre, [m @ (c + pull * centre) for m, c in zip(inverses, targets, strict=True)]


ALGORITHMS = {
    # Where shared_lr pull = 1, one step of the shared block is exact: u_i becomes v_i, and u their mean.
    "fedalt": lambda w: mo.fedalt(
        shared=mo.sgd(2.0, steps=1, batch_size=64), personal=mo.sgd(0.2, steps=12, batch_size=64), weighting=w
    ),
    "fedsim": lambda w: mo.fedsim(shared=mo.sgd(0.3, steps=1, batch_size=64), personal=0.2, weighting=w),
}


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_converges_to_the_closed_form_of_equation_2(name: str, weighting: str) -> None:
    model = nn.Linear(3, 1, bias=False).double()
    split = full(model, pull=0.5)
    fed = mo.data.from_clients(clients(), test=0.0)
    rounds = 25 if name == "fedalt" else 250
    run = mo.fit(
        model,
        fed,
        ALGORITHMS[name](weighting),
        split=split,
        rounds=rounds,
        settings=mo.Settings(evaluate_every=rounds),
        engine="sequential",
    )
    alpha = np.array(SIZES) / sum(SIZES) if weighting == "examples" else np.full(3, 1 / 3)
    centre, own = optimum(0.5, alpha)
    for i in range(3):
        parameters = run.parameters(i)
        np.testing.assert_allclose(parameters["centre/weight"].numpy()[0], centre, atol=1e-6)
        np.testing.assert_allclose(parameters["weight"].numpy()[0], own[i], atol=1e-6)
    assert run.history[-1]["part"] == "train"
    # Scores are of v_i on the data alone, without the penalty.
    errors = [((c["x"] @ w - c["y"]) ** 2).mean() for c, w in zip(clients().values(), own, strict=True)]
    np.testing.assert_allclose([row["loss"] for row in run.clients], errors, rtol=1e-5)
    # The shared model alone is w_0.
    errors = [((c["x"] @ centre - c["y"]) ** 2).mean() for c in clients().values()]
    np.testing.assert_allclose([row["shared_loss"] for row in run.clients], errors, rtol=1e-5)
    np.testing.assert_allclose(run.export().get_parameter("weight").detach().numpy()[0], centre, atol=1e-6)


def test_without_pull_it_is_local_training() -> None:
    """lambda = 0: FedAlt's personal steps are those of local training, and the centre stays where it was."""
    model = mo.models.linear(3, 1, seed=4)
    model.append(nn.Identity())  # a chain of linear layers alone would be trained without autograd, to other last bits
    fed = mo.data.from_clients(clients(), test=0.0)
    alt = mo.fedalt(shared=mo.sgd(0.1, batch_size=4, shuffle=False), personal=mo.sgd(0.1, batch_size=4, shuffle=False))
    one = mo.fit(model, fed, alt, split=full(model, pull=0.0), rounds=3, engine="sequential")
    local = mo.local_only(personal=mo.sgd(0.1, batch_size=4, shuffle=False))
    other = mo.fit(model, fed, local, rounds=3, engine="sequential")
    for i in range(3):
        a, b = one.parameters(i), other.parameters(i)
        assert all(torch.equal(a[n], b[n]) for n in b)
        assert torch.equal(a["centre/head/weight"], model.get_parameter("head.weight"))


def test_names_counts_and_values() -> None:
    model = mo.models.mlp(4, 3, hidden=(5,), seed=1)
    split = full(model, pull=0.1)
    names = [n for n, _ in model.named_parameters()]
    assert list(split.personal) == names
    assert sorted(split.shared) == sorted("centre/" + n.replace(".", "/") for n in names)
    assert split.counts() == {"total": 86, "shared": 43, "personal": 43, "frozen": 0}
    assert split.model is not None
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    assert torch.equal(split.model(x), model(x))
    values = dict(split.model.named_parameters())
    for name in names:
        centre = values["centre/" + name.replace(".", "/")]
        assert torch.equal(centre, values[name])
        assert centre.data_ptr() != values[name].data_ptr()
    again = pickle.loads(pickle.dumps(split))
    assert float(again.penalty({n: p.detach() for n, p in values.items()})) == 0.0


def test_the_penalty_is_half_the_squared_distance() -> None:
    """(0.3 / 2) sum (v - u)^2 by NumPy, added to each example's training loss once and to no score."""
    model = mo.models.mlp(4, 3, hidden=(5,), seed=1)
    split = full(model, pull=0.3)
    assert split.penalty is not None
    assert split.model is not None
    task = from_module(split.model, loss="cross_entropy", penalty=split.penalty)
    draw = np.random.default_rng(0)
    params = {n: torch.from_numpy(draw.normal(size=p.shape)).float() for n, p in task.init.items()}
    far = sum(
        float(((params[n] - params["centre/" + n.replace(".", "/")]) ** 2).double().sum()) for n in split.personal
    )
    batch = {"x": torch.linspace(-1, 1, 12).reshape(3, 4), "y": torch.tensor([0, 1, 2])}
    bare = nn.functional.cross_entropy(
        torch.func.functional_call(model, params, batch["x"]), batch["y"], reduction="none"
    )
    torch.testing.assert_close(task.loss(params, batch)[0], bare + 0.15 * far)
    torch.testing.assert_close(task.scores(params, batch)[0], bare)


def test_frozen_parts_have_no_centre() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    model.register_buffer("mask", torch.ones(1))
    model[2].bias.requires_grad_(False)
    split = full(model, pull=1.0, frozen=["0"])
    assert split.trained_personal == ("1.weight", "1.bias", "2.weight")
    assert split.shared == ("centre/1/weight", "centre/1/bias", "centre/2/weight")
    assert split.frozen == ("0.weight", "0.bias", "2.bias")
    assert {"1.running_mean", "mask"} < set(split.personal)
    assert "1.running_mean" in full(model, pull=1.0, running_stats="shared").shared
    assert full(model, pull=1.0, frozen="mask").frozen == ("2.bias", "mask")


def test_tied_parameters_have_one_centre() -> None:
    model = mo.models.transformer_lm(vocabulary=9, length=4, width=8, blocks=1, heads=2, feed_forward=6)
    split = full(model, pull=1.0)
    assert "centre/embedding/weight" in split.shared
    assert "centre/head/weight" not in split.shared


def test_a_warm_start_moves_both_parts() -> None:
    """The pipeline of appendix B.2: w_0 and w_i both begin at the model that federated averaging found."""
    model = mo.models.linear(3, 1, seed=4)
    fed = mo.data.from_clients(clients(), test=0.0)
    first = mo.fit(model, fed, mo.fedavg(shared=0.1), rounds=3, engine="sequential")
    weight = first.shared_parameters()["head.weight"]
    assert not torch.equal(weight, model.get_parameter("head.weight"))
    alt = mo.fedalt(shared=0.1, personal=0.1)
    run = mo.fit(model, fed, alt, split=full(model, pull=1.0), start=first, rounds=1, cohort=1, engine="sequential")
    start = run._loop.problem.task.init
    assert torch.equal(start["head.weight"], weight)
    assert torch.equal(start["centre/head/weight"], weight)


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "pull": (None, {"pull": -1.0}, "`pull` must be >= 0 and finite, got -1.0."),
    "endless": (None, {"pull": float("inf")}, "`pull` must be >= 0 and finite, got inf."),
    "no number": (None, {"pull": "much"}, "`pull` must be >= 0 and finite, got 'much'."),
    "nothing to train": (
        None,
        {"pull": 1.0, "frozen": "*"},
        "`model` must be one with parameters to train, got Linear",
    ),
    "pattern": (None, {"pull": 1.0, "frozen": "z"}, "`frozen` must be patterns that each match a parameter"),
    "twice": (
        lambda: full(nn.Linear(2, 1, bias=False), pull=1.0).model,
        {"pull": 1.0},
        "`model` must be one without centres of its own, got centre/weight. Make the split from the model itself.",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_in_one_line(case: str) -> None:
    build, arguments, text = BAD[case]
    with pytest.raises(MoietyError, match="^" + re.escape(text)) as error:
        full(nn.Linear(2, 1) if build is None else build(), **arguments)
    assert "\n" not in str(error.value)
