"""Columns: what they are called in every kind of list, and what a misspelt one was meant to be.

A list has ``file_name`` (or images of its own) and ``label``; it may have ``owner``, ``cohort``, ``split``
and ``id``. A column of another name is kept with the records, and pointed out. One that *looks like* a column
that is missing is refused: a column ``ownr`` that was passed over would make every image its own owner, and a
request for a person would then reach one of their images only.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from efface.data.names import is_one_slip, tidy
from efface.errors import FormatError

KNOWN_COLUMNS = frozenset({"id", "label", "owner", "cohort", "split"})
SYNONYMS = {
    **dict.fromkeys(("user", "person", "people", "uploader", "photographer", "author"), "owner"),
    **dict.fromkeys(("userid", "personid", "ownerid", "username", "ownername"), "owner"),
    **dict.fromkeys(("subject", "subjectid", "customer", "customerid", "account"), "owner"),
    **dict.fromkeys(("class", "category", "target", "classname", "labelname"), "label"),
    **dict.fromkeys(("file", "path", "filepath", "imagepath", "image", "img"), "file_name"),
    **dict.fromkeys(("subset", "partition"), "split"),
}
SHORTEST = 4  # letters: below, one letter more or less is another word (id, idx)


def meant(name: str, known: Iterable[str]) -> str | None:
    """The column that ``name`` surely means: other case or number, one slip of the hand, or a synonym."""
    plain, wanted = _plain(name), {_plain(column): column for column in known}
    for form in (plain, plain.removesuffix("s"), f"{plain}s", f"{plain}es"):
        found = wanted.get(form) or wanted.get(_plain(SYNONYMS.get(form, "")))
        if found:
            return found
    long = [word for word in wanted if min(len(word), len(plain)) >= SHORTEST]
    return next((wanted[word] for word in long if is_one_slip(plain, word)), None)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The column that ``name`` perhaps means."""
    known = list(known)
    close = difflib.get_close_matches(tidy(name).lower(), known, n=1)
    return meant(name, known) or (close[0] if close else None)


def hint(name: str, known: Iterable[str]) -> str:
    """For the end of a sentence about ``name``; empty if nothing is near."""
    close = nearest(name, known)
    return "" if close is None else f" (did you mean {close!r}?)"


def missing_column(where: str, wanted: str, present: Iterable[str]) -> FormatError:
    """The error for a list without a column that it needs; names the one that was probably meant."""
    present = list(present)
    slips = [name for name in present if meant(name, [wanted])]
    fix = f"rename {slips[0]!r} to {wanted!r}." if slips else f"call one of them {wanted!r}."
    columns = ", ".join(present) or "none"
    return FormatError(f"{where} has no column {wanted!r}, it has {columns}.", fix)


def check_names(names: Iterable[str], used: Iterable[str], where: str = "") -> None:
    """Refuses a name that surely means a known column which is not there; ``used`` are those that are,
    ``where`` is the file they are in."""
    absent = sorted(KNOWN_COLUMNS - set(used))
    for name in sorted(names):
        column = meant(name, absent)
        if column is not None:
            fix = (
                f"rename it to {column!r}; if it means something else, add a column {column!r} "
                "or take this one out."
            )
            place = f"{where}: " if where else ""
            message = f"{place}the column {name!r} looks like {column!r}, which is missing."
            raise FormatError(message, fix)


def remarks(names: Iterable[str]) -> Iterator[str]:
    """What to say about columns that mean nothing here."""
    for name in sorted(names):
        text = f"the column {name!r} means nothing to efface{hint(name, KNOWN_COLUMNS)}"
        yield f"{text}; it is kept with the records"


def _plain(name: str) -> str:
    return "".join(c for c in tidy(name).casefold() if c.isalnum())
