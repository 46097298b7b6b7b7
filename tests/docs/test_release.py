"""What a package index would show: an address, and a README whose links lead somewhere."""

from __future__ import annotations

import fnmatch
import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from tests.places import ROOT

ADDRESS = "https://forge.example/team/efface"
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_link_of_the_published_readme_is_absolute_and_leads_to_a_file(
    tool: ModuleType,
) -> None:
    text = tool.linked(README, ADDRESS, "1.2")
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    assert [t for t in targets if not t.startswith(("https://", "#"))] == []
    ours = [t for t in targets if t.startswith(ADDRESS)]
    assert len(ours) > 30
    for target in ours:
        kind, tag, path = target.removeprefix(f"{ADDRESS}/").split("/", 2)
        assert (kind in ("blob", "raw"), tag) == (True, "v1.2")
        assert (ROOT / path.partition("#")[0]).exists(), target


def test_links_that_are_absolute_already_stay_as_they_are(tool: ModuleType) -> None:
    text = "[a](https://x.example/y) [b](#here) ![c](docs/c.png) [d](docs/d.md#e)"
    assert tool.linked(text, ADDRESS, "3") == (
        f"[a](https://x.example/y) [b](#here) ![c]({ADDRESS}/raw/v3/docs/c.png) "
        f"[d]({ADDRESS}/blob/v3/docs/d.md#e)"
    )


def test_the_metadata_has_the_address(tool: ModuleType) -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(tool.with_urls(text, ADDRESS))["project"]
    assert {"Homepage", "Source", "Documentation", "Changelog", "Issues"} == set(project["urls"])
    assert all(url.startswith(ADDRESS) for url in project["urls"].values())
    assert project["scripts"] == {"efface": "efface.cli:main"}


def test_everything_in_the_package_that_is_no_code_is_in_the_wheel() -> None:
    """By the patterns that setuptools is given; a new kind of file has to be added to them."""
    package = ROOT / "src" / "efface"
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    patterns = tools["setuptools"]["package-data"]["efface"]
    files = [p.relative_to(package).as_posix() for p in package.rglob("*") if p.is_file()]
    others = [f for f in files if Path(f).suffix not in (".py", ".pyc")]
    assert len(others) > 10
    left = [f for f in others if not any(fnmatch.fnmatchcase(f, p) for p in patterns)]
    assert left == []


def test_every_folder_of_code_is_a_package() -> None:
    """setuptools finds packages by their __init__.py: a folder without one would be left out."""
    package = ROOT / "src" / "efface"
    folders = {path.parent for path in package.rglob("*.py")}
    assert [str(f) for f in folders if not (f / "__init__.py").is_file()] == []
