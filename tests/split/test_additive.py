"""A shared and a personal model together: the formulas, a closed form, and bad input."""

from __future__ import annotations

import math
import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from example_models import get_model
from torch import Tensor, nn

import moiety as mo
from moiety.errors import MoietyError
from moiety.run.build import split_from
from moiety.split import additive
from moiety.task import from_module
from moiety.types import Partial


def two_models() -> tuple[nn.Module, nn.Module]:
    return mo.models.mlp(4, 3, hidden=(5,), seed=1), mo.models.linear(4, 3, seed=2)


X = torch.linspace(-1, 1, 24).reshape(6, 4)
Y = torch.tensor([0, 1, 2, 2, 1, 0])


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_a_sum_is_a_sum_and_names_say_whose() -> None:
    model, local = two_models()
    split = additive(model, local)
    assert torch.equal(get_model(split)(X), model(X) + local(X))
    assert split.shared == tuple(f"shared.{n}" for n, _ in model.named_parameters())
    assert split.personal == ("personal.head.weight", "personal.head.bias")
    assert split.counts() == {"total": 43 + 15, "shared": 43, "personal": 15, "frozen": 0}
    assert torch.equal(pickle.loads(pickle.dumps(split)).model(X), get_model(split)(X))


@pytest.mark.parametrize("logit", [0.0, 1.3, -4.0])
def test_a_mixture_is_one_of_probabilities(logit: float) -> None:
    """-log(theta p + (1 - theta) q) at the label, theta = 1 / (1 + exp(-logit)), in NumPy.

    Cross-entropy takes the log-softmax of the output; that of log-probabilities is themselves, since they sum to one.
    """
    model, local = (m.double() for m in two_models())
    joint = get_model(additive(model, local, mixture="convex"))
    with torch.no_grad():
        joint.get_parameter("theta_logit").fill_(logit)
    x = X.double()
    p, q = (softmax(m(x).detach().numpy()) for m in (model, local))
    theta = 1 / (1 + math.exp(-logit))
    chances = theta * p + (1 - theta) * q
    output = joint(x)
    np.testing.assert_allclose(output.exp().detach().numpy(), chances, rtol=1e-12)
    torch.testing.assert_close(output.log_softmax(-1), output)
    task = from_module(joint, loss="cross_entropy")
    losses = task.loss(task.init, {"x": x, "y": Y})[0].detach().numpy()
    np.testing.assert_allclose(losses, -np.log(chances[range(6), Y.numpy()]), rtol=1e-12)


def test_a_mixture_starts_in_the_middle_and_does_not_underflow() -> None:
    """Two sure models that disagree, p = (1, 0) and q = (0, 1), mix to one half each: log(1/2), though e^-1000 is 0."""
    model, local = nn.Linear(1, 2, bias=False), nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1000.0], [0.0]]))
        local.weight.copy_(torch.tensor([[0.0], [1000.0]]))
    joint = get_model(additive(model, local, mixture="convex"))
    output = joint(torch.ones(1, 1))
    assert output.tolist() == [[pytest.approx(math.log(0.5))] * 2]
    output[0, 0].backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in joint.parameters() if p.grad is not None)
    # d log(theta p_0) / d logit = 1 - theta = 1/2
    assert float(joint.get_parameter("theta_logit").grad) == pytest.approx(0.5)  # type: ignore[arg-type]


def test_whose_theta_is() -> None:
    model, local = two_models()
    assert "theta_logit" in additive(model, local, mixture="convex").personal
    assert "theta_logit" in additive(model, local, mixture="convex", theta="personal").personal
    assert "theta_logit" in additive(model, local, mixture="convex", theta="shared").shared
    assert "theta_logit" in additive(model, local, mixture="convex", frozen="theta_logit").frozen
    assert additive(model, local, mixture="convex").counts()["total"] == 43 + 15 + 1


def test_each_model_sees_its_own_features() -> None:
    model, local = nn.Linear(2, 1), nn.Linear(3, 1)
    joint = get_model(additive(model, local, global_features=[3, 0], local_features=range(1, 4)))
    assert torch.equal(joint(X), model(X[:, [3, 0]]) + local(X[:, 1:4]))


def test_fedalt_finds_the_joint_least_squares() -> None:
    """min over u, v_1..v_n of sum_i (N_i / N) (1 / N_i) ||y_i - A_i u - B_i v_i||^2 is one least-squares problem.

    Its matrix has the columns of A for all rows, and those of B once per client. Features 0 and 2 are shared, feature
    1 and a constant personal; clients of 8, 12 and 20 rows with slopes of their own.
    """
    draw = np.random.default_rng(3)
    sizes, rows = (8, 12, 20), {}
    for i, size in enumerate(sizes):
        x = draw.normal(size=(size, 3))
        y = x @ np.array([1.0, (-2.0, 0.5, 3.0)[i], -1.0]) + i + 0.3 * draw.normal(size=size)
        rows[f"c{i}"] = {"x": x, "y": y}
    total = sum(sizes)
    design, target, at = np.zeros((total, 2 + 2 * 3)), np.zeros(total), 0
    for i, client in enumerate(rows.values()):
        part = slice(at, at + len(client["y"]))
        design[part, :2] = client["x"][:, [0, 2]]
        design[part, 2 + 2 * i], design[part, 3 + 2 * i] = client["x"][:, 1], 1.0
        target[part] = client["y"]
        at = part.stop
    solution = np.linalg.lstsq(design, target, rcond=None)[0]
    shared, local = nn.Linear(2, 1, bias=False).double(), nn.Linear(1, 1).double()
    split = additive(shared, local, global_features=[0, 2], local_features=[1])
    algorithm = mo.fedalt(shared=mo.sgd(0.3, steps=1, batch_size=64), personal=mo.sgd(0.3, steps=8, batch_size=64))
    fed = mo.data.from_clients(rows, test=0.0)
    run = mo.fit(
        shared, fed, algorithm, split=split, rounds=40, settings=mo.Settings(evaluate_every=40), engine="sequential"
    )
    for i in range(3):
        parameters = run.parameters(i)
        values = [*parameters["shared.weight"][0], parameters["personal.weight"][0, 0], parameters["personal.bias"][0]]
        np.testing.assert_allclose(
            np.array(values, dtype=float), [*solution[:2], *solution[2 + 2 * i : 4 + 2 * i]], atol=1e-6
        )


