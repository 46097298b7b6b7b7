"""Data in an object store: the layouts of local data, by URL.

What a list names stays below the list's folder; nothing is copied to this machine's disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePosixPath, PureWindowsPath

from efface.data.blobs import SEPARATOR, BlobImage, RemoteBlob, checked_url, files_below
from efface.data.found import SPLITS, Found, Row
from efface.data.images import ImageSource
from efface.data.readers.delta import LOG, find_delta
from efface.data.readers.folder import IMAGE_SUFFIXES, OUTSIDE
from efface.data.readers.metadata import METADATA_NAMES, listed_rows
from efface.data.readers.parquet import ParquetTable, find_tables
from efface.data.readers.webdataset import find_webdataset
from efface.data.record import Skipped, Split
from efface.errors import FormatError, RecordError
from efface.regular import LARGEST_LIST

LISTS = (".csv", ".jsonl")


def find_remote(url: str, pieces: Callable[[str], bool] | None = None) -> Found:
    """A .tar, .parquet, .csv or .jsonl file, or a folder in one of the layouts of local ones."""
    url = checked_url(url)
    folder, _, name = url.rpartition("/")
    ending = PurePosixPath(name).suffix.lower()
    if ending == ".tar":
        return find_webdataset([RemoteBlob(url)], pieces)
    if ending == ".parquet":
        return _parquet(folder, [name])
    if ending in LISTS:
        return _listed(folder, name)
    return _find_folder(url, files_below(url), pieces)


def _find_folder(url: str, names: Sequence[str], pieces: Callable[[str], bool] | None) -> Found:
    """A listing says what a folder is; without one its files do."""
    top = [name for name in names if "/" not in name]
    lists = [name for name in METADATA_NAMES if name in top]
    if len(lists) > 1:
        fix = "keep exactly one of the two."
        raise FormatError(f"both metadata.csv and metadata.jsonl in {url}.", fix)
    if lists:
        return _listed(url, lists[0])
    log = [name.removeprefix(f"{LOG}/") for name in names if name.startswith(f"{LOG}/")]
    if log:
        return find_delta(url, log, lambda name: RemoteBlob(f"{url}/{name}"))
    tables = [name for name in top if name.endswith(".parquet")]
    if tables:
        return _parquet(url, tables)
    shards = [name for name in top if name.endswith(".tar")]
    if shards:
        return find_webdataset([RemoteBlob(f"{url}/{name}") for name in shards], pieces)
    return _classes(url, names)


def _parquet(folder: str, names: Sequence[str]) -> Found:
    blobs = [RemoteBlob(f"{folder}/{name}") for name in names]
    return find_tables([ParquetTable(blob, lambda n, r: _below(folder, n, r)) for blob in blobs])


def _listed(folder: str, name: str) -> Found:
    blob = RemoteBlob(f"{folder}/{name}")

    def read() -> bytes:
        try:
            return blob.read(LARGEST_LIST)
        except OSError as problem:
            message = f"{blob.url} cannot be read ({problem!s:.200})."
            raise FormatError(
                message, "check the address, and that you may read there."
            ) from problem

    return Found(listed_rows(name, read, lambda n, r: _below(folder, n, r)))


def _below(folder: str, name: str, record_id: str) -> ImageSource:
    """The image that a list names: below the list's folder, whatever is asked for."""
    parts = PurePosixPath(name)
    absolute = parts.is_absolute() or PureWindowsPath(name).is_absolute()
    if absolute or ".." in parts.parts or SEPARATOR in name or "::" in name or "\0" in name:
        message = f"file_name {name!r} leads out of the folder."
        fix = "keep the files below the list's folder and name them relative to it."
        raise RecordError(record_id, message, fix)
    return BlobImage(RemoteBlob(f"{folder}/{parts.as_posix()}"))


def _classes(url: str, names: Sequence[str]) -> Found:
    """``<split>/<class>/**/image`` or ``<class>/**/image`` (then all is user data)."""
    parts = [(name, PurePosixPath(name).parts) for name in names]
    split = any(len(p) > 2 and p[0].lower() in SPLITS for _, p in parts)
    rows: list[Row] = []
    skipped: list[Skipped] = []
    for name, path in parts:
        known = SPLITS.get(path[0].lower()) if split else Split.USER
        below = path[1:] if split else path
        if known is None or len(below) < 2:
            skipped.append(Skipped(name, OUTSIDE))
        elif PurePosixPath(name).suffix.lower() not in IMAGE_SUFFIXES:
            skipped.append(Skipped(name, "not an image file"))
        else:
            source = BlobImage(RemoteBlob(f"{url}/{name}"))
            rows.append(Row(name, below[0], source, known, owner=name))
    if not rows:
        fix = "give a folder of <class>/ folders, metadata.csv, Parquet files or tar shards."
        raise FormatError(f"no images below {url}.", fix)
    return Found(rows, skipped=skipped)
