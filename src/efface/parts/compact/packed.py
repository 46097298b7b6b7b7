"""Sums as they lie in a file: 64-bit words, the lower triangle by rows; nothing in a file is believed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from efface.errors import FormatError
from efface.parts.compact.exact import ENTRY_LIMIT, ExactArray, Floats, Words


def words_of(arrays: Mapping[str, NDArray[np.generic]], key: str, shape: tuple[int, ...]) -> Words:
    words = np.asarray(arrays.get(key, ()))
    if words.shape != shape or words.dtype != np.int64:
        raise FormatError(f"Statistics without {key!r} of shape {shape}.", "Fit the model again.")
    if len(words) == 1 and max(int(words.max()), -int(words.min())) > ENTRY_LIMIT[1]:
        raise FormatError(f"{key!r} passes 2^52.", "Restore the file, or fit the model again.")
    return words


def unpack_strip(packed: Words, start: int, stop: int) -> ExactArray:
    """Rows start:stop of the lower triangle, its diagonal block mirrored."""
    if len(packed) == 1:
        return ExactArray(_unpacked(packed[0], start, stop))
    words = np.zeros((len(packed), stop - start, stop), dtype=np.int64)
    for row in range(start, stop):
        begin = row * (row + 1) // 2
        words[:, row - start, : row + 1] = packed[:, begin : begin + row + 1]
    block = words[:, :, start:]
    block += np.tril(block, -1).transpose(0, 2, 1)
    return ExactArray.from_words(words)


def _unpacked(packed: NDArray[np.int64], start: int, stop: int) -> Floats:
    """The same of one word: below 2^53, so that float64 holds it, and each is touched once."""
    rows: Floats = np.empty((stop - start, stop))
    begin = start * (start + 1) // 2
    for row, to in zip(range(start, stop), rows, strict=True):
        to[: row + 1] = packed[begin : begin + row + 1]
        to[row + 1 :] = 0
        begin += row + 1
    block = rows[:, start:]
    block += np.tril(block, -1).T
    return rows
