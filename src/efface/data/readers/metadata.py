"""Metadata files: a CSV or JSON-lines listing beside the images that it names; or, in JSON lines, rows of
numbers (``tokens`` or ``vectors``) in their place."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
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
from efface.data.images import FileImage, ImageSource
from efface.data.numbers import COLUMNS, row_source
from efface.data.readers.folder import files_below, id_below, is_image
from efface.data.readers.listed_file import listed_file
from efface.errors import FormatError
from efface.regular import LARGEST_LIST, read_regular

METADATA_NAMES = ("metadata.csv", "metadata.jsonl")


def find_metadata(path: PathLike, *, absolute_paths: bool = False) -> Found:
    """A CSV or JSON-lines file with ``file_name`` and ``label``, or the folder that holds one.

    Optional columns: ``id`` (default: file_name), ``owner`` (the id), ``cohort``, ``split`` (user);
    every other column is kept in ``Record.extra``. Files must lie below the metadata file's folder, but for
    those named by an absolute path if ``absolute_paths`` allows it. A line of JSON may have ``tokens`` or
    ``vectors``, a list of whole numbers, instead of ``file_name``; its id is then ``NAME/LINE``.
    """
    given = Path(path).expanduser().absolute()
    listing = _metadata_file(given) if given.is_dir() else given
    if not listing.is_file():
        raise FormatError(f"{str(path)!r} does not exist.", "check the path.")
    rows = listed_rows(
        listing.name,
        lambda: read_regular(listing, LARGEST_LIST),
        lambda name, record: listed_file(
            listing.parent, name, record, absolute_paths=absolute_paths
        ),
    )
    remarks = list(_unlisted(listing, rows)) if given.is_dir() else []
    return Found(rows, remarks=remarks)


def listed_rows(
    name: str, read: Callable[[], bytes], source: Callable[[str, str], ImageSource]
) -> list[Row]:
    """The rows of a list called ``name``; ``source`` is the image of a file name and a record's id."""
    reader = _csv_lines if name.lower().endswith(".csv") else _json_lines
    try:
        lines = list(reader(name, _utf8(name, read)))
    except csv.Error as problem:  # most often a quote that is never closed
        raise FormatError(f"{name}: {problem}.", "check its quotes.") from problem
    names = {column for _, columns in lines for column in columns}
    check_names(names - {"file_name"}, used=names, where=name)
    return [
        _numbers_row(name, n, columns)
        if _has_numbers(columns)
        else _metadata_row(f"line {n} of {name}", columns, source)
        for n, columns in lines
    ]


def _metadata_file(folder: Path) -> Path:
    present = [folder / name for name in METADATA_NAMES if (folder / name).is_file()]
    if len(present) != 1:
        found = "both metadata.csv and metadata.jsonl" if present else "no metadata.csv or .jsonl"
        raise FormatError(f"{found} in {str(folder)!r}.", "keep exactly one of the two.")
    return present[0]


def _csv_lines(name: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    header = list(reader.fieldnames or [])
    if len(set(header)) < len(header):
        fix = "the first line names each column once."
        raise FormatError(f"{name} has the columns {', '.join(header)}.", fix)
    for wanted in ("file_name", "label"):
        if wanted not in header:
            raise missing_column(name, wanted, header)
    for columns in reader:
        if None in columns or None in columns.values():
            message = f"line {reader.line_num} of {name} does not have {len(header)} values."
            raise FormatError(message, "quote values that hold commas.")
        yield reader.line_num, columns


def _json_lines(name: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            columns = json.loads(line)
        except (ValueError, RecursionError):
            columns = None
        if not isinstance(columns, dict):
            message = f"line {number} of {name} is not a JSON object."
            raise FormatError(message, 'write one {"file_name": …, "label": …} a line.')
        yield number, columns


def _utf8(name: str, read: Callable[[], bytes]) -> str:
    try:
        return read().decode("utf-8-sig")
    except ValueError as problem:  # UnicodeDecodeError is one
        raise FormatError(f"{name}: {problem}.", "save it as UTF-8 text.") from problem


def _metadata_row(
    where: str, columns: dict[str, Any], source: Callable[[str, str], ImageSource]
) -> Row:
    for wanted in ("file_name", "label"):
        if wanted not in columns:
            raise missing_column(where, wanted, columns)
    name = columns.pop("file_name")
    if not isinstance(name, str) or not name:
        raise FormatError(f"{where} has no file_name.", "add it.")
    record_id = text_or(columns.get("id"), name)
    return make_row(columns, source(name, record_id), PurePosixPath(name).as_posix())


def _has_numbers(columns: dict[str, Any]) -> bool:
    return "file_name" not in columns and any(isinstance(columns.get(key), list) for key in COLUMNS)


def _numbers_row(name: str, line: int, columns: dict[str, Any]) -> Row:
    where = f"line {line} of {name}"
    if "label" not in columns:
        raise missing_column(where, "label", columns)
    key = next(key for key in COLUMNS if isinstance(columns.get(key), list))
    source = row_source(columns.pop(key), where)
    return make_row(columns, source, f"{PurePosixPath(name).stem}/{line:06d}")


def _unlisted(listing: Path, rows: Sequence[Row]) -> Iterator[str]:
    listed = {row.source.name for row in rows if isinstance(row.source, FileImage)}
    rest = [f for f in files_below(listing.parent) if is_image(f) and str(f) not in listed]
    if rest:
        example = id_below(listing.parent, rest[0])
        yield f"{len(rest)} image files are not in {listing.name}, for example {example!r}"
