"""L2GD: every client has a model of its own; by the toss of a coin all take a gradient step, or a step to their mean.

Hanzely, Richtarik. "Federated Learning of a Mixture of Global and Local Models", 2020, Algorithm 1 (L2GD, loopless
local gradient descent); a baseline of Mishchenko et al. 2023, section 3.2.

    min over x_1, ..., x_n of (1/n) sum_i f_i(x_i) + (lambda / 2n) sum_i ||x_i - x_mean||^2

In every iteration one coin is tossed for all clients. With probability 1 - p each takes a local step,
x_i <- x_i - alpha / (n (1 - p)) grad f_i(x_i), with probability p a step to the mean of all,
x_i <- (1 - alpha lambda / (n p)) x_i + alpha lambda / (n p) x_mean. The two are unbiased estimates of one gradient, so
with a constant step size the models end in a neighbourhood of the minimiser, and reach it as the step size falls.

Symbols: x_i ``state.shared``; x_mean what is received; lambda ``personal.pull``; p ``probability``; alpha / n
``personal.lr``.

Reduces to local training where pull is 0, and to Local GD with a random number of steps where lr pull / probability is
1. The paper's largest step size is lr = 1 / (2 max(L / (1 - p), lambda / p)) for L-smooth f_i.

Deviations from the paper:

1. A round is one communication and all iterations that need no other: a series of steps to the mean (which does not
   move meanwhile), then a series of local steps up to the next toss for the mean. The lengths of both series are drawn
   from geometric distributions with p and with 1 - p, so the iterates are those of Algorithm 1. This also holds if the
   paper's run begins with local steps: all models are equal then, and a step to their mean moves nothing.
2. ``personal.lr`` is alpha / n, so clients need not know n.
3. The coin depends on ``coins`` and the round, which all clients know, not on the run's seed.
4. In the paper all clients take part. With a cohort, x_mean is the mean of the models of the cohort, and the other
   clients wait. A client that never took part has the received model.
5. Options that the paper does not have, off by default: schedules (of both kinds of step), and a mean weighted by
   examples, which solves the weighted problem. A client whose update is not finite is left out of the round.
6. A new client gets its model by the steps of one round, from the received one.
"""

from __future__ import annotations

import math

from moiety.errors import choice, must, number, whole
from moiety.local import (
    ALL,
    WHOLE,
    Optimiser,
    OwnModel,
    Sgd,
    begin_own_model,
    difference,
    keep_own_model,
    own_model,
    sgd_work,
    train,
)
from moiety.random import hash_words
from moiety.server.averaging import assemble, client_weights
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Phase, Schedule, Work


@recorded
def l2gd(
    *,
    personal: float | Optimiser,
    probability: float,
    coins: int = 0,
    weighting: str = "uniform",
    schedule: Schedule | None = None,
) -> Algorithm:
    """L2GD: models of the clients' own, pulled to their mean now and then (Hanzely and Richtarik 2020).

    Args:
        personal: ``moiety.sgd(alpha / n, pull=lambda)``. A local step is alpha / n / (1 - p) times the gradient, on all
            of the client's data; the pull is towards the mean of all models.
        probability: p, of a step to the mean; about 1 / p local steps lie between two communications.
        coins: the seed of the coin.
        weighting: of the clients in the mean, ``uniform`` or by ``examples``.
        schedule: of the learning rate across rounds; constant by default.
    """
    unsupported = ("epochs", "steps", "batch_size", "shuffle", "weight_decay", "clip")
    personal_sgd = sgd_work("personal", personal, batch_size=ALL, without=unsupported)
    number("probability", probability, "> 0 and < 1", lambda x: 0 < x < 1)
    lr, pull = personal_sgd.lr, personal_sgd.pull
    largest = probability / lr
    hint = "A larger one steps beyond the mean."
    must(pull <= largest, "personal.pull", f"at most probability / lr = {largest:g}", pull, hint)
    whole("coins", coins, 0)
    choice("weighting", weighting, ("uniform", "examples"))
    weight, local_sgd = client_weights(weighting, WHOLE), Sgd(lr / (1 - probability))

    def client_update(work: Work, mean: Params, state: OwnModel) -> tuple[ClientUpdate, OwnModel]:
        x_i, statistics = own_model(mean, state)
        mean_steps, local_steps = toss_coins(probability, coins, work.turn)
        # xi = 1: x_i <- (1 - alpha lambda / (n p)) x_i + alpha lambda / (n p) x_mean, ``mean_steps`` times
        factor = (1 - lr * work.scale * pull / probability) ** mean_steps
        x = {n: mean[n] + factor * (x_i[n] - mean[n]) for n in work.shared}
        # xi = 0: x_i <- x_i - alpha / (n (1 - p)) grad f_i(x_i), ``local_steps`` times, each on all data
        model = work.compose({**x_i, **x}, statistics)
        model, loss = train(work, model, list(work.batches("local")) * local_steps, {work.shared: local_sgd})
        change = difference(work.parts(model)[0], mean)
        return ClientUpdate(change, weight(work), {"loss": loss}), keep_own_model(work, model, state)

    return assemble(
        phases={"local": Phase(1, None, WHOLE, False, repeats=lambda turn: toss_coins(probability, coins, turn)[1])},
        init_client=begin_own_model,  # x_1 = ... = x_n
        client_update=client_update,  # the mean of the uploads moves x_mean
        personal_model=own_model,
        schedule=schedule,
        default_split="nothing",
    )


def toss_coins(probability: float, coins: int, turn: int) -> tuple[int, int]:
    """How many steps to the mean and how many local ones a round has: at least one each, the same for all clients.

    P(steps to the mean = j) = (1 - p) p^(j - 1), P(local steps = k) = p (1 - p)^(k - 1), each by inversion of a uniform
    number.

    >>> toss_coins(0.01, 0, 7) == toss_coins(0.01, 0, 7)
    True
    """
    first, second = ((hash_words("l2gd", coins, turn, kind) % 2**64 + 0.5) / 2**64 for kind in ("mean", "local"))
    mean_steps = 1 + math.floor(math.log(first) / math.log(probability))
    return mean_steps, 1 + math.floor(math.log(second) / math.log1p(-probability))
