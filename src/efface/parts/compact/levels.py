"""From which ψ on a feature has which integer: a table of float32 numbers, for programs with other roots.

    q(x) = clip(rint((sign(x) |x|^p / d − centre) / scale), ±limit)

never falls as x grows, since no operation in it does, rounding included. So it is told by the least float32 x
with q(x) ≥ m for every integer m, and these are compared, which is exact everywhere: whoever has q up to one
(roots that are not correctly rounded) has q.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from efface.parts.compact.power_map import PowerMap
from efface.parts.compact.quantiser import Quantiser

MOST_BITS = 8  # of the integers: a table of 2^bits numbers a feature
LARGEST = 0x7F7FFFFF  # the bits of the largest float32


def levels(quantiser: Quantiser, power_map: PowerMap) -> NDArray[np.float32]:
    """(k, 2 limit + 2): at [j, m + limit] the least x with q_j(x) ≥ m; −∞ for m = −limit, ∞ at the end."""
    limit, k = quantiser.limit, quantiser.num_features
    wanted = np.arange(1 - limit, limit + 1)[:, None]  # (2 limit, 1)
    # By bisection over all float32 in their order: q(low) < m ≤ q(high), if there is such a high.
    low = np.full((len(wanted), k), -LARGEST - 1, dtype=np.int64)
    high = np.full((len(wanted), k), LARGEST + 1, dtype=np.int64)
    while (high - low > 1).any():
        middle = (low + high) // 2
        q = quantiser.quantise(power_map(_number(middle).astype(np.float64)))[0]
        reached = q >= wanted
        high, low = np.where(reached, middle, high), np.where(reached, low, middle)
    table = np.full((k, 2 * limit + 2), np.inf, dtype=np.float32)
    table[:, 0] = -np.inf
    never, always = high.T > LARGEST, high.T < -LARGEST
    found = _number(np.clip(high, -LARGEST, LARGEST)).T
    table[:, 1:-1] = np.where(never, np.inf, np.where(always, -np.inf, found))
    return table


def _number(place: NDArray[np.int64]) -> NDArray[np.float32]:
    """The float32 at a place in the order of all: 0 is at 0."""
    size = np.minimum(np.abs(place), LARGEST).astype(np.uint32).view(np.float32)
    return np.where(place < 0, -size, size)
