"""CIFAR-10: the binary batches, memory-mapped, or the Python ones, which are pickles.

A pickle is a program. The Python batches are therefore read by ``pickled_batches``, which builds plain
values only and runs nothing; where both versions are at hand the binary one is used. Record ids and digests
are the same for either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from efface.data.found import Found, Row
from efface.data.images import ArrayImage
from efface.data.named.listed import AGAIN, lines
from efface.data.named.pickled_batches import read_batch
from efface.data.record import Split
from efface.errors import FormatError

T = TypeVar("T")
SIDE, PIXELS = 32, 3 * 32 * 32
TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST = "test_batch"
BINARY_FILES: tuple[str, ...] = (*(f"{name}.bin" for name in (*TRAIN, TEST)), "batches.meta.txt")
PYTHON_FILES: tuple[str, ...] = (*TRAIN, TEST, "batches.meta")


@dataclass(frozen=True)
class CifarBatch:
    images: np.ndarray  # (n, 32, 32, 3)
    labels: np.ndarray  # (n,)


def find_binary(root: Path, variant: str = "") -> Found:
    """``data_batch_1.bin`` … ``test_batch.bin``: a label and 3 × 32 × 32 bytes an image."""
    classes = lines(root / "batches.meta.txt")
    train = [_binary(root / f"{name}.bin") for name in TRAIN]
    return _found(classes, train, _binary(root / f"{TEST}.bin"))


def find_python(root: Path, variant: str = "") -> Found:
    """``data_batch_1`` … ``test_batch``: dictionaries with ``data`` and ``labels``."""
    meta = root / "batches.meta"
    classes = [_text(name) for name in _entry(meta, read_batch(meta), "label_names", list)]
    train = [_python(root / name) for name in TRAIN]
    return _found(classes, train, _python(root / TEST))


def _binary(path: Path) -> CifarBatch:
    size = path.stat().st_size
    if size == 0 or size % (1 + PIXELS):
        message = f"{path} has {size} bytes, which is no multiple of {1 + PIXELS}."
        raise FormatError(message, AGAIN)
    table = np.memmap(path, np.uint8, mode="r").reshape(-1, 1 + PIXELS)
    return CifarBatch(_channels_last(table[:, 1:]), np.asarray(table[:, 0]))


def _python(path: Path) -> CifarBatch:
    content = read_batch(path)
    pixels = _entry(path, content, "data", np.ndarray)
    labels = _entry(path, content, "labels", list)
    if pixels.shape != (len(labels), PIXELS) or not all(isinstance(v, int) for v in labels):
        message = f"{path} has {len(labels)} labels for data of shape {pixels.shape}."
        raise FormatError(message, AGAIN)
    return CifarBatch(_channels_last(pixels), np.array(labels, dtype=np.int64))


def _channels_last(pixels: np.ndarray) -> np.ndarray:
    """(n, 3 · 32 · 32) to (n, 32, 32, 3), without a copy."""
    return pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)


def _entry(path: Path, content: Mapping[Any, Any], name: str, kind: type[T]) -> T:
    """The dictionary's entry: keys are bytes, as Python 2 wrote them, or text."""
    value = content.get(name.encode(), content.get(name))
    if not isinstance(value, kind):
        raise FormatError(f"{path} has no {name!r} of the right kind.", AGAIN)
    return value


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _found(classes: Sequence[str], train: Sequence[CifarBatch], test: CifarBatch) -> Found:
    rows: list[Row] = []
    for name, split, batches in (("train", Split.USER, train), ("test", Split.TEST, [test])):
        at = [(batch, i) for batch in batches for i in range(len(batch.labels))]
        for number, (batch, i) in enumerate(at):
            record_id, label = f"{name}/{number:06d}", int(batch.labels[i])
            if not 0 <= label < len(classes):
                raise FormatError(f"{record_id} has label {label} of {len(classes)}.", AGAIN)
            source = ArrayImage(batch.images, i)
            rows.append(Row(record_id, classes[label], source, split, owner=record_id))
    return Found(rows, list(classes))
