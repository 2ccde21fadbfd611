"""SCAFFOLD: local steps corrected by control variates, so that clients that differ do not drift apart.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML
2020, Algorithm 1; a baseline of Mishchenko et al. 2023, section 3.2.

The server has a control c, an estimate of the mean gradient, and each client a control c_i, one of its own gradient.
A client's gradient plus c - c_i points where the mean gradient does.

Symbols: x what is received; y_i the client's model; c ``control`` of the server, sent under the names "control:" +
name; c_i ``state.control``; eta_l and K the learning rate and length of ``shared``; eta_g
``server=moiety.server.sgd(lr=eta_g)``; S the clients whose updates arrived, N all clients; options I and II of line 12
``option``.

Reduces to FedAvg as long as all controls are 0 (the first round). With one step of all clients on all of their data
the corrections cancel in the mean: gradient descent of rate eta_g eta_l.

Deviations from the paper:

1. |S| of line 17 is the number of updates that were averaged. So c stays the mean of all c_i, even if clients take part
   by chance or drop out. For the same reason a codec compresses x alone.
2. eta_g is the learning rate of the server's optimiser, 1 by default. Other optimisers may be used for x; they do not
   change what line 17 does for c.
3. g_i(x) of option I is the gradient on all of the client's data, which takes an extra pass.
4. Option II is computed as the mean of the g_i(y_i) of line 9. They are equal, since x - y_i is eta_l times the sum of
   g_i - c_i + c. But the mean loses no digits in a difference, and a step size of 0 does no harm.
5. Each epoch is shuffled anew; minibatches are drawn without replacement.
6. Options that the pseudocode does not have, off by default: schedules, and weights by examples or batches (then both
   means of line 16 are weighted).
7. Shared running statistics have controls too. They are sent as zeros, because no gradient moves them.
8. A client whose update is not finite is left out of the round.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from moiety.errors import choice
from moiety.local import (
    ALL,
    WHOLE,
    Optimiser,
    add_prefix,
    difference,
    drop_prefix,
    sgd_work,
    take_floats,
    take_prefix,
    train,
)
from moiety.server import averaging
from moiety.server.averaging import client_weights
from moiety.server.optimisers import server_or_mean
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Objective, Params, Phase, Schedule, ServerOptimiser, Tree, Wire, Work

CONTROL = "control:"
"""Before the name of a parameter, its control on the wire."""


class Server(NamedTuple):
    """Shared parameters and running statistics, the state of the server's optimiser, and c."""

    shared: Params
    statistics: Params
    optimiser: Tree
    control: Params

    @property
    def model(self) -> averaging.Server:
        """All but c."""
        return averaging.Server(*self[:3])


class Client(NamedTuple):
    """Running statistics of BatchNorm where they are the client's own, and c_i."""

    personal: Params
    control: Params


