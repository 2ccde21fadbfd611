"""Training in bfloat16 against PyTorch's own autocast on ordinary modules."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import moiety as mo
from moiety.errors import MoietyError
from moiety.task import precision

BF16 = mo.Settings(precision="bf16")
ROWS = (20, 9)


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 3))


def make_rows(count, seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 16, generator=draw)
    return {"x": x, "y": torch.randint(3, (count,), generator=draw)}


def train_by_torch(module, rows, steps, autocast):
    module = copy.deepcopy(module)
    optimiser = torch.optim.AdamW(module.parameters(), lr=0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = module(rows["x"])
        functional.cross_entropy(output.float(), rows["y"]).backward()
        optimiser.step()
    return {n: p.detach() for n, p in module.named_parameters()}


@pytest.fixture
def able():
    """The trial takes seconds, once in a process."""
    if not precision.has_bf16("cpu"):
        pytest.skip("this processor does not compute in bfloat16")


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_steps_are_those_of_autocast(engine):
    """Blocks of clients sum in another order, and what they round to bfloat16 differs in its last bit."""
    module, clients = make_model(), [make_rows(n, c) for c, n in enumerate(ROWS)]
    fed = mo.data.from_clients(dict(enumerate(clients)), test=0)
    how = mo.adamw(0.01, steps=4, batch_size="all", shuffle=False)
    options = {"loss": "cross_entropy", "rounds": 1, "engine": engine, "settings": BF16}
    run = mo.fit(module, fed, mo.local_only(personal=how), **options)
    for c, rows in enumerate(clients):
        expected, exact = (train_by_torch(module, rows, 4, autocast) for autocast in (True, False))
        for n, start in module.named_parameters():
            p = run.parameters(c)[n]
            assert p.dtype == torch.float32
            change = float((exact[n] - start.detach()).norm())
            assert float((p - exact[n]).norm()) > 1e-4 * change, "it was not computed in bfloat16"
            assert float((p - expected[n]).norm()) < (1e-5 if engine == "sequential" else 1e-2) * change


@pytest.mark.usefixtures("able")
def test_features_are_computed_once_in_bfloat16_too():
    """A personal head, whose rows come round twice: the body before it is run once, or each time."""
    module, fed = make_model(), mo.data.from_clients({"one": make_rows(20, 0)}, test=0)
    how = mo.sgd(0.1, epochs=3, batch_size=5)
    options = {"split": mo.split.output_layer(module), "loss": "cross_entropy", "rounds": 1, "engine": "sequential"}
    ends = {}
    for name, settings in {"once": BF16, "each": replace(BF16, partial=False), "exact": mo.Settings()}.items():
        run = mo.fit(module, fed, mo.finetune(personal=how), settings=settings, **options)
        ends[name] = run.parameters("one")["3.weight"]
    change = float((ends["exact"] - module[3].weight.detach()).norm())
    assert float((ends["once"] - ends["each"]).norm()) < 1e-5 * change
    assert float((ends["once"] - ends["exact"]).norm()) > 1e-4 * change


def test_a_machine_without_the_instructions_is_told_in_one_line(monkeypatch):
    monkeypatch.setattr(precision, "PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    monkeypatch.setattr(precision, "has_bf16", precision.has_bf16.__wrapped__)
    fed = mo.data.from_clients({"one": make_rows(9, 0)}, test=0)
    options = {"loss": "cross_entropy", "rounds": 1, "settings": BF16}
    with pytest.raises(MoietyError, match=r"^`precision` must be one that this machine computes in, got bf16"):
        mo.fit(make_model(), fed, mo.fedavg(shared=0.1), **options)
    with pytest.raises(MoietyError, match=r"^`precision` must be left out for a model that .* float64"):
        mo.fit(make_model().double(), fed, mo.fedavg(shared=0.1), **options)
