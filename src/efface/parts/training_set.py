"""What a fitted model keeps of its training records: just what the user part needs. On disk, no images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from efface import files
from efface.data.records import Records
from efface.data.stored_records import CORE_COLUMNS, StoredRecords, columns_of
from efface.errors import FormatError
from efface.network.saved import is_digest
from efface.parts.compact.guest import Guest, load_guests, save_guests
from efface.parts.compact.rows import Rows
from efface.parts.compact.spooled_rows import SpooledRows
from efface.parts.compact.statistics import Statistics
from efface.parts.compact.stored_rows import StoredRows
from efface.parts.compact.sums_file import read_sums, write_sums

if TYPE_CHECKING:
    from torch import Tensor

    from efface.network.activations import ActivationCache, Activations

SCHEMA = "efface.records/2"
ROWS = "rows.json"
SUMS = "sums.safetensors"


@dataclass(frozen=True)
class TrainingSet:
    """User records first, then replayed core records, each with what its user part needs.

    That is its ``activations`` at the boundary (tangent) or its quantised ``rows`` (compact). ``indices`` are
    the labels' places in the class list, ``looks`` perceptual hashes of the user records, in order, where
    they have been taken (a workspace does). ``sums`` are those of all its rows, where they were made
    beforehand (in shards). ``guests`` are what partners have put in, as sums: none of it is in the rows.
    """

    records: Records
    replay: Records | None
    indices: NDArray[np.int64]  # (n,)
    activations: Activations | None = None
    rows: Rows | SpooledRows | StoredRows | None = None
    looks: tuple[str, ...] | None = None
    sums: Statistics | None = None
    guests: tuple[Guest, ...] = ()

    def __len__(self) -> int:
        """Of the records that are at hand."""
        return len(self.indices)

    @property
    def num_from_partners(self) -> int:
        return sum(guest.num_rows for guest in self.guests)

    @property
    def num_retained(self) -> int:
        """How many records the weights are learnt from; none where nobody's but core's are left."""
        num_guests = self.num_from_partners
        return len(self) + num_guests if len(self.records) or num_guests else 0

    def guest(self, admission: str) -> Guest | None:
        """The partner that was admitted so, if it has sent anything."""
        return next((guest for guest in self.guests if guest.admission == admission), None)

    def hosting(self, guest: Guest) -> TrainingSet:
        """The set with this guest as it is now."""
        others = [other for other in self.guests if other.admission != guest.admission]
        return replace(self, guests=tuple(sorted((*others, guest), key=lambda g: g.admission)))

    @property
    def labels(self) -> Tensor:
        """``indices`` as a tensor, (n,)."""
        import torch

        return torch.from_numpy(self.indices)

    @property
    def digests(self) -> tuple[str, ...]:
        """Content digests of all rows, in order."""
        return self.records.digests + (() if self.replay is None else self.replay.digests)

    @property
    def core_ids(self) -> set[str]:
        return set(self.replay.ids) if self.replay is not None else set()

    def retained(self, forget: np.ndarray) -> np.ndarray:
        """Positions, among all rows, of what stays when the user records at ``forget`` go."""
        keep = np.ones(len(self), dtype=bool)
        keep[forget] = False
        return keep.nonzero()[0]

    def without(self, forget: np.ndarray) -> TrainingSet:
        """The set without these user records; their rows are not part of it any more."""
        keep = self.retained(forget)
        stay = keep[keep < len(self.records)]
        activations = self.activations
        return replace(
            self,
            records=self.records[stay],
            indices=self.indices[keep],
            activations=None if activations is None else select(activations, keep),
            rows=None if self.rows is None else self.rows.without(forget),
            looks=None if self.looks is None else tuple(self.looks[i] for i in stay),
            sums=None,
        )

    def plus(self, part: TrainingSet, activations: Activations | None = None) -> TrainingSet:
        """The set with more user records, before the replayed ones; ``activations`` are those of all."""
        at, rows = len(self.records), self.rows
        if rows is None:
            rows = part.rows
        elif part.rows is not None:
            if isinstance(rows, StoredRows):
                rows = rows.plus(at, part.rows, part.digests)
            else:
                rows = rows.insert(at, part.rows.whole())
        return replace(
            self,
            records=self.records + part.records,
            indices=np.concatenate([self.indices[:at], part.indices, self.indices[at:]]),
            activations=activations,
            rows=rows,
            looks=None if self.looks is None or part.looks is None else self.looks + part.looks,
            sums=None,
        )

    # --- files ------------------------------------------------------------------------------------

    def save(self, directory: Path, buckets: Path) -> None:
        """``records.json`` and, if there are rows, ``rows.json`` with those in ``buckets``; activations
        are the cache's.

        Of replayed core records only id, label and digest are kept: their owner may have user records
        too, and then nothing may be left of the name once these are forgotten.
        """
        values: dict[str, Any] = {"schema": SCHEMA, "records": columns_of(self.records)}
        if self.looks is not None:
            values["looks"] = self.looks
        if self.replay is not None:
            values["replay"] = columns_of(self.replay, CORE_COLUMNS)
        files.write_json(directory / "records.json", values, indent=None)
        rows = self.rows
        if rows is not None:
            stored = rows if isinstance(rows, StoredRows) else StoredRows.of(rows, self.digests)
            stored.save(directory / ROWS, buckets)
        if self.sums is not None:
            write_sums(directory / SUMS, self.sums)
        if self.guests:
            save_guests(directory, self.guests)

    @classmethod
    def load(cls, directory: Path, classes: Sequence[str], buckets: Path) -> TrainingSet:
        """The inverse of :meth:`save`; asking one of its records for its image is an error."""
        values = files.read_json(directory / "records.json", SCHEMA)
        try:
            _check_columns(values["records"])
            _check_columns(values.get("replay", {}))
            records = StoredRecords(values["records"], classes)
            replay = StoredRecords(values["replay"], classes) if "replay" in values else None
            looks = tuple(map(str, values["looks"])) if "looks" in values else None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"records.json in {directory} is not as it was saved: {error!r}."
            raise FormatError(message, "restore it from a copy.") from error
        labels = [records.labels] if replay is None else [records.labels, replay.labels]
        if looks is not None and len(looks) != len(records):
            message = (
                f"records.json in {directory} has {len(looks)} looks for {len(records)} records."
            )
            raise FormatError(message, "restore it from a copy.")
        guests = load_guests(directory)
        data = cls(records, replay, np.concatenate(labels), looks=looks, guests=guests)
        if not (directory / ROWS).is_file():
            return data
        data = replace(data, rows=StoredRows.load(directory / ROWS, buckets, data.digests))
        if not (directory / SUMS).is_file():
            return data
        return replace(data, sums=read_sums(directory / SUMS))


def _check_columns(columns: dict[str, Any]) -> None:
    """Names are text and digests are digests: a ValueError if not."""
    for name in ("id", "owner", "cohort", "label", "digest"):
        if not set(map(type, columns.get(name, ()))) <= {str}:
            raise ValueError(f"{name} is not all text")
    if not all(map(is_digest, columns.get("digest", ()))):
        raise ValueError("not all digests are digests")


def select(activations: Activations, index: np.ndarray) -> Activations:
    """Some rows: still a memory map if it was one, else a copy (so that the others can be freed)."""
    import torch

    if isinstance(activations, torch.Tensor):
        return activations[torch.from_numpy(index)]
    return activations.select(index)  # type: ignore[attr-defined]


def joined(data: TrainingSet, new: TrainingSet, cache: ActivationCache | None) -> Activations:
    """The activations of both, in the order of ``TrainingSet.plus``."""
    import torch

    if cache is not None:
        replay = () if data.replay is None else data.replay.digests
        return cache.rows((*data.records.digests, *new.records.digests, *replay))
    added = new.activations
    assert added is not None
    if data.activations is None:
        return added
    at, old = len(data.records), data.activations
    return torch.cat([old[slice(0, at)], added[slice(0, len(added))], old[slice(at, len(old))]])
