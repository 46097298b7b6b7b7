"""From what a reader found to records: one rule for damaged images, labels, channels and classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path

from efface.data import columns, names
from efface.data.found import Found, ReadOptions, Row
from efface.data.images import (
    ArrayImage,
    BytesImage,
    Channels,
    FileImage,
    decode,
    digest_of,
    is_whole,
    naming,
    num_channels,
)
from efface.data.promises import CONVERT, Named, few
from efface.data.readers.folder import id_below
from efface.data.record import Record, Skipped, Split
from efface.errors import EffaceError, FormatError, RecordError

READERS = 4  # images that are fetched at once
WINDOW = 256  # and how many are asked for before the first is needed
NO_IMAGE = (
    "give images, (n, height, width) or (n, height, width, channels); one image as images[None]. "
    "For a network of token ids, in Python: preprocess=efface.Tokens(…)."
)


@dataclass(frozen=True)
class Assembled:
    """Checked records, and what ``Records`` is made of beside them."""

    records: Sequence[Record]
    classes: Sequence[str]
    skipped: Sequence[Skipped]
    remarks: Sequence[str]
    listed: bool


def assemble(found: Found, options: ReadOptions) -> Assembled:
    """Checks the rows and makes them records.

    classes        the class list, in the order of the model's outputs; a label outside it is an
                   error. None: the data's own list, else the sorted labels (``Records.listed`` is
                   False then: see ``class_list``).
    core_fraction  see ``Records.with_core_fraction``, as is ``seed``.
    channels       "gray" or "rgb" converts at decoding; None demands that all records agree.
    skip_bad       decodes every image now and sets bad ones aside in ``.skipped``. Otherwise missing,
                   unrecognisable and cut-off files are an error now, which names them; what is damaged
                   in its middle is one when it is decoded.
    absolute_paths a list may name files anywhere, by their absolute paths; the reader has seen to it.
    wanted         which rows become records; the images of others are not looked at. None: all.
    """
    unknown = set(options) - set(ReadOptions.__annotations__)
    if unknown:
        raise TypeError(f"unknown options of a reader: {', '.join(sorted(unknown))}")
    classes, wanted = options.get("classes"), options.get("wanted") or _all
    rows, others = _parted(found.rows, wanted)
    looked = look(replace(found, rows=rows), options)
    records = looked.records
    if not records and not others:
        why = f"; of the first, {looked.bad[0].reason.removesuffix('.')}" if looked.bad else ""
        message = f"no usable image among {len(found.rows)}{why}."
        raise FormatError(message, "check the path and layout.")
    given, skipped = classes is not None, (*found.skipped, *looked.bad)
    listed = given or (found.listed and bool(found.classes))
    if classes is None:  # of all rows: skipping every image of a class must not hide the class
        classes = found.classes or sorted({row.label for row in found.rows})
    everyone: Sequence[Named] = (*records, *others)
    learned = {one.label for one in everyone if one.split is not Split.TEST}
    empty = [name for name in classes if name not in learned] if learned else []
    if empty and not given:  # a mistake, while the caller may name what nobody has, or has any more
        fix = "add images of it to core or user data, or take the class out."
        raise RecordError(empty[0], "this class has no core or user record.", fix)
    remarks = [
        *remarks_on_rows(found),
        *(f"class {name!r} has no core or user record" for name in empty),
    ]
    return Assembled(records, classes, skipped, remarks, listed)


def remarks_on_rows(found: Found) -> list[str]:
    """The reader's, and what often is a slip: columns that mean nothing here, owners that look alike."""
    owners = {row.owner for row in found.rows if row.owner != row.id and row.split is Split.USER}
    unknown = {str(key) for row in found.rows for key in row.extra}
    said = [*found.remarks, *columns.remarks(unknown), *names.remarks(owners)]
    return list(dict.fromkeys(said))


def _channels(name: str | None) -> Channels | None:
    if name is not None and name not in list(Channels):
        raise EffaceError(f"channels {name!r} are unknown.", "use gray or rgb, or leave it out.")
    return None if name is None else Channels(name)


def _all(row: Row) -> bool:
    return True


def _parted(
    rows: Sequence[Row], wanted: Callable[[Row], bool]
) -> tuple[Sequence[Row], Sequence[Row]]:
    """Those that are wanted, and the others."""
    here = [wanted(row) for row in rows]
    return list(compress(rows, here)), list(compress(rows, (not it for it in here)))


@dataclass(frozen=True)
class Looked:
    """Rows whose images were looked at; ``num_channels`` is how many these have, where that was not said."""

    records: Sequence[Record]
    bad: Sequence[Skipped] = ()
    num_channels: int | None = None


