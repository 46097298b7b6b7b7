"""A listing: what some data names, and which of it is core or user data, before an image is looked at.

Whoever needs some of the records reads their images and no others: the one who trains the core leaves user
images out, a worker of many takes those of its shard. What can be refused without images is refused by
everybody; that an image is core and user data at once is seen by whoever reads the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Unpack

from efface.data import promises, reading
from efface.data.assemble import remarks_on_rows
from efface.data.class_list import settled
from efface.data.found import Found, ReadOptions, Row
from efface.data.public_core import PREFIX, with_public_core
from efface.data.record import Record, Skipped, Split
from efface.data.records import Records
from efface.errors import RecordError


@dataclass(frozen=True)
class UserImages:
    """User records that were looked at; ``num_channels`` of their images, where it is not a setting."""

    records: Records
    num_channels: int | None = None


@dataclass(frozen=True)
class Listing:
    """``own`` is the data, read with ``options``; ``public`` is other data that is core whole."""

    own: Found
    options: ReadOptions
    public: Found | None = None

    @classmethod
    def open(
        cls,
        spec: str,
        core_data: str | None = None,
        pieces: Callable[[str], bool] | None = None,
        **options: Unpack[ReadOptions],
    ) -> Listing:
        """Of what ``spec`` and ``core_data`` name; of archives, those among the ``pieces`` alone."""
        anywhere = options.get("absolute_paths", False)
        own = reading.find(spec, absolute_paths=anywhere, pieces=pieces)
        public = None if core_data is None else reading.find(core_data, absolute_paths=anywhere)
        return cls(own, options, public)

    def records(self) -> Records:
        """All of them."""
        return self._with_public(Records.assembled(self.own, **self.options))

    def without_user(self) -> Records:
        """Core and test records, with a class list that fits the user's as well; no user image is read."""
        options: ReadOptions = {**self.options, "wanted": self._is_no_user}
        records = settled(self._with_public(Records.assembled(self.own, **options)), self.user)
        promises.check_ids((*records, *self.user))
        return records

    @cached_property
    def user(self) -> tuple[Row, ...]:
        """The rows of user data, in order."""
        return tuple(row for row in self.own.rows if not self._is_no_user(row))

    def look_at(
        self, rows: Sequence[Row], classes: Sequence[str], core: Mapping[str, str]
    ) -> UserImages:
        """Some user rows as records. ``core`` are the core's images, digest to id.

        A row whose image is one of those is refused, or set aside, as where all is read at once.
        """
        promises.check_labels(self.user, classes)
        promises.check_ids(self.own.rows)
        looked = reading.look(replace(self.own, rows=rows), self.options)
        self._check_channels(looked)
        twice = [record for record in looked.records if record.digest in core]
        set_aside = [self._set_aside(record, core[record.digest]) for record in twice]
        gone = {record.id for record in twice}
        kept = (record for record in looked.records if record.id not in gone)
        remarks = remarks_on_rows(self.own)
        records = Records(kept, classes, skipped=(*looked.bad, *set_aside), remarks=remarks)
        return UserImages(records, looked.num_channels)

    def core_images(self, known: Mapping[str, str]) -> dict[str, str]:
        """Digest to id of the core's images: those that are ``known`` so, and others that are listed.

        Of these alone the images are looked at.
        """
        ids, found = set(known.values()), dict(known)
        for data, prefix in ((self.own, ""), (self.public, PREFIX)):
            if data is not None:
                rows = [row for row in self._core_of(data) if prefix + row.id not in ids]
                looked = reading.look(replace(data, rows=rows), self.options)
                found |= {record.digest: prefix + record.id for record in looked.records}
        return found

    def _with_public(self, records: Records) -> Records:
        if self.public is None:
            return records
        options = self.options.copy()
        options.pop("core_fraction", None)
        return with_public_core(records, Records.assembled(self.public, **options))

    def _is_no_user(self, row: Row) -> bool:
        fraction, seed = self.options.get("core_fraction"), self.options.get("seed", 0)
        return promises.drawn_split(row, fraction, seed) is not Split.USER

    def _core_of(self, data: Found) -> list[Row]:
        rows = (row for row in data.rows if row.split is not Split.TEST)
        return [row for row in rows if data is self.public or self._is_no_user(row)]

    def _set_aside(self, record: Record, core_id: str) -> Skipped:
        """An error where the data itself says that the image is core; drawn or public, it could not know."""
        drawn = self.options.get("core_fraction") is not None or self.public is not None
        said = {row.id for row in self.own.rows if row.split is Split.CORE}
        if not drawn or core_id in said:
            raise promises.is_core_image(record, core_id)
        return Skipped(record.id, f"the same image is core data, as {core_id!r}")

    def _check_channels(self, looked: reading.Looked) -> None:
        """As many as a core image has: the others of the user data are somebody else's to compare with."""
        data = self.own if self._core_of(self.own) else self.public
        if looked.num_channels is None or data is None:
            return
        first = reading.look(replace(data, rows=self._core_of(data)[:1]), self.options)
        if first.num_channels not in (None, looked.num_channels):
            message = (
                f"{looked.num_channels} channel(s) where core images have {first.num_channels}."
            )
            raise RecordError(looked.records[0].id, message, promises.CONVERT)
