"""Models of transformers, torchvision and timm, as they are, with every kind of split and on every engine."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import peft
import pytest
import torch
from small_models import CASES, data, make
from torch import Tensor, nn
from torch.nn import functional

import moiety as mo

pytestmark = pytest.mark.filterwarnings("ignore")  # those libraries warn of their own affairs
METHODS = ("fedavg", "output layer", "adapters", "lora", "PEFT")
WORK = mo.sgd(0.1, batch_size=2)
HEADS = ["classifier", "score", "fc", "head"]
VALUES = "code in it that depends on values"
PADDING = "BatchNorm, whose batch statistics would see the padding"
NOT_VECTORISED = dict.fromkeys(("BERT", "RoBERTa", "DistilBERT", "GPT-2", "Llama"), VALUES)
NOT_VECTORISED |= dict.fromkeys(("resnet18", "MobileNet"), PADDING)
"""Why some models cannot be vectorised; all others can."""


def prepare(name: str, method: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, mo.split.Split | None, Any]:
    model, case = make(name).to(dtype), CASES[name]
    fedalt = mo.fedalt(shared=WORK, personal=WORK)
    if method == "fedavg":
        return model, None, mo.fedavg(shared=WORK)
    if method == "output layer":
        return model, mo.split.output_layer(model), fedalt
    if method == "adapters":
        return model, mo.split.adapters(model, width=2, targets=case.adapters or ()), fedalt
    if method == "lora":
        return model, mo.split.lora(model, rank=2, targets=case.lora), fedalt
    heads = [head for head in HEADS if hasattr(model, head)]
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=case.peft, modules_to_save=heads)).to(dtype)
    return model, mo.split.peft(model), fedalt


def train(name: str, method: str, engine: str) -> mo.Run:
    with torch.random.fork_rng():
        torch.manual_seed(1)  # PEFT draws its first values
        model, split, algorithm = prepare(name, method)
    settings = mo.Settings(partial=False, workers=2 if engine == "processes" else None)
    fed = data(CASES[name].column)
    return mo.fit(model, fed, algorithm, split=split, rounds=1, engine=engine, settings=settings)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CASES)
def test_engines_agree(name: str, method: str) -> None:
    """A round on all engines gives the same numbers, or the vectorised one says in a line why it cannot."""
    run = train(name, method, "sequential")
    expected = run.parameters(0)
    before = dict(run._model.named_parameters())
    assert any(not torch.equal(expected[n], p) for n, p in before.items())  # it did train
    other = train(name, method, "processes").parameters(0)
    assert all(torch.equal(other[n], p) for n, p in expected.items())
    if name in NOT_VECTORISED:
        with pytest.raises(mo.MoietyError, match=NOT_VECTORISED[name]) as error:
            train(name, method, "vectorised")
        assert "\n" not in str(error.value)
        assert str(error.value).endswith("Use engine sequential.")
    else:
        block = train(name, method, "vectorised").parameters(0)
        for n, p in expected.items():
            torch.testing.assert_close(block[n], p, rtol=1e-4, atol=1e-5)


def descend(model: nn.Module, names: Sequence[str], columns: dict[str, Tensor], y: Tensor, lr: float) -> None:
    """A step of torch's SGD on some parameters, on the library's own loss where it has one."""
    optimiser = torch.optim.SGD([p for n, p in model.named_parameters() if n in names], lr=lr)
    model.zero_grad()
    loss = functional.cross_entropy(model(columns["x"]), y) if "x" in columns else model(**columns, labels=y).loss
    loss.backward()
    optimiser.step()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_torch(name: str, method: str) -> None:
    """One client, one batch, float64: two rounds of each method are so many steps of torch's SGD.

    FedAlt steps on the personal part and then on the shared one.
    """
    case, work = CASES[name], mo.sgd(0.1)
    model, split, _ = prepare(name, method, torch.float64)
    fed = data(case.column, clients=1)
    if split is None:
        split, algorithm = mo.split.nothing(model, running_stats="shared"), mo.fedavg(shared=work)
    else:
        algorithm = mo.fedalt(shared=work, personal=work)
    oracle = copy.deepcopy(split.model or model).train()
    settings = mo.Settings(partial=False)
    run = mo.fit(model, fed, algorithm, split=split, rounds=2, engine="sequential", settings=settings)
    rows = fed.at(0, "train")
    columns = {n: torch.from_numpy(rows[n]) for n in (case.column, "attention_mask") if n in rows}
    columns = {n: c.double() if c.is_floating_point() else c for n, c in columns.items()}
    parts = [names for names in (split.trained_personal, split.trained_shared) if names]
    for _ in range(2):
        for names in parts:
            descend(oracle, names, columns, torch.from_numpy(rows["y"]), work.lr)
    expected = dict(oracle.named_parameters()) | (dict(oracle.named_buffers()) if method == "fedavg" else {})
    ours = run.parameters(0)
    for n, p in expected.items():
        torch.testing.assert_close(ours[n], p.detach(), rtol=1e-6, atol=1e-7, msg=lambda text, n=n: f"{n}: {text}")


def test_layers_that_are_reached() -> None:
    """LoRA reaches every projection of GPT-2; on a ResNet without targets it names candidates; ranks are capped."""
    gpt2 = mo.split.lora(make("GPT-2"), rank=2).personal
    assert sum(".c_attn." in n or ".c_proj." in n or ".c_fc." in n for n in gpt2) == 2 * 2 * 4
    assert any(n.startswith("score.") for n in gpt2)
    with pytest.raises(mo.MoietyError, match=r"got fc alone in ResNet\. .* targets=\['conv1', 'layer1.0.conv1'"):
        mo.split.lora(make("resnet18"), rank=2)
    with pytest.raises(mo.MoietyError, match=r"got MobileNetV2\. .* targets=\[...\], for instance 'features.0.0'"):
        mo.split.adapters(make("MobileNet"))
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        mo.split.lora(make("BERT"), rank=4)
    assert [str(w.message) for w in records] == [
        "`rank` 4 is more than the smaller side of some layers, which get less: classifier 2."
    ]


HEAD_OF = {
    "BERT": "classifier",
    "RoBERTa": "classifier.out_proj",
    "DistilBERT": "classifier",
    "GPT-2": "score",
    "Llama": "score",
    "ViT": "classifier",
    "resnet18": "fc",
    "MobileNet": "classifier.1",
    "timm ViT": "head",
}


@pytest.mark.parametrize("name", CASES)
def test_heads(name: str) -> None:
    names = mo.split.output_layer(make(name)).trained_personal
    assert {n.rpartition(".")[0] for n in names} == {HEAD_OF[name]}


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("resnet18", "MobileNet")])
def test_adapters_sit_before_the_sums(name: str) -> None:
    """Two in each block; with their second layers at 0 the model's outputs are those without them."""
    model, fed = make(name).eval(), data(CASES[name].column)
    split = mo.split.adapters(model, width=3, norms=False)
    ups = [n for n in split.personal if n.endswith("adapter.up.weight")]
    assert len(ups) == 2 * 2
    adapted = split.model.eval()
    column = torch.from_numpy(fed.columns[CASES[name].column][:3])
    with torch.no_grad():
        for n, p in adapted.named_parameters():
            if ".adapter.up." in n:
                p.zero_()
        same, plain = adapted(column), model(column)
        for a, b in zip(
            *((t if isinstance(t, tuple | list) else [getattr(t, "logits", t)]) for t in (same, plain)), strict=True
        ):
            torch.testing.assert_close(a, b)
        for n, p in adapted.named_parameters():
            if ".adapter.up." in n:
                p.copy_(torch.linspace(-3, 2, p.numel()).sin().reshape(p.shape))
        other = adapted(column)
    assert not torch.allclose(getattr(other, "logits", other), getattr(plain, "logits", plain))
