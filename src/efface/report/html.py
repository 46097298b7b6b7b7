"""A report as values, and its one HTML file: no script, no font, no image from anywhere else.

>>> report = Report("Forgetting", "digits", cards=[Card("accuracy", "97 %", "359 test images")])
>>> report.render().startswith("<!doctype html>")
True
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from efface.report.elements import Digest, HowToCheck, Table, inline, paragraphs
from efface.version import VERSION

SHORT, MARGIN = 320, 760  # characters of prose: one column; what a margin can hold
BESIDE_COLUMNS, MARGIN_COLUMNS = 5, 7  # of a table that has room beside a drawing, or beside prose
MARGIN_ROWS = 14  # more would leave the margin empty below the prose


@dataclass(frozen=True)
class Card:
    """A key figure: what it is, its value, and a few words of context."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """SVG text with a caption below; ``wide`` has a row for itself.

    Where there was nothing to draw, ``svg`` is empty, and the sentence ``instead`` takes its place.
    """

    svg: str
    caption: str = ""
    wide: bool = False
    instead: str = ""


@dataclass(frozen=True)
class Section:
    """``prose`` is plain text (see ``paragraphs``); ``html`` is put in as it is, so it must be ours."""

    heading: str
    prose: str = ""
    html: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[str | Figure] = ()

    @property
    def drawings(self) -> list[Figure]:
        return [item if isinstance(item, Figure) else Figure(item) for item in self.figures]

    @property
    def is_long(self) -> bool:
        """Whether the prose is worth two columns."""
        return len(self.prose) > SHORT

    @property
    def in_thirds(self) -> bool:
        """Whether three drawings in a row leave none alone, where two would."""
        drawn = [figure for figure in self.drawings if figure.svg and not figure.wide]
        return len(drawn) > 2 and len(drawn) % 2 == 1 and len(drawn) % 3 != 1

    @property
    def layout(self) -> str:
        """How a wide screen is used: one drawing beside the words, a table beside them, or all stacked."""
        drawn = [figure for figure in self.drawings if figure.svg]
        if len(drawn) == len(self.figures) == 1 and not drawn[0].wide:
            narrow = all(len(table.columns) <= BESIDE_COLUMNS for table in self.tables)
            return "beside" if narrow else "stacked"
        few_words = 0 < len(self.prose) <= MARGIN and not self.html
        flat = 0 < sum(len(table.rows) for table in self.tables) <= MARGIN_ROWS
        fits = flat and all(len(table.columns) <= MARGIN_COLUMNS for table in self.tables)
        alone = all(figure.wide for figure in drawn)
        return "margin" if few_words and fits and alone else "stacked"


def duration(seconds: float) -> str:
    """As people say it: 124 ms, 24.6 s, 3 min."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


@dataclass(frozen=True)
class Report:
    """All that the page shows. ``subject`` says what it is about: which model, which data.

    ``digests`` names what the numbers were computed from.
    """

    title: str
    subtitle: str = ""
    cards: Sequence[Card] = ()
    sections: Sequence[Section] = ()
    checks: Sequence[HowToCheck] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    made: datetime | None = None
    subject: str = ""

    def render(self) -> str:
        """The page. ``made`` is the time it names; None leaves the time out."""
        made = "" if self.made is None else self.made.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
        return template("report.html.j2").render(report=self, version=VERSION, made=made)

    def write(self, path: Path | str) -> Path:
        """Write beside, then rename: a page that is open elsewhere is never half a page."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(self.render(), encoding="utf-8")
        os.replace(temporary, path)
        return path


def tiles(count: int, most: int) -> int:
    """How many tiles stand in a row, so that rows are even and none of them holds only one.

    >>> tuple(tiles(n, 6) for n in (1, 5, 6, 7, 8, 13))
    (1, 5, 6, 4, 4, 5)
    """
    for num_rows in range(max(1, -(-count // most)), count + 1):
        in_a_row = -(-count // num_rows)
        if count % in_a_row != 1 or in_a_row == 1:
            return in_a_row
    return 1


def template(name: str) -> Template:
    return _environment().get_template(name)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("efface.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["paragraphs"] = paragraphs
    environment.filters["inline"] = inline
    environment.filters["trusted"] = Markup
    environment.filters["tiles"] = tiles
    environment.tests["digest"] = lambda value: isinstance(value, Digest)
    return environment
