"""Only ``files.py`` writes to a disk: no other module of the package calls what does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import moiety
from moiety import files

ROOT = Path(moiety.__file__).parent
WRITING = {
    "write_text",
    "write_bytes",
    "mkdir",
    "makedirs",
    "unlink",
    "rmdir",
    "rmtree",
    "touch",
    "symlink",
    "truncate",
}
WRITING |= {"ftruncate", "pwrite", "fsync", "tofile", "savez", "savez_compressed", "save_file", "copytree", "copyfile"}
"""Methods and functions that change a disk, whatever they are of."""
OF_MODULES = {"os": {"write", "open", "remove", "rename", "replace", "mknod"}, "np": {"save"}, "torch": {"save"}}
NAMES = re.compile(rf"\b({'|'.join({*WRITING, 'open', *OF_MODULES['os'], 'save'})})\(")


def find_writes(tree: ast.AST) -> list[str]:
    """The calls that write, as ``line: name``; ``open`` counts where its mode is not one of reading."""
    writes = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = (
            node.func.value.id if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) else ""
        )
        modes = [
            each.value for each in (*node.args, *(k.value for k in node.keywords)) if isinstance(each, ast.Constant)
        ]
        opens = name == "open" and any(
            isinstance(m, str) and m.strip("rbt") and set(m) <= set("rwxab+t") for m in modes
        )
        if name in WRITING or name in OF_MODULES.get(owner, ()) or opens:
            writes.append(f"{node.lineno}: {ast.unparse(node.func)}")
    return writes


def test_only_files_writes() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.rglob("*.py")}
    writes = {name: find_writes(ast.parse(text)) for name, text in texts.items() if NAMES.search(text)}
    # Folders are flushed through a handle, and standard output is closed: neither writes a file.
    allowed = {"cli/__init__.py": ["os.open"], "files.py": ["os.open"]}
    odd = {
        name: [call for call in calls if call.partition(": ")[2] not in allowed.get(name, [])]
        for name, calls in writes.items()
    }
    assert {name: calls for name, calls in odd.items() if calls} == {}
    assert len(texts) > 100


def test_files_itself_writes_through_one_function() -> None:
    """Which tests replace: each call of the system that changes a disk is an argument of ``system_call``."""
    tree = ast.parse(Path(files.__file__).read_text())
    passed = {
        ast.unparse(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "system_call"
    }
    wanted = {f"os.{name}" for name in ("open", "write", "pwrite", "fsync", "ftruncate", "mkdir", "rmdir", "rename")}
    assert passed == {*wanted, "os.replace", "os.unlink"}


def test_what_writes_is_recognised() -> None:
    writes = ["open(p, 'w')", "p.open(mode='ab')", "p.write_text('')", "os.replace(a, b)", "np.save(p, a)"]
    others = ["open(p)", "open(p, 'rb')", "p.read_text()", "text.replace('a', 'b')", "system_call(os.replace, a, b)"]
    lines = [line.partition(":")[0] for line in find_writes(ast.parse("\n".join(writes + others)))]
    assert lines == ["1", "2", "3", "4", "5"]
