"""What mkdocs does besides: pages from files outside ``docs``, a folder's pages in the navigation, the reference."""

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
REFERENCE: dict[str, tuple[str, tuple[str, ...]]] = {
    "api-runs.md": (
        "Training and runs",
        (
            "fit", "resume", "load", "verify", "Run", "Settings", "pipeline", "Stage", "sweep", "tune", "callbacks",
            "PersonalisedClassifier", "PersonalisedRegressor", "MoietyError",
        ),
    ),
    "api-data.md": ("Data", ("FederatedData", "data")),
    "api-models.md": (
        "Models, losses and metrics",
        ("models", "loss", "Metric", "SetMetric", "evaluation", "Task", "task"),
    ),
    "api-splits.md": ("Splits", ("Split", "split")),
    "api-algorithms.md": ("Algorithms", ("algorithms", "glocal_erm", "fictitious_play", "Algorithm", "random")),
    "api-work.md": (
        "Local work", ("sgd", "adam", "adamw", "online", "solver", "kernel", "prior", "schedule"),
    ),
    "api-server.md": (
        "Server and messages", ("server", "aggregator", "attack", "codec", "clock", "privacy"),
    ),
    "api-analysis.md": (
        "Choose and analyse",
        ("recommend", "advise", "diagnose_split", "analysis"),
    ),
    "api-reports.md": ("Reports and experiments", ("reports", "experiments")),
    "api-deploy.md": ("Devices", ("deploy",)),
}  # fmt: skip
"""The pages of the reference: title, and public names of moiety. A package stands for all that it offers."""
ALGORITHMS = "moiety.algorithms."
SOURCE = re.compile(r"Source:\s+`src/moiety/algorithms/(\w+)\.py`")
"""What the page of an algorithm says of its file: on the site the entry of the reference follows."""


def on_config(config: Any) -> Any:
    """Put the pages of a folder into the navigation where it has ``folder/*.md``, by their titles."""
    for section in config.nav:
        for title, pattern in section.items():
            if isinstance(pattern, str) and pattern.endswith("/*.md"):
                section[title] = list_pages(pattern)
    return config


def list_pages(pattern: str) -> list[dict[str, str]]:
    """Pages in ``docs`` by their first line, in the order of the alphabet."""
    docs = ROOT / "docs"
    titles = {
        page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# "): page.relative_to(docs).as_posix()
        for page in docs.glob(pattern)
    }
    return [{title: titles[title]} for title in sorted(titles, key=str.casefold)]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside, and the reference."""
    for source, page in OUTSIDE.items():
        if page != "index.md":
            text = (ROOT / source).read_text(encoding="utf-8")
            files.append(File.generated(config, page, content=INSIDE.sub(_from_top, text)))
    files.append(File.generated(config, "api.md", content=write_index()))
    for page, (title, names) in REFERENCE.items():
        files.append(File.generated(config, page, content=write_reference(title, names)))
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

    return SOURCE.sub(_add_reference, ABOVE.sub(follow, markdown))


def _add_reference(source: re.Match[str]) -> str:
    name = source[1]
    return f"[All arguments][{ALGORITHMS}{name}.{name}]. {source[0]}"


def _from_top(link: re.Match[str]) -> str:
    target, anchor = link.groups()
    return f"]({OUTSIDE.get(target, target)}{anchor or ''})"


def list_names(name: str) -> dict[str, Any]:
    """What a name of the table of pages stands for: itself, all algorithms, or what a package offers."""
    if name == "algorithms":
        return {f"mo.{each}": getattr(mo, each) for each in sorted(mo.__all__) if is_algorithm(each)}
    member = getattr(mo, name)
    return list_members(name) if inspect.ismodule(member) else {f"mo.{name}": member}


def is_algorithm(name: str) -> bool:
    """Whether a public name builds an algorithm."""
    return getattr(getattr(mo, name), "__module__", "").startswith(ALGORITHMS)


def write_index() -> str:
    """The first page of the reference: every public name, with a link."""
    lines = ["# API reference", "", "Everything public, from its docstring. `import moiety as mo` first.", ""]
    for page, (title, names) in REFERENCE.items():
        members = [pair for name in names for pair in list_once(name, names)]
        links = [f"[`{call}`][{member.__module__}.{member.__qualname__}]" for call, member in members]
        lines += [f"**[{title}]({page})**: {', '.join(links)}.", ""]
    return "\n".join(lines)


def write_reference(title: str, names: tuple[str, ...]) -> str:
    """A page of the reference: a package has a heading of its own."""
    lines = [f"# {title}", ""]
    single = [name for name in names if name != "algorithms" and not inspect.ismodule(getattr(mo, name))]
    for name in [*single, *(name for name in names if name not in single)]:
        if name not in single and len(names) > 1:
            lines += [f"## {'All algorithms' if name == 'algorithms' else f'moiety.{name}'}", ""]
        lines += [write_entry(call, member) for call, member in list_once(name, names)]
    return "\n".join(lines)


def list_once(name: str, names: tuple[str, ...]) -> list[tuple[str, Any]]:
    """What a name of a page stands for, without what the page also has by a shorter name: mo.data.FederatedData."""
    short = {id(getattr(mo, each)) for each in names if hasattr(mo, each) and each != name}
    return [
        (call, member) for call, member in list_names(name).items() if call.count(".") == 1 or id(member) not in short
    ]


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
    docs, short = ROOT / "docs", name.rpartition(".")[2]
    imported = re.compile(rf"^from moiety[\w.]* import .*\b{short}\b", re.MULTILINE)
    pages = sorted(docs.rglob("*.md"), key=lambda page: (page.stem.replace("-", "_") != short, page))
    for page in pages:
        text = page.read_text(encoding="utf-8")
        called = re.compile(
            rf"\b{re.escape(name)}\(|(?<![.\w]){short}\(" if imported.search(text) else rf"\b{re.escape(name)}\("
        )
        for block in FENCED.findall(text):
            if called.search(block):
                return page.relative_to(docs), block
    return None, ""
