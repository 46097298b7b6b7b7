"""The gallery lists what is there, and what is there is small, offline and of no machine in particular."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from PIL import Image
from tests.places import ROOT

FOLDER = ROOT / "docs/gallery"
PAGES = sorted(FOLDER.glob("*.html"))
MOST = 300_000  # bytes a file


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    sys.path.insert(0, str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "tools/gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gallery"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    sys.path.remove(str(ROOT / "tools"))
    return module


def test_the_page_lists_what_is_there(gallery: ModuleType) -> None:
    text = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    assert gallery.written(text) == text
    linked = set(re.findall(r"\]\(gallery/([\w.-]+)\)", text))
    assert linked == {path.name for path in FOLDER.iterdir()}
    assert {shown.name for shown in gallery.SHOWN} == {path.stem for path in PAGES}
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    assert "gallery.md" in str(nav["nav"])


def test_the_commands_are_of_efface_and_write_the_page(gallery: ModuleType) -> None:
    for shown in gallery.SHOWN:
        words = [shlex.split(command) for command in shown.commands]
        assert all(first == "efface" for first, *_ in words)
        last = words[-1]
        out = last[last.index("--out") + 1] if "--out" in last else shown.made
        assert shown.made.startswith(out)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_is_small_offline_and_of_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < MOST
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", text)
    assert "<script" not in text
    with Image.open(path.with_suffix(".webp")) as picture:
        assert picture.width > 900
    assert path.with_suffix(".webp").stat().st_size < MOST
