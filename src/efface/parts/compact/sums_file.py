"""Exact sums in a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from efface import files
from efface.parts.compact.statistics import Statistics

NAME = "statistics.safetensors"
LARGE = 32 << 20  # bytes: less is written sooner than it is worth a thread's while


def write_sums(path: Path, sums: Statistics) -> None:
    files.write_arrays(path, sums.to_arrays())


def read_sums(path: Path) -> Statistics:
    """The inverse; nothing in the file is believed."""
    arrays = files.read_arrays(path)
    with files.as_saved(path):
        return Statistics.from_arrays(arrays)


@dataclass
class SumsWriter:
    """Writes the sums of a request; where their ``folder`` is known before, while the weights are solved for.

    Sums are known long before weights, and the disk is slow. A folder without weights is no release, so it
    does not matter to anybody what lies in it when the process is killed.
    """

    folder: Path | None = None
    written: str | None = None  # digest of the sums that are there
    sha256: str | None = None  # of the file, where it is known

    def ahead(self, sums: Statistics) -> None:
        """Large sums go to the disk now; if that fails, :meth:`save` will say so. Others are hashed."""
        if self.folder is not None and 4 * sums.num_features**2 >= LARGE:
            try:
                with files.hashing() as known:
                    write_sums(self.folder / NAME, sums)
            except OSError:
                return
            self.written, self.sha256 = sums.digest(), known.get(self.folder / NAME)
        sums.digest()  # the certificate will ask for it

    def save(self, folder: Path, sums: Statistics) -> None:
        """They are on disk, if only now."""
        path = folder / NAME
        if folder != self.folder or self.written != sums.digest():
            write_sums(path, sums)
        elif self.sha256 is not None:
            files.already_hashed(path, self.sha256)
