"""The grid of released weights, and the proof that a weight rounds to one point of it.

Weights are released as float32, the nearest, ties to even; but never finer than the power of two

    quantum = 2^(e_t − e_s − 48)    (e_t, e_s: exponents of the target's and of the feature's scale),

nor than 2^-126. Towards 0 float32 becomes finer without end, so that a weight which is 0 for a reason that
no residual can show would never be decided. In units of the integer system (a feature's integer to a
target's) the quantum is 2^-48: k features of magnitude up to 127 then move a target by less than
``127 k 2^-49`` of its step, 2^-28 at k = 2^14. It is no burden either: plain float32 weights need an error
bound that is smaller still before all of them are decided. Below 2^-126 some processors round to 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from efface.parts.compact.expansion import Expansion, Floats

QUANTUM_BITS = 48
LEAST_EXPONENT = -126
MOST_BY_HAND = 64  # entries that are decided with fractions, one by one, before refining further


@dataclass(frozen=True, eq=False)
class ReleaseGrid:
    """float32 numbers that are multiples of a quantum; arrays are (c, k)."""

    exponents: NDArray[np.integer]  # of the quantum
    quantum: Floats

    @classmethod
    def build(cls, scale: Floats, target_scale: Floats) -> ReleaseGrid:
        """Of features with ``scale`` (k,) and outputs with ``target_scale`` (c,)."""
        feature, target = (np.frexp(values)[1] for values in (scale, target_scale))
        exponents = np.maximum(target[:, None] - feature - QUANTUM_BITS, LEAST_EXPONENT)
        return cls(exponents, np.ldexp(1.0, exponents))

    def select(self, rows: NDArray[np.intp]) -> ReleaseGrid:
        return ReleaseGrid(self.exponents[rows], self.quantum[rows])

    def nearest(self, weights: Floats) -> NDArray[np.float32]:
        """float32 of float64 weights. Where float32's step is below the quantum, multiples of that."""
        coarse = weights / self.quantum
        fine = np.abs(coarse) >= 2.0**23
        np.rint(coarse, out=coarse)
        coarse *= self.quantum
        np.copyto(coarse, weights, where=fine)
        with np.errstate(over="ignore"):  # the status says so
            single = coarse.astype(np.float32)
        single += 0.0  # there is one zero
        return single

    def nearest_exactly(self, weight: Fraction, row: int, column: int) -> Fraction:
        """The same, of one weight that need not be a float."""
        step = Fraction(2) ** max(_exponent(weight) - 24, int(self.exponents[row, column]))
        return round(weight / step) * step  # half to even

    def decide(
        self, weights: Expansion, bound: Floats
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The nearest of ``weights``, (c, k), and of which rows it is that of all within ``bound``, (c,).

        Rounding is monotone: if both ends of ``weight ± bound`` round to one number, so does what is
        between. The ends are computed in float64 and moved outwards by more than these few operations
        round; where that leaves a doubt, fractions decide.
        """
        first, *others = weights.parts
        second = others[0] if others else np.zeros_like(first)
        margin = (np.abs(first) + np.abs(second)) * 2.0**-51 + bound[:, None] * (1 + 2.0**-49)
        for part in others[1:]:
            margin += np.abs(part) * (1 + 2.0**-49)
        low, high = (self.nearest(first + end) for end in (second - margin, second + margin))
        nearest = self.nearest(weights.value())
        doubtful = low != high
        if 0 < np.count_nonzero(doubtful) <= MOST_BY_HAND:
            for row, column in np.argwhere(doubtful).tolist():
                exact, reach = weights.exactly(row, column), Fraction(float(bound[row]))
                ends = {
                    self.nearest_exactly(e, row, column) for e in (exact - reach, exact + reach)
                }
                if len(ends) == 1:
                    nearest[row, column] = to_float32(ends.pop())
                    doubtful[row, column] = False
        return nearest, ~doubtful.any(1)


def to_float32(weight: Fraction) -> float:
    """A number of the grid as a float; infinite beyond the range of float32."""
    most = float(np.finfo(np.float32).max)
    return float(weight) if abs(weight) <= most else float("inf" if weight > 0 else "-inf")


def _exponent(value: Fraction) -> int:
    """e with ``2^(e − 1) <= |value| < 2^e``; far below all grids for 0."""
    if value == 0:
        return -(10**6)
    e = abs(value.numerator).bit_length() - value.denominator.bit_length()
    return e + 1 if abs(value) >= Fraction(2) ** e else e
