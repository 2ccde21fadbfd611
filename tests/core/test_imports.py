"""No module imports itself by a detour, imports inside functions included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
PACKAGES = [path.parent.name for path in sorted(SOURCE.glob("*/__init__.py"))]


def module_files(root: Path, package: str) -> dict[str, Path]:
    """Every module of a package by its dotted name; a package stands for its ``__init__``."""
    names = {}
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imports_of(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """All imports of a module, at any depth, but for those that only type checkers see."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for other in node.orelse:
                yield from imports_of(other)
        else:
            yield from imports_of(node)


def import_graph(files: dict[str, Path]) -> dict[str, set[str]]:
    """For each module those it imports. ``from package import name`` is the module ``name`` where there is one."""
    graph = {}
    for module, path in files.items():
        names: set[str] = set()
        for node in imports_of(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
                continue
            base = node.module or ""
            if node.level:
                package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                names.add(inner if inner in files else base)
        graph[module] = (names & files.keys()) - {module}
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                components.append(sorted(stack[at:]))
            del stack[at:]

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return components


def test_no_import_cycle():
    files = {name: path for package in PACKAGES for name, path in module_files(SOURCE, package).items()}
    assert len(files) > 100
    assert cycles(import_graph(files)) == []


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"a": "import p.b", "b": "from p.c import x", "c": ""}, []),
        ({"a": "import p.b", "b": "def f():\n    from p import a"}, [["p.a", "p.b"]]),
        ({"a": "from . import b", "b": "from .a import x"}, [["p.a", "p.b"]]),
        ({"__init__": "from p.a import x", "a": "import p"}, [["p", "p.a"]]),
        ({"a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.b", "b": "import p.a"}, []),
    ],
)
def test_cycles_by_hand(texts, expected, tmp_path):
    (tmp_path / "p").mkdir()
    for name, text in {"__init__": "", **texts}.items():
        (tmp_path / "p" / f"{name}.py").write_text(text)
    assert cycles(import_graph(module_files(tmp_path, "p"))) == expected
