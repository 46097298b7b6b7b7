"""What a reader found: rows as the files say them, before any image has been looked at.

Every reader finds ``Row``s in its own layout and returns them as ``Found``; ``assemble`` is the one rule for
damaged images, labels, channels and classes, whatever the layout. ``make_row`` is one row from named columns,
for the layouts that have such.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

import numpy as np

from efface.data.columns import KNOWN_COLUMNS
from efface.data.images import ImageSource
from efface.data.names import tidy
from efface.data.record import DEFAULT_COHORT, NOTHING, Skipped, Split
from efface.errors import RecordError

PathLike: TypeAlias = str | os.PathLike[str]
SPLITS = {
    "core": Split.CORE,
    "train": Split.USER,
    "user": Split.USER,
    "test": Split.TEST,
    "val": Split.TEST,
    "valid": Split.TEST,
    "validation": Split.TEST,
}


class ReadOptions(TypedDict, total=False):
    """The options every reader takes; ``assemble`` says what they mean."""

    classes: Sequence[str] | None
    core_fraction: float | None
    seed: int
    channels: str | None
    skip_bad: bool
    absolute_paths: bool
    wanted: Callable[[Row], bool] | None


class GivenOptions(ReadOptions, total=False):
    """Beside those, the columns of images that a program holds: one value an image each."""

    owners: Any
    cohorts: Any
    ids: Any
    split: Any


GIVEN_COLUMNS = ("labels", "owners", "cohorts", "ids", "split")


@dataclass(frozen=True, slots=True)
class Row:
    """A record whose image has not been looked at yet.

    ``unit`` names what is read as one piece to get at the image, an archive or a group of a table's rows;
    without one it is the image itself.
    """

    id: str
    label: str
    source: ImageSource
    split: Split
    owner: str
    cohort: str = DEFAULT_COHORT
    extra: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    unit: str = ""

    @property
    def piece(self) -> str:
        """What decides who reads it, where several do: rows of one unit go together."""
        return self.unit or self.id


@dataclass(frozen=True)
class Found:
    """What a reader found; ``classes`` where the data itself lists them.

    ``listed`` is False where ``classes`` only puts the labels that occur into an order. ``channels`` is what
    the images of a named set are; ``below`` the folder that must hold every file the set lists.
    """

    rows: Sequence[Row]
    classes: Sequence[str] | None = None
    skipped: Sequence[Skipped] = ()
    remarks: Sequence[str] = ()
    listed: bool = True
    channels: str | None = None
    below: Path | None = None


# One row from named columns: the shared half of metadata files, Parquet and npz.


def make_row(
    columns: Mapping[str, Any],
    source: ImageSource,
    default_id: str,
    *,
    names: Sequence[str] | None = None,
    split: Split = Split.USER,
    unit: str = "",
) -> Row:
    record_id = text_or(columns.get("id"), default_id)
    return Row(
        id=record_id,
        label=_label(record_id, columns.get("label"), names),
        source=source,
        split=_split(record_id, columns.get("split"), split),
        owner=tidy(text_or(columns.get("owner"), record_id)) or record_id,
        cohort=tidy(text_or(columns.get("cohort"), DEFAULT_COHORT)) or DEFAULT_COHORT,
        extra={k: value for k, value in columns.items() if k not in KNOWN_COLUMNS} or NOTHING,
        unit=unit,
    )


def split_of_name(stem: str) -> Split:
    """``test-00001``, ``core-a``: what a file's name says about its rows; user data if nothing."""
    return SPLITS.get(stem.split("-")[0].lower(), Split.USER)


def text_or(value: Any, default: str) -> str:
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


def whole_number_classes(labels: Iterable[Any]) -> list[str] | None:
    """Classes in the order 2 < 10 where labels are bare numbers, so that index follows label."""
    values = set(labels)
    if all(isinstance(value, int | np.integer) for value in values):
        return [str(int(value)) for value in sorted(values)]
    return None
