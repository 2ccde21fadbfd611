"""Per-FedAvg: a shared model that is a good start, from which one gradient step makes each client's own.

Fallah, Mokhtari, Ozdaglar. "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach", NeurIPS 2020, Algorithm 1.

    min_w (1/n) sum_i F_i(w),  F_i(w) = f_i(w - alpha grad f_i(w))
    grad F_i(w) = (I - alpha grad^2 f_i(w)) grad f_i(w - alpha grad f_i(w))

Symbols: w_k ``received``; alpha ``personal_lr``; beta ``lr``; tau ``steps`` or ``epochs``; D, D' and D'' the batches of
the phases ``inner``, ``outer`` and ``curvature``; rn the cohort. w_i = w - alpha grad f_i(w), the client's model, is
``state.shared`` once it has adapted.

Reduces to FedAvg as alpha goes to 0. The form ``first_order`` leaves the Hessian out (the paper's Per-FedAvg (FO)).

Deviations from the paper:

1. The product of the Hessian and the gradient is exact, by differentiating twice. The paper's Per-FedAvg (HF) takes a
   difference of two gradients, (grad f(w + delta g) - grad f(w - delta g)) / (2 delta), whose limit this is, at the
   same cost and without a delta to choose.
2. D, D' and D'' are independent in the paper. Here each walks through freshly shuffled epochs of its own, without
   replacement; a client with fewer examples than a batch has the same ones in all three.
3. A client sends w_i - w instead of w_i, so that the server may use any optimiser.
4. Options the pseudocode does not have, all off by default: weight decay and clipping of the step on w, schedules (of
   ``lr`` alone: alpha is part of the problem that is solved), other weightings than the plain mean, several steps for
   a client's own model. A client whose update is not finite is left out of the round.
5. Clients keep nothing. Their own models are made where they are evaluated, by ``personal_steps`` steps from the newest
   shared model on their training data; so are those of clients never seen. The gradient of f_i in w_i, which is over
   all of the client's data, is there that of one batch of ``batch_size`` examples: with one of at least the size of
   the client's data it is the paper's.
6. Running statistics of BatchNorm, which the paper does not have, are those of the passes at w - alpha grad f_i(w), the
   model that predicts.
"""

from __future__ import annotations

from functools import partial
from itertools import zip_longest

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from moiety.clients.own import Own, never_asked, own_model
from moiety.errors import MoietyError, choice, message, whole
from moiety.local import SgdOptions, clipped, difference, either, mean_loss, phase, positive_lr, sgd
from moiety.local.online import slope
from moiety.local.schedules import chosen as chosen_schedule
from moiety.server import averaging, check_weighting, client_weight, weighted_mean
from moiety.server.optimisers import chosen as chosen_server
from moiety.spec import recorded
from moiety.types import Algorithm, Batch, ClientUpdate, Params, Phase, Schedule, ServerOptimiser, Work

FORMS = ("hessian_vector", "first_order")


