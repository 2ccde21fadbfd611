"""FedPop against Algorithm 1 written in NumPy (``oracle_fedpop``), and what its options do."""

from itertools import product

import numpy as np
import pytest
import torch
from flat_options import flat
from oracle_fedpop import Reference, noise
from oracle_problems import federated, split_of, vector_clients, vector_task
from run_settings import with_settings
from torch import nn

import moiety as mo
from moiety.clients import uniform_cohort
from moiety.engines.rows import phase_rows
from moiety.task import from_functions
from moiety.types import ClientUpdate

SIZES = (4, 7, 3)
CLIENTS = vector_clients(SIZES, seed=3)
U, V = np.array([0.5, -0.3]), np.array([0.2, 0.1])
SPLIT = split_of(["u"], ["v"], {"u": 2, "v": 2})
STEP, WEIGHT, ETA_PRIOR, ETA_SHARED = 0.02, 0.7, 0.03, 0.01


def algorithm_1(rounds, samples, thinning=1, b=1, cohorts=None, factors=None, **options):
    start = {"u": U.copy(), "mu": V.copy(), "rho": np.log(0.8), "step": STEP, "weight": WEIGHT}
    start |= {"eta_shared": ETA_SHARED, "eta_prior": ETA_PRIOR, "samples": samples, "thinning": thinning, "b": b}
    return Reference(CLIENTS, **start, **options).run(rounds, cohorts, factors)


def fedpop(**options):
    defaults = {"kernel": mo.kernel.langevin(step=STEP), "shared_lr": ETA_SHARED, "prior_lr": ETA_PRIOR}
    defaults |= {"prior": mo.prior.gaussian(scale=0.8), "loss_weight": WEIGHT}
    return flat(mo.fedpop, **{**defaults, **options})


def fit(algorithm, rounds, engine="sequential", **options):
    task = vector_task(U, V)
    return mo.fit(
        task, federated(CLIENTS), algorithm, **with_settings(split=SPLIT, rounds=rounds, engine=engine, **options)
    )


def serve_models(run):
    """phi, mu, log sigma as the server holds them."""
    server = run._loop.progress.server
    return server.shared["u"].numpy(), server.prior["mean"].numpy(), float(server.prior["log_scale"])


def same_server(run, reference):
    values = serve_models(run)
    np.testing.assert_allclose(values[0], reference.u, rtol=1e-10)
    np.testing.assert_allclose(values[1], reference.mu, rtol=1e-10)
    assert values[2] == pytest.approx(reference.rho, rel=1e-10)


def same(run, reference):
    same_server(run, reference)
    for i, points in reference.last.items():
        (state,) = run._loop.progress.store.get([i])
        np.testing.assert_allclose(state.samples["v"].numpy(), points, rtol=1e-10)
        np.testing.assert_allclose(run.parameters(i)["v"].numpy(), np.mean(points, axis=0), rtol=1e-10)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_four_rounds_are_algorithm_1(engine):
    run = fit(fedpop(samples=3, thinning=2, clients=3), 4, engine)
    same(run, algorithm_1(4, 3, 2, b=3))


def test_b_over_a_scales_a_cohort_to_the_population():
    run = fit(fedpop(samples=2, clients=3), 5, cohort=2)
    cohorts = [uniform_cohort(3, 2, seed=0, round=t).tolist() for t in range(5)]
    assert len({tuple(c) for c in cohorts}) > 1
    same(run, algorithm_1(5, 2, b=3, cohorts=cohorts))


def test_without_b_the_objective_is_the_mean_over_clients():
    """Steps of Algorithm 1 with b = 1 and the mean over the cohort."""
    same(fit(fedpop(samples=2), 3), algorithm_1(3, 2, b=1))


def test_priors_on_phi_and_beta():
    prior = mo.prior.gaussian(scale=0.8, mean_decay=2.0, scale_decay=3.0)
    run = fit(fedpop(samples=2, clients=3, shared_decay=1.5, prior=prior), 4)
    same(run, algorithm_1(4, 2, b=3, decay=1.5, hyper=(2.0, 3.0)))


