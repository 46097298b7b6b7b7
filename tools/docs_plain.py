"""Docstrings are plain text with formulas in them; Markdown would take w*_D and ℓ_i for emphasis.

A griffe extension (see mkdocs.yml) that escapes stars and underscores where they belong to a formula;
``code`` and *emphasis* stay what they are.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

KEPT = re.compile(r"(`+[^`]*`+|(?<![\w*])\*\w(?:[^*\n]*\w)?\*(?![\w*]))")
IN_COLUMNS = re.compile(r"([a-z_][\w\\]*) {2,}(\S.*)")
IN_FORMULA = re.compile(r"(?<![A-Za-z0-9_])_|_(?![A-Za-z0-9_])|\*")


class PlainText(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = escaped(obj.docstring.value)


def escaped(text: str) -> str:
    lines = [line if ">>>" in line else _escaped(line) for line in text.splitlines()]
    return "\n".join(_listed(lines))


def _listed(lines: list[str]) -> list[str]:
    """``name   what it is``, in columns, as a list: Markdown would run the lines together."""
    result, listing = [], False
    for line in lines:
        entry = IN_COLUMNS.match(line)
        if entry is not None:
            result += [] if listing else [""]
            line = f"- **{entry[1]}**: {entry[2]}"
        listing = entry is not None or (listing and line.startswith("  "))
        result.append(line)
    return result


def _escaped(line: str) -> str:
    pieces = KEPT.split(line)  # every second one is kept as it is
    pieces[::2] = (IN_FORMULA.sub(lambda found: "\\" + found[0], piece) for piece in pieces[::2])
    return "".join(pieces)
