"""SCAFFOLD: local steps corrected by control variates, so that clients that differ do not drift apart.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML
2020, Algorithm 1; a baseline of Mishchenko et al. 2023, section 3.2.

The server has a control c, an estimate of the mean gradient, and each client a control c_i, one of its own gradient.
A client's gradient plus c - c_i points where the mean gradient does.

Symbols: x ``received``; y_i the client's model; c ``control`` of the server, sent under the names "control:" + name;
c_i ``state.control``; eta_l ``lr``; eta_g ``server=moiety.server.sgd(lr=eta_g)``; K ``steps``, or as many as ``epochs``
give; S the clients whose updates arrived, N all clients; options I and II of line 12 ``option``.

Reduces to FedAvg as long as all controls are 0 (the first round). With one step of all clients on all of their data
the corrections cancel in the mean: gradient descent of rate eta_g eta_l.

Deviations from the paper:

1. |S| of line 17 is the number of updates that were joined: so c stays the mean of all c_i also where each client takes
   part by chance, or drops out. A codec compresses x alone, for the same reason.
2. eta_g is the learning rate of the server's optimiser, 1 by default; other optimisers may be used for x. Line 17 is
   the paper's for c with any of them.
3. Option I, g_i(x), is the gradient on all of the client's data, an extra pass.
4. Option II is computed as the mean of the g_i(y_i) of line 9, which it equals, since x - y_i = eta_l times the sum of
   g_i - c_i + c: no digits are lost in a difference, and a step size of 0 does no harm.
5. Each epoch is shuffled anew; minibatches are drawn without replacement.
6. Options the pseudocode does not have, off by default: schedules, and weights by examples or batches, with which line
   16 is a weighted mean of both.
7. Controls of shared running statistics, which no gradient moves, cross as zeros.
8. A client whose update is not finite is left out of the round.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from moiety.errors import choice
from moiety.local import SgdOptions, difference, phase, positive_lr, rates, sgd
from moiety.local.schedules import chosen as chosen_schedule
from moiety.local.solvers import WHOLE, batch_or_whole
from moiety.server import averaging, check_weighting, client_weight, weighted_mean
from moiety.server.optimisers import chosen as chosen_server
from moiety.spec import recorded
from moiety.types import Algorithm, Batch, ClientUpdate, Objective, Params, Phase, Schedule, ServerOptimiser, Work

CONTROL = "control:"
"""Before the name of a parameter, its control on the wire."""


class Server(NamedTuple):
    """Shared parameters and running statistics, the state of the server's optimiser, and c."""

    shared: Params
    statistics: Params
    optimiser: object
    control: Params


class Client(NamedTuple):
    """Running statistics of BatchNorm where they are the client's own, and c_i."""

    personal: Params
    control: Params


