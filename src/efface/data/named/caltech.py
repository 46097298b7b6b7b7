"""Caltech-101 and Caltech-256: one folder a class and no official split.

The custom is to train on the same number of images of every class, drawn at random, and to test on the
rest. Here the draw is the order of SHA-256(seed/id): the same on every machine, and hardly moved by one image
more or less. It does not depend on the seed of training, so a test image never becomes a training image.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from efface.data.found import Found, Row
from efface.data.images import FileImage
from efface.data.named.listed import AGAIN
from efface.data.readers.folder import id_below
from efface.data.record import Split
from efface.errors import FormatError

VARIANT = r"\d+(?:-seed\d+)?"


@dataclass(frozen=True)
class Custom:
    """How a collection is split unless the name says otherwise; ``clutter`` is no class."""

    num_classes: int
    num_train: int
    max_test: int | None
    clutter: str


CALTECH_101 = Custom(101, num_train=30, max_test=50, clutter="BACKGROUND_Google")
CALTECH_256 = Custom(256, num_train=60, max_test=None, clutter="257.clutter")


def find_caltech101(root: Path, variant: str = "") -> Found:
    """30 training images a class and up to 50 of the rest for testing; ``15-seed2``: another draw."""
    return _find(root, CALTECH_101, variant)


def find_caltech256(root: Path, variant: str = "") -> Found:
    """60 training images a class, the rest for testing; ``30-seed2``: another draw."""
    return _find(root, CALTECH_256, variant)


def _find(root: Path, custom: Custom, variant: str) -> Found:
    num_train, seed = _draw(variant, custom)
    folders = sorted(
        folder
        for folder in root.iterdir()
        if folder.is_dir() and folder.name != custom.clutter and not folder.name.startswith(".")
    )
    if not folders:
        raise FormatError(f"there are no class folders in {root}.", AGAIN)
    rows: list[Row] = []
    num_left_out = 0
    for folder in folders:
        images = _images(folder)
        stop = len(images) if custom.max_test is None else num_train + custom.max_test
        num_left_out += len(images[stop:])
        ranked = sorted(images, key=lambda image: _rank(seed, id_below(root, image)))
        rows += _rows(root, ranked[:num_train], folder.name, Split.USER)
        rows += _rows(root, ranked[num_train:stop], folder.name, Split.TEST)
    remarks = list(_remarks(custom, num_train, len(folders), num_left_out, rows))
    return Found(rows, [folder.name for folder in folders], remarks=remarks)


def _draw(variant: str, custom: Custom) -> tuple[int, int]:
    number, _, seed = variant.partition("-seed")
    num_train = int(number or custom.num_train)
    if num_train < 1:
        raise FormatError("no training images a class.", "write at least 1, as in caltech256-60.")
    return num_train, int(seed or 0)


def _images(folder: Path) -> list[Path]:
    """Only the numbered files: the archive has a few strays beside them (056.dog/greg, RENAME2)."""
    named = re.compile(r"(?:image_|\d{3}_)\d{4}\.jpg", re.IGNORECASE)
    images = sorted(file for file in folder.iterdir() if named.fullmatch(file.name))
    if not images:
        raise FormatError(f"there are no images in {folder}.", AGAIN)
    return images


def _rank(seed: int, record_id: str) -> bytes:
    return hashlib.sha256(f"{seed}/{record_id}".encode()).digest()


def _rows(root: Path, images: Sequence[Path], label: str, split: Split) -> list[Row]:
    ids = [id_below(root, image) for image in images]
    return [
        Row(record_id, label, FileImage(image), split, owner=record_id)
        for record_id, image in zip(ids, images, strict=True)
    ]


def _remarks(
    custom: Custom, num_train: int, num_folders: int, num_left_out: int, rows: Sequence[Row]
) -> list[str]:
    remarks = []
    if num_folders != custom.num_classes:
        remarks.append(f"{num_folders} class folders where the archive has {custom.num_classes}")
    if num_left_out:
        remarks.append(
            f"{num_left_out} images are not used: the custom is at most {custom.max_test} test images a class"
        )
    tested = {row.label for row in rows if row.split is Split.TEST}
    small = sorted({row.label for row in rows} - tested)
    if small:
        remarks.append(f"{num_train} training images a class leave none to test {small[0]!r}")
    return remarks
