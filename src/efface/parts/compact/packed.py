"""Sums as they lie in a file: 64-bit words, the lower triangle by rows; nothing in a file is believed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from efface.errors import FormatError
from efface.parts.compact.exact import ENTRY_LIMIT, ExactArray, Floats, Words

BLOCK_WORDS = 1 << 17  # packed at a time: they are hashed and written before they leave the cache
MASKED = 128  # rows unpacked at a time
TILE = 64  # of a block that is mirrored


def words_of(arrays: Mapping[str, NDArray[np.generic]], key: str, shape: tuple[int, ...]) -> Words:
    words = np.asarray(arrays.get(key, ()))
    if words.shape != shape or words.dtype != np.int64:
        raise FormatError(f"Statistics without {key!r} of shape {shape}.", "Fit the model again.")
    return words


def require_exact(key: str, array: ExactArray) -> int:
    """:meth:`ExactArray.max_abs_bound`, if that is what one limb may hold (of two, the caller looks).

    Words beyond 2^53 were rounded on the way into it, and not to anything that would pass.
    """
    bound = array.max_abs_bound()
    if array.high is None and bound > ENTRY_LIMIT[1]:
        raise FormatError(f"{key!r} passes 2^52.", "Restore the file, or fit the model again.")
    return bound


class WordsHash:
    """SHA-256 of words as they come, (limbs, size); of second words only where some are not zero."""

    def __init__(self, limbs: int) -> None:
        self._hashes = [hashlib.sha256() for _ in range(limbs)]
        self._any_second = False

    def update(self, words: Words) -> None:
        for running, word in zip(self._hashes, words, strict=True):
            running.update(word)
        self._any_second = self._any_second or bool(words[1:].any())

    def digest(self, header: str) -> str:
        counted = self._hashes if self._any_second else self._hashes[:1]
        ends = [running.digest() for running in counted]
        return hashlib.sha256(header.encode() + b"".join(ends)).hexdigest()


def pack_strip(strip: ExactArray, start: int) -> Iterator[Words]:
    """Words of the rows from ``start`` on, each up to the diagonal, some rows at a time, (limbs, size).

    They are the next ones' place in memory, so whoever wants to keep them has to copy them.
    """
    size, limbs = strip.low.shape[1], 1 if strip.high is None else 2
    step = max(BLOCK_WORDS // size, 1)
    packed: Words = np.empty((limbs, step * size), dtype="<i8")
    for first in range(0, len(strip.low), step):
        part = strip[first : first + step]
        ends = range(start + first + 1, start + first + 1 + len(part.low))
        limb_rows = (part.low,) if part.high is None else part.words()  # a float64 is its word
        for rows, to in zip(limb_rows, packed, strict=True):
            _pack(rows, ends, to)
        yield packed[:, : sum(ends)]


def _pack(rows: NDArray[Any], ends: range, to: NDArray[np.int64]) -> None:
    """Each row up to its end, one after the other."""
    begin = 0
    for row, end in zip(rows, ends, strict=True):
        to[begin : begin + end] = row[:end]
        begin += end


def unpack_strip(packed: Words, start: int, stop: int) -> tuple[ExactArray, int]:
    """Rows start:stop of the lower triangle, its diagonal block mirrored; and a bound on its entries."""
    if len(packed) == 1:
        strip = ExactArray(_unpacked(packed[0], start, stop))
        return strip, require_exact("gram", strip)
    words = np.zeros((len(packed), stop - start, stop), dtype=np.int64)
    for row in range(start, stop):
        begin = row * (row + 1) // 2
        words[:, row - start, : row + 1] = packed[:, begin : begin + row + 1]
    block = words[:, :, start:]
    block += np.tril(block, -1).transpose(0, 2, 1)
    strip = ExactArray.from_words(words)
    return strip, require_exact("gram", strip)


def _unpacked(packed: NDArray[np.int64], start: int, stop: int) -> Floats:
    """The same of one word: below 2^53, so that float64 holds it, and each is touched once.

    By a mask, and not row by row: threads that do this would wait for each other's Python.
    """
    rows: Floats = np.empty((stop - start, stop))
    for first in range(start, stop, MASKED):
        last = min(first + MASKED, stop)
        there = np.tri(last - first, stop, first, dtype=np.bool_)
        words = packed[first * (first + 1) // 2 : last * (last + 1) // 2]
        rows[first - start : last - start][there] = words
    _mirror(rows[:, start:])
    return rows


def _mirror(block: Floats) -> None:
    """What is above the diagonal, from what is below it, a tile at a time."""
    for start in range(0, len(block), TILE):
        stop = start + TILE
        block[start:stop, stop:] = block[stop:, start:stop].T
        tile = block[start:stop, start:stop]
        lower = np.tril(tile)
        np.add(lower, np.tril(tile, -1).T, out=tile)
