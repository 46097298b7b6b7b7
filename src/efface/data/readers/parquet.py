"""Parquet: encoded images in a column, in the layout of Hugging Face datasets; or names of files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from efface.data.columns import check_names, missing_column
from efface.data.found import (
    SPLITS,
    Found,
    PathLike,
    Row,
    make_row,
    whole_number_classes,
)
from efface.data.images import BytesImage, ImageSource
from efface.data.readers.listed_file import listed_file
from efface.data.record import Split
from efface.errors import EffaceError, FormatError
from efface.regular import LARGEST_TABLE, check_regular


def find_parquet(
    path: PathLike, *, image: str = "image", label: str = "label", absolute_paths: bool = False
) -> Found:
    """A Parquet file or a folder of them: an image column of bytes or {bytes, path}, and a label.

    Without an image column, ``file_name`` names files as in a CSV list (see ``find_metadata``).
    ``id owner cohort split`` are used where present, other columns are kept. Without a ``split``
    column a file called ``test-…`` or ``core-…`` says what its rows are (default: user data).
    Integer labels are named by Hugging Face's ClassLabel metadata if the schema carries it.
    """
    files = _parquet_files(Path(path).expanduser())
    tables = [_load_parquet(file) for file in files]
    names = _class_names(tables[0].schema.metadata, label)
    rows: list[Row] = []
    labels: list[Any] = []
    for file, table in zip(files, tables, strict=True):
        pixels, columns = _parquet_columns(file, table, image, label)
        labels += columns["label"]
        rows += _parquet_rows(file, pixels, columns, names, absolute_paths)
    order, listed = names or whole_number_classes(labels), names is not None
    return Found(rows, order, listed=listed)


def _parquet_files(path: Path) -> list[Path]:
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise FormatError(f"no Parquet file at {str(path)!r}.", "check the path.")
    return files


def _load_parquet(file: Path) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as problem:
        fix = 'pip install "efface[parquet]".'
        raise EffaceError("reading Parquet needs pyarrow.", fix) from problem
    try:
        # a ParquetFile, since read_table would make columns of folder names like "split=test"
        check_regular(file, LARGEST_TABLE)
        with pq.ParquetFile(file) as opened:
            groups = range(opened.num_row_groups)
            size = sum(opened.metadata.row_group(i).total_byte_size for i in groups)
            if size > LARGEST_TABLE:
                raise ValueError(f"{size >> 30} GB unpacked, more than {LARGEST_TABLE >> 30}")
            return opened.read()
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        KeyError,
        OverflowError,
        MemoryError,
    ) as problem:
        raise FormatError(
            f"{file.name} is not Parquet ({problem!s:.200}).", "write it again."
        ) from problem


def _class_names(metadata: Mapping[bytes, bytes] | None, label: str) -> list[str] | None:
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return [str(name) for name in features[label]["names"]]
    except (KeyError, TypeError, ValueError):
        return None  # not written by Hugging Face's datasets, or the label is no ClassLabel


def _parquet_columns(
    file: Path, table: Any, image: str, label: str
) -> tuple[list[Any], dict[str, list[Any]]]:
    present = list(table.column_names)
    shown = image if image in present or "file_name" not in present else "file_name"
    for name in (shown, label):
        if name not in present:
            raise missing_column(file.name, name, present)
    columns = {name: table.column(name).to_pylist() for name in present}
    columns["label"] = columns.pop(label)
    cells = columns.pop(shown)
    check_names(columns, used=columns)
    return cells, columns


def _parquet_rows(
    file: Path,
    pixels: list[Any],
    columns: Mapping[str, list[Any]],
    names: Sequence[str] | None,
    absolute_paths: bool,
) -> Iterator[Row]:
    split = SPLITS.get(file.stem.split("-")[0].lower(), Split.USER)
    for i, cell in enumerate(pixels):
        cells = {name: values[i] for name, values in columns.items()}
        default_id = cell if isinstance(cell, str) else f"{file.stem}/{i:06d}"
        source = _source(file, cell, default_id, absolute_paths)
        yield make_row(cells, source, default_id, names=names, split=split)


def _source(file: Path, cell: Any, record_id: str, absolute_paths: bool) -> ImageSource:
    if isinstance(cell, str):
        return listed_file(file.parent, cell, record_id, absolute_paths=absolute_paths)
    data = cell.get("bytes") if isinstance(cell, dict) else cell
    # a missing image counts as a damaged one, so that skip_bad applies to it
    return BytesImage(data if isinstance(data, bytes) else b"")
