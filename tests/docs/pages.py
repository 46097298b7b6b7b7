"""The pages that people read, cut into what tests look at: code blocks, inline code, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.places import ROOT

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "experiments/*.md", "benchmarks/*.md", ".github/**/*.md")
    for path in ROOT.glob(pattern)
)
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*\Z")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A fenced block; ``not_run`` is the reason given in the comment before it, if there is one."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 2
        reason = NOT_RUN.search(text[: match.start()])
        yield Block(page, line, match[1], match[2], reason[1] if reason else None)


def prose(page: Path) -> str:
    """The page without its blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def inline(page: Path) -> list[str]:
    """What stands in backticks."""
    return [" ".join(code.split()) for code in INLINE.findall(prose(page))]
