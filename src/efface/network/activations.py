"""Boundary activations, computed once a record: a memory-mapped file of fixed-size rows.

The file's directory is named by the prefix's digest, so another core never reads them; a row is found by
the record's content digest, never by its file name. ``purge`` overwrites a record's row with zeros and
frees its place: nothing of the record is left in the file.

Before a row is written or zeroed, the index lists its place as pending (see ``places``); after a crash,
opening the cache zeroes what is pending. So no row outlives its entry in the index, and no entry points to a
zeroed row.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from efface.data.pictures import Shown
from efface.errors import EffaceError, FormatError
from efface.files import BINARY, PRIVATE, make_folder, mode_in, set_mode
from efface.network.places import Places
from efface.network.saved import is_digest
from efface.progress import Progress
from efface.spool import Spool

BATCH = 256  # activations in memory at once, where some are copied
# Floats in two widths; integers, which are what they are.
DTYPES = ("float32", "float16", "uint8", "int16")


class Activations(Protocol):
    """What problems need: rows by index, a tensor or a memory map alike."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor | slice) -> Tensor: ...


class CachedRows:
    """Some rows of a cache in a given order; indexing reads them from the map."""

    def __init__(self, memory: np.ndarray, slots: np.ndarray) -> None:
        self.memory, self.slots = memory, slots

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, index: Tensor | slice | np.ndarray) -> Tensor:
        if isinstance(index, Tensor):
            index = index.numpy()
        return torch.from_numpy(np.asarray(self.memory[self.slots[index]]))

    def select(self, index: np.ndarray) -> CachedRows:
        return CachedRows(self.memory, self.slots[index])


