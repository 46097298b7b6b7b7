"""Parquet: encoded images in a column, in the layout of Hugging Face datasets; or names of files, or rows of
numbers.

Columns are read at once, images when they are asked for, a row group at a time.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from efface.data.blobs import Blob, LocalBlob, as_file
from efface.data.columns import check_names, missing_column
from efface.data.found import Found, PathLike, Row, make_row, split_of_name, whole_number_classes
from efface.data.images import BytesImage, ImageSource
from efface.data.numbers import COLUMNS, row_source
from efface.data.readers.listed_file import listed_file
from efface.errors import EffaceError, FormatError
from efface.regular import LARGEST_TABLE

GROUPS = 2  # row groups whose images are in memory at once
OPENINGS = itertools.count()

Cell = str | list[int] | None  # as the file has it: a name, a row of numbers, nothing
FileSource = Callable[[str, str], ImageSource]  # of a file's name and a record's id


@dataclass(frozen=True)
class ParquetTable:
    """One Parquet file. ``given`` are columns that it does not have itself, each of one value."""

    blob: Blob
    files: FileSource
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ParquetImage:
    """One cell of a column of encoded images."""

    blob: Blob
    column: str
    group: int
    row: int  # in the group
    opening: int = (
        0  # a number for every time that it was opened: another time it may be another file
    )

    def content(self) -> bytes:
        cell = _images(self.blob, self.column, self.group, self.opening)[self.row].as_py()
        data = cell.get("bytes") if isinstance(cell, dict) else cell
        # a missing image counts as a damaged one, so that skip_bad applies to it
        return data if isinstance(data, bytes) else b""


@lru_cache(maxsize=GROUPS)
def _images(blob: Blob, column: str, group: int, opening: int) -> Any:
    with opened(blob) as file:
        return file.read_row_group(group, columns=[column]).column(column)


def find_parquet(
    path: PathLike, *, image: str = "image", label: str = "label", absolute_paths: bool = False
) -> Found:
    """A Parquet file or a folder of them: an image column of bytes or {bytes, path}, and a label.

    Without an image column, ``file_name`` names files as in a CSV list (see ``find_metadata``), or ``tokens``
    or ``vectors`` hold lists of whole numbers.
    ``id owner cohort split`` are used where present, other columns are kept. Without a ``split``
    column a file called ``test-…`` or ``core-…`` says what its rows are (default: user data).
    Integer labels are named by Hugging Face's ClassLabel metadata if the schema carries it.
    """
    files = _parquet_files(Path(path).expanduser())

    def source(name: str, record_id: str) -> ImageSource:
        return listed_file(files[0].parent, name, record_id, absolute_paths=absolute_paths)

    tables = [ParquetTable(LocalBlob(file.absolute()), source) for file in files]
    return find_tables(tables, image=image, label=label)


def find_tables(
    tables: Sequence[ParquetTable], *, image: str = "image", label: str = "label"
) -> Found:
    """The rows of Parquet files, in order."""
    rows: list[Row] = []
    labels: list[Any] = []
    names: list[str] | None = None
    for i, table in enumerate(tables):
        with opened(table.blob) as file:
            names = _class_names(file.schema_arrow.metadata, label) if i == 0 else names
            cells, columns = _columns(table, file, image, label)
        labels += columns["label"]
        rows += _rows(table, cells, columns, names)
    order, listed = names or whole_number_classes(labels), names is not None
    return Found(rows, order, listed=listed)


def _parquet_files(path: Path) -> list[Path]:
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise FormatError(f"no Parquet file at {str(path)!r}.", "check the path.")
    return files


@contextmanager
def opened(blob: Blob) -> Iterator[Any]:
    """A ``ParquetFile``: read_table would make columns of folder names like "split=test"."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as problem:
        fix = 'pip install "efface[parquet]".'
        raise EffaceError("reading Parquet needs pyarrow.", fix) from problem
    damaged = (pa.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError)
    try:
        with pq.ParquetFile(as_file(blob)) as file:
            groups = range(file.num_row_groups)
            size = sum(file.metadata.row_group(i).total_byte_size for i in groups)
            if size > LARGEST_TABLE:
                raise ValueError(f"{size >> 30} GB unpacked, more than {LARGEST_TABLE >> 30}")
            yield file
    except damaged as problem:
        message = f"{blob.name} is not Parquet ({problem!s:.200})."
        raise FormatError(message, "write it again.") from problem


def _class_names(metadata: Mapping[bytes, bytes] | None, label: str) -> list[str] | None:
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return [str(name) for name in features[label]["names"]]
    except (KeyError, TypeError, ValueError):
        return None  # not written by Hugging Face's datasets, or the label is no ClassLabel


def _columns(
    table: ParquetTable, file: Any, image: str, label: str
) -> tuple[Sequence[ParquetImage | Cell], dict[str, list[Any]]]:
    """Where the images are, and all other columns."""
    present = [*file.schema_arrow.names, *table.given]
    places = (image, "file_name", *COLUMNS)
    shown = next((name for name in places if name in present), image)
    for name in (shown, label):
        if name not in present:
            raise missing_column(table.blob.name, name, present)
    texts = shown == "file_name" or _is_text_or_list(file.schema_arrow, shown)
    wanted = [name for name in file.schema_arrow.names if name != shown or texts]
    read = file.read(columns=wanted)
    n = file.metadata.num_rows
    columns = {name: read.column(name).to_pylist() for name in wanted}
    columns |= {name: [value] * n for name, value in table.given.items()}
    columns["label"] = columns.pop(label)
    cells = columns.pop(shown) if texts else list(_cells(table.blob, file, shown))
    check_names(columns, used=columns, where=table.blob.name)
    return cells, columns


def _is_text_or_list(schema: Any, name: str) -> bool:
    from pyarrow import types

    kind = schema.field(name).type
    listed = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return types.is_string(kind) or types.is_large_string(kind) or listed


def _cells(blob: Blob, file: Any, column: str) -> Iterator[ParquetImage]:
    opening = next(OPENINGS)
    for group in range(file.num_row_groups):
        for row in range(file.metadata.row_group(group).num_rows):
            yield ParquetImage(blob, column, group, row, opening)


def _rows(
    table: ParquetTable,
    cells: Sequence[ParquetImage | Cell],
    columns: Mapping[str, list[Any]],
    names: Sequence[str] | None,
) -> Iterator[Row]:
    stem = table.blob.stem
    for i, cell in enumerate(cells):
        values = {name: column[i] for name, column in columns.items()}
        default_id = cell if isinstance(cell, str) else f"{stem}/{i:06d}"
        unit = ""
        if isinstance(cell, str):
            source = table.files(cell, default_id)
        elif cell is None:
            source = BytesImage(b"")
        elif isinstance(cell, list):
            source = row_source(cell, default_id)
        else:
            source, unit = cell, f"{table.blob.name}#{cell.group}"
        split = split_of_name(stem)
        yield make_row(values, source, default_id, names=names, split=split, unit=unit)
