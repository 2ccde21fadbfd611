"""Predictions averaged over draws: by hand, through runs, and the same whichever engine trained."""

import functools
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from flat_options import flat
from oracle_problems import federated, image_clients
from run_settings import with_settings
from scipy import optimize, stats
from torch import nn
from torch.nn import functional

import moiety as mo
from moiety.evaluation.chains import AGREE, judge_chain
from moiety.evaluation.predictive import Predictive

DATA = federated(image_clients([9, 5, 12, 7]), image_clients([4, 6, 3, 5], seed=1))


def fedpop(**options):
    defaults = {
        "kernel": mo.kernel.langevin(step=0.02),
        "shared_lr": 0.05,
        "prior_lr": 0.05,
        "samples": 6,
        "burn_in": 2,
    }
    return flat(mo.fedpop, **{**defaults, **options})


def fit_posterior(engine="sequential", algorithm=None, **options):
    net = mo.models.mlp(4, 3, hidden=(6,), seed=1).double()
    split = mo.split.by_name(net, personal=["head"])
    return mo.fit(net, DATA, algorithm or fedpop(), **with_settings(split=split, rounds=3, engine=engine, **options))


@functools.cache
def one_run():
    return fit_posterior()


def test_entropy_and_mutual_information_by_hand():
    """Two draws that are sure of different classes: the mean is even, log 2, and all of it is disagreement.

    Two draws that are both even: log 2 as well, and none of it is.
    """
    big = 60.0
    torn = Predictive(np.array([[[big, 0.0]], [[0.0, big]]]))
    even = Predictive(np.zeros((2, 1, 2)))
    assert torn.entropy == pytest.approx([np.log(2)])
    assert torn.mutual_information == pytest.approx([np.log(2)])
    assert even.entropy == pytest.approx([np.log(2)])
    assert even.mutual_information == pytest.approx([0.0], abs=1e-12)


def test_probabilities_are_averaged_not_logits():
    """Logits 0 and log 3 for the first of two classes: probabilities 1/2 and 3/4, on average 5/8."""
    predictive = Predictive(np.array([[[0.0, 0.0]], [[np.log(3), 0.0]]]))
    np.testing.assert_allclose(predictive.probabilities, [[0.625, 0.375]])


def test_intervals_of_observations_are_quantiles_of_the_mixture():
    """Draws from N(1, 2^2) and noise 1.5: the mixture tends to N(1, 2.5^2); for one draw it is that normal itself."""
    single = Predictive(np.array([[3.0]])).interval(0.8, noise=1.5)
    np.testing.assert_allclose(np.ravel(single), stats.norm(3, 1.5).ppf([0.1, 0.9]), rtol=1e-9)
    exact = stats.norm(1, 2).ppf((np.arange(20_000) + 0.5) / 20_000)
    interval = Predictive(exact[:, None]).interval(0.9, noise=1.5)
    np.testing.assert_allclose(np.ravel(interval), stats.norm(1, 2.5).ppf([0.05, 0.95]), rtol=1e-3)
    own = Predictive(exact[:, None]).interval(0.9)
    np.testing.assert_allclose(np.ravel(own), stats.norm(1, 2).ppf([0.05, 0.95]), rtol=1e-3)


@pytest.mark.parametrize(("draws", "level"), [(3, 0.5), (4, 0.6), (9, 0.8), (19, 0.9), (39, 0.95)])
def test_intervals_of_the_output_stand_at_order_statistics(draws, level):
    """By hand: (1 - level) / 2 of M + 1 is 1 each time, so the interval is from the smallest draw to the largest.

    Between these lies a further draw with probability (M - 1) / (M + 1), the level.
    """
    assert (draws - 1) / (draws + 1) == pytest.approx(level)
    values = np.random.default_rng(draws).normal(size=(draws, 4))
    np.testing.assert_allclose(Predictive(values).interval(level), [values.min(0), values.max(0)], rtol=1e-9)


@pytest.mark.parametrize(("draws", "level"), [(5, 0.5), (10, 0.8), (20, 0.9), (50, 0.9), (50, 0.95)])
def test_intervals_of_the_output_hold_their_level(draws, level):
    """The k-th of M uniform draws is k / (M + 1) on average, and ends between two draws are means of these.

    So the length of the interval, which is the share of a uniform posterior that it holds, is the level on average.
    Over 4,000 sets of draws it is within 5 standard errors. Positions 1 + p (M - 1) would hold (M - 1) / (M + 1) of it.
    """
    outputs = np.random.default_rng(draws).uniform(size=(draws, 4_000))
    low, high = Predictive(outputs).interval(level)
    widths = high - low
    assert abs(widths.mean() - level) < 5 * widths.std() / np.sqrt(4_000)


