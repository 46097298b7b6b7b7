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
    """A file, or a folder with all that is in it; of a link the link alone."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_full(problem: BaseException) -> bool:
    """Whether the disk (or the quota, or the limit on files) was full; safetensors only says so in words."""
    if isinstance(problem, SafetensorError):
        return any(f"os error {number})" in str(problem) for number in FULL)
    return isinstance(problem, OSError) and problem.errno in FULL


def is_disk(problem: BaseException) -> bool:
    """Whether the disk failed in any way: full, damaged, read-only, forbidden."""
    if isinstance(problem, SafetensorError):
        return "os error" in str(problem)
    return isinstance(problem, OSError)


def told(problem: BaseException) -> str:
    """What happened, as the beginning of a sentence."""
    if is_full(problem):
        return "the disk is full"
    if not isinstance(problem, OSError):
        return f"the disk failed ({problem})"
    where = f", {problem.filename}" if problem.filename else ""
    return f"the disk failed ({problem.strerror or problem}{where})"


@contextmanager
def explaining_the_disk(state: str, fix: str) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as problem:
        if not is_disk(problem):
            raise
        fix = fix if is_full(problem) else fix.replace("free some space", "mend the disk")
        raise EffaceError(f"{told(problem)}; {state}", fix) from problem
