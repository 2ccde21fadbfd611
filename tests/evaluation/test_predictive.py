"""Predictions averaged over draws: by hand, through runs, and the same whichever engine trained."""

import numpy as np
import pytest
import torch
from oracle_problems import federated, image_clients
from scipy import stats
from torch.nn import functional

import moiety as mo
from moiety.evaluation.predictive import Predictive

DATA = federated(image_clients([9, 5, 12, 7]), image_clients([4, 6, 3, 5], seed=1))


def fedpop(**options):
    given = {"kernel": mo.kernel.langevin(step=0.02), "shared_lr": 0.05, "prior_lr": 0.05, "samples": 6, "burn_in": 2}
    return mo.fedpop(**{**given, **options})


def trained(engine="sequential", algorithm=None, **options):
    net = mo.models.mlp(4, 3, hidden=(6,), seed=1).double()
    split = mo.split.by_name(net, personal=["head"])
    return mo.fit(net, DATA, algorithm or fedpop(), split=split, rounds=3, engine=engine, **options)


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
    seen = Predictive(np.array([[[0.0, 0.0]], [[np.log(3), 0.0]]]))
    np.testing.assert_allclose(seen.probabilities, [[0.625, 0.375]])


def test_intervals_of_observations_are_quantiles_of_the_mixture():
    """Draws from N(1, 2^2) and noise 1.5: the mixture tends to N(1, 2.5^2); for one draw it is that normal itself."""
    single = Predictive(np.array([[3.0]])).interval(0.8, noise=1.5)
    np.testing.assert_allclose(np.ravel(single), stats.norm(3, 1.5).ppf([0.1, 0.9]), rtol=1e-9)
    exact = stats.norm(1, 2).ppf((np.arange(20_000) + 0.5) / 20_000)
    found = Predictive(exact[:, None]).interval(0.9, noise=1.5)
    np.testing.assert_allclose(np.ravel(found), stats.norm(1, 2.5).ppf([0.05, 0.95]), rtol=1e-3)
    own = Predictive(exact[:, None]).interval(0.9)
    np.testing.assert_allclose(np.ravel(own), stats.norm(1, 2).ppf([0.05, 0.95]), rtol=1e-3)


def test_a_run_averages_the_models_of_all_stored_samples():
    """By torch: the head of each stored sample on the features of the shared layer."""
    run = trained()
    x = DATA.client(2, "test")["x"].astype(np.float64)
    (state,) = run._rounds.progress.store.get([2])
    shared = run.shared_parameters()
    weight, bias = (shared[f"hidden1.{name}"] for name in ("weight", "bias"))
    hidden = torch.relu(functional.linear(torch.from_numpy(x), weight, bias))
    outputs = [
        functional.linear(hidden, state.samples["head.weight"][m], state.samples["head.bias"][m]) for m in range(6)
    ]
    found = run.predictive(2, x)
    np.testing.assert_allclose(found.outputs, torch.stack(outputs).numpy(), rtol=1e-12)
    wanted = torch.stack(outputs).softmax(-1).mean(0).numpy()
    np.testing.assert_allclose(found.probabilities, wanted, rtol=1e-12)
    assert found.entropy.shape == (3,)
    assert (found.mutual_information > 0).all()


@pytest.mark.parametrize("engine", ["vectorised", "processes:sequential"])
def test_predictions_are_the_same_whichever_engine_trained(engine):
    one, other = trained(), trained(engine, workers=2 if engine.startswith("processes") else None)
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
    run = trained(cohort=1)
    asked = set(run._rounds.progress.store.owners())
    (never, *_) = [c for c in range(4) if c not in asked]
    before = set(run._rounds.progress.store.owners())
    seen = run.predictive(never, np.zeros((2, 4)))
    assert seen.outputs.std(0).min() > 0
    assert set(run._rounds.progress.store.owners()) == before


def test_refreshed_draws_are_new_and_nothing_of_them_is_kept():
    run = trained()
    x = np.ones((2, 4))
    stored, fresh = run.predictive(1, x), run.predictive(1, x, refresh=True)
    assert not np.allclose(stored.outputs, fresh.outputs)
    np.testing.assert_array_equal(run.predictive(1, x).outputs, stored.outputs)
    np.testing.assert_array_equal(run.predictive(1, x, refresh=True).outputs, fresh.outputs)


def test_without_a_posterior_there_is_one_draw():
    run = trained(algorithm=mo.fedalt(shared_lr=0.1, personal_lr=0.1))
    x = DATA.client(0, "test")["x"].astype(np.float64)
    seen = run.predictive(0, x)
    with torch.no_grad():
        wanted = run.export(0)(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(seen.outputs, wanted[None], rtol=1e-12)
    np.testing.assert_allclose(seen.mutual_information, 0, atol=1e-12)
    with pytest.raises(mo.MoietyError, match="`data` must be given for fedalt"):
        run.onboard(None)


def test_calibration_of_a_run_is_that_of_its_predictions():
    run = trained()
    rows, heap = run.calibration(bins=5)
    y = DATA.client(1, "test")["y"]
    p = run.predictive(1, DATA.client(1, "test")["x"]).probabilities
    assert rows[1]["accuracy"] == pytest.approx((p.argmax(1) == y).mean())
    assert rows[1]["nll"] == pytest.approx(-np.log(p[np.arange(6), y]).mean())
    assert heap["n"] == 18


def test_a_client_without_data_has_the_mean_of_draws_from_the_prior():
    run = trained()
    drawn = run.predictive(None, np.eye(4)).outputs
    with torch.no_grad():
        mean = run.onboard(None)(torch.eye(4, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(drawn.mean(0), mean, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (np.zeros((2, 5)), "`x['x']` must be of shape (4,) per example, got (5,)"),
        ({"y": np.zeros(2)}, "`x` must be columns with x"),
        (np.zeros((0, 4)), "`x` must be at least one example"),
        ({"x": np.zeros((2, 4)), "z": np.zeros(3)}, "`x` must be columns of one length"),
    ],
)
def test_bad_examples_are_one_line(x, text):
    with pytest.raises(mo.MoietyError) as caught:
        trained().predictive(0, x)
    assert str(caught.value).startswith(text)