@pytest.mark.parametrize(
    ("draws", "level", "text"),
    [
        (
            10,
            0.9,
            "`level` must be <= 0.8182, the most that 10 draws can hold, got 0.9. Ask run.predictive for draws=19",
        ),
        (
            18,
            0.9,
            "`level` must be <= 0.8947, the most that 18 draws can hold, got 0.9. Ask run.predictive for draws=19",
        ),
        (
            38,
            0.95,
            "`level` must be <= 0.9487, the most that 38 draws can hold, got 0.95. Ask run.predictive for draws=39",
        ),
        (1, 0.5, "`draws` must be several for an interval of the output, got 1. A model without a posterior has one"),
        (10, 1.0, "`level` must be > 0 and < 1"),
    ],
)
def test_a_level_that_draws_cannot_hold_is_refused(draws, level, text):
    with pytest.raises(mo.MoietyError) as error:
        Predictive(np.zeros((draws, 2))).interval(level)
    assert str(error.value).startswith(text)


def split_rhat_by_hand(chain):
    """sqrt((B + (n - 1) / n W) / W), with B and W between and within two halves of n draws (Vehtari et al. 2021)."""
    n = len(chain) // 2
    one, other = chain[:n], chain[-n:]
    within = (np.sum((one - one.mean()) ** 2) + np.sum((other - other.mean()) ** 2)) / (2 * (n - 1))
    between = (one.mean() - other.mean()) ** 2 / 2
    return np.sqrt((between + (n - 1) / n * within) / within)


def test_halves_of_a_chain_that_disagree_are_named():
    """40 draws whose second half lies a deviation higher: their R-hat by hand is above 1.1, without the shift below."""
    rng = np.random.Generator(np.random.Philox(3))
    chain = rng.normal(size=40)
    for shift, warns in ((0.0, False), (1.0, True)):
        draws = chain + shift * (np.arange(40) >= 20)
        by_hand = split_rhat_by_hand(draws)
        assert (by_hand > AGREE) == warns
        effective, rhat = judge_chain(draws[:, None])
        assert rhat == pytest.approx(by_hand, rel=1e-12)
        prediction = Predictive(draws[:, None, None], loss="mse", noise=1.0, effective=40.0, rhat=rhat)
        for ask in (lambda p: p.interval(0.9), lambda p: p.interval(0.9, of="observations")):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                ask(prediction)
            texts = [str(each.message) for each in caught]
            head = f"the halves of the chain of these draws disagree (split R-hat {by_hand:.2f}, above 1.1). Ask for"
            assert [text.startswith(head) for text in texts] == [True] * warns
    both = replace(prediction, effective=effective)
    with pytest.warns(UserWarning, match=r"^40 draws are worth .* too narrow; the halves of .* Ask for more") as caught:
        both.interval(0.9)
    assert len(caught) == 1


def test_new_draws_whose_halves_disagree_are_named(monkeypatch):
    """100 draws are worth 100, yet the chain that they are from has not settled."""
    monkeypatch.setattr("moiety.run.draws.judge_draws", lambda points: (100.0, 1.25))
    with pytest.warns(UserWarning, match=r"disagree \(split R-hat 1.25, above 1.1\). Ask for more: draws=100\.$"):
        prediction = one_run().predictive(0, DATA.client(0, "test")["x"], draws=20)
    assert prediction.rhat == 1.25


def test_draws_of_observations_are_moved_apart_by_hand():
    """Draws 0 and 2 are moved to 1 - sqrt(3) and 1 + sqrt(3): sqrt((M + 1) / (M - 1)) is sqrt(3); noise 0.7.

    The interval of that mixture by SciPy's root finding.
    """
    mixture = [stats.norm(1 + sign * np.sqrt(3), 0.7) for sign in (-1, 1)]
    expected = [
        optimize.brentq(lambda v, share=share: sum(part.cdf(v) for part in mixture) / 2 - share, -9, 9)
        for share in (0.05, 0.95)
    ]
    interval = Predictive(np.array([[0.0], [2.0]])).interval(0.9, noise=0.7)
    np.testing.assert_allclose(np.ravel(interval), expected, rtol=1e-9)


