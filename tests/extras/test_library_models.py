"""What transformers and PEFT say about the same numbers, and what runs only where they are installed."""

from __future__ import annotations

import copy
import importlib.util
import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from small_models import BERT, GPT2, LENGTH, LLAMA, WORDS, data, make
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import moiety as mo
from moiety.task import cut

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).parents[2]


def tokens(**columns: Any) -> tuple[dict[str, Any], mo.data.FederatedData]:
    """Tokens of three clients with a mask, and further columns."""
    rng = np.random.default_rng(0)
    columns["input_ids"] = rng.integers(2, WORDS, (15, LENGTH))
    columns["attention_mask"] = np.ones((15, LENGTH), dtype=np.int64)
    columns["attention_mask"][::2, -2:] = 0
    return columns, mo.data.from_arrays(columns, client=np.repeat(np.arange(3), 5), test=0.2, seed=0)


class CountedRows(TorchDispatchMode):
    """Counts the rows that are looked up in the table of words, however the model is called."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.embedding.default and len(args[0]) == WORDS:
            self.rows += len(args[1])
        return function(*args, **(kwargs or {}))


def train_head(epochs: int, *, partial: bool) -> tuple[int, mo.Run]:
    model = make("BERT")
    split = mo.split.output_layer(model, frozen="bert")
    work = mo.sgd(0.1, batch_size=2, epochs=epochs)
    with CountedRows() as counter:
        settings = mo.Settings(partial=partial)
        algorithm = mo.fedalt(shared=0.1, personal=work)
        run = mo.fit(model, data("input_ids"), algorithm, split=split, rounds=2, engine="sequential", settings=settings)
    return counter.rows, run


def test_the_body_of_bert_runs_once_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three clients with four training rows and two rounds: three more epochs are 72 rows more, or none at all."""
    export = cut._export

    def export_uncounted(*args: Any) -> Any:
        with _disable_current_modes():  # torch.export cannot work while operations are watched
            return export(*args)

    monkeypatch.setattr(cut, "_export", export_uncounted)
    whole = [train_head(epochs, partial=False) for epochs in (2, 5)]
    parts = [train_head(epochs, partial=True) for epochs in (2, 5)]
    assert whole[1][0] - whole[0][0] == 3 * 4 * 2 * 3
    assert parts[1][0] == parts[0][0]
    for (_, a), (_, b) in zip(whole, parts, strict=True):
        for client in range(3):
            for name, value in a.parameters(client).items():
                torch.testing.assert_close(b.parameters(client)[name], value)


@pytest.mark.parametrize("kind", ["GPT2", "Llama"])
def test_causal_models_have_the_loss_of_transformers(kind: str) -> None:
    if kind == "GPT2":
        model: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    columns, fed = tokens()
    metric = ["log_perplexity", "perplexity"]
    run = mo.fit(model, fed, mo.fedavg(shared=0.1), rounds=1, engine="sequential", metric=metric)
    assert run.config["run"]["loss"] == "next_token"
    assert run.config["run"]["inputs"] == ["input_ids", "attention_mask"]
    exported, losses, counts = run.export(), [], []
    for client in range(3):
        rows = {n: torch.from_numpy(c) for n, c in fed.at(client, "test").items()}
        labels = torch.where(rows["attention_mask"] == 1, rows["input_ids"], -100)
        with torch.no_grad():
            losses.append(float(exported(**rows, labels=labels).loss))
        counts.append(int((labels[:, 1:] != -100).sum()))
        assert run.clients[client]["metric"] == pytest.approx(losses[-1], rel=1e-5)
    mean = np.average(losses, weights=counts)
    assert run.history[-1]["metric"] == pytest.approx(mean, rel=1e-5)
    assert run.history[-1]["perplexity_pooled"] == pytest.approx(math.exp(mean), rel=1e-5)
    ids = {n: columns[n][:2] for n in ("input_ids", "attention_mask")}
    assert run.predict(0, ids).shape == (2, LENGTH)


def make_head(kind: str) -> tuple[nn.Module, dict[str, np.ndarray]]:
    """A model of transformers in float64, and labels of fifteen rows for it: none for a causal language model."""
    rng = np.random.default_rng(1)
    tags = rng.integers(0, 3, (15, LENGTH))
    tags[::2, -2:] = -100
    models: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "GPT-2": (transformers.GPT2LMHeadModel, transformers.GPT2Config(**GPT2), {}),
        "Llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig(**LLAMA), {}),
        "tokens": (
            transformers.BertForTokenClassification,
            transformers.BertConfig(**{**BERT, "num_labels": 3}),
            {"y": tags},
        ),
        "numbers": (
            transformers.BertForSequenceClassification,
            transformers.BertConfig(**{**BERT, "num_labels": 1}),
            {"y": rng.normal(size=15).astype(np.float64)},
        ),
    }
    make_model, config, labels = models[kind]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make_model(config).double(), labels


