"""FedPop: personal models as draws from a population whose prior is learned, each client's posterior sampled on it.

Kotelevskii, Vono, Moulines, Durmus. "FedPop: A Bayesian Approach for Personalised Federated Learning", NeurIPS 2022.
Algorithm 1 (FedSOUK); with ``moiety.kernel.langevin`` it is FedSOUL. It is printed without numbers: here line 1 is the
loop over k, and comments are not counted.

    max_(phi, beta) log p(phi) + log p(beta) + sum_i log int p(D_i | phi, z) p(z | beta) dz        (equation 3)

Symbols: phi the shared parameters in ``received``; beta its names ``prior:...``, for the default prior (mu, log sigma);
z^(i) the personal parameters as one vector, Z_k^(i,1:M) ``state.samples``; Q_gamma ``personal``; M ``samples``;
eta^(1) ``prior_lr``, eta^(2) ``shared.lr``; b ``clients``; A_k the cohort; log p(D | phi, z) = -``loss_weight`` times
the sum of the losses (1 for cross-entropy; k / (2 s^2) for the mean of k squared errors with noise of variance s^2).

Reduces, with the default prior, to FedAvg's objective at z = mu where sigma tends to 0, and to clients that fit z on
their own (FedRep) where it tends to infinity; without shared parameters it is the model of DG-LMC (section 4).

Deviations from the paper:

1. The chain ascends log p(z | D_i, phi, beta), as in Algorithm 1; the mean of the kernel that section 2 and the
   supplement's S2 write, z - gamma grad log p, has the wrong sign.
2. What a client sends is multiplied by the step size and has its share 1 / b of the gradients of log p(phi) and log
   p(beta) (as in S6), so that the server may use any optimiser. With the default server the sum is lines 13 and 14.
3. Without ``clients`` the objective is divided by b: step sizes are then b times Algorithm 1's, and the
   priors on phi and beta count once for each client. Clients count alike whatever their size, since their gradients
   are sums over examples. The mean over A_k times b is unbiased for cohorts of a fixed size, and for independent
   (Bernoulli) participation given that anyone takes part (``moiety.Settings(participation="bernoulli")``).
4. Line 11 compresses the gradient of phi, and ``moiety.Settings(codec=...)`` does; beta's goes as it is.
5. A chain that was never begun starts at the centre of the prior, where Algorithm 1 has any point. Without state, and
   for clients never seen, it makes ``burn_in`` times as many steps first, of which nothing is kept. With ``thinning``
   n, every n-th step is kept. gamma is constant, where S1.3 has gamma_k.
6. sigma is learned, and averaged, through its logarithm. Projections, after each step, are a ball for phi (``radius``)
   and what the prior says for beta. One ``schedule`` serves both step sizes; an optimiser that divides by the size of
   gradients (Adam) undoes it.
7. Where one model is asked for, it is the mean of the samples: for a personal part that is linear in z (an output
   layer) it gives the mean of the outputs, and it does not jump from round to round as the last sample does. A client
   that was never asked has the centre of the prior. ``run.predictive`` uses all samples. They are those of a client's
   last turn, where section 5 draws anew at the end: ``run.predictive(..., refresh=True)``.
8. ``averaged`` keeps the mean of the iterates weighted by their step sizes (Theorem 1). Chains are run at the last
   iterate, models and newcomers are served with the mean; both go down, and the schedule's factor goes up.
9. A prior that is held fixed (``learn_prior=False``) goes down with phi all the same.
10. Models whose batches mix examples (BatchNorm) are refused: their likelihood is no product over examples.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from moiety.errors import kind, must, number, whole
from moiety.local import (
    ALL,
    WHOLE,
    Optimiser,
    add_prefix,
    check_rate,
    count_rows,
    from_vector,
    gradient_over_samples,
    project_to_ball,
    sgd_work,
    take_prefix,
    to_vector,
)
from moiety.local.kernels import Kernel, walk
from moiety.local.priors import Prior, gaussian
from moiety.server.averaging import assemble
from moiety.server.optimisers import server_or_mean
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Phase, Posterior, Schedule, ServerOptimiser, Tree, Wire, Work

PRIOR, MEAN, STEP = "prior:", "average:", "average:step"


class Client(NamedTuple):
    """Z^(i,1:M), by name and with a leading axis over samples, and whether a chain was ever begun."""

    samples: Params
    asked: Tensor


class Server(NamedTuple):
    """phi, beta, shared buffers, the optimiser's state; the averaged iterate and the sum of its weights."""

    shared: Params
    prior: Params
    statistics: Params
    optimiser: Tree
    average: Params
    total: Tensor


