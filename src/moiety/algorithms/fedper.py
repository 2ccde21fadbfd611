"""FedPer: a shared base, personal last layers, both trained together.

Arivazhagan, Aggarwal, Singh, Choudhary. "Federated Learning with Personalization Layers", arXiv:1912.00818, 2019.

Symbols: W_B ``received``; W_P_j ``state.personal``; eta ``lr``; e ``epochs``; b ``batch_size``; gamma_j = n_j / sum n
``weighting="examples"``.

Equals FedSim (Pillutla et al. 2022) with one learning rate for both parts, ``fedsim(shared_lr=lr, personal_lr=lr)``, of
which this is another name: FedSim is the later paper and takes it up. By default the last layer is personal. Reduces to
FedAvg where nothing is personal.

Deviations from the paper:

1. Those of ``fedsim``, of which numbers 1 and 2 matter here: differences are sent instead of values, and each epoch is
   shuffled anew.
2. All clients take part in every round of the paper. Here those of the cohort do, which is all by default; the
   weights gamma_j are over the cohort.
3. The number of personal layers, the paper's main question, is the split's: the last layer by default, more by
   ``moiety.split.by_name``.
4. The learning rate eta_j may differ between clients in the paper; here it is one for all.
5. Every client draws the first values of its personal layers at random in the paper. Here all begin with those of the
   given model, as does a client never seen.
"""

from __future__ import annotations

from dataclasses import replace

from moiety.algorithms.fedsim import fedsim
from moiety.local import positive_lr
from moiety.spec import recorded
from moiety.types import Algorithm, Schedule, ServerOptimiser


@recorded
def fedper(
    *,
    lr: float,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int = 32,
    shuffle: bool = True,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    clip: float | None = None,
    weighting: str = "examples",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """FedPer: personal last layers, trained together with the shared base (Arivazhagan et al. 2019).

    Args:
        lr: learning rate on clients, eta.
        epochs: passes over the client's data, e; 1 where neither this nor the next is given.
        steps: or a number of steps.
        batch_size: examples per step, b; a client with fewer uses what it has.
        shuffle: False walks through the data in its order.
        weight_decay: l2 penalty.
        momentum: of the client's SGD, from 0 in each round.
        clip: largest norm of the joint gradient.
        weighting: gamma_j, by ``examples``, ``batches`` or ``uniform``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the learning rate across rounds; constant by default.

    Returns:
        The algorithm, for ``moiety.fit``.
    """
    positive_lr("lr", lr)
    same = fedsim(
        shared_lr=lr,
        personal_lr=lr,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        shuffle=shuffle,
        weight_decay=weight_decay,
        momentum=momentum,
        clip=clip,
        weighting=weighting,
        server=server,
        schedule=schedule,
    )
    return replace(same, name="fedper", default_split="output_layer")
