"""Pictures dealt to clients by label, and the networks that are trained on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import moiety as mo

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

NAMES = {"digits": "Handwritten digits (scikit-learn)", "fashion_mnist": "Pictures of clothes (Fashion-MNIST)"}


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """A data set dealt by Dirichlet(``alpha``), with a network.

    A client has ``rows`` training rows and ``test`` test rows (0: the data set's share). ``small`` averages every 2 x 2
    pixels. ``hidden`` are the hidden layers of a perceptron with ``pixels`` inputs; without any, the network is the CNN
    of McMahan et al. (2017).
    """

    source: str
    clients: int
    rows: int
    alpha: float
    pixels: int
    hidden: tuple[int, ...] = ()
    test: int = 0
    small: bool = False
    validation: float = 0.0
    """The share of the training rows that is kept for validation."""

    @property
    def title(self) -> str:
        """What the data and the network are, in a sentence."""
        side = round(self.pixels**0.5)
        network = f"a network with hidden layers of {' and '.join(map(str, self.hidden))}" if self.hidden else "a CNN"
        return (
            f"{NAMES.get(self.source, self.source)}, {side} x {side} pixels, {network}; {self.clients} clients of"
            f" {self.rows} training rows each, label ratios from Dirichlet({self.alpha:g})."
        )

    def load(self, seed: int) -> mo.FederatedData:
        """The data, dealt by this seed."""
        fed = mo.data.load(
            self.source,
            clients=self.clients,
            partition=mo.data.dirichlet(self.alpha),
            per_client=self.rows,
            test_per_client=self.test or None,
            validation=self.validation,
            seed=seed,
        )
        return average_pixels(fed) if self.small else fed

    def model(self, seed: int) -> nn.Module:
        """The network with its first weights."""
        if self.hidden:
            return mo.models.mlp(self.pixels, 10, hidden=self.hidden, seed=seed)
        return mo.models.cnn(classes=10, seed=seed)


def deal_digits(clients: int) -> Pictures:
    """Few handwritten digits and a small network, for scale ``ci``."""
    return Pictures(source="digits", clients=clients, rows=20, alpha=0.5, pixels=64, hidden=(16, 8))


def deal_clothes(paper: bool) -> Pictures:
    """Fashion-MNIST: whole, on 100 clients with a CNN at scale ``paper``, else averaged, on 20 clients."""
    if paper:
        return Pictures(source="fashion_mnist", clients=100, rows=480, test=100, alpha=0.3, pixels=784)
    sizes: dict[str, Any] = {"pixels": 196, "hidden": (64, 16), "small": True}
    return Pictures(source="fashion_mnist", clients=20, rows=100, test=100, alpha=0.3, **sizes)


def replace_pictures(fed: mo.FederatedData, change: Callable[[np.ndarray], np.ndarray]) -> mo.FederatedData:
    """The data with changed pictures."""
    return replace(fed, columns={**fed.columns, "x": change(fed.columns["x"])}, spec={})


def average_pixels(fed: mo.FederatedData) -> mo.FederatedData:
    """The data with the mean of every 2 x 2 pixels."""
    rows, channels, height, width = fed.columns["x"].shape
    blocks = (rows, channels, height // 2, 2, width // 2, 2)
    return replace_pictures(fed, lambda x: x.reshape(blocks).mean(axis=(3, 5)))


def choose_clients(fed: mo.FederatedData, *, least: int, count: int | None = None) -> mo.FederatedData:
    """The first ``count`` clients that have at least ``least`` rows to train and validate on."""
    import numpy as np

    positions = np.flatnonzero(fed.sizes("train") + fed.sizes("validation") >= least)[:count]
    if not len(positions):
        raise mo.MoietyError(f"`data` must have clients of at least {least} rows, got none. Use the whole data set.")
    spans = fed.bounds[positions]
    rows = np.concatenate([np.arange(span[0], span[3]) for span in spans])
    sizes = spans[:, 3] - spans[:, 0]
    bounds = spans - spans[:, :1] + (np.cumsum(sizes) - sizes)[:, None]
    columns = {name: column[rows] for name, column in fed.columns.items()}
    return replace(fed, columns=columns, bounds=bounds, ids=[str(fed.ids[int(i)]) for i in positions], spec={})
