"""L2GD: every client has a model of its own; by the toss of a coin all take a gradient step, or a step to their mean.

Hanzely, Richtarik. "Federated Learning of a Mixture of Global and Local Models", 2020, Algorithm 1 (L2GD, loopless
local gradient descent); a baseline of Mishchenko et al. 2023, section 3.2.

    min over x_1, ..., x_n of (1/n) sum_i f_i(x_i) + (lambda / 2n) sum_i ||x_i - x_mean||^2

In every iteration one coin is tossed for all clients. With probability 1 - p each takes a local step,
x_i <- x_i - alpha / (n (1 - p)) grad f_i(x_i), with probability p a step to the mean of all,
x_i <- (1 - alpha lambda / (n p)) x_i + alpha lambda / (n p) x_mean. The two are unbiased estimates of one gradient, so
with a constant step size the models end in a neighbourhood of the minimiser, and reach it as the step size falls.

Symbols: x_i ``state.shared``; x_mean ``received``; lambda ``pull``; p ``probability``; alpha / n ``lr``.

Reduces to local training where pull is 0, and to Local GD with a random number of steps where lr pull / probability is
1. The paper's largest step size is lr = 1 / (2 max(L / (1 - p), lambda / p)) for L-smooth f_i.

Deviations from the paper:

1. A round is one communication, with all iterations that need no other: a run of steps to the mean, which does not move
   by them, then a run of local steps up to the next toss for the mean. The lengths of both runs are drawn, geometric
   with p and with 1 - p; the iterates are those of Algorithm 1. A first run of local steps with no step to the mean
   before it is no exception: all models are equal then, and a step to their mean moves nothing.
2. ``lr`` is alpha / n, which is all that clients need to know of n.
3. The coin comes from the seed ``coins`` and the round, which all clients know, not from the run's seed.
4. The paper has all clients take part. With a cohort x_mean is the mean of the models of the clients asked, a client
   that was never asked has the received model, and the others wait.
5. Options the paper does not have, off by default: schedules (of both kinds of step), and clients weighted by examples
   in the mean, which is the weighted form of the problem. A client whose update is not finite is left out of the
   round.
6. A client never seen gets its model by one round's steps, from the received one.
"""

from __future__ import annotations

import math
from functools import partial

import torch

from moiety.clients.own import Own, never_asked, own_model
from moiety.errors import choice, must, number, whole
from moiety.local import SgdOptions, difference, positive_lr, rates, sgd
from moiety.local.schedules import chosen as chosen_schedule
from moiety.local.solvers import WHOLE
from moiety.random import hashed
from moiety.server import averaging, client_weight, weighted_mean
from moiety.server.optimisers import chosen as chosen_server
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Phase, Schedule, Work


@recorded
def l2gd(
    *,
    lr: float,
    pull: float,
    probability: float,
    coins: int = 0,
    weighting: str = "uniform",
    schedule: Schedule | None = None,
) -> Algorithm:
    """L2GD: models of the clients' own, pulled to their mean now and then (Hanzely and Richtarik 2020).

    Args:
        lr: alpha / n; a local step is lr / (1 - probability) times the gradient, on all of the client's data.
        pull: lambda, how strongly models are held to their mean.
        probability: p, of a step to the mean; about 1 / p local steps lie between two communications.
        coins: the seed of the coin.
        weighting: of the clients in the mean, ``uniform`` or by ``examples``.
        schedule: of ``lr`` across rounds; constant by default.

    Returns:
        The algorithm, for ``moiety.fit``.
    """
    positive_lr("lr", lr)
    number("pull", pull, ">= 0 and finite", lambda x: 0 <= x < math.inf)
    number("probability", probability, "> 0 and < 1", lambda x: 0 < x < 1)
    most = probability / lr
    must(pull <= most, "pull", f"at most probability / lr = {most:g}", pull, "A larger one steps beyond the mean.")
    whole("coins", coins, 0)
    choice("weighting", weighting, ("uniform", "examples"))
    optimiser = chosen_server(None)
    plain = SgdOptions(0.0, 0.0, None)

    def client_update(work: Work, received: Params, state: Own) -> tuple[ClientUpdate, Own]:
        shared, personal = own_model(received, state)
        means, locals_ = tosses(probability, coins, work.turn)
        # xi = 1: x_i <- (1 - alpha lambda / (n p)) x_i + alpha lambda / (n p) x_mean, ``means`` times
        kept = (1 - lr * work.scale * pull / probability) ** means
        x = {n: received[n] + kept * (shared[n] - received[n]) for n in work.shared}
        # xi = 0: x_i <- x_i - alpha / (n (1 - p)) grad f_i(x_i), ``locals_`` times on the one batch that holds all data
        model = work.compose({**shared, **x}, personal)
        rate = rates(work, work.shared, lr / (1 - probability))
        model, loss = sgd(work, model, list(work.batches("local")) * locals_, lr=rate, options=plain)
        own, statistics = work.parts(model)
        update = ClientUpdate(difference(own, received), client_weight(work, weighting, WHOLE), {"loss": loss})
        return update, Own(own, statistics, torch.ones_like(state.asked))

    return Algorithm(
        name="l2gd",
        phases={"local": Phase(1, None, WHOLE, False)},
        init_server=partial(averaging.init_server, optimiser),
        init_client=never_asked,  # x_1 = ... = x_n
        broadcast=averaging.broadcast,
        client_update=client_update,
        aggregator=weighted_mean,  # x_mean
        server_update=partial(averaging.server_update, optimiser),
        personal_model=own_model,
        adapt=lambda work, received, state: client_update(work, received, state)[1],
        schedule=chosen_schedule(schedule),
        default_split="nothing",
        needs="nothing",
        repeats=lambda turn: {"local": tosses(probability, coins, turn)[1]},
    )


def tosses(probability: float, coins: int, turn: int) -> tuple[int, int]:
    """How many steps to the mean and how many local ones a round has: at least one each, the same for all clients.

    P(means = j) = (1 - p) p^(j - 1), P(local steps = k) = p (1 - p)^(k - 1), by inversion of a uniform number each.

    >>> tosses(0.01, 0, 7) == tosses(0.01, 0, 7)
    True
    """
    one, other = ((hashed("l2gd", coins, turn, kind) % 2**64 + 0.5) / 2**64 for kind in ("mean", "local"))
    means = 1 + math.floor(math.log(one) / math.log(probability))
    return means, 1 + math.floor(math.log(other) / math.log1p(-probability))
