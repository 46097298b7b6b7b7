"""Readers: from files as people keep them to ``Records``.

Every reader finds ``Row``s in its own layout and hands them to ``assemble``, where all the common
options and checks live: one rule for damaged images, labels, channels and classes, whatever the
layout. Nothing that was found is dropped without an entry in ``Records.skipped`` or ``.notes``.
Data sets with a name and a layout of their own are in ``layouts``.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Unpack

from efface.errors import FormatError
from efface.readers.arrays import read_digits, read_npz
from efface.readers.assemble import PathLike, ReadOptions
from efface.readers.folder import read_folder
from efface.readers.layouts import NAMES, parse, read_layout, read_named, recognise
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
    """Chooses the reader by what ``spec`` names or what it finds there.

    "digits" is the embedded example; ``cub200`` and ``cub200:DIR`` name a data set, see ``layouts``.
    """
    if spec == "digits":
        return read_digits(**options)
    named = parse(spec)
    if named is not None:
        return read_named(named, **options)
    path = Path(spec).expanduser()
    if path.is_dir():
        return _open_folder(path, **options)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return read_npz(path, **options)
    if suffix == ".parquet":
        return read_parquet(path, **options)
    if suffix in (".csv", ".jsonl"):
        return read_metadata(path, **options)
    raise FormatError(f"{str(spec)!r} is nothing that can be read.", _advice(str(spec)))


def _open_folder(path: Path, **options: Unpack[ReadOptions]) -> Records:
    """A listing says what a folder is; without one its files do."""
    if any((path / name).is_file() for name in METADATA_NAMES):
        return read_metadata(path, **options)
    if any(path.glob("*.parquet")):
        return read_parquet(path, **options)
    known = recognise(path)
    return read_folder(path, **options) if known is None else read_layout(*known, **options)


def _advice(spec: str) -> str:
    name = spec.partition(":")[0]
    close = difflib.get_close_matches(name.lower(), ("digits", *NAMES), n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    return (
        f'{meant}give "digits", the name of a data set (`efface data list`), a folder, '
        "or a .npz, .parquet, .csv or .jsonl file."
    )
