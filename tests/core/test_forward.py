"""Models that take inputs by name and give more than a tensor, as those of other libraries do."""

from __future__ import annotations

import math
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import moiety as mo
from moiety.task import from_module
from moiety.task.forward import choose_inputs, find_output
from moiety.types import Partial

WORDS, LENGTH = 7, 4


class Reader(nn.Module):
    """A model in the manner of transformers: many arguments, of which few are used; what it gives is an object."""

    def __init__(self, outputs: int, *, every: bool = False) -> None:
        super().__init__()
        self.table, self.classifier = nn.Embedding(WORDS, 3), nn.Linear(3, outputs)
        self.every = every
        self.register_buffer("position_ids", torch.arange(LENGTH))

    def forward(
        self,
        ids: Tensor,
        type_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Any:
        assert type_ids is None
        assert labels is None
        h = self.table(ids) * torch.cos(self.position_ids)[:, None]
        h = h if attention_mask is None else h * attention_mask[:, :, None]
        logits = self.classifier(h if self.every else h.sum(1))
        return {"loss": None, "logits": logits, "states": h}


def columns(**others: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    mask = np.ones((12, LENGTH), dtype=np.int64)
    mask[::2, -1] = 0
    return {"attention_mask": mask, "ids": rng.integers(0, WORDS, (12, LENGTH)), **others}


def test_outputs() -> None:
    one, two = torch.ones(2), torch.zeros(2)
    pair = namedtuple("pair", "loss logits")
    for output in (one, (one, two), [None, one], {"logits": one, "states": two}, {"loss": two, "x": one}):
        assert find_output(output) is one
    assert find_output(pair(two, one)) is one
    assert find_output(SimpleNamespace(loss=two, states=two, logits=one)) is one
    assert find_output("none") == "none"


def test_inputs_that_are_not_named() -> None:
    assert choose_inputs(Reader(2), ["y", "attention_mask", "ids", "other", "labels"]) == ("ids", "attention_mask")
    assert choose_inputs(Reader(2), ["ids", "x"]) == ("x",)
    fed = mo.data.from_arrays({"words": columns()["ids"], "y": np.zeros(12, dtype=np.int64)}, client=[0, 1] * 6)
    text = "`inputs` must be given, as the data have no column x or of a name that the model takes, got nothing. "
    with pytest.raises(mo.MoietyError, match=f"^{text}The model takes ids, type_ids, attention_mask, labels.$"):
        mo.fit(Reader(2), fed, mo.fedavg(shared=0.1), rounds=1)


def test_columns_go_by_name_and_partial_evaluation_cuts_such_a_model() -> None:
    """A round of FedAlt gives what torch gives for the model called by hand, the body computed once or each time."""
    torch.manual_seed(0)
    model = Reader(2)
    y = np.arange(12) % 2
    fed = mo.data.from_arrays(columns(y=y), client=np.repeat([0, 1], 6), test=0.0)
    split = mo.split.output_layer(model, frozen="table")
    assert split.frozen == ("table.weight", "position_ids")
    algorithm = mo.fedalt(shared=0.1, personal=mo.sgd(0.5, epochs=3))
    oracle = Reader(2)
    oracle.load_state_dict(model.state_dict())
    rows = {name: torch.from_numpy(c) for name, c in fed.at(0, "train").items()}
    optimiser = torch.optim.SGD(oracle.classifier.parameters(), lr=0.5)
    for _ in range(3):
        optimiser.zero_grad()
        logits = oracle(rows["ids"], attention_mask=rows["attention_mask"])["logits"]
        nn.functional.cross_entropy(logits, rows["y"]).backward()
        optimiser.step()
    for partial in (True, False):
        settings = mo.Settings(inputs=["attention_mask", "ids"], partial=partial)
        run = mo.fit(model, fed, algorithm, split=split, rounds=1, engine="sequential", settings=settings)
        torch.testing.assert_close(run.parameters(0)["classifier.weight"], oracle.classifier.weight.detach())
    task = from_module(model, loss="cross_entropy", inputs=["attention_mask", "ids"])
    cut = task.partial(frozenset(split.personal), task.init, {n: c[:3] for n, c in rows.items()})
    assert isinstance(cut, Partial)
    features = cut.features(task.init, rows)
    losses, _ = cut.loss(task.init, {**features, "y": rows["y"]})
    torch.testing.assert_close(losses, task.loss(task.init, rows)[0])


def test_next_tokens() -> None:
    """Numbers by hand: two rows of three tokens, of which the last of the second row is masked."""
    logits = torch.zeros(2, 3, 4, dtype=torch.float64)
    logits[0, 0, 2], logits[0, 1, 1], logits[1, 0, 3], logits[1, 1, 0] = 1.0, 2.0, 3.0, 9.0
    batch = {"input_ids": torch.tensor([[1, 2, 3], [0, 3, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    first = math.log(3 + math.e) - 1  # token 2 after token 1
    second = math.log(3 + math.e**2)  # token 3 after token 2
    third = math.log(3 + math.e**3) - 3  # token 3 after token 0
    model = nn.Embedding(4, 4)
    metrics = ["log_perplexity", "perplexity", "accuracy"]
    task = from_module(model, loss="next_token", metric=metrics, inputs=["input_ids"])
    assert task.metric.weight is not None
    weights, values = task.metric.weight(batch), task.metric.per_example(logits, batch)
    assert weights.tolist() == [2, 1]
    assert values.tolist() == pytest.approx([(first + second) / 2, third])
    mean = (first + second + third) / 3
    perplexity, accuracy = (metric.compute(logits, batch) for metric in task.sets)
    assert perplexity == pytest.approx(math.exp(mean))
    assert accuracy == pytest.approx((1 / 2 + 1) / 2)
    prompt = {**batch, "y": torch.tensor([[-100, -100, 3], [0, 3, -100]])}
    assert task.metric.per_example(logits, prompt).tolist() == pytest.approx([second, third])


def test_a_causal_model_needs_no_labels() -> None:
    """Its default loss is that of the next token; its gradient is torch's on shifted tokens."""
    torch.manual_seed(0)
    model = nn.Embedding(WORDS, WORDS).double()
    tokens = columns()["ids"]
    fed = mo.data.from_arrays({"input_ids": tokens}, client=[0] * 12, test=0.0)
    settings = mo.Settings(inputs=["input_ids"])
    run = mo.fit(model, fed, mo.fedavg(shared=0.5), rounds=1, engine="sequential", settings=settings)
    weight = model.weight.detach().clone().requires_grad_()
    ids = torch.from_numpy(tokens)
    nn.functional.cross_entropy(weight[ids[:, :-1]].flatten(0, 1), ids[:, 1:].flatten()).backward()
    torch.testing.assert_close(run.parameters(0)["weight"], (weight - 0.5 * weight.grad).detach())
    assert run.history[-1]["metric_name"] == "log_perplexity"
    assert run.predict(0, tokens[:2]).shape == (2, LENGTH)
