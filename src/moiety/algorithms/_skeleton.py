"""NAME: one line on what it is.

Authors. "Title", venue year. Algorithm number.

Symbols: u what is received; v_i ``state.personal``; gamma ``shared``.

Reduces to ... where ...

Deviations from the paper: none.

This file is the smallest algorithm that runs: each client makes one step of SGD in the shared parameters, on one
minibatch, and sends the change; the server adds their mean. Copy it, rename it, and follow CONTRIBUTING.md.
"""

from __future__ import annotations

from moiety.local import Optimiser, Personal, difference, optimiser_work, train
from moiety.server.averaging import assemble, client_weights
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Work


@recorded
def skeleton(*, shared: float | Optimiser) -> Algorithm:
    """One line for ``moiety list algorithms``.

    Args:
        shared: local work on the shared parameters: gamma, or ``moiety.sgd(gamma, ...)``.
    """
    # What the user leaves open is filled in: here one step on a batch of 32 rows.
    shared_optimiser = optimiser_work("shared", shared, epochs=None, steps=1, batch_size=32)
    weight = client_weights("examples", shared_optimiser.rows)

    def client_update(work: Work, u: Params, state: Personal) -> tuple[ClientUpdate, Personal]:
        model = work.compose(u, state.personal)
        # Line n: u <- u - gamma grad_u F_i(u, v_i)
        model, loss = train(work, model, work.batches("local"), {work.shared: shared_optimiser})
        u_i, v_i = work.parts(model)
        return ClientUpdate(difference(u_i, u), weight(work), {"loss": loss}), Personal(v_i)

    return assemble(phases={"local": shared_optimiser.phase}, client_update=client_update)
