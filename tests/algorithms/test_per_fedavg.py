"""Per-FedAvg by hand, from its pseudocode in NumPy with the batches of each gradient, and what is its own.

The problem of the tests by hand is that of test_ditto.py: dF/dw = w - 3 for client 1 (one example) and 2 w - 1 for
client 2 (four), start w = 1. With alpha = 1/4 and beta = 1/2 the step of w is

    client 1:  w~ = (3 w + 3)/4, grad there (3 w - 9)/4, times 1 - 1/4:  w <- (23 w + 27)/32, first order (5 w + 9)/8
    client 2:  w~ = (2 w + 1)/4, grad there w - 1/2, times 1 - 2/4:      w <- (6 w + 1)/8, first order (2 w + 1)/4
"""

from fractions import Fraction as Q

import numpy as np
import oracle_mixtures as mixtures
import pytest
import torch
from flat_options import flat
from oracle_problems import federated, image_clients, problem_of, serve, split_of, vector_clients, vector_task

import moiety as mo
from moiety.engines.base import RoundInfo
from moiety.engines.sequential import Sequential
from moiety.engines.vectorised import Vectorised
from moiety.errors import MoietyError
from moiety.task import from_functions

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorised"])
FORMS = pytest.mark.parametrize("form", ["hessian_vector", "first_order"])
CLIENTS = [
    {"a": np.array([1.0]), "y": np.array([3.0])},
    {"a": np.array([2.0, 0, 2, 0]), "y": np.array([1.0, 3, 1, 3])},
]
HAND = {"lr": 1 / 2, "personal_lr": 1 / 4, "steps": 2, "batch_size": 4, "shuffle": False}
STEPS = {
    "hessian_vector": (lambda w: (23 * w + 27) / 32, lambda w: (6 * w + 1) / 8),
    "first_order": (lambda w: (5 * w + 9) / 8, lambda w: (2 * w + 1) / 4),
}
SIZES = (1, 13, 6, 20)
DATA = federated(image_clients(SIZES))
MATRICES = {"u": "a", "v": "b"}


def network():
    return mo.models.mlp(4, 3, hidden=(5,), seed=2).double()


@ENGINES
@FORMS
def test_two_rounds_by_hand(engine, form):
    """First round: 1 -> 25/16 -> 1007/512 and 1 -> 7/8 -> 25/32, on average 1407/1024; first order 91/64.

    Own models are (3 w + 3)/4 and (2 w + 1)/4 of the newest w: they are made where they are looked at.
    """
    init = {"w": torch.ones((), dtype=torch.float64)}
    task = from_functions(init, lambda p, d: (d["a"] * p["w"] - d["y"]).square() / 2)
    first, second = STEPS[form]
    w = Q(1)
    for rounds in (1, 2):
        w = (first(first(w)) + second(second(w))) / 2
        if rounds == 1:
            assert w == (Q(1407, 1024) if form == "hessian_vector" else Q(91, 64))
        algorithm = flat(mo.per_fedavg, form=form, **HAND)
        run = mo.fit(task, federated(CLIENTS), algorithm, split=split_of(["w"]), rounds=rounds, engine=engine)
        values = [float(p["w"]) for p in (run.shared_parameters(), run.parameters(0), run.parameters(1))]
        assert values == pytest.approx([float(w), float((3 * w + 3) / 4), float((2 * w + 1) / 4)], rel=1e-13)


