"""Which reader: from what somebody typed to what is there."""

from __future__ import annotations

import difflib
from pathlib import Path

from efface.data.found import Found, PathLike
from efface.data.named.layouts import NAMES, find_layout, find_named, parse, recognise
from efface.data.readers.arrays import find_digits, find_npz
from efface.data.readers.folder import find_folder
from efface.data.readers.metadata import METADATA_NAMES, find_metadata
from efface.data.readers.parquet import find_parquet
from efface.errors import FormatError


def find(spec: PathLike, *, absolute_paths: bool = False) -> Found:
    """Chooses the reader by what ``spec`` names or what it finds there.

    "digits" is the embedded example; ``cub200`` and ``cub200:DIR`` name a data set, see ``layouts``.
    With ``absolute_paths`` a list may name files anywhere.
    """
    if spec == "digits":
        return find_digits()
    named = parse(spec)
    if named is not None:
        return find_named(named)
    path = Path(spec).expanduser()
    if path.is_dir():
        return _find_folder(path, absolute_paths)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return find_npz(path)
    if suffix == ".parquet":
        return find_parquet(path, absolute_paths=absolute_paths)
    if suffix in (".csv", ".jsonl"):
        return find_metadata(path, absolute_paths=absolute_paths)
    raise FormatError(f"{str(spec)!r} is nothing that can be read.", _advice(str(spec)))


def _find_folder(path: Path, absolute_paths: bool) -> Found:
    """A listing says what a folder is; without one its files do."""
    if any((path / name).is_file() for name in METADATA_NAMES):
        return find_metadata(path, absolute_paths=absolute_paths)
    if any(path.glob("*.parquet")):
        return find_parquet(path, absolute_paths=absolute_paths)
    known = recognise(path)
    return find_folder(path) if known is None else find_layout(*known)


def _advice(spec: str) -> str:
    name = spec.partition(":")[0]
    close = difflib.get_close_matches(name.lower(), ("digits", *NAMES), n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    return (
        f'{meant}give "digits", the name of a data set (`efface data list`), a folder, '
        "or a .npz, .parquet, .csv or .jsonl file."
    )
