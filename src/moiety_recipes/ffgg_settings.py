"""Settings for FFGG's splits: people and pictures with small networks that converge in minutes.

Each has an input layer, an output layer and hidden layers to put low-rank adapters behind, as in section 3.3 of
Mishchenko et al. 2023. Every seed deals the rows anew into training, validation and test rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import moiety as mo
from moiety_recipes.pictures import average_pixels

if TYPE_CHECKING:
    from torch import nn

SHARES: dict[str, Any] = {"test": 0.3, "validation": 0.14}
"""Shares of a client's rows: 30% to test on, 20% of the rest to choose rates on."""
CONTEXT, STRIDE = 8, 8
"""Characters that the next one is told from, and how far apart such examples are."""
HIDDEN = (64, 32)


@dataclass(frozen=True)
class Setting:
    """Data dealt by a seed, a network, and its splits."""

    title: str
    load: Callable[[int], mo.FederatedData]
    model: Callable[[int], nn.Module]
    input: str = "hidden1"
    """The layer that the split ``input`` makes personal."""

    def splits(self, model: nn.Module) -> dict[str, mo.Split]:
        """The three splits of section 3.3."""
        return {
            "input": mo.split.by_name(model, personal=[f"{self.input}.*"]),
            "output": mo.split.output_layer(model),
            "adapter": mo.split.adapters(model, width=8, targets="hidden*"),
        }


def _mlp(inputs: int, classes: int) -> Callable[[int], nn.Module]:
    return lambda seed: mo.models.mlp(inputs, classes, hidden=HIDDEN, seed=seed)


def _load_audio(seed: int) -> mo.FederatedData:
    return average_pixels(mo.data.load("audiomnist", per_client=120, **SHARES, seed=seed))


def _load_people(seed: int) -> mo.FederatedData:
    return mo.data.load("uci_har", per_client=120, **SHARES, seed=seed)


def _load_letters(seed: int) -> mo.FederatedData:
    return mo.data.load("isolet", **SHARES, seed=seed)


def _load_pictures(name: str, alpha: float, seed: int) -> mo.FederatedData:
    deal: dict[str, Any] = {"clients": 60, "partition": mo.data.dirichlet(alpha), "per_client": 84}
    return average_pixels(mo.data.load(name, **deal, test_per_client=36, validation=0.2, seed=seed))


def _load_roles(seed: int) -> mo.FederatedData:
    """The 60 roles with most text, 24 passages of each, as examples of eight characters and the next one."""
    import numpy as np

    fed = mo.data.load("shakespeare", per_client=24, **SHARES, seed=seed)
    largest = np.argsort(-(fed.bounds[:, 3] - fed.bounds[:, 0]), kind="stable")[:60]
    ends = np.arange(CONTEXT, fed.columns["x"].shape[1] + 1, STRIDE)
    rows = np.concatenate([np.arange(*fed.bounds[i, [0, 3]]) for i in largest])
    x = np.stack([fed.columns["x"][rows, end - CONTEXT : end] for end in ends], 1).reshape(-1, CONTEXT)
    y = fed.columns["y"][rows][:, ends - 1].reshape(-1)
    spans = fed.bounds[largest]
    sizes = spans[:, 3] - spans[:, 0]
    bounds = (spans - spans[:, :1] + (np.cumsum(sizes) - sizes)[:, None]) * len(ends)
    return replace(fed, columns={"x": x, "y": y}, bounds=bounds, ids=[str(fed.ids[int(i)]) for i in largest], spec={})


def _build_text_model(seed: int) -> nn.Module:
    """Characters as vectors, then a network as the others have."""
    from collections import OrderedDict

    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = OrderedDict[str, nn.Module](embedding=nn.Embedding(128, 16), flatten=nn.Flatten())
        layers |= OrderedDict(hidden1=nn.Linear(16 * CONTEXT, 64), relu1=nn.ReLU(), hidden2=nn.Linear(64, 64))
        layers |= OrderedDict(relu2=nn.ReLU(), head=nn.Linear(64, 128))
        return nn.Sequential(layers)


def _load_digits(seed: int) -> mo.FederatedData:
    deal: dict[str, Any] = {"clients": 6, "per_client": 20, "partition": mo.data.dirichlet(0.5)}
    return mo.data.load("digits", **deal, validation=0.2, seed=seed)


SETTINGS: Mapping[str, Setting] = {
    "speakers": Setting(
        "Spoken digits (AudioMNIST) by 60 speakers, mel spectrograms of 16 x 16", _load_audio, _mlp(256, 10)
    ),
    "people": Setting("Activities (UCI HAR) by 30 people, inertial signals", _load_people, _mlp(576, 6)),
    "letters": Setting("Spoken letters (ISOLET) by 30 speakers", _load_letters, _mlp(617, 26)),
    "clothes": Setting(
        "Fashion-MNIST, 14 x 14 pixels, 60 clients by Dirichlet(0.3)",
        partial(_load_pictures, "fashion_mnist", 0.3),
        _mlp(196, 10),
    ),
    "objects": Setting(
        "CIFAR-10 (from JPEG), 16 x 16 pixels, 60 clients by Dirichlet(0.3)",
        partial(_load_pictures, "cifar10-jpeg", 0.3),
        _mlp(768, 10),
    ),
    "roles": Setting("Shakespeare by role, the next character from eight, 60 roles", _load_roles, _build_text_model),
    "digits": Setting("Handwritten digits (scikit-learn), 6 clients by Dirichlet(0.5)", _load_digits, _mlp(64, 10)),
}
NIGHT = tuple(name for name in SETTINGS if name != "digits")
