"""What mkdocs does besides: pages from files outside ``docs``, and the reference of all public names."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from posixpath import relpath
from typing import Any

from mkdocs.structure.files import File, Files

import moiety as mo

ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "README.md": "index.md",
}
"""Files at the top of the repository, and the pages that they are on the site."""
INSIDE = re.compile(r"\]\((?:\./)?(?:docs/)?([\w./-]+\.(?:md|svg|png))(#[\w-]+)?\)")
FENCED = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ABOVE = re.compile(r"\]\(((?:\.\./)+)([\w./-]+)(#[\w-]+)?\)")
PACKAGES = (
    "data",
    "split",
    "models",
    "server",
    "clock",
    "codec",
    "aggregator",
    "attack",
    "privacy",
    "schedule",
    "solver",
    "kernel",
    "prior",
    "callbacks",
    "deploy",
)
"""Public packages whose names the reference lists one by one."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside, and the reference."""
    for source, page in OUTSIDE.items():
        if page != "index.md":
            text = (ROOT / source).read_text(encoding="utf-8")
            files.append(File.generated(config, page, content=INSIDE.sub(_from_top, text)))
    files.append(File.generated(config, "api.md", content=list_reference()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links that leave ``docs`` into links of the site."""

    def follow(link: re.Match[str]) -> str:
        ups, target, anchor = link.groups()
        folder = page.file.src_uri.count("/")
        if ups.count("../") != folder + 1:  # it stays inside docs
            return link.group(0)
        inside = OUTSIDE.get(target)
        if inside is None:  # a file of the repository that is no page: its name is enough
            return f"] (`{target}`)"
        return f"]({relpath(inside, page.file.src_uri.rpartition('/')[0] or '.')}{anchor or ''})"

    return ABOVE.sub(follow, markdown)


def _from_top(link: re.Match[str]) -> str:
    target, anchor = link.groups()
    return f"]({OUTSIDE.get(target, target)}{anchor or ''})"


def list_reference() -> str:
    """The reference: all public names, algorithms and packages apart."""
    algorithms = [name for name in mo.__all__ if getattr(getattr(mo, name), "__module__", "").startswith(ALGORITHMS)]
    others = [name for name in mo.__all__ if name not in algorithms and not inspect.ismodule(getattr(mo, name))]
    lines = ["# API reference", "", "Everything public, from its docstring. `import moiety as mo` first.", ""]
    lines += ["## moiety", "", *(write_entry(f"mo.{name}", getattr(mo, name)) for name in sorted(others))]
    lines += ["## Algorithms", "", *(write_entry(f"mo.{name}", getattr(mo, name)) for name in sorted(algorithms))]
    for package in PACKAGES:
        names = list_members(package)
        lines += [f"## moiety.{package}", "", *(write_entry(name, member) for name, member in names.items())]
    return "\n".join(lines)


ALGORITHMS = "moiety.algorithms."


def list_members(package: str) -> dict[str, Any]:
    """Functions and classes that a package offers. A module without ``__all__`` offers its builders."""
    module = getattr(mo, package)
    given = getattr(module, "__all__", None)
    names = given or [name for name, member in vars(module).items() if hasattr(member, "__wrapped__")]
    members = {f"mo.{package}.{name}": getattr(module, name) for name in sorted(names)}
    kinds = (inspect.isfunction, inspect.isclass)
    ours = {name: m for name, m in members.items() if getattr(m, "__module__", "").startswith("moiety")}
    return {name: m for name, m in ours.items() if any(kind(m) for kind in kinds)}


def write_entry(name: str, member: Any) -> str:
    """A name's docstring, and an example from a page where the docstring has none; tests run those of pages."""
    entry = f"::: {member.__module__}.{member.__qualname__}\n"
    if ">>>" in (member.__doc__ or ""):
        return entry
    page, block = find_example(name)
    return entry + (f"\nAn example, from [{page.stem}]({page.as_posix()}):\n\n```python\n{block}```\n" if page else "")


def find_example(name: str) -> tuple[Path | None, str]:
    """The first block that calls this name, on its own page or else on any, and that page."""
    docs, called = ROOT / "docs", re.compile(rf"\b{re.escape(name)}\(")
    short = name.rpartition(".")[2]
    pages = sorted(docs.rglob("*.md"), key=lambda page: (page.stem.replace("-", "_") != short, page))
    for page in pages:
        for block in FENCED.findall(page.read_text(encoding="utf-8")):
            if called.search(block):
                return page.relative_to(docs), block
    return None, ""
