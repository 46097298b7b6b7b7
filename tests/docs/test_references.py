"""Whatever the docs and docstrings point to is there: files, modules, pages, make targets, errata."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from tests.docs.pages import PAGES, blocks, name, prose
from tests.places import ROOT
from tests.test_house import FLOORS

SOURCE = ROOT / "src" / "efface"
FILES = sorted(
    path
    for folder in ("src", "tests", "experiments", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
)
PYTHON_PATH = re.compile(r"(?<![\w./{<-])((?:[\w-]+/)*[\w-]+\.py)\b")
MODULE = re.compile(r"(?<![\w/.-])efface(?:\.\w+)+")
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(#[\w-]+)?\)")
ERRATA = re.compile(r"\berrata\s+(\d+(?:\s*(?:,|–|-|and)\s*\d+)*)", re.IGNORECASE)
TARGET = re.compile(r"(?:^\s*|`|run: )make ([a-z]+)\b", re.MULTILINE)
MADE_BY_TESTS = {"evil_network.py", "draw.py", "step.py", "mynet.py"}  # written, and run, by others


def there(path: str, page: Path) -> bool:
    places = (ROOT, SOURCE, page.parent)
    return path in MADE_BY_TESTS or any((place / path).exists() for place in places)


@pytest.mark.parametrize("page", [*PAGES, *FILES], ids=name)
def test_files_that_are_named_exist(page: Path) -> None:
    """From the checkout's root, from the package's, or beside the page."""
    found = PYTHON_PATH.findall(page.read_text(encoding="utf-8"))
    assert [path for path in found if not there(path, page)] == []


def resolves(dotted: str) -> bool:
    """Whether a dotted name is a module of ours, or something in one."""
    words = dotted.split(".")
    for end in range(len(words), 0, -1):
        try:
            found: object = importlib.import_module(".".join(words[:end]))
        except ImportError:
            continue
        for word in words[end:]:
            if not hasattr(found, word):
                return False
            found = getattr(found, word)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_modules_that_are_named_exist(page: Path) -> None:
    found = MODULE.findall(page.read_text(encoding="utf-8"))
    assert [dotted for dotted in found if not resolves(dotted)] == []


def test_a_name_that_does_not_exist_is_seen() -> None:
    assert resolves("efface.files.locked")
    assert not resolves("efface.files.lokced")
    assert not resolves("efface.cellar.locked")


def anchors(page: Path) -> set[str]:
    """The headings as forges and mkdocs turn them into anchors."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", title).strip().lower() for title in titles)
    return {"#" + re.sub(r"\s", "-", title) for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target, anchor in LINK.findall(prose(page)):
        path = page.parent / target
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target + anchor)
    assert broken == []


def test_every_room_is_on_the_map() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    wanted = [f"`{room}/" if (SOURCE / room).is_dir() else f"`{room}.py`" for room in FLOORS]
    assert [room for room in wanted if room not in text] == []


# --- errata ---------------------------------------------------------------------------------------


def numbers(text: str) -> set[int]:
    """``13``, ``4, 5``, ``9–11``: the entries that are meant."""
    found: set[int] = set()
    for part in re.split(r",|and", text):
        first, *last = (int(number) for number in re.split(r"[–-]", part))
        found.update(range(first, last[0] + 1) if last else [first])
    return found


def test_errata_that_are_referred_to_exist() -> None:
    page = ROOT / "docs/errata.md"
    entries = [int(n) for n in re.findall(r"^### (\d+)\. ", page.read_text("utf-8"), re.MULTILINE)]
    assert entries == list(range(1, len(entries) + 1))
    asked = {
        (name(path), number)
        for path in (*PAGES, *FILES)
        for found in ERRATA.findall(path.read_text(encoding="utf-8"))
        for number in numbers(found)
    }
    assert len(asked) > 20
    assert {where for where in asked if where[1] not in entries} == set()


def test_ranges_of_errata_are_read() -> None:
    assert numbers("9–11") == {9, 10, 11}
    assert numbers("4, 5") == {4, 5}
    assert ERRATA.findall("Errata 15: the envelope; errata 13-15)") == ["15", "13-15"]


# --- make -----------------------------------------------------------------------------------------


def targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z]+):", text, re.MULTILINE))


def test_make_targets_that_are_named_exist() -> None:
    texts = [path.read_text("utf-8") for path in (ROOT / ".github/workflows").glob("*.yml")]
    texts += [(ROOT / file).read_text("utf-8") for file in (".ci/run", ".pre-commit-config.yaml")]
    texts += ["\n".join(block.text for block in blocks(page)) for page in PAGES]
    texts += ["\n".join(re.findall(r"`make [a-z]+", prose(page))) for page in PAGES]
    named = {target for text in texts for target in TARGET.findall(text)}
    assert {"test", "demo", "docs", "lint", "types", "unit"} <= named
    assert named <= targets()


def test_every_make_target_is_phony_and_has_a_help() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.+)$", text, re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == targets()
    assert set(re.findall(r"^([a-z]+):.*## \w", text, re.MULTILINE)) == targets()
