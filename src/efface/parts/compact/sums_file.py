"""Exact sums in a file."""

from __future__ import annotations

from pathlib import Path

from efface import files
from efface.parts.compact.statistics import Statistics


def write_sums(path: Path, sums: Statistics) -> None:
    files.write_arrays(path, sums.to_arrays())


def read_sums(path: Path) -> Statistics:
    """The inverse; nothing in the file is believed."""
    arrays = files.read_arrays(path)
    with files.as_saved(path):
        return Statistics.from_arrays(arrays)
