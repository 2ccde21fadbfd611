"""APFL by hand, by finite differences, from its pseudocode in NumPy, in its limits, and what is its own."""

from fractions import Fraction as Q

import numpy as np
import oracle_mixtures as mixtures
import oracle_numpy as ref
import pytest
import torch
from flat_options import flat
from oracle_problems import federated, image_clients, problem_of, serve, split_of, vector_clients, vector_task

import moiety as mo
from moiety.engines.base import RoundInfo
from moiety.engines.sequential import Sequential
from moiety.engines.vectorised import Vectorised
from moiety.errors import MoietyError
from moiety.task import from_functions, from_module

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorised"])
SERVES = pytest.mark.parametrize("engine", [Sequential, Vectorised], ids=["sequential", "vectorised"])
SIZES = (1, 13, 6, 20)
DATA = federated(image_clients(SIZES))
MATRICES = {"u": "a", "v": "b"}


def network():
    return mo.models.mlp(4, 3, hidden=(5,), seed=2).double()


def scalar(start):
    """f(w; a, y) = (a w - y)^2 / 2 with one number w."""
    init = {"w": torch.tensor(float(start), dtype=torch.float64)}
    return from_functions(init, lambda p, d: (d["a"] * p["w"] - d["y"]).square() / 2)


def one_turn(engine, task, split, data, v, **options):
    """What one client's turn makes of a model of its own that is not the shared one: change of w, v, alpha."""
    problem = problem_of(task, data, split)
    algorithm = flat(mo.apfl, batch_size=100, steps=1, **options)
    received = algorithm.broadcast(problem.first_server(algorithm))
    state = problem.first_state(algorithm)
    state = state._replace(own=state.own._replace(shared=v))
    jobs = problem.make_jobs(algorithm.phases, [0], [state], "train", 0, part="train")
    ((update, after),) = serve(engine, problem, algorithm.client_update, jobs, received, RoundInfo())
    return update.upload, after.own.shared, after.alpha


@SERVES
@pytest.mark.parametrize(
    ("w", "v", "alpha_lr", "alpha"),
    [(1, 3, 1 / 2, 0), (1, 3, 1 / 16, Q(1, 4)), (1, 3, None, Q(1, 2)), (3, 1, 1 / 16, Q(3, 4)), (3, 1, 1, 1)],
)
def test_the_step_of_the_docstring(engine, w, v, alpha_lr, alpha):
    """f = x^2 / 2: the mixture and its gradient are 2 with v = 3 over w = 1, and with v = 1 over w = 3.

    v <- v - (1/2)(1/2) 2 = v - 1/2 and w <- w / 2 in both; alpha <- 1/2 -+ alpha_lr 2 * 2, cut to [0, 1]. The faults:
    v - 1 without the factor alpha, v where it is never trained, v - v/2 or v - v/4 with the gradient at v, alpha off
    1/4 with the gradient at w, at v or mixed with a term in alpha, and v - 7/16 where w is moved first.
    """
    data = federated([{"a": np.array([1.0]), "y": np.array([0.0])}])
    mine = {"w": torch.tensor(float(v), dtype=torch.float64)}
    change, after, share = one_turn(
        engine, scalar(w), split_of(["w"]), data, mine, lr=0.5, personal_lr=0.5, alpha=0.5, alpha_lr=alpha_lr
    )
    assert float(change["w"]) == -w / 2
    assert float(after["w"]) == v - 1 / 2
    assert float(share) == float(alpha)


CLIENTS = [
    {"a": np.array([1.0]), "y": np.array([3.0])},
    {"a": np.array([2.0, 0, 2, 0]), "y": np.array([1.0, 3, 1, 3])},
]


