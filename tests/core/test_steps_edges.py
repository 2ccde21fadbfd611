"""Models in which a step inside the backward pass could go wrong unnoticed, against ``torch.optim.SGD``."""

import pytest
import torch
from step_cases import (
    CLASSES,
    FEATURES,
    LR,
    SIZES,
    WIDTH,
    make_batches,
    mlp,
    train_block,
    train_by_torch,
    train_single,
)
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import moiety as mo
from moiety.task import steps


class Two(nn.Module):
    """Two layers with ReLU between them, which is computed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.first(x).relu_())


class Added(Two):
    """The output of a layer is edited in place."""

    def forward(self, x):
        hidden = self.first(x)
        hidden += 0.5
        hidden[:, 0] *= 2
        return self.head(torch.tanh(hidden))


class Detached(Two):
    """A weight is used once more, as a constant."""

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        back = torch.tanh(functional.linear(hidden, self.first.weight.detach().t()))
        return self.head(torch.tanh(functional.linear(back, self.first.weight.detach())) + hidden)


class DetachedBefore(Two):
    """A weight is a constant in code before its layer, whose way back comes after the step."""

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        return self.head(hidden * functional.linear(hidden, self.head.weight.detach()).sum(-1, keepdim=True))


class Guarded(Two):
    """A weight is used in code without gradients."""

    def forward(self, x):
        with torch.no_grad():
            scale = self.first.weight.square().sum()
        return self.head(torch.tanh(self.first(x)) * scale)


class Twice(Two):
    """The same module is called twice, once on rows and once on what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.head(self.first(torch.tanh(self.first(x))))


class Siblings(Two):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.head(self.second(torch.tanh(self.first(x))))


class Across(Two):
    """Weights that lie in memory the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.first.weight = nn.Parameter(torch.randn(FEATURES, WIDTH).t())
        self.head.weight = nn.Parameter(torch.randn(CLASSES, 2 * WIDTH)[:, ::2])


class Hooked(Two):
    """Hooks before and after a layer, on the way there and on the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.first.register_forward_pre_hook(lambda layer, inputs: (inputs[0] * 2,))
        self.first.register_forward_hook(lambda layer, inputs, output: output.mul_(3))
        self.head.register_forward_hook(lambda layer, inputs, output: output + 1)


class Halved(Two):
    """A hook that changes the gradient of a layer's output."""

    def forward(self, x):
        hidden = self.first(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda g: g / 2)
        return self.head(torch.tanh(hidden))


class Recomputed(Two):
    """A layer that is computed again in the backward pass."""

    def forward(self, x):
        hidden = checkpoint(lambda x: torch.tanh(self.first(x)), x, use_reentrant=False)
        return self.head(hidden)


SINGLE = {"halved": Halved, "recomputed": Recomputed}
"""Models with code that vmap does not know."""
MODELS = {
    "in place": Two,
    "edited": Added,
    "detached": Detached,
    "guarded": Guarded,
    "twice": Twice,
    "siblings": Siblings,
    "across": Across,
    "hooked": Hooked,
    "mlp": mlp,
}


def make_federation(sizes):
    """Clients with so many training rows."""
    clients = {}
    for c, n in enumerate(sizes):
        (batch,) = make_batches([n], c)
        clients[f"c{c}"] = {"x": batch["x"].float().numpy(), "y": batch["y"].numpy()}
    return mo.data.from_clients(clients, test=0)


@pytest.fixture(autouse=True)
def _steps_of_any_size(monkeypatch):
    monkeypatch.setattr(steps, "LEAST", 0)


def build(name):
    torch.manual_seed(3)
    return {**MODELS, **SINGLE}[name]().double()


@pytest.mark.parametrize("name", [*MODELS, *SINGLE])
@pytest.mark.parametrize(("decay", "pull"), [(0.0, 0.0), (0.2, 0.3)])
def test_a_client_by_itself(name, decay, pull):
    module, batches = build(name), make_batches([6, 1, 1, 4], 0)
    names = tuple(n for n, _ in module.named_parameters())
    expected = train_by_torch(module, batches, names, decay=decay, pull=pull)
    new, _ = train_single(module, batches, names, mo.sgd(LR, weight_decay=decay, pull=pull))
    for n in names:
        torch.testing.assert_close(new[n], expected[n], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("decay", "pull"), [(0.0, 0.0), (0.2, 0.3)])
def test_a_block_of_clients(name, decay, pull):
    module = build(name)
    names = tuple(n for n, _ in module.named_parameters())
    new, _ = train_block(module, names, mo.sgd(LR, weight_decay=decay, pull=pull))
    for c, sizes in enumerate(SIZES):
        expected = train_by_torch(module, make_batches(sizes, c), names, decay=decay, pull=pull)
        for n in names:
            torch.testing.assert_close(new[n][c], expected[n], rtol=1e-12, atol=1e-13)


def test_a_weight_that_is_a_constant_before_its_layer_is_an_error_and_no_wrong_step():
    """Its way back would need the weight as it was before the step."""
    torch.manual_seed(3)
    module = DetachedBefore().double()
    names = tuple(n for n, _ in module.named_parameters())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        train_single(module, make_batches([6, 6], 0), names, mo.sgd(LR))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        train_block(module, names, mo.sgd(LR))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["mlp", "in place"])
def test_smaller_types(name, dtype):
    """Within a few roundings, the steps are those of float64."""
    module, batches = build(name), make_batches([6, 1, 4], 0)
    names = tuple(n for n, _ in module.named_parameters())
    exact = train_by_torch(module, batches, names, decay=0.2)
    small = [{"x": b["x"].to(dtype), "y": b["y"]} for b in batches]
    new, _ = train_single(module.to(dtype), small, names, mo.sgd(LR, weight_decay=0.2))
    step = torch.finfo(dtype).eps
    for n in names:
        assert new[n].dtype == dtype
        torch.testing.assert_close(new[n].double(), exact[n], rtol=8 * step, atol=8 * step)


@pytest.mark.parametrize("engine", ["sequential", "vectorised", "processes:vectorised"])
def test_a_frozen_parameter_in_the_personal_part_stays(engine):
    """Clients have fewer rows than a batch, one row, and one more than a batch."""
    torch.manual_seed(3)
    model = Two()
    model.head.bias.requires_grad_(False)
    fed = make_federation([4, 1, 9])
    split = mo.split.by_name(model, personal=["head.weight"], frozen=["head.bias"])
    whole = mo.split.everything(model, frozen=["head.bias"])
    how = mo.sgd(LR, batch_size=8, shuffle=False)
    run = mo.fit(model, fed, mo.local_only(personal=how), split=whole, rounds=2, engine=engine)
    for client in range(3):
        rows = {k: torch.from_numpy(v) for k, v in fed.at(client, "train").items()}
        batches = [{k: v[at : at + 8] for k, v in rows.items()} for at in range(0, len(rows["y"]), 8)] * 2
        trained = [n for n, p in model.named_parameters() if p.requires_grad]
        expected = train_by_torch(model, batches, trained)
        for n, p in run.parameters(client).items():
            torch.testing.assert_close(p, expected[n], rtol=2e-6, atol=1e-6)
        assert torch.equal(run.parameters(client)["head.bias"], model.head.bias)
    other = mo.fit(model, fed, mo.fedalt(shared=how, personal=how), split=split, rounds=2, engine=engine)
    assert torch.equal(other.parameters(0)["head.bias"], model.head.bias)
