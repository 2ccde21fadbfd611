"""What must be the same for a run to go on, from the data to the settings; what differs is named."""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import (
    StopHereError,
    dropout_net,
    federation,
    refused,
    reseal,
    same_runs,
    seeded,
    stop_after,
    tree_hash,
)
from torch import Tensor, nn
from torch.nn import functional

import moiety as mo
from moiety.data.federated import FederatedData
from moiety.engines.problem import Problem, to_tensors
from moiety.run import identity as identities
from moiety.run.probe import _make_parameters, differ, find_difference, probe
from moiety.task import from_module

FED = federation()


def net(act: nn.Module | None = None) -> nn.Module:
    layers = lambda: OrderedDict(body=nn.Linear(4, 5), act=act or nn.ReLU(), head=nn.Linear(5, 3))  # noqa: E731
    return seeded(lambda: nn.Sequential(layers()))


def own_loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(output, batch["y"], reduction="none")


def hits(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return (output.argmax(-1) == batch["y"]).float()


METRIC = mo.Metric("hits", True, hits)


def begin(out: Path, model: nn.Module | None = None, data: FederatedData = FED, **options: Any) -> None:
    """A run of four rounds that stops after two."""
    model = model or net()
    arguments: dict[str, Any] = {"loss": own_loss, "metric": METRIC, "rounds": 4, "cohort": 3, "engine": "sequential"}
    split = mo.split.by_name(model, personal=["head"])
    with pytest.raises(StopHereError):
        mo.fit(model, data, algorithm(), split=split, out=out, callbacks=[stop_after(2)], **{**arguments, **options})


def algorithm(**changes: Any) -> mo.Algorithm:
    return mo.fedalt(**{"shared": mo.sgd(0.1, batch_size=5), "personal": mo.sgd(0.2, batch_size=5), **changes})


def go_on(out: Path, model: nn.Module | None = None, data: FederatedData = FED, **options: Any) -> mo.Run:
    run: mo.Run = mo.resume(out, model=model or net(), data=data, **{"loss": own_loss, "metric": METRIC, **options})
    return run


def changed_row(column: str, at: int) -> FederatedData:
    columns = {name: values.copy() for name, values in FED.columns.items()}
    columns[column][at] += 1
    return replace(FED, columns=columns)


class Scaled(nn.Module):
    """Times a number that is no parameter."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) * self.factor


class Detached(nn.ReLU):
    """The same output, but what lies before it is not trained."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


CHANGES: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "a row": (lambda: {"data": changed_row("x", 30)}, "`data` .* got other values in column x, client "),
    "names": (
        lambda: {"data": replace(FED, ids=[f"other {name}" for name in FED.ids])},
        "`data` .* got other names of clients",
    ),
    "Tanh for ReLU": (lambda: {"model": net(nn.Tanh())}, "`model` .* another output"),
    "a slightly leaky ReLU": (lambda: {"model": net(nn.LeakyReLU(0.01))}, "`model` .* another output"),
    "a factor": (lambda: {"model": net(Scaled(1.001))}, "`model` .* another output"),
    "a detached layer": (lambda: {"model": net(Detached())}, "`model` .* another gradient"),
    "the loss negated": (lambda: {"loss": lambda o, b: -own_loss(o, b)}, "`loss` .* another loss"),
    "the loss smoothed": (
        lambda: {"loss": lambda o, b: functional.cross_entropy(o, b["y"], reduction="none", label_smoothing=0.01)},
        "`loss` .* another loss",
    ),
    "a loss by name": (lambda: {"loss": "one_versus_all"}, "`loss` .* another loss"),
    "the metric's function": (
        lambda: {"metric": mo.Metric("hits", True, lambda o, b: 1 - hits(o, b))},
        "`metric` .* another metric",
    ),
    "the metric's ties": (
        lambda: {
            "metric": mo.Metric("hits", True, lambda o, b: (o.argsort(-1)[:, -2:] == b["y"][:, None]).any(-1) * 1.0)
        },
        "`metric` .* another metric",
    ),
    "the metric's name": (lambda: {"metric": mo.Metric("others", True, hits)}, "`metric` must be hits, higher"),
    "the metric's direction": (lambda: {"metric": mo.Metric("hits", False, hits)}, "`metric` must be hits, higher"),
    "a type": (lambda: {"model": net().double()}, r"`model.body.bias` must be float32 \[5\], .* got float64 \[5\]"),
    "the split": (
        lambda: {"split": mo.split.by_name(net(), personal=["body"])},
        r"`personal` must be \['head.weight', 'head.bias'\], .* got \['body.weight', 'body.bias'\]",
    ),
    "the algorithm": (
        lambda: {"algorithm": algorithm(personal=mo.sgd(0.3, batch_size=5))},
        "`algorithm.personal.lr` must be 0.2, .* got 0.3",
    ),
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("identity") / "run"
    begin(out)
    return out


@pytest.mark.parametrize("name", CHANGES)
def test_what_has_changed_is_refused_and_named(stopped: Path, name: str) -> None:
    make, pattern = CHANGES[name]
    before = tree_hash(stopped)
    text = refused(lambda: go_on(stopped, **make()), pattern)
    assert str(stopped) in text
    assert tree_hash(stopped) == before


def test_the_client_of_a_changed_row_is_named(stopped: Path) -> None:
    """By the bounds of the data, client by client."""
    for at, (start, _, _, stop) in enumerate(FED.bounds.tolist()):
        text = refused(lambda row=stop - 1: go_on(stopped, data=changed_row("y", row)), "`data`")  # type: ignore[misc]
        assert f"column y, client {FED.ids[at]}. " in text
        assert start < stop


def test_another_setting_in_the_file_is_named(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    config = tmp_path / "run/config.toml"
    config.write_text(config.read_text().replace("cohort = 3", "cohort = 2"))
    reseal(config)
    refused(lambda: go_on(tmp_path / "run"), "`cohort` must be 3, as the run in .* began, got 2")


def test_the_same_things_made_again_are_accepted(tmp_path: Path) -> None:
    """The values that the given model has do not matter: the folder has those that the run began with."""
    begin(tmp_path / "run")
    other = net()
    with torch.no_grad():
        for value in other.parameters():
            value.add_(1)
    again = mo.Metric("hits", True, lambda output, batch: hits(output, batch))
    run = go_on(tmp_path / "run", other, data=replace(FED), loss=lambda o, b: own_loss(o, b), metric=again)
    model = net()
    split = mo.split.by_name(model, personal=["head"])
    options: dict[str, Any] = {"rounds": 4, "cohort": 3, "engine": "sequential", "loss": own_loss, "metric": METRIC}
    same_runs(run, mo.fit(model, FED, algorithm(), split=split, **options))


class Noisy(nn.ReLU):
    """Random in evaluation too."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.01 * torch.rand_like(x)


@pytest.mark.parametrize("build", [lambda: net(Noisy()), dropout_net])
def test_models_that_draw_go_on(build: Callable[[], nn.Module], tmp_path: Path) -> None:
    """Dropout is silent in evaluation. A model that draws there as well has no probe."""
    begin(tmp_path / "run", build())
    content = json.loads((tmp_path / "run/identity.json").read_text())["probe"]
    assert ("none" in content) == (build is not dropout_net)
    assert go_on(tmp_path / "run", build())._loop.progress.round == 4


class Moody(nn.ReLU):
    """Fails in evaluation, as code of a user's own may."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.least = least

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and float(x.detach().abs().max()) < self.least:
            raise RuntimeError("too small")
        return super().forward(x)


def probed(model: nn.Module, data: FederatedData = FED, loss: Any = own_loss) -> dict[str, Any]:
    return probe(problem_of(model, data, loss))


def problem_of(model: nn.Module, data: FederatedData, loss: Any = own_loss) -> Problem:
    task = from_module(model, loss=loss)
    split = mo.split.by_name(model, personal=["head"])
    return Problem(task, split, data, to_tensors(data.columns, task, torch.device("cpu")), 0)


def test_a_model_that_fails_on_the_probe_is_compared_by_its_names_alone() -> None:
    none = probed(net(Moody(1e9)))
    assert none == {"none": "it fails in evaluation: RuntimeError"}
    assert find_difference(none, probed(net())) is None
    assert find_difference(probed(net()), none) == "output"


def test_the_probe_leaves_generators_and_the_model_alone() -> None:
    model = dropout_net()
    values = {name: value.clone() for name, value in model.state_dict().items()}
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()
    first = probed(model)
    torch.rand(3)
    assert probed(model) == first
    torch.set_rng_state(before[0])
    probed(model)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), before[2], strict=True))
    assert all(torch.equal(values[name], value) for name, value in model.state_dict().items())
    assert model.training
    assert all(value.grad is None for value in model.parameters())


