"""Partial evaluation: the numbers of the whole model, with what the trained block does not reach computed once."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flat_options import flat
from oracle_problems import federated, problem_of
from run_settings import with_settings
from torch import Tensor, nn
from torch.nn import functional

import moiety as mo
from moiety import tree
from moiety.engines.base import ClientFunction, RoundInfo
from moiety.engines.problem import Problem, to_tensors
from moiety.engines.rows import Job, Rows
from moiety.engines.sequential import Sequential
from moiety.engines.vectorised import Vectorised
from moiety.engines.work import make_work
from moiety.local.verbs import autograd_gradient, gradient_over_samples
from moiety.task import from_module
from moiety.task.scores import cross_entropy
from moiety.types import Partial

SIZES = (5, 1, 9, 4)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}
VOCABULARY, LENGTH, WIDTH = 7, 4, 6


class BasicBlock(nn.Module):
    """Two convolutions with group normalisation around a residual sum; adapters where asked."""

    def __init__(self, width: int, adapters: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(2, width), nn.GroupNorm(2, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.adapter1 = nn.Conv2d(width, width, 1) if adapters else None
        self.adapter2 = nn.Conv2d(width, width, 1) if adapters else None

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(x)
        if self.adapter1 is not None:
            h = h + self.adapter1(h)
        h = self.conv2(functional.relu(self.norm1(h)))
        if self.adapter2 is not None:
            h = h + self.adapter2(h)
        return functional.relu(self.norm2(h) + x)


class ResNet(nn.Module):
    def __init__(self, adapters: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.block1, self.block2 = BasicBlock(4, adapters), BasicBlock(4, adapters)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.block2(self.block1(functional.relu(self.stem(x))))
        return self.head(functional.adaptive_avg_pool2d(h, 1).flatten(1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(q @ k.transpose(-1, -2) / (WIDTH // 2) ** 0.5, dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Learned positions, or (``constant``) positions that are a buffer."""

    def __init__(self, constant: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        positions = torch.randn(LENGTH, WIDTH)
        if constant:
            self.register_buffer("positions", positions)
        else:
            self.positions = nn.Parameter(positions)
        self.block1, self.block2 = TransformerBlock(), TransformerBlock()
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block2(self.block1(self.embedding(x) + self.positions)))


class Additive(nn.Module):
    """Two networks whose outputs add."""

    def __init__(self) -> None:
        super().__init__()
        self.common = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.own = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.common(x) + self.own(x)


