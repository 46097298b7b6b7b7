"""Readers: from files as people keep them to ``Records``.

Every reader finds ``Row``s in its own layout and hands them to ``assemble``, where all the common
options and checks live: one rule for damaged images, labels, channels and classes, whatever the
layout. Nothing that was found is dropped without an entry in ``Records.skipped`` or ``.notes``.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, TypedDict, Unpack

import numpy as np

from efface.errors import EffaceError, FormatError, RecordError
from efface.images import (
    ArrayImage,
    BytesImage,
    Channels,
    FileImage,
    ImageSource,
    decode,
    digest_of,
    naming,
    num_channels,
)
from efface.records import DEFAULT_COHORT, Record, Records, Skipped, Split

PathLike: TypeAlias = str | os.PathLike[str]

IMAGE_SUFFIXES = frozenset(
    {".avif", ".bmp", ".gif", ".jfif", ".jp2", ".jpeg", ".jpg", ".pbm"}
    | {".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)
SYSTEM_FILES = frozenset({"Thumbs.db", "desktop.ini", "__MACOSX"})
SPLITS = {
    "core": Split.CORE,
    "train": Split.USER,
    "user": Split.USER,
    "test": Split.TEST,
    "val": Split.TEST,
    "valid": Split.TEST,
    "validation": Split.TEST,
}
METADATA_NAMES = ("metadata.csv", "metadata.jsonl")
KNOWN_COLUMNS = frozenset({"id", "label", "owner", "cohort", "split"})
NUM_DIGITS_OWNERS, NUM_DIGITS_COHORTS = 60, 4


class ReadOptions(TypedDict, total=False):
    """The options every reader takes; ``assemble`` says what they mean."""

    classes: Sequence[str] | None
    core_fraction: float | None
    seed: int
    by_owner: bool
    channels: str | None
    skip_bad: bool


@dataclass(frozen=True)
class Row:
    """A record whose image has not been looked at yet."""

    id: str
    label: str
    source: ImageSource
    split: Split
    owner: str
    cohort: str = DEFAULT_COHORT
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """What a reader found; ``classes`` where the data itself lists them."""

    rows: Sequence[Row]
    classes: Sequence[str] | None = None
    skipped: Sequence[Skipped] = ()
    remarks: Sequence[str] = ()


# The common path.


def assemble(
    found: Found,
    *,
    classes: Sequence[str] | None = None,
    core_fraction: float | None = None,
    seed: int = 0,
    by_owner: bool = False,
    channels: str | None = None,
    skip_bad: bool = False,
) -> Records:
    """Checks the rows and makes them Records.

    classes        the class list, in the order of the model's outputs; a label outside it is an
                   error. None: the data's own list, else the sorted labels.
    core_fraction  see ``Records.with_core_fraction``, as are ``seed`` and ``by_owner``.
    channels       "gray" or "rgb" converts at decoding; None demands that all records agree.
    skip_bad       decodes every image now and sets bad ones aside in ``.skipped``. Otherwise
                   missing and unrecognisable files are errors now, truncated ones when decoded.
    """
    wanted = _channels(channels)
    records, bad = _inspect(found.rows, wanted, skip_bad)
    if not records:
        raise FormatError(f"no usable image among {len(found.rows)}.", "check the path and layout.")
    if classes is None:  # of all rows: skipping every image of a class must not hide the class
        classes = found.classes or sorted({row.label for row in found.rows})
    skipped = (*found.skipped, *bad)
    result = Records(records, classes, skipped=skipped, remarks=found.remarks)
    _check_every_class_can_be_learned(result)
    return (
        result
        if core_fraction is None
        else result.with_core_fraction(core_fraction, seed, by_owner=by_owner)
    )


def _channels(name: str | None) -> Channels | None:
    if name is not None and name not in list(Channels):
        raise EffaceError(f"channels={name!r} is unknown.", 'use "gray", "rgb" or None.')
    return None if name is None else Channels(name)


def _inspect(
    rows: Iterable[Row], channels: Channels | None, skip_bad: bool
) -> tuple[list[Record], list[Skipped]]:
    records: list[Record] = []
    counts: list[int] = []
    bad: list[Skipped] = []
    for row in rows:
        try:
            record, count = _look_at(row, channels, fully=skip_bad)
        except RecordError as problem:
            if not skip_bad:
                raise
            bad.append(Skipped(row.id, problem.message.removeprefix(f"record {row.id!r}: ")))
        else:
            records.append(record)
            counts.append(count)
    if channels is None:
        _check_channels_agree(records, counts)
    return records, bad


def _look_at(row: Row, channels: Channels | None, *, fully: bool) -> tuple[Record, int]:
    """The record and its number of channels; the content is read once, for digest and header."""
    with naming(row.id):
        content = row.source.content()
        count = num_channels(content)
        if fully:
            decode(content, channels)
    return Record(digest=digest_of(content), channels=channels, **vars(row)), count


def _check_channels_agree(records: Sequence[Record], counts: Sequence[int]) -> None:
    usual = Counter(counts).most_common(1)[0][0] if counts else 0
    for record, count in zip(records, counts, strict=True):
        if count != usual:
            odd = sum(n != usual for n in counts)
            message = f"{count} channel(s) where most have {usual} ({odd} such of {len(counts)})."
            raise RecordError(record.id, message, 'read with channels="rgb" (or "gray").')


def _check_every_class_can_be_learned(records: Records) -> None:
    """A class without training records is a mistake, unless the data is for testing alone."""
    learned = {record.label for record in records if record.split is not Split.TEST}
    for name in records.classes if learned else ():
        if name not in learned:
            fix = "add images of it to core or user data, or take the class out."
            raise RecordError(name, "this class has no core or user record.", fix)


# One row from named columns: the shared half of metadata files, Parquet and npz.


def _row(
    columns: Mapping[str, Any],
    source: ImageSource,
    default_id: str,
    *,
    names: Sequence[str] | None = None,
    split: Split = Split.USER,
) -> Row:
    record_id = _text(columns.get("id"), default_id)
    return Row(
        id=record_id,
        label=_label(record_id, columns.get("label"), names),
        source=source,
        split=_split(record_id, columns.get("split"), split),
        owner=_text(columns.get("owner"), record_id),
        cohort=_text(columns.get("cohort"), DEFAULT_COHORT),
        extra={key: value for key, value in columns.items() if key not in KNOWN_COLUMNS},
    )


def _text(value: Any, default: str) -> str:
    return default if value is None or value == "" else str(value)


def _label(record_id: str, value: Any, names: Sequence[str] | None) -> str:
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        fix = "labels are names or whole numbers."
        raise RecordError(record_id, f"its label is {value!r}.", fix)
    if names is None:
        return str(int(value))
    if not 0 <= value < len(names):
        fix = "correct the label or the list of class names in the file."
        raise RecordError(record_id, f"label {value} is outside the {len(names)} classes.", fix)
    return names[int(value)]


def _split(record_id: str, value: Any, default: Split) -> Split:
    if value is None or value == "":
        return default
    if str(value).lower() not in SPLITS:
        raise RecordError(
            record_id, f"unknown split {value!r}.", f"use one of {', '.join(SPLITS)}."
        )
    return SPLITS[str(value).lower()]


def _whole_number_classes(labels: Iterable[Any]) -> list[str] | None:
    """Classes in the order 2 < 10 where labels are bare numbers, so that index follows label."""
    values = set(labels)
    if all(isinstance(value, int | np.integer) for value in values):
        return [str(int(value)) for value in sorted(values)]
    return None


# Image folders.


def read_folder(path: PathLike, **options: Unpack[ReadOptions]) -> Records:
    """``<split>/<class>/**/image`` or ``<class>/**/image`` (then all is user data).

    Splits are the folders named in ``SPLITS``; a record's id is its path below ``path``, and each
    image is its own owner. System files are ignored, anything else is listed in ``.skipped``.
    """
    root = _folder(path)
    skipped: list[Skipped] = []
    rows: list[Row] = []
    for split, folder in _split_folders(root, skipped):
        for class_folder in _class_folders(root, folder, skipped):
            rows += _class_rows(root, class_folder, split, skipped)
    return assemble(Found(rows, skipped=skipped), **options)


def _folder(path: PathLike) -> Path:
    root = Path(path).expanduser().absolute()
    if not root.is_dir():
        raise FormatError(f"{str(path)!r} is not a folder.", "check the path.")
    return root


def _visible(folder: Path) -> list[Path]:
    entries = (entry for entry in folder.iterdir() if entry.name not in SYSTEM_FILES)
    return sorted(entry for entry in entries if not entry.name.startswith("."))


def _subfolders(folder: Path) -> list[Path]:
    return [entry for entry in _visible(folder) if entry.is_dir()]


def _split_folders(root: Path, skipped: list[Skipped]) -> list[tuple[Split, Path]]:
    """A folder called "train" is a split only if it has class folders: it may be a class."""
    folders = _subfolders(root)
    named = [entry for entry in folders if entry.name.lower() in SPLITS]
    splits = [entry for entry in named if _subfolders(entry)]
    if not splits and named == folders:
        fix = "sort the images into <class>/ or train/<class>/, or list them in metadata.csv."
        raise FormatError(f"no class folders below {str(root)!r}.", fix)
    if not splits:
        return [(Split.USER, root)]
    for entry in _visible(root):
        if entry not in splits:
            skipped.append(Skipped(_id(root, entry), "not a split folder with class folders"))
    return [(SPLITS[entry.name.lower()], entry) for entry in splits]


def _class_folders(root: Path, folder: Path, skipped: list[Skipped]) -> list[Path]:
    loose = (entry for entry in _visible(folder) if not entry.is_dir())
    skipped += [Skipped(_id(root, entry), "outside any class folder") for entry in loose]
    return _subfolders(folder)


def _class_rows(root: Path, folder: Path, split: Split, skipped: list[Skipped]) -> list[Row]:
    files = list(_files(folder))
    images = [file for file in files if _is_image(file)]
    skipped += [Skipped(_id(root, f), "not an image file") for f in files if not _is_image(f)]
    if not images:
        fix = "add images to the folder or remove it."
        raise RecordError(_id(root, folder), "this class folder has no images.", fix)
    ids = [_id(root, image) for image in images]
    return [
        Row(record_id, folder.name, FileImage(image), split, owner=record_id)
        for record_id, image in zip(ids, images, strict=True)
    ]


def _files(folder: Path) -> Iterator[Path]:
    for entry in _visible(folder):
        if entry.is_dir() and not entry.is_symlink():  # a linked folder may lead back up here
            yield from _files(entry)
        else:
            yield entry


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES


def _id(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


# Metadata files.


def read_metadata(path: PathLike, **options: Unpack[ReadOptions]) -> Records:
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
    return assemble(Found(rows, remarks=remarks), **options)


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
        except ValueError:
            columns = None
        if not isinstance(columns, dict):
            message = f"line {number} of {path.name} is not a JSON object."
            raise FormatError(message, 'write one {"file_name": …, "label": …} a line.')
        yield number, columns


def _utf8(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise FormatError(f"{path.name}: {problem}.", "save it as UTF-8 text.") from problem


def _metadata_row(listing: Path, line: int, columns: dict[str, Any]) -> Row:
    name = columns.pop("file_name", None)
    if not isinstance(name, str) or not name:
        raise FormatError(f"line {line} of {listing.name} has no file_name.", "add it.")
    relative = PurePosixPath(name)
    file = _below(listing.parent, relative, _text(columns.get("id"), name))
    return _row(columns, FileImage(file), relative.as_posix())


def _below(folder: Path, relative: PurePosixPath, record_id: str) -> Path:
    """The file, if neither ``..`` nor a link leads out of the folder."""
    file = folder / relative
    fix = "keep the files below the metadata file's folder and name them relative to it."
    if "\0" in str(relative) or not file.resolve().is_relative_to(folder.resolve()):
        raise RecordError(record_id, f"file_name {str(relative)!r} leads out of the folder.", fix)
    return file


def _unlisted(listing: Path, rows: Sequence[Row]) -> Iterator[str]:
    listed = {row.source.path for row in rows if isinstance(row.source, FileImage)}
    rest = [f for f in _files(listing.parent) if _is_image(f) and f not in listed]
    if rest:
        example = _id(listing.parent, rest[0])
        yield f"{len(rest)} image files are not in {listing.name}, for example {example!r}"


# Arrays.


@dataclass(frozen=True)
class Table:
    """Images with columns of the same length."""

    images: np.ndarray  # (n, h, w) or (n, h, w, channels)
    columns: Mapping[str, list[Any]]
    prefix: str = ""
    split: Split = Split.USER

    def rows(self, names: Sequence[str] | None) -> Iterator[Row]:
        for i in range(len(self.images)):
            columns = {key: values[i] for key, values in self.columns.items()}
            source, default_id = ArrayImage(self.images, i), f"{self.prefix}{i:06d}"
            yield _row(columns, source, default_id, names=names, split=self.split)


def read_npz(path: PathLike, **options: Unpack[ReadOptions]) -> Records:
    """``x_train y_train`` with optional ``x_core y_core x_test y_test``, or ``images labels`` with
    optional ``ids owners cohorts splits`` and further columns; ``classes`` names integer labels.

    Images are uint8 or uint16, (n, h, w) or (n, h, w, channels).
    """
    arrays = _load_npz(Path(path).expanduser())
    names = [str(name) for name in arrays.pop("classes")] if "classes" in arrays else None
    tables = _one_table(arrays) if "images" in arrays else _part_tables(arrays)
    rows = [row for table in tables for row in table.rows(names)]
    labels = [label for table in tables for label in table.columns["label"]]
    remarks = [f"the array {name!r} was not used" for name in arrays]
    return assemble(Found(rows, names or _whole_number_classes(labels), (), remarks), **options)


def _load_npz(path: Path) -> dict[str, np.ndarray]:
    fix = "write it with numpy.savez, without object arrays."
    if not path.is_file():
        raise FormatError(f"{str(path)!r} does not exist.", "check the path.")
    if not zipfile.is_zipfile(path):
        raise FormatError(f"{path.name} is not an .npz file.", fix)
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as problem:
        raise FormatError(f"{path.name} cannot be read ({problem}).", fix) from problem


def _one_table(arrays: dict[str, np.ndarray]) -> list[Table]:
    """Takes ``images`` and everything of its length; what is left in ``arrays`` was not used."""
    images = _pixels(arrays, "images")
    if "labels" not in arrays:
        raise FormatError("the array 'images' has no 'labels'.", "add them.")
    columns = {"label": _column(arrays, "labels", len(images))}
    for name in list(arrays):
        singular = name.removesuffix("s")
        if singular in KNOWN_COLUMNS - {"label"}:
            columns[singular] = _column(arrays, name, len(images))
        elif len(np.atleast_1d(arrays[name])) == len(images) and name != "label":
            columns[name] = _column(arrays, name, len(images))
    return [Table(images, columns)]


def _part_tables(arrays: dict[str, np.ndarray]) -> list[Table]:
    parts = [part for part in ("core", "train", "test") if f"x_{part}" in arrays]
    if not parts:
        fix = "store x_train and y_train, or images and labels."
        raise FormatError(f"the arrays are {', '.join(arrays) or 'none'}.", fix)
    tables = []
    for part in parts:
        images = _pixels(arrays, f"x_{part}")
        columns = {"label": _column(arrays, f"y_{part}", len(images))}
        tables.append(Table(images, columns, f"{part}/", SPLITS[part]))
    return tables


def _pixels(arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    images = arrays.pop(name)
    try:
        if images.ndim < 3:
            raise ValueError(f"shape {images.shape}")
        if len(images):
            num_channels(images[0])
    except ValueError as problem:
        fix = "store images as uint8, (n, height, width) or (n, height, width, channels)."
        raise FormatError(f"the array {name!r} does not hold images: {problem}.", fix) from problem
    images.setflags(write=False)  # many records share it, and their digests are taken once
    return images


def _column(arrays: dict[str, np.ndarray], name: str, length: int) -> list[Any]:
    array = arrays.pop(name, np.empty(0))
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim == 0 or len(array) != length:
        message = f"the array {name!r} has shape {array.shape} for {length} images."
        raise FormatError(message, "store one entry an image.")
    values: list[Any] = array.tolist()
    return values


# Parquet.


def read_parquet(
    path: PathLike, *, image: str = "image", label: str = "label", **options: Unpack[ReadOptions]
) -> Records:
    """A Parquet file or a folder of them: an image column of bytes or {bytes, path}, and a label.

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
        rows += _parquet_rows(file, pixels, columns, names)
    return assemble(Found(rows, names or _whole_number_classes(labels)), **options)


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
        with pq.ParquetFile(file) as opened:
            return opened.read()
    except (pa.ArrowException, OSError) as problem:
        raise FormatError(
            f"{file.name} is not Parquet ({problem}).", "write it again."
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
    for name in (image, label):
        if name not in table.column_names:
            message = f"{file.name} has no column {name!r}, it has {', '.join(table.column_names)}."
            raise FormatError(message, "name the columns with image= and label=.")
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    columns["label"] = columns.pop(label)
    return columns.pop(image), columns


def _parquet_rows(
    file: Path,
    pixels: list[Any],
    columns: Mapping[str, list[Any]],
    names: Sequence[str] | None,
) -> Iterator[Row]:
    split = SPLITS.get(file.stem.split("-")[0].lower(), Split.USER)
    for i, cell in enumerate(pixels):
        data = cell.get("bytes") if isinstance(cell, dict) else cell
        # a missing image counts as a damaged one, so that skip_bad applies to it
        source = BytesImage(data if isinstance(data, bytes) else b"")
        cells = {name: values[i] for name, values in columns.items()}
        yield _row(cells, source, f"{file.stem}/{i:06d}", names=names, split=split)


# The embedded example.


def read_digits(**options: Unpack[ReadOptions]) -> Records:
    """scikit-learn's digits, with 60 made-up owners in four cohorts for the user records.

    In each class 30 % are core, 20 % test and the rest user records, in an order fixed by a hash:
    the same everywhere and always. Core and test records belong to the owners "core" and "test".
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as problem:
        raise EffaceError("the digits need scikit-learn.", "pip install scikit-learn.") from problem
    data = load_digits()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)  # (1797, 8, 8), from 0..16
    images.setflags(write=False)
    splits = _digits_splits(data.target)
    people = iter(_shuffled([i for i, split in enumerate(splits) if split is Split.USER], "owner"))
    owner = {i: place % NUM_DIGITS_OWNERS for place, i in enumerate(people)}
    rows = [
        _digits_row(images, i, str(data.target[i]), split, owner.get(i))
        for i, split in enumerate(splits)
    ]
    return assemble(Found(rows), **options)


def _digits_row(images: np.ndarray, i: int, label: str, split: Split, owner: int | None) -> Row:
    name = str(split) if owner is None else f"u{owner:02d}"
    cohort = DEFAULT_COHORT if owner is None else f"cohort{owner % NUM_DIGITS_COHORTS}"
    return Row(f"digits/{i:04d}", label, ArrayImage(images, i), split, name, cohort)


def _digits_splits(labels: np.ndarray) -> list[Split]:
    splits = [Split.USER] * len(labels)
    members: dict[int, list[int]] = defaultdict(list)
    for i, label in enumerate(labels):
        members[int(label)].append(i)
    for positions in members.values():
        order = _shuffled(positions, "split")
        num_core, num_test = round(0.3 * len(order)), round(0.2 * len(order))
        for place, i in enumerate(order[: num_core + num_test]):
            splits[i] = Split.CORE if place < num_core else Split.TEST
    return splits


def _shuffled(positions: Sequence[int], purpose: str) -> list[int]:
    """By hash, not by a generator whose stream a library might change."""
    return sorted(positions, key=lambda i: hashlib.sha256(f"{purpose}/{i}".encode()).digest())


# Whatever it is.


def open_records(spec: PathLike, **options: Unpack[ReadOptions]) -> Records:
    """Chooses the reader by what it finds at ``spec``; "digits" is the embedded example."""
    if spec == "digits":
        return read_digits(**options)
    path = Path(spec).expanduser()
    if path.is_dir():
        if any((path / name).is_file() for name in METADATA_NAMES):
            return read_metadata(path, **options)
        if any(path.glob("*.parquet")):
            return read_parquet(path, **options)
        return read_folder(path, **options)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return read_npz(path, **options)
    if suffix == ".parquet":
        return read_parquet(path, **options)
    if suffix in (".csv", ".jsonl"):
        return read_metadata(path, **options)
    fix = 'give "digits", a folder, or a .npz, .parquet, .csv or .jsonl file.'
    raise FormatError(f"{str(spec)!r} is nothing that can be read.", fix)
