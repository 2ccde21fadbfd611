"""Flower: ``FedAvg`` in its simulation engine on Ray, one worker of one CPU and one thread for each core.

Nodes are asked once which client they are, so that the strategy can name the cohort of the list. No evaluation, no
logging, no dashboard, no telemetry. Where a round is short, its time is that of Flower's own pauses: twice a round a
tenth of a second passes between looks at a mailbox.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from importlib.metadata import version

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # both ask while they are imported

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.runners import flower_client
from benchmarks.runners.common import Clock, arguments, mean_loss, report, tensors, warm_up
from benchmarks.work import Arrays, module


class Listed(FedAvg):
    """FedAvg with the cohorts of the list."""

    def __init__(self, arrays: Arrays, node_of: dict[int, int]) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.cohorts, self.node_of, self.clock = arrays.cohorts.tolist(), node_of, Clock()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to this round's cohort."""
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        nodes = [self.node_of[client] for client in self.cohorts[server_round - 1]]
        return self._construct_messages(record, nodes, MessageType.TRAIN)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]):
        """The mean by examples; the round ends with it."""
        found = super().aggregate_train(server_round, replies)
        self.clock.tick()
        return found


def nodes(grid: Grid, clients: int) -> dict[int, int]:
    """The node of every client, by asking all of them."""
    while len(ids := list(grid.get_node_ids())) < clients:
        time.sleep(0.1)
    replies = grid.send_and_receive([Message(RecordDict(), node, MessageType.QUERY) for node in ids])
    return {int(reply.content["config"]["client"]): reply.metadata.src_node_id for reply in replies}


def main() -> None:
    """Run one work."""
    options, arrays = arguments()
    work = arrays.work
    logging.getLogger("flwr").setLevel(logging.ERROR)
    server, found = ServerApp(), {}

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        strategy = Listed(arrays, nodes(grid, work.clients))
        first = ArrayRecord(module(work, arrays.weights).state_dict())
        rounds = warm_up(work) + options.rounds
        result = strategy.start(grid, first, rounds, train_config=ConfigRecord({"work": options.work}))
        found["seconds"] = strategy.clock.seconds(work, options.rounds)
        found["weights"] = result.arrays.to_torch_state_dict()

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": os.cpu_count()}}
    run_simulation(server, flower_client.app, num_supernodes=work.clients, backend_config=resources)
    model = module(work)
    model.load_state_dict(found["weights"])
    report(found["seconds"], mean_loss(model, *tensors(arrays)), version=version("flwr"))


if __name__ == "__main__":
    main()