class SpooledActivations:
    """Activations in a temporary file: more of them than memory should hold, and no cache to keep them."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool

    def __len__(self) -> int:
        return len(self.spool)

    def __getitem__(self, index: Tensor | slice | np.ndarray) -> Tensor:
        if isinstance(index, slice):
            index = np.arange(len(self))[index]
        return torch.from_numpy(self.spool.take(np.asarray(index)))

    def select(self, index: np.ndarray) -> SpooledActivations:
        """Some of them in a file of their own: nothing of the others is in it."""
        made = Spool(most_in_memory=0)
        for start in range(0, len(index), BATCH):
            made.append(self.spool.take(index[start : start + BATCH]))
        return SpooledActivations(made)


Stream = Iterator[tuple[Shown, Tensor]]  # some records after the others, each with a tensor


def boundaries(
    loaded: Iterable[tuple[Shown, np.ndarray]], boundary: Callable[[Tensor], Tensor]
) -> Stream:
    """Boundary activations of images that come in batches."""
    for batch, images in loaded:
        yield batch, boundary(torch.from_numpy(images))


def gather(
    records: Shown,
    cache: ActivationCache | None,
    stream: Callable[[Shown], Stream],
    shape: Callable[[], Sequence[int]],
    *,
    progress: Progress | None = None,
) -> Activations:
    """Activations of the records: from the cache where they are, else from ``stream``, and kept there.

    Without a cache they are kept in memory, and in a temporary file where they are many.
    """
    todo = list(range(len(records))) if cache is None else cache.missing(records.digests)
    kept, done = Spool(), 0
    for batch, rows in stream(records[todo]):
        if cache is None:
            kept.append(rows.numpy())
        else:
            cache.put(batch.digests, rows)
        done += len(batch)
        if progress is not None:
            progress(done / len(todo), f"activations {done}/{len(todo)}")
    if cache is not None:
        cache.settle()
        return cache.rows(records.digests)
    if kept.on_disk:
        return SpooledActivations(kept)
    # A clone: torch aligns what it allocates, and float kernels round by alignment.
    return torch.from_numpy(kept.whole()).clone() if len(kept) else torch.zeros(0, *shape())


class ActivationCache:
    """``directory/<key>/rows.bin`` and its index; ``key`` is the prefix's digest and the dtype."""

    def __init__(
        self,
        directory: Path | str,
        prefix_digest: str,
        shape: Sequence[int],
        dtype: str = "float32",
        *,
        recover: bool = True,
    ) -> None:
        """``recover=False`` only looks: nothing is written, not even to finish what a crash cut short."""
        if not is_digest(prefix_digest):
            raise EffaceError(f"{prefix_digest!r:.80} is no digest.", "pass core.prefix_digest.")
        if dtype not in DTYPES:
            raise EffaceError(
                f"activations cannot be kept as {dtype!r}.", f"use one of {', '.join(DTYPES)}."
            )
        self.prefix_digest = prefix_digest
        self.path = Path(directory) / f"{prefix_digest[:24]}-{dtype}"
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        if recover:
            make_folder(self.path)
        self._places, self._claimed = self._read_index(), 0
        if recover:
            self._recover()

    @property
    def _row_bytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    @property
    def _rows_path(self) -> Path:
        return self.path / "rows.bin"

    def __contains__(self, digest: str) -> bool:
        return digest in self._places.slots

    def __len__(self) -> int:
        return len(self._places.slots)

    @property
    def digests(self) -> set[str]:
        return set(self._places.slots)

    def missing(self, digests: Sequence[str]) -> list[int]:
        """Positions in ``digests`` that have no row yet (the first of repeated ones only)."""
        seen: set[str] = set()
        result = []
        for position, digest in enumerate(digests):
            if digest not in self and digest not in seen:
                result.append(position)
                seen.add(digest)
        return result

    def put(self, digests: Sequence[str], rows: Tensor) -> None:
        """Keep one row a record; a record that has one already keeps its place."""
        if tuple(rows.shape[1:]) != self.shape:
            raise EffaceError(
                f"activations of shape {tuple(rows.shape[1:])} do not fit this cache of {self.shape}.",
                "preprocess all images to one size.",
            )
        values = self._narrow(rows)
        new = [digest for digest in dict.fromkeys(digests) if digest not in self]
        self._places.make_room(len(new))
        self._claim()
        places = self._places.reserve(new) if new else {}
        memory = self._map("r+")
        for digest, row in zip(digests, values, strict=True):
            memory[places[digest] if digest in places else self._places.slots[digest]] = row
        memory.flush()
        if places:
            self._places.enter(places)

    def settle(self) -> None:
        """After many ``put``: the index in one file."""
        self._places.settle()

    def _narrow(self, rows: Tensor) -> np.ndarray:
        with np.errstate(over="ignore"):
            values = rows.numpy().astype(self.dtype)
        if self.dtype.kind in "iu":
            return values
        if np.isinf(values).any() and not torch.isinf(rows).any():
            raise EffaceError(
                f"activations up to {float(rows.abs().max()):.0f} do not fit {self.dtype}.",
                "keep them as float32.",
            )
        return values

    def rows(self, digests: Sequence[str]) -> CachedRows:
        slots = np.array([self._places.slots[d] for d in digests], dtype=np.int64)
        return CachedRows(
            self._map("r") if len(slots) else np.empty((0, *self.shape), self.dtype), slots
        )

    def purge(self, digests: Sequence[str]) -> int:
        """Zero the rows of these records and forget where they were; returns how many there were."""
        present = [digest for digest in dict.fromkeys(digests) if digest in self]
        if not present:
            return 0
        self._places.leave(present)
        self._recover()
        return len(present)

    def _recover(self) -> None:
        """Zero and free the pending places; also drops what a crash left of an index."""
        if self._places.pending:
            self._claim()
            memory = self._map("r+")
            for place in self._places.pending:
                memory[place] = 0
            memory.flush()
            with self._rows_path.open("r+b") as file:  # Windows syncs only what may be written
                os.fsync(file.fileno())
            self._places.release()
        elif not self._places.is_whole:
            self._places.write()

    def _claim(self) -> None:
        """Make the file as long as its rows need.

        They are written through a memory map, where a full disk would be a fatal signal: the place is
        claimed now, so that it is an error.
        """
        capacity = self._places.capacity
        if self._claimed == capacity and capacity:
            return
        size = capacity * self._row_bytes
        handle = os.open(self._rows_path, os.O_RDWR | os.O_CREAT | BINARY, PRIVATE)
        try:
            set_mode(handle, mode_in(self.path))
            os.ftruncate(handle, size)
            if size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(handle, 0, size)
        finally:
            os.close(handle)
        self._claimed = capacity

    def _map(self, mode: str) -> np.memmap:
        return np.memmap(  # type: ignore[call-overload]
            self._rows_path, dtype=self.dtype, mode=mode, shape=(self._places.capacity, *self.shape)
        )

    def _read_index(self) -> Places:
        try:
            places = Places.read(self.path, self.shape)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
            raise self._damaged() from problem
        if places.shape != self.shape:
            raise EffaceError(
                f"the cache at {self.path.name} holds rows of shape {places.shape}, not {self.shape}.",
                "use another cache directory, or delete this one.",
            )
        found = self._rows_path.stat().st_size if self._rows_path.is_file() else 0
        if places.slots and found < places.capacity * self._row_bytes:
            raise self._damaged()
        return places

    def _damaged(self) -> FormatError:
        message = f"the index of activations in {self.path.name} does not fit the rows."
        advice = "restore it from a copy; a --cache folder can be deleted, and takes one process at a time."
        return FormatError(message, advice)

    def digest_of(self, digests: Sequence[str]) -> str:
        """SHA-256 of these records' digests and rows, in order."""
        result, rows = hashlib.sha256(), self.rows(digests)
        for digest, row in zip(digests, (rows.memory[slot] for slot in rows.slots), strict=True):
            result.update(digest.encode() + np.ascontiguousarray(row).tobytes())
        return result.hexdigest()

    def is_tidy(self) -> bool:
        """Whether every place that belongs to no record holds zeros, and none is pending."""
        places = self._places
        if places.pending or not places.capacity or not self._rows_path.is_file():
            return not places.pending
        memory = self._map("r")
        return not any(memory[place].any() for place in places.free)


def own_copy(activations: Tensor) -> Tensor:
    """float32, never the caller's memory: the tail may begin with a module that works in place."""
    return activations.to(torch.float32, copy=True)
