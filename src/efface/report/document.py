"""A document as values: pages of text and small tables that are printed and signed, in any language.

Reports (``html.py``) show numbers to be looked at; a document is read from top to bottom, on paper, too. It
is written here and by no template engine: to load one and to compile its template took longer than all
else that `efface forget` does for the two pages it writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markupsafe import Markup

from efface.report.elements import (
    Cell,
    Digest,
    HowToCheck,
    Moment,
    Table,
    inline,
    paragraphs,
    whole_dates,
)

STYLE = Path(__file__).parent / "templates" / "document.css"


@dataclass(frozen=True)
class Fact:
    """A line of a list: what it is, and what it is here."""

    label: str
    value: str | Digest


@dataclass(frozen=True)
class Part:
    """What stands below one heading; whatever is not given is not there."""

    heading: str
    prose: str = ""
    facts: Sequence[Fact] = ()
    items: Sequence[str] = ()
    table: Table | None = None
    commands: Sequence[HowToCheck] = ()


@dataclass(frozen=True)
class SignatureBlock:
    """What a computer has signed, and lines for a hand."""

    heading: str
    digital: Part
    hand: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Document:
    """One HTML file: no script, no font, no image from anywhere else."""

    language: str
    title: str
    subtitle: str
    parts: Sequence[Part]
    signature: SignatureBlock
    footer: Sequence[str]

    def render(self) -> str:
        parts = [_section(part, i == 0) for i, part in enumerate(self.parts)]
        page = PAGE.format(
            language=self.language,
            title=self.title,
            subtitle=self.subtitle,
            style=_style(),
            parts=_lines(*parts),
            signature=_signature(self.signature),
            footer=_lines(*(Markup("<p>{}</p>").format(line) for line in self.footer)),
        )
        return str(page)


# --- as HTML: Markup.format escapes whatever is not Markup ------------------------------------------

PAGE = Markup("""\
<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · {subtitle}</title>
<style>
{style}</style>
</head>
<body>
<main>
<header>
<h1>{title}</h1>
<p class="subtitle">{subtitle}</p>
</header>
{parts}
{signature}
<footer>
{footer}
</footer>
</main>
</body>
</html>
""")
SECTION = Markup("<section{lead}>\n<h2>{heading}</h2>\n{inside}\n</section>")
SIGNATURES = Markup("""\
<section class="signatures">
<h2>{heading}</h2>
<div>
<h3>{digital}</h3>
{inside}
</div>
<div class="lines">
<h3>{hand}</h3>
{lines}
</div>
</section>""")
NUMBER = Markup(' class="number"')


@cache
def _style() -> Markup:
    return Markup(STYLE.read_text(encoding="utf-8"))


def _lines(*pieces: Markup) -> Markup:
    return Markup("\n").join(pieces)


def _section(part: Part, is_first: bool) -> Markup:
    lead = Markup(' class="lead"' if is_first else "")
    return SECTION.format(lead=lead, heading=part.heading, inside=_inside(part))


def _signature(block: SignatureBlock) -> Markup:
    return SIGNATURES.format(
        heading=block.heading,
        digital=block.digital.heading,
        inside=_inside(block.digital),
        hand=block.hand,
        lines=_lines(*(Markup("<div><span>{}</span></div>").format(line) for line in block.lines)),
    )


def _inside(part: Part) -> Markup:
    return _lines(*(piece for piece in _pieces(part) if piece))


def _pieces(part: Part) -> Iterator[Markup]:
    yield paragraphs(part.prose)
    if part.facts:
        fact = Markup("<div><dt>{}</dt><dd>{}</dd></div>")
        facts = (fact.format(item.label, _value(item.value)) for item in part.facts)
        yield _lines(Markup("<dl>"), *facts, Markup("</dl>"))
    if part.items:
        items = (Markup("<li>{}</li>").format(inline(text)) for text in part.items)
        yield _lines(Markup("<ul>"), *items, Markup("</ul>"))
    if part.table is not None:
        yield _table(part.table)
    if part.commands:
        step = Markup("<li>{}<pre>{}</pre></li>")
        steps = (step.format(inline(check.text), check.command) for check in part.commands)
        yield _lines(Markup("<ol>"), *steps, Markup("</ol>"))


def _table(table: Table) -> Markup:
    head = Markup().join(
        Markup('<th scope="col"{}>{}</th>').format(_kind(table, i), name)
        for i, name in enumerate(table.columns)
    )
    return _lines(
        Markup("<table>\n<thead><tr>{}</tr></thead>\n<tbody>").format(head),
        *(_row(table, row) for row in table.rows),
        Markup("</tbody>\n</table>"),
    )


def _row(table: Table, row: Sequence[Cell]) -> Markup:
    """On a phone a cell stands below the one before, and says what it is; of two, the first says it."""
    cells = []
    for i, cell in enumerate(row):
        named = i < len(row) - 1 or len(row) == 3
        label = Markup(' data-label="{}"').format(table.columns[i]) if named else Markup()
        cells.append(Markup("<td{}{}>{}</td>").format(_kind(table, i), label, _value(cell)))
    return Markup("<tr>{}</tr>").format(Markup().join(cells))


def _kind(table: Table, column: int) -> Markup:
    return NUMBER if column in table.numeric else Markup()


def _value(cell: Cell) -> Markup:
    if isinstance(cell, Moment):
        return Markup('<time datetime="{}">{}</time>').format(cell.iso, cell.text)
    if isinstance(cell, Digest):
        return Markup('<span class="digest">{}</span>').format(cell.text)
    return whole_dates(inline(str(cell)))
