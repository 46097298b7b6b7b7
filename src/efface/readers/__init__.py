"""Readers: from files as people keep them to ``Records``.

Every reader finds ``Row``s in its own layout and hands them to ``assemble``, where all the common
options and checks live: one rule for damaged images, labels, channels and classes, whatever the
layout. Nothing that was found is dropped without an entry in ``Records.skipped`` or ``.notes``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from efface.errors import FormatError
from efface.readers.arrays import read_digits, read_npz
from efface.readers.assemble import PathLike, ReadOptions
from efface.readers.folder import read_folder
from efface.readers.metadata import METADATA_NAMES, read_metadata
from efface.readers.parquet import read_parquet
from efface.records import Records

__all__ = [
    "ReadOptions",
    "open_records",
    "read_digits",
    "read_folder",
    "read_metadata",
    "read_npz",
    "read_parquet",
]


def open_records(spec: PathLike, **options: Unpack[ReadOptions]) -> Records:
    """Chooses the reader by what it finds at ``spec``; "digits" is the embedded example."""
    if spec == "digits":
        return read_digits(**options)
    path = Path(spec).expanduser()
    if path.is_dir():
        if any((path / name).is_file() for name in METADATA_NAMES):
            return read_metadata(path, **options)
        if any(path.glob("*.parquet")):
            return read_parquet(path, **options)
        return read_folder(path, **options)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return read_npz(path, **options)
    if suffix == ".parquet":
        return read_parquet(path, **options)
    if suffix in (".csv", ".jsonl"):
        return read_metadata(path, **options)
    fix = 'give "digits", a folder, or a .npz, .parquet, .csv or .jsonl file.'
    raise FormatError(f"{str(spec)!r} is nothing that can be read.", fix)
