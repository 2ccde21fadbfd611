"""FedPop: personal models as draws from a population whose prior is learned, each client's posterior sampled on it.

Kotelevskii, Vono, Moulines, Durmus. "FedPop: A Bayesian Approach for Personalised Federated Learning", NeurIPS 2022.
Algorithm 1 (FedSOUK); with ``moiety.kernel.langevin`` it is FedSOUL. It is printed without numbers: here line 1 is the
loop over k, and comments are not counted.

    max_(phi, beta) log p(phi) + log p(beta) + sum_i log int p(D_i | phi, z) p(z | beta) dz        (equation 3)

Symbols: phi the shared parameters in ``received``; beta its names ``prior:...``, for the default prior (mu, log sigma);
z^(i) the personal parameters as one vector, Z_k^(i,1:M) ``state.samples``; Q_gamma ``personal``; M ``samples``;
eta^(1) ``prior_lr``, eta^(2) ``shared.lr``; b ``clients``; A_k the cohort; log p(D | phi, z) = -``loss_weight`` times
the sum of the losses (1 for cross-entropy; k / (2 s^2) for the mean of k squared errors with ``noise`` s).

Reduces, with the default prior, to FedAvg's objective at z = mu where sigma tends to 0, and to clients that fit z on
their own (FedRep) where it tends to infinity; without shared parameters it is the model of DG-LMC (section 4).

Deviations from the paper:

1. The chain climbs log p(z | D_i, phi, beta), as in Algorithm 1. Section 2 and S2 of the supplement print the wrong
   sign: they give the mean of the kernel as z - gamma grad log p.
2. A client multiplies what it sends by the step size, and adds its share 1 / b of the gradients of log p(phi) and log
   p(beta) (as in S6). So the server can use any optimiser. The default server gives lines 13 and 14.
3. Without ``clients`` the objective is divided by b: step sizes are then b times Algorithm 1's, and the priors on phi
   and beta count once for each client. The mean over clients is unweighted, because their gradients are sums over
   examples. b times the mean over A_k is unbiased for cohorts of a fixed size. If each client takes part by chance
   (``moiety.Settings(participation="bernoulli")``), it is unbiased over the rounds in which anyone does.
4. ``moiety.Settings(codec=...)`` compresses the gradient of phi (line 11). The gradient of beta is not compressed.
5. A new chain starts at the centre of the prior, or at a draw from it if the kernel finds its own step size. Algorithm
   1 allows any point. Clients without state and new clients first make ``burn_in`` times as many steps and keep none of
   them. With ``thinning`` n, every n-th step after ``turn_burn_in`` is kept. gamma_k of S1.3 is gamma / (1 +
   k)^``step_decay``; with ``mala()`` each client has its own gamma.
6. sigma is learned and averaged through its logarithm. Without ``prior_lr`` line 13 is a natural gradient step: round k
   goes (1 + k / 10)^-0.7 of the way to the beta under which the draws are most likely (stochastic EM). Without
   ``shared`` line 14 is a step of Adam times (1 + k / 50)^-0.7. phi is projected to a ball (``radius``), and beta as
   its prior says. One ``schedule`` multiplies both step sizes. It has no effect with Adam, which divides by the size of
   gradients.
7. A single model has the mean of the samples as personal part. If the output is linear in z (an output layer), this
   gives the mean of the outputs, and it does not jump from round to round as the last sample does. A client that never
   took part has the centre of the prior. ``run.predictive`` uses all samples of a client's last turn. Section 5 draws
   anew at the end, as does ``run.predictive(..., fresh=True)``.
8. ``averaged`` keeps the mean of phi and beta over the rounds, weighted by step sizes (Theorem 1). Chains use the
   newest values; models and new clients use the mean. Both are broadcast, and the schedule's factor is uploaded.
9. A fixed prior (``learn_prior=False``) is still broadcast with phi.
10. The noise s of a regression is learned in the same way as beta, from sums of squared errors that clients send. The
    paper's experiments know it. Steps of phi are then multiplied by s^2, so that their size does not depend on s.
11. With ``shared_steps`` n, line 10 is done n times with the same draws, as in section 5, and the sum is sent.
12. Models whose batches mix examples (BatchNorm) are refused: their likelihood is not a product over examples.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from moiety import tree
from moiety.errors import kind, must, number, whole
from moiety.local import (
    ALL,
    WHOLE,
    Optimiser,
    add_prefix,
    check_rate,
    count_rows,
    drop_prefix,
    from_vector,
    gradient_over_samples,
    project_to_ball,
    sgd_work,
    take_prefix,
    to_vector,
)
from moiety.local.kernels import Factor, Kernel, Walk, begin_tuning, mala, walk
from moiety.local.noise import ERRORS, LEARNED, NOISE, SQUARES, Likelihood, advance_noise, describe_errors
from moiety.local.priors import Prior, gaussian
from moiety.server.averaging import assemble
from moiety.server.optimisers import adam, server_or_mean
from moiety.spec import recorded
from moiety.types import Algorithm, ClientUpdate, Params, Phase, Posterior, Schedule, ServerOptimiser, Tree, Wire, Work

PRIOR, MEAN, STEP = "prior:", "average:", "average:step"
NEW, WELL, LOST = 0, 1, 2  # a chain never begun; one that stays in its density; one that left it in its last turn


class Client(NamedTuple):
    """Z^(i,1:M), with a leading axis over samples; how the chain fares (``NEW``...); its own step size, if any."""

    samples: Params
    chain: Tensor
    tuning: Tree


class Server(NamedTuple):
    """phi, beta, shared buffers, the optimiser's state; the averaged iterate and the sum of its weights; log s; k."""

    shared: Params
    prior: Params
    statistics: Params
    optimiser: Tree
    average: Params
    total: Tensor
    noise: Params
    steps: Tensor


