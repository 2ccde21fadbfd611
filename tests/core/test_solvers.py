"""Inner solvers against linear algebra in NumPy: argmin_w f(theta, w) with theta fixed."""

import numpy as np
import oracle_bilevel as ref
import pytest
import torch
from oracle_problems import federated, image_clients, problem_of, scalar_task, serve, split_of

import moiety as mo
from moiety.engines.base import RoundInfo
from moiety.engines.sequential import Sequential
from moiety.engines.vectorised import Vectorised
from moiety.errors import MoietyError
from moiety.local.solvers import MOST, SOLVERS, draw_start, solver_work
from moiety.task import from_functions

ENGINES = pytest.mark.parametrize("engine", [Sequential, Vectorised], ids=lambda e: e.name)
CLIENTS, _ = ref.clients(3, rows=6, d=2, e=4, seed=1, noise=1.0, phi=False)
THETA, START = np.array([0.5, -2.0]), np.array([1.0, -1.0, 2.0, 0.5])
SPLIT = split_of(["u"], ["v"], {"u": 2, "v": 4})


def solve_clients(solver, engine, clients=CLIENTS, start=START, task=None):
    """w of each client, and the loss that the solver saw."""
    problem = problem_of(task or ref.task(THETA, start, phi=False), federated(clients), SPLIT)
    jobs = problem.make_jobs(
        {"inner": solver.phase}, range(len(clients)), [()] * len(clients), "train", 0, part="train"
    )

    def find(work, received, state):
        model, loss = solver.solve(work, work.compose(received, problem.first_personal()), work.batches("inner"))
        assert torch.equal(model["u"], received["u"]) if engine is Sequential else True
        return model["v"], loss

    results = serve(engine, problem, find, jobs, problem.first_shared()[0], RoundInfo())
    return [v.numpy() for v, _ in results], [float(loss) for _, loss in results]


def quadratic(data, w0=START):
    """H and g with f(w0 + s) = f(w0) + g . s + s . H s / 2, and f(w0)."""
    m = ref.matrices(data)
    residual = m["a"] @ THETA + m["b"] @ w0 - m["y"]
    return m["b"].T @ m["b"], m["b"].T @ residual, residual @ residual / 2


@ENGINES
@pytest.mark.parametrize(
    "solver",
    [mo.solver.exact(), mo.solver.conjugate_gradient(steps=4), mo.solver.lbfgs(steps=40)],
    ids=lambda s: s.spec["name"],
)
def test_they_find_the_least_squares_solution(solver, engine):
    """Clients of 6, 7 and 8 rows in one padded block; conjugate gradients are exact after 4 steps for 4 unknowns."""
    solutions, _ = solve_clients(solver, engine)
    for data, w in zip(CLIENTS, solutions, strict=True):
        np.testing.assert_allclose(w, ref.inner(data, THETA), rtol=0, atol=1e-8)


@ENGINES
def test_gradient_descent_in_closed_form(engine):
    """After tau steps on all data: w - w* = (I - gamma H)^tau (w0 - w*)."""
    solutions, _ = solve_clients(solver_work("personal", mo.sgd(0.3, steps=7)), engine)
    for data, w in zip(CLIENTS, solutions, strict=True):
        best = ref.inner(data, THETA)
        shrink = np.linalg.matrix_power(np.eye(4) - 0.3 * quadratic(data)[0], 7)
        np.testing.assert_allclose(w, best + shrink @ (START - best), rtol=1e-12, atol=1e-12)


@ENGINES
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_conjugate_gradients_minimise_over_the_krylov_space(steps, engine):
    """After k products the error is the least possible in span{g, H g, ..., H^(k-1) g}: a projected linear solve."""
    solutions, losses = solve_clients(mo.solver.conjugate_gradient(steps=steps), engine)
    for data, w, loss in zip(CLIENTS, solutions, losses, strict=True):
        hessian, g, value = quadratic(data)
        basis, _ = np.linalg.qr(np.stack([np.linalg.matrix_power(hessian, k) @ g for k in range(steps)], axis=1))
        best = START - basis @ np.linalg.solve(basis.T @ hessian @ basis, basis.T @ g)
        np.testing.assert_allclose(w, best, rtol=1e-9, atol=1e-9)
        assert loss == pytest.approx(value, rel=1e-12)
        assert np.abs(w - ref.inner(data, THETA)).max() > 1e-4


