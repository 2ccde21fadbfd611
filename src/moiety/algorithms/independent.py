"""Independent: every client alone, by online descent. A baseline of the Glocal paper.

"Global and Local Learning for Distributed Personalization", section 4: "each client performs individual SGD on their
own data", w_{i,t+1} = P_D(w_{i,t} - eta grad l_{i,t}(w_{i,t})), one example after another in passes.

Symbols: w_i ``state.personal``; eta ``lr``; D ``radius``.

Reduces to ``local_only`` with SGD, batches of one and whole epochs; it adds Adagrad, the ball, and a walk that goes on
from round to round. It is ``glocal_sgd`` with everything personal, without delay.

Deviations: none. Since nothing is sent, many steps may be made in one round: ``steps=k`` for T rounds are the same as
``steps=1`` for k T rounds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from moiety.local.online import Descent, slope, walk
from moiety.local.schedules import chosen as chosen_schedule
from moiety.server import weighted_mean
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Work


class Server(NamedTuple):
    """Nothing: a server that is sent nothing knows nothing."""


class Client(NamedTuple):
    """w_i, the client's whole model, and Adagrad's sums of squares."""

    personal: Params
    squares: Params


@recorded
def independent(
    *,
    lr: float,
    rule: str = "sgd",
    radius: float | None = None,
    steps: int = 1,
    batch_size: int = 1,
    shuffle: bool = True,
) -> Algorithm:
    """Online descent of each client alone: everything personal, nothing sent.

    Args:
        lr: learning rate.
        rule: ``sgd`` or ``adagrad``.
        radius: the model's largest norm; free by default.
        steps: batches in a round; the walk through the data goes on in the next.
        batch_size: examples in a step.
        shuffle: False walks through the data in its order.

    Returns:
        The algorithm, for ``moiety.fit``.
    """
    descent = Descent(lr, rule, radius)

    def init_client(shared: Params, personal: Params) -> Client:
        return Client(personal, descent.init({n: p for n, p in personal.items() if p.is_floating_point()}))

    def client_update(work: Work, received: Params, state: Client) -> tuple[ClientUpdate, Client]:
        model, squares = work.compose({}, state.personal), state.squares
        losses = []
        for batch in work.batches("online"):
            gradient, loss, changed = slope(work, model, work.personal, [batch])
            moved, new = descent.step({n: model[n] for n in gradient}, gradient, squares, work.scale)
            model, squares = {**model, **changed, **moved}, {**squares, **new}
            losses.append(loss)
        after = Client(work.parts(model)[1], squares)
        return ClientUpdate({}, work.examples, {"loss": torch.stack(losses).mean()}), after

    return Algorithm(
        name="independent",
        phases=walk(batch_size, shuffle, steps),
        init_server=lambda shared, statistics: Server(),
        init_client=init_client,
        broadcast=lambda server: {},
        client_update=client_update,
        aggregator=weighted_mean,
        server_update=lambda server, change: server,
        personal_model=lambda received, state: ({}, state.personal),
        adapt=lambda work, received, state: client_update(work, received, state)[1],
        schedule=chosen_schedule(None),
        default_split="everything",
        needs="everything",
    )