@recorded
def scaffold(
    *,
    lr: float,
    option: str = "II",
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = 32,
    shuffle: bool = True,
    weighting: str = "uniform",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """SCAFFOLD: control variates against client drift; nothing personal (Karimireddy et al. 2020).

    Args:
        lr: learning rate on clients, eta_l.
        option: how a client's control is renewed: ``I`` by its gradient at the received model, an extra pass, or ``II``
            by the mean of the gradients of its steps.
        epochs: passes over the client's data; 1 where neither this nor the next is given.
        steps: or a number of steps, K.
        batch_size: examples per step; None takes all that the client has.
        shuffle: False walks through the data in its order.
        weighting: of the clients in the mean, by ``uniform``, ``examples`` or ``batches``.
        server: the server's optimiser, ``moiety.server.sgd(lr=eta_g)``; plain averaging (eta_g = 1) by default.
        schedule: of the client learning rate across rounds; constant by default.

    Returns:
        The algorithm, for ``moiety.fit``.
    """
    positive_lr("lr", lr)
    choice("option", option, ("I", "II"))
    check_weighting(weighting)
    plain = SgdOptions(0.0, 0.0, None)
    optimiser = chosen_server(server)
    examples = batch_or_whole(batch_size)
    walk = phase("", epochs, steps, examples, shuffle)
    repeated = steps or epochs or 1
    if batch_size is None:  # every step, and every epoch, is on the one batch that holds all data: it is fetched once
        walk = Phase(1, None, WHOLE, False)

    def taken(work: Work) -> Tensor:
        """K, the number of the client's steps."""
        if batch_size is None or steps is not None:
            return torch.full_like(work.examples, repeated)
        return repeated * client_weight(work, "batches", examples)

    def client_update(work: Work, received: Params, state: Client) -> tuple[ClientUpdate, Client]:
        x, c = parted(received)
        model, rate = work.compose(x, state.personal), rates(work, work.shared, lr)  # line 7
        batches: Iterable[Batch] = work.batches("local")
        if batch_size is None:
            batches = list(batches) * repeated
        # Lines 8-11: y_i <- y_i - eta_l (g_i(y_i) - c_i + c), K times
        steered, sums = corrected(work, {n: c[n] - state.control[n] for n in work.shared})
        y, loss = sgd(steered, model, batches, lr=rate, options=plain)
        # Line 12
        if option == "I":
            seen, sums = corrected(work, {})
            sgd(seen, model, work.batches("control"), lr=rate, options=plain)  # for g_i(x), not for where it leads
            new = {**state.control, **sums}
        else:
            count = taken(work)
            new = {**state.control, **{n: (g / count).to(g.dtype) for n, g in sums.items()}}
        # Lines 13 and 14
        y_i, statistics = work.parts(y)
        change = {**difference(y_i, x), **named(difference(new, state.control))}
        update = ClientUpdate(change, client_weight(work, weighting, examples), {"loss": loss})
        return update, Client(statistics, new)

    # Line 17: x <- x + eta_g Delta x, c <- c + |S|/N Delta c
    def joined(change: Params, uploads: int, clients: int) -> Params:
        return {n: uploads / clients * d if n.startswith(CONTROL) else d for n, d in change.items()}

    def server_update(now: Server, change: Params) -> Server:
        moved = averaging.server_update(optimiser, averaging.Server(*now[:3]), change)
        return Server(*moved, {n: c + change[CONTROL + n] for n, c in now.control.items()})

    def init_server(shared: Params, statistics: Params) -> Server:
        begun = averaging.init_server(optimiser, shared, statistics)
        return Server(*begun, zeros({**shared, **statistics}))

    def adapt(work: Work, received: Params, state: Client) -> Client:
        # Only running statistics can be a client's own; where there are none there is nothing to learn.
        return client_update(work, received, state)[1] if state.personal else state

    def crosses(shared: Params, personal: Params) -> tuple[Params, Params]:
        both = {**shared, **named(zeros(shared))}
        return both, both

    return Algorithm(
        name="scaffold",
        phases={"local": walk} | ({"control": Phase(1, None, WHOLE, False)} if option == "I" else {}),
        init_server=init_server,
        init_client=lambda shared, personal: Client(personal, zeros(shared)),
        broadcast=lambda now: {**now.shared, **now.statistics, **named(now.control)},  # line 5
        client_update=client_update,
        aggregator=weighted_mean,  # line 16
        joined=joined,
        uncompressed=lambda name: name.startswith(CONTROL),
        server_update=server_update,
        personal_model=lambda received, state: (parted(received)[0], state.personal),
        adapt=adapt,
        schedule=chosen_schedule(schedule),
        default_split="nothing",
        needs="nothing",
        crosses=crosses,
    )


def corrected(work: Work, shift: Params) -> tuple[Work, Params]:
    """The same work with ``shift`` added to every gradient, and the sum of the gradients as they were."""
    sums: Params = {}

    def gradient(objective: Objective, at: Params) -> tuple[Params, Tensor, Params]:
        found, loss, changed = work.gradient(objective, at)
        sums.update({n: sums[n] + g if n in sums else g for n, g in found.items()})
        return {n: g + shift[n] if n in shift else g for n, g in found.items()}, loss, changed

    return replace(work, gradient=gradient), sums


def zeros(shared: Params) -> Params:
    """Controls as they are first; counters, which are whole numbers, have none."""
    return {n: torch.zeros_like(p) for n, p in shared.items() if p.is_floating_point()}


def named(control: Params) -> Params:
    """Controls by their names on the wire."""
    return {CONTROL + n: c for n, c in control.items()}


def parted(received: Params) -> tuple[Params, Params]:
    """The model and the control in what was received."""
    x = {n: p for n, p in received.items() if not n.startswith(CONTROL)}
    return x, {n.removeprefix(CONTROL): c for n, c in received.items() if n.startswith(CONTROL)}
