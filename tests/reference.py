"""Slow twins: each says in the plainest way what a fast path of the package must equal."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike


def exact_statistics(
    rows: ArrayLike, targets: ArrayLike, counts: Sequence[int] | None = None
) -> tuple[list[list[int]], list[list[int]], int]:
    """``G = Σ m q qᵀ``, ``B = Σ m q tᵀ``, ``n = Σ m`` in Python's integers, row by row.

    ``counts`` are the multiplicities m of the rows, of any size; 1 unless given.
    """
    features, residuals = np.asarray(rows).tolist(), np.asarray(targets).tolist()
    counts = [1] * len(features) if counts is None else list(counts)
    k, c = np.asarray(rows).shape[1], np.asarray(targets).shape[1]
    gram, cross = [[0] * k for _ in range(k)], [[0] * c for _ in range(k)]
    for count, q, t in zip(counts, features, residuals, strict=True):
        for i in range(k):
            for j in range(k):
                gram[i][j] += count * q[i] * q[j]
            for j in range(c):
                cross[i][j] += count * q[i] * t[j]
    return gram, cross, sum(counts)


def exact_digest(
    rows: ArrayLike,
    targets: ArrayLike,
    bits: int,
    target_bits: int,
    counts: Sequence[int] | None = None,
) -> str:
    """The digest of compact statistics, from :func:`exact_statistics` and Python's integers."""
    gram, cross, n = exact_statistics(rows, targets, counts)
    entries = [value for i, row in enumerate(gram) for value in row[: i + 1]]
    entries += [value for row in cross for value in row]
    low = [(value + 2**63) % 2**64 - 2**63 for value in entries]
    high = [(value - word) >> 64 for value, word in zip(entries, low, strict=True)]
    parts = [b"".join(word.to_bytes(8, "little", signed=True) for word in w) for w in (low, high)]
    shape = f"k={len(gram)} c={len(cross[0])} bits={bits} target_bits={target_bits} n={n}"
    text = f"efface.statistics.v1 {shape}".encode() + hashlib.sha256(parts[0]).digest()
    if any(high):
        text += hashlib.sha256(parts[1]).digest()
    return hashlib.sha256(text).hexdigest()