@ENGINES
def test_conjugate_gradients_stand_still_when_they_are_done(engine):
    """As many steps as one likes: 20 for 4 unknowns; and a loose tolerance ends the search early."""
    solutions, _ = solve_clients(mo.solver.conjugate_gradient(steps=20), engine)
    loose, _ = solve_clients(mo.solver.conjugate_gradient(steps=20, tolerance=0.9), engine)
    for data, w, early in zip(CLIENTS, solutions, loose, strict=True):
        hessian, g, _ = quadratic(data)
        np.testing.assert_allclose(w, ref.inner(data, THETA), rtol=0, atol=1e-9)
        residual = np.linalg.norm(hessian @ (early - START) + g) / np.linalg.norm(g)
        assert 1e-6 < residual <= 0.9


@ENGINES
@pytest.mark.parametrize("name", ["exact", "conjugate_gradient", "lbfgs"])
def test_already_solved(name, engine):
    """A gradient of 0 moves nothing and gives no NaN: one row and w with a w = y."""
    split = split_of(["u"], ["v"])
    data = federated([{"a": np.array([1.0]), "b": np.array([2.0]), "y": np.array([7.0])}])
    problem = problem_of(scalar_task(u=1.0, v=3.0), data, split)
    solver = SOLVERS[name](**({} if name == "exact" else {"steps": 3}))
    jobs = problem.make_jobs({"inner": solver.phase}, [0], [()], "train", 0, part="train")

    def find(work, received, state):
        return solver.solve(work, work.compose(received, problem.first_personal()), work.batches("inner"))[0]["v"]

    assert float(serve(engine, problem, find, jobs, problem.first_shared()[0], RoundInfo())[0]) == 3.0


@ENGINES
def test_of_many_solutions_exact_and_conjugate_gradients_take_the_nearest(engine):
    """Three rows for four unknowns: w0 + B^+ (y - A theta - B w0); from w0 = 0 it is the paper's B^+ (y - A theta)."""
    few, _ = ref.clients(2, rows=3, d=2, e=4, seed=2, noise=1.0, phi=False)
    few = few[:1]
    for start in (np.zeros(4), START):
        m = ref.matrices(few[0])
        nearest = start + np.linalg.pinv(m["b"]) @ (m["y"] - m["a"] @ THETA - m["b"] @ start)
        for solver in (mo.solver.exact(), mo.solver.conjugate_gradient(steps=6)):
            solutions, _ = solve_clients(solver, engine, few, start)
            np.testing.assert_allclose(solutions[0], nearest, rtol=0, atol=1e-9)


def logistic_like(theta, w):
    """psi(r) = sum log cosh(r), which is not quadratic, and a little w^2, so that the minimiser is one point."""
    init = {"u": torch.tensor(theta), "v": torch.tensor(w)}

    def loss(p, d):
        r = d["a"] @ p["u"] + d["b"] @ p["v"] - d["y"]
        return torch.logaddexp(r, -r) + 0.05 * p["v"].square().sum()

    return from_functions(init, loss)


def newton_in_numpy(data):
    """Damped Newton to a gradient of 0: mean of b tanh(r), plus 0.1 w."""
    w = np.zeros(4)
    for _ in range(200):
        t = np.tanh(data["a"] @ THETA + data["b"] @ w - data["y"])
        g = data["b"].T @ t / len(t) + 0.1 * w
        hessian = data["b"].T @ (data["b"] * (1 - t**2)[:, None]) / len(t) + 0.1 * np.eye(4)
        w = w - 0.5 * np.linalg.solve(hessian, g)
    assert np.abs(g).max() < 1e-12
    return w


@ENGINES
def test_lbfgs_minimises_what_is_not_quadratic(engine):
    solutions, _ = solve_clients(mo.solver.lbfgs(steps=60, memory=5), engine, task=logistic_like(THETA, START))
    for data, w in zip(CLIENTS, solutions, strict=True):
        np.testing.assert_allclose(w, newton_in_numpy(data), rtol=0, atol=1e-7)


