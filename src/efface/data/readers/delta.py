"""Delta tables: Parquet files, and a log that says which of them count.

Deleted rows stay in files that the log has dropped: reading all Parquet files of the folder would bring back
people who were deleted. So the log is read, and a table that needs more than the first version of readers
(deletion vectors, say) is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

from efface.data.blobs import Blob
from efface.data.found import Found
from efface.data.images import ImageSource
from efface.data.readers.parquet import ParquetTable, find_tables, opened
from efface.errors import FormatError, RecordError
from efface.regular import LARGEST_LIST

LOG = "_delta_log"
COMMIT = re.compile(r"(\d{20})\.json")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
NEWER = "export it as Parquet files, and give their folder."


def find_delta(name: str, names: Iterable[str], blob: Callable[[str], Blob]) -> Found:
    """The table's rows as they are now. ``names`` are those of its log's files, ``blob`` opens one."""
    names = sorted(names)
    versions = [int(m[1]) for m in map(CHECKPOINT.fullmatch, names) if m]
    start = max(versions, default=-1)
    if any(".checkpoint." in n and not CHECKPOINT.fullmatch(n) for n in names) and start < 0:
        raise FormatError(f"{name} has a checkpoint in several parts.", NEWER)
    files: dict[str, Mapping[str, Any]] = {}
    if start >= 0:
        _apply(name, files, _checkpoint(blob(f"{LOG}/{start:020d}.checkpoint.parquet")))
    commits = [(int(m[1]), n) for n, m in ((n, COMMIT.fullmatch(n)) for n in names) if m]
    later = [(version, n) for version, n in commits if version > start]
    if [version for version, _ in later] != list(range(start + 1, start + 1 + len(later))):
        raise FormatError(f"{name}: the log in {LOG} has gaps.", "restore it from a copy.")
    for _, commit in later:
        _apply(name, files, _actions(blob(f"{LOG}/{commit}")))
    tables = [_table(path, add, blob) for path, add in sorted(files.items())]
    if not tables:
        raise FormatError(f"{name} is an empty Delta table.", "check the path.")
    return find_tables(tables)


def _actions(blob: Blob) -> Iterator[Mapping[str, Any]]:
    try:
        for line in blob.read(LARGEST_LIST).decode().splitlines():
            action = json.loads(line) if line.strip() else {}
            if not isinstance(action, dict):
                raise ValueError(f"{line!r:.80} is no action")
            yield action
    except (OSError, ValueError, RecursionError) as problem:
        message = f"{blob.name} in {LOG} cannot be read ({problem!s:.200})."
        raise FormatError(message, "restore it from a copy.") from problem


def _checkpoint(blob: Blob) -> Iterator[Mapping[str, Any]]:
    with opened(blob) as file:
        wanted = [n for n in ("protocol", "add") if n in file.schema_arrow.names]
        for row in file.read(columns=wanted).to_pylist():
            action = {key: value for key, value in row.items() if value is not None}
            values = (action.get("add") or {}).get("partitionValues")
            if isinstance(values, list):  # Arrow's maps are pairs
                action["add"]["partitionValues"] = dict(values)
            yield action


def _apply(
    name: str, files: dict[str, Mapping[str, Any]], actions: Iterable[Mapping[str, Any]]
) -> None:
    for action in actions:
        version = (action.get("protocol") or {}).get("minReaderVersion", 1)
        if version != 1:
            message = f"{name} needs version {version} of Delta readers (deletion vectors, say)."
            raise FormatError(message, NEWER)
        if action.get("remove"):
            files.pop(_path(name, action["remove"]), None)
        if action.get("add"):
            files[_path(name, action["add"])] = action["add"]


def _path(name: str, action: Mapping[str, Any]) -> str:
    """A file of the table, below its folder."""
    path = unquote(str(action.get("path", "")))
    parts = PurePosixPath(path)
    if not path or parts.is_absolute() or ".." in parts.parts or "://" in path or "\0" in path:
        message = f"{name} names a file outside of its folder ({path!r:.200})."
        raise FormatError(message, NEWER)
    return parts.as_posix()


def _table(path: str, add: Mapping[str, Any], blob: Callable[[str], Blob]) -> ParquetTable:
    values = add.get("partitionValues") or {}

    def no_files(name: str, record_id: str) -> ImageSource:
        message = "a Delta table holds its images itself, and names no files."
        raise RecordError(record_id, message, "store the bytes in a column `image`.")

    return ParquetTable(blob(path), no_files, {str(key): value for key, value in values.items()})
