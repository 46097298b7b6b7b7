"""A report as values, and its one HTML file: no script, no font, no image from anywhere else.

>>> report = Report("Forgetting", "digits", cards=[Card("accuracy", "97 %", "359 test images")])
>>> report.render().startswith("<!doctype html>")
True
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from efface.version import VERSION


@dataclass(frozen=True)
class Card:
    """A key figure: what it is, its value, and a few words of context."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Digest:
    """A table cell in monospace that may break anywhere: a SHA-256, an id, a path."""

    text: str


@dataclass(frozen=True)
class Moment:
    """A table cell with a time, which is not broken."""

    text: str
    iso: str


@dataclass(frozen=True)
class Table:
    """``numeric`` are the positions of columns that are aligned to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | int | float | Digest | Moment]]
    caption: str = ""
    numeric: Sequence[int] = ()


@dataclass(frozen=True)
class Figure:
    """SVG text with a caption below."""

    svg: str
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """``prose`` is plain text (see ``paragraphs``); ``html`` is put in as it is, so it must be ours."""

    heading: str
    prose: str = ""
    html: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[str | Figure] = ()


@dataclass(frozen=True)
class HowToCheck:
    """One way for the reader to check the report: what to look for, and the command that shows it."""

    text: str
    command: str = ""


@dataclass(frozen=True)
class Report:
    """All that the page shows. ``digests`` names what the numbers were computed from."""

    title: str
    subtitle: str = ""
    cards: Sequence[Card] = ()
    sections: Sequence[Section] = ()
    checks: Sequence[HowToCheck] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    made: datetime | None = None

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


def paragraphs(text: str) -> Markup:
    """Plain text to HTML: blank lines part paragraphs, `code` and **bold** are what they look like."""
    parts = [part.strip() for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]
    return Markup("\n").join(Markup("<p>{}</p>").format(_inline(part)) for part in parts)


def _inline(text: str) -> Markup:
    safe = str(escape(text))
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    return Markup(re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", safe))


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
    environment.filters["inline"] = _inline
    environment.filters["trusted"] = Markup
    environment.tests["digest"] = lambda value: isinstance(value, Digest)
    environment.tests["moment"] = lambda value: isinstance(value, Moment)
    environment.tests["figure"] = lambda value: isinstance(value, Figure)
    return environment