def test_the_probe_of_a_linear_model_by_hand() -> None:
    """Three clients of two rows: the rows are the first of client 0, the second of 0, the first of 1, the second of 2.

    With the mean squared error of one output, the gradient of the sum is 2 (w x + b - y) times x, or times 1.
    """
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(6, 3)), draw.normal(size=(6, 1))
    starts = np.array([0, 2, 4])
    data = FederatedData({"x": x, "y": y}, np.stack([starts, *3 * [starts + 2]], axis=1), ["a", "b", "c"])
    problem = problem_of(mo.models.linear(3, 1).double(), data, "mse")
    values = probe(problem)
    fixed = {name: value.detach().numpy() for name, value in _make_parameters(problem).items()}
    assert np.abs(fixed["head.weight"]).max() <= 1  # sqrt(3 / 3)
    rows = [0, 1, 2, 5]
    output = x[rows] @ fixed["head.weight"].T + fixed["head.bias"]
    error = output - y[rows]
    np.testing.assert_allclose(values["output"], [*np.abs(output[:, 0]), *(output[:, 0] * np.cos(1))], rtol=1e-12)
    np.testing.assert_allclose(values["loss"], error[:, 0] ** 2, rtol=1e-12)
    slope = np.append((2 * error * x[rows]).sum(0), (2 * error).sum())
    np.testing.assert_allclose(values["gradient"], [np.linalg.norm(slope)], rtol=1e-12)