class Tied(nn.Module):
    """The output layer's weight is the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY)
        self.output.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.output(torch.tanh(self.middle(torch.tanh(self.embedding(x)))))


class Body(nn.Module):
    """Body and head, and a word between them."""

    def __init__(self, personal: str = "head") -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def between(self, h: Tensor, x: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(torch.tanh(self.body(x)), x))


class Functional(nn.Module):
    """Parameters of its own, plain functions, and decisions by shape, which a symbolic trace cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(VOCABULARY, WIDTH))
        self.mixing, self.bias = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Parameter(torch.randn(WIDTH))
        self.register_buffer("scale", torch.full((WIDTH,), 0.5))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        rows, length = x.shape
        h = functional.embedding(x, self.embedding) * self.scale
        h = h + torch.stack([torch.full((WIDTH,), 1.0 / (k + 1)).to(h.dtype) for k in range(length)])
        for _ in range(length // 2):
            h = torch.tanh(functional.linear(h, self.mixing, self.bias))
        return self.head(h).reshape(rows, length, VOCABULARY)


def build_model(build: Any, dtype: torch.dtype = torch.float64, seed: int = 3) -> nn.Module:
    """A module with weights that do not depend on what ran before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().to(dtype)


def rows_of(kind: str, sizes: Any = SIZES) -> mo.FederatedData:
    """Clients of uneven sizes whose columns are ``vectors``, ``images`` or ``tokens``."""
    draw = np.random.default_rng(1)
    shape = {"vectors": (4,), "images": (1, 6, 6)}
    clients = []
    for n in sizes:
        if kind == "tokens":
            x, y = (draw.integers(0, VOCABULARY, size=(n, LENGTH)) for _ in range(2))
        else:
            x, y = draw.normal(size=(n, *shape[kind])), draw.integers(0, 3, size=n)
        clients.append({"x": x, "y": y})
    return federated(clients)


def mlp() -> nn.Module:
    return mo.models.mlp(4, 3, hidden=(6, 5), seed=2)


CASES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "mlp, head": (mlp, "vectors", {"personal": ["head"]}),
    "mlp, from the middle": (mlp, "vectors", {"personal": ["hidden2", "head"]}),
    "resnet, output layer": (ResNet, "images", {"personal": ["head"]}),
    "resnet, adapters": (lambda: ResNet(True), "images", {"personal": ["*adapter*"]}),
    "transformer, last block": (Transformer, "tokens", {"personal": ["block2"]}),
    "transformer, constant positions": (
        lambda: Transformer(True),
        "tokens",
        {"personal": ["block2"], "frozen": ["positions"]},
    ),
    "transformer, shared positions": (
        lambda: Transformer(True),
        "tokens",
        {"personal": ["head"], "shared": ["positions"]},
    ),
    "additive": (Additive, "vectors", {"personal": ["own"]}),
    "tied": (Tied, "tokens", {"personal": ["middle"]}),
    "functional code": (Functional, "tokens", {"personal": ["head"], "frozen": ["scale"]}),
}


def problem_for(model: nn.Module, data: mo.FederatedData, split: Any, *, partial: bool, loss: Any = None, **more: Any):
    inputs = more.pop("inputs", ("x",))
    task = from_module(model, loss=loss or "cross_entropy", inputs=inputs)
    columns = to_tensors(data.columns, task, torch.device("cpu"))
    return Problem(task, split, data, columns, 0, partial=partial, **more)


def alternating(**options: Any) -> mo.Algorithm:
    common = {"batch_size": 4, "momentum": 0.5, "weight_decay": 0.01}
    both = {"shared_lr": 0.05, "personal_lr": 0.1, "personal_epochs": 3, "shared_epochs": 2}
    return flat(mo.fedalt, **{**common, **both, **options})


def train_rounds(problem: Problem, engine: Any, rounds: int = 2, algorithm: mo.Algorithm | None = None) -> Any:
    """The clients' results and the server after a few rounds, by the engine's class, without ``fit``."""
    algorithm = algorithm or alternating()
    server = problem.first_server(algorithm)
    clients = range(len(problem.data))
    states = [problem.first_state(algorithm) for _ in clients]
    instance = engine(problem, {"train": ClientFunction(algorithm.client_update, tuple(algorithm.phases))})
    for t in range(rounds):
        jobs = problem.make_jobs(algorithm.phases, clients, states, "train", t, part="train")
        results = list(instance.map("train", jobs, algorithm.broadcast(server), RoundInfo(t)))
        states = [s for _, s in results]
        server = algorithm.server_update(server, algorithm.aggregator([u for u, _ in results]), 1.0)
    return results, server


def agree(one: Any, other: Any, tolerance: float) -> None:
    a, b = tree.leaves(one), tree.leaves(other)
    assert a.keys() == b.keys()
    for path in a:
        scale = float(torch.as_tensor(a[path]).double().abs().max()) or 1.0
        gap = float((torch.as_tensor(a[path]).double() - torch.as_tensor(b[path]).double()).abs().max())
        assert gap <= tolerance * max(scale, 1.0), f"{path}: {gap} of {scale}"


def train_both(
    model: nn.Module, data: Any, split: Any, engine: Any = Sequential, tolerance: float = 1e-12, **more: Any
):
    """Assert that training with and without partial evaluation gives the same; returns the warnings of each."""
    results, texts = [], []
    for partial in (False, True):
        with warnings.catch_warnings(record=True) as record:
            warnings.simplefilter("always")
            results.append(train_rounds(problem_for(model, data, split, partial=partial, **more), engine))
        texts.append([str(w.message) for w in record])
    agree(*results, tolerance)
    assert texts[0] == []
    return texts[1]


# The cut itself.


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_parts_give_the_loss_and_the_gradient_of_the_whole(case, dtype):
    build, kind, groups = case
    model = build_model(build, dtype)
    split = mo.split.by_name(model, **groups)
    problem = problem_for(model, rows_of(kind), split, partial=True)
    task, block = problem.task, split.trained_personal
    cut = task.partial(frozenset(block), task.init, {n: c[:3] for n, c in problem.columns.items()})
    assert isinstance(cut, Partial)
    # Not the values at which the cut was tried.
    draw = torch.Generator().manual_seed(5)
    params = {
        n: p + 0.3 * torch.randn(p.shape, generator=draw, dtype=p.dtype) if p.is_floating_point() else p
        for n, p in task.init.items()
    }
    features = cut.features(params, problem.columns)
    assert all(len(f) == sum(SIZES) for f in features.values())

    def loss_and_gradient(loss_of: Any, batch: Any) -> tuple[Tensor, Any]:
        leaf = {n: params[n].clone().requires_grad_() for n in block}
        losses, _ = loss_of({**params, **leaf}, batch)
        return losses.detach(), torch.autograd.grad(losses.mean(), list(leaf.values()))

    whole = loss_and_gradient(task.loss, problem.columns)
    columns = {n: c for n, c in problem.columns.items() if n not in cut.spare}
    assert "x" not in columns
    agree(whole, loss_and_gradient(cut.loss, {**columns, **features}), TOLERANCE[dtype])
    # And of some of the rows, in another order.
    index = torch.tensor([7, 0, 3, 3])
    few = {n: c[index] for n, c in {**columns, **features}.items()}
    agree(whole[0][index], cut.loss(params, few)[0], TOLERANCE[dtype])


class Refusing(torch.fx.Tracer):
    """It fails, as where the code of a model looks at shapes."""

    def trace(self, *args: Any) -> Any:
        raise TypeError("not traced")


OWN = {"width": 8, "blocks": 2, "heads": 2, "feed_forward": 12}


@pytest.mark.parametrize("way", ["torch.fx", "torch.export"])
@pytest.mark.parametrize("block", ["head", "blocks.1"])
@pytest.mark.parametrize("kind", ["words", "speech"])
def test_the_transformers_of_moiety_models(kind, block, way, monkeypatch):
    """Losses and gradients are those of the module itself, whichever way its graph was captured."""
    draw = torch.Generator().manual_seed(4)
    if kind == "words":
        model = mo.models.transformer_lm(vocabulary=9, length=6, **OWN).double()
        x = torch.randint(0, 9, (4, 5), generator=draw)
    else:
        model = mo.models.speech_transformer(vocabulary=9, mels=3, channels=6, **OWN).double()
        x = torch.randn(4, 9, 3, generator=draw, dtype=torch.float64)
        x[1, 5:] = 0  # padding
    if way == "torch.export":
        monkeypatch.setattr(torch.fx, "Tracer", Refusing)
    task = from_module(model, loss=lambda output, batch: output.flatten(1).square().mean(1))
    names = tuple(n for n, _ in model.named_parameters() if n.startswith(block))
    cut = task.partial(frozenset(names), task.init, {"x": x})
    assert isinstance(cut, Partial), cut
    for p in model.parameters():  # not the values at which the cut was tried
        p.data += 0.3 * torch.randn(p.shape, generator=draw, dtype=p.dtype)
    expected = model(x).flatten(1).square().mean(1)
    leaves = [p for n, p in model.named_parameters() if n in names]
    slopes = torch.autograd.grad(expected.mean(), leaves)
    params = {n: p.detach().requires_grad_(n in names) for n, p in model.named_parameters()} | dict(
        model.named_buffers()
    )
    with torch.no_grad():
        features = cut.features(params, {"x": x})
    losses, _ = cut.loss(params, features)
    agree(expected.detach(), losses.detach(), 1e-12)
    agree(slopes, torch.autograd.grad(losses.mean(), [params[n] for n in names]), 1e-12)


def test_the_loss_of_the_second_part_has_the_penalty_too():
    """A model 3 (2 x), of which the 3 = w is trained, with the penalty w^2 / 2.

    x = 1 and 2 give 6 and 12; against y = 5 and 10 the squared errors are 1 and 4, and with the penalty 5.5 and 8.5.
    The slope of the mean is (2 * 1 * 2 + 2 * 2 * 4) / 2 = 10 from the errors, and 3 from the penalty.
    """
    layers = [("body", nn.Linear(1, 1, bias=False)), ("head", nn.Linear(1, 1, bias=False))]
    model = nn.Sequential(OrderedDict(layers)).double()
    task = from_module(model, loss="mse", penalty=lambda params: params["head.weight"].square().sum() / 2)
    params = {"body.weight": torch.tensor([[2.0]]).double(), "head.weight": torch.tensor([[3.0]]).double()}
    batch = {"x": torch.tensor([[1.0], [2.0]]).double(), "y": torch.tensor([[5.0], [10.0]]).double()}
    part = task.partial(frozenset({"head.weight"}), params, batch)
    assert isinstance(part, Partial)
    rows = {"y": batch["y"], **part.features(params, batch)}
    assert part.loss(params, rows)[0].tolist() == pytest.approx([5.5, 8.5], rel=1e-12)
    slope = torch.func.grad(lambda w: part.loss({**params, "head.weight": w}, rows)[0].mean())(params["head.weight"])
    assert float(slope) == pytest.approx(13.0, rel=1e-12)


def test_the_prefix_of_an_additive_model_is_the_other_ones_output():
    model = build_model(Additive)
    problem = problem_for(model, rows_of("vectors"), mo.split.by_name(model, personal=["own"]), partial=True)
    cut = problem.task.partial(frozenset(problem.split.personal), problem.task.init, problem.columns)
    features = cut.features(problem.task.init, problem.columns)
    output = model.common(problem.columns["x"])
    assert any(f.shape == output.shape and torch.allclose(f, output, rtol=0, atol=1e-13) for f in features.values())


@pytest.mark.parametrize(
    ("build", "kind", "block"),
    [
        (mlp, "vectors", ["hidden1"]),
        (mlp, "vectors", ["hidden1", "hidden2", "head"]),
        (mlp, "vectors", ["hidden1", "head"]),
        (Transformer, "tokens", ["embedding"]),
        (Tied, "tokens", ["embedding"]),
    ],
    ids=["input layer", "everything", "first and last", "embedding", "tied embedding"],
)
@pytest.mark.parametrize("engine", [Sequential, Vectorised], ids=lambda e: e.name)
def test_nothing_before_the_block(build, kind, block, engine):
    model = build_model(build)
    split = mo.split.by_name(model, personal=block)
    problem = problem_for(model, rows_of(kind), split, partial=True)
    few = {n: c[:3] for n, c in problem.columns.items()}
    assert problem.task.partial(frozenset(split.trained_personal), problem.task.init, few) is None
    assert train_both(model, rows_of(kind), split, engine) == []


def test_a_tensor_that_is_no_buffer_is_a_constant_too():
    """Positions kept as a plain attribute, a number of the module, or made in ``forward``: all of them are usual."""

    class Plain(Body):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.tensor(2.0, dtype=torch.float64)

        def between(self, h: Tensor, x: Tensor) -> Tensor:
            return h * self.scale + torch.arange(5)

    class After(Plain):
        def forward(self, x: Tensor) -> Tensor:
            return self.between(self.head(torch.tanh(self.body(x))), x)

        def between(self, h: Tensor, x: Tensor) -> Tensor:
            return h * self.scale + torch.arange(3)

    for build in (Plain, After):
        model = build_model(build)
        assert len(train_both(model, rows_of("vectors"), mo.split.by_name(model, personal=["head"]))) <= 1


# Whole phases of training.


@pytest.mark.parametrize("engine", [Sequential, Vectorised], ids=lambda e: e.name)
@pytest.mark.parametrize(
    ("case", "dtype"),
    [*((case, torch.float64) for case in CASES), ("mlp, head", torch.float32), ("additive", torch.float32)],
    ids=str,
)
def test_training_is_the_same(case, dtype, engine):
    build, kind, groups = CASES[case]
    model = build_model(build, dtype)
    split = mo.split.by_name(model, **groups)
    # Rounding differences grow with the steps that follow: 16 steps a round and two rounds for float32.
    tolerance = {torch.float64: 1e-12, torch.float32: 5e-6}[dtype]
    assert train_both(model, rows_of(kind), split, engine, tolerance) == []


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_fit_with_and_without(engine):
    model = build_model(mlp)
    split = mo.split.by_name(model, personal=["head"])
    with_it, without = (
        mo.fit(
            model,
            rows_of("vectors"),
            alternating(),
            split=split,
            rounds=2,
            engine=engine,
            settings=mo.Settings(partial=partial),
        )
        for partial in (True, False)
    )
    for client in range(len(SIZES)):
        agree(with_it.parameters(client), without.parameters(client), 1e-12)
    assert with_it._loop.problem.partial is True
    assert without._loop.problem.partial is False
    assert with_it.ledger["flops"] < without.ledger["flops"]
    assert without.config["run"]["partial"] is False


def test_a_resumed_run_keeps_partial_as_it_was(tmp_path):
    model = mo.models.mlp(4, 3, hidden=(6,), seed=2)
    split = mo.split.by_name(model, personal=["head"])
    options: dict[str, Any] = {"split": split, "engine": "sequential", "partial": False}
    mo.fit(model, rows_of("vectors"), alternating(), **with_settings(rounds=1, out=tmp_path / "run", **options))
    run = mo.resume(tmp_path / "run", rounds=2, data=rows_of("vectors"))
    assert run._loop.problem.partial is False
    whole = mo.fit(model, rows_of("vectors"), alternating(), **with_settings(rounds=2, **options))
    assert run.ledger["flops"] == whole.ledger["flops"]


def test_dropout_after_the_block_draws_the_same_numbers():
    class Dropping(Body):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            h = self.head(torch.tanh(self.body(x)))
            return functional.dropout(self.drop(h), 0.3, self.training)

    model = build_model(Dropping)
    split = mo.split.by_name(model, personal=["head"])
    assert train_both(model, rows_of("vectors"), split) == []
    few = {n: c[:3] for n, c in problem_for(model, rows_of("vectors"), split, partial=True).columns.items()}
    task = from_module(model, loss="cross_entropy")
    before = torch.random.get_rng_state()
    assert isinstance(task.partial(frozenset(split.personal), task.init, few), Partial)
    assert torch.equal(before, torch.random.get_rng_state())  # looking for the cut draws nothing from the caller's


def test_batch_norm_after_the_block_moves_its_statistics_the_same():
    layers = OrderedDict(body=nn.Linear(4, 5), act=nn.Tanh(), mid=nn.Linear(5, 4), norm=nn.BatchNorm1d(4))
    model = build_model(lambda: nn.Sequential(OrderedDict(**layers, head=nn.Linear(4, 3))))
    for stats in ("personal", "shared"):
        split = mo.split.by_name(model, personal=["mid"], running_stats=stats)
        assert train_both(model, rows_of("vectors", (6, 4, 8)), split) == []


@pytest.mark.parametrize("engine", [Sequential, Vectorised], ids=lambda e: e.name)
def test_a_loss_of_the_users_own_sees_the_input(engine):
    """Cross-entropy weighted by the size of the example."""

    def loss(output: Tensor, batch: Any) -> Tensor:
        return cross_entropy(output, batch) * batch["x"].square().sum(-1)

    model = build_model(mlp)
    assert train_both(model, rows_of("vectors"), mo.split.by_name(model, personal=["head"]), engine, loss=loss) == []


@pytest.mark.parametrize("engine", [Sequential, Vectorised], ids=lambda e: e.name)
def test_columns_may_have_any_name(engine):
    """A user's column called ``feature 0`` is not taken for one of the features, nor lost to the loss."""

    def loss(output: Tensor, batch: Any) -> Tensor:
        return cross_entropy(output, batch) * batch["feature 0"].square().sum(-1) + batch["feature b"].square()

    plain = rows_of("vectors")
    weights = np.random.default_rng(0).normal(size=sum(SIZES))
    columns = {"feature 0": plain.columns["x"], "feature b": weights, "y": plain.columns["y"]}
    data = mo.FederatedData(columns, plain.bounds, list(plain.ids))
    model = build_model(mlp)
    split = mo.split.by_name(model, personal=["head"])
    assert train_both(model, data, split, engine, loss=loss, inputs=("feature 0",)) == []


def test_two_inputs():
    class Two(Body):
        def __init__(self) -> None:
            super().__init__()
            self.side = nn.Linear(2, 3)

        def forward(self, x: Tensor, z: Tensor) -> Tensor:
            return self.head(torch.tanh(self.body(x))) * self.side(z)

    plain = rows_of("vectors")
    z = np.random.default_rng(0).normal(size=(sum(SIZES), 2))
    data = mo.FederatedData({"z": z, **plain.columns}, plain.bounds, list(plain.ids))
    for personal in ("head", "side"):
        model = build_model(Two)
        split = mo.split.by_name(model, personal=[personal])
        for engine in (Sequential, Vectorised):
            assert train_both(model, data, split, engine, inputs=("x", "z")) == []


@pytest.mark.parametrize("engine", [Sequential, Vectorised], ids=lambda e: e.name)
def test_features_above_the_limit(engine, monkeypatch):
    """Clients' features of 5 float64 a row, 40 bytes: nothing fits, then only the smaller clients'."""
    model = build_model(mlp)
    split = mo.split.by_name(model, personal=["head"])
    for limit in (39, 40 * 4):
        monkeypatch.setattr("moiety.engines.work.FEATURE_BYTES", limit)
        assert train_both(model, rows_of("vectors"), split, engine) == []


def test_features_are_computed_in_slices(monkeypatch):
    monkeypatch.setattr("moiety.engines.work.FEATURE_ROWS", 4)
    model = build_model(mlp)
    for engine in (Sequential, Vectorised):
        assert train_both(model, rows_of("vectors"), mo.split.by_name(model, personal=["head"]), engine) == []


@pytest.mark.parametrize("engine", [Sequential, Vectorised], ids=lambda e: e.name)
def test_steps_that_do_not_go_through_all_rows(engine):
    """With three steps of four, clients of 5 and 9 rows see some rows twice, or none."""
    model = build_model(mlp)
    split = mo.split.by_name(model, personal=["head"])
    algorithm = alternating(personal_epochs=None, personal_steps=3)
    results = [
        train_rounds(
            problem_for(model, rows_of("vectors", (5, 1, 9, 40)), split, partial=p), engine, algorithm=algorithm
        )
        for p in (False, True)
    ]
    agree(*results, 1e-12)


# Where it cannot be done.


class Dropped(Body):
    def between(self, h: Tensor, x: Tensor) -> Tensor:
        return functional.dropout(h, 0.5, self.training)


class Branching(Body):
    def between(self, h: Tensor, x: Tensor) -> Tensor:
        return h if x.sum() > 0 else 2 * h


class ByRows(Body):
    def between(self, h: Tensor, x: Tensor) -> Tensor:
        return h if x.shape[0] < 8 else 2 * h


class OneRow(Body):
    def between(self, h: Tensor, x: Tensor) -> Tensor:
        return 2 * h if x.shape[0] == 1 else h


class NormAfter(Body):
    """Moves running statistics after the block, in code that a symbolic trace cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(x.shape[1] // 4):
            x = torch.tanh(x)
        return self.norm(super().forward(x))


class Sideways(Body):
    """The features stand in columns: the first axis is not that of the examples."""

    def forward(self, x: Tensor) -> Tensor:
        return (self.head.weight @ torch.tanh(self.body(x)).t()).t() + self.head.bias


class Mixing(Body):
    def between(self, h: Tensor, x: Tensor) -> Tensor:
        return h - h.mean(0)


class Scalar(Body):
    def between(self, h: Tensor, x: Tensor) -> Tensor:
        return self.head.bias.mean() * h.mean() + h


class Noisy(Body):
    """Noise that is not made from any value of the forward pass."""

    def between(self, h: Tensor, x: Tensor) -> Tensor:
        return h + torch.randn(5, dtype=h.dtype if isinstance(h, Tensor) else torch.float64)


def batch_norm() -> nn.Module:
    return nn.Sequential(OrderedDict(body=nn.Linear(4, 5), norm=nn.BatchNorm1d(5), head=nn.Linear(5, 3)))


def dropout_layer() -> nn.Module:
    return nn.Sequential(OrderedDict(body=nn.Linear(4, 5), drop=nn.Dropout(0.5), head=nn.Linear(5, 3)))


FALLBACKS: dict[str, tuple[Any, str]] = {
    "dropout layer": (dropout_layer, r"random numbers \(dropout\)"),
    "dropout function": (Dropped, r"random numbers \(dropout\)"),
    "batch norm": (batch_norm, "normalisation over the batch"),
    "control flow": (Branching, "cannot be traced"),
    "control flow by the number of rows": (ByRows, "cannot be traced"),
    "one row is another matter": (OneRow, "other numbers than the model"),
    "running statistics that move": (NormAfter, "changes buffers"),
    "not a row per example": (Sideways, "not one row per example"),
    "a number": (Scalar, "not one row per example"),
    "examples mixed": (Mixing, "mixed"),
}


@pytest.mark.parametrize(("build", "reason"), FALLBACKS.values(), ids=FALLBACKS)
def test_the_whole_model_is_run_and_one_warning_says_so(build, reason):
    model = build_model(build)
    split = mo.split.by_name(model, personal=["head"])
    sizes = (6, 4, 8) if build in (batch_norm, NormAfter) else SIZES
    (text,) = train_both(model, rows_of("vectors", sizes), split)
    assert text.startswith("Partial evaluation is off for the block of head")
    assert "\n" not in text
    assert re.search(reason, text), text


@pytest.mark.parametrize("build", [Sideways], ids=["not a row per example"])
def test_the_vectorised_engine_falls_back_too(build):
    model = build_model(build)
    split = mo.split.by_name(model, personal=["head"])
    (text,) = train_both(model, rows_of("vectors"), split, Vectorised)
    assert "not one row per example" in text


def test_fit_warns_once():
    model = build_model(dropout_layer)
    split = mo.split.by_name(model, personal=["head"])
    with pytest.warns(UserWarning, match="Partial evaluation is off") as record:
        run = mo.fit(model, rows_of("vectors"), alternating(), split=split, rounds=2, engine="sequential")
    assert len(record) == 1
    whole = mo.fit(
        model,
        rows_of("vectors"),
        alternating(),
        split=split,
        rounds=2,
        engine="sequential",
        settings=mo.Settings(partial=False),
    )
    for client in range(len(SIZES)):
        agree(run.parameters(client), whole.parameters(client), 0.0)
    assert run.ledger == whole.ledger


def test_noise_of_its_own_is_drawn_anew_in_every_step():
    model = build_model(Noisy)
    train_both(model, rows_of("vectors"), mo.split.by_name(model, personal=["head"]))


def test_a_first_client_of_one_row_hides_nothing():
    """From one row it cannot be seen whether rows are mixed: the numbers must be right all the same."""
    model = build_model(Mixing)
    split = mo.split.by_name(model, personal=["head"])
    train_both(model, rows_of("vectors", (1, 9, 5)), split)


def test_a_first_client_of_one_row_is_no_reason_to_run_the_whole_model():
    """A reshape to ``(n, -1)`` has no meaning for no rows, but nobody trains on no rows."""

    class Reshaping(Body):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.body(x)).reshape(-1, 1, 5).flatten(1).reshape(-1, 5))

    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 2, 3), nn.Linear(32, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.flatten(self.conv(x), 1))

    for build, kind in ((Reshaping, "vectors"), (Viewing, "images")):
        model = build_model(build)
        split = mo.split.by_name(model, personal=["head"])
        assert train_both(model, rows_of(kind, (1, 9, 5)), split) == []


@pytest.mark.parametrize("engine", [Sequential, Vectorised], ids=lambda e: e.name)
def test_a_model_that_edits_its_input_in_place_does_not_edit_the_data(engine):
    """The whole model gets a copy of each batch; the prefix must not get the data themselves."""

    class Editing(Body):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.body(x.mul_(0.5))))

    model = build_model(Editing)
    split = mo.split.by_name(model, personal=["head"])
    problem = problem_for(model, rows_of("vectors"), split, partial=True, quiet=True)
    before = problem.columns["x"].clone()
    result = None
    with contextlib.suppress(mo.MoietyError):  # torch.func may refuse the model, but not after it changed something
        result = train_rounds(problem, engine)
    assert torch.equal(problem.columns["x"], before)
    if engine is Sequential:
        assert result is not None
        agree(result, train_rounds(problem_for(model, rows_of("vectors"), split, partial=False), engine), 1e-12)


def test_in_place_operations_between_the_parts():
    """The suffix edits the features of a batch in place: the next epoch must find them as they were."""

    class InPlace(Body):
        def forward(self, x: Tensor) -> Tensor:
            h = self.body(x)
            return functional.relu(self.head(h.mul_(2.0).add_(self.head.weight.sum(0))), inplace=True)

    model = build_model(InPlace)
    assert train_both(model, rows_of("vectors"), mo.split.by_name(model, personal=["head"])) == []


# The work that is saved.


def counting(model: nn.Module, layer: str) -> list[int]:
    """How many rows went through a layer, call by call; copies of the model count in the same list."""
    rows: list[int] = []
    model.get_submodule(layer).register_forward_hook(lambda module, inputs, output: rows.append(len(inputs[0])))
    return rows


@pytest.mark.parametrize("partial", [True, False])
def test_each_row_goes_through_the_prefix_once_per_phase(partial):
    """Three personal epochs and two shared ones: 1 + 2 times each row, against 3 + 2."""
    model = build_model(mlp)
    rows = counting(model, "hidden2")
    problem = problem_for(model, rows_of("vectors"), mo.split.by_name(model, personal=["head"]), partial=partial)
    train_rounds(problem, Sequential, rounds=1)  # the cut is found, on a few rows
    rows.clear()
    train_rounds(problem, Sequential, rounds=1)
    assert sum(rows) == (1 + 2 if partial else 3 + 2) * sum(SIZES)
    rows.clear()
    train_rounds(problem, Sequential, rounds=3)
    assert sum(rows) == 3 * (1 + 2 if partial else 3 + 2) * sum(SIZES)


@pytest.mark.parametrize("partial", [True, False])
def test_each_row_goes_through_the_prefix_once_per_phase_vectorised(partial):
    """Three clients of 8 rows are one block; a call under vmap counts the rows of one client."""
    model = build_model(mlp)
    rows = counting(model, "hidden2")
    data = rows_of("vectors", (8, 8, 8))
    problem = problem_for(model, data, mo.split.by_name(model, personal=["head"]), partial=partial)
    train_rounds(problem, Vectorised, rounds=1)
    rows.clear()
    # The engine measures memory with one row of its own when it is made.
    train_rounds(problem, Vectorised, rounds=1)
    assert sum(rows) == (1 + 2 if partial else 3 + 2) * 8 + 1


def test_one_epoch_is_not_worth_a_cut():
    model = build_model(mlp)
    rows = counting(model, "hidden2")
    problem = problem_for(model, rows_of("vectors"), mo.split.by_name(model, personal=["head"]), partial=True)
    train_rounds(problem, Sequential, rounds=1, algorithm=alternating(personal_epochs=1))
    assert sum(rows) == (1 + 2) * sum(SIZES)


def test_the_ledgers_flops_by_hand():
    """Linear(4, 6) takes 2 * 4 * 6 = 48 operations a row, Linear(6, 3) takes 36.

    Personal phase, head alone: the hidden layer once, 48; each of 3 epochs the head forward, 36, and the gradient of
    its weight, 36. Shared phase, hidden layer alone: both forward, 84, the gradient of the head's input, 36, and that
    of the hidden weight, 48. So 48 + 3 * 72 + 168 = 432 a row; without partial evaluation 3 * 120 + 168 = 528.
    """
    model = mo.models.mlp(4, 3, hidden=(6,), seed=2)
    split = mo.split.by_name(model, personal=["head"])
    algorithm = alternating(shared_epochs=1)
    options: dict[str, Any] = {"split": split, "rounds": 2}
    for engine in ("sequential", "vectorised"):
        run = mo.fit(model, rows_of("vectors"), algorithm, **with_settings(engine=engine, **options))
        assert run.ledger["flops"] == 2 * 432 * sum(SIZES)
    run = mo.fit(model, rows_of("vectors"), algorithm, **with_settings(engine="sequential", partial=False, **options))
    assert run.ledger["flops"] == 2 * 528 * sum(SIZES)


def test_the_ledgers_flops_for_steps_by_hand():
    """Three steps of 4: clients of 5, 1, 9 and 40 rows use 12 - 3, 3, 12 - 3 and 12 rows.

    A client of 5 has batches of 4, 1, 4, one of 1 has 1, 1, 1, one of 9 has 4, 4, 1, one of 40 has 4, 4, 4. The prefix
    is computed for as many rows as the client has or uses, whichever is less: 5, 1, 9 and 12.
    """
    model = mo.models.mlp(4, 3, hidden=(6,), seed=2)
    split = mo.split.by_name(model, personal=["head"])
    algorithm = alternating(shared_epochs=1, personal_epochs=None, personal_steps=3)
    sizes = (5, 1, 9, 40)
    run = mo.fit(model, rows_of("vectors", sizes), algorithm, split=split, rounds=1, engine="sequential")
    rows = 9 + 3 + 9 + 12
    assert run.ledger["flops"] == 48 * (5 + 1 + 9 + 12) + 72 * rows + 168 * sum(sizes)


# Gradients over several samples of the personal part.


class Skip(nn.Module):
    """The input goes into the prefix and, as whole numbers, past it into the sampled part."""

    def __init__(self) -> None:
        super().__init__()
        self.common, self.own = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.common(x)) * self.own(x))


SAMPLE_CASES = {
    "mlp": (mlp, "vectors", ["head"]),
    "additive": (Additive, "vectors", ["own"]),
    "transformer": (Transformer, "tokens", ["block2"]),
    "tied": (Tied, "tokens", ["middle"]),
    "tokens past the prefix": (Skip, "tokens", ["own"]),
    "nothing before it": (mlp, "vectors", ["hidden1"]),
}


def sampling_case(case: Any, count: int = 4) -> Any:
    build, kind, personal = case
    model = build_model(build)
    split = mo.split.by_name(model, personal=personal)
    problem = problem_for(model, rows_of(kind), split, partial=True)
    draw = torch.Generator().manual_seed(2)
    init = problem.task.init
    samples = [
        {n: init[n] + 0.5 * torch.randn(init[n].shape, generator=draw, dtype=torch.float64) for n in split.personal}
        for _ in range(count)
    ]
    return model, problem, samples


def plain_mean(model: nn.Module, problem: Problem, samples: Any, batch: Any) -> Any:
    """The mean over samples of gradients by ordinary autograd through the module, one sample after another."""
    total: dict[str, Tensor] = {}
    for sample in samples:
        leaf = {n: problem.task.init[n].clone().requires_grad_() for n in problem.split.trained_shared}
        output = torch.func.functional_call(model, {**problem.task.init, **leaf, **sample}, (batch["x"],))
        loss = functional.cross_entropy(output.movedim(-1, 1), batch["y"], reduction="mean")
        gradients = torch.autograd.grad(loss, list(leaf.values()))
        for name, g in zip(leaf, gradients, strict=True):
            total[name] = total.get(name, torch.zeros_like(g)) + g / len(samples)
    return total


def work_of(problem: Problem, reuse: bool) -> Any:
    numbers = {"examples": torch.tensor(3.0, dtype=torch.float64)}
    return make_work(replace(problem, partial=reuse), lambda phase: [], autograd_gradient, numbers, 0, RoundInfo())


@pytest.mark.parametrize("reuse", [True, False], ids=["reuse", "whole"])
@pytest.mark.parametrize("case", SAMPLE_CASES.values(), ids=SAMPLE_CASES)
def test_gradient_over_samples_is_the_plain_mean(case, reuse):
    model, problem, samples = sampling_case(case)
    batch = {n: c[:9] for n, c in problem.columns.items()}
    with torch.no_grad():
        gradient = gradient_over_samples(
            work_of(problem, reuse), problem.task.init, samples, problem.split.trained_shared, batch
        )
    assert set(gradient) == set(problem.split.trained_shared)
    agree(plain_mean(model, problem, samples, batch), gradient, 1e-12)


def test_gradient_over_samples_of_some_of_the_shared_parameters():
    model, problem, samples = sampling_case(SAMPLE_CASES["transformer"])
    names = ("head.weight", "block1.up.weight", "positions")
    with torch.no_grad():
        gradient = gradient_over_samples(work_of(problem, True), problem.task.init, samples, names, problem.columns)
    expected = plain_mean(model, problem, samples, problem.columns)
    assert set(gradient) == set(names)
    agree({n: expected[n] for n in names}, gradient, 1e-12)


@pytest.mark.parametrize("reuse", [True, False], ids=["reuse", "whole"])
def test_the_prefix_is_run_once_for_all_samples(reuse):
    build, kind, personal = SAMPLE_CASES["mlp"]
    model = build_model(build)
    rows = counting(model, "hidden1")
    split = mo.split.by_name(model, personal=personal)
    problem = problem_for(model, rows_of(kind), split, partial=True)
    samples = [{n: problem.task.init[n] + m for n in split.personal} for m in range(7)]
    work = work_of(problem, reuse)
    for _ in range(2):  # the first time the cut is found, on a few rows
        rows.clear()
        with torch.no_grad():
            gradient_over_samples(work, problem.task.init, samples, split.trained_shared, problem.columns)
    assert rows == ([sum(SIZES)] if reuse else [sum(SIZES)] * 7)


@pytest.mark.parametrize("partial", [True, False], ids=["reuse", "whole"])
@pytest.mark.parametrize("engine", [Sequential, Vectorised], ids=lambda e: e.name)
def test_gradient_over_samples_in_an_engine(engine, partial):
    """Padded clients, under vmap: each client's mean over its own rows; without reuse the prefix is run M times."""
    build, kind, personal = SAMPLE_CASES["mlp"]
    model = build_model(build)
    rows = counting(model, "hidden1")
    split = mo.split.by_name(model, personal=personal)
    problem = problem_for(model, rows_of(kind), split, partial=partial)
    samples = [{n: problem.task.init[n] * (1 + m) for n in split.personal} for m in range(3)]

    def function(work: Any, received: Any, state: Any) -> Any:
        (batch,) = list(work.batches("local"))
        return gradient_over_samples(work, work.compose(received, state), samples, work.shared, batch)

    spans = [problem.data.rows(c, "train") for c in (0, 3)]
    jobs = [
        Job(c, {"local": Rows(np.arange(a, b), np.array([b - a]))}, b - a, problem.first_personal())
        for c, (a, b) in zip((0, 3), spans, strict=True)
    ]
    instance = engine(problem, {"asked": ClientFunction(function, ("local",))})
    received = {n: problem.task.init[n] for n in split.shared}
    instance.map("asked", jobs, received, RoundInfo())
    rows.clear()
    results = instance.map("asked", jobs, received, RoundInfo())
    for (a, b), gradient in zip(spans, results, strict=True):
        batch = {n: c[a:b] for n, c in problem.columns.items()}
        agree(plain_mean(model, problem, samples, batch), gradient, 1e-12)
    rows.clear()
    instance.map("asked", jobs, received, RoundInfo())
    width = 9 if engine is Sequential else 5  # under vmap a call counts one client's rows, the widest's
    assert sum(rows) == width * (1 if partial else 3)


def test_a_task_of_plain_functions_is_never_cut():
    data = federated([{"a": np.ones((3, 2)), "y": np.ones(3)}])
    init = {"u": torch.zeros(2, dtype=torch.float64), "v": torch.zeros((), dtype=torch.float64)}
    task = mo.task.from_functions(init, lambda p, d: (d["a"] @ p["u"] + p["v"] - d["y"]).square())
    split = mo.split.Split(("u",), ("v",), (), frozenset(), {"u": 2, "v": 1})
    problem = problem_of(task, data, split)
    assert task.partial(frozenset({"v"}), task.init, problem.columns) is None
