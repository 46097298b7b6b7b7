"""Tables of the site on a phone: cells with sentences keep a width at which they can be read.

The theme lets a table scroll sideways, but first squeezes its columns to a word each. Which cells hold
sentences is known when the page is made, so they are marked here, and the rule travels with the page.
"""

from __future__ import annotations

import re

CELL = re.compile(r"<td([^>]*)>(.*?)</td>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")
LONG = 50  # letters of a cell that holds a sentence
STYLE = (
    "<style>@media (max-width: 44.9em) { .md-typeset td.sentence { min-width: 11rem } }</style>\n"
)


def readable(content: str) -> str:
    """The page with such cells marked, and the rule in front where there are any."""
    marked = CELL.sub(_marked, content)
    return content if marked == content else STYLE + marked


def _marked(cell: re.Match[str]) -> str:
    if len(TAG.sub("", cell[2])) < LONG or "class=" in cell[1]:
        return cell[0]
    return f'<td{cell[1]} class="sentence">{cell[2]}</td>'
