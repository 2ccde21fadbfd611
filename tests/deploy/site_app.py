"""The app that tests run between real processes. Tests read its data and models from here too.

``harness.write_app`` copies this file, with another ``CHOICE``, into a Flower app.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import moiety as mo
from moiety import deploy
from moiety.data import FederatedData
from moiety.deploy.journal import Journal

CHOICE: dict[str, Any] = {"algorithm": "fedalt"}
SIZES = (9, 12, 17, 24)
FEATURES, CLASSES = 12, 3


def smuggler() -> Any:
    """FedAlt that hides numbers of the personal part in a shared tensor: no guard of names and shapes sees that."""
    honest = ALGORITHMS["fedalt"]()

    def client_update(work: Any, received: Any, state: Any) -> Any:
        update, after = honest.client_update(work, received, state)
        secret = torch.cat([p.reshape(-1) for p in after.personal.values()])
        name, target = next(iter(update.upload.items()))
        count = min(len(secret), target.numel())
        spoilt = torch.cat([secret[:count], target.reshape(-1)[count:]]).reshape(target.shape)
        return update._replace(upload={**update.upload, name: spoilt}), after

    return replace(honest, client_update=client_update)


ALGORITHMS: dict[str, Callable[[], Any]] = {
    "smuggler": smuggler,
    "fedavg": lambda: mo.fedavg(shared=mo.sgd(0.1, epochs=2, batch_size=4)),
    "fedalt": lambda: mo.fedalt(shared=mo.sgd(0.1, batch_size=4), personal=mo.sgd(0.05, batch_size=4)),
    "scaffold": lambda: mo.scaffold(shared=mo.sgd(0.1, steps=3, batch_size=4)),
    "fedspa": lambda: mo.fedspa(shared=mo.sgd(0.1, steps=3, batch_size=4), density=0.5, masks="different"),
    "fedpop": lambda: mo.fedpop(shared=0.01),
    "ffgg": lambda: mo.ffgg(shared=0.1, personal=mo.solver.lbfgs(steps=3)),
}


def make_data() -> FederatedData:
    """Clients of uneven sizes, each with a rule of its own; features are random float32 without a zero."""
    draw = np.random.default_rng(0)
    clients = {}
    for i, size in enumerate(SIZES):
        x = draw.normal(size=(size, FEATURES)).astype(np.float32)
        assert (x != 0).all()
        clients[f"site-{i + 1}"] = {"x": x, "y": (x @ draw.normal(size=(FEATURES, CLASSES))).argmax(1)}
    return mo.data.from_clients(clients, test=0.25)


def load_site(config: Mapping[str, Any]) -> FederatedData:
    """The rows of one client; a node's configuration says which."""
    data = make_data()
    at = data.index(str(config["name"]))
    start, stop = int(data.bounds[at, 0]), int(data.bounds[at, 3])
    columns = {name: np.array(column[start:stop]) for name, column in data.columns.items()}
    return FederatedData(columns, data.bounds[at : at + 1] - start, [str(data.ids[at])], data.classes)


def make_model() -> Any:
    """A perceptron with an output layer that stays at home."""
    return mo.models.mlp(FEATURES, CLASSES, hidden=(16,), seed=3)


def make_parts(name: str) -> tuple[Any, Any, Any]:
    """Model, algorithm and split."""
    model, algorithm = make_model(), ALGORITHMS[name]()
    return model, algorithm, None if algorithm.default_split else mo.split.output_layer(model)


def make_app(algorithm: str, active: int = 0, **options: Any) -> deploy.App:
    """The app for an algorithm; asynchronous, with so many active devices, where ``active`` is above 0."""
    model, method, split = make_parts(algorithm)
    common = {"rounds": 4, "seed": 5, "clients": len(SIZES), "deadline": 600.0}
    if active:
        common |= {"settings": mo.Settings(clock=mo.clock.asynchronous(active=active))}
    else:
        common |= {"cohort": 3, "settings": mo.Settings(evaluate_every=1)}
    return deploy.app(model, method, split=split, data=load_site, **{**common, **options})


def pause_at(phase: str) -> None:
    """Stay here as long as the file ``PHASE.want`` is in the folder of the test; ``PHASE.here`` says so."""
    folder = os.environ.get("TEST_PAUSES", "")
    want, here = Path(folder, f"{phase}.want"), Path(folder, f"{phase}.here")
    if folder and want.exists():
        here.touch()
        while want.exists():
            time.sleep(0.02)


def slow_down() -> None:
    """Let a test hold a device before and after it writes a turn."""
    write = Journal.write_turn

    def write_turn(self: Journal, *args: Any) -> None:
        pause_at("before-storing")
        write(self, *args)
        pause_at("after-storing")

    Journal.write_turn = write_turn  # type: ignore[method-assign]


if os.environ.get("TEST_PAUSES"):
    slow_down()
app = make_app(**CHOICE)
client = app.client
server = app.server