def test_lbfgs_never_ends_higher_than_it_began():
    """f(w) = sqrt(1 + w^2) from w = 50: a full quasi-Newton step overshoots by far, and is refused."""
    task = from_functions(
        {"u": torch.zeros(2), "v": torch.full((4,), 50.0, dtype=torch.float64)},
        lambda p, d: (1 + p["v"].square()).sqrt().sum() + 0 * d["y"],
    )
    values = [
        float(
            (1 + torch.as_tensor(solve_clients(mo.solver.lbfgs(steps=k), Sequential, task=task)[0][0]).square())
            .sqrt()
            .sum()
        )
        for k in (1, 2, 4, 8, 40)
    ]
    assert values == sorted(values, reverse=True)
    assert values[0] < 4 * np.sqrt(2501)
    assert values[-1] == pytest.approx(4, rel=1e-10)


@ENGINES
@pytest.mark.parametrize("name", ["exact", "conjugate_gradient"])
def test_one_newton_step_where_the_loss_is_not_quadratic(name, engine):
    """w0 - H(w0)^-1 g(w0), no more: the promise of being exact is for quadratic losses."""
    solver = mo.solver.exact() if name == "exact" else mo.solver.conjugate_gradient(steps=4)
    solutions, _ = solve_clients(solver, engine, task=logistic_like(THETA, START))
    for data, w in zip(CLIENTS, solutions, strict=True):
        t = np.tanh(data["a"] @ THETA + data["b"] @ START - data["y"])
        g = data["b"].T @ t / len(t) + 0.1 * START
        hessian = data["b"].T @ (data["b"] * (1 - t**2)[:, None]) / len(t) + 0.1 * np.eye(4)
        np.testing.assert_allclose(w, START - np.linalg.solve(hessian, g), rtol=1e-8, atol=1e-9)


def test_no_step_where_the_curvature_is_negative():
    """f(w) = -w^2 / 2 has no minimum: conjugate gradients stay at the start."""
    task = from_functions(
        {"u": torch.zeros(2), "v": torch.ones(4, dtype=torch.float64)},
        lambda p, d: 0 * d["y"] - p["v"].square().sum() / 2,
    )
    solutions, _ = solve_clients(mo.solver.conjugate_gradient(steps=3), Sequential, task=task)
    np.testing.assert_array_equal(solutions[0], np.ones(4))


@ENGINES
@pytest.mark.parametrize(
    ("solver", "personal"),
    [
        (mo.solver.conjugate_gradient(steps=1), 48 + 72 + 72),
        (mo.solver.conjugate_gradient(steps=5), 48 + 72 + 5 * 72),
        (mo.solver.exact(), 48 + 72 + 21 * 72),
        (mo.solver.lbfgs(steps=3), 48 + 4 * 72),
        (mo.sgd(0.1, steps=6), 48 + 6 * 72),
        (mo.sgd(0.1, epochs=2, batch_size=2), 48 + 2 * 72),
    ],
    ids=["cg-1", "cg-5", "exact", "lbfgs-3", "sgd-6", "sgd-epochs"],
)
def test_the_shared_part_is_computed_once(engine, solver, personal):
    """A product of [rows, n] and [n, m] is 2 n m operations a row: 48 for the 4 -> 6 layer, 36 for the 6 -> 3 head.

    A gradient of the head is 36 forwards and 36 backwards; a product with its Hessian, of the softmax's curvature
    between two products with the features, 72 as well; the head has 21 parameters. Line 5 is then 84 forwards and
    36 + 48 backwards to the first layer's weight.
    """
    net = mo.models.mlp(4, 3, hidden=(6,), seed=1)
    data = federated(image_clients((5, 1, 9)))
    algorithm = mo.ffgg(shared=0.1, personal=solver)
    run = mo.fit(net, data, algorithm, split=mo.split.output_layer(net), rounds=1, engine=engine.name)
    assert run.ledger["flops"] == 15 * (personal + 84 + 84)


