"""fluke: ``FedAVG``, and ``FedRep`` for heads and a body; clients from a list, no evaluation.

fluke imports torchvision, of which it needs nothing here. Where torchvision's compiled part does not load, two
operators that it describes at import do not exist; their schemas are therefore defined first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version

import numpy as np
import torch
from torch import nn

_operators = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    _schema = f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    with suppress(RuntimeError):
        _operators.define(_schema)

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.algorithms.fedrep import FedRep, FedRepClient, FedRepServer  # noqa: E402
from fluke.client import Client  # noqa: E402
from fluke.config import OptimizerConfigurator  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from fluke.nets import EncoderHeadNet  # noqa: E402
from fluke.server import Server  # noqa: E402
from fluke.utils import FederationObserver  # noqa: E402

from benchmarks.runners.common import Clock, arguments, mean_loss, report, tensors, warm_up  # noqa: E402
from benchmarks.work import BATCH, Arrays, module  # noqa: E402


class Cohorts:
    """A server that asks the clients of the list."""

    cohorts: np.ndarray
    asked = 0

    def get_eligible_clients(self, eligible_perc: float) -> Sequence[Client]:
        """The cohort of this round."""
        self.asked += 1
        return [self.clients[i] for i in self.cohorts[self.asked - 1]]


class AverageServer(Cohorts, Server):
    """FedAVG's."""


class RepServer(Cohorts, FedRepServer):
    """FedRep's."""


class Ticks(FederationObserver):
    """Looks at the clock after every round."""

    def __init__(self) -> None:
        self.clock = Clock()

    def end_round(self, round: int) -> None:
        """A round has ended."""
        self.clock.tick()


def federation(arrays: Arrays, net: nn.Module) -> FedAVG | FedRep:
    """Clients and server around the loaders of all clients."""
    work = arrays.work
    x, y = tensors(arrays)
    optimiser = OptimizerConfigurator(DDict(name="SGD", lr=work.lr), DDict(name="StepLR", step_size=1, gamma=1))
    loaders = [
        FastDataLoader(x[rows], y[rows], num_labels=work.classes, batch_size=BATCH, shuffle=False)
        for rows in map(arrays.rows, range(work.clients))
    ]
    common = {"test_set": None, "optimizer_cfg": optimiser, "loss_fn": nn.CrossEntropyLoss()}
    if work.kind == "average":
        clients = [Client(i, train_set=d, local_epochs=1, **common) for i, d in enumerate(loaders)]
        server, algorithm = AverageServer(net, None, clients, weighted=True), FedAVG
    else:
        clients = [
            FedRepClient(
                i,
                model=EncoderHeadNet(*halves(module(work, arrays.weights))),
                train_set=d,
                local_epochs=work.head_epochs,
                tau=work.body_epochs,
                **common,
            )
            for i, d in enumerate(loaders)
        ]
        server, algorithm = RepServer(halves(net)[0], None, clients, weighted=True), FedRep
    server.cohorts = arrays.cohorts
    return algorithm(work.clients, None, {}, clients=clients, server=server)


def halves(net: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Body and head."""
    return net[:-1], net.head


def main() -> None:
    """Run one work."""
    options, arrays = arguments()
    work, (x, y) = arrays.work, tensors(arrays)
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    net = module(work, arrays.weights)
    run, ticks = federation(arrays, net), Ticks()
    run.set_callbacks(ticks)
    run.run(warm_up(work) + options.rounds, work.cohort / work.clients)
    personal = None
    if work.kind == "alternate":
        body = run.server.model.state_dict()
        losses = []
        for client in run.clients:
            client.model.get_global().load_state_dict(body)
            rows = arrays.rows(client.index)
            losses.append(mean_loss(client.model, x[rows], y[rows]))
        personal = float(np.mean(losses))
    else:
        net = run.server.model
    report(ticks.clock.seconds(work, options.rounds), mean_loss(net, x, y), personal, version=version("fluke-fl"))


if __name__ == "__main__":
    main()
