"""The project's own files agree: one version, a site with every page, a workflow that calls make."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from typing import Any

import pytest
import yaml
from tests.places import ROOT
from tests.test_house import FLOORS

import efface
from efface.version import VERSION

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, TOOLS = PYPROJECT["project"], PYPROJECT["tool"]
SITE = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))


def test_the_version_is_written_in_one_place() -> None:
    """The package has it, pyproject.toml takes it, the citation and the changelog speak of the same."""
    assert TOOLS["setuptools"]["dynamic"]["version"] == {"attr": "efface.version.VERSION"}
    assert "version" not in PROJECT
    assert version("efface") == VERSION == efface.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == VERSION
    assert f"## {VERSION}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    literal = re.compile(rf"[\"']{re.escape(VERSION)}[\"']")
    sources = (ROOT / "src" / "efface").rglob("*.py")
    found = [p.name for p in sources if literal.search(p.read_text(encoding="utf-8"))]
    assert found == ["version.py"]


def leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    values = nav.values() if isinstance(nav, dict) else nav
    return [leaf for value in values for leaf in leaves(value)]


def test_every_page_is_in_the_navigation() -> None:
    shown = leaves(SITE["nav"])
    assert len(shown) == len(set(shown))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert written - set(shown) == set()
    rooms = {room for room in FLOORS if (ROOT / "src" / "efface" / room).is_dir()}
    assert {leaf for leaf in shown if leaf.startswith("api/")} == {
        f"api/{room}.md" for room in {"ground", *rooms}
    }


def test_the_site_needs_nothing_from_elsewhere() -> None:
    assert SITE["theme"]["font"] == "false"
    assert not {"extra_javascript", "extra_css"} & set(SITE)


def test_the_workflow_covers_the_systems_and_pythons_and_only_calls_make() -> None:
    matrix = WORKFLOW["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos", "windows"}
    assert PROJECT["requires-python"] == f">={matrix['python'][0]}"
    runs = [
        step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step
    ]
    assert runs
    assert all(run.startswith("make ") for run in runs)


def test_every_dependency_is_pinned() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().replace("_", "-")
    extras = [one for extra in PROJECT["optional-dependencies"].values() for one in extra]
    names = {
        re.split(r"[\[<>=]", one)[0].lower().replace("_", "-")
        for one in (*PROJECT["dependencies"], *extras)
    }
    unpinned = {name for name in names - {"efface"} if f"\n{name}==" not in pins}
    assert unpinned <= {"timm", "open-clip-torch"}, (
        "they ask for torchvision, which does not import beside a CPU torch"
    )


def test_every_extra_is_explained() -> None:
    """In the README's table, by name; and nothing that is no extra."""
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("| extra |")[2]
    rows = table.partition("\n\n")[0].splitlines()[2:]
    named = {name for row in rows for name in re.findall(r"`([\w-]+)`", row.split("|")[1])}
    assert named == set(PROJECT["optional-dependencies"])


def test_the_classifiers_name_the_pythons_that_are_tried() -> None:
    prefix = "Programming Language :: Python :: "
    versions = [c.removeprefix(prefix) for c in PROJECT["classifiers"] if c.startswith(prefix)]
    tried = WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert [version for version in versions if "." in version] == tried
    assert len(set(PROJECT["classifiers"])) == len(PROJECT["classifiers"])


def test_the_demos_environment_runs_what_the_readme_shows_next() -> None:
    """``--backbone hf:…`` and Parquet need their extras, and ``make demo`` installs them."""
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("$(VENV)/.base:")[2]
    (extras,) = re.findall(r'-e "\.\[([\w,]+)\]"', recipe.partition("touch")[0])
    shown = (ROOT / "README.md").read_text(encoding="utf-8").partition("## On your own photos")[2]
    shown = shown.partition("```\n\n")[0]
    assert "hf:" in shown
    assert {"hf", "parquet"} <= set(extras.split(","))
    lines = [line.partition("#")[0] for line in shown.splitlines()]
    assert not any("--onnx" in line for line in lines) or "onnx" in extras.split(",")


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda p: p.name
)
def test_issue_templates_are_forms(path: Any) -> None:
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.name != "config.yml":
        assert {"name", "description", "body"} <= set(values)
        identities = [part["id"] for part in values["body"] if part["type"] != "markdown"]
        assert len(identities) == len(set(identities)) > 0
