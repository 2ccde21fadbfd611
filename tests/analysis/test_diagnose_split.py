"""||F_m|| of candidate splits against NumPy: least squares, where w*(theta) and F_m are formulas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import oracle_bilevel as bilevel
import pytest
import torch
from oracle_problems import split_of

import moiety as mo
from moiety.analysis.diagnose_split import ENOUGH, Diagnosis, SplitRow
from moiety.errors import MoietyError

D, E = 4, 3
SIZES = {"u": D, "v": E}
SOME, THETA = bilevel.clients(5, 12, D, E, seed=2, noise=0.5)
START, W0 = np.linspace(-1, 1, D), np.linspace(0.5, 2, E)
CUTS = {"nothing": (["u", "v"], []), "w": (["u"], ["v"]), "all": ([], ["u", "v"])}
SPLITS = {name: split_of(shared, own, SIZES) for name, (shared, own) in CUTS.items()}
EXACT = mo.solver.exact()


def data(some=SOME, validation=0.0):
    return mo.data.from_clients({f"m{i}": each for i, each in enumerate(some)}, test=0, validation=validation)


def parts(fed, part):
    return [fed.client(i, part) for i in range(len(fed))]


def grad_w(each, theta, w):
    """grad_2 f_m = B^T (A theta + B w - y)."""
    m = bilevel.matrices(each)
    return m["b"].T @ (m["a"] @ theta + m["b"] @ w - m["y"])


def plain_norm(each):
    """The gradient of f_m in both blocks at the start."""
    return np.linalg.norm([*bilevel.operator(each, START, W0), *grad_w(each, START, W0)])


def test_the_three_splits_against_formulas():
    """w personal: F_m = grad_1 f_m(theta, B^+ (y - A theta)). Nothing personal: the plain gradient. All: nothing left.

    Medians over clients; ``left`` is the median of ratios; the mean of F_m has a norm of its own.
    """
    diagnosis = mo.diagnose_split(bilevel.task(START, W0), data(), splits=SPLITS, solver=EXACT)
    nothing, w, everything = diagnosis.splits
    f = [bilevel.operator(each, START) for each in SOME]
    before = [np.linalg.norm(bilevel.operator(each, START, W0)) for each in SOME]
    norms = np.linalg.norm(f, axis=1)
    assert w.f == pytest.approx(np.median(norms), rel=1e-10)
    assert w.before == pytest.approx(np.median(before), rel=1e-10)
    assert w.left == pytest.approx(np.median(norms / before), rel=1e-10)
    assert w.mean_f == pytest.approx(np.linalg.norm(np.mean(f, axis=0)), rel=1e-10)
    assert w.unsolved < 1e-10
    fits = [_risk(each, START) for each in SOME]
    assert w.loss == pytest.approx(np.mean(fits), rel=1e-10)
    assert (w.personal, w.shared, w.metric, w.verdict) == (E, D, None, "something is left to share")

    plain = [plain_norm(each) for each in SOME]
    assert nothing.f == nothing.before == pytest.approx(np.median(plain), rel=1e-12)
    assert (nothing.left, nothing.personal, nothing.shared) == (1.0, 0, D + E)
    assert nothing.verdict == "nothing is personal"

    assert (everything.f, everything.mean_f, everything.left) == (0.0, 0.0, 0.0)
    assert (everything.personal, everything.shared) == (D + E, 0)
    assert everything.verdict == "personalise less"
    assert "all: finetuning leaves the shared part no parameter" in diagnosis.sentence


def _risk(each, theta):
    """f_m at w*(theta), phi included."""
    m, w = bilevel.matrices(each), bilevel.inner(each, theta)
    fit, phi = m["a"] @ theta + m["b"] @ w - m["y"], m["h"] @ theta - m["c"]
    return (fit @ fit + phi @ phi) / 2


def test_along_a_run_it_is_ffgg():
    """theta <- theta - gamma mean_m F_m(theta), Algorithm 1 with all clients, in NumPy."""
    gamma, rounds = 0.05, 4
    splits = {"w": SPLITS["w"]}
    diagnosis = mo.diagnose_split(bilevel.task(START, W0), data(), splits=splits, solver=EXACT, rounds=rounds, lr=gamma)
    theta = START
    path = diagnosis.splits[0].path
    assert [row["round"] for row in path] == list(range(rounds + 1))
    for row in path:
        f = np.array([bilevel.operator(each, theta) for each in SOME])
        assert row["f"] == pytest.approx(np.median(np.linalg.norm(f, axis=1)), rel=1e-9)
        assert row["mean_f"] == pytest.approx(np.linalg.norm(f.mean(0)), rel=1e-9)
        assert row["loss"] == pytest.approx(np.mean([_risk(each, theta) for each in SOME]), rel=1e-9)
        theta = theta - gamma * f.mean(0)
    assert path[-1]["mean_f"] < path[0]["mean_f"]
    assert diagnosis.splits[0].f == path[0]["f"]


def test_the_metric_is_that_of_finetuned_models_on_validation_rows():
    """The metric of this task is its loss, the mean over validation rows of all clients, at w* of the training rows."""
    fed = data(validation=0.25)
    split = mo.diagnose_split(bilevel.task(START, W0), fed, splits={"w": SPLITS["w"]}, solver=EXACT).splits[0]
    losses = []
    for train, rows in zip(parts(fed, "train"), parts(fed, "validation"), strict=True):
        w = bilevel.inner(train, START)
        fit, phi = rows["a"] @ START + rows["b"] @ w - rows["y"], rows["h"] @ START - rows["c"]
        losses += list((fit**2 + phi**2) / 2)
    assert split.metric == pytest.approx(np.mean(losses), rel=1e-10)


@pytest.mark.parametrize(("slope", "verdict"), [(1e-3, "personalise less"), (0.5, "something is left to share")])
def test_how_close_is_too_close(slope, verdict):
    """f(theta, w) = (theta + w - y)^2 / 2 + slope theta. After w* = y - theta the gradient in theta is the slope.

    Before, at w = 0, theta = 0 and y = -1, it is 1 + slope: so slope / (1 + slope) is left, below or above 0.01.
    """
    columns = {"a": np.ones((3, 1)), "b": np.ones((3, 1)), "y": -np.ones(3), "s": np.full(3, slope)}
    task = bilevel.task([0.0], [0.0], phi=False)
    inner = task.loss
    tilted = replace(task, loss=lambda p, d: (inner(p, d)[0] + d["s"] * p["u"], {}))
    splits = {"w": split_of(["u"], ["v"], {"u": 1, "v": 1})}
    split = mo.diagnose_split(tilted, data([columns] * 2), splits=splits, solver=EXACT).splits[0]
    assert split.f == pytest.approx(slope, rel=1e-9)
    assert split.left == pytest.approx(slope / (1 + slope), rel=1e-9)
    assert split.verdict == verdict
    at = slope / (1 + slope)
    for close, text in ((at * 0.99, "something is left to share"), (at * 1.01, "personalise less")):
        diagnosis = mo.diagnose_split(tilted, data([columns]), splits=splits, solver=EXACT, close=close)
        assert diagnosis.splits[0].verdict == text


def test_a_client_that_still_moves_theta_counts():
    """Three clients as above, two without a slope and one with 3.

    The median of what is left is 0, but the mean of F_m is 1, as large as the median gradient before (1, 1 and 4):
    theta moves, so something is left to share.
    """
    clients = [
        {"a": np.ones((3, 1)), "b": np.ones((3, 1)), "y": -np.ones(3), "s": np.full(3, slope)}
        for slope in (0.0, 0.0, 3.0)
    ]
    task = bilevel.task([0.0], [0.0], phi=False)
    inner = task.loss
    tilted = replace(task, loss=lambda p, d: (inner(p, d)[0] + d["s"] * p["u"], {}))
    splits = {"w": split_of(["u"], ["v"], {"u": 1, "v": 1})}
    split = mo.diagnose_split(tilted, data(clients), splits=splits, solver=EXACT).splits[0]
    assert (split.f, split.mean_f, split.before) == pytest.approx((0.0, 1.0, 1.0), abs=1e-9)
    assert split.verdict == "something is left to share"


def test_unfinished_finetuning_is_said():
    """One gradient step of size g on w: F and what is left of grad_2 are those at w0 - g grad_2 f_m."""
    g = 0.01
    solver = mo.sgd(g, steps=1)
    diagnosis = mo.diagnose_split(bilevel.task(START, W0), data(), splits={"w": SPLITS["w"]}, solver=solver)
    ws = [W0 - g * grad_w(each, START, W0) for each in SOME]
    f = [np.linalg.norm(bilevel.operator(each, START, w)) for each, w in zip(SOME, ws, strict=True)]
    ratios = [
        np.linalg.norm(grad_w(each, START, w)) / np.linalg.norm(grad_w(each, START, W0))
        for each, w in zip(SOME, ws, strict=True)
    ]
    assert diagnosis.splits[0].f == pytest.approx(np.median(f), rel=1e-10)
    assert diagnosis.splits[0].unsolved == pytest.approx(np.median(ratios), rel=1e-10)
    assert min(ratios) > 0.1
    assert "unfinished finetuning" in diagnosis.sentence


def digits():
    fed = mo.data.load("digits", clients=12, per_client=30, partition=mo.data.dirichlet(0.3), validation=0.3, seed=0)
    model = mo.models.mlp(64, 10, hidden=(16,), seed=0)
    return fed, model


def test_a_module_with_several_splits():
    """The default solver; with all personal every client fits its rows by itself, with the head almost so."""
    fed, model = digits()
    splits = {
        "none": mo.split.nothing(model),
        "bias": mo.split.by_name(model, personal=["head.bias"]),
        "output": mo.split.output_layer(model),
        "full": mo.split.everything(model),
    }
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    diagnosis = mo.diagnose_split(model, fed, splits=splits, clients=4)
    none, bias, output, full = diagnosis.splits
    assert (bias.personal, output.personal) == (10, 170)
    assert full.f == 0 < output.f < bias.f
    assert 1 == none.left > bias.left > output.left
    assert none.loss > bias.loss > output.loss
    assert all(0 <= s.metric <= 1 for s in diagnosis.splits)
    assert (none.verdict, bias.verdict) == ("nothing is personal", "something is left to share")
    assert output.verdict == full.verdict == "personalise less"  # 30 rows of 64 numbers: each client fits its own
    assert diagnosis.best.metric == max(s.metric for s in diagnosis.splits)
    assert diagnosis.best_that_shares is max((none, bias), key=lambda s: s.metric)
    assert f"Of those that leave something to share it is {diagnosis.best_that_shares.split}" in diagnosis.sentence
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    again = mo.diagnose_split(model, fed, splits=splits, clients=4)
    assert again.rows == diagnosis.rows


def test_it_is_shown_as_text_as_markdown_and_as_rows():
    diagnosis = mo.diagnose_split(bilevel.task(START, W0), data(validation=0.25), splits=SPLITS, solver=EXACT)
    text = str(diagnosis).splitlines()
    assert text[0].split()[:3] == ["split", "personal", "shared"]
    assert [line.split()[0] for line in text[1:4]] == ["nothing", "w", "all"]
    lines = diagnosis.markdown().splitlines()
    assert len(lines) == 5
    assert {line.replace("\\|", "").count("|") for line in lines} == {12}
    assert [row["split"] for row in diagnosis.rows] == ["nothing", "w", "all"]
    assert diagnosis.rows[1]["f"] == diagnosis.splits[1].f
    best = min(diagnosis.splits, key=lambda s: s.metric)
    assert diagnosis.best is best
    assert f"The best loss on validation rows has {best.split}, {best.metric:.4g}." in diagnosis.sentence


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"splits": {}}, "`splits` must be at least one, got none."),
        ({"splits": {"w": None}}, "`splits.w` must be a Split, got None (NoneType)."),
        ({"rounds": 3}, "`lr` must be given with rounds, and only then, got None."),
        ({"lr": 0.1}, "`lr` must be given with rounds, and only then, got 0.1."),
        ({"close": 1.0}, "`close` must be > 0 and < 1, got 1.0."),
        ({"clients": 0}, "`clients` must be >= 1, got 0."),
        ({"inputs": 3}, "`inputs` must be a list of column names, got 3 (int)."),
        (
            {"solver": mo.sgd(1e200, steps=9)},
            "`solver` must be one that stays finite, got numbers that are not",
        ),
    ],
)
def test_bad_input_is_one_line(options, line):
    with pytest.raises(MoietyError) as error:
        mo.diagnose_split(bilevel.task(START, W0), data(), **{"splits": {"w": SPLITS["w"]}, **options})
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


def test_the_sentence_tells_missing_rows_from_scores_that_are_not_finite():
    row = SplitRow("w", 1, 1, 1.0, 1.0, 1.0, 1.0, 0.0, 0.5, None, ENOUGH)
    without = Diagnosis((row,), 0.01, 5, "auroc", higher_is_better=True)
    assert "There are no validation rows, so nothing is said of scores." in without.sentence
    strange = replace(without, splits=(replace(row, metric=np.nan),))
    assert "No score on validation rows is finite, so nothing is said of scores." in strange.sentence