@ENGINES
@FORMS
@pytest.mark.parametrize("options", [{}, {"clip": 0.5, "weight_decay": 0.2}], ids=["plain", "all"])
def test_each_gradient_has_its_own_batches(engine, form, options):
    """Shuffled: NumPy is told which rows were D, D' and D'' in each step, and that those are not the same."""
    sizes = [3, 11, 8]
    clients = vector_clients(sizes)
    start = {"u": np.array([0.5, -1.0]), "v": np.array([0.25, 2.0])}
    data, split = federated(clients), split_of(["u", "v"], [], {"u": 2, "v": 2})
    problem = problem_of(vector_task(start["u"], start["v"]), data, split)
    algorithm = flat(mo.per_fedavg, lr=0.2, personal_lr=0.15, steps=4, batch_size=4, form=form, **options)
    received = algorithm.broadcast(problem.first_server(algorithm))
    jobs = problem.make_jobs(algorithm.phases, range(3), [problem.first_state(algorithm)] * 3, "train", 0, part="train")
    server = Sequential if engine == "sequential" else Vectorised
    results = serve(server, problem, algorithm.client_update, jobs, received, RoundInfo(0, scale=0.5))
    hessian = form == "hessian_vector"
    for i, job in enumerate(jobs):
        base = data.rows(i, "train")[0]
        cuts = {p: np.split(r.order - base, np.cumsum(r.sizes)[:-1]) for p, r in job.rows.items()}
        turns = [cuts["inner"], cuts["outer"], cuts["curvature" if hessian else "inner"]]
        if sizes[i] > 4:
            assert not np.array_equal(cuts["inner"][0], cuts["outer"][0])
            assert not hessian or not np.array_equal(cuts["curvature"][0], cuts["outer"][0])
        rates = {"alpha": 0.15, "beta": 0.2 * 0.5}
        index = list(zip(*turns, strict=True))
        end = mixtures.per_fedavg_local(
            start, clients[i], index, matrices=MATRICES, hessian=hessian, **rates, **options
        )
        for k in start:
            np.testing.assert_allclose(results[i][0].upload[k].numpy(), end[k] - start[k], rtol=1e-9, atol=1e-11)


@ENGINES
def test_the_product_with_the_hessian_is_the_limit_of_the_papers_difference(engine):
    """A logistic loss in NumPy; the paper's (HF) with delta 1e-5 agrees to 1e-8, leaving the Hessian out does not."""
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(12, 3)), rng.choice([-1.0, 1.0], size=12)

    def grad(w):
        return x.T @ (-y / (1 + np.exp(y * (x @ w)))) / len(y)

    w = np.array([1.0, -2.0, 0.5])
    for _ in range(3):
        g = grad(w - 0.9 * grad(w))
        w = w - 0.5 * (g - 0.9 * (grad(w + 1e-5 * g) - grad(w - 1e-5 * g)) / 2e-5)
    init = {"w": torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)}
    task = from_functions(init, lambda p, d: torch.nn.functional.softplus(-d["y"] * (d["x"] @ p["w"])))
    ends = {}
    for form in ("hessian_vector", "first_order"):
        algorithm = mo.per_fedavg(shared=mo.sgd(0.5, steps=3, batch_size=12), personal=0.9, form=form)
        run = mo.fit(
            task, federated([{"x": x, "y": y}]), algorithm, split=split_of(["w"], [], {"w": 3}), rounds=1, engine=engine
        )
        ends[form] = run.shared_parameters()["w"].numpy()
    np.testing.assert_allclose(ends["hessian_vector"], w, rtol=1e-8)
    assert np.abs(ends["first_order"] - w).max() > 1e-2


def test_a_small_alpha_makes_it_fedavg():
    common = {"lr": 0.1, "epochs": 2, "batch_size": 8, "shuffle": False, "weighting": "uniform"}
    one, other = (
        mo.fit(network(), DATA, algorithm, rounds=3, cohort=3, engine="sequential")
        for algorithm in (flat(mo.per_fedavg, personal_lr=1e-12, **common), flat(mo.fedavg, **common))
    )
    for name, p in other.shared_parameters().items():
        torch.testing.assert_close(one.shared_parameters()[name], p, rtol=0, atol=1e-9)


