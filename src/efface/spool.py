"""A spool: rows of one shape, in memory while they are few, else in a file without a name.

The file is in the system's folder for temporary files (``TMPDIR``) and belongs to this process alone: it is
gone with the spool, and with a process that is killed.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from efface.errors import EffaceError

MOST_IN_MEMORY = 1 << 27  # bytes of one spool


class Spool:
    """Rows are appended, then read. ``on_disk`` says where they are.

    Args:
        most_in_memory: bytes; with more than these all rows go to disk. None: ``MOST_IN_MEMORY``.
    """

    def __init__(self, most_in_memory: int | None = None) -> None:
        self._most = MOST_IN_MEMORY if most_in_memory is None else most_in_memory
        self._parts: list[np.ndarray] = []
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()  # readers share the file's position
        self._shape: tuple[int, ...] | None = None
        self._dtype: np.dtype[Any] = np.dtype(np.uint8)
        self._len = 0

    def __len__(self) -> int:
        return self._len

    @property
    def on_disk(self) -> bool:
        return self._file is not None

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self._shape or (0,))) * self._dtype.itemsize

    def append(self, rows: np.ndarray) -> None:
        """More rows, (b, …), of the shape and type of the first."""
        if self._shape is None:
            self._shape, self._dtype = rows.shape[1:], rows.dtype
        if rows.shape[1:] != self._shape or rows.dtype != self._dtype:
            raise ValueError(f"{rows.shape[1:]} {rows.dtype} among {self._shape} {self._dtype}")
        self._len += len(rows)
        if self._file is None and self._len * self.row_bytes > self._most:
            self._to_disk()
        if self._file is None:
            self._parts.append(rows)
        else:
            self._write(rows)

    def _to_disk(self) -> None:
        with _making_room():
            self._file = tempfile.TemporaryFile(prefix="efface-")  # noqa: SIM115  # closed with us
        for part in self._parts:
            self._write(part)
        self._parts = []

    def _write(self, rows: np.ndarray) -> None:
        assert self._file is not None
        with _making_room():
            self._file.write(np.ascontiguousarray(rows).data)
            self._file.flush()  # an error of a full disk is raised here, and not later

    def whole(self) -> np.ndarray:
        """All rows; a copy only where they are on disk."""
        if self._file is not None:
            return self.take(np.arange(len(self)))
        self._parts = [np.concatenate(self._parts)] if len(self._parts) > 1 else self._parts
        return self._parts[0]

    def take(self, index: np.ndarray) -> np.ndarray:
        """The rows at these places, in the order asked for; a copy."""
        index = np.asarray(index, dtype=np.int64)
        if len(index) and (index.min() < 0 or index.max() >= len(self)):
            raise IndexError(f"row {index.max()} of {len(self)}")
        if self._file is None:
            return self.whole()[index]
        found = np.empty((len(index), *(self._shape or ())), self._dtype)
        order = np.argsort(index, kind="stable")
        runs = np.flatnonzero(np.diff(index[order]) != 1) + 1
        for run in np.split(order, runs):  # rows that lie one after the other
            if len(run):
                found[run] = self._read(int(index[run[0]]), len(run))
        return found

    def _read(self, start: int, count: int) -> np.ndarray:
        assert self._file is not None
        assert self._shape is not None
        rows = np.empty((count, *self._shape), self._dtype)
        with self._lock:
            self._file.seek(start * self.row_bytes)
            read = self._file.readinto(rows.data.cast("B"))  # type: ignore[attr-defined]
        if read != rows.nbytes:
            raise EffaceError("a temporary file is shorter than it was.", "begin anew.")
        return rows

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()


@contextmanager
def _making_room() -> Iterator[None]:
    """A full disk, told with what to do about it."""
    try:
        yield
    except OSError as problem:
        message = f"{tempfile.gettempdir()} cannot take temporary files ({problem.strerror})."
        fix = "make room there, or set TMPDIR to a folder with room."
        raise EffaceError(message, fix) from problem
