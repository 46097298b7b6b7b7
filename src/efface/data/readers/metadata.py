"""Metadata files: a CSV or JSON-lines listing beside the images that it names."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from efface.data.columns import check_names, missing_column
from efface.data.found import (
    Found,
    PathLike,
    Row,
    make_row,
    text_or,
)
from efface.data.images import FileImage
from efface.data.readers.folder import files_below, id_below, is_image
from efface.data.readers.listed_file import listed_file
from efface.errors import FormatError
from efface.regular import LARGEST_LIST, read_regular

METADATA_NAMES = ("metadata.csv", "metadata.jsonl")


def find_metadata(path: PathLike, *, absolute_paths: bool = False) -> Found:
    """A CSV or JSON-lines file with ``file_name`` and ``label``, or the folder that holds one.

    Optional columns: ``id`` (default: file_name), ``owner`` (the id), ``cohort``, ``split`` (user);
    every other column is kept in ``Record.extra``. Files must lie below the metadata file's folder, but for
    those named by an absolute path if ``absolute_paths`` allows it.
    """
    given = Path(path).expanduser().absolute()
    listing = _metadata_file(given) if given.is_dir() else given
    if not listing.is_file():
        raise FormatError(f"{str(path)!r} does not exist.", "check the path.")
    reader = _csv_lines if listing.suffix.lower() == ".csv" else _json_lines
    try:
        lines = list(reader(listing))
    except csv.Error as problem:  # most often a quote that is never closed
        raise FormatError(f"{listing.name}: {problem}.", "check its quotes.") from problem
    names = {name for _, columns in lines for name in columns}
    check_names(names - {"file_name"}, used=names)
    rows = [_metadata_row(listing, line, columns, absolute_paths) for line, columns in lines]
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
    if len(set(header)) < len(header):
        fix = "the first line names each column once."
        raise FormatError(f"{path.name} has the columns {', '.join(header)}.", fix)
    for wanted in ("file_name", "label"):
        if wanted not in header:
            raise missing_column(path.name, wanted, header)
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


def _metadata_row(listing: Path, line: int, columns: dict[str, Any], absolute_paths: bool) -> Row:
    where = f"line {line} of {listing.name}"
    for wanted in ("file_name", "label"):
        if wanted not in columns:
            raise missing_column(where, wanted, columns)
    name = columns.pop("file_name")
    if not isinstance(name, str) or not name:
        raise FormatError(f"{where} has no file_name.", "add it.")
    record_id = text_or(columns.get("id"), name)
    source = listed_file(listing.parent, name, record_id, absolute_paths=absolute_paths)
    return make_row(columns, source, PurePosixPath(name).as_posix())


def _unlisted(listing: Path, rows: Sequence[Row]) -> Iterator[str]:
    listed = {row.source.path for row in rows if isinstance(row.source, FileImage)}
    rest = [f for f in files_below(listing.parent) if is_image(f) and f not in listed]
    if rest:
        example = id_below(listing.parent, rest[0])
        yield f"{len(rest)} image files are not in {listing.name}, for example {example!r}"
