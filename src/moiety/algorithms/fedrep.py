"""FedRep: many steps on the personal head, then few on the shared representation.

Collins, Hassani, Mokhtari, Shakkottai. "Exploiting Shared Representations for Personalized Federated Learning", ICML
2021, Algorithm 1.

Symbols: phi ``received``; h_i ``state.personal``; alpha ``lr``; tau ``personal_steps`` or ``personal_epochs``; the
updates of phi ``shared_steps`` or ``shared_epochs``; rn the cohort.

Equals FedAlt (Pillutla et al. 2022) with one learning rate, ten epochs on the head and the plain mean,
``fedalt(shared_lr=lr, personal_lr=lr, personal_epochs=10, weighting="uniform")``, of which this is another name: FedAlt
is the later paper and takes it up. By default the last layer is personal. Reduces to FedAvg where nothing is personal.

Deviations from the paper:

1. Those of ``fedalt``, of which numbers 1 and 2 matter here: differences are sent instead of values, and both loops
   walk through freshly shuffled epochs.
2. Algorithm 1 makes one update of phi; the paper's experiments make one or five epochs after ten on the head. The
   default is ten and one; ``shared_steps=1`` is the algorithm as printed.
3. The linear case of the paper's theory (Algorithm 2) solves for the head and makes the representation orthonormal at
   the server. The first is ``local_ffgg`` with ``moiety.solver.exact()``; the second is not offered: it changes the
   basis of the representation, not the space.
4. A client never seen trains a head from the first one, with the representation fixed, as the paper does for new
   clients; the paper does not say where such a head begins.
"""

from __future__ import annotations

from dataclasses import replace

from moiety.algorithms.fedalt import fedalt
from moiety.local import positive_lr
from moiety.spec import recorded
from moiety.types import Algorithm, Schedule, ServerOptimiser

HEAD_EPOCHS = 10
"""How long the paper's experiments train the head in a round."""


@recorded
def fedrep(
    *,
    lr: float,
    personal_epochs: int | None = None,
    personal_steps: int | None = None,
    shared_epochs: int | None = None,
    shared_steps: int | None = None,
    batch_size: int = 32,
    shuffle: bool = True,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    clip: float | None = None,
    weighting: str = "uniform",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """FedRep: the personal head first and long, then the shared representation (Collins et al. 2021).

    Args:
        lr: learning rate on clients, alpha.
        personal_epochs: passes over the client's data for the head; 10 where neither this nor the next is given.
        personal_steps: or a number of steps, tau.
        shared_epochs: passes for the representation; 1 where neither this nor the next is given.
        shared_steps: or a number of steps.
        batch_size: examples per step; a client with fewer uses what it has.
        shuffle: False walks through the data in its order.
        weight_decay: l2 penalty on the block being trained.
        momentum: of the client's SGD, from 0 in each phase.
        clip: largest gradient norm of the block being trained.
        weighting: of the clients in the mean, by ``uniform``, ``examples`` or ``batches``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the learning rate across rounds; constant by default.

    Returns:
        The algorithm, for ``moiety.fit``.
    """
    positive_lr("lr", lr)
    epochs = HEAD_EPOCHS if personal_epochs is None and personal_steps is None else personal_epochs
    same = fedalt(
        shared_lr=lr,
        personal_lr=lr,
        shared_epochs=shared_epochs,
        shared_steps=shared_steps,
        personal_epochs=epochs,
        personal_steps=personal_steps,
        batch_size=batch_size,
        shuffle=shuffle,
        weight_decay=weight_decay,
        momentum=momentum,
        clip=clip,
        weighting=weighting,
        server=server,
        schedule=schedule,
    )
    return replace(same, name="fedrep", default_split="output_layer")