@recorded
def fedpop(
    *,
    shared: float | Optimiser | None = None,
    personal: Kernel | None = None,
    prior_lr: float | None = None,
    prior: Prior | None = None,
    learn_prior: bool = True,
    samples: int = 20,
    thinning: int = 1,
    burn_in: int = 10,
    turn_burn_in: int = 0,
    shared_steps: int = 1,
    step_decay: float = 0.0,
    loss_weight: float | None = None,
    noise: float | str | None = None,
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
            -(r / 2) ||phi||^2. Its ``batch_size`` is how many rows the gradient, which is over all rows, takes at a
            time. Left out, the server's Adam makes steps of 0.05 that shrink from round to round.
        personal: the Markov kernel of the chains, for instance ``moiety.kernel.langevin(step=0.01)``; by default
            ``moiety.kernel.mala()``, which finds a step size for each client.
        prior_lr: step size of the prior's parameters, eta^(1), for the gradient steps of Algorithm 1. Left out, they
            are natural gradients, with a size of their own; for a prior that has none, that of the shared parameters.
        prior: of the personal parameters; ``moiety.prior.gaussian()``, with ``scale=None`` for natural gradients.
        learn_prior: False holds the prior fixed, for few clients.
        samples: M, how many draws of its posterior a client makes in a round, and keeps.
        thinning: steps of the chain for each of them.
        burn_in: where a chain is not continued, it makes ``burn_in`` times as many steps first as in a turn.
        turn_burn_in: steps at the beginning of every turn of which nothing is kept.
        shared_steps: steps on the shared parameters in a turn, all with the same draws.
        step_decay: a, so that the step size of chains in round k (from 0) is gamma_k = gamma / (1 + k)^a.
        loss_weight: what turns a loss into minus a log-likelihood; 1 by default, except with the loss ``mse``.
        noise: the deviation s of observations, or ``learned``, the default with the loss ``mse``.
        clients: b, the number of clients; left out, the objective is divided by it.
        radius: the shared parameters stay within this distance of 0.
        averaged: serve models with the averaged iterates.
        server: the server's optimiser for phi and beta; plain steps by default.
        schedule: of both step sizes across rounds; constant by default.
        stateful: False lets chains begin anew each time, with burn-in.
    """
    inputs = dict(locals())
    unsupported = ("epochs", "steps", "shuffle", "pull", "clip")
    shared_sgd = sgd_work("shared", 1.0 if shared is None else shared, batch_size=ALL, without=unsupported)
    kernel = mala() if personal is None else personal
    kind("personal", kernel, Kernel, "a Markov kernel", "For instance moiety.kernel.langevin(step=0.01).")
    kind("prior", prior, (Prior, type(None)), "a prior", "For instance moiety.prior.gaussian(scale=1.0).")
    adaptive = learn_prior is True and prior_lr is None
    population = prior or gaussian(scale=None if adaptive else 1.0)
    natural = adaptive and population.advance is not None
    prior_rate = shared_sgd.lr if prior_lr is None else prior_lr
    check_rate("prior_lr", prior_rate)
    least_one = {"samples": samples, "thinning": thinning, "shared_steps": shared_steps}
    for name, count in {**least_one, "burn_in": burn_in, "turn_burn_in": turn_burn_in}.items():
        whole(name, count, int(name in least_one))
    number("step_decay", step_decay, ">= 0 and finite", lambda x: 0 <= x < math.inf)
    likelihood = Likelihood(loss_weight, noise)
    if clients is not None:
        whole("clients", clients, 1)
    if radius is not None:
        number("radius", radius, "> 0", lambda x: x > 0)
    for name, flag in {"learn_prior": learn_prior, "averaged": averaged, "stateful": stateful}.items():
        kind(name, flag, bool, "true or false")
    optimiser = adam(lr=0.05, beta2=0.9) if shared is None and server is None else server_or_mean(server)
    minibatches = kernel.batch_size is not None
    b = 1 if clients is None else clients

    def chain(work: Work, received: Params, state: Client, *, anew: bool, keep: int | None, tune_all: bool) -> Walk:
        """Lines 3 to 8: Z_k^(i,1:M), the last of which is where the chain stands."""
        _check_model(work, state)
        (phi, beta), last = _split_received(received), _last_sample(state)
        # Lines 3-5: warm start
        first = population.centre(beta) if not state.tuning else population.draw(beta, work.key, work.turn, "start")
        start = torch.where(state.chain != NEW, to_vector(last), first)
        model = work.compose(phi, from_vector(start, last))
        # Lines 6-8: Z^(i,m+1) ~ Q_gamma(Z^(i,m), .)
        run = partial(walk, work, kernel, model, start, "sample", keep=keep, tune_all=tune_all)
        return run(
            log_prior=partial(population.log_density, beta),
            loss_weight=likelihood.weigh(work, received, "sample"),
            tuning=state.tuning or None,
            factor=(1 + work.round) ** -step_decay,
            passes=1 + burn_in if anew and not minibatches else 1,  # with minibatches the phase itself is longer
        )

    def keep_walk(path: Walk, state: Client, *, every: int) -> tuple[list[Params], Client]:
        """The samples, which are every ``every``-th point of the chain, and the state that holds them."""
        points = (tree.unstack(state.samples, samples) + path.points[every - 1 :: every])[-samples:]
        chain = torch.where(path.diverges, LOST, WELL).to(state.chain.dtype)
        return points, _keep_samples(points, state)._replace(tuning=path.tuning or (), chain=chain)

    def shared_gradient(work: Work, model: Params, points: list[Params], weight: Factor) -> Params:
        """Line 10: J^(i), the mean over samples of grad_phi log p(D_i | Z, phi); with its share of log p(phi)."""
        total = {name: -shared_sgd.weight_decay / b * model[name] for name in work.shared}
        for batch in work.batches("shared") if work.shared else ():
            gradient, rows = gradient_over_samples(work, model, points, work.shared, batch), count_rows(batch)
            total = {name: g - (weight * (gradient[name] * rows)).to(g.dtype) for name, g in total.items()}
        return total

    def shared_change(work: Work, model: Params, points: list[Params], weight: Factor, eta: Factor) -> Params:
        """Line 11: eta J^(i), or the sum of several such steps, each at the phi where the one before ended."""
        change: Params = {}
        for _ in range(shared_steps):
            at = {**model, **{name: model[name] + c for name, c in change.items()}}
            gradient = shared_gradient(work, at, points, weight)
            step = {name: (eta * g).to(g.dtype) for name, g in gradient.items()}
            change = {name: change[name] + s if change else s for name, s in step.items()}
        return change

    def prior_gradient(work: Work, beta: Params, points: list[Params]) -> Params:
        """Line 9: I^(i), the mean over samples of grad_beta log p(Z | beta); with its share of log p(beta)."""
        vectors = [to_vector(point) for point in points]

        def objective(at: Params) -> tuple[Tensor, Params]:
            value = torch.stack([population.log_density(at, z) for z in vectors]).mean()
            return value if population.hyper is None else value + population.hyper(at) / b, {}

        return work.gradient(objective, beta)[0]

    def client_update(work: Work, received: Params, state: Client) -> tuple[ClientUpdate, Client]:
        # Lines 3-8: Z^(i,1:M), the posterior's draws
        path = chain(work, received, state, anew=not stateful, keep=steps, tune_all=True)
        points, after = keep_walk(path, state, every=thinning)
        phi, beta = _split_received(received)
        # Lines 10-11: eta^(2) J^(i)
        eta, rate = (lr * work.scale * b for lr in (shared_sgd.lr, prior_rate))
        log_noise = received[NOISE] if likelihood.learns else None
        size = eta if log_noise is None else eta * (2 * log_noise).exp()  # in units of squared errors
        upload = {name: torch.zeros_like(p) for name, p in phi.items()}  # of buffers, which do not move
        upload |= shared_change(work, path.model, points, likelihood.weigh(work, received, "sample"), size)
        if learn_prior:  # line 9: eta^(1) I^(i)
            gradient = prior_gradient(work, beta, points)
            if natural:
                gradient, rate = population.precondition(beta, gradient), work.scale  # type: ignore[misc]
            upload |= {PRIOR + name: rate * g for name, g in gradient.items()}
        if averaged:
            upload[STEP] = population.centre(beta).new_full((), work.scale)
        if log_noise is not None:
            upload |= describe_errors(work, path.model, points, "shared", log_noise)
        return ClientUpdate(upload, torch.ones_like(work.examples), {"loss": path.loss}), after if stateful else state

    def adapt(work: Work, received: Params, state: Client) -> Client:
        path = chain(work, serve(received), state, anew=True, keep=steps, tune_all=False)
        return keep_walk(path, state, every=thinning)[1]

    def continue_chain(work: Work, received: Params, state: Client) -> tuple[Params, Client]:
        path = chain(work, serve(received), state, anew=False, keep=None, tune_all=False)
        return tree.stack(path.points), keep_walk(path, state, every=1)[1]

    def serve(received: Params) -> Params:
        """What models are made with: the newest iterates, or the averaged ones."""
        return {**received, **{name: p for name, p in take_prefix(received, MEAN).items() if averaged}}

    def server_update(server: Server, change: Params, share: float) -> Server:
        gain = (1 + server.steps / 10) ** -0.7
        # Lines 13-14
        by_gradient = add_prefix(server.prior, PRIOR) if learn_prior and not natural else {}
        params = {**server.shared, **by_gradient}
        iterates, state = optimiser.step(params, {name: change[name] for name in params}, server.optimiser)
        if shared is None:
            slow = (1 + server.steps / 50) ** -0.7
            iterates = {name: torch.lerp(p, iterates[name], slow.to(p.dtype)) for name, p in params.items()}
        phi = {name: iterates[name] for name in server.shared}
        phi = phi if radius is None else project_to_ball(phi, radius)
        beta = take_prefix(iterates, PRIOR) if by_gradient else server.prior
        if learn_prior and natural:
            step = {name: gain.to(p.dtype) * change[PRIOR + name] for name, p in beta.items()}
            beta = population.advance(beta, step)  # type: ignore[misc]
        beta = population.project(beta) if learn_prior else beta
        log_noise = {n: advance_noise(s, change[SQUARES], change[ERRORS], gain) for n, s in server.noise.items()}
        statistics = {name: s + change[name] for name, s in server.statistics.items()}
        average, total = server.average, server.total
        if averaged:
            total = total + change[STEP]
            newest = torch.where(total > 0, change[STEP] / total, 0)
            new = {**phi, **statistics, **add_prefix(beta, PRIOR), **log_noise}
            average = {name: a + newest * (new[name] - a) for name, a in average.items()}
        return Server(phi, beta, statistics, state, average, total, log_noise, server.steps + 1)

    def init_server(shared: Params, statistics: Params, personal: Params) -> Server:
        beta = population.init(to_vector(personal))
        zero = population.centre(beta).new_zeros(())
        log_noise = {NOISE: zero.clone()} if likelihood.learns else {}
        params = {**shared, **add_prefix(beta, PRIOR)}
        average = {**params, **statistics, **log_noise} if averaged else {}
        count = torch.zeros((), dtype=torch.float64)
        return Server(dict(shared), beta, dict(statistics), optimiser.init(params), average, zero, log_noise, count)

    def broadcast(server: Server) -> Params:  # line 15
        down = {**server.shared, **server.statistics, **add_prefix(server.prior, PRIOR), **server.noise}
        return down | add_prefix(server.average, MEAN)

    def layout(shared: Params, personal: Params) -> tuple[Params, Params]:
        beta = add_prefix(population.init(to_vector(personal)), PRIOR)
        one = to_vector(personal).new_zeros(())
        down = {**shared, **beta, **({NOISE: one} if likelihood.learns else {})}
        up = {**shared, **(beta if learn_prior else {})}
        up |= {SQUARES: one, ERRORS: one} if likelihood.learns else {}
        return ({**down, **add_prefix(down, MEAN)}, {**up, STEP: one}) if averaged else (down, up)

    def take_draws(received: Params, state: Client) -> Params:
        centre = from_vector(population.centre(_split_received(serve(received))[1]), _last_sample(state))
        return {name: torch.where(state.chain != NEW, z, centre[name]) for name, z in state.samples.items()}

    def personal_model(received: Params, state: Client) -> tuple[Params, Params]:
        return _split_received(serve(received))[0], {name: z.mean(0) for name, z in take_draws(received, state).items()}

    def draw_newcomer(key: Tensor, received: Params, state: Client, count: int = samples) -> Client:
        beta, like = _split_received(serve(received))[1], _last_sample(state)
        points = [from_vector(population.draw(beta, key, "population", m), like) for m in range(count)]
        return _keep_samples(points, state)

    def init_client(shared: Params, personal: Params) -> Client:
        draws = {name: p.expand(samples, *p.shape).clone() for name, p in personal.items()}
        vector = to_vector(personal)
        return Client(draws, vector.new_full((), NEW, dtype=torch.uint8), begin_tuning(kernel, vector) or ())

    def for_loss(loss: Any) -> Algorithm | None:
        learns = loss == "mse" and noise is None and loss_weight is None
        return fedpop(**{**inputs, "noise": LEARNED}) if learns else None

    steps = samples * thinning
    turn = steps + turn_burn_in
    anew = turn * (1 + burn_in) if minibatches else turn  # on all rows, the chain goes through its phase again
    sample = Phase(None, turn if stateful else anew, kernel.batch_size or WHOLE, minibatches, newcomer_steps=anew)
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
        wire=Wire(layout, uncompressed=lambda name: name.startswith((PRIOR, STEP, SQUARES, ERRORS))),
        posterior=Posterior(
            samples=take_draws,
            population=draw_newcomer,
            clients=clients,
            go_on=continue_chain,
            noise=lambda received: likelihood.deviation(serve(received)),
            report=_report_chain,
            for_loss=for_loss,
        ),
    )


def _check_model(work: Work, state: Client) -> None:
    hint, fault = "Use group or layer normalisation.", "BatchNorm, or running statistics"
    must(not work.task.mixes_examples, "model", "one whose examples are independent for fedpop", fault, hint)
    odd = [name for name in state.samples if name not in work.personal]
    must(not odd, "split", "one whose personal part is trained parameters alone for fedpop", ", ".join(odd))


def _split_received(received: Params) -> tuple[Params, Params]:
    """phi (and shared buffers) and beta."""
    return drop_prefix(received, PRIOR, MEAN, NOISE), take_prefix(received, PRIOR)


def _last_sample(state: Client) -> Params:
    """Where the client's chain stands."""
    return {name: z[-1] for name, z in state.samples.items()}


def _keep_samples(points: list[Params], state: Client) -> Client:
    """The state of a client whose chain has begun."""
    return state._replace(samples=tree.stack(points), chain=torch.full_like(state.chain, WELL))


def _report_chain(state: Client) -> dict[str, float | bool]:
    """What a client knows of its chain besides its draws."""
    report: dict[str, float | bool] = {"diverges": bool(state.chain == LOST)}
    if state.tuning:
        report |= {"step": float(state.tuning.log_step.exp()), "acceptance": float(state.tuning.accepted)}
    return report
