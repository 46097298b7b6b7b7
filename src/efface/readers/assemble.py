"""What every reader shares: ``Row``s as they were found, checked and made ``Records``.

``assemble`` is the one rule for damaged images, labels, channels and classes, whatever the layout;
``make_row`` is one row from named columns, for the layouts that have such.
"""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypedDict

import numpy as np

from efface import names
from efface.errors import EffaceError, FormatError, RecordError
from efface.images import Channels, ImageSource, decode, digest_of, naming, num_channels
from efface.names import tidy
from efface.records import DEFAULT_COHORT, Record, Records, Skipped, Split

PathLike: TypeAlias = str | os.PathLike[str]
SPLITS = {
    "core": Split.CORE,
    "train": Split.USER,
    "user": Split.USER,
    "test": Split.TEST,
    "val": Split.TEST,
    "valid": Split.TEST,
    "validation": Split.TEST,
}
KNOWN_COLUMNS = frozenset({"id", "label", "owner", "cohort", "split"})


class ReadOptions(TypedDict, total=False):
    """The options every reader takes; ``assemble`` says what they mean."""

    classes: Sequence[str] | None
    core_fraction: float | None
    seed: int
    channels: str | None
    skip_bad: bool


@dataclass(frozen=True)
class Row:
    """A record whose image has not been looked at yet."""

    id: str
    label: str
    source: ImageSource
    split: Split
    owner: str
    cohort: str = DEFAULT_COHORT
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """What a reader found; ``classes`` where the data itself lists them.

    ``listed`` is False where ``classes`` only puts the labels that occur into an order.
    """

    rows: Sequence[Row]
    classes: Sequence[str] | None = None
    skipped: Sequence[Skipped] = ()
    remarks: Sequence[str] = ()
    listed: bool = True


# The common path.


def assemble(
    found: Found,
    *,
    classes: Sequence[str] | None = None,
    core_fraction: float | None = None,
    seed: int = 0,
    channels: str | None = None,
    skip_bad: bool = False,
) -> Records:
    """Checks the rows and makes them Records.

    classes        the class list, in the order of the model's outputs; a label outside it is an
                   error. None: the data's own list, else the sorted labels (``Records.listed`` is
                   False then: see ``class_list``).
    core_fraction  see ``Records.with_core_fraction``, as is ``seed``.
    channels       "gray" or "rgb" converts at decoding; None demands that all records agree.
    skip_bad       decodes every image now and sets bad ones aside in ``.skipped``. Otherwise
                   missing and unrecognisable files are errors now, truncated ones when decoded.
    """
    wanted = _channels(channels)
    records, bad = _inspect(found.rows, wanted, skip_bad)
    if not records:
        raise FormatError(f"no usable image among {len(found.rows)}.", "check the path and layout.")
    given, skipped = classes is not None, (*found.skipped, *bad)
    listed = given or (found.listed and bool(found.classes))
    if classes is None:  # of all rows: skipping every image of a class must not hide the class
        classes = found.classes or sorted({row.label for row in found.rows})
    learned = {record.label for record in records if record.split is not Split.TEST}
    empty = [name for name in classes if name not in learned] if learned else []
    if empty and not given:  # a mistake, while the caller may name what nobody has, or has any more
        fix = "add images of it to core or user data, or take the class out."
        raise RecordError(empty[0], "this class has no core or user record.", fix)
    remarks = [*_remarks(found), *(f"class {name!r} has no core or user record" for name in empty)]
    result = Records(records, classes, skipped=skipped, remarks=remarks, listed=listed)
    return result if core_fraction is None else result.with_core_fraction(core_fraction, seed)


def _remarks(found: Found) -> list[str]:
    """The reader's, and what often is a slip: owners that look alike, columns that mean nothing here."""
    owners = {row.owner for row in found.rows if row.owner != row.id and row.split is Split.USER}
    return [*found.remarks, *names.remarks(owners), *_unknown_columns(found.rows)]