@pytest.mark.parametrize("mixture", ["sum", "convex"])
def test_partial_evaluation_and_vmap(mixture: str) -> None:
    """While the personal model is trained, the shared one's output is computed once per row."""
    split = additive(*two_models(), mixture=mixture)
    task = from_module(get_model(split), loss="cross_entropy")
    batch = {"x": X, "y": Y}
    part = task.partial(frozenset(split.personal), task.init, batch)
    assert isinstance(part, Partial)
    values = {n: p + 0.3 if n in split.personal else p for n, p in task.init.items()}
    whole = task.loss(values, batch)[0]
    features = part.features(task.init, batch)
    assert any(f.shape == (6, 3) for f in features.values())
    torch.testing.assert_close(part.loss(values, {"y": Y, **features})[0], whole)

    def loss(own: dict[str, Tensor]) -> Tensor:
        return task.loss({**task.init, **own}, batch)[0]

    both = {n: torch.stack([task.init[n], values[n]]) for n in split.personal}
    torch.testing.assert_close(torch.func.vmap(loss)(both)[1], whole)


def test_a_file_can_name_both_models() -> None:
    model, local = two_models()
    split = additive(model, local, mixture="convex", local_features=range(4))
    assert split.spec == {
        "name": "additive",
        "local_model": {"name": "linear", "inputs": 4, "outputs": 3, "seed": 2},
        "mixture": "convex",
        "local_features": [0, 1, 2, 3],
    }
    again = split_from(split.spec, model)
    assert torch.equal(get_model(again)(X), get_model(split)(X))
    assert additive(model, nn.Linear(4, 3)).spec == {"name": "additive", "own": "local_model"}
    with pytest.raises(MoietyError, match=r"^`split\.local_model` must be a name or a table with a name, got 3\.$"):
        split_from({"name": "additive", "local_model": 3}, model)
    with pytest.raises(MoietyError, match=r"^`split\.local_model\.name` must be one of the known names, got 'liner'"):
        split_from({"name": "additive", "local_model": {"name": "liner"}}, model)


def test_buffers_of_both_models() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    local = nn.Sequential(nn.Linear(4, 3))
    local.register_buffer("mask", torch.ones(2))
    split = additive(model, local)
    assert "personal.mask" in split.personal
    assert "shared.1.running_mean" in split.personal
    assert "shared.1.running_mean" in additive(model, local, running_stats="shared").shared
    assert "personal.mask" in additive(model, local, shared="personal.mask").shared


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no module": (3, {}, "`local_model` must be a torch.nn.Module, got 3 (int)."),
    "mixture": (
        None,
        {"mixture": "product"},
        "`mixture` must be one of the known names, got 'product'. Known: convex, sum.",
    ),
    "theta of a sum": (
        None,
        {"theta": "shared"},
        "`theta` must be left out where mixture is sum, which has none, got 'shared'.",
    ),
    "theta": (
        None,
        {"theta": "mine", "mixture": "convex"},
        "`theta` must be one of the known names, got 'mine'. Known: personal, shared.",
    ),
    "features": (
        None,
        {"local_features": [0, 0]},
        "`local_features` must be features that are named once each, got 0.",
    ),
    "count": (None, {"global_features": [0, 1]}, "`global_features` must be as many as its model takes, 4, got 2."),
    "nothing to train": (nn.ReLU(), {}, "`local_model` must be a module with parameters to train, got ReLU."),
    "pattern": (
        None,
        {"frozen": "haed"},
        "`frozen` must be patterns that each match a parameter, a buffer or a module",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_in_one_line(case: str) -> None:
    local, arguments, text = BAD[case]
    with pytest.raises(MoietyError, match="^" + re.escape(text)) as error:
        additive(two_models()[0], two_models()[1] if local is None else local, **arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("mixture", ["sum", "convex"])
def test_outputs_of_other_shapes_are_not_stretched(mixture: str) -> None:
    split = additive(two_models()[0], nn.Linear(4, 1), mixture=mixture)
    fed = mo.data.from_clients({"a": {"x": X.numpy(), "y": Y.numpy()}}, test=0.0)
    text = r"^`local_model` must be one whose output has the shared model's shape, got \(2, 1\) beside \(2, 3\)\.$"
    with pytest.raises(MoietyError, match=text):
        mo.fit(two_models()[0], fed, mo.fedsim(shared=0.1, personal=0.1), split=split, rounds=1)
    narrow = additive(nn.Linear(4, 3), nn.Linear(2, 3), local_features=[0, 9])
    with pytest.raises(MoietyError, match=r"^`model` must be one that takes the data's columns .* IndexError"):
        mo.fit(get_model(narrow), fed, mo.fedsim(shared=0.1, personal=0.1), split=narrow, rounds=1)
