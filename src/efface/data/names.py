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
PLACEHOLDERS = frozenset(
    {"", "-", "?", "0", "anonymous", "default", "na", "n/a", "nan", "nobody", "none", "null"}
    | {"other", "owner", "unknown", "user", "various"}
)


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


def newcomers(new: Iterable[str], there: Iterable[str]) -> list[str]:
    """What to say when ``new`` owners join those who are ``there``, and look like one of them."""
    known = set(there)
    strange = set(new) - known
    meet = [group for group in alike(known | strange) if {*group} & strange and {*group} & known]
    return [
        f"the new owner {name!r} looks like {', '.join(map(repr, sorted({*group} & known)))}, and is "
        "another person here"
        for group in meet
        for name in sorted({*group} & strange)
    ]


def placeholders(names: Iterable[str]) -> list[str]:
    """Names that stand for nobody in particular: a request for one of them is a request for many people."""
    return sorted(name for name in set(names) if likeness(name) in PLACEHOLDERS)


def slips(names: Iterable[str]) -> list[list[str]]:
    """Pairs of names of at least five letters that one slip of the hand tells apart; none with digits.

    Names with digits (u17, u18) differ by one sign on purpose.
    """
    words = sorted({n for n in names if len(n) >= 5 and not any(c.isdigit() for c in n)})
    found: dict[str, list[str]] = defaultdict(list)
    for word in words:
        for shorter in {likeness(word), *_one_letter_less(likeness(word))}:
            found[shorter].append(word)
    pairs = {(a, b) for near in found.values() for a in near for b in near if a < b}
    return [[a, b] for a, b in sorted(pairs) if is_one_slip(likeness(a), likeness(b))]


def _one_letter_less(word: str) -> Iterable[str]:
    return (word[:i] + word[i + 1 :] for i in range(len(word)))


def is_one_slip(a: str, b: str) -> bool:
    """Whether one letter more, fewer or other, or two neighbours exchanged, make ``a`` of ``b``.

    >>> tuple(is_one_slip(word, "owner") for word in ("ownr", "onwer", "owned", "order", "owner"))
    (True, True, True, False, False)
    """
    if len(a) > len(b):
        a, b = b, a
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    rest, other = a[start:], b[start:]
    if len(a) < len(b):
        return rest == other[1:]
    exchanged = rest[:2] == other[:2][::-1] and rest[2:] == other[2:]
    return a != b and (rest[1:] == other[1:] or exchanged)
