"""Apple's pfl: ``FederatedAveraging`` in a ``SimulatedBackend``, users drawn from a list, no evaluation, no logging.

Under ``torchrun`` its users are shared out among processes, as pfl does by itself; one thread each is its best.
Users' data are tensors kept for the whole run, so that pfl's own cache of batches serves.
"""

from __future__ import annotations

import os
from importlib.metadata import version

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional

from benchmarks.runners.common import Clock, arguments, mean_loss, report, tensors, warm_up
from benchmarks.work import BATCH, module


class Ticks(TrainingProcessCallback):
    """Looks at the clock after every round."""

    def __init__(self) -> None:
        self.clock = Clock()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """A round has ended."""
        self.clock.tick()
        return False, Metrics()


def main() -> None:
    """Run one work."""
    options, arrays = arguments()
    work = arrays.work
    total = warm_up(work) + options.rounds
    x, y = tensors(arrays)
    net = module(work, arrays.weights)
    # What pfl asks of a module; `metrics` is called once, in the first round.
    net.loss = lambda x, y: functional.cross_entropy(net(x), y)
    net.metrics = lambda x, y: {"loss": Weighted(net.loss(x, y).item(), len(y))}
    users = {
        i: PyTorchTensorDataset((x[arrays.rows(i)], y[arrays.rows(i)]), user_id=str(i)) for i in range(work.clients)
    }
    order = iter(arrays.cohorts.reshape(-1).tolist())
    data = FederatedDataset(users.__getitem__, lambda: next(order))
    ticks = Ticks()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=total,
            evaluation_frequency=total,
            train_cohort_size=work.cohort,
            val_cohort_size=None,
        ),
        SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=BATCH),
        callbacks=[ticks],
        send_metrics_to_platform=False,
    )
    if os.environ.get("RANK", "0") == "0":
        report(ticks.clock.seconds(work, options.rounds), mean_loss(net, x, y), version=version("pfl"))


if __name__ == "__main__":
    main()
