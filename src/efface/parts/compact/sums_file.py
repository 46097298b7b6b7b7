"""Exact sums in a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from efface import files
from efface.errors import FormatError
from efface.files import Buffer
from efface.parts.compact.statistics import Statistics

NAME = "statistics.safetensors"
SUMS = "sums:"  # before a digest: it is that of the sums in the file
LARGE = 32 << 20  # bytes: less is written sooner than it is worth a thread's while


def write_sums(path: Path, sums: Statistics) -> None:
    """Some rows at a time, hashed on the way: the digest of the sums is that of the file, too."""
    if sums.limbs == 1:
        files.write_pieces(path, _pieces(sums))
    else:
        files.write_arrays(path, sums.to_arrays())
    files.already_hashed(path, SUMS + sums.digest())


def _pieces(sums: Statistics) -> Iterator[Buffer]:
    """What :func:`files.write_arrays` writes of one limb's words, none of it held in memory."""
    yield _head(sums)
    yield files.raw(sums.cross_words())
    left = sums.num_features * (sums.num_features + 1) // 2
    for words in sums.words():
        if left:
            yield files.raw(words)
        left = max(left - words.size, 0)
    yield files.raw(sums.header())


def _head(sums: Statistics) -> bytes:
    k, c, words = sums.num_features, sums.num_outputs, np.dtype("<i8")
    shapes = {"gram": (sums.limbs, k * (k + 1) // 2), "cross": (sums.limbs, k, c), "header": (8,)}
    head, order = files.head_of({name: (words, shape) for name, shape in shapes.items()})
    assert order == ["cross", "gram", "header"]
    return head


def read_sums(path: Path) -> Statistics:
    """The inverse; nothing in the file is believed."""
    arrays = files.map_arrays(path)
    with files.as_saved(path):
        return Statistics.from_arrays(arrays)


def holds(path: Path, digest: str) -> bool:
    """Whether the file is the one that :func:`write_sums` writes of the sums with this digest.

    Equal sums are equal files, so their digest tells as much as the file's own.
    """
    try:
        sums = read_sums(path)
    except FormatError:
        return False
    with path.open("rb") as file:
        head = file.read(len(_head(sums)))
    return head == _head(sums) and sums.digest() == digest


class Savable(Protocol):
    """What else is known before the weights are: the records that stay, and their rows."""

    def save(self, directory: Path, buckets: Path) -> None: ...


@dataclass
class SumsWriter:
    """Writes the sums of a request; where their ``folder`` is known before, while the weights are solved for,
    and before them what is ``left`` of the records, with its rows in ``buckets``.

    Sums are known long before weights, and the disk is slow. A folder without weights is no release, so it
    does not matter to anybody what lies in it when the process is killed.
    """

    folder: Path | None = None
    buckets: Path | None = None
    left: Savable | None = None
    saved: Savable | None = None  # what is there of that
    written: str | None = None  # digest of the sums that are there

    def ahead(self, sums: Statistics) -> None:
        """Large sums go to the disk now; if that fails, whoever saves them will say so. Others are hashed."""
        if self.folder is not None and 4 * sums.num_features**2 >= LARGE:
            try:
                self._save_left(self.folder)
                write_sums(self.folder / NAME, sums)
            except OSError:
                return
            self.written = sums.digest()
        sums.digest()  # the certificate will ask for it

    def note(self, left: Savable) -> None:
        """What will be left; not held where nothing is to be saved."""
        if self.folder is not None:
            self.left = left

    def _save_left(self, folder: Path) -> None:
        if self.left is not None and self.buckets is not None:
            with files.synced_together():
                self.left.save(folder, self.buckets)
            self.saved = self.left

    def save(self, folder: Path, sums: Statistics) -> None:
        """They are on disk, if only now."""
        path = folder / NAME
        if folder != self.folder or self.written != sums.digest():
            write_sums(path, sums)
        else:
            files.already_hashed(path, SUMS + self.written)