def test_the_variance_of_draws_moved_apart_is_that_of_a_further_one():
    """Of M + 1 numbers each is left out in turn; the others are moved apart, and their variance is that of it.

    Its squared distance from the mean of the others is their variance on average over which one it is: with S the sum
    of squares of all round their mean, both are S (M + 1) / M^2, whatever the numbers are.
    """
    values = np.random.default_rng(5).exponential(size=6)
    off, variance = [], []
    for k in range(6):
        others = np.delete(values, k)
        off.append((values[k] - others.mean()) ** 2)
        variance.append(Predictive(others[:, None])._spread_out().var())
    assert np.mean(variance) == pytest.approx(np.mean(off), rel=1e-12)


@pytest.mark.parametrize("noise", [0.25, 0.5, 2.0])
def test_intervals_of_observations_cover_from_ten_draws(noise):
    """A normal posterior, observations of the truth with noise: 85 to 90% are covered where 90% are asked for."""
    rng, n = np.random.default_rng(6), 3_000
    low, high = Predictive(rng.normal(size=(10, n))).interval(0.9, noise=noise)
    truth = rng.normal(size=n)
    coverage = stats.norm.cdf((high - truth) / noise) - stats.norm.cdf((low - truth) / noise)
    assert 0.845 < coverage.mean() < 0.905


@pytest.mark.parametrize("loss", ["mse", "one_versus_all", "ctc", "its own", None])
def test_only_outputs_of_cross_entropy_have_probabilities(loss):
    predictive = Predictive(np.zeros((2, 3, 4)), loss)
    for name in ("probabilities", "entropy", "mutual_information"):
        with pytest.raises(mo.MoietyError) as error:
            getattr(predictive, name)
        text = "a function of your own" if loss is None else loss
        assert str(error.value).startswith(
            f"`loss` must be cross_entropy for probabilities, got {text}. Where outputs are logits"
        )
    assert predictive.mean.shape == (3, 4)


def test_one_output_has_no_probabilities():
    with pytest.raises(
        mo.MoietyError, match="`outputs` must be logits of two classes or more for probabilities, got 1"
    ):
        _ = Predictive(np.zeros((2, 3, 1))).probabilities


def own_loss(output, batch):
    return functional.mse_loss(output[:, 0], batch["y"].to(output.dtype), reduction="none")


@pytest.mark.parametrize(("loss", "text"), [("mse", "mse"), ("one_versus_all", "one_versus_all"), (own_loss, "a func")])
def test_runs_with_other_losses_have_no_calibration(loss, text):
    rng = np.random.default_rng(0)
    outputs = 1 if loss == "mse" else 3
    clients = [{"x": rng.normal(size=(5, 4)), "y": rng.integers(0, 3, size=5)} for _ in range(2)]
    if loss == "mse":
        clients = [{**rows, "y": rows["y"] * 1.0} for rows in clients]
    fed = mo.data.from_clients(dict(enumerate(clients)), test=0.4)
    run = mo.fit(
        mo.models.mlp(4, outputs, hidden=(3,)), fed, mo.fedavg(shared=0.1), rounds=1, loss=loss, engine="sequential"
    )
    predictive = run.predictive(0, np.zeros((2, 4)))
    assert predictive.mean.shape == (2, outputs)
    for ask in (run.calibration, lambda: predictive.entropy):
        with pytest.raises(mo.MoietyError, match=f"`loss` must be cross_entropy .* got {text}"):
            ask()


def test_calibration_names_the_part_without_rows():
    with pytest.raises(
        mo.MoietyError, match=r"`part` must be a part of the data that has rows, got validation\. Split the data"
    ):
        one_run().calibration("validation")


