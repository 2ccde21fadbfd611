"""Independent: every client alone, by online descent. A baseline of the Glocal paper.

"Global and Local Learning for Distributed Personalization", section 4: "each client performs individual SGD on their
own data", w_{i,t+1} = P_D(w_{i,t} - eta grad l_{i,t}(w_{i,t})), one example after another in passes.

Symbols: w_i ``state.personal``; eta and D the learning rate and radius of ``personal``.

Reduces to ``local_only`` with SGD, batches of one and whole epochs; it adds Adagrad, the ball, and a walk that goes on
from round to round. It is ``glocal_sgd`` with everything personal, without delay.

Deviations: none. Since nothing is sent, a round may have many steps: T rounds with ``steps=k`` are the same as k T
rounds with ``steps=1``.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from moiety.local import Online, fold, gradient_at, online_work, take_floats
from moiety.server.averaging import assemble
from moiety.spec import recorded
from moiety.types import Algorithm, Batch, ClientUpdate, Params, Work


class Client(NamedTuple):
    """w_i, the client's whole model, and what the rule keeps."""

    personal: Params
    squares: Params


@recorded
def independent(*, personal: float | Online) -> Algorithm:
    """Online descent of each client alone: everything personal, nothing sent.

    Args:
        personal: each client's descent: eta, or ``moiety.online(eta, radius=D, steps=k)``.
    """
    descent = online_work("personal", personal, without=())

    def init_client(shared: Params, personal: Params) -> Client:
        return Client(personal, descent.init(take_floats(personal)))

    def client_update(work: Work, received: Params, state: Client) -> tuple[ClientUpdate, Client]:
        def step(now: tuple[Params, Params], batch: Batch) -> tuple[tuple[Params, Params], Tensor]:
            model, squares = now
            gradient, loss, buffers = gradient_at(work, model, work.personal, [batch])
            # w_{i,t+1} = P_D(w_{i,t} - eta grad l_{i,t}(w_{i,t}))
            description = descent.describe(work, model, gradient, [batch])
            w_i, new = descent.step({n: model[n] for n in gradient}, description, squares, work.scale)
            return ({**model, **buffers, **w_i}, {**squares, **new}), loss

        start = work.compose({}, state.personal), state.squares
        (model, squares), loss = fold(work, work.batches("online"), step, start)
        return ClientUpdate({}, work.examples, {"loss": loss}), Client(work.parts(model)[1], squares)

    return assemble(
        phases={"online": descent.phase},
        init_client=init_client,
        client_update=client_update,
        aggregator=None,
        default_split="everything",
    )
