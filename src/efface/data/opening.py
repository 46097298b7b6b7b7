"""Which reader: from what somebody typed to what is there."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from efface.data.blobs import LocalBlob, is_url
from efface.data.found import Found, PathLike
from efface.data.named.layouts import NAMES, find_layout, find_named, locate, parse, recognise
from efface.data.readers.arrays import find_digits, find_npz
from efface.data.readers.delta import LOG, find_delta
from efface.data.readers.folder import find_folder
from efface.data.readers.memory import path_of_url
from efface.data.readers.metadata import METADATA_NAMES, find_metadata
from efface.data.readers.parquet import find_parquet
from efface.data.readers.remote import find_remote
from efface.data.readers.webdataset import find_webdataset
from efface.errors import FormatError
from efface.regular import objection

Pieces = Callable[[str], bool] | None


def find(spec: PathLike, *, absolute_paths: bool = False, pieces: Pieces = None) -> Found:
    """Chooses the reader by what ``spec`` names or what it finds there.

    "digits" is the embedded example; ``cub200`` and ``cub200:DIR`` name a data set, see ``layouts``.
    With ``absolute_paths`` a list may name files anywhere. Archives that must be read to know what is in
    them are opened only if they are among the ``pieces``.
    """
    if spec == "digits":
        return find_digits()
    named = None if is_url(spec) else parse(spec)
    if named is not None:
        return find_named(named)
    if is_url(spec):
        return _find_url(str(spec), absolute_paths, pieces)
    path = Path(spec).expanduser()
    if path.is_dir():
        return _find_folder(path, absolute_paths, pieces)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return find_npz(path)
    if suffix == ".tar" and path.is_file():
        return find_webdataset([LocalBlob(path.absolute())], pieces)
    if suffix == ".parquet":
        return find_parquet(path, absolute_paths=absolute_paths)
    if suffix in (".csv", ".jsonl"):
        return find_metadata(path, absolute_paths=absolute_paths)
    what = "is nothing that can be read" if path.exists() else "is neither there nor a known name"
    raise FormatError(f"{str(spec)!r} {what}.", _advice(str(spec)))


def absolute(spec: str) -> str:
    """The same data, asked for in whatever folder; a data set that is named, with the folder it is in."""
    if spec == "digits" or is_url(spec):
        return spec
    named = parse(spec)
    if named is None:
        return str(Path(spec).expanduser().absolute())
    name = f"{named.name}-{named.variant}" if named.variant else named.name
    return f"{name}:{locate(named)[1].absolute()}"


def _find_folder(path: Path, absolute_paths: bool, pieces: Pieces) -> Found:
    """A listing says what a folder is; without one its files do."""
    if any((path / name).is_file() for name in METADATA_NAMES):
        return find_metadata(path, absolute_paths=absolute_paths)
    if (path / LOG).is_dir():
        log = [entry.name for entry in (path / LOG).iterdir()]
        return find_delta(str(path), log, lambda name: _inside(path, name))
    if any(path.glob("*.parquet")):
        return find_parquet(path, absolute_paths=absolute_paths)
    known = recognise(path)
    if known is not None:
        return find_layout(*known)
    shards = sorted(path.glob("*.tar"))
    if shards and not any(entry.is_dir() for entry in path.iterdir()):
        return find_webdataset([_inside(path, shard.name) for shard in shards], pieces)
    return find_folder(path)


def _inside(folder: Path, name: str) -> LocalBlob:
    """A file of the folder, which is no link to somewhere else."""
    root = folder.absolute()
    problem = objection(root, root / name)
    if problem is not None:
        raise FormatError(
            f"{name} in {str(folder)!r}: {problem}.", "take it out, or copy the file."
        )
    return LocalBlob(root / name)


def _find_url(url: str, absolute_paths: bool, pieces: Pieces) -> Found:
    """``file:`` is this machine; every other scheme an object store."""
    if urlsplit(url).scheme.lower() == "file":
        return find(path_of_url(url, url), absolute_paths=absolute_paths, pieces=pieces)
    return find_remote(url, pieces)


def _advice(spec: str) -> str:
    name = spec.partition(":")[0]
    close = difflib.get_close_matches(name.lower(), ("digits", *NAMES), n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    return (
        f'{meant}give "digits", the name of a data set (`efface data list`), a folder, '
        "a .npz, .parquet, .tar, .csv or .jsonl file, or a URL (s3://…, gs://…, hf://…)."
    )