@recorded
def per_fedavg(
    *,
    lr: float,
    personal_lr: float,
    form: str = "hessian_vector",
    personal_steps: int = 1,
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
    """Per-FedAvg: a shared model to take one step from (Fallah et al. 2020).

    Args:
        lr: learning rate of the shared model on clients, beta.
        personal_lr: learning rate of the step to a client's own model, alpha.
        form: ``hessian_vector``, or ``first_order`` without the second derivative.
        personal_steps: steps to a client's own model where it is evaluated or onboarded; training looks one ahead.
        epochs: passes over the client's data; 1 where neither this nor the next is given.
        steps: or a number of steps, tau.
        batch_size: examples in each of the batches of a step; a client with fewer uses what it has.
        shuffle: False walks through the data in its order: all batches of a step are then the same.
        weight_decay: l2 penalty on the shared model.
        clip: largest norm of grad F_i.
        weighting: of the clients in the mean, by ``uniform``, ``examples`` or ``batches``.
        server: the server's optimiser; plain averaging by default.
        schedule: of ``lr`` across rounds; constant by default.

    Returns:
        The algorithm, for ``moiety.fit``.
    """
    positive_lr("lr", lr)
    positive_lr("personal_lr", personal_lr)
    choice("form", form, FORMS)
    whole("personal_steps", personal_steps, 1)
    check_weighting(weighting)
    options = SgdOptions(0.0, weight_decay, clip)
    optimiser = chosen_server(server)
    turns = ("inner", "outer") if form == "first_order" else ("inner", "outer", "curvature")

    def ahead(work: Work, model: Params, *batches: Batch | None) -> tuple[Params, Tensor, Params]:
        """The gradient of F_i at the model, the loss one step ahead, and the buffers that the pass there changed."""
        inner, outer, *curved = batches
        # One step ahead: w~ = w - alpha grad f_i(w; D)
        g = _slope(work, model, inner)[0]
        there = {**model, **{n: model[n] - personal_lr * g[n] for n in work.shared}}
        # The gradient of F_i: (I - alpha grad^2 f_i(w; D'')) grad f_i(w~; D')
        g, loss, changed = _slope(work, there, outer)
        if curved and curved[0] is not None:
            bent = _hessian_product(work, model, g, curved[0])
            g = {n: g[n] - personal_lr * bent[n] for n in work.shared}
        return g, loss, changed

    def client_update(work: Work, received: Params, state: Own) -> tuple[ClientUpdate, Own]:
        model = work.compose(received, state.personal)
        total, count = torch.zeros_like(work.examples), torch.zeros_like(work.examples)
        # Where the cost of one kind of batch is counted alone, the others have none.
        for batches in zip_longest(*map(work.batches, turns)):
            g, loss, changed = ahead(work, model, *batches)
            g = g if options.clip is None else clipped(g, options.clip)
            moved = {n: model[n] - lr * work.scale * (g[n] + options.weight_decay * model[n]) for n in work.shared}
            real = _real(work, *batches)
            model = {**model, **either(real, {**changed, **moved}, model)}
            total, count = total + torch.where(real, loss, 0), count + real
        change = difference(work.parts(model)[0], received)
        info = {"loss": total / count.clamp(min=1)}
        return ClientUpdate(change, client_weight(work, weighting, batch_size), info), state

    def adapt(work: Work, received: Params, state: Own) -> Own:
        # w_i = w - alpha grad f_i(w)
        model = work.compose(*own_model(received, state))
        lrs = dict.fromkeys(work.shared, personal_lr)
        model, _ = sgd(work, model, work.batches("personal"), lr=lrs, options=SgdOptions(0.0, 0.0, None))
        return Own(*work.parts(model), torch.ones_like(state.asked))

    local = phase("", epochs, steps, batch_size, shuffle)
    return Algorithm(
        name="per_fedavg",
        phases={**dict.fromkeys(turns, local), "personal": Phase(None, personal_steps, batch_size, shuffle)},
        init_server=partial(averaging.init_server, optimiser),
        init_client=_nothing_yet,
        broadcast=averaging.broadcast,
        client_update=client_update,
        aggregator=weighted_mean,
        server_update=partial(averaging.server_update, optimiser),
        personal_model=own_model,
        adapt=adapt,
        schedule=chosen_schedule(schedule),
        stateful=False,
        default_split="nothing",
        needs="nothing",
    )


def _slope(work: Work, model: Params, batch: Batch | None) -> tuple[Params, Tensor, Params]:
    """The gradient of f_i, the loss, and the buffers that the pass changed; 0 without a batch."""
    if batch is None:
        return {n: torch.zeros_like(model[n]) for n in work.shared}, torch.zeros_like(work.examples), {}
    return slope(work, model, work.shared, [batch])


def _hessian_product(work: Work, model: Params, vector: Params, batch: Batch) -> Params:
    """The Hessian of f_i at the model times a vector, by one more backward pass; the Hessian itself is never made."""

    def loss(block: Params) -> Tensor:
        return mean_loss(work.task.loss({**model, **block}, batch)[0], batch)

    # Fused attention has no second derivative; fused LSTMs have one, but only where autograd is on around them.
    try:
        with sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
            _, backward = torch.func.vjp(torch.func.grad(loss), {n: model[n] for n in work.shared})  # type: ignore[misc]
            (product,) = backward(vector)  # symmetric: from the left is from the right
    except RuntimeError as error:  # first derivatives were had before: what fails here is the second
        constraint = "one that can be differentiated twice for form='hessian_vector'"
        raise MoietyError(message("model", constraint, error, "Use form='first_order'.")) from error
    return product  # type: ignore[no-any-return]


def _real(work: Work, *batches: Batch | None) -> Tensor:
    """Whether a step is one: steps of padding, which keep clients of a block together, move nothing."""
    batch = next(b for b in batches if b is not None)
    return batch["mask"].any() if "mask" in batch else torch.ones_like(work.examples, dtype=torch.bool)


def _nothing_yet(shared: Params, personal: Params) -> Own:
    """The state of every client in training: the place where its own model will be."""
    return never_asked({n: torch.zeros_like(p) for n, p in shared.items()}, personal)
