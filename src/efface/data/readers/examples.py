"""Examples that a program holds: images with their labels, owners and names, from whatever carries them.

Plain images, a DataFrame (pandas or polars), a Hugging Face ``datasets.Dataset`` and a torch ``Dataset`` are
told apart by what they can do, so none of these packages is imported here. ``examples_of`` makes ``Examples``
of them, ``find_examples`` rows as any reader does.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from efface.data.columns import check_names, meant
from efface.data.found import GIVEN_COLUMNS, Found, PathLike, make_row, whole_number_classes
from efface.data.images import FileImage, ImageSource
from efface.data.numbers import COLUMNS as NUMBER_COLUMNS
from efface.data.readers.memory import default_ids, source_of, sources_of
from efface.errors import EffaceError, RecordError

IMAGE_COLUMNS = ("image", "path", "file_name", "filename", "file", *NUMBER_COLUMNS)


@dataclass(frozen=True)
class Examples:
    """Images and columns of the same length; ``names`` are those of integer labels.

    ``listed``: whether the data declares ``names`` as its classes, whoever is in it.
    """

    sources: Sequence[ImageSource]
    columns: Mapping[str, list[Any]] = field(default_factory=dict)
    names: list[str] | None = None
    listed: bool = False
    ids: list[str] | None = None  # better names for files than their paths

    def __len__(self) -> int:
        return len(self.sources)


def examples_of(
    data: Any, *, image: str | None = None, label: str = "label", root: PathLike | None = None
) -> Examples:
    """What ``data`` holds; ``image`` and ``label`` name columns, ``root`` is where relative paths begin."""
    _check_one(data)
    below = None if root is None else Path(root).expanduser()
    if is_table(data):
        return _of_columns(_frame_columns(data), image, label, below)
    if is_encoded_dataset(data):
        return _of_encoded_dataset(data, image, label, below)
    if is_dataset(data):
        return dataset_examples(data, image=image, label=label, root=root)
    return Examples(sources_of(data, below))


def _check_one(data: Any) -> None:
    """A ``DatasetDict`` holds several data sets, by split."""
    if isinstance(data, Mapping) and data and all(map(is_encoded_dataset, data.values())):
        fix = f"choose one: dataset[{next(iter(data))!r}]."
        raise EffaceError(f"this has the splits {', '.join(map(str, data))}.", fix)


def is_table(data: Any) -> bool:
    """A DataFrame: it has columns by name, and rows."""
    return hasattr(data, "columns") and hasattr(data, "to_dict") and hasattr(data, "shape")


def is_encoded_dataset(data: Any) -> bool:
    """A ``datasets.Dataset``: it says what its columns are."""
    return hasattr(data, "features") and hasattr(data, "column_names")


def is_dataset(data: Any) -> bool:
    """A torch ``Dataset``: it has a length and items, and is no collection that we know."""
    known = isinstance(data, list | tuple | str | bytes | np.ndarray | Mapping)
    plain = hasattr(data, "dtype")  # a Series or a tensor
    return not known and not plain and hasattr(data, "__getitem__") and hasattr(data, "__len__")


def find_examples(examples: Examples, **given: Any) -> Found:
    """Rows of the examples; ``given`` are ``labels owners cohorts ids split``, each one value for every
    image (``split`` may be one for all) instead of a column of that name."""
    columns: dict[str, list[Any]] = {key: list(values) for key, values in examples.columns.items()}
    for plural in GIVEN_COLUMNS:
        if given.get(plural) is not None:
            columns[plural.removesuffix("s")] = _column(plural, given[plural], len(examples))
    if not len(examples):
        raise EffaceError("no images were given.", "give at least one.")
    if "label" not in columns:
        slip = next((name for name in columns if meant(name, ["label"])), None)
        named = "" if slip is None else f"; or is it the column {slip!r}: label={slip!r}?"
        raise EffaceError("the images have no labels.", f"give labels=, one an image{named}.")
    check_names(columns, used=columns)
    for name in ("id", "owner", "cohort"):
        if name in columns:
            columns[name] = [name_of(value, f"{name}s") for value in columns[name]]
    names = examples.names if given.get("labels") is None else None
    labels = columns["label"] = _labels(columns["label"], names)
    called = examples.ids or default_ids(examples.sources)
    rows = [
        make_row({key: values[i] for key, values in columns.items()}, source, called[i])
        for i, source in enumerate(examples.sources)
    ]
    order = whole_number_classes(labels)
    if names is not None:
        order = names if examples.listed else [name for name in names if name in set(labels)]
    return Found(rows, order, listed=examples.listed and names is not None)


def name_of(value: Any, what: str) -> str | None:
    """A person's or record's name as text; None where there is none (None, NaN, ""). 17 and 17.0 are "17"."""
    if is_missing(value) or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        raise EffaceError(f"{what} hold {value!r:.80}.", "names are text or whole numbers.")
    if value != int(value):
        raise EffaceError(f"{what} hold {value!r}.", "names are text or whole numbers.")
    return str(int(value))


def label_name(value: Any) -> str:
    """A class's name, from the name itself or a whole number."""
    if isinstance(value, str) and value:
        return str(value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(int(value))
    raise EffaceError(f"{value!r:.80} is no label.", "labels are names or whole numbers.")


def is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and math.isnan(value)


def values_of(column: Any) -> list[Any]:
    """Python values of a list, array, tensor or Series."""
    for method in ("tolist", "to_list"):
        if hasattr(column, method):
            return list(getattr(column, method)())
    return [value.item() if getattr(value, "ndim", 1) == 0 else value for value in column]


def _column(name: str, values: Any, length: int) -> list[Any]:
    if isinstance(values, str):
        if name != "split":
            raise EffaceError(f"{name} is one text, {values!r:.80}.", "give a list, one an image.")
        return [values] * length
    if getattr(values, "ndim", 1) == 2 and values.shape[1] == 1:
        values = values[:, 0]
    found = values_of(values)
    if len(found) != length:
        message = f"{len(found)} {name} for {length} images."
        raise EffaceError(message, f"give one of the {name} an image.")
    return found


def _labels(values: list[Any], names: list[str] | None) -> list[Any]:
    """Names or whole numbers, not both: 1 and "1" would be one class."""
    kinds = {isinstance(value, str) for value in values}
    if len(kinds) > 1:
        raise EffaceError("some labels are text and some are numbers.", "give one kind of label.")
    if names is None or kinds == {True}:
        return values
    return [_named(i, value, names) for i, value in enumerate(values)]


def _named(i: int, value: Any, names: list[str]) -> Any:
    if not isinstance(value, int) or isinstance(value, bool):
        return value  # make_row says what is wrong with it
    if not 0 <= value < len(names):
        fix = "correct the label, or the data's list of class names."
        raise RecordError(f"image {i}", f"label {value} is outside the {len(names)} classes.", fix)
    return names[value]


# Tables: a column an attribute.


def _frame_columns(frame: Any) -> dict[str, list[Any]]:
    return {str(name): values_of(frame[name]) for name in list(frame.columns)}


def _of_columns(
    columns: dict[str, list[Any]],
    image: str | None,
    label: str,
    root: Path | None,
    names: list[str] | None = None,
) -> Examples:
    """Images from one column; ``label id owner cohort split`` are used, the others are kept."""
    where = _image_column(columns, image)
    cells = columns.pop(where)
    if label in columns:
        columns["label"] = columns.pop(label)
    cleared = {
        name: [None if is_missing(value) else value for value in values]
        for name, values in columns.items()
    }
    sources = [source_of(cell, f"row {i}", root) for i, cell in enumerate(cells)]
    return Examples(sources, cleared, names, names is not None)


def _image_column(columns: Mapping[str, Any], image: str | None) -> str:
    wanted = IMAGE_COLUMNS if image is None else (image,)
    for name in wanted:
        if name in columns:
            return name
    fix = 'name the column that holds images or paths: image="…".'
    raise EffaceError(f"no column {wanted[0]!r} among {', '.join(columns)}.", fix)


def _of_encoded_dataset(data: Any, image: str | None, label: str, root: Path | None) -> Examples:
    """Hugging Face's: images as they are stored, encoded, so that their digests are those of the files."""
    where = _image_column(data.features, image)
    plain = data.with_format(None) if hasattr(data, "with_format") else data
    feature = data.features[where]
    if getattr(feature, "decode", False):
        stored = copy.copy(feature)
        stored.decode = False
        plain = plain.cast_column(where, stored)
    columns = {name: list(plain[name]) for name in plain.column_names}
    names = getattr(data.features.get(label), "names", None)
    return _of_columns(columns, where, label, root, None if names is None else list(names))


# torch's: one item after the other.


def dataset_examples(
    data: Any, *, image: str | None = None, label: str = "label", root: PathLike | None = None
) -> Examples:
    """Items are (image, label), or mappings with such columns. Where a data set is a list of files
    (``samples``, as torchvision's ImageFolder has it) these are read as they are, transforms left out."""
    _check_one(data)
    if is_table(data) or is_encoded_dataset(data):
        return examples_of(data, image=image, label=label, root=root)
    if hasattr(data, "dataset") and hasattr(data, "indices"):  # a Subset
        whole = dataset_examples(data.dataset, image=image, label=label, root=root)
        return _some(whole, [int(i) for i in data.indices])
    below = None if root is None else Path(root).expanduser()
    names = getattr(data, "classes", None)
    names = None if names is None else [str(name) for name in names]
    if hasattr(data, "samples") and hasattr(data, "loader"):
        return _of_files(data, names)
    items = [data[i] for i in range(len(data))] if hasattr(data, "__getitem__") else list(data)
    if items and isinstance(items[0], Mapping):
        keys = dict.fromkeys(key for item in items for key in item)
        columns = {str(key): values_of([item.get(key) for item in items]) for key in keys}
        return _of_columns(columns, image, label, below, None)
    for i, item in enumerate(items):
        if not isinstance(item, tuple | list) or len(item) < 2:
            fix = "its items are (image, label) pairs, or mappings with these columns."
            raise RecordError(f"image {i}", f"the data set gives a {type(item).__name__}.", fix)
    sources = [source_of(item[0], f"image {i}", below) for i, item in enumerate(items)]
    return Examples(sources, {"label": values_of([item[1] for item in items])}, names)


def _of_files(data: Any, names: list[str] | None) -> Examples:
    files = [Path(path).expanduser().absolute() for path, _ in data.samples]
    base = Path(getattr(data, "root", ".")).expanduser().absolute()
    ids = [
        (file.relative_to(base) if file.is_relative_to(base) else file).as_posix() for file in files
    ]
    labels = values_of([label for _, label in data.samples])
    return Examples([FileImage(file) for file in files], {"label": labels}, names, ids=ids)


def _some(examples: Examples, index: Iterable[int]) -> Examples:
    chosen = list(index)
    return replace(
        examples,
        sources=[examples.sources[i] for i in chosen],
        columns={name: [values[i] for i in chosen] for name, values in examples.columns.items()},
        ids=None if examples.ids is None else [examples.ids[i] for i in chosen],
    )
