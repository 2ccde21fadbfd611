"""Local training: every client alone, nothing sent. The baseline that says whether federation pays.

The "Local" rows of Huang et al. (FedSpa) and the lambda = 0 case of the l2-personalised problem, equation (2) of
Pillutla et al. 2022: minimise F_i(w_i) for each client i by SGD, from one common start.

Symbols: w_i ``state.personal``; gamma ``lr``.

Reduces to plain SGD on each client's data: k rounds of E epochs are k E epochs.

Deviations: none. A round trains the clients of its cohort only, so that work can be compared round by round.
"""

from __future__ import annotations

from typing import NamedTuple

from moiety.local import SgdOptions, phase, positive_lr, rates, sgd
from moiety.local.schedules import chosen as chosen_schedule
from moiety.server import weighted_mean
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Schedule, Work


class Server(NamedTuple):
    """Nothing: a server that is sent nothing knows nothing."""


class Client(NamedTuple):
    """w_i, the client's whole model."""

    personal: Params


@recorded
def local_only(
    *,
    lr: float,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int = 32,
    shuffle: bool = True,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    clip: float | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """Local training only: everything personal, nothing sent.

    Args:
        lr: learning rate.
        epochs: passes over the client's data each time it is asked; 1 where neither this nor the next is given.
        steps: or a number of steps.
        batch_size: examples per step; a client with fewer uses what it has.
        shuffle: False walks through the data in its order.
        weight_decay: l2 penalty.
        momentum: from 0 in each round.
        clip: largest gradient norm.
        schedule: of the learning rate across rounds; constant by default.

    Returns:
        The algorithm, for ``moiety.fit``.
    """
    positive_lr("lr", lr)
    options = SgdOptions(momentum, weight_decay, clip)

    def client_update(work: Work, received: Params, state: Client) -> tuple[ClientUpdate, Client]:
        model = work.compose({}, state.personal)
        # w_i <- w_i - gamma grad F_i(w_i)
        model, loss = sgd(work, model, work.batches("local"), lr=rates(work, work.personal, lr), options=options)
        return ClientUpdate({}, work.examples, {"loss": loss}), Client(work.parts(model)[1])

    return Algorithm(
        name="local_only",
        phases={"local": phase("", epochs, steps, batch_size, shuffle)},
        init_server=lambda shared, statistics: Server(),
        init_client=lambda shared, personal: Client(personal),
        broadcast=lambda server: {},
        client_update=client_update,
        aggregator=weighted_mean,
        server_update=lambda server, change: server,
        personal_model=lambda received, state: ({}, state.personal),
        adapt=lambda work, received, state: client_update(work, received, state)[1],
        schedule=chosen_schedule(schedule),
        default_split="everything",
        needs="everything",
    )