@ENGINES
def test_first_round_by_hand(engine):
    """Gradients x - 3 and 2 x - 1, w = v = 1, alpha = 1/2, rates 1/4 (w), 1/8 (v), 1/4 (alpha), two steps.

    Client 1: the mixture is 1, g = -2: w = 3/2, v = 1 + (1/8)(1/2) 2 = 9/8, alpha stays, since v = w. Then the mixture
    is 21/16, g = -27/16: w = 15/8, v = 9/8 + 27/256 = 315/256, alpha = 1/2 - (1/4)(9/8 - 3/2)(-27/16) = 175/512.
    Client 2: g = 1: w = 3/4, v = 15/16. Then the mixture is 27/32, g = 11/16: w = 5/8, v = 15/16 - 11/256 = 229/256,
    alpha = 1/2 - (1/4)(3/16)(11/16) = 479/1024. The server's w is (15/8 + 5/8)/2 = 5/4.
    """
    algorithm = mo.apfl(
        shared=mo.sgd(1 / 4, steps=2, batch_size=4, shuffle=False), personal=1 / 8, alpha_lr=1 / 4, alpha=0.5
    )
    run = mo.fit(scalar(1), federated(CLIENTS), algorithm, split=split_of(["w"]), rounds=1, engine=engine)
    w = Q(5, 4)
    own = [a * v + (1 - a) * w for a, v in ((Q(175, 512), Q(315, 256)), (Q(479, 1024), Q(229, 256)))]
    values = [float(p["w"]) for p in (run.shared_parameters(), run.parameters(0), run.parameters(1))]
    assert values == pytest.approx([float(x) for x in (w, *own)], rel=1e-13)


@SERVES
def test_the_step_against_finite_differences(engine):
    """The steps of v and alpha divided by their rates are the slopes of the loss of the mixture, a whole network's."""
    net, data = network(), federated(image_clients([9]))
    first = {n: p.detach().clone() for n, p in net.named_parameters()}
    mine = {n: p + torch.linspace(-1, 1, p.numel(), dtype=torch.float64).reshape(p.shape) for n, p in first.items()}
    task, split = from_module(net, loss="cross_entropy"), mo.split.nothing(net)
    options = {"lr": 0.1, "personal_lr": 0.25, "alpha": 0.3, "alpha_lr": 1e-3}
    change, after, share = one_turn(engine, task, split, data, mine, **options)
    x, y = torch.tensor(data.columns["x"], dtype=torch.float64), torch.tensor(data.columns["y"])

    def loss(v, w, alpha):
        mixture = {n: alpha * v[n] + (1 - alpha) * w[n] for n in v}
        return float(torch.nn.functional.cross_entropy(torch.func.functional_call(network(), mixture, (x,)), y))

    def nudge(params, name, at, by):
        point = {n: p.clone() for n, p in params.items()}
        point[name].view(-1)[at] += by
        return point

    h = 1e-5
    for name, at in (("hidden1.weight", 7), ("hidden1.bias", 2), ("head.weight", 0), ("head.bias", 1)):
        slope = (loss(nudge(mine, name, at, h), first, 0.3) - loss(nudge(mine, name, at, -h), first, 0.3)) / (2 * h)
        step = float((mine[name] - after[name]).view(-1)[at]) / 0.25
        assert step == pytest.approx(slope, rel=1e-6)
        slope = (loss(nudge(first, name, at, h), nudge(first, name, at, h), 0.0)) - loss(
            nudge(first, name, at, -h), nudge(first, name, at, -h), 0.0
        )
        assert -float(change[name].view(-1)[at]) / 0.1 == pytest.approx(slope / (2 * h), rel=1e-6)
    slope = (loss(mine, first, 0.3 + h) - loss(mine, first, 0.3 - h)) / (2 * h)
    assert (0.3 - float(share)) / 1e-3 == pytest.approx(slope, rel=1e-6)


