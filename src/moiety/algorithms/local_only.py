"""Local training: every client alone, nothing sent. The baseline that says whether federation pays.

The "Local" rows of Huang et al. (FedSpa) and the lambda = 0 case of the l2-personalised problem, equation (2) of
Pillutla et al. 2022: minimise F_i(w_i) for each client i by SGD, from one common start.

Symbols: w_i ``state.personal``; gamma the learning rate of ``personal``.

Reduces to plain SGD on each client's data: k rounds of E epochs are k E epochs.

Deviations: none. A round trains only the clients of its cohort, so that you can compare methods at equal work.
"""

from __future__ import annotations

from dataclasses import replace

from moiety.algorithms.finetune import finetune
from moiety.local import Optimiser
from moiety.spec import recorded
from moiety.types import Algorithm, Schedule


@recorded
def local_only(*, personal: float | Optimiser, schedule: Schedule | None = None) -> Algorithm:
    """Local training only: everything personal, nothing sent.

    Args:
        personal: local work: the learning rate, or ``moiety.sgd(...)``.
        schedule: of the learning rate across rounds; constant by default.
    """
    # w_i <- w_i - gamma grad F_i(w_i)
    return replace(finetune(personal=personal, schedule=schedule), default_split="everything")
