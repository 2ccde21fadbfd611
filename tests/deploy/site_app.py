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
from flwr.app import Message
from flwr.supernode.runtime import run_clientapp

import moiety as mo
from moiety import deploy
from moiety.data import FederatedData
from moiety.deploy.device import Device
from moiety.deploy.journal import Journal
from moiety.deploy.letters import Letter
from moiety.transport import pack, unpack

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


def is_wanted(what: str) -> bool:
    """Whether the file ``WHAT.want`` is in the folder of the test for this node."""
    folder = os.environ.get("TEST_PAUSES", "")
    return bool(folder) and Path(folder, f"{what}.want").exists()


def pause_at(phase: str) -> None:
    """Stay here as long as the test wants it; ``PHASE.here`` says so."""
    if is_wanted(phase):
        Path(os.environ["TEST_PAUSES"], f"{phase}.here").touch()
        while is_wanted(phase):
            time.sleep(0.02)


def is_other_answer(value: Any) -> bool:
    """Whether this is a message, and no answer to one of training."""
    return isinstance(value, Message) and value.metadata.message_type != "train"


def hold(owner: Any, name: str, before: str, after: str = "") -> None:
    """Let a test hold a device before and after a function; once, for a worker loads one app after another."""
    plain = getattr(owner, name)
    if getattr(plain, "held", False):
        return

    def wrapper(*args: Any, **options: Any) -> Any:
        if not any(is_other_answer(each) for each in args):
            pause_at(before)
        result = plain(*args, **options)
        pause_at(after)
        return result

    wrapper.held = True  # type: ignore[attr-defined]
    setattr(owner, name, wrapper)


LARGE = 10**9 if os.environ.get("MOIETY_NIGHTLY") else 300_000_000
"""Bytes of the large message of a node that lies."""
LIES: tuple[Callable[[Letter, Letter], Letter], ...] = (
    lambda honest, first: Letter(honest.head, b"rubbish" * 99),
    lambda honest, first: Letter({**honest.head, "round": honest.head["round"] - 1}, honest.body),
    lambda honest, first: first,
    lambda honest, first: Letter(honest.head, pack({name: p * torch.nan for name, p in unpack(honest.body).items()})),
    lambda honest, first: Letter(honest.head, os.urandom(10**6) * (LARGE // 10**6)),
)
"""What a node that lies says in its turns, one after another, from what it would have said now and at first."""


def let_lie() -> None:
    """Let the device say something else in its first turns where the test wants it; then it is honest."""
    answer = Device.answer
    if getattr(answer, "lies", False):
        return
    turns: list[Letter] = []

    def lying(self: Device, kind: str, letter: Letter) -> Letter:
        honest = answer(self, kind, letter)
        if kind != "train" or not is_wanted("lie"):
            return honest
        turns.append(honest)
        return LIES[len(turns) - 1](honest, turns[0]) if len(turns) <= len(LIES) else honest

    lying.lies = True  # type: ignore[attr-defined]
    Device.answer = lying  # type: ignore[method-assign]


if os.environ.get("TEST_PAUSES"):
    hold(Journal, "write_turn", "before-storing", "after-storing")
    hold(Journal, "join", "joining")
    hold(Device, "evaluate", "evaluating")
    hold(Device, "end", "ending")
    hold(run_clientapp, "push_message", "pushing")
    let_lie()
app = make_app(**CHOICE)
client = app.client
server = app.server
