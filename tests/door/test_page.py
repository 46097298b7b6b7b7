"""The snippets of docs/python.md and the README's first one run, in order, on small data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.docs.surroundings import photos_and_network
from tests.places import ROOT


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the page speaks of: a network in ./resnet-50, photos, and whose they are."""
    monkeypatch.chdir(tmp_path)
    return photos_and_network()


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def test_the_page(names: dict[str, Any]) -> None:
    for block in blocks("docs/python.md"):
        exec(compile(block, "docs/python.md", "exec"), names)
    clf, owners = names["clf"], names["owners"]
    assert clf.verify(retrain=True, images=names["images"])["ok"]
    assert clf.scan(names["images"][owners == "u05"], owner="u05")["clean"]


def test_the_first_snippet_of_the_readme(names: dict[str, Any]) -> None:
    block = blocks("README.md")[0]
    exec(compile(block, "README.md", "exec"), names)
    assert names["receipt"].num_forgotten == 2
    assert "u17" not in names["clf"].records_.owners