def test_a_random_start_has_the_scale_of_the_first_values_and_one_draw_for_all():
    net = mo.models.mlp(50, 40, hidden=(40,), seed=1)
    split = mo.split.by_name(net, personal=["head"])
    first = {n: p.detach().clone() for n, p in net.named_parameters() if n in split.personal}
    first["head.bias"] = torch.full((40,), 2.0)

    class Work:
        personal = split.personal

    start, again, other = (draw_start(Work, first, seed) for seed in (3, 3, 4))
    assert draw_start(Work, first, None) is first
    w, weight = start["head.weight"], first["head.weight"]
    assert torch.equal(w, again["head.weight"])
    assert not torch.equal(w, other["head.weight"])
    assert abs(float((w * weight).mean() / weight.var())) < 0.1  # a draw of its own, not the first values
    assert float(w.std()) == pytest.approx(float(weight.std()), rel=0.06)
    assert torch.equal(start["head.bias"], first["head.bias"])  # what is constant stays so


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: mo.sgd(0, steps=1), r"`lr` must be > 0 and finite, got 0\."),
        (
            lambda: mo.ffgg(shared=0.1, personal=mo.sgd(0.1)),
            r"`personal\.steps` must be given, or personal\.epochs, got neither\.",
        ),
        (
            lambda: mo.ffgg(shared=0.1, personal=0.1),
            r"`personal` must be an inner solver or what moiety\.sgd, adam or adamw makes, got 0\.1",
        ),
        (lambda: mo.sgd(0.1, steps=1, epochs=1), r"`epochs` must be left out where steps is"),
        (lambda: mo.sgd(0.1, steps=1, batch_size=0), r"`batch_size` must be >= 1, got 0\."),
        (lambda: mo.solver.conjugate_gradient(steps=0), r"`solver\.steps` must be >= 1, got 0\."),
        (
            lambda: mo.solver.conjugate_gradient(steps=1, tolerance=1),
            r"`solver\.tolerance` must be >= 0 and < 1, got 1",
        ),
        (lambda: mo.solver.lbfgs(steps=2.5), r"`solver\.steps` must be a whole number, got 2\.5\."),
        (lambda: mo.solver.lbfgs(steps=2, memory=0), r"`solver\.memory` must be >= 1, got 0\."),
    ],
)
def test_wrong_options_are_one_line(make, text):
    with pytest.raises(MoietyError, match=rf"^{text}") as error:
        make()
    assert "\n" not in str(error.value)


@ENGINES
def test_rows_that_repeat_and_a_client_that_overflows(engine):
    """A Hessian of rank 1 in float32 with 400 unknowns: nearest solution; one with infinities: a NaN, no error."""
    b = np.sin(np.arange(400.0)).astype(np.float32)
    init = {"u": torch.zeros(2), "v": torch.zeros(400)}
    task = from_functions(init, lambda p, d: (d["b"] @ p["v"] - d["y"]).square() / 2 + 0 * p["u"].sum())
    rows = [{"b": np.stack([scale * b] * 2), "y": np.full(2, 3.0, dtype=np.float32)} for scale in (1, 1e30)]
    problem = problem_of(task, federated(rows), split_of(["u"], ["v"], {"u": 2, "v": 400}))
    solver = mo.solver.exact()
    jobs = problem.make_jobs({"inner": solver.phase}, [0, 1], [()] * 2, "train", 0, part="train")

    def find(work, received, state):
        return solver.solve(work, work.compose(received, problem.first_personal()), work.batches("inner"))[0]["v"]

    fine, odd = serve(engine, problem, find, jobs, problem.first_shared()[0], RoundInfo())
    np.testing.assert_allclose(fine.numpy(), 3 * b / (b @ b), rtol=1e-4, atol=1e-6)
    assert odd.isnan().all()


@ENGINES
def test_a_hessian_that_is_too_large_is_refused(engine):
    net = mo.models.mlp(64, 64, hidden=(64,), seed=1)
    data = federated(image_clients((3, 4), features=64))
    with pytest.raises(
        MoietyError, match=r"^`solver` must be one for many personal parameters, got exact for 4160\. Use"
    ):
        mo.fit(
            net,
            data,
            mo.ffgg(shared=0.1, personal=mo.solver.exact()),
            split=mo.split.output_layer(net),
            rounds=1,
            engine=engine.name,
        )
    assert MOST < 4160
