"""Examples are run: every Python block of the docs, page by page, and the doctests of the package."""

from __future__ import annotations

import doctest
import importlib
import shutil
from pathlib import Path

import pytest
from tests.docs.pages import PAGES, Block, blocks, name
from tests.docs.surroundings import photos_and_network
from tests.places import ROOT

DOOR = "tests/door/test_page.py"  # runs these with images at hand and a small network for the large one


FOLLOWED = {"docs/tutorial.md"}  # with its command lines, by tests/docs/test_tutorial.py


def is_the_doors(block: Block) -> bool:
    """Those that speak of images which the page does not make; docs/networks.md makes its own texts."""
    page = name(block.page)
    return page == "docs/python.md" or (
        "ForgettingClassifier" in block.text and page != "docs/networks.md"
    )


PYTHON = {
    page: [b for b in blocks(page) if b.language == "python" and not is_the_doors(b)]
    for page in PAGES
    if name(page) not in FOLLOWED
}
NOT_RUN = {  # page and reason: entered here, too, so that nobody turns an example off in passing
    ("docs/audit.md", "my_step is yours to write"),
    ("docs/networks.md", "wordllama is installed nowhere else"),  # tests/door/test_wordllama.py
}
SOURCE = ROOT / "src"
WITH_DOCTESTS = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


def run(block: Block, names: dict[str, object]) -> None:
    """Execute a block so that a traceback shows the page's line."""
    code = "\n" * (block.line - 1) + block.text
    exec(compile(code, name(block.page), "exec"), names)


@pytest.mark.parametrize("page", [page for page, found in PYTHON.items() if found], ids=name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, with what the blocks before have defined, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example"}
    if name(page) in ("README.md", "docs/python.md"):
        names |= photos_and_network()
    for block in PYTHON[page]:
        if block.not_run is None:
            run(block, names)
    shutil.rmtree(tmp_path)  # models take room


def test_what_the_door_shows_is_run_there() -> None:
    shown = {
        name(b.page)
        for page in PAGES
        for b in blocks(page)
        if b.language == "python" and is_the_doors(b)
    }
    text = (ROOT / DOOR).read_text(encoding="utf-8")
    assert shown == {"README.md", "docs/python.md"}
    assert all(page in text for page in shown)


def test_blocks_that_are_not_run_are_known() -> None:
    skipped = {(name(b.page), b.not_run) for found in PYTHON.values() for b in found if b.not_run}
    assert skipped == NOT_RUN


def test_a_block_that_fails_is_seen() -> None:
    block = Block(ROOT / "README.md", 7, "python", "x = 1\nassert x == 2\n", None)
    with pytest.raises(AssertionError) as problem:
        run(block, {})
    assert problem.traceback[-1].lineno == 7  # counted from 0: line 8 of the page


def test_there_are_doctests() -> None:
    assert "efface" in WITH_DOCTESTS
    assert len(WITH_DOCTESTS) > 2


@pytest.mark.parametrize("module", WITH_DOCTESTS)
def test_doctests(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0
