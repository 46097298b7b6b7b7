"""The disk: digests of files, their removal, and what to say when there is no room left."""

from __future__ import annotations

import errno
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from efface.errors import EffaceError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_full(problem: BaseException) -> bool:
    """Whether the disk (or the quota, or the limit on files) was full; safetensors only says so in words."""
    if isinstance(problem, SafetensorError):
        return any(f"os error {number})" in str(problem) for number in FULL)
    return isinstance(problem, OSError) and problem.errno in FULL


@contextmanager
def explaining_a_full_disk(state: str, fix: str) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as problem:
        if not is_full(problem):
            raise
        raise EffaceError(f"the disk is full; {state}", fix) from problem