@ENGINES
@pytest.mark.parametrize(
    ("weighting", "alpha_lr", "options"),
    [("uniform", None, {}), ("examples", 0.02, {}), ("batches", 0.05, {"clip": 1.5, "weight_decay": 0.1})],
    ids=["fixed", "adaptive", "all"],
)
def test_trajectory_in_numpy(engine, weighting, alpha_lr, options):
    """Uneven clients, three rounds, rates halved from round 3 on."""
    sizes = [1, 7, 3, 12]
    clients, w = vector_clients(sizes), {"u": np.array([0.5, -1.0]), "v": np.array([0.25, 2.0])}
    algorithm = flat(
        mo.apfl,
        lr=0.05,
        personal_lr=0.1,
        alpha=0.6,
        alpha_lr=alpha_lr,
        epochs=2,
        batch_size=4,
        shuffle=False,
        weighting=weighting,
        schedule=mo.schedule.exponential(halve_every=2),
        **options,
    )
    split = split_of(["u", "v"], [], {"u": 2, "v": 2})
    run = mo.fit(vector_task(w["u"], w["v"]), federated(clients), algorithm, split=split, rounds=3, engine=engine)
    weights = [ref.weight_of(weighting, n, -(-n // 4)) for n in sizes]
    vs, shares = [w] * 4, [0.6] * 4
    for scale in (1.0, 1.0, 0.5):
        ends = []
        for i, data in enumerate(clients):
            rates = {"eta": 0.05 * scale, "eta_v": 0.1 * scale, "eta_share": (alpha_lr or 0.0) * scale}
            index = ref.batches(sizes[i], 4, epochs=2)
            end, vs[i], shares[i] = mixtures.apfl_local(
                w, vs[i], shares[i], data, index, matrices=MATRICES, **rates, **options
            )
            ends.append(end)
        w = ref.aggregate(ends, weights)
    if alpha_lr:
        assert len({round(share, 6) for share in shares}) == 4, "or alpha is not tested"
    for k in w:
        np.testing.assert_allclose(run.shared_parameters()[k].numpy(), w[k], rtol=1e-9, atol=1e-11)
        for i, (v, share) in enumerate(zip(vs, shares, strict=True)):
            mixture = share * v[k] + (1 - share) * w[k]
            np.testing.assert_allclose(run.parameters(i)[k].numpy(), mixture, rtol=1e-9, atol=1e-11)


@ENGINES
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_alone_the_two_parts_are_fedavg_and_local_training(engine, alpha):
    """The shared model is FedAvg's for any alpha; own models are it with alpha 0, and local training's with 1."""
    common = {"batch_size": 8, "shuffle": False, "weight_decay": 0.1, "clip": 0.5}
    algorithms = (
        flat(mo.apfl, lr=0.1, personal_lr=0.3, alpha=alpha, weighting="examples", **common),
        flat(mo.fedavg, lr=0.1, **common),
        flat(mo.local_only, lr=0.3, **common),
    )
    run, average, local = (mo.fit(network(), DATA, a, rounds=3, engine=engine) for a in algorithms)
    for name, p in average.shared_parameters().items():
        torch.testing.assert_close(run.shared_parameters()[name], p, rtol=0, atol=1e-12)
        for client in range(4):
            expected = local.parameters(client)[name] if alpha else p
            torch.testing.assert_close(run.parameters(client)[name], expected, rtol=0, atol=1e-12)


def test_a_client_that_was_never_asked_has_the_shared_model():
    run = mo.fit(network(), DATA, mo.apfl(shared=0.1), rounds=2, cohort=1, engine="sequential")
    shared = run.shared_parameters()
    never = [i for i in range(4) if all(torch.equal(p, shared[n]) for n, p in run.parameters(i).items())]
    assert len(never) in (2, 3)
    assert [run.clients[i]["gain"] for i in never] == [0.0] * len(never)


def test_onboarding_trains_the_personal_model_and_its_share():
    """y = m x + c at x = 0 and loss (c - y)^2, rates 1/4, alpha 1/2: the client with y = 4 takes w's c from 0 to 2.

    A newcomer with y = 10 begins with v = w = 2: g = -16, v = 2 + (1/4)(1/2) 16 = 4, its mixture 3; then g = -14 and
    v = 23/4 while alpha = 1/2 + (1/64)(4 - 2) 14 = 15/16: (15 * 23/4 + 2)/16 = 353/64.
    """
    line = torch.nn.Linear(1, 1).double()
    with torch.no_grad():
        line.weight.zero_()
        line.bias.zero_()
    data = federated([{"x": np.zeros((2, 1)), "y": np.full((2, 1), 4.0)}])
    run = mo.fit(line, data, mo.apfl(shared=0.25, alpha_lr=1 / 64), rounds=1, engine="sequential")
    for passes, bias in ((1, 3.0), (2, 353 / 64)):
        new = run.onboard({"x": np.zeros((1, 1)), "y": np.full((1, 1), 10.0)}, passes=passes)
        assert (float(new.bias.detach()), float(new.weight.detach())) == (bias, 0.0)


def test_onboarding_holds_the_shared_model_fixed_from_step_to_step():
    """As above with two steps in one pass: the client with y = 4 takes w's c from 0 to 2 to 3.

    A newcomer with y = 10 begins with v = w = 3: g = -14, v = 3 + 14/8 = 19/4, alpha stays 1/2 as v = w. Then the
    mixture is (19/4 + 3)/2 = 31/8 and g = -49/4: v = 19/4 + 49/32 = 201/32, alpha = 1/2 + (1/64)(7/4)(49/4) = 855/1024.
    Its model is (855 * 201/32 + 169 * 3)/1024 = 188079/32768. With w moved to 3 + 14/4 = 13/2 in the first step the
    second would have the mixture 45/8.
    """
    line = torch.nn.Linear(1, 1).double()
    with torch.no_grad():
        line.weight.zero_()
        line.bias.zero_()
    data = federated([{"x": np.zeros((2, 1)), "y": np.full((2, 1), 4.0)}])
    run = mo.fit(line, data, mo.apfl(shared=mo.sgd(0.25, steps=2), alpha_lr=1 / 64), rounds=1, engine="sequential")
    assert float(run.shared_parameters()["bias"]) == 3.0
    new = run.onboard({"x": np.zeros((1, 1)), "y": np.full((1, 1), 10.0)})
    assert (float(new.bias.detach()), float(new.weight.detach())) == (188079 / 32768, 0.0)


def test_costs():
    """Two gradients a step; on the device v twice more, and alpha (8 bytes) and a mark."""
    numbers = 5 * 5 + 6 * 3
    apfl, fedavg = (
        mo.fit(network(), DATA, algorithm, rounds=1, engine="sequential").ledger
        for algorithm in (mo.apfl(shared=0.1, alpha_lr=0.1), mo.fedavg(shared=0.1))
    )
    assert apfl["up_values"] == fedavg["up_values"]
    assert apfl["flops"] == 2 * fedavg["flops"]
    assert apfl["device_memory"] - fedavg["device_memory"] == 2 * (numbers * 8 + 8 + 1)


@pytest.mark.parametrize("stats", ["personal", "shared"])
def test_each_of_the_two_models_has_its_running_statistics(stats):
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    split = mo.split.nothing(net, running_stats=stats)
    run = mo.fit(net, federated(image_clients([8, 6])), mo.apfl(shared=0.1), split=split, rounds=2, engine="sequential")
    means = [run.parameters(i)["1.running_mean"] for i in (0, 1)]
    assert not torch.equal(means[0], means[1])
    assert torch.equal(run.shared_parameters()["1.running_mean"], torch.zeros(5)) == (stats == "personal")
    assert int(run.parameters(0)["1.num_batches_tracked"]) == 2


def test_shared_running_statistics_are_mixed_twice():
    """BatchNorm on the data itself with momentum 1/10, two rounds of one pass, alpha 1/2; clients' means a and b.

    With m = (a + b)/2 the shared mean is m/10 after a round and 19 m/100 after two. The first client's is a/10 after
    one; then its pass starts at (a/10 + m/10)/2, so it keeps 9/10 of that and a/10, 29 a/200 + 9 m/200, and it
    predicts with half of this and half of 19 m/100: 29 a/400 + 47 m/400.
    """
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)).double()
    clients = image_clients([8, 6], dtype=np.float64)
    split = mo.split.nothing(net, running_stats="shared")
    run = mo.fit(net, federated(clients), mo.apfl(shared=0.1), split=split, rounds=2, engine="sequential")
    a, b = (data["x"].mean(0) for data in clients)
    m = (a + b) / 2
    np.testing.assert_allclose(run.shared_parameters()["0.running_mean"].numpy(), 0.19 * m, rtol=1e-10)
    mean = (29 * a + 47 * m) / 400
    np.testing.assert_allclose(run.parameters(0)["0.running_mean"].numpy(), mean, rtol=1e-10)


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("shared", lambda: mo.apfl(shared=0)),
        ("lr", lambda: mo.apfl(shared=mo.sgd(0))),
        ("personal", lambda: mo.apfl(shared=0.1, personal=-1)),
        ("alpha", lambda: mo.apfl(shared=0.1, alpha=1.5)),
        ("alpha", lambda: mo.apfl(shared=0.1, alpha=float("nan"))),
        ("alpha_lr", lambda: mo.apfl(shared=0.1, alpha_lr=0)),
        ("steps", lambda: mo.apfl(shared=mo.sgd(0.1, steps=0))),
        ("shuffle", lambda: mo.apfl(shared=mo.sgd(0.1, shuffle=1))),
        ("weighting", lambda: mo.apfl(shared=0.1, weighting="size")),
        ("shared.momentum", lambda: mo.apfl(shared=mo.sgd(0.1, momentum=0.5))),
        ("personal.steps", lambda: mo.apfl(shared=0.1, personal=mo.sgd(0.1, steps=2))),
    ],
)
def test_wrong_hyper_parameters_are_one_line(name, build):
    with pytest.raises(MoietyError, match=rf"^`{name}` must be [^\n]*, got [^\n]*$"):
        build()
