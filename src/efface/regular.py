"""Files of other people, read with care: regular files only, and none larger than it may be."""

from __future__ import annotations

import os
import stat
from pathlib import Path

# at once, even if it is a pipe by now; as it is, where Windows would change line ends
FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

LARGEST_IMAGE = 1 << 28  # bytes of an image file
LARGEST_LIST = 1 << 30  # of a CSV or JSON-lines file
LARGEST_TABLE = 1 << 35  # of an .npz or Parquet file, unpacked


def read_regular(path: Path, limit: int = LARGEST_IMAGE) -> bytes:
    """The file's bytes; ValueError for a pipe, a device or a folder, and for more than ``limit`` bytes."""
    _check(os.stat(path), limit)  # before it is opened: opening a device may do something
    handle = os.open(path, FLAGS)
    with os.fdopen(handle, "rb") as file:
        _check(os.fstat(handle), limit)  # and after, because it may be another one now
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"more than {limit >> 20} MB")
    return data


def check_regular(path: Path, limit: int) -> None:
    """The same checks for a file that something else will read."""
    _check(os.stat(path), limit)


def _check(found: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is not a regular file")
    if found.st_size > limit:
        raise ValueError(f"it has {found.st_size >> 20} MB, more than {limit >> 20}")


def objection(root: Path, entry: Path) -> str | None:
    """Why an entry of a folder is not read, or None: links that lead out, pipes and devices, odd names."""
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if entry.is_symlink() and not entry.resolve().is_relative_to(root.resolve()):
        return "a link that leads out of the folder"
    if entry.is_dir() or not entry.exists():  # a missing file is said to be missing when it is read
        return None
    return None if entry.is_file() else "not a regular file"
