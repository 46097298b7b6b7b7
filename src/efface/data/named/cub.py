"""CUB-200-2011: birds, with the official split in ``train_test_split.txt``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from efface.data.found import Found
from efface.data.named.listed import AGAIN, image_row, pairs
from efface.data.record import Split
from efface.errors import FormatError

T = TypeVar("T")
SPLITS = {"1": Split.USER, "0": Split.TEST}


def find_cub(root: Path, variant: str = "") -> Found:
    """``images.txt`` names the files, two more lists give each its class and split by number."""
    images = pairs(root / "images.txt")
    classes = pairs(root / "classes.txt")
    labels = _of_every(images, pairs(root / "image_class_labels.txt"), "image_class_labels.txt")
    splits = _of_every(images, pairs(root / "train_test_split.txt"), "train_test_split.txt")
    rows = [
        image_row(
            root / "images",
            name,
            _known(classes, labels[number], number, "image_class_labels.txt"),
            _known(SPLITS, splits[number], number, "train_test_split.txt"),
        )
        for number, name in images.items()
    ]
    return Found(rows, list(classes.values()))


def _of_every(images: Mapping[str, str], values: Mapping[str, str], file: str) -> Mapping[str, str]:
    missing = [number for number in images if number not in values]
    if missing:
        message = f"{file} has no line for {len(missing)} images, the first is {missing[0]}."
        raise FormatError(message, AGAIN)
    return values


def _known(names: Mapping[str, T], value: str, number: str, file: str) -> T:
    if value not in names:
        raise FormatError(f"{file} says {value!r} for image {number}.", AGAIN)
    return names[value]
