"""Boundary activations, computed once a record: a memory-mapped file of fixed-size rows.

The file's directory is named by the prefix's digest, so another core never reads them; a row is found by
the record's content digest, never by its file name. ``purge`` overwrites a record's row with zeros and
frees its place: nothing of the record is left in the file.

Before a row is written or zeroed, the index lists its place as pending; after a crash, opening the cache
zeroes what is pending. So no row outlives its entry in the index, and no entry points to a zeroed row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from efface.errors import EffaceError
from efface.records import Records

# Floats in two widths; integers, which are what they are.
DTYPES = ("float32", "float16", "uint8", "int16")
Progress = Callable[[float, str], None]


class Activations(Protocol):
    """What problems need: rows by index, a tensor or a memory map alike."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor | slice) -> Tensor: ...


class Rows:
    """Some rows of a cache in a given order; indexing reads them from the map."""

    def __init__(self, memory: np.ndarray, slots: np.ndarray) -> None:
        self.memory, self.slots = memory, slots

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, index: Tensor | slice | np.ndarray) -> Tensor:
        if isinstance(index, Tensor):
            index = index.numpy()
        return torch.from_numpy(np.asarray(self.memory[self.slots[index]]))

    def select(self, index: np.ndarray) -> Rows:
        return Rows(self.memory, self.slots[index])


def gather(
    records: Records,
    cache: ActivationCache | None,
    boundary: Callable[[Records], Tensor],
    shape: Sequence[int],
    *,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Activations:
    """Activations of the records: from the cache where they are, else from ``boundary``, and kept there."""
    todo = list(range(len(records))) if cache is None else cache.missing(records.digests)
    parts = []
    for start in range(0, len(todo), batch_size):
        batch = records[todo[start : start + batch_size]]
        rows = boundary(batch)
        if cache is None:
            parts.append(rows)
        else:
            cache.put(batch.digests, rows)
        if progress is not None:
            done = min(start + batch_size, len(todo))
            progress(done / len(todo), f"activations {done}/{len(todo)}")
    if cache is not None:
        return cache.rows(records.digests)
    return torch.cat(parts) if parts else torch.zeros(0, *shape)


class ActivationCache:
    """``directory/<key>/rows.bin`` and ``index.json``; ``key`` is the prefix's digest and the dtype."""

    def __init__(
        self,
        directory: Path | str,
        prefix_digest: str,
        shape: Sequence[int],
        dtype: str = "float32",
    ) -> None:
        if dtype not in DTYPES:
            raise EffaceError(
                f"activations cannot be kept as {dtype!r}.", f"use one of {', '.join(DTYPES)}."
            )
        self.prefix_digest = prefix_digest
        self.path = Path(directory) / f"{prefix_digest[:24]}-{dtype}"
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.path.mkdir(parents=True, exist_ok=True)
        self._slots, self._free, self._pending, self._capacity = self._read_index()
        self._recover()

    @property
    def _rows_path(self) -> Path:
        return self.path / "rows.bin"

    @property
    def _index_path(self) -> Path:
        return self.path / "index.json"

    def __contains__(self, digest: str) -> bool:
        return digest in self._slots

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def digests(self) -> set[str]:
        return set(self._slots)

    def missing(self, digests: Sequence[str]) -> list[int]:
        """Positions in ``digests`` that have no row yet (the first of repeated ones only)."""
        seen: set[str] = set()
        result = []
        for position, digest in enumerate(digests):
            if digest not in self._slots and digest not in seen:
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
        new = [digest for digest in dict.fromkeys(digests) if digest not in self._slots]
        self._pending = self._allocate(len(new))
        self._write_index()
        slots = {**self._slots, **dict(zip(new, self._pending, strict=True))}
        memory = self._map("r+")
        for digest, row in zip(digests, values, strict=True):
            memory[slots[digest]] = row
        memory.flush()
        self._slots, self._pending = slots, []
        self._write_index()

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

    def rows(self, digests: Sequence[str]) -> Rows:
        slots = np.array([self._slots[d] for d in digests], dtype=np.int64)
        return Rows(self._map("r") if len(slots) else np.empty((0, *self.shape), self.dtype), slots)

    def purge(self, digests: Sequence[str]) -> int:
        """Zero the rows of these records and forget where they were; returns how many there were."""
        present = [d for d in dict.fromkeys(digests) if d in self._slots]
        if not present:
            return 0
        self._pending = [self._slots.pop(digest) for digest in present]
        self._write_index()
        self._recover()
        return len(present)

    def _recover(self) -> None:
        """Zero and free the pending places; also drops an index that was never put in place."""
        self._index_path.with_suffix(".tmp").unlink(missing_ok=True)
        if not self._pending:
            return
        memory = self._map("r+")
        for slot in self._pending:
            memory[slot] = 0
        memory.flush()
        with self._rows_path.open("rb") as file:
            os.fsync(file.fileno())
        self._free, self._pending = self._free + self._pending, []
        self._write_index()

    def _allocate(self, count: int) -> list[int]:
        while len(self._free) < count:
            grown = max(self._capacity, 64)
            self._free += range(self._capacity, self._capacity + grown)
            self._capacity += grown
        size = self._capacity * int(np.prod(self.shape)) * self.dtype.itemsize
        with self._rows_path.open("ab") as file:
            file.truncate(size)
            # Rows are written through a memory map, where a full disk would be a fatal signal: claim
            # the place now, so that it is an error.
            if size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def _map(self, mode: str) -> np.memmap:
        return np.memmap(  # type: ignore[call-overload]
            self._rows_path, dtype=self.dtype, mode=mode, shape=(self._capacity, *self.shape)
        )

    def _read_index(self) -> tuple[dict[str, int], list[int], list[int], int]:
        if not self._index_path.is_file():
            return {}, [], [], 0
        values = json.loads(self._index_path.read_text())
        if tuple(values["shape"]) != self.shape:
            raise EffaceError(
                f"the cache at {self.path.name} holds rows of shape {tuple(values['shape'])}, "
                f"not {self.shape}.",
                "use another cache directory, or delete this one.",
            )
        slots, free, pending = dict(values["slots"]), list(values["free"]), list(values["pending"])
        return slots, free, pending, int(values["capacity"])

    def _write_index(self) -> None:
        values = {
            "shape": self.shape,
            "capacity": self._capacity,
            "slots": self._slots,
            "free": self._free,
            "pending": self._pending,
        }
        temporary = self._index_path.with_suffix(".tmp")
        with temporary.open("w") as file:
            file.write(json.dumps(values))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._index_path)
