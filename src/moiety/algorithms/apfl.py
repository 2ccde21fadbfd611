"""APFL: every client predicts with a mixture of the shared model and a model of its own, and learns the share of each.

Deng, Kamani, Mahdavi. "Adaptive Personalized Federated Learning", arXiv:2003.13461, 2020, with its rule for adapting
the mixing weight.

    v-_i = alpha_i v_i + (1 - alpha_i) w_i,  and by the chain rule, with g = grad f_i(v-_i):
    grad_v f_i(v-_i) = alpha_i g,  d f_i(v-_i) / d alpha_i = <v_i - w_i, g>

so in one step, all of it from what was there before the step and on one batch,

    w_i <- w_i - eta grad f_i(w_i)
    v_i <- v_i - eta alpha_i g
    alpha_i <- alpha_i - eta <v_i - w_i, g>, then cut to [0, 1]

Symbols: w what is received; v_i ``state.own.shared``; alpha_i ``state.alpha``; eta the learning rate of ``shared`` for
w, of ``personal`` for v, ``alpha_lr`` for alpha; tau the length of ``shared``; U_t the cohort. The client's model is
the mixture v-_i.

Reduces to FedAvg where alpha is 0 (v then never moves), and to local training beside FedAvg where it is 1.

A step by hand that tells this from four faults which public implementations have. f = x^2 / 2, w = 1, v = 3, alpha =
1/2, all rates 1/2: v- = 2 = g, so w <- 1/2, v <- 3 - (1/2)(1/2) 2 = 5/2, alpha <- 1/2 - (1/2)(3 - 1) 2 = -3/2, cut to
0. Without the factor alpha v becomes 2; with v trained by its own gradient 3, not that of the mixture, 3/2; if v is
never trained it stays 3; with w moved first v- = 7/4 and v becomes 41/16. With ``alpha_lr`` 1/16 alpha <- 1/2 - 4/16 =
1/4; with the gradient at w or at v (1 or 3) in the place of g it is 3/8 or 1/8, and with a term 0.02 alpha it falls
short of 1/4.

Deviations from the paper:

1. The learning rates of w, v and alpha may differ. Without ``alpha_lr`` alpha is fixed. With it, alpha moves in every
   step, as in the paper's rule. The authors' program moves it only in the first step of a round.
2. A client sends the change w_i - w instead of w_i, so that the server can use any optimiser. By default the mean over
   the cohort is unweighted, as in the paper. Samples are drawn without replacement.
3. w and v are not projected to a bounded set.
4. A client is evaluated with alpha_i v_i + (1 - alpha_i) w, where w is the server's newest model, not the w_i of its
   last turn. v_i starts at w^0. A client that never took part is evaluated with the shared model.
5. A new client starts with v = w and the first alpha. It takes the steps on v and alpha at the full learning rates, and
   w stays as it received it.
6. Options that the pseudocode does not have, all off by default: weight decay (of w and v), clipping (of grad f_i(w_i)
   and of g), schedules, other weightings and server optimisers. A client whose update is not finite is left out of the
   round.
7. The paper has no running statistics of BatchNorm. Here the statistics of w move in the forward passes of w, and the
   client's own in those of the mixture. If they are shared, they are mixed like parameters, but twice: each pass begins
   at alpha v + (1 - alpha) w, and its result is mixed with w again when the client predicts. So they lie nearer to
   those of w than alpha says. With alpha 0 a client has FedAvg's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from moiety.errors import number
from moiety.local import (
    Optimiser,
    OwnModel,
    Sgd,
    begin_own_model,
    check_rate,
    clip_gradients,
    difference,
    fold,
    gradient_at,
    own_model,
    sgd_work,
)
from moiety.server.averaging import assemble, client_weights
from moiety.spec import recorded
from moiety.types import Algorithm, Batch, ClientUpdate, Params, Schedule, ServerOptimiser, Work

LENGTH = ("epochs", "steps", "batch_size", "shuffle")


class Client(NamedTuple):
    """v_i with the client's own running statistics, and alpha_i."""

    own: OwnModel
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
    shared: float | Optimiser,
    personal: float | Optimiser | None = None,
    alpha: float = 0.5,
    alpha_lr: float | None = None,
    weighting: str = "uniform",
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
) -> Algorithm:
    """APFL: mixtures of the shared and a personal model, with a weight per client (Deng et al. 2020).

    Args:
        shared: local work on the shared model: eta, or ``moiety.sgd(eta, steps=tau)``; ``clip`` is of its gradient.
        personal: learning rate, weight decay and clip (of the gradient at the mixture) of the personal model; those of
            ``shared`` by default. Both models take the same steps.
        alpha: the share of the personal model in the mixture, at first.
        alpha_lr: learning rate of each client's alpha; without it alpha stays.
        weighting: of the clients in the mean, by ``uniform``, ``examples`` or ``batches``.
        server: the server's optimiser; plain averaging by default.
        schedule: of the learning rates across rounds; constant by default.
    """
    w_sgd = sgd_work("shared", shared)
    v_sgd = w_sgd if personal is None else sgd_work("personal", personal, without=("pull", *LENGTH))
    if alpha_lr is not None:
        check_rate("alpha_lr", alpha_lr)
    number("alpha", alpha, ">= 0 and <= 1", lambda x: 0 <= x <= 1)
    weight = client_weights(weighting, w_sgd.rows)

    def gradient(
        work: Work, sgd: Sgd, shared: Params, statistics: Params, batch: Batch
    ) -> tuple[Params, Tensor, Params]:
        """The gradient of f_i at a point, clipped, the loss, and the whole model with the buffers of that pass."""
        model = work.compose(shared, statistics)
        g, loss, buffers = gradient_at(work, model, work.shared, [batch])
        return clip_gradients(g, sgd.clip), loss, {**model, **buffers}

    def descend(work: Work, sgd: Sgd, point: Params, g: Params) -> Params:
        decay, rate = sgd.weight_decay, sgd.lr * work.scale
        return {**point, **{n: point[n] - rate * (g[n] + decay * point[n]) for n in work.shared}}

    def step(work: Work, now: Step, batch: Batch, train_w: bool) -> tuple[Step, Tensor]:
        """One step from ``now``, where everything is looked at before anything moves, and the mixture's loss."""
        w = now.w
        if train_w:
            # w_i <- w_i - eta grad f_i(w_i; xi)
            at_w, _, model = gradient(work, w_sgd, now.w, now.statistics, batch)
            w = descend(work, w_sgd, work.parts(model)[0], at_w)
        g, loss, model = gradient(work, v_sgd, mix(now.alpha, now.v, now.w), now.statistics, batch)
        buffers, statistics = work.parts(model)
        # v_i <- v_i - eta grad_v f_i(v-_i; xi), which is alpha_i grad f_i(v-_i; xi)
        point = {**buffers, **{n: now.v[n] for n in work.shared}}
        v = descend(work, v_sgd, point, {n: now.alpha * g[n] for n in g})
        # The mixing weight: alpha_i <- alpha_i - eta <v_i - w_i, grad f_i(v-_i; xi)>
        alpha_i = now.alpha.clone()  # a new state shares no memory with the old one
        if alpha_lr is not None:
            slope = torch.stack([((now.v[n] - now.w[n]) * g[n]).sum() for n in work.shared]).sum()
            alpha_i = (alpha_i - alpha_lr * work.scale * slope).clamp(0.0, 1.0)
        return Step(w, v, statistics, alpha_i), loss

    def local(work: Work, w: Params, v: Params, state: Client, train_w: bool) -> tuple[Step, Client, Tensor]:
        """All steps of a turn, the state after them, and the mean loss of the mixture on the way."""
        start = Step(w, v, state.own.personal, state.alpha)
        end, loss = fold(work, work.batches("local"), lambda now, batch: step(work, now, batch, train_w), start)
        return end, Client(OwnModel(end.v, end.statistics, torch.ones_like(state.own.asked)), end.alpha), loss

    def client_update(work: Work, w: Params, state: Client) -> tuple[ClientUpdate, Client]:
        end, after, loss = local(work, w, state.own.shared, state, train_w=True)
        return ClientUpdate(difference(end.w, w), weight(work), {"loss": loss}), after

    def init_client(shared: Params, personal: Params) -> Client:
        return Client(begin_own_model(shared, personal), next(iter(shared.values())).new_full((), alpha))  # v_i^0 = w^0

    def personal_model(w: Params, state: Client) -> tuple[Params, Params]:
        return own_model(w, state.own._replace(shared=mix(state.alpha, state.own.shared, w)))

    return assemble(
        phases={"local": w_sgd.phase},
        init_client=init_client,
        client_update=client_update,
        personal_model=personal_model,
        adapt=lambda work, w, state: local(work, w, own_model(w, state.own)[0], state, train_w=False)[1],
        server=server,
        schedule=schedule,
        default_split="nothing",
    )


def mix(alpha: Tensor, v: Params, w: Params) -> Params:
    """v-_i = alpha_i v_i + (1 - alpha_i) w; counters among running statistics are v's."""
    return {n: alpha * p + (1 - alpha) * w[n] if p.is_floating_point() else p for n, p in v.items()}
