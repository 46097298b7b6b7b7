"""What a receipt does not cover, in the words of a language.

A receipt has these sentences in English, as its certificate was written (``guarantee/certificates.py``,
``workspace/signing.py``). Each is recognised, numbers in it included, and said in the page's own words. One
that is not known, of another version, stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from efface.guarantee import certificates
from efface.report.language import Words
from efface.workspace import signing

EXAMPLE = 70_007  # stands for any number


@cache
def patterns() -> dict[str, re.Pattern[str]]:
    """By their keys in the language files."""
    return {key: _pattern(text) for key, text in _known()}


def _known() -> Iterator[tuple[str, str]]:
    earlier, difference, chosen, core = certificates.NOT_COVERED
    copies, every, clock = signing.NOT_COVERED
    yield from (("earlier", earlier), ("difference", difference), ("chosen", chosen))
    yield from (("core", core), ("copies", copies), ("all", every), ("clock", clock))
    yield from (("rounding", certificates.ROUNDING), ("further", certificates.FURTHER))
    yield "partners", certificates.PARTNERS
    yield "in_core", certificates.in_core(EXAMPLE)[0]
    yield "alone", certificates.together(1)[0]
    yield "people", certificates.together(EXAMPLE)[0]


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(str(EXAMPLE), r"(?P<number>\d+)"))


def limit(text: str, words: Words) -> str:
    """One sentence of a receipt, in the language of the page."""
    for key, pattern in patterns().items():
        found = pattern.fullmatch(text)
        if found is not None:
            return words(f"limits.{key}", **found.groupdict())
    return text