def look(found: Found, options: ReadOptions) -> Looked:
    """The rows as records, each image read once; several are on their way at a time."""
    channels = _channels(options.get("channels") or found.channels)
    skip_bad = bool(options.get("skip_bad"))
    if found.below is not None and not skip_bad:
        _check_files(found, found.below)
    records: list[Record] = []
    counts: list[int] = []
    bad: list[Skipped] = []
    fix = ""
    for row, got in _each(found.rows, channels, skip_bad):
        if isinstance(got, RecordError):
            bad.append(Skipped(row.id, got.message.removeprefix(f"record {row.id!r}: ")))
            fix = fix or got.fix
        else:
            records.append(got[0])
            counts.append(got[1])
    if bad and not skip_bad:
        raise _unreadable(bad, fix)
    _check_lengths_agree(records, counts)
    if channels is not None:
        return Looked(records, bad)
    _check_channels_agree(records, counts)
    return Looked(records, bad, counts[0] if counts else None)


Got = tuple[Record, int] | RecordError


def _each(rows: Sequence[Row], channels: Channels | None, fully: bool) -> Iterator[tuple[Row, Got]]:
    """Every row, in order, with what its image gave."""

    shared: dict[str, str] = {}

    def attempt(row: Row) -> Got:
        try:
            return _look_at(row, channels, shared, fully=fully)
        except RecordError as problem:
            return problem

    if all(isinstance(row.source, ArrayImage | BytesImage) for row in rows):
        yield from ((row, attempt(row)) for row in rows)
        return
    with ThreadPoolExecutor(READERS) as pool:
        for start in range(0, len(rows), WINDOW):
            some = rows[start : start + WINDOW]
            yield from zip(some, pool.map(attempt, some), strict=True)


def _unreadable(bad: Sequence[Skipped], fix: str) -> RecordError:
    """All of them at once: who repairs one should not wait for the next."""
    first, *others = bad
    more = f" {len(others)} more cannot be read: {few([o.id for o in others])}." if others else ""
    return RecordError(first.id, first.reason + more, fix)


def _look_at(
    row: Row, channels: Channels | None, shared: dict[str, str], *, fully: bool
) -> tuple[Record, int]:
    """The record and its number of channels; the content is read once, for digest and header.

    Words that many records have are one object each, taken from ``shared``.
    """
    with naming(row.id):
        content = row.source.content()
        count = num_channels(content)
        if fully or not is_whole(
            content
        ):  # of what was cut short only decoding says if it can be used
            decode(content, channels)
    if channels is not None and not count:
        raise RecordError(row.id, f"a row of {len(content)} numbers is no image.", NO_IMAGE)
    owner = row.id if row.owner == row.id else shared.setdefault(row.owner, row.owner)
    cohort, label = (shared.setdefault(word, word) for word in (row.cohort, row.label))
    made = (row.id, owner, cohort, label, row.split, row.source, digest_of(content))
    return Record(*made, channels, row.extra), count


def _check_lengths_agree(records: Sequence[Record], counts: Sequence[int]) -> None:
    """Rows of numbers have one length: what fills up the shorter ones is not for us to choose."""
    rows = [record for record, count in zip(records, counts, strict=True) if not count]
    lengths = [len(record.source.content()) for record in rows]
    usual = Counter(lengths).most_common(1)[0][0] if lengths else 0
    for record, length in zip(rows, lengths, strict=True):
        if length != usual:
            message = f"{length} numbers where most records have {usual}."
            raise RecordError(
                record.id, message, "bring all to one length (in Python: Tokens(…).padded(rows))."
            )


def _check_channels_agree(records: Sequence[Record], counts: Sequence[int]) -> None:
    usual = Counter(counts).most_common(1)[0][0] if counts else 0
    for record, count in zip(records, counts, strict=True):
        if count != usual:
            odd = sum(n != usual for n in counts)
            message = f"{count} channel(s) where most have {usual} ({odd} such of {len(counts)})."
            if not (count and usual):
                kinds = ("an image", "rows of numbers") if count else ("a row of numbers", "images")
                message = f"{kinds[0]} where most are {kinds[1]} ({odd} such of {len(counts)})."
                raise RecordError(record.id, message, "read them by themselves.")
            raise RecordError(record.id, message, CONVERT)


def _check_files(found: Found, place: Path) -> None:
    missing = [
        row
        for row in found.rows
        if isinstance(row.source, FileImage) and not row.source.path.is_file()
    ]
    if missing:
        source = missing[0].source
        assert isinstance(source, FileImage)
        message = (
            f"{id_below(place, source.path)} is listed, but not in {place} "
            f"({len(missing)} such of {len(found.rows)})."
        )
        fix = (
            "unpack the archive again, or set missing images aside with skip_bad=True (--skip-bad)."
        )
        raise RecordError(missing[0].id, message, fix)
