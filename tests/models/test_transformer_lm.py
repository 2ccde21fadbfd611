from __future__ import annotations

import copy
import re

import numpy as np
import pytest
import torch
from oracle_transformer import arrays, block, select_part, shake
from torch import nn

import moiety as mo
from moiety.errors import MoietyError
from moiety.models import transformer_lm
from moiety.models.transformers import TransformerBlock

TINY = {"vocabulary": 9, "length": 6, "width": 4, "blocks": 2, "heads": 2, "feed_forward": 3}


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, 9, (rows, length), generator=torch.Generator().manual_seed(1))


def test_counts_of_table_5() -> None:
    """A block: 4 * 256^2 = 262,144; 256 * 1,024 + 1,024 + 1,024 * 256 + 256 = 525,568; 4 * 256 = 1,024: 788,736.

    Four of them 3,154,944; words 10,004 * 256 = 2,561,024; positions 20 * 256 = 5,120; bias 10,004: 5,731,092.
    """
    with torch.device("meta"):
        model = transformer_lm()
    for place in (0, 3):
        counts = mo.split.by_name(model, personal=[f"blocks.{place}"]).counts()
        assert counts == {"total": 5_731_092, "shared": 4_942_356, "personal": 788_736, "frozen": 0}
    assert list(model.buffers()) == []


@pytest.mark.parametrize("causal", [True, False])
def test_a_block_is_that_of_numpy(causal: bool) -> None:
    net = shake(TransformerBlock(4, heads=2, feed_forward=3, dropout=0.0, causal=causal))
    x = np.random.default_rng(1).normal(size=(2, 5, 4))
    mask = np.tril(np.ones((5, 5), bool)) if causal else np.ones((5, 5), bool)
    expected = np.stack([block(row, arrays(net), 2, mask) for row in x])
    np.testing.assert_allclose(net(torch.from_numpy(x)).detach().numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [1, 4, 6])
def test_the_model_is_that_of_numpy(length: int) -> None:
    """sqrt(4) E[x] + P, ReLU, the blocks, then E z + b, with E the one word embedding."""
    model = shake(transformer_lm(**TINY))  # type: ignore[arg-type]
    p, x = arrays(model), tokens(3, length)
    expected = []
    for row in x.numpy():
        h = np.maximum(2 * p["embedding.weight"][row] + p["positions"][:length], 0)
        for place in range(2):
            h = block(h, select_part(p, f"blocks.{place}"), 2, np.tril(np.ones((length, length), bool)))
        expected.append(h @ p["embedding.weight"].T + p["head.bias"])
    np.testing.assert_allclose(model(x).detach().numpy(), np.stack(expected), rtol=0, atol=1e-12)


def test_later_tokens_change_nothing_earlier() -> None:
    model = shake(transformer_lm(**TINY))  # type: ignore[arg-type]
    x = tokens(2, 6)
    whole = model(x)
    for place in range(1, 6):
        other = x.clone()
        other[:, place] = (x[:, place] + 1) % 9
        gap = (model(other) - whole).abs().amax((0, 2))
        assert torch.all(gap[:place] == 0)
        assert torch.all(gap[place:] > 0)
        torch.testing.assert_close(model(x[:, :place]), whole[:, :place], rtol=0, atol=1e-12)  # a shorter sequence


def test_words_in_and_words_out_are_one_parameter() -> None:
    model = transformer_lm(**TINY)  # type: ignore[arg-type]
    names = [name for name, _ in model.named_parameters()]
    assert names[:2] == ["positions", "embedding.weight"]
    assert "head.weight" not in names
    assert names[-1] == "head.bias"
    for each in (model, copy.deepcopy(model)):
        before = each.embedding.weight.clone()  # type: ignore[union-attr, operator]
        each(tokens(2, 3)).square().sum().backward()
        torch.optim.SGD(each.parameters(), lr=0.1).step()
        assert torch.equal(each.embedding.weight, each.head.weight)  # type: ignore[union-attr, arg-type]
        assert not torch.equal(each.head.weight, before)  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize("layer", ["output_layer", "input_layer"])
def test_a_layer_that_is_tied_cannot_be_personal_alone(layer: str) -> None:
    """The paper takes the last and the first block instead."""
    with pytest.raises(MoietyError, match="tied to"):
        getattr(mo.split, layer)(transformer_lm(**TINY))  # type: ignore[arg-type]


def test_first_values() -> None:
    model = transformer_lm(vocabulary=2000, length=50, width=64, blocks=2, heads=4, feed_forward=256)
    for name, value in model.named_parameters():
        if "norm" in name:
            assert torch.all(value == (1 if name.endswith("weight") else 0)), name
        elif name.endswith("bias"):
            assert torch.all(value == 0), name
        else:
            error = 4 / np.sqrt(2 * value.numel())
            assert float(value.detach().std()) == pytest.approx(0.02, rel=error), name


def test_dropout_is_of_training_alone() -> None:
    with_it, without = transformer_lm(**TINY, dropout=0.5), transformer_lm(**TINY)  # type: ignore[arg-type]
    x = tokens(2, 6)
    assert torch.equal(with_it.eval()(x), without(x))
    assert sum(isinstance(m, nn.Dropout) and m.p == 0.5 for m in with_it.modules()) == 4
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert not torch.equal(with_it.train()(x), with_it(x))
        before = torch.get_rng_state()
        without.train()(x)
        assert torch.equal(before, torch.get_rng_state())  # none is drawn where there is none


def test_too_many_tokens() -> None:
    text = "`x` must be sequences of at most 6 tokens, got 7. Build the model with a larger `length`."
    with pytest.raises(MoietyError, match="^" + re.escape(text) + "$"):
        transformer_lm(**TINY)(tokens(2, 7))  # type: ignore[arg-type]
