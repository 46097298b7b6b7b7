"""MNIST and Fashion-MNIST: four idx files, as they are or gzipped."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from efface.data.found import Found, Row
from efface.data.images import ArrayImage
from efface.data.named.listed import AGAIN
from efface.data.record import Split
from efface.errors import FormatError
from efface.regular import LARGEST_LIST

DIGITS = tuple("0123456789")
CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
PARTS = (("train", Split.USER), ("t10k", Split.TEST))


def spellings(name: str) -> tuple[str, ...]:
    """``train-images-idx3-ubyte`` is also found as ``train-images.idx3-ubyte``, and gzipped."""
    dotted = name.replace("-idx", ".idx")
    return (name, dotted, f"{name}.gz", f"{dotted}.gz")


FILES: tuple[str, ...] = tuple(
    f"{part}-{what}-ubyte" for part, _ in PARTS for what in ("images-idx3", "labels-idx1")
)


def find_mnist(root: Path, variant: str = "") -> Found:
    """60,000 training and 10,000 test digits."""
    return _find(root, DIGITS)


def find_fashion_mnist(root: Path, variant: str = "") -> Found:
    """60,000 training and 10,000 test articles of clothing."""
    return _find(root, CLOTHES)


def _find(root: Path, classes: tuple[str, ...]) -> Found:
    rows: list[Row] = []
    for part, split in PARTS:
        images = read_idx(_file(root, f"{part}-images-idx3-ubyte"), 3)  # (n, h, w)
        labels = read_idx(_file(root, f"{part}-labels-idx1-ubyte"), 1)  # (n,)
        if len(images) != len(labels):
            message = f"the {part} files hold {len(images)} images and {len(labels)} labels."
            raise FormatError(message, AGAIN)
        if len(labels) and labels.max() >= len(classes):
            raise FormatError(f"the {part} labels go up to {labels.max()}.", AGAIN)
        name = "train" if split is Split.USER else "test"
        for i, label in enumerate(labels):
            record_id = f"{name}/{i:06d}"
            rows.append(Row(record_id, classes[label], ArrayImage(images, i), split, record_id))
    return Found(rows, classes)


def _file(root: Path, name: str) -> Path:
    return next(
        (root / spelling for spelling in spellings(name) if (root / spelling).is_file()),
        root / name,
    )


def read_idx(path: Path, num_axes: int) -> np.ndarray:
    """An idx file of bytes: 0, 0, 8, the number of axes, their lengths as big-endian 32 bits, data.

    A plain file is memory-mapped; a gzipped one is held in memory.
    """
    content = _content(path)
    start = 4 + 4 * num_axes
    if len(content) < start or bytes(content[:4]) != bytes((0, 0, 8, num_axes)):
        raise FormatError(f"{path} is not an idx file of bytes with {num_axes} axes.", AGAIN)
    shape = tuple(int(n) for n in content[4:start].view(">u4"))
    if len(content) - start != math.prod(shape):
        message = f"{path} holds {len(content) - start} bytes of data where {shape} was announced."
        raise FormatError(message, AGAIN)
    return content[start:].reshape(shape)


def _content(path: Path) -> np.ndarray:
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                data = file.read(LARGEST_LIST + 1)
            if len(data) > LARGEST_LIST:
                raise ValueError(f"more than {LARGEST_LIST >> 20} MB unpacked")
            return np.frombuffer(data, np.uint8)
        return np.memmap(path, np.uint8, mode="r")
    except (OSError, EOFError, ValueError, zlib.error) as problem:
        raise FormatError(f"{path} cannot be read ({problem}).", AGAIN) from problem
