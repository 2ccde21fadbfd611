"""APFL: every client predicts with a mixture of the shared model and a model of its own, and learns the share of each.

Deng, Kamani, Mahdavi. "Adaptive Personalized Federated Learning", arXiv:2003.13461, 2020, with its rule for adapting
the mixing weight.

    v-_i = alpha_i v_i + (1 - alpha_i) w_i,  and by the chain rule, with g = grad f_i(v-_i):
    grad_v f_i(v-_i) = alpha_i g,  d f_i(v-_i) / d alpha_i = <v_i - w_i, g>

so in one step, all of it from what was there before the step and on one batch,

    w_i <- w_i - eta grad f_i(w_i)
    v_i <- v_i - eta alpha_i g
    alpha_i <- alpha_i - eta <v_i - w_i, g>, then cut to [0, 1]

Symbols: w ``received``; v_i ``state.own.shared``; alpha_i ``state.alpha``; eta ``lr`` for w, ``personal_lr`` for v,
``alpha_lr`` for alpha; tau ``steps`` or ``epochs``; U_t the cohort. The client's model is the mixture v-_i.

Reduces to FedAvg where alpha is 0 (v then never moves), and to local training beside FedAvg where it is 1.

A step by hand that tells this from four faults which public implementations have. f = x^2 / 2, w = 1, v = 3, alpha =
1/2, all rates 1/2: v- = 2 = g, so w <- 1/2, v <- 3 - (1/2)(1/2) 2 = 5/2, alpha <- 1/2 - (1/2)(3 - 1) 2 = -3/2, cut to
0. Without the factor alpha v becomes 2; with v trained by its own gradient 3, not that of the mixture, 3/2; if v is
never trained it stays 3; with w moved first v- = 7/4 and v becomes 41/16. With ``alpha_lr`` 1/16 alpha <- 1/2 - 4/16 =
1/4; with the gradient at w or at v (1 or 3) in the place of g it is 3/8 or 1/8, and with a term 0.02 alpha it falls
short of 1/4.

Deviations from the paper:

1. eta may differ for w, v and alpha. Without ``alpha_lr`` alpha stays as it is given. With it, alpha moves in every
   step, as the rule reads; the authors' program moves it in the first step of a round.
2. A client sends w_i - w instead of w_i, so that the server may use any optimiser; the mean over the cohort is plain as
   in the paper by default. Samples are drawn without replacement.
3. The projection of w and v on a bounded set is left out.
4. Between rounds w_i is the w of the server: a client is evaluated with alpha_i v_i + (1 - alpha_i) w of the newest w.
   v_i^0 is w^0. A client that was never asked has no model of its own to show: it is evaluated with the shared one.
5. A client never seen starts with v = w and the first alpha and takes the steps on v and alpha with w as it received
   it, at the full learning rates.
6. Options the pseudocode does not have, all off by default: weight decay (of w and of v), clipping (of grad f_i(w_i)
   and of g, before any factor), schedules, other weightings and server optimisers. A client whose update is not finite
   is left out of the round.
7. Running statistics of BatchNorm, which the paper does not have: those of w move with the passes of w, the client's
   own with those of the mixture. Where they are shared they are mixed like parameters, twice: what v keeps begins each
   pass at alpha v + (1 - alpha) w, and is mixed with w once more where the client predicts, so it lies nearer to w's
   than alpha says. With alpha 0 a client so has FedAvg's.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from moiety.clients.own import Own, never_asked, own_model
from moiety.errors import number
from moiety.local import SgdOptions, clipped, difference, either, phase, positive_lr
from moiety.local.online import slope
from moiety.local.schedules import chosen as chosen_schedule
from moiety.server import averaging, check_weighting, client_weight, weighted_mean
from moiety.server.optimisers import chosen as chosen_server
from moiety.spec import recorded
from moiety.types import Algorithm, Batch, ClientUpdate, Params, Schedule, ServerOptimiser, Work


class Client(NamedTuple):
    """v_i with the client's own running statistics, and alpha_i."""

    own: Own
    alpha: Tensor


class Step(NamedTuple):
    """All that moves in a step: w_i, v_i, the client's own running statistics, alpha_i."""

    w: Params
    v: Params
    statistics: Params
    alpha: Tensor


