"""What tells measured code, and the machine it ran on, from any other."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from types import CodeType

from benchmarks import results
from benchmarks.environments import PEERS

UNUSED = ("analysis", "cli", "deploy", "experiments", "reports")
"""Packages of moiety that no round uses: what was measured stays right where these change."""
START_UP = "start-up"
"""The part that starts the command line, and so uses them all."""
BESIDE = ("benchmarks/work.py", "benchmarks/variants.py")


@cache
def source(kept_as: str) -> str:
    """A sum over the code that a part of the bench runs, as it lies here, the versions of others, and the machine.

    The same files in another checkout have the same sum, and so have those of a commit and its working tree. Comments,
    docstrings, annotations and the names of arguments and local variables are no part of it: what was measured stays
    right where these change.
    """
    root = results.ROOT
    package = root / "src" / "moiety"
    files = [
        *package.rglob("*.py"),
        *(root / "benchmarks" / "runners").rglob("*.py"),
        *(root / name for name in BESIDE),
    ]
    if kept_as != START_UP:
        files = [file for file in files if not any((package / name) in file.parents for name in UNUSED)]
    total = hashlib.sha256()
    for file in sorted(files):
        total.update(repr((str(file.relative_to(root)), describe_code(file.read_text()))).encode())
    total.update(repr((results.stamp()["machine"], sorted(PEERS.values()))).encode())
    return total.hexdigest()[:16]


def describe_code(text: str) -> str:
    """What Python runs of a file, without annotations.

    >>> describe_code("def f(x): return x") == describe_code("def f(y: int) -> int: return y  # the same")
    True
    """
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None

    def describe(value: object) -> object:
        if isinstance(value, frozenset):
            return sorted(map(repr, value))
        if not isinstance(value, CodeType):
            return value
        inner = [describe(each) for each in value.co_consts]
        return value.co_name, value.co_argcount, value.co_kwonlyargcount, value.co_names, value.co_code, inner

    return repr(describe(compile(tree, "", "exec", optimize=2)))  # without docstrings
