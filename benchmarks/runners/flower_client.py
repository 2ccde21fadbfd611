"""The client's side of Flower, in a module of its own so that Ray's workers import it and keep their data."""

from __future__ import annotations

from functools import cache

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn import functional

from benchmarks.runners.common import tensors
from benchmarks.work import BATCH, Arrays, load, module

app = ClientApp()


@cache
def at_hand(work: str) -> tuple[Arrays, nn.Module, torch.Tensor, torch.Tensor]:
    """A worker's data and module, made once for all the clients it plays."""
    torch.set_num_threads(1)
    arrays = load(work)
    return arrays, module(arrays.work), *tensors(arrays)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Which of the clients this node is."""
    client = int(context.node_config["partition-id"])
    return Message(RecordDict({"config": ConfigRecord({"client": client})}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One client's turn: one epoch of SGD from the server's weights."""
    arrays, model, x, y = at_hand(message.content["config"]["work"])
    rows = arrays.rows(int(context.node_config["partition-id"]))
    x, y = x[rows], y[rows]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=arrays.work.lr)
    for at in range(0, len(x), BATCH):
        optimiser.zero_grad()
        functional.cross_entropy(model(x[at : at + BATCH]), y[at : at + BATCH]).backward()
        optimiser.step()
    found = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(RecordDict(found), reply_to=message)
