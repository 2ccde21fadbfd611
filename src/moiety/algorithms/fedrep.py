"""FedRep: many steps on the personal head, then few on the shared representation.

Collins, Hassani, Mokhtari, Shakkottai. "Exploiting Shared Representations for Personalized Federated Learning", ICML
2021, Algorithm 1.

Symbols: phi what is received; h_i ``state.personal``; alpha the learning rate of both; tau the length of ``personal``,
the updates of phi that of ``shared``; rn the cohort.

Equals FedAlt (Pillutla et al. 2022) with one learning rate, ten epochs on the head and the plain mean,
``fedalt(shared=lr, personal=sgd(lr, epochs=10), weighting="uniform")``, of which this is another name: FedAlt is the
later paper and takes it up. By default the last layer is personal. Reduces to FedAvg where nothing is personal.

Deviations from the paper:

1. Those of ``fedalt``. The first two matter here: clients send changes instead of values, and both loops use freshly
   shuffled epochs.
2. Algorithm 1 makes one update of phi. The paper's experiments make one or five epochs of updates, after ten epochs on
   the head. The default is ten and one; ``shared=sgd(lr, steps=1)`` is the algorithm as printed.
3. In the linear case of the paper's theory (Algorithm 2), clients solve for the head, and the server makes the
   representation orthonormal. ``local_ffgg`` with ``moiety.solver.exact()`` does the first. The second is not offered:
   it changes only the basis of the representation, not the space that it spans.
4. A new client trains a head with the representation fixed, as in the paper. The paper does not say where such a head
   begins; here it has the model's first values.
"""

from __future__ import annotations

from dataclasses import replace

from moiety.algorithms.fedalt import fedalt
from moiety.local import Optimiser, optimiser_work
from moiety.spec import recorded
from moiety.types import Algorithm, Schedule, ServerOptimiser

HEAD_EPOCHS = 10
"""How long the paper's experiments train the head in a round."""


@recorded
def fedrep(
    *,
    shared: float | Optimiser,
    personal: float | Optimiser | None = None,
    weighting: str = "uniform",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """FedRep: the personal head first and long, then the shared representation (Collins et al. 2021).

    Args:
        shared: local work on the representation: alpha, or ``moiety.sgd(alpha, ...)``.
        personal: local work on the head, ``moiety.sgd(alpha, steps=tau)``; by default as ``shared``, for ten epochs.
        weighting: of the clients in the mean, by ``uniform``, ``examples`` or ``batches``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the learning rates across rounds; constant by default.
    """
    base = optimiser_work("shared", shared)
    head = replace(base, epochs=HEAD_EPOCHS, steps=None) if personal is None else personal
    head = optimiser_work("personal", head, epochs=HEAD_EPOCHS, without=())
    algorithm = fedalt(shared=base, personal=head, weighting=weighting, server=server, schedule=schedule)
    return replace(algorithm, default_split="output_layer")
