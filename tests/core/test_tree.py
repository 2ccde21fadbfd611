from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moiety import tree
from moiety.errors import MoietyError


class Pair(NamedTuple):
    first: object
    second: object


NAMES = st.text("abc.01_", min_size=1, max_size=4)
LEAVES = st.integers(-5, 5) | st.floats(-5, 5) | st.integers(0, 3).map(lambda n: torch.arange(float(n)))
# An empty dict in a template stands for "whatever is there", so trees here have none inside.
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.dictionaries(NAMES, inner, min_size=1, max_size=3)
        | st.lists(inner, min_size=1, max_size=3)
        | st.lists(inner, min_size=1, max_size=3).map(tuple)
        | st.tuples(inner, inner).map(lambda t: Pair(*t))
    ),
    max_leaves=8,
)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(NAMES, TREES, min_size=1, max_size=3))
def test_refill_is_the_inverse_of_leaves(original):
    leaves = tree.leaves(original)
    assert same(tree.refill(original, leaves), original)
    # A file keeps its entries in another order.
    assert same(tree.refill(original, dict(reversed(leaves.items()))), original)


def test_refill_is_the_inverse_of_leaves_for_names_with_a_slash():
    """``from_functions`` takes any names, and "encoder/w" is a usual one."""
    state = Pair({"encoder/w": torch.ones(2), "encoder/b": torch.zeros(1)}, {})
    assert same(tree.refill(state, tree.leaves(state)), state)


def test_refill_refuses_what_does_not_fit():
    template = Pair({"w": torch.zeros(2)}, torch.zeros((), dtype=torch.float64))
    right = {"first/w": torch.ones(2), "second": torch.ones((), dtype=torch.float64)}
    assert same(tree.refill(template, right), Pair({"w": torch.ones(2)}, torch.ones((), dtype=torch.float64)))
    wrong = [
        {"first/w": torch.ones(3), "second": right["second"]},
        {"first/w": torch.ones(2), "second": torch.ones(())},
        {"first/w": torch.ones(2)},
        {**right, "third": torch.ones(1)},
        {**right, "first/x": torch.ones(1)},
        {**right, "first/w": 1.0},
    ]
    for values in wrong:
        with pytest.raises(MoietyError, match=r"^`state.*` must be .*, as this model and algorithm have it, got "):
            tree.refill(template, values)


def test_an_empty_dict_takes_what_is_there():
    assert tree.refill({"grows": {}, "n": 0}, {"grows/a/b": 1, "n": 2}) == {"grows": {"a": {"b": 1}}, "n": 2}
    assert tree.refill({"grows": {}, "n": 0}, {"n": 2}) == {"grows": {}, "n": 2}


def test_stack_and_unstack():
    trees = [Pair({"w": torch.full((2,), float(i))}, (torch.tensor(i),)) for i in range(3)]
    block = tree.stack(trees)
    assert block.first["w"].tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    assert block.second[0].tolist() == [0, 1, 2]
    assert all(same(a, b) for a, b in zip(tree.unstack(block, 3), trees, strict=True))


@pytest.mark.parametrize(
    ("values", "finite"),
    [
        ([1.0, -2.0], True),
        ([float("nan"), 1.0], False),
        ([float("inf"), float("-inf")], False),
        ([float("inf"), 1.0], False),
        ([3e38, 3e38], True),  # the sum overflows, the numbers do not
        ([], True),
    ],
)
def test_is_finite(values, finite):
    one = {"x": (torch.tensor(values, dtype=torch.float32), torch.tensor([1, 2]), 5)}
    assert [bool(tree.is_finite(t)) for t in ({"x": (torch.ones(2), 1)}, one, {})] == [True, finite, True]


def test_is_finite_looks_everywhere():
    odd = [{"a": torch.ones(2)}, Pair(torch.ones(1), {"b": torch.tensor(float("nan"))})]
    assert not tree.is_finite(odd)


def test_map_leaves_keeps_kinds():
    product = tree.map_leaves(lambda a, b: a * b, Pair([1, 2], {"k": 3}), Pair([4, 5], {"k": 6}))
    assert same(product, Pair([4, 10], {"k": 18}))
