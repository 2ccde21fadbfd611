"""Trees of tensors and numbers: what server and client states are to everything outside an algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def stack(trees: Sequence[Tree]) -> Tree:
    """One tree whose tensors have a leading axis over ``trees``."""
    return map_leaves(lambda *xs: torch.stack(xs), *trees)


def unstack(tree: Tree, count: int) -> list[Tree]:
    """The inverse of ``stack``: ``count`` trees, views into the stacked tensors."""
    rows = zip(*(x.unbind(0) for x in values(tree)), strict=True) if values(tree) else [()] * count
    made = []
    for row in rows:
        left = iter(row)
        made.append(map_leaves(lambda _, left=left: next(left), tree))
    return made


def are_finite(trees: Sequence[Tree]) -> list[bool]:
    """For each tree, whether none of its floating tensors holds a NaN or an infinity."""
    by_type: dict[torch.dtype, list[tuple[int, Tensor]]] = {}
    for i, tree in enumerate(trees):
        for x in values(tree):
            if isinstance(x, Tensor) and x.is_floating_point() and x.numel():
                by_type.setdefault(x.dtype, []).append((i, x))
    found = [True] * len(trees)
    for entries in by_type.values():
        # One call for all of them: a norm is finite only if every term is. Where finite terms overflow, look closer.
        norms = torch.stack(torch._foreach_norm([x for _, x in entries]))
        for at in torch.nonzero(~torch.isfinite(norms)).flatten().tolist():
            i, x = entries[at]
            found[i] = found[i] and bool(torch.isfinite(x).all())
    return found
