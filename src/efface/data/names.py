"""Names of people: one spelling each, and a word where two look alike.

"José" can be typed as four characters or as five, and "anna " has a blank that nobody sees. Such names are
made one by :func:`tidy`. Names that are different but look alike (Anna, anna) stay different, and are pointed
out: a request for one of them does not reach the other.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable

FORMAT = ("Cf", "Cc", "Mn")  # invisible characters and accents


def tidy(name: str) -> str:
    """Composed characters (NFC), no blanks around it."""
    return unicodedata.normalize("NFC", name).strip()


def likeness(name: str) -> str:
    """The same for names that look alike: case, accents, blanks and invisible characters do not count."""
    plain = unicodedata.normalize("NFKD", name.casefold())
    return "".join(c for c in plain if unicodedata.category(c) not in FORMAT and not c.isspace())


def alike(names: Iterable[str]) -> list[list[str]]:
    """Groups of different names that look alike."""
    groups: dict[str, set[str]] = defaultdict(set)
    for name in names:
        groups[likeness(name)].add(name)
    return sorted(sorted(group) for group in groups.values() if len(group) > 1)


def remarks(owners: Iterable[str]) -> list[str]:
    """What to say about these owners when a model is trained."""
    return [
        f"these owners look alike, and are different people here: {', '.join(map(repr, group))}"
        for group in alike(owners)
    ]
