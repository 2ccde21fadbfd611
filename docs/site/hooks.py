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
    "callbacks",
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
    lines += ["## moiety", "", *(_entry(getattr(mo, name)) for name in sorted(others))]
    lines += ["## Algorithms", "", *(_entry(getattr(mo, name)) for name in sorted(algorithms))]
    for package in PACKAGES:
        module = getattr(mo, package)
        names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
        members = [getattr(module, name) for name in sorted(names)]
        shown = [m for m in members if inspect.isfunction(m) or inspect.isclass(m)]
        lines += [f"## moiety.{package}", "", *(_entry(m) for m in shown if m.__module__.startswith("moiety"))]
    return "\n".join(lines)


ALGORITHMS = "moiety.algorithms."


def _entry(member: Any) -> str:
    return f"::: {member.__module__}.{member.__qualname__}\n"
