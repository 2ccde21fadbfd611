"""NAME: one line on what it is.

Authors. "Title", venue year. Algorithm number.

Symbols: u ``received``; v_i ``state.personal``; gamma ``lr``.

Reduces to ... where ...

Deviations from the paper: none.

This file is the smallest algorithm that runs: each client makes one step of SGD in the shared parameters, on one
minibatch, and sends the change; the server adds their mean. Copy it, rename it, and follow CONTRIBUTING.md.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from moiety.local import SgdOptions, difference, phase, positive_lr, rates, sgd
from moiety.local.schedules import constant
from moiety.server import averaging, client_weight, weighted_mean
from moiety.server import sgd as server_sgd
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Work


class Client(NamedTuple):
    """What a client keeps from round to round: tensors in dicts, tuples or NamedTuples."""

    personal: Params


@recorded
def skeleton(*, lr: float, batch_size: int = 32) -> Algorithm:
    """One line for ``moiety list algorithms``.

    Args:
        lr: learning rate of the shared parameters.
        batch_size: examples per step.
    """
    positive_lr("lr", lr)
    optimiser = server_sgd()

    def client_update(work: Work, received: Params, state: Client) -> tuple[ClientUpdate, Client]:
        model = work.compose(received, state.personal)
        # Line n: u <- u - gamma grad_u F_i(u, v_i)
        lrs = rates(work, work.shared, lr)
        model, loss = sgd(work, model, work.batches("local"), lr=lrs, options=SgdOptions(0.0, 0.0, None))
        u_i, v_i = work.parts(model)
        update = ClientUpdate(difference(u_i, received), client_weight(work, "examples", batch_size), {"loss": loss})
        return update, Client(v_i)

    return Algorithm(
        name="skeleton",
        # In order: a prefix of the names in messages ("personal_" for personal_epochs), epochs, steps, rows of a batch,
        # whether rows are shuffled. This is one step; phase("", 5, None, batch_size, True) is five epochs.
        phases={"local": phase("", None, 1, batch_size, True)},
        init_server=partial(averaging.init_server, optimiser),
        init_client=lambda shared, personal: Client(personal),
        broadcast=averaging.broadcast,
        client_update=client_update,
        aggregator=weighted_mean,
        server_update=partial(averaging.server_update, optimiser),
        personal_model=lambda received, state: (received, state.personal),
        adapt=lambda work, received, state: client_update(work, received, state)[1],
        schedule=constant(),
    )
