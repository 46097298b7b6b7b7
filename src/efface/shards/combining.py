"""Several partials as one set of training records, whatever order they come in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from efface.data.promises import CONVERT
from efface.data.records import Records
from efface.data.stored_records import StoredRecords, columns_of
from efface.errors import EffaceError
from efface.parts.compact.statistics import Statistics
from efface.parts.compact.stored_rows import StoredRows
from efface.parts.training_set import TrainingSet
from efface.shards.partial import Partial


def combine(partials: Iterable[Partial], order: Sequence[str] | None = None) -> TrainingSet:
    """One set with the sums of all; check the partials first.

    Records are in the ``order`` of these ids, or else in that of their ids, so that the outcome depends on
    nothing but the records. Rows stay where they are until the set is saved.
    """
    return Gathering.of(partials).ordered(order)


@dataclass(frozen=True)
class Gathering:
    """Partials without their sums, and ``sums``, those of all of them."""

    partials: tuple[Partial, ...]
    sums: Statistics | None = None

    @classmethod
    def of(cls, partials: Iterable[Partial]) -> Gathering:
        """Taken one after the other: the total and the sums of one of them are in memory, never more.

        So an iterable that loads them must not keep those it has given away.
        """
        known: dict[str, str] = {}
        kept: list[Partial] = []
        total: Statistics | None = None
        for partial in partials:
            _require_disjoint(known, partial)
            _require_same_channels(kept, partial)
            total = _plus(total, partial)
            kept.append(replace(partial, data=replace(partial.data, sums=None)))
            del partial  # before the next one is loaded
        return cls(tuple(kept), total)

    @property
    def ids(self) -> list[str]:
        return [record_id for partial in self.partials for record_id in partial.data.records.ids]

    def ordered(self, order: Sequence[str] | None = None) -> TrainingSet:
        """The records of all, see :func:`combine`."""
        if not self.partials:
            raise EffaceError("there are no partials.", "make some with `efface rows`.")
        partials, ids = self.partials, self.ids
        at = _places(ids, sorted(ids) if order is None else order)
        sizes = [len(partial.data) for partial in partials]
        whose = np.repeat(np.arange(len(partials)), sizes)[at]
        where = np.concatenate([np.arange(size) for size in sizes])[at]
        records = _joined([partial.data.records for partial in partials], at)
        looks = [look for partial in partials for look in partial.data.looks or ()]
        sources = [_stored(partial.data) for partial in partials]
        return TrainingSet(
            records,
            None,
            records.labels,
            rows=StoredRows.gathered(sources, records.digests, whose, where),
            looks=tuple(looks[i] for i in at) if len(looks) == len(ids) else None,
            sums=self.sums,
        )


def _require_disjoint(known: dict[str, str], partial: Partial) -> None:
    """``known`` is id to partial, of those before."""
    for record_id in partial.data.records.ids:
        if record_id in known:
            message = f"record {record_id!r} is in partials {known[record_id]} and {partial.name}."
            fix = "take one of them away; shards of one data set do not overlap."
            raise EffaceError(message, fix)
        known[record_id] = partial.name


def _require_same_channels(before: Sequence[Partial], partial: Partial) -> None:
    for other in before if partial.num_channels else ():
        if other.num_channels not in (None, partial.num_channels):
            message = (
                f"images of partial {other.name} have {other.num_channels} channel(s), "
                f"those of {partial.name} {partial.num_channels}."
            )
            raise EffaceError(message, CONVERT)


def _plus(total: Statistics | None, partial: Partial) -> Statistics:
    sums = partial.data.sums
    assert sums is not None
    if total is None:
        return sums.copy()
    total.merge(sums)
    return total


def _places(ids: Sequence[str], order: Sequence[str]) -> np.ndarray:
    known = {record_id: i for i, record_id in enumerate(ids)}
    missing = [record_id for record_id in order if record_id not in known]
    if missing or len(order) != len(ids):
        example = f", the first {missing[0]!r}" if missing else ""
        message = f"{len(missing)} records are in no partial{example}."
        raise EffaceError(message, "make the shards that are missing, of the same data.")
    return np.array([known[record_id] for record_id in order], dtype=np.int64)


def _joined(sets: Sequence[Records], at: np.ndarray) -> Records:
    """The records of all sets by columns: without their images, and none of them is made."""
    names = sorted({name for records in sets for name in columns_of(records)})
    columns = {}
    for name in names:
        values = [value for records in sets for value in records.column(name)]
        columns[name] = [values[i] for i in at]
    return StoredRecords(columns, sets[0].classes)


def _stored(data: TrainingSet) -> StoredRows:
    rows = data.rows
    assert rows is not None
    return rows if isinstance(rows, StoredRows) else StoredRows.of(rows, data.digests)
