"""What a person is told about records that were read: every door says the same, none of them keeps silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from efface.data.records import Records

Note = Callable[[str], None]  # is given a sentence at a time

MOST = 5  # notes; of more only the number


def unheard(sentence: str) -> None:
    """For whoever has nobody to tell."""


def remarks_on(records: Records) -> Iterator[str]:
    """Files set aside, columns that mean nothing, owners that look alike, images that occur twice."""
    if records.skipped:
        first = records.skipped[0]
        yield f"{len(records.skipped)} files set aside, the first {first.id!r}: {first.reason}"
    yield from records.notes[:MOST]
    if len(records.notes) > MOST:
        yield f"and {len(records.notes) - MOST} more notes like these"


def tell(records: Records, note: Note) -> Records:
    """The same records, after ``note`` was given what there is to say about them."""
    for sentence in remarks_on(records):
        note(sentence)
    return records
