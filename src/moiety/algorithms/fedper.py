"""FedPer: a shared base, personal last layers, both trained together.

Arivazhagan, Aggarwal, Singh, Choudhary. "Federated Learning with Personalization Layers", arXiv:1912.00818, 2019.

Symbols: W_B what is received; W_P_j ``state.personal``; eta, e and b the learning rate, epochs and batch size of
``shared``; gamma_j = n_j / sum n ``weighting="examples"``.

Equals FedSim (Pillutla et al. 2022) with one learning rate for both parts, ``fedsim(shared=lr, personal=lr)``, of
which this is another name: FedSim is the later paper and takes it up. By default the last layer is personal. Reduces to
FedAvg where nothing is personal.

Deviations from the paper:

1. Those of ``fedsim``. The first two matter here: clients send changes instead of values, and each epoch is shuffled
   anew.
2. In the paper all clients take part in every round. Here those of the cohort do (by default all), and the weights
   gamma_j sum to 1 over the cohort.
3. The split decides how many layers are personal, the paper's main question. By default it is the last layer;
   ``moiety.split.by_name`` can name more.
4. In the paper the learning rate eta_j may differ between clients. Here it is the same for all.
5. In the paper every client draws the first values of its personal layers at random. Here all clients, new ones too,
   begin with those of the given model.
"""

from __future__ import annotations

from dataclasses import replace

from moiety.algorithms.fedsim import fedsim
from moiety.local import Optimiser
from moiety.spec import recorded
from moiety.types import Algorithm, Schedule, ServerOptimiser


@recorded
def fedper(
    *,
    shared: float | Optimiser,
    personal: float | Optimiser | None = None,
    weighting: str = "examples",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """FedPer: personal last layers, trained together with the shared base (Arivazhagan et al. 2019).

    Args:
        shared: local work on both parts: eta, or ``moiety.sgd(eta, epochs=e, batch_size=b)``.
        personal: local work on the personal layers, where it is to differ as in ``fedsim``.
        weighting: gamma_j, by ``examples``, ``batches`` or ``uniform``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the learning rates across rounds; constant by default.
    """
    own = shared if personal is None else personal
    algorithm = fedsim(shared=shared, personal=own, weighting=weighting, server=server, schedule=schedule)
    return replace(algorithm, default_split="output_layer")
