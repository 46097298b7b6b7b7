"""Sums of float64 arrays that are never rounded.

A sum of two floats is a float and a rounding error that is a float as well (Knuth): ``a + b = s + e``
exactly. An :class:`Expansion` keeps the errors, so that a residual in which leading digits cancel loses none
of the others. Addition of float64 is correctly rounded everywhere, so all of this is the same everywhere.

These are numpy's operations, on one thread: arrays are small, and threads that wait for each other after
each of many short operations take many times as long on a busy machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
UPWARDS = 1 + 2.0**-50  # above the rounding of a handful of operations


def two_sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """``(s, e)`` with ``s = fl(a + b)`` and ``s + e = a + b`` exactly, entry by entry."""
    total = a + b
    virtual = total - a
    error = b - virtual
    virtual -= total
    virtual += a
    error += virtual  # (b − v) + (a − (s − v))
    return total, error


@dataclass(frozen=True, eq=False)
class Expansion:
    """An array, held exactly as the unevaluated sum of ``parts``, the largest first."""

    parts: tuple[Floats, ...]

    def plus(self, *terms: Floats) -> Expansion:
        """``self + Σ terms``, exactly: a part is appended where the errors would not fit in."""
        parts = list(self.parts)
        for term in terms:
            carry = term
            for i, part in enumerate(parts):
                parts[i], carry = two_sum(part, carry)
            if carry.any():
                parts.append(carry)
        for i in reversed(range(1, len(parts))):  # after cancellation the first is not the largest
            parts[i - 1], parts[i] = two_sum(parts[i - 1], parts[i])
        kept = [part for part in parts[1:] if part.any()]
        return Expansion((parts[0], *kept))

    def times(self, powers: Floats) -> Expansion:
        """Every part times powers of two, which is exact short of overflow and underflow."""
        return Expansion(tuple(part * powers for part in self.parts))

    def select(self, rows: NDArray[np.intp]) -> Expansion:
        return Expansion(tuple(part[rows] for part in self.parts))

    def value(self) -> Floats:
        """Rounded to float64, nearly correctly."""
        total = self.parts[-1]
        for part in reversed(self.parts[:-1]):
            total = total + part
        return total

    def magnitude_bound(self) -> Floats:
        """No entry is larger in magnitude than this."""
        total = np.abs(self.parts[-1])
        for part in reversed(self.parts[:-1]):
            total += np.abs(part)
        total *= UPWARDS
        return total

    def exactly(self, row: int, column: int) -> Fraction:
        """One entry."""
        return sum((Fraction(float(part[row, column])) for part in self.parts), Fraction(0))
