from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moiety.errors import MoietyError
from moiety.server.averaging import client_weights
from moiety.server.mean import weighted_mean
from moiety.types import ClientUpdate

NUMBERS = st.floats(-1e3, 1e3)
CLIENTS = st.lists(st.tuples(st.integers(1, 1000), NUMBERS, NUMBERS), min_size=1, max_size=8)


def updates(rows, dtype=torch.float64):
    return [
        ClientUpdate({"p": torch.tensor([x, y], dtype=dtype)}, torch.tensor(float(n), dtype=dtype), {})
        for n, x, y in rows
    ]


@settings(max_examples=100, deadline=None)
@given(CLIENTS, st.randoms(use_true_random=False))
def test_it_is_the_weighted_mean_in_any_order(rows, random):
    expected = np.average([[x, y] for _, x, y in rows], axis=0, weights=[n for n, _, _ in rows])
    np.testing.assert_allclose(weighted_mean(updates(rows))["p"].numpy(), expected, rtol=1e-12, atol=1e-10)
    random.shuffle(rows)
    np.testing.assert_allclose(weighted_mean(updates(rows))["p"].numpy(), expected, rtol=1e-12, atol=1e-10)


@settings(max_examples=50, deadline=None)
@given(CLIENTS, st.integers(2, 50))
def test_only_ratios_of_weights_matter(rows, k):
    more = [(n * k, x, y) for n, x, y in rows]
    one, other = weighted_mean(updates(rows))["p"], weighted_mean(updates(more))["p"]
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-10)


@settings(max_examples=50, deadline=None)
@given(CLIENTS)
def test_it_lies_between_the_least_and_the_greatest(rows):
    mean = weighted_mean(updates(rows))["p"].numpy()
    values = np.array([[x, y] for _, x, y in rows])
    assert (mean >= values.min(0) - 1e-9).all()
    assert (mean <= values.max(0) + 1e-9).all()


def test_the_mean_of_one_is_that_one_and_a_copy():
    (only,) = updates([(3, 1.5, -2.0)])
    mean = weighted_mean([only])
    assert mean["p"].tolist() == [1.5, -2.0]
    mean["p"] += 1
    assert only.upload["p"].tolist() == [1.5, -2.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_uploads_precision_is_kept(dtype):
    assert weighted_mean(updates([(1, 1.0, 2.0), (2, 3.0, 4.0)], dtype))["p"].dtype == dtype


def test_whole_numbered_buffers_stay_whole():
    """Counters 3 and 5 weighted 1 .

    3 have mean 4.5 and 10 and 13 have 12.25: rounded to the nearest (even for a tie).
    """
    pair = [
        ClientUpdate({"n": torch.tensor(3), "m": torch.tensor([10])}, torch.tensor(1.0), {}),
        ClientUpdate({"n": torch.tensor(5), "m": torch.tensor([13])}, torch.tensor(3.0), {}),
    ]
    mean = weighted_mean(pair)
    assert mean["n"].dtype == mean["m"].dtype == torch.int64
    assert int(mean["n"]) == 4
    assert mean["m"].tolist() == [12]


def test_whole_numbered_buffers_are_rounded_and_not_cut_off():
    """3 and 4 weighted 1 : 3 have mean 3.75, which is nearest to 4; -3 and -4 likewise."""
    pair = [
        ClientUpdate({"n": torch.tensor([3, -3])}, torch.tensor(1.0), {}),
        ClientUpdate({"n": torch.tensor([4, -4])}, torch.tensor(3.0), {}),
    ]
    assert weighted_mean(pair)["n"].tolist() == [4, -4]


def test_a_large_counter_does_not_lose_its_units():
    """2^24 + 1 has no float32; two equal counters have that mean exactly."""
    n = torch.tensor(2**24 + 1)
    mean = weighted_mean([ClientUpdate({"n": n}, torch.tensor(1.0), {}), ClientUpdate({"n": n}, torch.tensor(1.0), {})])
    assert int(mean["n"]) == 2**24 + 1


def test_nothing_to_send_has_an_empty_mean():
    assert weighted_mean([ClientUpdate({}, torch.tensor(2.0), {})] * 2) == {}


def test_client_weights():
    """30 examples in batches of 8 are ceil(30 / 8) = 4 batches."""
    work = SimpleNamespace(examples=torch.tensor(30.0))
    assert float(client_weights("examples", 8)(work)) == 30
    assert float(client_weights("batches", 8)(work)) == 4
    assert float(client_weights("uniform", 8)(work)) == 1
    with pytest.raises(
        MoietyError, match=r"^`weighting` must be one of the known names, got 'batch'. Did you mean batches\?$"
    ):
        client_weights("batch", 8)
