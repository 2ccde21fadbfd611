"""The recipe ffgg-figure1: its problem against the rows, its limits against runs, its page against its numbers."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from flat_options import flat

import moiety as mo
from moiety.random import generator
from moiety_recipes import ffgg_figure1_limits as limits
from moiety_recipes.ffgg_figure1 import build_descent, build_lines, ffgg_figure1, plan
from moiety_recipes.ffgg_figure1_problem import Size, build_split, build_task, deal, draw_problem

SMALL = Size(clients=3, rows=40, shared=4, personal=3)
PROBLEM = draw_problem(SMALL, 5)
STEP, TOP = 1 / PROBLEM.cocoercive(), PROBLEM.smooth()


def rows_of(m):
    """H, A, B of client m as section 3.1 makes them, and b, y from theta* and w_m*."""
    draw = generator(5, "ffgg-figure1", m)
    h, a, b = draw.random((40, 4)) / 4, draw.random((40, 4)) / 4, draw.random((40, 3)) / 3
    return h, a, b, h @ PROBLEM.theta, a @ PROBLEM.theta + b @ PROBLEM.w[m]


def test_the_full_size_is_the_papers():
    full = plan("paper")
    assert full.size == Size(clients=32, rows=10_000, shared=100, personal=50)
    assert (full.inner, full.local) == ((10, 20, 30, 40), (100, 200, 500))
    assert plan("laptop") == full


@pytest.mark.parametrize("curvature", [True, False])
def test_the_task_is_the_loss_over_all_rows(curvature):
    """f = ||H theta - b||^2 / 2 + ||A theta + B w - y||^2 / 2 and its gradient, from the rows themselves."""
    theta, w = np.array([0.3, -1.0, 2.0, 0.5]), np.array([1.5, -0.5, 0.25])
    task, data = build_task(PROBLEM, curvature=curvature), deal(PROBLEM)
    for m in range(3):
        h, a, b, c, y = rows_of(m)
        params = {"theta": torch.tensor(theta, requires_grad=True), "w": torch.tensor(w, requires_grad=True)}
        batch = {k: torch.tensor(column[m : m + 1]) for k, column in data.columns.items()}
        (value,) = task.loss(params, batch)[0]
        fit, other = a @ theta + b @ w - y, h @ theta - c
        assert float(value.detach()) == pytest.approx((fit @ fit + other @ other) / 2, rel=1e-12)
        value.backward()
        np.testing.assert_allclose(params["theta"].grad, h.T @ other + a.T @ fit, rtol=1e-10)
        np.testing.assert_allclose(params["w"].grad, b.T @ fit, rtol=1e-10)


def test_f_and_the_constants_are_those_of_the_rows():
    """F_m(theta) = H^T(H theta - b) + A^T(I - B B^+)(A theta - y) (appendix A.1)."""
    theta, operators, norms = np.array([0.3, -1.0, 2.0, 0.5]), [], []
    for m in range(3):
        h, a, b, c, y = rows_of(m)
        outside = np.eye(40) - b @ np.linalg.pinv(b)
        operators.append(h.T @ (h @ theta - c) + a.T @ outside @ (a @ theta - y))
        norms.append(np.linalg.norm(h.T @ h + a.T @ outside @ a, 2))
    mean = np.mean(operators, axis=0)
    assert PROBLEM.distance(theta) == pytest.approx((mean @ mean, np.sum((theta - PROBLEM.theta) ** 2)), rel=1e-9)
    assert PROBLEM.cocoercive() == pytest.approx(max(norms), rel=1e-9)


def run(algorithm, rounds, personal=False, curvature=False):
    outcome = mo.fit(
        build_task(PROBLEM, curvature=curvature),
        deal(PROBLEM),
        algorithm,
        split=build_split(PROBLEM, personal=personal),
        rounds=rounds,
        engine="vectorised",
        settings=mo.Settings(evaluate_on="train", evaluate_every=rounds),
    )
    return outcome.history[-1]["loss"]


def test_where_lines_lead_is_where_runs_end():
    """The formulas are by linear algebra, the runs by the algorithms: they meet."""
    inner = build_descent(1 / PROBLEM.smooth_in_w(), 7)
    assert run(mo.ffgg(shared=STEP, personal=inner), 150, personal=True) == pytest.approx(
        limits.ffgg(PROBLEM, 7), rel=1e-5
    )
    local = {"lr": 1 / TOP, "steps": 6}
    assert run(flat(mo.local_gd, **local), 60) == pytest.approx(limits.local_gd(PROBLEM, local["lr"], 6), rel=1e-5)
    assert run(flat(mo.scaffold, **local, batch_size=None), 60) == pytest.approx(limits.one_model(PROBLEM), rel=1e-5)
    exact = run(mo.ffgg(shared=STEP, personal=mo.solver.conjugate_gradient(steps=3)), 20, personal=True, curvature=True)
    assert exact == pytest.approx(limits.exact_ffgg(PROBLEM, STEP, 20), rel=1e-6)


def test_the_end_of_l2gd_minimises_its_problem():
    """(1/n) sum f_m(x_m) + (lambda/2n) sum ||x_m - mean||^2, with its gradient 0: all blocks as one linear system."""
    n, size, pull = 3, 7, 0.1
    own = PROBLEM.stars()
    matrix = np.zeros((n * size, n * size))
    for m in range(n):
        block = slice(m * size, (m + 1) * size)
        matrix[block, block] += PROBLEM.gram[m]
    centring = np.kron(np.eye(n) - np.ones((n, n)) / n, np.eye(size))
    right = np.concatenate([PROBLEM.gram[m] @ own[m] for m in range(n)])
    best = np.linalg.solve(matrix + pull * centring, right).reshape(n, size)
    assert limits.l2gd(PROBLEM, pull) == pytest.approx(limits.error(PROBLEM, best), rel=1e-9)


def test_the_step_sizes_are_the_papers():
    small = plan("ci")
    problem = draw_problem(small.size, 0)
    top = problem.smooth()
    specs = {line.name: line.algorithm.spec for line in build_lines(small, problem, 0)}
    for tau in small.local:
        assert specs[f"scaffold-{tau}"]["shared"]["lr"] == specs[f"local-gd-{tau}"]["shared"]["lr"] == 1 / (top * tau)
        assert specs[f"scaffold-{tau}"]["server"] == {"name": "sgd", "lr": 0.5}
        l2gd = specs[f"l2gd-{tau}"]
        assert (l2gd["personal"]["pull"], l2gd["probability"]) == (0.1, 1 / tau)
        # alpha / M with alpha = 1 / (2 LL), LL = max(L / (1 - p), lambda / p) / M
        assert 1 / l2gd["personal"]["lr"] == pytest.approx(2 * max(top / (1 - 1 / tau), 0.1 * tau))


@pytest.fixture(scope="module")
def record(recipe_run):
    run = recipe_run("ffgg-figure1")
    return run.folder, run.table


def test_what_is_written(record):
    folder, table = record
    page = (folder / "table.md").read_text()
    names = {f"cg-{t}" for t in (1, 2, 4)} | {
        f"{m}-{t}" for m in ("ffgg", "scaffold", "local-gd", "l2gd") for t in (5, 15)
    }
    assert set(table["points"]) == names == {file.stem for file in (folder / "lines").iterdir()}
    errors = {row["line"]: row["ours"] for row in table["rows"] if "line" in row}
    assert errors == {name: points[-1][1] for name, points in table["points"].items()}
    assert (folder / "figure1.png").read_bytes().startswith(b"\x89PNG")
    for words in (
        "`moiety run ffgg-figure1 --scale ci --engine sequential`",
        "4 clients of 60 rows",
        "Decided here",
        "figure1.png",
    ):
        assert words in page
    for row in table["rows"]:
        if row["verdict"] is not None:
            decided = abs(row["ours"] - row["against"]) >= row["noise"]
            plain = "holds" if row["ours"] < row["against"] else "does not hold"
            assert row["verdict"] == (plain if decided else "not decided at this scale")


def test_as_many_steps_as_dimensions_are_exact(record):
    """Four steps of conjugate gradients in four dimensions: the closed form of exact FFGG; one step stops above it."""
    _, table = record
    problem = draw_problem(plan("ci").size, 0)
    exact = limits.exact_ffgg(problem, 1 / problem.cocoercive(), 30)
    assert table["points"]["cg-4"][-1][1] == pytest.approx(exact, rel=1e-9)
    assert table["points"]["cg-1"][-1][1] > 10 * exact


def test_resumed_it_runs_nothing_again(record, tmp_path):
    folder, table = record
    folder = shutil.copytree(folder, tmp_path / "run")
    times = {file: file.stat().st_mtime_ns for file in (folder / "lines").iterdir()}
    outcome = ffgg_figure1.run(out=folder, resume=True)
    page = ffgg_figure1.page(plan("ci"), range(1), outcome.results)
    assert page.sentence.startswith(f"{sum(row['verdict'] == 'holds' for row in table['rows'])} of ")
    assert times == {file: file.stat().st_mtime_ns for file in (folder / "lines").iterdir()}


def test_a_broken_line_is_computed_again(record, tmp_path):
    folder, table = record
    out = shutil.copytree(folder, tmp_path / "out")
    (out / "lines" / "cg-1.json").write_text("{")
    with pytest.warns(UserWarning, match=r"cg-1.json is not as it was written: the cell .* is run again"):
        ffgg_figure1.run(out=out, resume=True)
    again = json.loads((out / "table.json").read_text())["points"]["cg-1"]
    np.testing.assert_allclose(again, table["points"]["cg-1"], rtol=1e-12)  # another engine may have been quicker
