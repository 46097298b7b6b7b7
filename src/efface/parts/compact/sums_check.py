"""Whether sums are those of given rows, without summing again: Freivalds' test with exact integers.

For a random vector r, G r = Qᵀ(Q r) takes O(n k) instead of O(n k²). If G differs from QᵀQ in any entry, the
two differ for all but at most one in 256 of the vectors with entries 0 … 255: an entry of the difference is
below 2^54, so modulo 2^64 at most one value of its factor makes up for the others. ``TRIALS`` vectors at once
miss a wrong sum with probability at most 2^-128. The vectors are drawn when the sums are there already.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from efface.parts.compact.rows import Rows
from efface.parts.compact.spooled_rows import SpooledRows
from efface.parts.compact.statistics import Statistics
from efface.parts.compact.stored_rows import StoredRows

TRIALS = 16
SPLIT = 2**20  # products of halves of this size stay below 2^53 for a block of rows

Unsigned = NDArray[np.uint64]  # integers modulo 2^64


def agree(sums: Statistics, rows: Rows | SpooledRows | StoredRows) -> bool:
    """Whether ``sums`` are G, B and n of ``rows``; wrong with probability below 2^-128."""
    if sums.limbs != 1:
        raise ValueError("sums of one limb are expected")
    if sums.num_rows != len(rows):
        return False
    right, other = _random(sums.num_features), _random(sums.num_outputs)
    gram = np.zeros((sums.num_features, TRIALS), np.uint64)
    cross = np.zeros((sums.num_features, TRIALS), np.uint64)
    for block in rows.blocks():
        features = block.features.astype(np.float64)  # (b, k)
        gram += _back(features, features @ right)
        cross += _back(features, block.targets.astype(np.float64) @ other)
    return bool(
        (gram == _gram_times(sums, right)).all() and (cross == _cross_times(sums, other)).all()
    )


def _random(size: int) -> NDArray[np.float64]:
    drawn = np.frombuffer(secrets.token_bytes(size * TRIALS), np.uint8)
    return drawn.reshape(size, TRIALS).astype(np.float64)


def _back(features: NDArray[np.float64], values: NDArray[np.float64]) -> Unsigned:
    """``featuresᵀ values`` modulo 2^64: the values, integers up to 2^36, in two halves."""
    high = np.floor(values / SPLIT)
    low = values - high * SPLIT
    shifted = _unsigned(features.T @ high) << np.uint64(20)
    return shifted + _unsigned(features.T @ low)


def _gram_times(sums: Statistics, right: NDArray[np.float64]) -> Unsigned:
    """G r from the lower triangle, strip by strip."""
    factor = _unsigned(right)
    result = np.zeros((sums.num_features, TRIALS), np.uint64)
    for start, stop, strip in sums.strips():
        part = _unsigned(strip)  # rows start:stop, columns :stop
        result[start:stop] += part @ factor[:stop]
        result[:start] += part[:, :start].T @ factor[start:stop]
    return result


def _cross_times(sums: Statistics, other: NDArray[np.float64]) -> Unsigned:
    return _unsigned(sums.cross()) @ _unsigned(other)


def _unsigned(values: NDArray[np.float64]) -> Unsigned:
    return values.astype(np.int64).view(np.uint64)
