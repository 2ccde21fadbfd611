"""The recipe fedpop-toy: its measures by hand, its data as the paper has them, its page at scale ci."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest

from moiety.cli import main
from moiety_recipes.fedpop_toy import (
    EXACT,
    METHODS,
    PROBLEMS,
    Problem,
    build_algorithm,
    draw_problem,
    fedpop_toy,
    plan,
    posterior_mean,
    subspace_distance,
    vector_error,
)


def test_the_distance_of_two_planes_that_share_a_line():
    """span(e1, e2) and span(e1, cos a e2 + sin a e3): the angles are 0 and a, whatever the bases."""
    a = 0.3
    one = np.array([[1.0, 2.0], [1.0, -1.0], [0.0, 0.0], [0.0, 0.0]])
    other = np.array([[1.0, 3.0], [0.0, np.cos(a)], [0.0, np.sin(a)], [0.0, 0.0]])
    assert subspace_distance(one, other) == pytest.approx(np.sin(a))
    assert subspace_distance(other, one) == pytest.approx(np.sin(a))
    assert subspace_distance(one, one @ np.array([[2.0, 1.0], [0.0, 3.0]])) == pytest.approx(0, abs=1e-12)
    assert subspace_distance(one, np.eye(4)[:, 2:]) == pytest.approx(1)


def test_the_error_of_vectors_does_not_depend_on_the_basis():
    rng = np.random.default_rng(0)
    phi = np.linalg.qr(rng.normal(size=(5, 2)))[0]
    z, turn = rng.normal(size=(3, 2)), np.array([[0.0, -2.0], [0.5, 0.0]])
    exact = [np.linalg.solve(turn, w) for w in z]
    assert vector_error(phi @ turn, exact, phi, z) == pytest.approx(0, abs=1e-12)
    vectors = [w + np.array([3.0, 4.0]) for w in z]
    assert vector_error(phi, vectors, phi, z) == pytest.approx(5.0)


def test_the_mean_of_a_posterior_by_hand():
    """y = (3, 1) from a z with a = (1, 2) and noise 2, z ~ N(1/2, 1/4): precision 5/4 + 4 = 21/4.

    The mean is ((3 + 2)/4 + 4/2) / (21/4) = 13/21. A second number that no row sees has the mean of its prior.
    """
    a, y = np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([3.0, 1.0])
    np.testing.assert_allclose(posterior_mean(a, y, 2.0, np.array([0.5, -3.0]), 0.5), [13 / 21, -3.0], rtol=1e-12)


def test_sizes_are_the_papers():
    first = PROBLEMS[0]
    assert (first.clients, first.raw, first.latent, first.scarce, first.ample) == (100, 20, 2, 5, 10)
    data, phi, z = draw_problem(first, 0)
    assert sorted(data.sizes("train").tolist()) == [5] * 90 + [10] * 10
    np.testing.assert_allclose(phi.T @ phi, np.eye(2), atol=1e-12)
    # What is left of y beside phi z is the noise: 550 draws of variance 0.1, by five standard errors of a variance.
    noise = [data.client(i)["y"][:, 0] - data.client(i)["x"] @ phi @ z[i] for i in range(100)]
    assert np.concatenate(noise).var() == pytest.approx(0.1, abs=5 * 0.1 * np.sqrt(2 / 550))
    assert {(t.clients, t.raw, t.latent) for t in PROBLEMS} >= {(50, 20, 2), (200, 20, 2), (100, 50, 2), (100, 5, 2)}
    assert Problem(name="", title="").noise == 0.1


def test_the_likelihood_has_the_variance_of_the_noise():
    """log N(y; f, s^2) = -(y - f)^2 / (2 s^2) + ...: a squared error weighs 5 with s^2 = 0.1, and 50 with s = 0.1.

    The squared error of one output is the loss of the runs, so that is the weight of the loss.
    """
    variance, deviation = (build_algorithm(problem, "FedSOUL").spec["loss_weight"] for problem in PROBLEMS[:2])
    assert (variance, deviation) == (pytest.approx(5.0), pytest.approx(50.0))


def test_titles_follow_the_sizes():
    """What --set changes, tables show: the variance of 0.1 is that of the deviation in the plan."""
    assert PROBLEMS[0].heading == "Figure 2, S6: variance 0.1"
    assert [problem.heading for problem in PROBLEMS[1:3]] == [
        "Figure 2, S6: deviation 0.1",
        "2 examples, deviation 0.1",
    ]
    assert [problem.heading for problem in PROBLEMS[6:]] == ["S4: 5 raw dimensions", "S5: 5 latent dimensions"]
    outcome = fedpop_toy.run(scale="ci", rounds=1, seeds=1, changes={"clients": 12})
    assert "| 12 clients |" in outcome.page
    assert "1 rounds, 1 seeds." in outcome.page
    assert list(outcome.results) == [("figure-2", 100, method) for method in METHODS]


def test_scales_differ_in_rounds():
    assert (plan("laptop").rounds, plan("paper").rounds) == (150, 500)
    assert plan("laptop").problems == plan("paper").problems == PROBLEMS


@pytest.fixture(scope="module")
def folder(recipe_run):
    return recipe_run("fedpop-toy").folder


def test_a_page_and_its_numbers(folder):
    page, table = (folder / "table.md").read_text(), json.loads((folder / "table.json").read_text())
    for words in (
        "`moiety run fedpop-toy --scale ci --engine sequential`",
        "5 rounds, 2 seeds",
        "## Differences",
        "Decided here",
    ):
        assert words in page
    assert not re.search("holds|does not hold|not decided", page.partition("## Decided here")[0])
    assert (folder / "figure2.png").read_bytes().startswith(b"\x89PNG")
    scores = [row for row in table["rows"] if row["verdict"] is None]
    assert len(scores) == len(METHODS) * 2 + 1
    for row in scores:
        method, measure = ("FedSOUL", "exact") if row["method"] == EXACT else (row["method"], row["measure"])
        files = [folder / "figure-2" / f"seed-{seed}" / f"{method}.json" for seed in (100, 101)]
        results = [json.loads(file.read_text())["result"] for file in files]
        assert row["ours"] == pytest.approx(np.mean([each[measure] for each in results]))
    claims = [row for row in table["rows"] if row["verdict"] is not None]
    assert {row["verdict"] for row in claims} <= {"holds", "does not hold", "not decided at this scale"}


def test_what_has_ended_is_not_run_again(folder, tmp_path):
    folder = shutil.copytree(folder, tmp_path / "run")
    before = json.loads((folder / "table.json").read_text())["rows"]
    fedpop_toy.run(out=folder, resume=True, watch=lambda name, place: pytest.fail(f"{name} is run again"))
    assert json.loads((folder / "table.json").read_text())["rows"] == before


def test_a_result_that_was_cut_off_is_made_again(folder, tmp_path):
    """The command says which file it is, and runs that cell alone."""
    folder = shutil.copytree(folder, tmp_path / "run")
    before = json.loads((folder / "table.json").read_text())["rows"]
    file = folder / "figure-2/seed-100/FedRep.json"
    file.write_text(file.read_text()[:10])
    with pytest.warns(UserWarning, match="is not as it was written") as record:
        assert main(["run", "fedpop-toy", "--out", str(folder), "--resume", "-q", "--engine", "sequential"]) == 0
    (text,) = (str(each.message) for each in record)
    assert text == f"{file} is not as it was written: the cell figure-2 seed 100 FedRep is run again."
    file.unlink()
    names = []
    fedpop_toy.run(out=folder, resume=True, engine="sequential", watch=lambda name, place: names.append(name))
    assert names == ["figure-2 seed 100 FedRep"]
    assert json.loads((folder / "table.json").read_text())["rows"] == before
