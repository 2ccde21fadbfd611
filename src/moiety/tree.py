"""Trees of tensors and numbers: what server and client states are to everything outside an algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from moiety.errors import must
from moiety.types import Tree


def map_leaves(function: Callable[..., Any], *trees: Tree) -> Tree:
    """Apply ``function`` to the leaves that stand at the same place in each tree.

    >>> map_leaves(lambda a, b: a + b, {"x": 1, "y": (2, 3)}, {"x": 10, "y": (20, 30)})
    {'x': 11, 'y': (22, 33)}
    """
    first = trees[0]
    if isinstance(first, dict):
        return {k: map_leaves(function, *(t[k] for t in trees)) for k in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(map_leaves(function, *parts) for parts in zip(*trees, strict=True)))
    if isinstance(first, tuple | list):
        return type(first)(map_leaves(function, *parts) for parts in zip(*trees, strict=True))
    return function(*trees)


def values(tree: Tree) -> list[Any]:
    """The leaves in the order of ``leaves``, without their paths.

    >>> values({"a": (1, 2), "b": {"c": 3}})
    [1, 2, 3]
    """
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, tuple | list):
        return [tree]
    found: list[Any] = []
    for child in tree:
        if isinstance(child, Tensor):
            found.append(child)
        else:
            found += values(child)
    return found


def leaves(tree: Tree) -> dict[str, Any]:
    """The leaves by path, in a fixed order.

    >>> leaves({"a": (1, 2), "b": {"c": 3}})
    {'a/0': 1, 'a/1': 2, 'b/c': 3}
    """
    found: dict[str, Any] = {}

    def walk(node: Tree, path: str) -> None:
        if isinstance(node, dict):
            children = list(node.items())
        elif isinstance(node, tuple) and hasattr(node, "_fields"):
            children = list(zip(node._fields, node, strict=True))
        elif isinstance(node, tuple | list):
            children = [(str(i), child) for i, child in enumerate(node)]
        else:
            found[path] = node
            return
        for key, child in children:
            # A module's name may hold a slash; it is written as JSON pointers do.
            part = str(key).replace("~", "~0").replace("/", "~1")
            walk(child, f"{path}/{part}" if path else part)

    walk(tree, "")
    return found


def refill(template: Tree, found: dict[str, Any]) -> Tree:
    """A tree shaped like ``template`` with its leaves taken from ``found`` (the inverse of ``leaves``).

    An empty dict in the template takes whatever stands below it: states that grow in the first round start so.

    >>> refill({"a": (0, 0), "b": {}}, {"a/0": 1, "a/1": 2, "b/c/d": 3})
    {'a': (1, 2), 'b': {'c': {'d': 3}}}
    """
    nested: dict[str, Any] = {}
    for path, value in found.items():
        node = nested
        *above, last = (part.replace("~1", "/").replace("~0", "~") for part in path.split("/"))
        for key in above:
            node = node.setdefault(key, {})
        node[last] = value
    return _like(template, nested, "state")


def _like(template: Tree, node: Any, path: str) -> Tree:
    if isinstance(template, dict) and not template:
        return node
    if isinstance(template, dict | tuple | list):
        if isinstance(template, dict):
            keys = list(template)
        else:
            keys = list(getattr(template, "_fields", map(str, range(len(template)))))
        children = list(template.values()) if isinstance(template, dict) else list(template)
        # A part without leaves leaves no trace in ``found``.
        node = {k: {} for k, c in zip(keys, children, strict=True) if not leaves(c)} | (node or {})
        _same(node.keys() == set(keys), path, sorted(keys), sorted(node))
        filled = [_like(c, node[k], f"{path}/{k}") for k, c in zip(keys, children, strict=True)]
        if isinstance(template, dict):
            return dict(zip(keys, filled, strict=True))
        return type(template)(*filled) if hasattr(template, "_fields") else type(template)(filled)
    if isinstance(template, Tensor):
        _same(isinstance(node, Tensor), path, "a tensor", type(node).__name__)
        _same(template.shape == node.shape, path, tuple(template.shape), tuple(node.shape))
        _same(template.dtype == node.dtype, path, template.dtype, node.dtype)
    return node


def _same(ok: bool, path: str, wanted: object, got: object) -> None:
    must(ok, path, f"{wanted}, as this model and algorithm have it", got)


def maker(template: Tree) -> Callable[[Iterator[Any]], Tree]:
    """A function from leaves, in the order of ``values``, to a tree shaped like ``template``.

    The shape is looked at once, so it is the quick way to many trees of one shape.

    >>> maker({"a": (0, 0), "b": {"c": 0}})(iter([1, 2, 3]))
    {'a': (1, 2), 'b': {'c': 3}}
    """
    if isinstance(template, dict):
        keyed = [(key, maker(child)) for key, child in template.items()]
        return lambda leaves: {key: make(leaves) for key, make in keyed}
    if isinstance(template, tuple | list):
        kind, makers = type(template), [maker(child) for child in template]
        if hasattr(template, "_fields"):
            return lambda leaves: kind(*[make(leaves) for make in makers])
        return lambda leaves: kind([make(leaves) for make in makers])
    return next


def clone(tree: Tree) -> Tree:
    """The tree with tensors in memory of their own."""
    return map_leaves(torch.clone, tree)


def stack(trees: Sequence[Tree]) -> Tree:
    """One tree whose tensors have a leading axis over ``trees``."""
    return map_leaves(lambda *xs: torch.stack(xs), *trees)


def unstack(tree: Tree, count: int) -> list[Tree]:
    """The inverse of ``stack``: ``count`` trees, views into the stacked tensors."""
    stacked, make = values(tree), maker(tree)
    rows = zip(*(x.unbind(0) for x in stacked), strict=True) if stacked else [()] * count
    return [make(iter(row)) for row in rows]


def is_finite(tree: Tree) -> Tensor:
    """Whether none of the floating tensors holds a NaN or an infinity, as a tensor without axes."""
    floats = [x for x in values(tree) if isinstance(x, Tensor) and x.is_floating_point() and x.numel()]
    if not floats:
        return torch.ones((), dtype=torch.bool)
    # Many times quicker than isfinite of everything: a NaN shows in both ends, an infinity in one.
    ends = [end.double() for x in floats for end in (x.amax(), x.amin())]
    return torch.stack(ends).isfinite().all()