def test_how_far_values_may_lie_apart() -> None:
    assert not differ([1.0, 1e-9], [1.00009, -1e-9], 1e-4)
    assert differ([1.0, 0.0], [1.00011, 0.0], 1e-4)
    assert not differ([0.0], [0.0], 1e-4)
    assert differ([0.0], [1e-30], 1e-4)
    assert differ([1.0, None], [1.0, 2.0], 1e-4)
    assert not differ([1.0, None], [1.0, None], 1e-4)
    assert differ([1.0], [1.0, 1.0], 1e-4)
    assert differ(None, [1.0], 1e-4)


def test_float64_is_compared_more_closely() -> None:
    """A factor of 1 + 1e-6 is rounding in float32, and another model in float64."""
    for double, expected in ((False, None), (True, "output")):
        one, other = (net(Scaled(factor)) for factor in (1.0, 1 + 1e-6))
        pair = [probed(model.double() if double else model) for model in (one, other)]
        assert find_difference(*pair) == expected


def test_a_start_may_have_another_loss(tmp_path: Path) -> None:
    """The run that another starts from is only read; a loss and a metric of the user's own may be new ones."""
    model = net()
    split = mo.split.by_name(model, personal=["head"])
    options: dict[str, Any] = {"split": split, "rounds": 2, "engine": "sequential"}
    mo.fit(model, FED, algorithm(), out=tmp_path / "run", loss=own_loss, metric=METRIC, **options)
    other = {"loss": lambda o, b: 2 * own_loss(o, b), "metric": mo.Metric("misses", False, lambda o, b: 1 - hits(o, b))}
    run = mo.fit(model, FED, algorithm(), start=tmp_path / "run", **other, **options)
    assert run.history[-1]["metric_name"] == "misses"
    refused(
        lambda: mo.fit(net(nn.Tanh()), FED, algorithm(), start=tmp_path / "run", loss=own_loss, **options),
        "`model` .* another output",
    )


@pytest.mark.parametrize("key", ["moiety", "torch", "numpy", "cpu", "device"])
def test_another_environment_is_one_warning(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path / "run")
    real = identities.environment("cpu")
    assert json.loads((tmp_path / "run/identity.json").read_text())["environment"] == real
    assert (real["torch"], real["numpy"]) == (torch.__version__, np.__version__)
    assert torch.backends.cpu.get_cpu_capability() in real["cpu"]
    monkeypatch.setattr(identities, "environment", lambda device: {**real, key: "another"})
    with pytest.warns(UserWarning, match="up to rounding, not bit for bit") as records:
        go_on(tmp_path / "run")
    assert len(records) == 1
    text = str(records[0].message)
    assert f"began with {key} {real[key]}, now another. " in text
    assert "\n" not in text
