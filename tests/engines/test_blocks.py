"""Blocks of clients for the vectorised engine, and the index plans behind them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moiety.engines.rows import Job, Rows, own_rows, pad_rows, phase_rows
from moiety.engines.vectorised import PADDING, split_into_blocks
from moiety.types import Phase


def rows(sizes: list[int], start: int = 0) -> Rows:
    return Rows(start + np.arange(sum(sizes)), np.array(sizes, dtype=np.int64))


def job(*phases: list[int]) -> Job:
    return Job(0, {f"phase {i}": rows(sizes) for i, sizes in enumerate(phases)}, 1, None)


def rectangle(jobs: list[Job]) -> int:
    """What a block computes: every phase as long and as wide as its longest and widest client's."""
    total = 0
    for phase in jobs[0].rows:
        steps = max(len(j.rows[phase].sizes) for j in jobs)
        width = max(int(j.rows[phase].sizes.max(initial=0)) for j in jobs)
        total += len(jobs) * steps * width
    return total


def count_rows_apart(jobs: list[Job]) -> int:
    return sum(rectangle([j]) for j in jobs)


CLIENT_SIZES = st.lists(st.integers(1, 300), max_size=40)
PHASES = st.lists(
    st.one_of(
        st.builds(lambda e, b: Phase(e, None, b, False), st.integers(1, 3), st.integers(1, 40)),
        st.builds(lambda s, b: Phase(None, s, b, False), st.integers(1, 12), st.integers(1, 40)),
    ),
    min_size=1,
    max_size=3,
)


@given(sizes=CLIENT_SIZES, phases=PHASES, most=st.integers(1, 12), room=st.integers(0, 200))
@settings(max_examples=120, deadline=None)
def test_blocks(sizes, phases, most, room):
    jobs = [
        Job(i, {f"p{k}": phase_rows(p, 0, n, seed=0) for k, p in enumerate(phases)}, n, None)
        for i, n in enumerate(sizes)
    ]

    def fits(width: int) -> int:
        return room // width

    blocks = list(split_into_blocks(jobs, most=most, room=fits))
    assert sorted(i for block in blocks for i in block) == list(range(len(jobs)))
    for block in blocks:
        inside = [jobs[i] for i in block]
        assert block
        if len(block) == 1:
            continue
        assert len(block) <= most
        widest = max(int(r.sizes.max()) for j in inside for r in j.rows.values())
        assert len(block) <= fits(widest)
        assert rectangle(inside) <= (1 + PADDING) * count_rows_apart(inside)