@recorded
def fedpop(
    *,
    shared: float | Optimiser,
    personal: Kernel,
    prior_lr: float | None = None,
    prior: Prior | None = None,
    learn_prior: bool = True,
    samples: int = 20,
    thinning: int = 1,
    burn_in: int = 10,
    loss_weight: float = 1.0,
    clients: int | None = None,
    radius: float | None = None,
    averaged: bool = False,
    server: ServerOptimiser | None = None,
    schedule: Schedule | None = None,
    stateful: bool = True,
) -> Algorithm:
    """FedPop: a learned prior over personal parameters, a posterior for every client (Kotelevskii et al. 2022).

    Args:
        shared: the step on the shared parameters: eta^(2), or ``moiety.sgd(eta, weight_decay=r)`` for log p(phi) =
            -(r / 2) ||phi||^2. Its ``batch_size`` is how many rows the gradient takes at a time; it is over all rows in
            any case.
        personal: the Markov kernel of the chains, for instance ``moiety.kernel.langevin(step=0.01)``.
        prior_lr: step size of the prior's parameters, eta^(1); that of the shared parameters by default.
        prior: of the personal parameters; ``moiety.prior.gaussian()`` by default.
        learn_prior: False holds the prior fixed, for few clients.
        samples: M, how many draws of its posterior a client makes in a round, and keeps.
        thinning: steps of the chain for each of them.
        burn_in: where a chain is not continued, it makes ``burn_in * samples * thinning`` steps first.
        loss_weight: what turns a loss into minus a log-likelihood.
        clients: b, the number of clients; left out, the objective is divided by it.
        radius: the shared parameters stay within this distance of 0.
        averaged: serve models with the averaged iterates.
        server: the server's optimiser for phi and beta; plain steps by default.
        schedule: of both step sizes across rounds; constant by default.
        stateful: False lets chains begin anew each time, with burn-in.
    """
    none = ("epochs", "steps", "shuffle", "pull", "clip")
    shared_sgd = sgd_work("shared", shared, batch_size=ALL, without=none)
    kind("personal", personal, Kernel, "a Markov kernel", "For instance moiety.kernel.langevin(step=0.01).")
    kind("prior", prior, (Prior, type(None)), "a prior", "For instance moiety.prior.gaussian(scale=1.0).")
    population = prior or gaussian()
    prior_rate = shared_sgd.lr if prior_lr is None else prior_lr
    check_rate("prior_lr", prior_rate)
    for name, count, least in (("samples", samples, 1), ("thinning", thinning, 1), ("burn_in", burn_in, 0)):
        whole(name, count, least)
    number("loss_weight", loss_weight, "> 0 and finite", lambda x: 0 < x < math.inf)
    if clients is not None:
        whole("clients", clients, 1)
    if radius is not None:
        number("radius", radius, "> 0", lambda x: x > 0)
    for name, flag in {"learn_prior": learn_prior, "averaged": averaged, "stateful": stateful}.items():
        kind(name, flag, bool, "true or false")
    optimiser = server_or_mean(server)
    minibatches = personal.batch_size is not None
    b = 1 if clients is None else clients

    def chain(
        work: Work, shared: Params, beta: Params, state: Client, *, anew: bool
    ) -> tuple[list[Params], Params, Tensor]:
        """Lines 3 to 8: the samples Z_k^(i,1:M), the last of which is where the chain stands; the model, the loss."""
        _check(work, state)
        last = _last_sample(state)
        # Lines 3-5: warm start
        start = torch.where(state.asked, to_vector(last), population.centre(beta))
        model = work.compose(shared, from_vector(start, last))
        # Lines 6-8: Z^(i,m+1) ~ Q_gamma(Z^(i,m), .)
        density: dict[str, Any] = {"log_prior": partial(population.log_density, beta), "loss_weight": loss_weight}
        # Where there are minibatches the phase is as much longer.
        passes = 1 + burn_in if anew and not minibatches else 1
        points, loss = walk(work, personal, model, start, "sample", passes=passes, keep=samples * thinning, **density)
        return (_list_samples(state.samples) + points[thinning - 1 :: thinning])[-samples:], model, loss

    def shared_gradient(work: Work, model: Params, points: list[Params]) -> Params:
        """Line 10: J^(i), the mean over samples of grad_phi log p(D_i | Z, phi); with its share of log p(phi)."""
        total = {name: -shared_sgd.weight_decay / b * model[name] for name in work.shared}
        for batch in work.batches("shared") if work.shared else ():
            gradient, rows = gradient_over_samples(work, model, points, work.shared, batch), count_rows(batch)
            total = {name: g - loss_weight * (gradient[name] * rows) for name, g in total.items()}
        return total

    def prior_gradient(work: Work, beta: Params, points: list[Params]) -> Params:
        """Line 9: I^(i), the mean over samples of grad_beta log p(Z | beta); with its share of log p(beta)."""
        vectors = [to_vector(point) for point in points]

        def objective(at: Params) -> tuple[Tensor, Params]:
            value = torch.stack([population.log_density(at, z) for z in vectors]).mean()
            return value if population.hyper is None else value + population.hyper(at) / b, {}

        return work.gradient(objective, beta)[0]

    def client_update(work: Work, received: Params, state: Client) -> tuple[ClientUpdate, Client]:
        shared, beta = _split_received(received)
        points, model, loss = chain(work, shared, beta, state, anew=not stateful)
        eta, rate = (lr * work.scale * b for lr in (shared_sgd.lr, prior_rate))
        upload = {name: torch.zeros_like(p) for name, p in shared.items()}  # of buffers, which do not move
        upload |= {name: eta * g for name, g in shared_gradient(work, model, points).items()}
        if learn_prior:
            upload |= {PRIOR + name: rate * g for name, g in prior_gradient(work, beta, points).items()}
        if averaged:
            upload[STEP] = population.centre(beta).new_full((), work.scale)
        # Line 11
        update = ClientUpdate(upload, torch.ones_like(work.examples), {"loss": loss})
        return update, _keep_samples(points, state) if stateful else state

    def adapt(work: Work, received: Params, state: Client) -> Client:
        return _keep_samples(chain(work, *choose_iterates(received), state, anew=True)[0], state)

    def choose_iterates(received: Params) -> tuple[Params, Params]:
        """The shared part and beta that models are made with: the newest, or the averaged ones."""
        shared, beta = _split_received(received)
        if not averaged:
            return shared, beta
        mean_shared, mean_beta = _split_received(take_prefix(received, MEAN))
        return {**shared, **mean_shared}, {**beta, **mean_beta}

    def server_update(server: Server, change: Params, share: float) -> Server:
        # Lines 13-14
        held = {**server.shared, **(add_prefix(server.prior, PRIOR) if learn_prior else {})}
        moved, state = optimiser.step(held, {name: change[name] for name in held}, server.optimiser)
        phi = {name: moved[name] for name in server.shared}
        shared = phi if radius is None else project_to_ball(phi, radius)
        beta = population.project(take_prefix(moved, PRIOR)) if learn_prior else server.prior
        statistics = {name: s + change[name] for name, s in server.statistics.items()}
        if not averaged:
            return Server(shared, beta, statistics, state, server.average, server.total)
        total = server.total + change[STEP]
        newest = torch.where(total > 0, change[STEP] / total, 0)
        new = {**shared, **statistics, **add_prefix(beta, PRIOR)}
        average = {name: a + newest * (new[name] - a) for name, a in server.average.items()}
        return Server(shared, beta, statistics, state, average, total)

    def init_server(shared: Params, statistics: Params, personal: Params) -> Server:
        beta = population.init(to_vector(personal))
        held = {**shared, **add_prefix(beta, PRIOR)}
        average = {**held, **statistics} if averaged else {}
        total = population.centre(beta).new_zeros(())
        return Server(dict(shared), beta, dict(statistics), optimiser.init(held), average, total)

    def broadcast(server: Server) -> Params:  # line 15
        down = {**server.shared, **server.statistics, **add_prefix(server.prior, PRIOR)}
        return down | add_prefix(server.average, MEAN)

    def layout(shared: Params, personal: Params) -> tuple[Params, Params]:
        beta = add_prefix(population.init(to_vector(personal)), PRIOR)
        down, up = {**shared, **beta}, {**shared, **(beta if learn_prior else {})}
        if not averaged:
            return down, up
        return {**down, **add_prefix({**shared, **beta}, MEAN)}, {**up, STEP: to_vector(personal).new_zeros(())}

    def draws(received: Params, state: Client) -> Params:
        centre = from_vector(population.centre(choose_iterates(received)[1]), _last_sample(state))
        return {name: torch.where(state.asked, z, centre[name]) for name, z in state.samples.items()}

    def personal_model(received: Params, state: Client) -> tuple[Params, Params]:
        return choose_iterates(received)[0], {name: z.mean(0) for name, z in draws(received, state).items()}

    def newcomer(key: Tensor, received: Params, state: Client) -> Client:
        beta, like = choose_iterates(received)[1], _last_sample(state)
        points = [from_vector(population.draw(beta, key, "population", m), like) for m in range(samples)]
        return _keep_samples(points, state)

    def init_client(shared: Params, personal: Params) -> Client:
        draws = {name: p.expand(samples, *p.shape).clone() for name, p in personal.items()}
        return Client(draws, torch.zeros((), dtype=torch.bool))

    steps = samples * thinning
    anew = steps * (1 + burn_in) if minibatches else steps  # on all rows, the chain goes through its phase again
    sample = Phase(None, steps if stateful else anew, personal.batch_size or WHOLE, minibatches, newcomer_steps=anew)
    return assemble(
        phases={"sample": sample, "shared": Phase(1, None, shared_sgd.rows, False)},
        init_server=init_server,
        init_client=init_client,
        broadcast=broadcast,
        client_update=client_update,
        server_update=server_update,
        personal_model=personal_model,
        adapt=adapt,
        schedule=schedule,
        stateful=stateful,
        wire=Wire(layout, uncompressed=lambda name: name.startswith((PRIOR, STEP))),
        posterior=Posterior(draws, newcomer, clients),
    )


def _check(work: Work, state: Client) -> None:
    hint, got = "Use group or layer normalisation.", "BatchNorm, or running statistics"
    must(not work.task.mixes_examples, "model", "one whose examples are independent for fedpop", got, hint)
    odd = [name for name in state.samples if name not in work.personal]
    must(not odd, "split", "one whose personal part is trained parameters alone for fedpop", ", ".join(odd))


def _split_received(received: Params) -> tuple[Params, Params]:
    """phi (and shared buffers) and beta."""
    shared = {name: p for name, p in received.items() if not name.startswith((PRIOR, MEAN))}
    return shared, take_prefix(received, PRIOR)


def _last_sample(state: Client) -> Params:
    """Where the client's chain stands."""
    return {name: z[-1] for name, z in state.samples.items()}


def _list_samples(samples: Params) -> list[Params]:
    """The samples one by one."""
    return [{name: z[m] for name, z in samples.items()} for m in range(len(next(iter(samples.values()))))]


def _keep_samples(points: list[Params], state: Client) -> Client:
    """The state of a client whose chain has begun."""
    return Client({name: torch.stack([p[name] for p in points]) for name in points[0]}, torch.ones_like(state.asked))