def test_a_run_averages_the_models_of_all_stored_samples():
    """By torch: the head of each stored sample on the features of the shared layer."""
    run = fit_posterior()
    x = DATA.client(2, "test")["x"].astype(np.float64)
    (state,) = run._loop.progress.store.get([2])
    shared = run.shared_parameters()
    weight, bias = (shared[f"hidden1.{name}"] for name in ("weight", "bias"))
    hidden = torch.relu(functional.linear(torch.from_numpy(x), weight, bias))
    outputs = [
        functional.linear(hidden, state.samples["head.weight"][m], state.samples["head.bias"][m]) for m in range(6)
    ]
    predictive = run.predictive(2, x)
    np.testing.assert_allclose(predictive.outputs, torch.stack(outputs).numpy(), rtol=1e-12)
    probabilities = torch.stack(outputs).softmax(-1).mean(0).numpy()
    np.testing.assert_allclose(predictive.probabilities, probabilities, rtol=1e-12)
    assert predictive.entropy.shape == (3,)
    assert (predictive.mutual_information > 0).all()


@pytest.mark.parametrize("engine", ["vectorised", "processes:sequential"])
def test_predictions_are_the_same_whichever_engine_trained(engine):
    one, other = fit_posterior(), fit_posterior(engine, workers=2 if engine.startswith("processes") else None)
    x = np.random.default_rng(0).normal(size=(5, 4))
    new = image_clients([6], seed=3)[0]
    for client in (0, 3, new, None):
        a, b = one.predictive(client, x), other.predictive(client, x)
        if engine == "vectorised":
            np.testing.assert_allclose(a.outputs, b.outputs, rtol=1e-9, atol=1e-10)
        else:
            np.testing.assert_array_equal(a.outputs, b.outputs)
    assert one.calibration()[1] == pytest.approx(other.calibration()[1])


def test_a_client_that_was_never_asked_draws_first():
    run = fit_posterior(cohort=1)
    owners = set(run._loop.progress.store.owners())
    (never, *_) = [c for c in range(4) if c not in owners]
    before = set(run._loop.progress.store.owners())
    predictive = run.predictive(never, np.zeros((2, 4)))
    assert predictive.outputs.std(0).min() > 0
    assert set(run._loop.progress.store.owners()) == before


def test_refreshed_draws_are_new_and_nothing_of_them_is_kept():
    run = fit_posterior()
    x = np.ones((2, 4))
    old, fresh = run.predictive(1, x), run.predictive(1, x, fresh=True)
    assert not np.allclose(old.outputs, fresh.outputs)
    np.testing.assert_array_equal(run.predictive(1, x).outputs, old.outputs)
    np.testing.assert_array_equal(run.predictive(1, x, fresh=True).outputs, fresh.outputs)


