"""Trees of tensors and numbers: what server and client states are to everything outside an algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from moiety.errors import must
from moiety.types import Params, Tree


def map_leaves(function: Callable[..., Any], *trees: Tree) -> Tree:
    """Apply ``function`` to the leaves that stand at the same place in each tree.

    >>> map_leaves(lambda a, b: a + b, {"x": 1, "y": (2, 3)}, {"x": 10, "y": (20, 30)})
    {'x': 11, 'y': (22, 33)}
    """
    first = trees[0]
    if isinstance(first, dict):
        return {k: map_leaves(function, *(t[k] for t in trees)) for k in first}
    if isinstance(first, tuple | list):
        return _rebuild(first, [map_leaves(function, *parts) for parts in zip(*trees, strict=True)])
    return function(*trees)


def values(tree: Tree) -> list[Any]:
    """The leaves in the order of ``leaves``, without their paths.

    >>> values({"a": (1, 2), "b": {"c": 3}})
    [1, 2, 3]
    """
    if not isinstance(tree, dict | tuple | list):
        return [tree]
    flat: list[Any] = []
    for child in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(child, Tensor):
            flat.append(child)
        else:
            flat += values(child)
    return flat


def leaves(tree: Tree) -> dict[str, Any]:
    """The leaves by path, in a fixed order.

    >>> leaves({"a": (1, 2), "b": {"c": 3}})
    {'a/0': 1, 'a/1': 2, 'b/c': 3}
    """
    by_path: dict[str, Any] = {}

    def walk(node: Tree, path: str) -> None:
        if not isinstance(node, dict | tuple | list):
            by_path[path] = node
            return
        for key, child in zip(_list_keys(node), _list_children(node), strict=True):
            # A module's name may hold a slash; it is written as JSON pointers do.
            part = key.replace("~", "~0").replace("/", "~1")
            walk(child, f"{path}/{part}" if path else part)

    walk(tree, "")
    return by_path


def _list_keys(node: Tree) -> list[str]:
    """The names of a node's children."""
    return [str(key) for key in (node if isinstance(node, dict) else getattr(node, "_fields", range(len(node))))]


def _list_children(node: Tree) -> list[Tree]:
    return list(node.values() if isinstance(node, dict) else node)


def _rebuild(node: Tree, children: list[Tree]) -> Tree:
    """A node of the same kind with other children."""
    if isinstance(node, dict):
        return dict(zip(node, children, strict=True))
    return type(node)(*children) if hasattr(node, "_fields") else type(node)(children)


def refill(template: Tree, by_path: dict[str, Any]) -> Tree:
    """A tree shaped like ``template`` with its leaves taken from ``by_path`` (the inverse of ``leaves``).

    An empty dict in the template takes whatever stands below it: states that grow in the first round start so.

    >>> refill({"a": (0, 0), "b": {}}, {"a/0": 1, "a/1": 2, "b/c/d": 3})
    {'a': (1, 2), 'b': {'c': {'d': 3}}}
    """
    root: dict[str, Any] = {}
    for path, value in by_path.items():
        node = root
        *above, last = (part.replace("~1", "/").replace("~0", "~") for part in path.split("/"))
        for key in above:
            node = node.setdefault(key, {})
        node[last] = value
    return _fill(template, root, "state")


def _fill(template: Tree, node: Any, path: str) -> Tree:
    def check(ok: bool, constraint: object, value: object) -> None:
        must(ok, path, f"{constraint}, as this model and algorithm have it", value)

    if isinstance(template, dict) and not template:
        return node
    if isinstance(template, dict | tuple | list):
        children = dict(zip(_list_keys(template), _list_children(template), strict=True))
        # A part without leaves leaves no trace among the paths.
        node = {key: {} for key, child in children.items() if not leaves(child)} | (node or {})
        check(node.keys() == children.keys(), sorted(children), sorted(node))
        return _rebuild(template, [_fill(child, node[key], f"{path}/{key}") for key, child in children.items()])
    if isinstance(template, Tensor):
        check(isinstance(node, Tensor), "a tensor", type(node).__name__)
        check(template.shape == node.shape, tuple(template.shape), tuple(node.shape))
        check(template.dtype == node.dtype, template.dtype, node.dtype)
        return node.to(template.device)
    return node


