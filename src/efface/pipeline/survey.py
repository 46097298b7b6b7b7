"""A survey of data before anything is trained: who is in it, what of, and what looks like a mistake.

Nothing is changed and nothing is kept. ``survey`` reads every image once, so that damaged files and copies
are found before they are in a model.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from efface.data import names
from efface.data.images import decode, num_channels
from efface.data.looks import look_of, near_pairs
from efface.data.opening import find
from efface.data.promises import is_core_owner
from efface.data.record import Record, Skipped, Split
from efface.data.records import Records
from efface.progress import Progress

NEAR_COPY = (
    4  # bits of 64 in which two looks differ at most; a request's list is wider (looks.NEAR)
)
MOST_COMPARED = 30_000  # images; above, only equal ones are looked for
LARGE_SHARE = 0.5  # of all images: one person has so many only if the column is not what it seems


@dataclass(frozen=True)
class Pair:
    """Two records of different people that show the same, or nearly."""

    first: str
    second: str
    owners: tuple[str, str]


@dataclass(frozen=True)
class Survey:
    """What was found. ``people`` counts owners of user records; ``ownerless`` images that are their own."""

    spec: str
    splits: dict[str, int]
    classes: dict[str, int]  # name -> images to learn from
    lonely: tuple[str, ...]  # classes whose images are all of one person
    people: int
    ownerless: int
    most_images: tuple[str, int] | None  # who has the most, and how many
    suspicious: tuple[str, ...]
    equal: tuple[Pair, ...]
    near: tuple[Pair, ...]
    near_compared: bool
    damaged: tuple[Skipped, ...]  # images that cannot be read
    set_aside: tuple[Skipped, ...]  # what is no image, or not where images belong
    mixed_channels: bool
    notes: tuple[str, ...]
    owners: tuple[str, ...]  # of user records, each once

    def core_people(self, fraction: float, seed: int = 0) -> int:
        """How many of the people would be core, and so never forgotten, at this fraction."""
        return sum(is_core_owner(owner, fraction, seed) for owner in self.owners)


def survey(spec: str, *, absolute_paths: bool = False, progress: Progress | None = None) -> Survey:
    """Reads the data that ``spec`` names, every image of it."""
    listed = find(spec, absolute_paths=absolute_paths)
    records = Records.assembled(listed, channels="rgb", skip_bad=True)
    looks, channels = _look(records, progress)
    user = records.user
    owned = [r.owner for r in user if r.owner != r.id]
    counts = Counter(owned).most_common(1)
    compared = len(records) <= MOST_COMPARED
    return Survey(
        spec=spec,
        splits={str(s): sum(r.split is s for r in records) for s in Split},
        classes=_classes(records),
        lonely=tuple(_lonely(user)),
        people=len(set(user.owners)),
        ownerless=len(user) - len(owned),
        most_images=counts[0] if counts else None,
        suspicious=tuple(_suspicious(owned, len(user))),
        equal=tuple(_equal(user)),
        near=tuple(_near(records, looks)) if compared else (),
        near_compared=compared,
        damaged=records.skipped[len(listed.skipped) :],
        set_aside=tuple(listed.skipped),
        mixed_channels=len(channels) > 1,
        notes=tuple(n for n in records.notes if "look alike" not in n and "same image" not in n),
        owners=tuple(sorted(set(user.owners))),
    )


def _look(records: Records, progress: Progress | None) -> tuple[list[str], set[int]]:
    """The look of each image, and how many channels they have."""
    looks, channels = [], set()
    for i, record in enumerate(records):
        content = record.source.content()
        channels.add(num_channels(content))
        looks.append(look_of(decode(content)))
        if progress is not None:
            progress((i + 1) / len(records), f"{i + 1}/{len(records)} images")
    return looks, channels


def _classes(records: Records) -> dict[str, int]:
    counts = Counter(r.label for r in records if r.split is not Split.TEST)
    return {name: counts[name] for name in records.classes}


def _lonely(records: Records) -> list[str]:
    owners: dict[str, set[str]] = defaultdict(set)
    for record in records:
        owners[record.label].add(record.owner)
    return [name for name in records.classes if len(owners[name]) == 1]


def _suspicious(owners: Sequence[str], images: int) -> Iterator[str]:
    """Sentences about owners that are perhaps not what they seem."""
    for group in names.alike(owners):
        yield f"{_listed(group)} look alike, and are different people here"
    for pair in names.slips(owners):
        yield f"{_listed(pair)} differ by one letter: one person, or two?"
    for name in names.placeholders(owners):
        yield f"{name!r} is nobody in particular: its images can only be forgotten together"
    for name, count in Counter(owners).most_common(1):
        if count > LARGE_SHARE * images and len(set(owners)) > 1:
            yield f"{name!r} has {count:,} of {images:,} images"


def _listed(found: Sequence[str]) -> str:
    return " and ".join(map(repr, found))


def _equal(records: Records) -> Iterator[Pair]:
    """Records with the content of an earlier one of somebody else's."""
    first: dict[str, Record] = {}
    for record in records:
        before = first.setdefault(record.digest, record)
        if before.owner != record.owner:
            yield _pair(before, record)


def _near(records: Records, looks: Sequence[str]) -> Iterator[Pair]:
    for i, j in near_pairs(looks, NEAR_COPY):
        a, b = records[i], records[j]
        if a.split is b.split is Split.USER and a.owner != b.owner and a.digest != b.digest:
            yield _pair(a, b)


def _pair(a: Record, b: Record) -> Pair:
    return Pair(a.id, b.id, (a.owner, b.owner))
