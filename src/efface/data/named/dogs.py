"""Stanford Dogs: breeds, with the official split in two ``.mat`` files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from efface.data.found import Found, Row
from efface.data.named.listed import AGAIN, check_one_split, image_row
from efface.data.record import Split
from efface.errors import FormatError


def find_dogs(root: Path, variant: str = "") -> Found:
    """``train_list.mat`` and ``test_list.mat`` hold ``file_list`` and ``labels`` (from 1).

    A class is named by its folder, ``n02085620-Chihuahua``; classes come in the order of their labels.
    """
    train, test = (_entries(_list(root, f"{part}_list.mat")) for part in ("train", "test"))
    check_one_split([name for name, _ in train], [name for name, _ in test])
    classes = _classes(train + test)
    rows = _rows(root / "Images", train, Split.USER) + _rows(root / "Images", test, Split.TEST)
    return Found(rows, classes)


def _list(root: Path, name: str) -> Path:
    inside = root / "lists" / name
    return inside if inside.is_file() else root / name


def _entries(path: Path) -> list[tuple[str, int]]:
    content = _load(path)
    try:
        names = [str(np.asarray(cell).item()) for cell in np.ravel(content["file_list"])]
        labels = [int(label) for label in np.ravel(content["labels"])]
    except (KeyError, TypeError, ValueError) as problem:
        message = f"{path.name} does not hold file_list and labels ({problem!r})."
        raise FormatError(message, AGAIN) from problem
    if not names or len(names) != len(labels):
        raise FormatError(f"{path.name} has {len(names)} files and {len(labels)} labels.", AGAIN)
    return list(zip(names, labels, strict=True))


def _load(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        content: dict[str, Any] = loadmat(path)
    except Exception as problem:  # the parser raises whatever it stumbled over
        raise FormatError(f"{path} is not a .mat file ({problem}).", AGAIN) from problem
    return content


def _classes(entries: list[tuple[str, int]]) -> list[str]:
    """Folder names in the order of the labels; each label stands for one folder."""
    folders: dict[int, str] = {}
    for name, label in entries:
        if folders.setdefault(label, name.partition("/")[0]) != name.partition("/")[0]:
            message = f"label {label} stands for {folders[label]!r} and for {name!r}."
            raise FormatError(message, AGAIN)
    return [folders[label] for label in sorted(folders)]


def _rows(images: Path, entries: list[tuple[str, int]], split: Split) -> list[Row]:
    return [image_row(images, name, name.partition("/")[0], split) for name, _ in entries]
