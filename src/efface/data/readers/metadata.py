"""Metadata files: a CSV or JSON-lines listing beside the images that it names."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from efface.data.found import (
    Found,
    PathLike,
    Row,
    make_row,
    text_or,
)
from efface.data.images import FileImage
from efface.data.readers.folder import files_below, id_below, is_image
from efface.errors import FormatError, RecordError
from efface.regular import LARGEST_LIST, read_regular

METADATA_NAMES = ("metadata.csv", "metadata.jsonl")


def find_metadata(path: PathLike) -> Found:
    """A CSV or JSON-lines file with ``file_name`` and ``label``, or the folder that holds one.

    Optional columns: ``id`` (default: file_name), ``owner`` (the id), ``cohort``, ``split`` (user);
    every other column is kept in ``Record.extra``. Files must lie below the metadata file's folder.
    """
    given = Path(path).expanduser().absolute()
    listing = _metadata_file(given) if given.is_dir() else given
    if not listing.is_file():
        raise FormatError(f"{str(path)!r} does not exist.", "check the path.")
    reader = _csv_lines if listing.suffix.lower() == ".csv" else _json_lines
    try:
        rows = [_metadata_row(listing, line, columns) for line, columns in reader(listing)]
    except csv.Error as problem:  # most often a quote that is never closed
        raise FormatError(f"{listing.name}: {problem}.", "check its quotes.") from problem
    remarks = list(_unlisted(listing, rows)) if given.is_dir() else []
    return Found(rows, remarks=remarks)


def _metadata_file(folder: Path) -> Path:
    present = [folder / name for name in METADATA_NAMES if (folder / name).is_file()]
    if len(present) != 1:
        found = "both metadata.csv and metadata.jsonl" if present else "no metadata.csv or .jsonl"
        raise FormatError(f"{found} in {str(folder)!r}.", "keep exactly one of the two.")
    return present[0]


def _csv_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(_utf8(path), newline=""))
    header = list(reader.fieldnames or [])
    if "file_name" not in header or "label" not in header or len(set(header)) < len(header):
        fix = "the first line names each column once, with file_name and label among them."
        raise FormatError(f"{path.name} has the columns {', '.join(header)}.", fix)
    for columns in reader:
        if None in columns or None in columns.values():
            message = f"line {reader.line_num} of {path.name} does not have {len(header)} values."
            raise FormatError(message, "quote values that hold commas.")
        yield reader.line_num, columns


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(_utf8(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            columns = json.loads(line)
        except (ValueError, RecursionError):
            columns = None
        if not isinstance(columns, dict):
            message = f"line {number} of {path.name} is not a JSON object."
            raise FormatError(message, 'write one {"file_name": …, "label": …} a line.')
        yield number, columns


def _utf8(path: Path) -> str:
    try:
        return read_regular(path, LARGEST_LIST).decode("utf-8-sig")
    except ValueError as problem:  # UnicodeDecodeError is one
        raise FormatError(f"{path.name}: {problem}.", "save it as UTF-8 text.") from problem


def _metadata_row(listing: Path, line: int, columns: dict[str, Any]) -> Row:
    name = columns.pop("file_name", None)
    if not isinstance(name, str) or not name:
        raise FormatError(f"line {line} of {listing.name} has no file_name.", "add it.")
    relative = PurePosixPath(name)
    file = _below(listing.parent, relative, text_or(columns.get("id"), name))
    return make_row(columns, FileImage(file), relative.as_posix())


def _below(folder: Path, relative: PurePosixPath, record_id: str) -> Path:
    """The file, if neither ``..`` nor a link leads out of the folder."""
    file = folder / relative
    fix = "keep the files below the metadata file's folder and name them relative to it."
    if "\0" in str(relative) or not file.resolve().is_relative_to(folder.resolve()):
        raise RecordError(record_id, f"file_name {str(relative)!r} leads out of the folder.", fix)
    return file


def _unlisted(listing: Path, rows: Sequence[Row]) -> Iterator[str]:
    listed = {row.source.path for row in rows if isinstance(row.source, FileImage)}
    rest = [f for f in files_below(listing.parent) if is_image(f) and f not in listed]
    if rest:
        example = id_below(listing.parent, rest[0])
        yield f"{len(rest)} image files are not in {listing.name}, for example {example!r}"
