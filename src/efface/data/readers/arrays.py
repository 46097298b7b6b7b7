"""Arrays: images (or rows of numbers) with columns of the same length, from an ``.npz`` file; and the
embedded digits."""

from __future__ import annotations

import hashlib
import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from efface.data.columns import KNOWN_COLUMNS, check_names, hint, meant, nearest
from efface.data.found import (
    SPLITS,
    Found,
    PathLike,
    Row,
    make_row,
    whole_number_classes,
)
from efface.data.images import ArrayImage, num_channels
from efface.data.numbers import COLUMNS, held_rows
from efface.data.record import DEFAULT_COHORT, Split
from efface.errors import EffaceError, FormatError
from efface.regular import LARGEST_TABLE, check_regular

UNREADABLE = (
    *(ValueError, TypeError, KeyError, EOFError, OSError, OverflowError, MemoryError, SyntaxError),
    *(RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error, struct.error),
    *(lzma.LZMAError, RecursionError, tokenize.TokenError),
)
PARTS = ("core", "train", "test")
PART_COLUMNS = ("owner", "cohort", "id")
PART_KEYS = (*(f"{name}_{part}" for part in PARTS for name in ("x", "y", *PART_COLUMNS)), "classes")
TABLE_KEYS = ("images", *COLUMNS, "labels", "ids", "owners", "cohorts", "splits", "classes")
NUM_DIGITS_OWNERS, NUM_DIGITS_COHORTS = 60, 4


@dataclass(frozen=True)
class ArrayTable:
    """Images with columns of the same length."""

    images: np.ndarray  # (n, h, w), (n, h, w, channels) or (n, length)
    columns: Mapping[str, list[Any]]
    prefix: str = ""
    split: Split = Split.USER

    def rows(self, names: Sequence[str] | None) -> Iterator[Row]:
        for i in range(len(self.images)):
            columns = {key: values[i] for key, values in self.columns.items()}
            source, default_id = ArrayImage(self.images, i), f"{self.prefix}{i:06d}"
            yield make_row(columns, source, default_id, names=names, split=self.split)


def find_npz(path: PathLike) -> Found:
    """``images labels`` (``tokens`` or ``vectors`` in the place of ``images``) with optional ``ids owners
    cohorts splits`` and further columns, or ``x_train y_train`` with optional ``owner_train cohort_train
    id_train``, and the same of ``core`` and ``test``; ``classes`` names integer labels.

    Images are uint8 or uint16, (n, h, w) or (n, h, w, channels); rows of numbers are whole, (n, length).
    """
    arrays = _load_npz(Path(path).expanduser())
    names = [str(name) for name in arrays.pop("classes")] if "classes" in arrays else None
    parted = not any(name in arrays for name in ("images", *COLUMNS))
    tables = _part_tables(arrays) if parted else _one_table(arrays)
    _check_keys(arrays, PART_KEYS if parted else TABLE_KEYS)
    rows = [row for table in tables for row in table.rows(names)]
    labels = [label for table in tables for label in table.columns["label"]]
    known = PART_KEYS if parted else TABLE_KEYS
    remarks = [f"the array {name!r} was not used{hint(name, known)}" for name in arrays]
    order, listed = names or whole_number_classes(labels), names is not None
    return Found(rows, order, (), remarks, listed)


def _load_npz(path: Path) -> dict[str, np.ndarray]:
    fix = "write it with numpy.savez, without object arrays."
    if not path.is_file():
        raise FormatError(f"{str(path)!r} does not exist.", "check the path.")
    if not zipfile.is_zipfile(path):
        raise FormatError(f"{path.name} is not an .npz file.", fix)
    try:
        check_regular(path, LARGEST_TABLE)
        _check_sizes(path)
        with np.load(path, allow_pickle=False) as archive:
            return {name: np.asarray(archive[name]) for name in archive.files}
    except UNREADABLE as problem:
        raise FormatError(f"{path.name} cannot be read ({problem!s:.200}).", fix) from problem


def _check_sizes(path: Path) -> None:
    """No array may claim more than its member has, nor all of them more than can be meant."""
    with zipfile.ZipFile(path) as archive:
        total = sum(member.file_size for member in archive.infolist())
        if total > LARGEST_TABLE:
            raise ValueError(f"{total >> 30} GB unpacked, more than {LARGEST_TABLE >> 30}")
        for member in archive.infolist():
            with archive.open(member) as file:
                if file.read(6) != np.lib.format.MAGIC_PREFIX:
                    raise ValueError(f"{member.filename} is no array")
                version = tuple(file.read(2))
                read = np.lib.format.read_array_header_1_0
                shape, _, dtype = (read if version == (1, 0) else _header_2)(file)
            if math.prod(shape) * dtype.itemsize > member.file_size:
                raise ValueError(f"{member.filename} claims {shape}, more than it has")


def _header_2(file: Any) -> Any:
    return np.lib.format.read_array_header_2_0(file)


def _one_table(arrays: dict[str, np.ndarray]) -> list[ArrayTable]:
    """Takes ``images`` and everything of its length; what is left in ``arrays`` was not used."""
    key, *others = (name for name in ("images", *COLUMNS) if name in arrays)
    if others:
        raise FormatError(
            f"there are {key!r} and {others[0]!r}.", "a record has one: keep one array."
        )
    images = _pixels(arrays, "images") if key == "images" else held_rows(arrays.pop(key), key)
    if "labels" not in arrays:
        raise FormatError(f"the array {key!r} has no 'labels'.", "add them.")
    columns = {"label": _column(arrays, "labels", len(images))}
    for name in list(arrays):
        singular = name.removesuffix("s")
        if singular in KNOWN_COLUMNS - {"label"}:
            columns[singular] = _column(arrays, name, len(images))
        elif len(np.atleast_1d(arrays[name])) == len(images) and name != "label":
            columns[name] = _column(arrays, name, len(images))
    check_names(columns, used=columns)
    return [ArrayTable(images, columns)]


def _part_tables(arrays: dict[str, np.ndarray]) -> list[ArrayTable]:
    parts = [part for part in PARTS if f"x_{part}" in arrays]
    if not parts:
        fix = "store x_train and y_train, or images (or tokens) and labels."
        raise FormatError(f"the arrays are {', '.join(arrays) or 'none'}.", fix)
    tables = []
    for part in parts:
        images = _pixels(arrays, f"x_{part}")
        columns = {"label": _column(arrays, f"y_{part}", len(images))}
        for name in PART_COLUMNS:
            for key in (f"{name}_{part}", f"{name}s_{part}"):
                if key in arrays:
                    columns[name] = _column(arrays, key, len(images))
        tables.append(ArrayTable(images, columns, f"{part}/", SPLITS[part]))
    return tables


def _check_keys(left: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuses an array that was not used though it is surely meant for something."""
    for name in left:
        column = meant(name, PART_COLUMNS)
        sure = meant(name, known) or (None if column is None else f"{column}_train")
        if sure or name.rpartition("_")[2].lower() in PARTS:
            close = sure or nearest(name, known)
            near = "" if close is None else f" (did you mean {close!r}?)"
            message = f"the array {name!r} is none of those that are read{near}."
            raise FormatError(message, f"rename it or take it out; known are {', '.join(known)}.")


def _pixels(arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    images = arrays.pop(name)
    if images.ndim == 2 and images.dtype.kind == "i" and name != "images":
        return held_rows(images, name)
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


# The embedded example.


def find_digits() -> Found:
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
    return Found(rows, [str(digit) for digit in range(10)])


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
