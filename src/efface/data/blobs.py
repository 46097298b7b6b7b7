"""Blobs: files of other people that need not be on this machine, and images that are all or part of one.

A blob is named by a path or by a URL of an object store, read through fsspec (extra ``remote``). Whatever it
claims to be, no more of it is read than the limits of ``regular`` allow. Nothing is written anywhere.
"""

from __future__ import annotations

import errno
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from efface.errors import EffaceError, FormatError
from efface.regular import LARGEST_IMAGE, LARGEST_TABLE, check_regular, read_regular

SEPARATOR = "://"
# The stores that are read, each with the package that fsspec needs for it.
STORES = {
    **{"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub"},
    **{"az": "adlfs", "abfs": "adlfs", "memory": ""},
}


class Blob(ABC):
    """One file, wherever it is; abstract. Equal blobs are the same place."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called, without the folder."""

    @property
    def stem(self) -> str:
        return PurePosixPath(self.name).stem

    @abstractmethod
    def size(self) -> int:
        """In bytes; OSError or ValueError for what is no file, or larger than any table."""

    @abstractmethod
    def open(self) -> IO[bytes]:
        """To be read from anywhere within, and closed."""

    @abstractmethod
    def part(self, start: int, size: int) -> bytes:
        """So many bytes from there on, fewer at the end."""

    def read(self, limit: int = LARGEST_IMAGE) -> bytes:
        """All of it; ValueError for more than ``limit`` bytes."""
        data = self.part(0, limit + 1)
        if len(data) > limit:
            raise ValueError(f"more than {limit >> 20} MB")
        return data


@dataclass(frozen=True)
class LocalBlob(Blob):
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    def size(self) -> int:
        check_regular(self.path, LARGEST_TABLE)
        return self.path.stat().st_size

    def open(self) -> IO[bytes]:
        check_regular(self.path, LARGEST_TABLE)
        return self.path.open("rb")

    def part(self, start: int, size: int) -> bytes:
        with self.open() as file:
            file.seek(start)
            return file.read(size)

    def read(self, limit: int = LARGEST_IMAGE) -> bytes:
        return read_regular(self.path, limit)


@dataclass(frozen=True)
class RemoteBlob(Blob):
    """Of an object store: ``url`` is what :func:`is_remote` takes."""

    url: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def size(self) -> int:
        files, path = file_system(self.url)
        with _reading(self.url):
            size = int(files.size(path))
        if size > LARGEST_TABLE:
            raise ValueError(f"it has {size >> 30} GB, more than {LARGEST_TABLE >> 30}")
        return size

    def open(self) -> IO[bytes]:
        self.size()
        files, path = file_system(self.url)
        with _reading(self.url):
            opened: IO[bytes] = files.open(path, "rb")
            return opened

    def part(self, start: int, size: int) -> bytes:
        files, path = file_system(self.url)
        with _reading(self.url):
            return bytes(files.cat_file(path, start=start, end=start + size))


@contextmanager
def _reading(url: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as problem:  # stores do not say which
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from problem


# Images.


@dataclass(frozen=True)
class BlobImage:
    """A whole blob."""

    blob: Blob

    def content(self) -> bytes:
        return self.blob.read()


@dataclass(frozen=True)
class BlobPart:
    """Some bytes of a blob: a member of an archive that is not compressed."""

    blob: Blob
    start: int
    size: int

    def content(self) -> bytes:
        if self.size > LARGEST_IMAGE:
            raise ValueError(f"it has {self.size >> 20} MB, more than {LARGEST_IMAGE >> 20}")
        data = self.blob.part(self.start, self.size)
        if len(data) != self.size:
            raise ValueError(f"{self.blob.name} ends before it")
        return data


# URLs.


def is_url(spec: object) -> bool:
    return isinstance(spec, str) and SEPARATOR in spec and not os.path.exists(spec)


def checked_url(url: str) -> str:
    """The URL without what ends in nothing; FormatError for one that is not read."""
    scheme, _, rest = url.partition(SEPARATOR)
    if scheme not in STORES:
        fix = f"use {', '.join(sorted(STORES))}, or a path."
        raise FormatError(f"{scheme}:// is not read.", fix)
    if "::" in url or "\0" in url or ".." in PurePosixPath(rest).parts or not rest.strip("/"):
        fix = f"write {scheme}://bucket/folder, without '::' and '..'."
        raise FormatError(f"{url!r} is no plain address.", fix)
    return url.rstrip("/")


def file_system(url: str) -> tuple[Any, str]:
    """fsspec's file system, and the path in it."""
    url = checked_url(url)
    scheme = url.partition(SEPARATOR)[0]
    try:
        from fsspec.core import url_to_fs

        files, path = url_to_fs(url)
    except (ImportError, ValueError) as problem:
        package = f" {STORES[scheme]}" if STORES[scheme] else ""
        fix = f'pip install "efface[remote]"{package}.'
        raise EffaceError(f"{scheme}:// cannot be read here ({problem}).", fix) from problem
    return files, str(path)


def files_below(url: str) -> list[str]:
    """The names of all files below, relative and sorted; nothing that begins with a dot."""
    files, root = file_system(url)
    try:
        found = files.find(root, detail=True)
    except Exception as problem:  # each store raises what it likes
        fix = "check the address, and that you may read there."
        raise FormatError(f"{url} cannot be listed ({problem!s:.200}).", fix) from problem
    names = (str(path)[len(root) :].lstrip("/") for path, info in found.items() if _is_file(info))
    return sorted(n for n in names if n and not any(p.startswith(".") for p in n.split("/")))


def _is_file(info: Any) -> bool:
    return isinstance(info, dict) and info.get("type") == "file"


def as_file(blob: Blob) -> io.BytesIO | IO[bytes] | str:
    """What pyarrow reads: a path, or an open file."""
    if isinstance(blob, LocalBlob):
        blob.size()
        return str(blob.path)
    return blob.open()
