"""LG-FedAvg: a representation of its own on every client, a shared model on top of it.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency. "Think Locally, Act Globally: Federated Learning with
Local and Global Representations", arXiv:2001.01523, 2020, Algorithm 1.

Symbols: theta^g what is received; theta_m^l ``state.personal``; eta, E and B the learning rate, epochs and batch size
of ``shared``; N_m / N ``weighting="examples"``.

Equals FedSim (Pillutla et al. 2022) with one learning rate for both parts, ``fedsim(shared=lr, personal=lr)``, of
which this is another name. What differs from FedPer is the split, which is the other way round: by default the last
layer alone is shared. Reduces to FedAvg where nothing is personal, to local training where everything is.

Deviations from the paper:

1. Those of ``fedsim``. The first two matter here: clients send changes instead of values, and each epoch is shuffled
   anew.
2. Representations are trained with the task's loss alone. For the paper's other objectives (self-supervision, an
   adversary for fairness), write a task of your own.
3. For data of an unknown device the paper averages the predictions of all local models, which must be sent for that.
   Here a new client trains its own representation, from the model's first values.
4. The authors' experiments begin with a model trained by FedAvg: use ``moiety.pipeline`` or ``fit(start=...)``.
5. In the paper, the number of personal layers depends on the data. Here by default all but the last layer are personal;
   ``moiety.split.by_name`` can share more.
"""

from __future__ import annotations

from dataclasses import replace

from moiety.algorithms.fedsim import fedsim
from moiety.local import Optimiser
from moiety.spec import recorded
from moiety.types import Algorithm, Schedule, ServerOptimiser


@recorded
def lg_fedavg(
    *,
    shared: float | Optimiser,
    personal: float | Optimiser | None = None,
    weighting: str = "examples",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """LG-FedAvg: personal lower layers, trained together with the shared last layer (Liang et al. 2020).

    Args:
        shared: local work on both parts: eta, or ``moiety.sgd(eta, epochs=E, batch_size=B)``.
        personal: local work on the representation, where it is to differ as in ``fedsim``.
        weighting: N_m / N, by ``examples``, ``batches`` or ``uniform``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the learning rates across rounds; constant by default.
    """
    own = shared if personal is None else personal
    algorithm = fedsim(shared=shared, personal=own, weighting=weighting, server=server, schedule=schedule)
    return replace(algorithm, default_split="representation")