@recorded
def apfl(
    *,
    lr: float,
    personal_lr: float | None = None,
    alpha: float = 0.5,
    alpha_lr: float | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int = 32,
    shuffle: bool = True,
    weight_decay: float = 0.0,
    clip: float | None = None,
    weighting: str = "uniform",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """APFL: mixtures of the shared and a personal model, with a weight per client (Deng et al. 2020).

    Args:
        lr: learning rate of the shared model on clients, eta.
        personal_lr: learning rate of the personal model; ``lr`` where it is not given.
        alpha: the share of the personal model in the mixture, at first.
        alpha_lr: learning rate of each client's alpha; without it alpha stays.
        epochs: passes over the client's data; 1 where neither this nor the next is given.
        steps: or a number of steps, tau.
        batch_size: examples per step; a client with fewer uses what it has.
        shuffle: False walks through the data in its order.
        weight_decay: l2 penalty on the shared and on the personal model.
        clip: largest norm of the gradient at the shared model, and of that at the mixture.
        weighting: of the clients in the mean, by ``uniform``, ``examples`` or ``batches``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the learning rates across rounds; constant by default.

    Returns:
        The algorithm, for ``moiety.fit``.
    """
    own_lr = lr if personal_lr is None else personal_lr
    for name, rate in (("lr", lr), ("personal_lr", own_lr), ("alpha_lr", alpha_lr)):
        if rate is not None:
            positive_lr(name, rate)
    number("alpha", alpha, ">= 0 and <= 1", lambda x: 0 <= x <= 1)
    check_weighting(weighting)
    options = SgdOptions(0.0, weight_decay, clip)
    optimiser = chosen_server(server)

    def gradient(work: Work, shared: Params, statistics: Params, batch: Batch) -> tuple[Params, Tensor, Params]:
        """The gradient of f_i at a point, clipped, the loss, and the whole model with the buffers of that pass."""
        model = work.compose(shared, statistics)
        g, loss, changed = slope(work, model, work.shared, [batch])
        return (g if options.clip is None else clipped(g, options.clip)), loss, {**model, **changed}

    def moved(work: Work, point: Params, g: Params, rate: float) -> Params:
        decay = options.weight_decay
        return {**point, **{n: point[n] - rate * work.scale * (g[n] + decay * point[n]) for n in work.shared}}

    def step(work: Work, now: Step, batch: Batch, train_w: bool) -> tuple[Step, Tensor]:
        """One step from ``now``, where everything is looked at before anything moves, and the mixture's loss."""
        w = now.w
        if train_w:
            # w_i <- w_i - eta grad f_i(w_i; xi)
            at_w, _, passed = gradient(work, now.w, now.statistics, batch)
            w = moved(work, work.parts(passed)[0], at_w, lr)
        g, loss, passed = gradient(work, mixed(now.alpha, now.v, now.w), now.statistics, batch)
        buffers, statistics = work.parts(passed)
        # v_i <- v_i - eta grad_v f_i(v-_i; xi), which is alpha_i grad f_i(v-_i; xi)
        v = moved(work, {**buffers, **{n: now.v[n] for n in work.shared}}, {n: now.alpha * g[n] for n in g}, own_lr)
        # The mixing weight: alpha_i <- alpha_i - eta <v_i - w_i, grad f_i(v-_i; xi)>
        share = now.alpha
        if alpha_lr is not None:
            along = torch.stack([((now.v[n] - now.w[n]) * g[n]).sum() for n in work.shared]).sum()
            share = (share - alpha_lr * work.scale * along).clamp(0.0, 1.0)
        return Step(w, v, statistics, share), loss

    def local(work: Work, received: Params, v: Params, state: Client, train_w: bool) -> tuple[Step, Tensor]:
        """All steps of a turn, and the mean loss of the mixture on the way."""
        now = Step(received, v, state.own.personal, state.alpha)
        total, count = torch.zeros_like(work.examples), torch.zeros_like(work.examples)
        for batch in work.batches("local"):
            after, loss = step(work, now, batch, train_w)
            real = batch["mask"].any() if "mask" in batch else torch.ones_like(count, dtype=torch.bool)
            now = Step(
                either(real, after.w, now.w),
                either(real, after.v, now.v),
                either(real, after.statistics, now.statistics),
                torch.where(real, after.alpha, now.alpha),
            )
            total, count = total + torch.where(real, loss, 0), count + real
        return now, total / count.clamp(min=1)

    def kept(state: Client, now: Step) -> Client:
        return Client(Own(now.v, now.statistics, torch.ones_like(state.own.asked)), now.alpha)

    def client_update(work: Work, received: Params, state: Client) -> tuple[ClientUpdate, Client]:
        now, loss = local(work, received, state.own.shared, state, train_w=True)
        change = difference(now.w, received)
        return ClientUpdate(change, client_weight(work, weighting, batch_size), {"loss": loss}), kept(state, now)

    def adapt(work: Work, received: Params, state: Client) -> Client:
        start = own_model(received, state.own)[0]
        return kept(state, local(work, received, start, state, train_w=False)[0])

    def init_client(shared: Params, personal: Params) -> Client:
        return Client(never_asked(shared, personal), next(iter(shared.values())).new_full((), alpha))  # v_i^0 = w^0

    def personal_model(received: Params, state: Client) -> tuple[Params, Params]:
        return own_model(received, state.own._replace(shared=mixed(state.alpha, state.own.shared, received)))

    return Algorithm(
        name="apfl",
        phases={"local": phase("", epochs, steps, batch_size, shuffle)},
        init_server=partial(averaging.init_server, optimiser),
        init_client=init_client,
        broadcast=averaging.broadcast,
        client_update=client_update,
        aggregator=weighted_mean,
        server_update=partial(averaging.server_update, optimiser),
        personal_model=personal_model,
        adapt=adapt,
        schedule=chosen_schedule(schedule),
        default_split="nothing",
        needs="nothing",
    )


def mixed(alpha: Tensor, v: Params, w: Params) -> Params:
    """v-_i = alpha_i v_i + (1 - alpha_i) w; counters among running statistics are v's."""
    return {n: alpha * p + (1 - alpha) * w[n] if p.is_floating_point() else p for n, p in v.items()}
