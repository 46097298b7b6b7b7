"""What rows must be before they are summed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from efface.errors import EffaceError

Integers = NDArray[np.integer]


def require_integers(name: str, array: Integers, shape: tuple[int, int], limit: int) -> None:
    """Integers of this shape, none beyond ±limit."""
    fix = "Quantise them with the model's quantiser."
    if array.shape != shape or array.dtype.kind not in "iu":
        message = f"{name} are {array.dtype} of shape {array.shape}, not integers (b, {shape[1]})."
        raise EffaceError(message, fix)
    if array.size and not -limit <= int(array.min()) <= int(array.max()) <= limit:
        raise EffaceError(f"{name} hold integers beyond ±{limit}.", fix)


def sums_of_squares(rows: Integers, block: int = 256) -> list[int]:
    """Σ q_j² of every column, exactly."""
    sums = np.zeros(rows.shape[1], dtype=np.int64)
    for start in range(0, len(rows), block):
        sums += np.square(rows[start : start + block], dtype=np.int64).sum(axis=0)
    return [int(value) for value in sums]
