"""Mixtures of two models, against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from moiety.task.mixing import MixedModel, mix_outputs, mix_parameters


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("loss", ["cross_entropy", "next_token", "ctc"])
def test_probabilities_are_mixed(loss):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 6, 5, 4)) * 3
    logits = mix_outputs(loss, torch.tensor(a), torch.tensor(b), 0.25).numpy()
    probabilities = 0.75 * softmax(a) + 0.25 * softmax(b)
    assert np.allclose(softmax(logits), probabilities, atol=1e-12)
    assert np.allclose(np.exp(logits), probabilities, atol=1e-12)  # its logits are log-probabilities
    gap = np.log(softmax(a)) - np.log(softmax(logits))
    assert gap.max() <= -math.log(0.75) + 1e-9  # whatever the personal model says


def test_one_logit_and_numbers():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 7)) * 4
    logits = mix_outputs("binary_cross_entropy", torch.tensor(a), torch.tensor(b), 0.5).numpy()
    assert np.allclose(1 / (1 + np.exp(-logits)), 0.5 / (1 + np.exp(-a)) + 0.5 / (1 + np.exp(-b)))
    assert np.allclose(mix_outputs("mse", torch.tensor(a), torch.tensor(b), 0.75).numpy(), 0.25 * a + 0.75 * b)
    assert mix_outputs("mse", torch.tensor(a), torch.tensor(b), 0.0).numpy() is not None
    assert np.array_equal(mix_outputs(None, torch.tensor(a), torch.tensor(b), 1.0).numpy(), b)


def test_a_module_of_two_models_and_parameters_in_between():
    rng = np.random.default_rng(0)
    shared, personal = nn.Linear(3, 2), nn.Linear(3, 2)
    x = torch.tensor(rng.normal(size=(5, 3)), dtype=torch.float32)
    with torch.no_grad():
        logits = MixedModel(shared, personal, 0.5, "cross_entropy")(x).numpy()
        probabilities = (softmax(shared(x).numpy()) + softmax(personal(x).numpy())) / 2
    assert np.allclose(np.exp(logits), probabilities, atol=1e-6)
    between = mix_parameters(dict(shared.named_parameters()), dict(personal.named_parameters()), 0.25)
    weights = [model.weight.detach().numpy() for model in (shared, personal)]
    assert np.allclose(between["weight"].detach().numpy(), 0.75 * weights[0] + 0.25 * weights[1], atol=1e-7)
    counts = mix_parameters({"n": torch.tensor(3)}, {"n": torch.tensor(5)}, 0.25)
    assert int(counts["n"]) == 5
