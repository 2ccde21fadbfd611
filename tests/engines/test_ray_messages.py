"""What goes to Ray's actors and comes back survives the journey. No cluster is needed here."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from moiety import tree
from moiety.engines.base import Results
from moiety.engines.jobs import Jobs
from moiety.engines.ray import remember, row_shifts
from moiety.engines.ray_messages import (
    digest,
    digest_each,
    join_trees,
    pack,
    pack_jobs,
    part_trees,
    stack_trees,
    unpack,
    unpack_jobs,
)
from moiety.engines.rows import AlikeRows, Job, Rows


def test_states_are_held_up_to_a_limit():
    states: dict[int, str] = {}
    for client in (3, 1, 3, 2):
        remember(states, client, f"state of {client}", 2)
    assert states == {3: "state of 3", 2: "state of 2"}


def test_rows_lie_close_together_at_their_actor():
    bounds = np.array([[0, 2, 2, 3], [5, 6, 6, 9], [10, 12, 12, 12], [12, 13, 14, 15], [20, 21, 21, 22]])
    # Actor 0 has rows 0-2, 10-11 and 20 as 0-2, 3-4 and 5; actor 1 has 5-8 and 12-14 as 0-3 and 4-6.
    assert row_shifts(bounds, 2).tolist() == [0, 5, 7, 8, 15]


def test_jobs_survive_the_journey():
    """Rows by the numbers they have at their actor, batches and numbers as they were; the state goes its own way."""
    rows = {"a": Rows(np.array([7, 5, 6]), np.array([2, 1])), "b": Rows(np.array([5]), np.array([1]))}
    more = {"a": Rows(np.array([9]), np.array([1])), "b": Rows(np.array([9, 8]), np.array([2]))}
    jobs = [Job(1, rows, 3, {"v": torch.ones(2)}, 2**62 + 1, 11, 2), Job(3, more, 2, {}, -5, 11, 0)]
    first, second = unpack_jobs(pack_jobs(jobs, np.array([0, 5, 0, 8])))
    assert [r.order.tolist() for r in first.rows.values()] == [[2, 0, 1], [0]]
    assert [r.order.tolist() for r in second.rows.values()] == [[1], [1, 0]]
    assert [r.sizes.tolist() for job in (first, second) for r in job.rows.values()] == [[2, 1], [1], [1], [2]]
    for job, copy in zip(jobs, (first, second), strict=True):
        assert copy == job._replace(rows=copy.rows, state=None)


def test_jobs_that_are_alike_survive_the_journey():
    rows = {"a": AlikeRows(np.array([[7, 5, 6], [9, 8, 10]]), np.array([2, 1]), 3)}
    jobs = Jobs([1, 3], 3, [{"v": torch.ones(2)}, {}], rows, key=-5, turn=11)
    first, second = unpack_jobs(pack_jobs(jobs, np.array([0, 5, 0, 8])))
    assert (first.rows["a"].order.tolist(), second.rows["a"].order.tolist()) == ([2, 0, 1], [1, 0, 2])
    for job, copy in zip(jobs, (first, second), strict=True):
        assert copy.rows["a"].sizes.tolist() == [2, 1]
        assert copy == job._replace(rows=copy.rows, state=None)


def test_results_that_lie_in_one_tree_are_sent_as_they_lie():
    stack = Pair(torch.arange(6.0).reshape(3, 2), {"x": torch.tensor([1, 2, 3])})
    bundle = join_trees(Results(stack, 3))
    assert bundle.layout() == join_trees(tree.unstack(stack, 3)).layout()
    again = stack_trees(bundle)
    assert type(again) is Pair
    assert torch.equal(again.one, stack.one)
    assert [each.two["x"].item() for each in part_trees(bundle)] == [1, 2, 3]
    other = join_trees([Pair(torch.zeros(3), {"x": torch.tensor(1)})])
    assert other.layout() != bundle.layout()


def test_each_state_has_its_own_digest():
    same = {"v": torch.ones(2)}
    states = [same, same, {"v": torch.zeros(2)}]
    assert digest_each(states) == [digest(pack(state)) for state in states]


class Pair(NamedTuple):
    one: Tensor
    two: dict[str, Tensor]


@pytest.mark.parametrize("other", [torch.ones(2), torch.ones(3), torch.ones(2, dtype=torch.float64), 3, None])
def test_many_trees_survive_the_journey(other):
    """Alike or not: one may be of another shape or type, have a leaf that is no tensor, or fewer leaves."""
    trees = [Pair(torch.full((2,), float(i)), {"x": torch.tensor(i)}) for i in range(3)]
    trees.append(Pair(torch.zeros(2), {}) if other is None else Pair(other, {"x": torch.tensor(4)}))
    bundle = join_trees(trees)
    assert (bundle.shape is not None) == (
        isinstance(other, Tensor) and other.shape == (2,) and other.dtype == torch.float32
    )
    copies = part_trees(bundle)
    assert [type(each) for each in copies] == [Pair] * 4
    for before, after in zip(trees, copies, strict=True):
        assert before.two.keys() == after.two.keys()
        for one, two in zip(tree.values(before), tree.values(after), strict=True):
            assert type(one) is type(two)
            assert one == two if isinstance(one, int) else torch.equal(one, two)
    assert part_trees(join_trees([])) == []
    assert part_trees(join_trees([{}, {}])) == [{}, {}]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_trees_survive_the_journey(dtype):
    """Scalars, empty tensors, views and views against the grain, in memory of their own."""
    wide = torch.arange(12).reshape(3, 4).to(dtype)
    value = {"a": (wide[0, 1], wide[:, :0]), "b": [wide[1], wide.T, 3]}
    copy = unpack(pack(value))
    before, after = tree.leaves(value), tree.leaves(copy)
    assert before.keys() == after.keys()
    for path in before:
        if isinstance(before[path], Tensor):
            assert after[path].dtype == dtype
            assert torch.equal(before[path], after[path])
            assert before[path].numel() == 0 or before[path].data_ptr() != after[path].data_ptr()
    assert digest(pack(value)) == digest(pack(copy))
    other = {"a": value["a"], "b": [wide[2], wide.T, 3]}
    assert dtype is torch.bool or digest(pack(other)) != digest(pack(value))
