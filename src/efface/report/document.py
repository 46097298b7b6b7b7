"""A document as values: pages of text and small tables that are printed and signed, in any language.

Reports (``html.py``) show numbers to be looked at; a document is read from top to bottom, on paper, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from efface.report.html import Digest, HowToCheck, Table, template


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
        return template("document.html.j2").render(document=self)
