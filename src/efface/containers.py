"""What is inside a file: the members of archives and the content of compressed files, within limits.

Nothing is written, and no member is believed about its size: reading stops at the limit.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

LARGEST = 1 << 28  # bytes of one member
TOTAL = 1 << 30  # of all members of one file, those of archives in it included
DEPTH = 4
STREAMS = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\x00", lzma.open))
DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,  # an encrypted member
    NotImplementedError,
    KeyError,
    IndexError,
    OverflowError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    tarfile.TarError,
)


class TooLarge(Exception):
    """There is more in it than is looked at."""


@dataclass
class _Budget:
    left: int = field(default=TOTAL)

    def read(self, file: Any) -> bytes:
        limit = min(LARGEST, self.left)
        data = file.read(limit + 1)
        if len(data) > limit:
            raise TooLarge
        self.left -= len(data)
        return data


def inside(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of everything in there, archives in archives included; none if it is no archive.

    Raises :class:`TooLarge`, or one of ``DAMAGED``, where it cannot go on.
    """
    yield from _open(data, _Budget(), 0)


def _open(data: bytes, budget: _Budget, depth: int) -> Iterator[tuple[str, bytes]]:
    for name, content in _members(data, budget):
        yield name, content
        if depth + 1 < DEPTH:
            for below, inner in _open(content, budget, depth + 1):
                yield f"{name}/{below}", inner
        elif _is_archive(content):
            raise TooLarge


def _is_archive(data: bytes) -> bool:
    compressed = any(data.startswith(magic) for magic, _ in STREAMS)
    return compressed or _is_tar(data) or data[:4] == b"PK\x03\x04"


def _is_tar(data: bytes) -> bool:
    return data[257:262] == b"ustar"


def _members(data: bytes, budget: _Budget) -> Iterator[tuple[str, bytes]]:
    for magic, opener in STREAMS:
        if data.startswith(magic):
            with opener(io.BytesIO(data)) as stream:
                yield "content", budget.read(stream)
            return
    if _is_tar(data):
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for member in tar:
                opened = tar.extractfile(member) if member.isreg() else None
                yield member.name, b"" if opened is None else budget.read(opened)
    elif zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.infolist():
                with archive.open(entry) as stream:
                    yield entry.filename, budget.read(stream)