@pytest.mark.parametrize("steps", [1, 3])
def test_onboarding_is_steps_from_the_received_model(steps):
    """y = m x + c at x = 0 with loss (c - y)^2 and alpha 1/4: a step halves the distance to y.

    Training: the client with y = 4 has w~ = (c + 4)/2 and there the gradient c - 4, times 1 - 2/4: c <- 0 + 4 beta / 2.
    """
    line = torch.nn.Linear(1, 1).double()
    with torch.no_grad():
        line.weight.zero_()
        line.bias.zero_()
    data = federated([{"x": np.zeros((2, 1)), "y": np.full((2, 1), 4.0)}])
    algorithm = mo.per_fedavg(shared=0.5, personal=mo.sgd(0.25, steps=steps))
    run = mo.fit(line, data, algorithm, rounds=1, engine="sequential")
    assert float(run.shared_parameters()["bias"]) == 1.0
    for passes in (1, 2):
        new = run.onboard({"x": np.zeros((1, 1)), "y": np.full((1, 1), 9.0)}, passes=passes)
        assert float(new.bias.detach()) == pytest.approx(9 - 8 / 2 ** (steps * passes), rel=1e-12)
    assert run.clients[0]["shared_loss"] == pytest.approx(9.0)
    assert run.clients[0]["loss"] == pytest.approx(9.0 / 4**steps)


def test_costs():
    """One gradient more a step than FedAvg; with the Hessian the third kind of batch costs more than a gradient."""
    ledgers = [
        mo.fit(network(), DATA, algorithm, rounds=1, engine="sequential").ledger
        for algorithm in (
            mo.fedavg(shared=0.1),
            mo.per_fedavg(shared=0.1, personal=0.1, form="first_order"),
            mo.per_fedavg(shared=0.1, personal=0.1),
        )
    ]
    plain, first, second = (ledger["flops"] for ledger in ledgers)
    assert first == 2 * plain
    assert second > 3 * plain
    assert len({ledger["up_values"] for ledger in ledgers}) == 1


@FORMS
@pytest.mark.parametrize("stats", ["personal", "shared"])
def test_running_statistics_are_those_of_the_model_that_predicts(stats, form):
    """Two rounds of one step: two passes at w~ where they are shared, and one more for the client's own step."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    split = mo.split.nothing(net, running_stats=stats)
    data = federated(image_clients([8, 6]))
    algorithm = mo.per_fedavg(shared=0.1, personal=0.1, form=form)
    run = mo.fit(net, data, algorithm, split=split, rounds=2, engine="sequential")
    assert int(run.shared_parameters()["1.num_batches_tracked"]) == (2 if stats == "shared" else 0)
    assert int(run.parameters(0)["1.num_batches_tracked"]) == (3 if stats == "shared" else 1)


def test_attention_has_a_second_derivative():
    """Fused attention has none; the plain one is used in its place."""

    class Attends(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(2, 3)

        def forward(self, x):
            x = self.head.weight.sum() * x.reshape(-1, 1, 2, 2)
            return self.head(torch.nn.functional.scaled_dot_product_attention(x, x, x).sum(2).flatten(1))

    run = mo.fit(Attends(), DATA, mo.per_fedavg(shared=0.1, personal=0.1), rounds=1, engine="sequential")
    assert run.history[-1]["train_loss"] > 0


class Recurrent(torch.nn.Module):
    """The last output of an LSTM over four numbers, two at a time."""

    def __init__(self):
        super().__init__()
        self.cells, self.head = torch.nn.LSTM(2, 5, batch_first=True), torch.nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.cells(x.reshape(-1, 2, 2))[0][:, -1])


def test_an_lstm_has_a_second_derivative():
    """One step of one client in float32 against the paper's difference of gradients in float64 by ordinary autograd."""
    data = federated(image_clients([8]))
    torch.manual_seed(4)
    net = Recurrent()
    exact = Recurrent().double()
    x, y = torch.tensor(data.columns["x"]).double(), torch.tensor(data.columns["y"])
    w = {n: p.detach().double() for n, p in net.named_parameters()}

    def grad(at):
        exact.load_state_dict(at)
        loss = torch.nn.functional.cross_entropy(exact(x), y)
        return dict(zip(w, torch.autograd.grad(loss, list(exact.parameters())), strict=True))

    def along(point, direction, step):
        return {n: point[n] + step * direction[n] for n in point}

    g = grad(along(w, grad(w), -0.9))
    plus, minus = grad(along(w, g, 1e-4)), grad(along(w, g, -1e-4))
    product = {n: (plus[n] - minus[n]) / 2e-4 for n in w}
    expected = along(w, along(g, product, -0.9), -0.5)
    algorithm = mo.per_fedavg(shared=mo.sgd(0.5, batch_size=8), personal=0.9)
    shared = mo.fit(net, data, algorithm, rounds=1, engine="sequential").shared_parameters()
    assert max(float(product[n].abs().max()) for n in w) > 1e-2, "or the Hessian is not tested"
    for name, p in expected.items():
        torch.testing.assert_close(shared[name].double(), p, rtol=0, atol=1e-6)