def test_stateless_chains_begin_at_the_prior_and_burn_in():
    algorithm = fedpop(samples=2, thinning=2, clients=3, stateful=False, burn_in=5)
    run = fit(algorithm, 3)
    reference = algorithm_1(3, 2, 2, b=3, warm=False, burn_in=5)
    same_server(run, reference)
    # Its model now: a chain from mu, in the turn of an evaluation.
    points = reference.chain(1, reference.mu, 3, purpose="adapt")
    np.testing.assert_allclose(run.parameters(1)["v"].numpy(), np.mean(points, axis=0), rtol=1e-10)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (mo.schedule.exponential(halve_every=1), (1, 1 / 2, 1 / 4, 1 / 8)),
        (mo.schedule.linear(warmup=0.5), (0, 1 / 2, 1, 1 / 2)),
    ],
    ids=["halved", "up and down"],
)
def test_a_schedule_scales_both_step_sizes(schedule, factors, engine):
    """eta_k^(1) and eta_k^(2) change in every round; gamma does not."""
    run = fit(fedpop(samples=2, clients=3, schedule=schedule), 4, engine)
    same(run, algorithm_1(4, 2, b=3, factors=factors))


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_averaged_iterates_are_weighted_by_their_steps(engine):
    """Theorem 1: the sum of eta_j theta_j over the sum of eta_j. Models are served with it, chains run at the last."""
    run = fit(fedpop(samples=2, averaged=True, schedule=mo.schedule.exponential(halve_every=1)), 4, engine)
    reference = algorithm_1(4, 2, factors=(1, 1 / 2, 1 / 4, 1 / 8))
    same(run, reference)
    mean, server = reference.average(), run._loop.progress.server
    np.testing.assert_allclose(run.parameters(0)["u"].numpy(), mean.u, rtol=1e-10)
    np.testing.assert_allclose(run.shared_parameters()["v"].numpy(), mean.mu, rtol=1e-10)
    assert float(server.average["prior:log_scale"]) == pytest.approx(mean.rho, rel=1e-10)


def test_a_fixed_prior_stays_and_its_score_is_not_sent():
    run = fit(fedpop(samples=2, learn_prior=False), 3)
    _, mu, rho = serve_models(run)
    np.testing.assert_array_equal(mu, V)
    assert rho == pytest.approx(np.log(0.8))
    assert run.ledger["up_values"] == 3 * 3 * 2 * 8


def halves_task():
    """The task of ``vector_task`` with u in two tensors of one number each."""
    init = {"first": torch.tensor(U[:1]), "second": torch.tensor(U[1:]), "v": torch.tensor(V)}

    def loss(p, d):
        return (d["a"] @ torch.cat([p["first"], p["second"]]) + d["b"] @ p["v"] - d["y"]).square() / 2

    return from_functions(init, loss)


@pytest.mark.parametrize("radius", [0.25, 0.85, 5.0], ids=["always outside", "at last outside", "inside"])
def test_the_shared_parameters_stay_in_a_ball(radius):
    """The ball is one for all shared tensors, and a point within it is left alone.

    With the second radius two rounds end inside, where |u| is 0.43 and 0.75, and three are brought back.
    """
    reference = algorithm_1(5, 2, b=3, radius=radius)
    split = split_of(["first", "second"], ["v"], {"first": 1, "second": 1, "v": 2})
    algorithm = fedpop(samples=2, clients=3, radius=radius)
    run = mo.fit(halves_task(), federated(CLIENTS), algorithm, split=split, rounds=5, engine="sequential")
    shared = run._loop.progress.server.shared
    values = [float(shared[name]) for name in ("first", "second")]
    np.testing.assert_allclose(values, reference.u, rtol=1e-10)
    lengths = [np.linalg.norm(u) for u, *_ in reference.iterates]
    brought_back = sum(np.isclose(length, radius) for length in lengths)
    assert brought_back == {0.25: 5, 0.85: 3, 5.0: 0}[radius]


def test_the_spread_stays_in_its_range():
    prior = mo.prior.gaussian(scale=0.8, most=0.9)
    *_, rho = serve_models(fit(fedpop(samples=2, shared_lr=1.0, prior_lr=1.0, prior=prior), 3))
    assert rho == pytest.approx(np.log(0.9))