@pytest.mark.parametrize("kind", ["GPT-2", "Llama", "tokens", "numbers"])
def test_heads_train_on_the_loss_of_transformers(kind: str) -> None:
    """Two rounds of one client are two steps of torch's SGD on the loss that transformers gives each row, averaged.

    Rows have different numbers of positions that count; a row counts as one. The loss at the end is that mean too.
    The causal models of transformers compute their loss in float32.
    """
    model, labels = make_head(kind)
    columns, _ = tokens(**labels)
    fed = mo.data.from_arrays(columns, client=np.zeros(15, dtype=int), test=0.4, seed=0)
    run = mo.fit(model, fed, mo.fedavg(shared=mo.sgd(0.1)), rounds=2, engine="sequential")

    def mean_loss(module: nn.Module, part: str) -> Tensor:
        rows = {n: torch.from_numpy(c) for n, c in fed.at(0, part).items()}
        hidden = torch.where(rows["attention_mask"] == 1, rows["input_ids"], -100)
        y = rows.pop("y", hidden)
        each = [module(**{n: c[k : k + 1] for n, c in rows.items()}, labels=y[k : k + 1]).loss for k in range(len(y))]
        return torch.stack(each).mean()

    oracle = copy.deepcopy(model).train()
    optimiser = torch.optim.SGD(oracle.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        mean_loss(oracle, "train").backward()
        optimiser.step()
    ours = run.shared_parameters()
    for n, p in oracle.named_parameters():
        torch.testing.assert_close(ours[n], p.detach(), rtol=1e-5, atol=1e-8)
    with torch.no_grad():
        assert run.clients[0]["loss"] == pytest.approx(float(mean_loss(oracle.eval(), "test")), rel=1e-6)


@pytest.mark.parametrize("trained", ["personal", "shared"])
def test_adapters_of_peft_are_saved_for_each_client(trained: str, tmp_path: Path) -> None:
    base = make("BERT")
    config = peft.LoraConfig(r=2, target_modules=["query"], modules_to_save=["classifier"], task_type="SEQ_CLS")
    model = peft.get_peft_model(copy.deepcopy(base), config)
    split = mo.split.peft(model, trained=trained)
    assert set(getattr(split, trained)) == {n for n, p in model.named_parameters() if p.requires_grad}
    fed = data("input_ids")
    algorithm = mo.local_only(personal=0.5) if trained == "personal" else mo.fedavg(shared=0.5)
    run = mo.fit(model, fed, algorithm, split=split, rounds=2, engine="sequential", out=tmp_path / "run")
    rows = {n: torch.from_numpy(fed.columns[n][:4]) for n in ("input_ids", "attention_mask")}
    logits = []
    for client in range(2):
        run.export(client).save_pretrained(tmp_path / str(client))
        again = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / str(client)).eval()
        with torch.no_grad():
            logits.append(again(**rows).logits)
            torch.testing.assert_close(logits[-1], run.export(client, merge=True)(**rows).logits, rtol=1e-4, atol=1e-6)
        ours = run.predictive(client, {n: c.numpy() for n, c in rows.items()}).mean
        np.testing.assert_allclose(ours, logits[-1].numpy(), rtol=1e-4, atol=1e-6)
    assert torch.equal(*logits) == (trained == "shared")
    resumed = mo.resume(tmp_path / "run", rounds=3, model=model, data=fed)
    assert len(resumed.clients) == 3


def test_peft_wants_a_model_of_peft() -> None:
    with pytest.raises(mo.MoietyError, match=r"^`model` must be one that PEFT made, got Bert"):
        mo.split.peft(make("BERT"))


def test_names_of_columns_that_do_not_fit() -> None:
    columns, _ = tokens(y=np.zeros(15, dtype=np.int64))
    renamed = {"words": columns["input_ids"], "y": columns["y"]}
    fed = mo.data.from_arrays(renamed, client=np.repeat(np.arange(3), 5), test=0.2, seed=0)
    with pytest.raises(mo.MoietyError, match=r"^`inputs` must be given, .* The model takes input_ids, attention_mask,"):
        mo.fit(make("BERT"), fed, mo.fedavg(shared=0.1), rounds=1)
    settings = mo.Settings(inputs=["words"])
    run = mo.fit(make("BERT"), fed, mo.fedavg(shared=0.1), rounds=1, engine="sequential", settings=settings)
    assert run.history


@contextmanager
def module_from(path: Path) -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[path.stem]


@pytest.mark.parametrize("name", ["huggingface_lora", "timm_vit"])
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "examples" / f"{name}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 40
    monkeypatch.chdir(tmp_path)
    with module_from(path) as module:
        run = module.main(rounds=1)
    assert len(run.history) == 1


def test_the_page_about_models_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"mo": mo}
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 4
    for block in blocks:
        exec(compile(block, "docs/models.md", "exec"), names)