@given(sizes=CLIENT_SIZES, order=st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_shapes_of_blocks_do_not_depend_on_the_order_of_the_jobs(sizes, order):
    phase = Phase(1, None, 16, False)
    permutation = list(sizes)
    order.shuffle(permutation)
    shapes = []
    for lengths in (sizes, permutation):
        jobs = [Job(i, {"p": phase_rows(phase, 0, n, seed=0)}, n, None) for i, n in enumerate(lengths)]
        blocks = split_into_blocks(jobs, most=8, room=lambda width: 100)
        shapes.append([[(len(jobs[i].rows["p"].sizes), jobs[i].rows["p"].sizes.max()) for i in b] for b in blocks])
    assert shapes[0] == shapes[1]


def test_clients_of_one_shape_are_one_block():
    jobs = [job([4, 4, 2]) for _ in range(7)]
    assert [len(b) for b in split_into_blocks(jobs, most=256, room=lambda w: 256)] == [7]
    assert [len(b) for b in split_into_blocks(jobs, most=3, room=lambda w: 256)] == [3, 3, 1]
    assert [len(b) for b in split_into_blocks(jobs, most=256, room=lambda w: 8 // w)] == [2, 2, 2, 1]
    assert [len(b) for b in split_into_blocks(jobs, most=256, room=lambda w: 0)] == [1] * 7
    assert list(split_into_blocks([], most=4, room=lambda w: 4)) == []


def test_padding_by_hand():
    """Steps of width 4: four clients of 4 steps and one of 5 compute 5 * 5 * 4 = 100 rows for 84, which is 19% more.

    One of 4 steps and one of 6 would compute 48 for 40, 20% more; one of 2 and one of 4 32 for 24, 33% more.
    """
    four, five, six, two = [4] * 4, [4] * 5, [4] * 6, [4] * 2

    def lengths(*sizes: list[int]) -> list[int]:
        return [len(b) for b in split_into_blocks([job(s) for s in sizes], most=99, room=lambda w: 99)]

    assert lengths(four, four, four, four, five) == [5]
    assert lengths(four, six) == [2]
    assert lengths(two, four) == [1, 1]


def test_padding_that_is_free():
    """Two steps of 5 rows beside two of 10 compute 40 rows for 30: 33% more, 10 rows in 2 steps, so 5 in a step.

    With three of the smaller it is 4 * 20 = 80 rows for 50, 15 in a step.
    """
    few, many = [5, 5], [10, 10]

    def lengths(free: float, *sizes: list[int]) -> list[int]:
        return [len(b) for b in split_into_blocks([job(s) for s in sizes], most=99, room=lambda w: 99, free=free)]

    assert lengths(4.9, few, many) == [1, 1]
    assert lengths(5, few, many) == [2]
    assert lengths(14.9, few, few, few, many) == [3, 1]
    assert lengths(15, few, few, few, many) == [4]


def test_phases_without_rows():
    """A phase of no steps, as when costs are counted, takes no part in the padding."""
    jobs = [job([2, 2], []) for _ in range(3)]
    assert [len(b) for b in split_into_blocks(jobs, most=9, room=lambda w: 9)] == [3]


# Index plans.


def test_padded_by_hand():
    """Client 0 has rows 10 to 12 in batches of 2 and 1, client 1 has row 5: padding repeats a client's first row."""
    first = Rows(np.array([12, 10, 11]), np.array([2, 1]))
    second = Rows(np.array([5]), np.array([1]))
    index, mask = pad_rows([first, second])
    assert index.tolist() == [[[12, 10], [11, 12]], [[5, 5], [5, 5]]]
    assert mask is not None
    assert mask.tolist() == [[[True, True], [True, False]], [[True, False], [False, False]]]
    assert index.dtype == torch.int64
    assert mask.dtype == torch.bool


def test_padded_without_padding_has_no_mask():
    index, mask = pad_rows([Rows(np.array([3, 2]), np.array([1, 1])), Rows(np.array([7, 8]), np.array([1, 1]))])
    assert index.tolist() == [[[3], [2]], [[7], [8]]]
    assert mask is None


@given(
    clients=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=6), min_size=1, max_size=6),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_padded_holds_every_row_at_its_place_and_no_foreign_one(clients, seed):
    draw = np.random.default_rng(seed)
    plans = []
    for c, sizes in enumerate(clients):
        plans.append(Rows(1000 * c + draw.integers(0, 50, size=sum(sizes)), np.array(sizes)))
    index, mask = pad_rows(plans)
    mask = torch.ones_like(index, dtype=torch.bool) if mask is None else mask
    for c, plan in enumerate(plans):
        at = 0
        for k, size in enumerate(plan.sizes):
            assert mask[c, k].tolist() == [i < size for i in range(index.shape[2])]
            assert index[c, k, :size].tolist() == plan.order[at : at + size].tolist()
            at += size
        assert not mask[c, len(plan.sizes) :].any()
        assert set(index[c].flatten().tolist()) <= set(plan.order.tolist())


def test_own_rows_by_hand():
    """Rows 4 to 6, 10, and 20 to 21 of which the first comes last: shorter lists repeat their last row."""
    plans = [
        Rows(np.array([5, 4, 6, 4]), np.array([4])),
        Rows(np.array([10, 10]), np.array([1, 1])),
        Rows(np.array([21, 20, 20]), np.array([3])),
    ]
    assert own_rows(plans).tolist() == [[4, 5, 6], [10, 10, 10], [20, 21, 21]]


@pytest.mark.parametrize(
    ("order", "span", "repeats"),
    [([4, 5, 6], (4, 7), False), ([4, 5, 6, 4], (4, 7), True), ([9], (9, 10), False), ([9, 9], (9, 10), True)],
)
def test_rows_that_come_round_again(order: Any, span: Any, repeats: bool):
    plan = Rows(np.array(order), np.array([len(order)]))
    assert plan.span() == span
    assert plan.repeats is repeats
    assert Rows(np.zeros(0, dtype=int), np.zeros(0, dtype=int)).repeats is False


@given(n=st.integers(1, 40), steps=st.integers(1, 12), width=st.integers(1, 15), shuffle=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_row_that_is_used_twice_is_never_missed(n, steps, width, shuffle):
    """``repeats`` is cheap because a client's rows lie next to each other; here it is checked by counting."""
    plan = phase_rows(Phase(None, steps, width, shuffle), 100, 100 + n, "p", seed=1)
    assert len(plan.sizes) == steps
    repeated = len(set(plan.order.tolist())) < len(plan.order)
    # It may miss repeats where rows in between are not used yet, never see one that is not there.
    assert repeated or not plan.repeats
    if len(plan.order) > n:
        assert plan.repeats