def test_a_minibatch_stands_for_all_rows():
    """SGLD: the gradient of a batch of 2 of the n rows times n / 2. With one full batch it is Langevin itself."""
    full = fit(fedpop(kernel=mo.kernel.sgld(step=STEP, batch_size=7), samples=3), 1)
    assert serve_models(full)[1] == pytest.approx(algorithm_1(1, 3).mu, rel=1e-10)
    algorithm = fedpop(kernel=mo.kernel.sgld(step=STEP, batch_size=2), samples=3)
    run = fit(algorithm, 1)
    c, z = CLIENTS[1], V
    rows = phase_rows(algorithm.phases["sample"], 0, 7, "sample", "train", 0, 1, seed=0)
    batches = np.split(rows.order, np.cumsum(rows.sizes)[:-1])
    for k, batch in enumerate(batches):
        r = c["a"][batch] @ U + c["b"][batch] @ z - c["y"][batch]
        gradient = -WEIGHT * 7 / len(batch) * c["b"][batch].T @ r - (z - V) / 0.8**2
        z = z + STEP * gradient + np.sqrt(2 * STEP) * noise(1, 0, k, 2)
    (state,) = run._loop.progress.store.get([1])
    np.testing.assert_allclose(state.samples["v"][-1].numpy(), z, rtol=1e-10)


def test_rows_at_a_time_do_not_change_the_gradient():
    one, other = (fit(fedpop(batch_size=size, samples=2), 2) for size in (None, 2))
    np.testing.assert_allclose(serve_models(one)[0], serve_models(other)[0], rtol=1e-12)


def test_bernoulli_participation_is_unbiased_given_that_anyone_takes_part():
    """Over all cohorts A of three clients, each in with chance p: E[(b / |A|) sum_A I_i | A not empty] = sum I_i."""
    algorithm, rng, p = fedpop(clients=3), np.random.default_rng(0), 0.3
    scores = [rng.normal(size=2) for _ in range(3)]
    updates = [ClientUpdate({"u": torch.from_numpy(3 * s)}, torch.tensor(1.0), {}) for s in scores]  # b times each
    expected, weight = np.zeros(2), 0.0
    for flags in product([False, True], repeat=3):
        chance = np.prod([p if t else 1 - p for t in flags])
        some = [update for update, t in zip(updates, flags, strict=True) if t]
        if some:
            expected += chance * algorithm.aggregator(some)["u"].numpy()
            weight += chance
    np.testing.assert_allclose(expected / weight, sum(scores), rtol=1e-12)


class Net(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.norm = norm
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.body(x))))


def data():
    rng = np.random.default_rng(1)
    return mo.data.from_clients(
        {f"c{i}": {"x": rng.normal(size=(6, 3)), "y": rng.integers(0, 2, size=6)} for i in range(3)}, test=0.3
    )


def test_another_number_of_clients_is_refused():
    with pytest.raises(mo.MoietyError, match="`clients` must be the number of clients there are, 3, got 100"):
        fit(fedpop(clients=100), 1)


def test_batch_norm_is_refused():
    net = Net(nn.BatchNorm1d(4))
    algorithm = mo.fedpop(shared=0.1, personal=mo.kernel.langevin(step=0.01), prior_lr=0.1)
    split = mo.split.by_name(net, personal=["head"], running_stats="shared")
    with pytest.raises(mo.MoietyError, match="`model` must be one whose examples are independent for fedpop"):
        mo.fit(net, data(), algorithm, split=split, rounds=1, engine="sequential")


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_a_personal_buffer_is_refused(engine):
    """A buffer is no parameter: it has no prior and no chain."""
    net = Net(nn.Identity())
    net.head.register_buffer("seen", torch.zeros(2))
    algorithm = mo.fedpop(shared=0.1, personal=mo.kernel.langevin(step=0.01))
    with pytest.raises(mo.MoietyError) as error:
        mo.fit(net, data(), algorithm, split=mo.split.by_name(net, personal=["head"]), rounds=1, engine=engine)
    text = "`split` must be one whose personal part is trained parameters alone for fedpop, got head.seen"
    assert str(error.value).startswith(text)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_single_precision_stays_single(engine):
    """The guard would stop an upload of another type; the server keeps the model's own too."""
    net = Net(nn.Identity())
    options = {"averaged": True, "schedule": mo.schedule.linear(), "prior": mo.prior.laplace(spread="element")}
    algorithm = flat(
        mo.fedpop, kernel=mo.kernel.mala(step=0.01), shared_lr=0.1, shared_decay=0.1, radius=5.0, **options
    )
    run = mo.fit(net, data(), algorithm, split=mo.split.by_name(net, personal=["head"]), rounds=3, engine=engine)
    server = run._loop.progress.server
    tensors = [*server.shared.values(), *server.prior.values(), *server.average.values(), server.total]
    assert {p.dtype for p in tensors} == {torch.float32}


