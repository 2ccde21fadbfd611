import itertools

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_problems import federated, problem_of, scalar_task, split_of

from moiety.clients import uniform_cohort
from moiety.engines.rows import pad_rows, phase_rows
from moiety.random import generator, torch_seed
from moiety.types import Phase


def first(seed, *purpose):
    return int(generator(seed, *purpose).integers(1 << 62))


def test_streams_of_different_purposes_differ():
    """Neighbours in seed, round, client and purpose, and words that would run together if they were only joined."""
    keys = [
        (seed, purpose, round, client)
        for seed, purpose, round, client in itertools.product(
            (0, 1), ("batches", "cohort", "forward"), range(5), range(5)
        )
    ]
    keys += [
        (0, "batches", 1, 11),
        (0, "batches", 11, 1),
        (0, "batches", 111),
        (0, "batches1", 11),
        (0, "1", 1),
        (0, 1, "1"),
    ]
    keys = list(dict.fromkeys(keys))
    assert len({first(*k) for k in keys}) == len(keys)


def test_a_stream_does_not_depend_on_others():
    one = generator(3, "batches", 1, 2).random(4)
    generator(3, "batches", 1, 1).random(100)
    np.testing.assert_array_equal(generator(3, "batches", 1, 2).random(4), one)


def test_torch_seed_gives_a_stream_and_puts_the_old_one_back():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with torch_seed(7, "forward", 1, 2):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with torch_seed(7, "forward", 1, 2):
        assert torch.equal(torch.rand(3), inside)
    with torch_seed(7, "forward", 1, 3):
        assert not torch.equal(torch.rand(3), inside)


def test_torch_seed_puts_the_old_stream_back_after_an_error():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    try:
        with torch_seed(7, "forward"):
            torch.rand(1)
            raise KeyError
    except KeyError:
        pass
    assert torch.equal(torch.rand(3), expected)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 500), st.data())
def test_a_cohort_is_distinct_clients(clients, data):
    cohort = data.draw(st.integers(1, clients))
    members = uniform_cohort(clients, cohort, seed=0, round=data.draw(st.integers(0, 99)))
    assert len(members) == len(set(members.tolist())) == cohort
    assert members.min() >= 0
    assert members.max() < clients
    assert (np.diff(members) > 0).all()


def test_every_client_is_asked_equally_often():
    """3 of 10 over 4,000 rounds; bounds of five standard deviations (the seed is fixed).

    Each is asked 1,200 times, standard deviation sqrt(4000 * 0.3 * 0.7) = 29; 5 of these is 145.
    Pairs: two given clients meet with probability 3/10 * 2/9 = 1/15, so 267 times, standard deviation 15.8; 5 of
    these is 79.
    """
    together = np.zeros((10, 10))
    for t in range(4000):
        cohort = uniform_cohort(10, 3, seed=1, round=t)
        together[np.ix_(cohort, cohort)] += 1
    assert np.abs(np.diag(together) - 1200).max() < 145
    pairs = together[~np.eye(10, dtype=bool)]
    assert np.abs(pairs - 4000 / 15).max() < 79


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 4), st.booleans())
def test_an_epoch_is_every_row_once(n, size, epochs, shuffle):
    """Each epoch holds each row once; batches are full but the last of an epoch."""
    rows = phase_rows(Phase(epochs, None, size, shuffle), 100, 100 + n, "local", "train", 0, 1, seed=0)
    per_epoch = -(-n // size)
    assert len(rows.sizes) == epochs * per_epoch
    assert rows.sizes.sum() == len(rows.order) == epochs * n
    for e in range(epochs):
        part = rows.order[e * n : (e + 1) * n]
        assert sorted(part.tolist()) == list(range(100, 100 + n))
        if not shuffle:
            assert part.tolist() == list(range(100, 100 + n))
        sizes = rows.sizes[e * per_epoch : (e + 1) * per_epoch]
        assert (sizes[:-1] == size).all()
        assert sizes[-1] == n - size * (per_epoch - 1)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 15))
def test_steps_walk_through_epochs(n, size, steps):
    rows = phase_rows(Phase(None, steps, size, False), 0, n, seed=0)
    assert len(rows.sizes) == steps
    order, at = [], 0
    for _ in range(steps):
        batch = list(range(at, min(at + size, n)))
        order += batch
        at = 0 if batch[-1] == n - 1 else at + size
    assert rows.order.tolist() == order


def test_epochs_phases_rounds_and_clients_are_shuffled_differently():
    def order(*words, epochs=1):
        return phase_rows(Phase(epochs, None, 4, True), 0, 30, *words, seed=0).order.tolist()

    two = order("shared", "train", 0, 0, epochs=2)
    orders = [
        two[:30],
        two[30:],
        order("personal", "train", 0, 0),
        order("shared", "train", 1, 0),
        order("shared", "train", 0, 1),
    ]
    assert len({tuple(o) for o in orders}) == 5
    assert order("shared", "train", 0, 0) == two[:30], "asking for more epochs does not change the first"


def test_the_turns_of_two_clients_are_shuffled_differently():
    """Two clients of 30 rows each: the same positions in the same order would be one draw used twice."""
    data = federated([{"a": np.zeros(30), "b": np.zeros(30), "y": np.zeros(30)}] * 2)
    problem = problem_of(scalar_task(), data, split_of(["u"], ["v"]))
    phases = {"local": Phase(1, None, 4, True)}
    turns = [
        tuple(job.rows["local"].order - 30 * job.client)
        for t in (0, 1)
        for job in problem.make_jobs(phases, [0, 1], [None, None], "train", t, part="train")
    ]
    assert len(set(turns)) == 4
    assert all(sorted(turn) == list(range(30)) for turn in turns)


def test_padding_repeats_the_clients_own_rows():
    """Clients with rows 5, 6, 7 in batches of 2 and with row 9: [[5, 6], [7, .]] and [[9, .], [., .]]."""
    one = phase_rows(Phase(1, None, 2, False), 5, 8, seed=0)
    other = phase_rows(Phase(1, None, 2, False), 9, 10, seed=0)
    index, mask = pad_rows([one, other])
    assert index.tolist() == [[[5, 6], [7, 5]], [[9, 9], [9, 9]]]
    assert mask.tolist() == [[[True, True], [True, False]], [[True, False], [False, False]]]
    assert pad_rows([one])[1] is not None
    assert pad_rows([other])[1] is None
