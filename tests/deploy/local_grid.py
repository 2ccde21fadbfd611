"""A grid in this process: it calls the ClientApp directly, so that tests can lose, delay, repeat, change messages."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import moiety as mo
from moiety import deploy
from moiety.data import FederatedData
from moiety.deploy.mailbox import Mailbox
from moiety.deploy.server import serve

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


class LocalGrid(Grid):
    """Nodes by id, each with a ClientApp and a configuration; ``deliver`` may answer in a node's place."""

    def __init__(self, app: deploy.App, nodes: Mapping[int, Mapping[str, Any]]) -> None:
        self.app, self.nodes = app, {node: dict(config) for node, config in nodes.items()}
        self.answers: dict[str, Message] = {}
        self.waiting: dict[str, Message] = {}
        self.log: list[tuple[str, int, Message, Message | None]] = []
        self.deliver: Callable[[Message, Callable[[Message], Message]], Message | None] = lambda message, call: call(
            message
        )
        self.lazy = False
        self.numbers = itertools.count(1)

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("never used")

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def call(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if node not in self.nodes:
            return Message(Error(code=5, reason="node unavailable"), reply_to=message)
        context = Context(1, node, self.nodes[node], RecordDict(), {})
        return self.app.client(message, context)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        tickets = []
        for message in messages:
            ticket = f"m{next(self.numbers):06}"
            message.metadata.__dict__["_message_id"] = ticket
            self.waiting[ticket] = message
            tickets.append(ticket)
        return tickets

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = []
        for ticket in sorted(message_ids):  # a set comes in another order in each process
            if ticket in self.waiting:
                message = self.waiting.pop(ticket)
                answer = self.deliver(message, self.call)
                self.log.append((message.metadata.message_type, message.metadata.dst_node_id, message, answer))
                if answer is not None:
                    self.answers[ticket] = answer
            if ticket in self.answers:
                replies.append(self.answers.pop(ticket))
        return replies


def loader(data: FederatedData) -> Callable[[Mapping[str, Any]], Any]:
    """A function of a node's configuration that gives the rows of the client of its name."""

    def load(config: Mapping[str, Any]) -> FederatedData:
        at = data.index(str(config["name"]))
        start, stop = int(data.bounds[at, 0]), int(data.bounds[at, 3])
        columns = {name: np.array(column[start:stop]) for name, column in data.columns.items()}
        return FederatedData(columns, data.bounds[at : at + 1] - start, [str(data.ids[at])], data.classes)

    return load


def nodes_of(data: FederatedData, folder: Path) -> dict[int, dict[str, Any]]:
    """A node for each client, in an order and with ids that say nothing about names."""
    names = [str(name) for name in data.ids]
    order = np.random.default_rng(7).permutation(len(names))
    return {
        2**63 + 17 * int(k): {"name": names[int(k)], "folder": str(folder / "devices" / names[int(k)])} for k in order
    }


def make_app(model: Any, data: FederatedData, algorithm: Any, folder: Path, **options: Any) -> deploy.App:
    """An app whose devices are the clients of ``data``."""
    options = {
        "clients": len(data),
        "share_metrics": "per_client",
        "out": folder / "server",
        "deadline": 5.0,
        **options,
    }
    return deploy.app(model, algorithm, data=loader(data), **options)


def serve_here(app: deploy.App, grid: Grid, **changes: Any) -> mo.Run:
    """Let the server run to its end on a grid."""
    from dataclasses import replace

    return serve(replace(app.plan, **changes), Mailbox(grid, app.plan.largest_message))


def federation(sizes: tuple[int, ...] = (4, 9, 12, 17), seed: int = 0) -> FederatedData:
    """Clients of uneven sizes, each with a rule of its own for three classes."""
    draw = np.random.default_rng(seed)
    clients = {}
    for i, size in enumerate(sizes):
        x = draw.normal(size=(size, 4)).astype(np.float32)
        clients[f"c{i}"] = {"x": x, "y": (x @ draw.normal(size=(4, 3))).argmax(1)}
    return mo.data.from_clients(clients, test=0.25)


def small_model() -> Any:
    return mo.models.mlp(4, 3, hidden=(5,), seed=3)