@recorded
def scaffold(
    *,
    shared: float | Optimiser,
    option: str = "II",
    weighting: str = "uniform",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """SCAFFOLD: control variates against client drift; nothing personal (Karimireddy et al. 2020).

    Args:
        shared: local work: eta_l, or ``moiety.sgd(eta_l, steps=K)``.
        option: how a client's control is renewed: ``I`` by its gradient at the received model, an extra pass, or ``II``
            by the mean of the gradients of its steps.
        weighting: of the clients in the mean, by ``uniform``, ``examples`` or ``batches``.
        server: the server's optimiser, ``moiety.server.sgd(lr=eta_g)``; plain averaging (eta_g = 1) by default.
        schedule: of the client learning rate across rounds; constant by default.
    """
    shared_sgd = sgd_work("shared", shared, without=("weight_decay", "pull", "clip"))
    choice("option", option, ("I", "II"))
    weight, batches_of = client_weights(weighting, shared_sgd.rows), client_weights("batches", shared_sgd.rows)
    optimiser, all_rows = server_or_mean(server), Phase(1, None, WHOLE, False)
    repeats = shared_sgd.steps or shared_sgd.epochs or 1
    # With all rows in a batch every step is on that one batch: it is fetched once.
    one_batch = shared_sgd.batch_size == ALL

    def count_steps(work: Work) -> Tensor:
        """K, the number of the client's steps."""
        if one_batch or shared_sgd.steps is not None:
            return torch.full_like(work.examples, repeats)
        return repeats * batches_of(work)

    def client_update(work: Work, received: Params, state: Client) -> tuple[ClientUpdate, Client]:
        x, c = split_control(received)
        model = work.compose(x, state.personal)  # line 7
        batches = list(work.batches("local")) * repeats if one_batch else work.batches("local")
        # Lines 8-11: y_i <- y_i - eta_l (g_i(y_i) - c_i + c), K times
        shifted_work, sums = shift_gradients(work, {n: c[n] - state.control[n] for n in work.shared})
        y, loss = train(shifted_work, model, batches, {work.shared: shared_sgd})
        # Line 12
        if option == "I":
            plain_work, sums = shift_gradients(work, {})
            train(plain_work, model, work.batches("control"), {work.shared: shared_sgd})  # for g_i(x) alone
            control = {**state.control, **sums}
        else:
            count = count_steps(work)
            control = {**state.control, **{n: (g / count).to(g.dtype) for n, g in sums.items()}}
        # Lines 13 and 14
        y_i, statistics = work.parts(y)
        change = {**difference(y_i, x), **add_prefix(difference(control, state.control), CONTROL)}
        return ClientUpdate(change, weight(work), {"loss": loss}), Client(statistics, control)

    def server_update(now: Server, change: Params, share: float) -> Server:
        # Line 17: x <- x + eta_g Delta x, c <- c + |S|/N Delta c
        model = averaging.server_update(optimiser, now.model, change)
        return Server(*model, {n: c + share * change[CONTROL + n] for n, c in now.control.items()})

    def init_server(shared: Params, statistics: Params, personal: Params) -> Server:
        return Server(*averaging.init_server(optimiser, shared, statistics), zero_controls({**shared, **statistics}))

    def layout(shared: Params, personal: Params) -> tuple[Params, Params]:
        both = {**shared, **add_prefix(zero_controls(shared), CONTROL)}
        return both, both

    phase = all_rows if one_batch else shared_sgd.phase
    return averaging.assemble(
        phases={"local": phase} | ({"control": all_rows} if option == "I" else {}),
        init_server=init_server,
        init_client=lambda shared, personal: Client(personal, zero_controls(shared)),
        broadcast=lambda now: {**averaging.broadcast(now.model), **add_prefix(now.control, CONTROL)},  # line 5
        client_update=client_update,  # line 16 is the usual mean
        server_update=server_update,
        personal_model=lambda received, state: (split_control(received)[0], state.personal),
        adapt=averaging.adapt_statistics(client_update),
        schedule=schedule,
        default_split="nothing",
        wire=Wire(layout, uncompressed=lambda name: name.startswith(CONTROL)),
    )


def shift_gradients(work: Work, shift: Params) -> tuple[Work, Params]:
    """The same work with ``shift`` added to every gradient, and the sum of the gradients as they were."""
    sums: Params = {}

    def gradient(objective: Objective, at: Params) -> tuple[Params, Tensor, Params]:
        gradients, loss, buffers = work.gradient(objective, at)
        sums.update({n: sums[n] + g if n in sums else g for n, g in gradients.items()})
        return {n: g + shift[n] if n in shift else g for n, g in gradients.items()}, loss, buffers

    return replace(work, gradient=gradient), sums


def zero_controls(shared: Params) -> Params:
    """Controls as they are first; counters, which are whole numbers, have none."""
    return {n: torch.zeros_like(p) for n, p in take_floats(shared).items()}


def split_control(received: Params) -> tuple[Params, Params]:
    """The model and the control in what was received."""
    return drop_prefix(received, CONTROL), take_prefix(received, CONTROL)
