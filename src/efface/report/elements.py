"""What reports and documents are made of: cells, tables, commands, and plain text as HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

LONG_NAME = 14  # characters of a row's name: more are given some more of a phone's width


@dataclass(frozen=True)
class Digest:
    """A table cell in monospace that may break anywhere: a SHA-256, an id, a path."""

    text: str


@dataclass(frozen=True)
class Moment:
    """A table cell with a time, which is not broken."""

    text: str
    iso: str


Cell = str | int | float | Digest | Moment


@dataclass(frozen=True)
class Table:
    """``numeric`` are the positions of columns that are aligned to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    numeric: Sequence[int] = ()

    @property
    def has_words(self) -> bool:
        """Whether a column after the first is text: on a phone its rows become lists."""
        return any(i not in self.numeric for i in range(1, len(self.columns)))

    @property
    def has_long_names(self) -> bool:
        """Whether its first column would be one of a word a line, where there is little room."""
        return any(isinstance(row[0], str) and len(row[0]) > LONG_NAME for row in self.rows)


@dataclass(frozen=True)
class HowToCheck:
    """One way for the reader to check the report: what to look for, and the command that shows it."""

    text: str
    command: str = ""


def paragraphs(text: str) -> Markup:
    """Plain text to HTML: blank lines part paragraphs, `code` and **bold** are what they look like."""
    parts = [part.strip() for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]
    return Markup("\n").join(Markup("<p>{}</p>").format(inline(part)) for part in parts)


def inline(text: str) -> Markup:
    safe = str(escape(text))
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    return Markup(re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", safe))


def whole_dates(text: Markup) -> Markup:
    """A date, and the time after it, on one line."""
    dated = r"\b\d{4}-\d\d-\d\d( \d\d:\d\d)?\b"
    return Markup(re.sub(dated, r'<span class="day">\g<0></span>', str(text)))
