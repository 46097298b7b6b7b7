"""Rows on disk in buckets: a request reads and writes the buckets of its records, and no others.

A record's bucket is given by the first bits of its content digest, the number of buckets b by the number of
rows n (a power of two with about n/b = 256 to 511 rows each), the order within a bucket by the order of the
records, and a bucket's file name by its content. So the files are a function of the records that are there:
nothing in them tells that there were others before.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from efface import files
from efface.ahead import ahead
from efface.errors import FormatError
from efface.parts.compact.rows import Rows
from efface.parts.compact.spooled_rows import SpooledRows

SCHEMA = "efface.rows/1"
PER_BUCKET = 256  # at the least, once there is more than one
RESTORE = "restore the workspace from a copy."
NAME = re.compile(r"[0-9a-f]{64}\.safetensors")
KEY_BITS = 32  # of a digest, taken for its bucket

BLOCK = 4096  # rows in memory at once, about, where all are read


def bucket_bits(n: int) -> int:
    """log₂ of the number of buckets for n rows."""
    return max(n // PER_BUCKET, 1).bit_length() - 1


@dataclass(frozen=True)
class GatheredBucket:
    """A bucket that is put together from rows elsewhere when it is read: rows ``index`` of each source.

    ``order`` are the places of all of them, source by source, in this bucket.
    """

    pieces: tuple[tuple[StoredRows | SpooledRows, np.ndarray], ...]
    order: np.ndarray

    def rows(self) -> Rows:
        found = Rows.joined([source.select(index) for source, index in self.pieces])
        return found.select(np.argsort(self.order))


Bucket = (
    Rows | Path | GatheredBucket
)  # in memory, the file that holds it, or still to be put together


class StoredRows:
    """Rows in the order of ``digests``, read from their buckets when they are asked for."""

    def __init__(self, digests: Sequence[str], buckets: Sequence[Bucket]) -> None:
        self.digests, self.buckets = tuple(digests), tuple(buckets)
        self._last: tuple[int, Rows] | None = None  # the bucket that was read last

    @classmethod
    def of(cls, rows: Rows | SpooledRows, digests: Sequence[str]) -> StoredRows:
        """Sorted into buckets, nothing written yet."""
        if isinstance(rows, SpooledRows):
            own = np.arange(len(rows))
            return cls.gathered((rows,), digests, np.zeros_like(own), own)
        nothing = rows.select(np.arange(0))
        buckets = [nothing] * _count(digests)
        for b, here in _groups(_places(digests, len(buckets))):
            buckets[b] = rows.select(here)
        return cls(digests, buckets)

    @classmethod
    def gathered(
        cls,
        sources: Sequence[StoredRows | SpooledRows],
        digests: Sequence[str],
        whose: np.ndarray,
        where: np.ndarray,
    ) -> StoredRows:
        """Row ``where[i]`` of source ``whose[i]`` as row i; read bucket by bucket when they are saved."""
        buckets: list[Bucket] = [sources[0].select(np.arange(0))] * _count(digests)
        for b, here in _groups(_places(digests, len(buckets))):
            groups = [(s, here[there]) for s, there in _groups(whose[here])]
            pieces = tuple((sources[s], where[these]) for s, these in groups)
            order = np.searchsorted(here, np.concatenate([these for _, these in groups]))
            buckets[b] = GatheredBucket(pieces, order)
        return cls(digests, buckets)

    def __len__(self) -> int:
        return len(self.digests)

    def blocks(self) -> Iterator[Rows]:
        """All rows, about ``BLOCK`` at a time, bucket by bucket: in no order that means anything.

        The next ones are read while these are worked on.
        """
        return ahead(self._blocks())

    def _blocks(self) -> Iterator[Rows]:
        waiting: list[Rows] = []
        for b in range(len(self.buckets)):
            waiting.append(self._bucket(b))
            if sum(map(len, waiting)) >= BLOCK:
                yield Rows.joined(waiting)
                waiting = []
        if waiting:
            yield Rows.joined(waiting)

    @cached_property
    def _places(self) -> np.ndarray:
        return _places(self.digests, len(self.buckets))

    @cached_property
    def _sizes(self) -> np.ndarray:
        """How many rows each bucket has."""
        return np.bincount(self._places, minlength=len(self.buckets))

    @cached_property
    def _where(self) -> tuple[np.ndarray, np.ndarray]:
        """Of every row its bucket and its position in there."""
        places, sizes = self._places, self._sizes
        order = np.argsort(places, kind="stable")
        ranks = np.empty(len(places), dtype=np.int64)
        ranks[order] = np.arange(len(places)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return places, ranks

    def select(self, index: np.ndarray) -> Rows:
        """These rows, in the order asked for, from the buckets that hold them."""
        index = np.asarray(index, dtype=np.int64)
        if len(index) == 0:
            return self._bucket(0).select(index)
        places, ranks = (values[index] for values in self._where)
        groups = list(_groups(places))
        parts = Rows.joined([self._bucket(b).select(ranks[here]) for b, here in groups])
        return parts.select(np.argsort(np.concatenate([here for _, here in groups])))

    def whole(self) -> Rows:
        return self.select(np.arange(len(self)))

    def without(self, index: np.ndarray) -> StoredRows:
        """The others; buckets without any of ``index`` stay the files they are."""
        keep = np.ones(len(self), dtype=bool)
        keep[index] = False
        digests = [digest for digest, stays in zip(self.digests, keep, strict=True) if stays]
        places, ranks = (values[index] for values in self._where)
        buckets = list(self.buckets)
        for b, here in _groups(places):
            buckets[b] = self._bucket(b).without(ranks[here])
        left = StoredRows(digests, buckets)
        return left if _count(digests) == len(buckets) else left._sorted_anew()

    def _sorted_anew(self) -> StoredRows:
        """In as many buckets as their number asks for; put together when they are read."""
        own = np.arange(len(self))
        return StoredRows.gathered((self,), self.digests, np.zeros_like(own), own)

    def plus(
        self, at: int, rows: Rows | SpooledRows | StoredRows, digests: Sequence[str]
    ) -> StoredRows:
        """With more rows, before the one at ``at``; buckets without any of them stay as they are."""
        joined = (*self.digests[:at], *digests, *self.digests[at:])
        if _count(joined) != len(self.buckets) and isinstance(rows, Rows):
            rows = StoredRows.of(rows, digests)
        if not isinstance(rows, Rows):
            own, new = np.arange(len(self)), np.arange(len(rows))
            whose = np.repeat([0, 1, 0], [at, len(rows), len(self) - at])
            where = np.concatenate([own[:at], new, own[at:]])
            return StoredRows.gathered((self, rows), joined, whose, where)
        buckets, before = list(self.buckets), self._where[0][:at]
        for b, here in _groups(_places(digests, len(buckets))):
            position = int((before == b).sum())
            buckets[b] = self._bucket(b).insert(position, rows.select(here))
        return StoredRows(joined, buckets)

    def _bucket(self, b: int) -> Rows:
        bucket = self.buckets[b]
        if isinstance(bucket, Rows):
            return bucket
        last = self._last  # another thread may put its own there
        if last is None or last[0] != b:
            read = bucket.rows() if isinstance(bucket, GatheredBucket) else self._read(bucket, b)
            last = self._last = (b, read)
        return last[1]

    def _read(self, bucket: Path, b: int) -> Rows:
        if not bucket.is_file():
            raise FormatError(f"rows are missing: {bucket.name}.", RESTORE)
        arrays = files.read_arrays(bucket)
        rows = Rows(arrays["features"], arrays["targets"])
        if len(rows) != self._sizes[b]:
            raise FormatError(
                f"{bucket.name} has {len(rows)} rows, not as many as records.", RESTORE
            )
        return rows

    # --- files ------------------------------------------------------------------------------------

    def save(self, index: Path, folder: Path) -> None:
        """Write the buckets that are not in ``folder`` yet, and their names, in order, to ``index``."""
        files.make_folder(folder)
        names = [_write(bucket, folder) for bucket in self.buckets]
        files.write_json(index, {"schema": SCHEMA, "buckets": names})

    @classmethod
    def load(cls, index: Path, folder: Path, digests: Sequence[str]) -> StoredRows:
        names = bucket_names(index)
        if len(names).bit_count() != 1:
            raise FormatError(f"{index.name} lists {len(names)} buckets, no power of two.", RESTORE)
        return cls(digests, [folder / name for name in names])


def bucket_names(index: Path) -> list[str]:
    """The files that ``save`` has listed; each is called by the SHA-256 of its content."""
    names: Any = files.read_json(index, SCHEMA).get("buckets")
    listed = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not listed or not all(NAME.fullmatch(name) for name in names):  # never a path
        raise FormatError(f"{index} does not list rows as they were saved.", RESTORE)
    return list(names)


def _write(bucket: Bucket, folder: Path) -> str:
    if isinstance(bucket, Path):
        assert bucket.parent == folder
        return bucket.name
    rows = bucket.rows() if isinstance(bucket, GatheredBucket) else bucket
    arrays = {"features": rows.features, "targets": rows.targets}
    data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    name = f"{hashlib.sha256(data).hexdigest()}.safetensors"
    files.write_bytes(folder / name, data)
    return name


def _count(digests: Sequence[str]) -> int:
    return 1 << bucket_bits(len(digests))


def _groups(places: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Every bucket that occurs, with the positions in ``places`` where it does, in order."""
    order = np.argsort(places, kind="stable")
    found, starts = np.unique(places[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, starts)[1:], strict=True)


def _places(digests: Sequence[str], num_buckets: int) -> np.ndarray:
    """The bucket of each digest."""
    keys = np.fromiter((int(digest[:8], 16) for digest in digests), np.int64, len(digests))
    return keys >> (KEY_BITS - num_buckets.bit_length() + 1)