def _unknown_columns(rows: Sequence[Row]) -> Iterator[str]:
    for name in sorted({str(key) for row in rows for key in row.extra}):
        close = difflib.get_close_matches(tidy(name).lower(), KNOWN_COLUMNS, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        yield f"the column {name!r} means nothing to efface{hint}; it is kept with the records"


def _channels(name: str | None) -> Channels | None:
    if name is not None and name not in list(Channels):
        raise EffaceError(f"channels {name!r} are unknown.", "use gray or rgb, or leave it out.")
    return None if name is None else Channels(name)


def _inspect(
    rows: Iterable[Row], channels: Channels | None, skip_bad: bool
) -> tuple[list[Record], list[Skipped]]:
    records: list[Record] = []
    counts: list[int] = []
    bad: list[Skipped] = []
    for row in rows:
        try:
            record, count = _look_at(row, channels, fully=skip_bad)
        except RecordError as problem:
            if not skip_bad:
                raise
            bad.append(Skipped(row.id, problem.message.removeprefix(f"record {row.id!r}: ")))
        else:
            records.append(record)
            counts.append(count)
    if channels is None:
        _check_channels_agree(records, counts)
    return records, bad


def _look_at(row: Row, channels: Channels | None, *, fully: bool) -> tuple[Record, int]:
    """The record and its number of channels; the content is read once, for digest and header."""
    with naming(row.id):
        content = row.source.content()
        count = num_channels(content)
        if fully:
            decode(content, channels)
    return Record(digest=digest_of(content), channels=channels, **vars(row)), count


def _check_channels_agree(records: Sequence[Record], counts: Sequence[int]) -> None:
    usual = Counter(counts).most_common(1)[0][0] if counts else 0
    for record, count in zip(records, counts, strict=True):
        if count != usual:
            odd = sum(n != usual for n in counts)
            message = f"{count} channel(s) where most have {usual} ({odd} such of {len(counts)})."
            fix = 'read with --channels rgb or gray (in Python: channels="rgb").'
            raise RecordError(record.id, message, fix)


# One row from named columns: the shared half of metadata files, Parquet and npz.


def make_row(
    columns: Mapping[str, Any],
    source: ImageSource,
    default_id: str,
    *,
    names: Sequence[str] | None = None,
    split: Split = Split.USER,
) -> Row:
    record_id = text_or(columns.get("id"), default_id)
    return Row(
        id=record_id,
        label=_label(record_id, columns.get("label"), names),
        source=source,
        split=_split(record_id, columns.get("split"), split),
        owner=tidy(text_or(columns.get("owner"), record_id)) or record_id,
        cohort=tidy(text_or(columns.get("cohort"), DEFAULT_COHORT)) or DEFAULT_COHORT,
        extra={key: value for key, value in columns.items() if key not in KNOWN_COLUMNS},
    )


def text_or(value: Any, default: str) -> str:
    return default if value is None or value == "" else str(value)


def _label(record_id: str, value: Any, names: Sequence[str] | None) -> str:
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        fix = "labels are names or whole numbers."
        raise RecordError(record_id, f"its label is {value!r}.", fix)
    if names is None:
        return str(int(value))
    if not 0 <= value < len(names):
        fix = "correct the label or the list of class names in the file."
        raise RecordError(record_id, f"label {value} is outside the {len(names)} classes.", fix)
    return names[int(value)]


def _split(record_id: str, value: Any, default: Split) -> Split:
    if value is None or value == "":
        return default
    if str(value).lower() not in SPLITS:
        raise RecordError(
            record_id, f"unknown split {value!r}.", f"use one of {', '.join(SPLITS)}."
        )
    return SPLITS[str(value).lower()]


def whole_number_classes(labels: Iterable[Any]) -> list[str] | None:
    """Classes in the order 2 < 10 where labels are bare numbers, so that index follows label."""
    values = set(labels)
    if all(isinstance(value, int | np.integer) for value in values):
        return [str(int(value)) for value in sorted(values)]
    return None
