"""A disk that fails at exactly one operation of our choice, or shows what a process leaves that dies there.

Every call that changes the disk is counted: creating, writing, syncing, renaming, deleting, truncating,
changing modes, what safetensors and numpy write by themselves, and every statement of SQLite.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
from safetensors import SafetensorError

from efface.ledger import sqlite

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
SQLITE = {
    errno.ENOSPC: sqlite3.SQLITE_FULL,
    errno.EIO: sqlite3.SQLITE_IOERR,
    errno.EPERM: sqlite3.SQLITE_PERM,
}
DELETING = ("unlink", "remove")
CALLS = (
    *("replace", "rename", "rmdir", "mkdir", "chmod", "fchmod", *DELETING),
    *("fsync", "ftruncate", "posix_fallocate"),
)


@dataclass
class Disk:
    """Counts operations; ``done`` names them.

    ``at`` is the one that fails, with ``error``, after half of what was to be written; −1: none does.
    ``watch`` is called with the number of every operation before it happens, and once more when half is
    written: what is on the disk then is what a process leaves that dies there.
    """

    at: int = -1
    error: int = 0
    watch: Callable[[int], object] = lambda _: None
    done: list[str] = field(default_factory=list)
    watching: bool = False
    one: RLock = field(default_factory=RLock)  # several threads may wait for the disk

    def step(self, name: str, half: Callable[[], object] = lambda: None) -> None:
        with self.one:
            if self.watching:  # what the watcher does is not the program's
                return
            self.watching = True
            try:
                number = self._step(name, half)
            finally:
                self.watching = False
        if number == self.at:
            raise OSError(self.error, os.strerror(self.error))

    def _step(self, name: str, half: Callable[[], object]) -> int:
        number = len(self.done)
        self.done.append(name)
        self.watch(number)
        half()
        self.watch(number)
        return number

    @contextmanager
    def installed(self) -> Iterator[Disk]:
        with pytest.MonkeyPatch.context() as patch:
            for name in filter(partial(hasattr, os), CALLS):  # macOS has no posix_fallocate
                patch.setattr(os, name, self._plain(name, getattr(os, name)))
            patch.setattr(os, "open", self._open(os.open))
            patch.setattr(os, "write", self._write(os.write))
            for writer in (safetensors.torch, safetensors.numpy):
                patch.setattr(writer, "save_file", self._save(writer.save_file))
            patch.setattr(sqlite, "run", self._run(sqlite.run))
            patch.setattr(np.memmap, "flush", self._plain("flush", np.memmap.flush))
            yield self

    def _plain(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if name not in DELETING or _is_there(args[0], options.get("dir_fd")):
                self.step(f"{name} {_short(args[0])}")
            return real(*args, **options)

        return call

    def _open(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, *args: Any, **options: Any) -> int:
            if flags & WRITING:
                self.step(f"open {_short(path)}")
            return real(path, flags, *args, **options)

        return call

    def _write(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(handle: int, data: Any) -> int:
            if self.watching:
                return real(handle, data)
            first = len(data) // 2
            self.step("write", lambda: real(handle, data[:first]))
            return first + real(handle, data[first:])

        return call

    def _run(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """What SQLite does to the disk, statement by statement; it tells of errors in its own way."""

        def call(connection: Any, sql: str, params: Any = ()) -> Any:
            try:
                self.step(f"sql {sql}")
            except OSError as error:
                problem = sqlite3.OperationalError(error.strerror)
                problem.sqlite_errorcode = SQLITE[error.errno]  # type: ignore[index]
                raise problem from None
            return real(connection, sql, params)

        return call

    def _save(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(tensors: Any, path: Path) -> None:
            try:
                self.step(f"save {_short(path)}", lambda: path.write_bytes(b"\x08" + bytes(40)))
            except OSError as problem:  # safetensors' way to say it
                text = f"I/O error: {problem.strerror} (os error {problem.errno})"
                raise SafetensorError(text) from None
            path.unlink()
            real(tensors, path)

        return call


def _is_there(path: Any, folder: int | None) -> bool:
    try:
        return stat.S_IFMT(os.lstat(path, dir_fd=folder).st_mode) != 0
    except FileNotFoundError:
        return False


def _short(path: Any) -> str:
    return str(path).rpartition("/")[2] if isinstance(path, str | Path) else ""
