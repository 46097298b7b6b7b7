"""The site's tables on a phone (tools/docs_tables.py)."""

from __future__ import annotations

from types import ModuleType

import pytest
from tests.places import script

SENTENCE = "what went wrong with <code>make demo</code>, told in a sentence of many words"


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    return script("tools/docs_tables.py")


def test_cells_with_sentences_keep_their_width(tables: ModuleType) -> None:
    row = f'<tr><td>0.5 s</td><td style="text-align: right;">{SENTENCE}</td></tr>'
    made = tables.readable(row)
    assert made.startswith(tables.STYLE)
    assert f'<td style="text-align: right;" class="sentence">{SENTENCE}</td>' in made
    assert "<td>0.5 s</td>" in made


def test_links_do_not_make_a_cell_long_and_other_pages_stay(tables: ModuleType) -> None:
    plain = f'<td><a href="{"x" * 99}">here</a></td><td class="code">{SENTENCE}</td>'
    assert tables.readable(plain) == plain
