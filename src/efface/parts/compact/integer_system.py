"""``(G + Λ) Z = B`` without a rounding: residuals from matrix products whose sums float64 holds.

With power-of-two scales the ridge system ``(S G S + λ D) Θ = S B T`` is that of integers,
``Z = S Θ T⁻¹``, ``Λ = λ D S⁻²``, and residuals are ``r = S ρ T`` with ``ρ = B − (G + Λ) Z``.

A correction of Z is rounded to a few multiples of a power of two u, column by column, so coarse that

    Σ_j |G_ij| |d_j| < 2^53 u   for every i.

Every partial sum of ``G d``, in whatever order and with or without fused multiplication, is then a multiple
of u below 2^53 u, which float64 holds: the product is exact on every machine at every thread count. It costs
one product of matrices, as an inexact one does, and what is rounded off the correction is left to the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from efface.parts.compact.expansion import Expansion, Floats
from efface.parts.compact.statistics import Statistics
from efface.parts.compact.workers import workers

HELD_BITS = 53  # sums below 2^53 u are held
ROOM = 1 + 2.0**-10  # what is left of that for rounding: 2^43 u, where it takes 2^42 u at most
PART_BITS = 25  # of a rounded correction: times 26 bits of Λ it fits into float64
LEAST_BITS = 10  # G is cut into slices if fewer bits of a correction would be left
SLICED_BITS = 16  # and this many are left then
UPWARDS = 1 + 2.0**-30  # above the rounding of a norm of k < 2^20 entries


def powers_above(values: Floats) -> Floats:
    """The least ``2^e > value`` for each value > 0; 1 where it is 0."""
    powers: Floats = np.ldexp(1.0, np.frexp(values)[1])
    return powers


def largest_row_norm(statistics: Statistics) -> float:
    """``max_i ‖G_i‖_2``, rounded upwards."""
    squares = np.zeros(statistics.num_features)
    for start, stop, rows, columns in workers().each(_squares, statistics.strips()):
        squares[start:stop] += rows
        squares[:start] += columns
    return math.sqrt(float(squares.max())) * UPWARDS


def _squares(part: tuple[int, int, Floats]) -> tuple[int, int, Floats, Floats]:
    """Sums of squares over the rows of a strip, and over its columns left of the diagonal block."""
    start, stop, strip = part
    left = strip[:, :start]
    return start, stop, np.einsum("ij,ij->i", strip, strip), np.einsum("ij,ij->j", left, left)


def _norms(rows: Floats) -> Floats:
    norms: Floats = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return norms


@dataclass(frozen=True, eq=False)
class IntegerSystem:
    """``(G + Λ) Z = B``; arrays of weights and residuals have a row for each output, (c, k).

    ``Σ_j |G_ij| |z_j| <= height ‖z‖_2`` for all i, since ``height`` is the largest norm of a row of G (Cauchy
    and Schwarz). Entries so large that no bits would be left for z are cut into slices of ``width`` bits,
    none above ``2^(width − 1)``, whose rows have norms up to ``height = √k 2^(width − 1)``.
    """

    statistics: Statistics
    ridge: tuple[Floats, Floats]  # Λ = high + low, 26 bits each, (k,)
    height: float
    width: int | None

    @classmethod
    def build(cls, statistics: Statistics, ridge: Floats) -> IntegerSystem:
        """``ridge`` is the diagonal of Λ, (k,) float64."""
        shifted = ridge * (2.0**27 + 1)  # Veltkamp's splitting
        high = shifted - (shifted - ridge)
        split = (high, ridge - high)
        height, root = largest_row_norm(statistics), math.sqrt(len(ridge))
        if height * root <= 2.0 ** (HELD_BITS - LEAST_BITS):
            return cls(statistics, split, height, None)
        width = HELD_BITS - SLICED_BITS - math.ceil(math.log2(len(ridge)))
        return cls(statistics, split, root * 2.0 ** (width - 1) * UPWARDS, width)

    def right_hand_side(self) -> Expansion:
        """B, (c, k)."""
        first, *others = (np.array(limb.T, order="C") for limb in self.statistics.cross_limbs())
        return Expansion((first,)).plus(*others)

    def parts_of(self, correction: Floats, bits: float) -> list[Floats]:
        """Exact multiplicands that add up to ``correction`` (c, k) but for about ``bits`` bits.

        ``ROOM height ‖z‖ < 2^53 u``, and rounding adds at most ``height √k u / 2 <= 2^42 u``.
        """
        parts: list[Floats] = []
        left, gained = correction, 0.0
        while gained < bits:
            largest = np.maximum(left.max(1), -left.min(1))
            norms = largest * _norms(left / np.where(largest > 0, largest, 1.0)[:, None])
            sums = powers_above(self.height * norms * UPWARDS * ROOM) / 2.0**HELD_BITS
            unit = np.maximum(sums, powers_above(largest) / 2.0**PART_BITS)[:, None]
            part = np.rint(left / unit)
            part *= unit
            parts.append(part)
            width = np.log2(largest / unit[:, 0], where=largest > 0, out=np.full(len(unit), np.inf))
            gained += max(float(width.min()), 1.0)
            left = left - part
        return parts

    def residual_after(self, residual: Expansion, parts: list[Floats]) -> Expansion:
        """``ρ − (G + Λ) Σ parts``, exactly."""
        less = -np.concatenate(parts)
        terms = [t for p in self._products(less) for t in np.split(p, len(parts))]
        terms += [-part * ridge for part in parts for ridge in self.ridge]
        return residual.plus(*terms)

    def _products(self, weights: Floats) -> list[Floats]:
        """Arrays that add up to ``weights @ G``, (m, k), each an exact product; G is read once.

        Every worker takes the next strip when it is done with one. Sums over some strips are sums of terms of
        the whole, so they are exact as well.
        """
        strips = list(self.statistics.limb_strips())[::-1]  # the longest first
        totals: list[Floats] = []
        for start, stop, found in workers().each(partial(self._product, weights), strips):
            for i, (own, before) in enumerate(found):
                if i == len(totals):
                    totals.append(np.zeros_like(weights))
                totals[i][:, start:stop] += own
                totals[i][:, :start] += before
        return totals

    def _product(
        self, weights: Floats, part: tuple[int, int, tuple[Floats, ...]]
    ) -> tuple[int, int, list[tuple[Floats, Floats]]]:
        """What rows start:stop of G, and the same columns above them, have to say: of each slice, for the
        features from ``start`` to ``stop``, and for those before."""
        start, stop, limbs = part
        upper, here = weights[:, :stop], weights[:, start:stop]
        found = [(upper @ strip.T, here @ strip[:, :start]) for strip in self._slices(limbs)]
        return start, stop, found

    def _slices(self, limbs: tuple[Floats, ...]) -> Iterator[Floats]:
        """The strip itself, or what adds up to it: multiples of a power of two, below 2^width of it.

        All strips are cut alike, whatever is in them: the i-th slices of all belong together.
        """
        if self.width is None:
            yield limbs[0] if len(limbs) == 1 else limbs[0] + limbs[1]  # below 2^53, so exact
            return
        # An entry is at most 2^53, or 2^48 and 2^101: the last rest is below half of its unit, so 0.
        spans = ((1.0, 2.0**55),) if len(limbs) == 1 else ((1.0, 2.0**50), (2.0**48, 2.0**103))
        for left, (unit, top) in zip(limbs, spans, strict=True):
            while unit < top:
                above = unit * 2.0**self.width
                rest = np.rint(left / above)
                rest *= above
                yield left - rest
                left, unit = rest, above