def test_without_a_posterior_there_is_one_draw():
    run = fit_posterior(algorithm=mo.fedalt(shared=0.1, personal=0.1))
    x = DATA.client(0, "test")["x"].astype(np.float64)
    predictive = run.predictive(0, x)
    with torch.no_grad():
        outputs = run.export(0)(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(predictive.outputs, outputs[None], rtol=1e-12)
    np.testing.assert_allclose(predictive.mutual_information, 0, atol=1e-12)
    with pytest.raises(mo.MoietyError, match="`data` must be given for fedalt"):
        run.onboard(None)


@pytest.mark.parametrize("fresh", [False, True])
def test_calibration_of_a_run_is_that_of_its_predictions(fresh):
    """Scores by hand from the probabilities of the stored draws, or of fresh ones: these are not the same."""
    run = one_run()
    rows, heap = run.calibration(bins=5, fresh=fresh)
    likelihoods = []
    for client in range(4):
        test = DATA.client(client, "test")
        p = run.predictive(client, test["x"], fresh=fresh).probabilities
        other = run.predictive(client, test["x"], fresh=not fresh).probabilities
        each, others = (-np.log(q[np.arange(len(test["y"])), test["y"]]) for q in (p, other))
        assert rows[client]["accuracy"] == pytest.approx((p.argmax(1) == test["y"]).mean())
        assert rows[client]["nll"] == pytest.approx(each.mean())
        assert abs(each.mean() - others.mean()) > 1e-3
        likelihoods.append(each)
    assert heap["n"] == 18
    assert heap["nll"] == pytest.approx(np.concatenate(likelihoods).mean())


def test_a_client_without_data_has_the_centre_of_the_prior():
    """The learned mean holds the 18 weights of the head, then its 3 biases; draws from the prior lie round it."""
    run = fit_posterior()
    received = run._loop.algorithm.broadcast(run._loop.progress.server)
    mean, shared = received["prior:mean"], run.shared_parameters()
    hidden = torch.relu(functional.linear(torch.eye(4).double(), shared["hidden1.weight"], shared["hidden1.bias"]))
    expected = functional.linear(hidden, mean[:18].reshape(3, 6), mean[18:]).numpy()
    with torch.no_grad():
        outputs = run.onboard(None)(torch.eye(4, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(outputs, expected, rtol=1e-9, atol=1e-12)
    draws = run.predictive(None, np.eye(4)).outputs
    assert (draws.min(0) < expected).all()
    assert (draws.max(0) > expected).all()


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (np.zeros((2, 5)), "`x['x']` must be of shape (4,) per example, got (5,)"),
        ({"y": np.zeros(2)}, "`x` must be columns with x"),
        (np.zeros((0, 4)), "`x` must be at least one example"),
        ({"x": np.zeros((2, 4)), "z": np.zeros(3)}, "`x` must be columns of one length"),
        ([[0.0] * 4, [0.0] * 3], "`columns.x` must be an array, got values that NumPy refuses"),
        ([["a"] * 4], "`columns.x` must be of numbers or booleans, got <U1"),
        ([[object()] * 4], "`columns.x` must be of numbers or booleans, got object"),
        (np.zeros((2, 4)) * 1j, "`columns.x` must be of numbers or booleans, got complex128"),
        (np.full((2, 4), np.nan), "`columns.x` must be finite everywhere, got nan (row 0 of x)"),
        ({"x": np.zeros((2, 4)), "k": 3}, "`columns.k` must be an array with an axis of rows, got a single value"),
        ({"x": np.zeros((2, 4)), "k": ["a", "b"]}, "`columns.k` must be of numbers or booleans, got <U1"),
        ({0: np.zeros((2, 4))}, "`columns` must be named by letters, digits and underscores, got 0"),
        (3.5, "`x` must be examples, with an axis of rows, got 3.5 (float)"),
        (None, "`x` must be examples, with an axis of rows, got None (NoneType)"),
        (torch.tensor(1.0), "`columns.x` must be an array with an axis of rows, got a single value"),
    ],
)
def test_bad_examples_are_one_line(x, text):
    with pytest.raises(mo.MoietyError) as error:
        one_run().predictive(0, x)
    assert str(error.value).startswith(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("column", [[[0.0] * 4, [0.0] * 3], [["a"] * 4] * 2, 3.0])
def test_bad_columns_of_a_newcomer_are_one_line(column):
    with pytest.raises(mo.MoietyError, match=r"`columns\.x` must be (an array|of numbers)"):
        one_run().onboard({"x": column, "y": [0, 1]})


def test_examples_may_be_lists_whole_numbers_and_tensors_that_require_gradients():
    run = one_run()
    x = np.arange(8).reshape(2, 4)
    outputs = run.predictive(0, x.astype(np.float64)).outputs
    for same in (x, x.tolist(), torch.tensor(x, dtype=torch.float64, requires_grad=True), {"x": x, "y": [0, 1]}):
        np.testing.assert_array_equal(run.predictive(0, same).outputs, outputs)


def test_examples_of_bytes_may_be_other_numbers_and_those_of_tokens_may_not():
    """A linear model by NumPy on bytes; floating numbers are no tokens."""
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, size=(12, 4)).astype(np.uint8)
    y = np.arange(12) % 3
    fed = mo.data.from_arrays({"x": x, "y": y}, np.arange(12) % 2, test=0.25)
    run = mo.fit(nn.Linear(4, 3).double(), fed, mo.fedavg(shared=1e-6), rounds=1, engine="sequential")
    parameters = run.parameters(0)
    outputs = x @ parameters["weight"].numpy().T + parameters["bias"].numpy()
    for same in (x, x.astype(np.int64), x.astype(np.float32), x.tolist()):
        np.testing.assert_allclose(run.predictive(0, same).outputs[0], outputs, rtol=1e-12)
    tokens = mo.data.from_arrays({"x": y.repeat(2).reshape(12, 2), "y": y}, np.arange(12) % 2, test=0.25)
    net = nn.Sequential(nn.Embedding(3, 2), nn.Flatten(), nn.Linear(4, 3))
    run = mo.fit(net, tokens, mo.fedavg(shared=0.1), rounds=1, engine="sequential")
    with pytest.raises(mo.MoietyError, match=r"`x\['x'\]` must be whole numbers, got float64"):
        run.predictive(0, np.zeros((2, 2)))
