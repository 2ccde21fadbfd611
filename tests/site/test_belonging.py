"""What a repository has besides code: forms, the file of Actions, the citation, licences."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read_yaml(name: str) -> dict:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("form", ["bug", "idea"])
def test_a_form_for_issues_can_be_read(form: str) -> None:
    tables = read_yaml(f".github/ISSUE_TEMPLATE/{form}.yml")
    assert tables["name"]
    assert tables["description"]
    assert all(part["attributes"]["label"] for part in tables["body"])


def test_actions_run_the_targets_of_the_gate() -> None:
    """In the same order, on Python 3.11; other versions run ``make test`` alone."""
    targets = re.findall(r"^make (\S+)$", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)
    steps = read_yaml(".github/workflows/gate.yml")["jobs"]["gate"]["steps"]
    commands = [step["run"].removeprefix("make ") for step in steps if step.get("run", "").startswith("make ")]
    assert commands == targets
    assert {step.get("if") for step in steps if step.get("run", "").startswith("make test-")} == {
        "matrix.python == '3.11'"
    }


def test_the_citation_is_of_this_version() -> None:
    citation = read_yaml("CITATION.cff")
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])


def test_every_package_has_its_licence_in_the_notice() -> None:
    requirements = [
        *PROJECT["dependencies"],
        *(one for some in PROJECT["optional-dependencies"].values() for one in some),
    ]
    names = {re.match(r"[\w-]+", one)[0] for one in requirements} - {PROJECT["name"]}
    rows = re.findall(r"^\| (.+?) \|", (ROOT / "NOTICE.md").read_text(encoding="utf-8"), re.MULTILINE)
    packages = {name for row in rows for name in row.split(", ")}
    assert names - packages == set()
