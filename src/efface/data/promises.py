"""What a set of records promises, and what is worth a remark about it.

Ids are unique, every label is one of the classes, and no image is in core and user data at once.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from efface.data.record import Record, Split
from efface.errors import EffaceError, RecordError, RequestError

CONVERT = 'read with --channels rgb or gray (in Python: channels="rgb").'


class Named(Protocol):
    """What is known of a record before its image has been looked at."""

    @property
    def id(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def split(self) -> Split: ...


def class_list(records: Sequence[Record], given: Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return tuple(sorted({record.label for record in records}))
    for name, times in Counter(given).items():
        if times > 1:
            raise EffaceError(f"class {name!r} is listed {times} times.", "list each class once.")
    return tuple(given)


def check_ids(records: Sequence[Named]) -> None:
    if len({record.id for record in records}) == len(records):
        return
    for record_id, times in Counter(record.id for record in records).items():
        if times > 1:
            fix = "give every record an id of its own."
            raise RecordError(record_id, f"{times} records have this id.", fix)


def check_labels(records: Sequence[Named], classes: Sequence[str]) -> None:
    known = set(classes)
    if {record.label for record in records} <= known:
        return
    for record in records:
        if record.label not in known:
            message = f"label {record.label!r} is not one of the classes ({few(classes)})."
            raise RecordError(
                record.id, message, "correct the label, or list it among the classes."
            )


def check_core_and_user_are_disjoint(records: Sequence[Record]) -> None:
    core = {record.digest: record for record in records if record.split is Split.CORE}
    for record in records if core else ():
        if record.split is Split.USER and record.digest in core:
            raise is_core_image(record, core[record.digest].id)


def is_core_image(record: Record, core_id: str) -> RecordError:
    """The refusal of a user record whose image is core data, too."""
    message = f"the same image is core data, as {core_id!r}."
    fix = "core data cannot be forgotten: take the image out of one of the two."
    return RecordError(record.id, message, fix)


def check_known(attribute: str, wanted: set[str], known: set[str]) -> None:
    missing = sorted(wanted - known)
    if missing:
        noun = "class" if attribute == "label" else attribute
        fix = "check the spelling and the split you select from."
        raise RequestError(f"no record here has {noun} {few(missing)}.", fix)


def notes_on_copies(records: Sequence[Record]) -> Iterator[str]:
    copies: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        copies[record.digest].append(record)
    for group in copies.values():
        shown = few([record.id for record in group])
        if 0 < sum(record.split is Split.TEST for record in group) < len(group):
            yield f"the same image is in training and test data: {shown}"
        user = [record for record in group if record.split is Split.USER]
        for attribute in ("label", "owner"):
            if len({getattr(record, attribute) for record in user}) > 1:
                shown = few([record.id for record in user])
                yield (
                    f"the same image is in user data under more than one {attribute}, "
                    f"forgetting one keeps the others: {shown}"
                )


def notes_on_owners(records: Sequence[Record]) -> Iterator[str]:
    core = {record.owner for record in records if record.split is Split.CORE}
    both = sorted({r.owner for r in records if r.split is Split.USER and r.owner in core})
    if both:
        yield (
            f"{len(both)} owners have core and user records, and core is never forgotten: {few(both)}"
        )


def is_core_owner(owner: str, fraction: float, seed: int = 0) -> bool:
    """SHA-256(seed/owner) < fraction · 2²⁵⁶ (of the first 53 bits): a draw by the name alone."""
    digest = hashlib.sha256(f"{seed}/{owner}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) < fraction * 2.0**53


def drawn_split(record: Named, fraction: float | None, seed: int = 0) -> Split:
    """The split of a record once owners are drawn for core; without a ``fraction`` its own."""
    drawn = fraction is not None and is_core_owner(record.owner, fraction, seed)
    return Split.CORE if drawn and record.split is Split.USER else record.split


def positions_of(index: Sequence[Any] | np.ndarray, length: int) -> list[int]:
    """Positions, from such or from a mask."""
    array = np.asarray(index)
    if array.dtype == bool:
        if len(array) != length:
            raise IndexError(f"a mask of {len(array)} for {length} records")
        array = np.flatnonzero(array)
    elif array.size and not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"records are indexed by integers or a mask, not by {array.dtype}")
    elif array.size and not -length <= array.min() <= array.max() < length:
        raise IndexError(f"positions {array.min()} to {array.max()} of {length} records")
    positions: list[int] = (array % max(length, 1)).tolist()
    return positions


def as_set(given: str | Iterable[str]) -> set[str]:
    return {given} if isinstance(given, str) else set(given)


def few(names: Sequence[str], limit: int = 5) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(repr(name) for name in names[:limit]) + rest