def maker(template: Tree) -> Callable[[Iterator[Any]], Tree]:
    """A function from leaves, in the order of ``values``, to a tree shaped like ``template``.

    It looks at the shape once, so it is the quick way to many trees of one shape.

    >>> maker({"a": (0, 0), "b": {"c": 0}})(iter([1, 2, 3]))
    {'a': (1, 2), 'b': {'c': 3}}
    """
    if not isinstance(template, dict | tuple | list):
        return next
    makers = [maker(child) for child in _list_children(template)]
    return lambda leaves: _rebuild(template, [make(leaves) for make in makers])


def module_tensors(module: nn.Module) -> Params:
    """The parameters and the buffers of a module, by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def clone(tree: Tree) -> Tree:
    """The tree with tensors in memory of their own."""
    return map_leaves(torch.clone, tree)


def stack(trees: Sequence[Tree]) -> Tree:
    """One tree whose tensors have a leading axis over ``trees``."""
    return map_leaves(lambda *xs: torch.stack(xs), *trees)


def unstack(tree: Tree, count: int) -> list[Tree]:
    """The inverse of ``stack``: ``count`` trees, views into the stacked tensors."""
    tensors, make = values(tree), maker(tree)
    rows = zip(*(x.unbind(0) for x in tensors), strict=True) if tensors else [()] * count
    return [make(iter(row)) for row in rows]


def pack_rows(trees: Sequence[Tree], prefix: str = "") -> dict[str, Tensor]:
    """One tensor per leaf, with a row per tree, for a file; names are paths that begin with ``prefix``."""
    return {prefix + k: v.contiguous() for k, v in leaves(stack(trees)).items()} if trees else {}


def unpack_rows(tensors: Mapping[str, Tensor], template: Tree, prefix: str = "") -> list[Tree]:
    """The inverse of ``pack_rows``: a tree like ``template`` for each row.

    Rows are cloned: a view would keep all other rows in memory.
    """
    columns = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    counts = {column.shape[:1] for column in columns.values()} or {torch.Size([0])}
    if len(counts) > 1 or torch.Size() in counts:
        raise ValueError("columns must have as many rows as each other")
    ((count,),) = counts
    return [refill(template, {k: v[row].clone() for k, v in columns.items()}) for row in range(count)]


def largest(tree: Tree) -> Tensor:
    """The largest magnitude in the floating tensors, as a float64 tensor without axes; a NaN where one holds a NaN."""
    floats = [x for x in values(tree) if isinstance(x, Tensor) and x.is_floating_point() and x.numel()]
    if not floats:
        return torch.zeros((), dtype=torch.float64)
    # Many times quicker than the magnitudes of everything: a NaN shows in both ends, an infinity in one.
    ends = [end for x in floats for end in (x.amax(), x.amin())]
    if any(end.dtype is not ends[0].dtype for end in ends):
        ends = [end.double() for end in ends]
    return torch.stack(ends).abs().amax().double()


def is_finite(tree: Tree) -> Tensor:
    """Whether none of the floating tensors holds a NaN or an infinity, as a tensor without axes."""
    return largest(tree).isfinite()


def all_finite(tree: Tree) -> bool:
    """The same as a plain answer, by one look at each number."""
    floats = [x for x in values(tree) if isinstance(x, Tensor) and x.is_floating_point()]
    # A NaN or an infinity shows in the sum; where finite numbers have an infinite sum, a closer look decides.
    return all(math.isfinite(x.sum().item()) for x in floats) or bool(is_finite(floats))