class Once(torch.autograd.Function):
    """Twice its argument, with a gradient that is no function of anything."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 2 * g


def test_what_has_no_second_derivative_needs_the_first_order():
    class Doubles(torch.nn.Linear):
        def forward(self, x):
            return Once.apply(super().forward(x))

    options = {"lr": 0.1, "personal_lr": 0.1}
    line = r"^`model` must be one that can be differentiated twice for form='hessian_vector', got [^\n]*"
    with pytest.raises(MoietyError, match=line + r" Use form='first_order'\.$"):
        mo.fit(Doubles(4, 3), DATA, flat(mo.per_fedavg, **options), rounds=1, engine="sequential")
    run = mo.fit(Doubles(4, 3), DATA, flat(mo.per_fedavg, form="first_order", **options), rounds=1, engine="sequential")
    assert run.history[-1]["train_loss"] > 0


def test_own_models_are_a_step_on_one_batch():
    """y = m x + c at x = 0 with loss (c - y)^2, alpha 1/4 and batches of one row out of (0, 8), unshuffled.

    The client's own c is halfway to the first row's y = 0, not halfway to their mean 4; with a batch of both it is.
    """
    line = torch.nn.Linear(1, 1).double()
    with torch.no_grad():
        line.weight.zero_()
        line.bias.fill_(2.0)
    data = federated([{"x": np.zeros((2, 1)), "y": np.array([[0.0], [8.0]])}])
    for size, target in ((1, 0.0), (2, 4.0)):
        algorithm = mo.per_fedavg(shared=mo.sgd(1e-9, batch_size=size, shuffle=False), personal=0.25)
        run = mo.fit(line, data, algorithm, rounds=1, engine="sequential")
        assert float(run.parameters(0)["bias"]) == pytest.approx((2 + target) / 2, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("shared", lambda: mo.per_fedavg(shared=0, personal=0.1)),
        ("lr", lambda: mo.per_fedavg(shared=mo.sgd(0), personal=0.1)),
        ("personal", lambda: mo.per_fedavg(shared=0.1, personal=0)),
        ("form", lambda: mo.per_fedavg(shared=0.1, personal=0.1, form="second_order")),
        ("steps", lambda: mo.per_fedavg(shared=0.1, personal=mo.sgd(0.1, steps=0))),
        ("epochs", lambda: mo.per_fedavg(shared=mo.sgd(0.1, steps=1, epochs=1), personal=0.1)),
        ("clip", lambda: mo.per_fedavg(shared=mo.sgd(0.1, clip=0), personal=0.1)),
        ("shuffle", lambda: mo.per_fedavg(shared=mo.sgd(0.1, shuffle="no"), personal=0.1)),
        ("shared.momentum", lambda: mo.per_fedavg(shared=mo.sgd(0.1, momentum=0.5), personal=0.1)),
    ],
)
def test_wrong_hyper_parameters_are_one_line(name, build):
    with pytest.raises(MoietyError, match=rf"^`{name}` must be [^\n]*, got [^\n]*$"):
        build()