@pytest.mark.parametrize("averaged", [False, True])
def test_resumed_from_its_folder_it_is_the_same_bit_for_bit(averaged, tmp_path):
    """The folder names kernel, prior, schedule and server; chains go on where they stood."""
    fed = mo.data.load("digits", clients=4, per_client=12, seed=1)
    net = mo.models.mlp(64, 10, hidden=(5,), seed=1)
    algorithm = mo.fedpop(
        shared=0.1,
        personal=mo.kernel.preconditioned_sgld(step=0.001, batch_size=4),
        prior=mo.prior.gaussian(scale=0.5, scale_decay=1.0),
        server=mo.server.adam(lr=0.01),
        samples=3,
        averaged=averaged,
    )
    how = {"split": mo.split.output_layer(net), "cohort": 2, "engine": "sequential"}
    whole = mo.fit(net, fed, algorithm, **with_settings(rounds=4, **how))
    mo.fit(net, fed, algorithm, **with_settings(rounds=2, out=tmp_path / "run", **how))
    again = mo.resume(tmp_path / "run", rounds=4)
    for client in range(4):
        one, other = (
            whole.predictive(client, fed.client(client)["x"]),
            again.predictive(client, fed.client(client)["x"]),
        )
        np.testing.assert_array_equal(one.outputs, other.outputs)
    for a, b in zip(served_all(whole), served_all(again), strict=True):
        assert torch.equal(a, b)


def served_all(run):
    server = run._loop.progress.server
    return [*server.shared.values(), *server.prior.values(), *server.average.values(), server.total]


def test_something_must_be_personal():
    net = Net(nn.Identity())
    algorithm = mo.fedpop(shared=0.1, personal=mo.kernel.langevin(step=0.01), prior_lr=0.1)
    with pytest.raises(mo.MoietyError, match="something personal for fedpop"):
        mo.fit(net, data(), algorithm, split=mo.split.nothing(net), rounds=1, engine="sequential")


def test_partial_evaluation_gives_the_same_numbers():
    """The prefix is run once for all samples, or every time: the same model to rounding."""
    torch.manual_seed(0)
    net = Net(nn.Identity()).double()
    split = mo.split.by_name(net, personal=["head"])
    runs = []
    for partial in (True, False):
        algorithm = mo.fedpop(shared=0.1, personal=mo.kernel.langevin(step=0.01), prior_lr=0.1, samples=4)
        runs.append(
            mo.fit(
                net,
                data(),
                algorithm,
                split=split,
                rounds=3,
                engine="sequential",
                settings=mo.Settings(partial=partial),
            )
        )
    for name, p in runs[0].parameters(0).items():
        torch.testing.assert_close(p, runs[1].parameters(0)[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"samples": 0}, "`samples` must be >= 1"),
        ({"thinning": 0}, "`thinning` must be >= 1"),
        ({"burn_in": -1}, "`burn_in` must be >= 0"),
        ({"loss_weight": 0.0}, "`loss_weight` must be > 0"),
        ({"clients": 0}, "`clients` must be >= 1"),
        ({"radius": 0.0}, "`radius` must be > 0"),
        ({"shared_decay": -1.0}, "`weight_decay` must be >= 0"),
        ({"prior": "normal"}, "`prior` must be a prior"),
        ({"shared_lr": 0.0}, "`lr` must be > 0"),
        ({"shared_lr": None, "shared": 0.0}, "`shared` must be > 0"),
        ({"kernel": 0.1}, "`personal` must be a Markov kernel, got 0.1"),
        ({"prior_lr": -0.1}, "`prior_lr` must be > 0"),
    ],
)
def test_bad_input_is_one_line(options, text):
    with pytest.raises(mo.MoietyError) as error:
        fedpop(**options)
    assert str(error.value).startswith(text)
    assert "\n" not in str(error.value)


def test_operations_of_a_chain_are_counted():
    """Of a personal bias: the steps of a chain go through the head alone."""
    fed = mo.data.load("digits", clients=4, partition=mo.data.dirichlet(0.3), seed=0)
    model = mo.models.mlp(64, 10, hidden=(32,), seed=0)
    split = mo.split.by_name(model, personal=["head.bias"])
    flops = {}
    for steps in (10, 20):
        algorithm = mo.fedpop(samples=10, thinning=steps // 10)
        run = mo.fit(model, fed, algorithm, split=split, rounds=1, engine="sequential")
        flops[steps] = run.ledger["flops"]
    rows = int(fed.sizes("train").sum())
    more = flops[20] - flops[10]
    assert flops[10] > 0
    assert more == 10 * 2 * 32 * 10 * rows  # ten products of the head, forward; a bias needs none backward
