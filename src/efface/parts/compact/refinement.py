"""Refinement to a proof: corrections from a factor, exact residuals, until every weight has rounded.

Of weights Z with residual r = S ρ T the error is ``A⁻¹ r``, A = S G S + λ I. Since G is a sum of squares,
``A >= λ I``, so that for output j

    |Θ_ij − Θ*_ij| <= ‖r_j‖ / λ.

r is exact (see ``integer_system``) and its norm is rounded upwards. As soon as no weight of an output is
within its bound of a rounding boundary, the output is done; the others go on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from efface.parts.compact.expansion import Expansion, Floats
from efface.parts.compact.factor import DOUBLE, SINGLE, Way
from efface.parts.compact.integer_system import IntegerSystem
from efface.parts.compact.release_grid import ReleaseGrid

MAX_STEPS = 24
NORM_UPWARDS = 1 + 2.0**-30  # above the rounding of a sum of k < 2^20 squares, and its root
# What a step must leave at most of a residual, and how many bits of a correction are worth keeping.
SLOWEST = {SINGLE: 2.0**-3, DOUBLE: 0.5}
BITS = {SINGLE: 20, DOUBLE: 40}
LIKELY_BITS = (
    50  # bounds below 2^-50 of the largest weight leave hardly one of 10^5 weights in doubt
)
HOPELESS = 2.0**-30  # bounds above this part of the largest weight decide nothing
# A relative residual that decides everything but ties. Refinement ends there, so that with scales and λ
# within RANGE no product comes near the underflow of float64.
TIE = 2.0**-128
NEAR = 2.0**-8  # of the residual of no weights: a guess that leaves more is none
RANGE = (2.0**-400, 2.0**400)


@dataclass(frozen=True, eq=False)
class Columns:
    """Outputs on their way, (m, k): Z, its exact residual ρ, and ``norm >= ‖r_j‖``, (m,)."""

    index: NDArray[np.intp]  # (m,), which outputs
    weights: Expansion
    residual: Expansion
    norm: Floats

    def select(self, rows: NDArray[np.intp]) -> Columns:
        parts = self.weights.select(rows), self.residual.select(rows)
        return Columns(self.index[rows], *parts, self.norm[rows])


@dataclass(frozen=True, eq=False)
class Refined:
    """What became of each output so far; filled in as they are done.

    Args:
        theta: released weights, (c, k) float32.
        right: ``‖S B T‖_2`` of each output, (c,).
        norm: ``‖r_j‖_2``, rounded upwards, (c,).
        bound: on the error before rounding, (c,).
        done: whether ``theta`` is proved, or where nothing is, whether the residual is small, (c,).
    """

    theta: NDArray[np.float32]
    right: Floats
    norm: Floats
    bound: Floats
    done: NDArray[np.bool_]

    @property
    def relative_residual(self) -> float:
        """``‖r‖_F / ‖S B T‖_F``; for a zero right-hand side both are 0."""
        size, norm = float(np.linalg.norm(self.right)), float(np.linalg.norm(self.norm))
        return norm / size if size else norm


@dataclass(frozen=True, eq=False)
class Refinement:
    """The system, its scales, and what to aim for.

    Args:
        system: of integers.
        scale, target_scale: the diagonals of S and T, (k,) and (c,).
        grid: of the released weights.
        ridge: λ where ``‖r‖ / λ`` bounds the error; None where it does not, and nothing is proved.
        enough: relative residual at which an output is done where nothing is proved.
    """

    system: IntegerSystem
    scale: Floats
    target_scale: Floats
    grid: ReleaseGrid
    ridge: float | None
    enough: float

    def start(self) -> tuple[Columns, Refined]:
        """Z = 0 and ρ = B: outputs whose column of B is 0 are done."""
        right = self.system.right_hand_side()
        index, shape = np.arange(len(self.target_scale)), right.parts[0].shape
        zero = Expansion((np.zeros(shape),))
        columns = Columns(index, zero, right, self._norms(right, index))
        nothing, norm = np.zeros(len(index), dtype=np.bool_), columns.norm
        outcome = Refined(np.zeros(shape, np.float32), norm, norm.copy(), norm.copy(), nothing)
        return self._note(columns, outcome), outcome

    def from_guess(self, columns: Columns, theta: Floats) -> Columns:
        """``Z = S Θ T⁻¹`` of a guess (c, k), rounded to one exact multiplicand; from where they were, if that
        is not near. Weights that are proved do not depend on where they began."""
        with np.errstate(all="ignore"):
            guess = theta[columns.index] * (self.scale / self.target_scale[columns.index, None])
            begun = self._corrected(columns, guess, 1)
        return begun if (begun.norm <= NEAR * columns.norm).all() else columns

    def run(self, columns: Columns, outcome: Refined, way: Way) -> Columns:
        """Refine by this way and note what is done; returns the outputs that are not.

        It ends when a step leaves too much of a residual (the factor is too poor for the system), when
        only ties can be left, or after MAX_STEPS.
        """
        slowest = SLOWEST[way.precision]
        for _ in range(MAX_STEPS):
            if not len(columns.index):
                break
            with np.errstate(all="ignore"):  # a way that leads nowhere may overflow on it
                closer = self._closer(columns, way)
            if not (closer.norm <= slowest * columns.norm).all():
                break
            columns = self._note(closer, outcome)
            if (columns.norm <= TIE * outcome.right[columns.index]).all():
                break
        return columns

    def _note(self, columns: Columns, outcome: Refined) -> Columns:
        """Write down where these outputs are; returns those that are not done."""
        theta, done = self.decide(columns, outcome.right)
        at = columns.index
        outcome.theta[at], outcome.norm[at] = theta, columns.norm
        outcome.bound[at], outcome.done[at] = self.bound(columns), done
        return columns.select(np.flatnonzero(~done)) if done.any() else columns

    def theta(self, columns: Columns) -> Expansion:
        """``Θ = S⁻¹ Z T``, exactly for powers of two."""
        return columns.weights.times(self.target_scale[columns.index, None] / self.scale)

    def bound(self, columns: Columns) -> Floats:
        """``‖r_j‖ / λ``, rounded upwards, (m,)."""
        if self.ridge is None:
            return np.where(columns.norm > 0, np.inf, 0.0)
        return columns.norm / self.ridge * (1 + 2.0**-50)

    def _closer(self, columns: Columns, way: Way) -> Columns:
        """A step with as few bits as are likely to do; with all of them if that was too few."""
        correction, most = self._correction(columns, way), BITS[way.precision]
        likely = self._likely_bits(columns, correction)
        if likely < most:
            closer = self._corrected(columns, correction, likely)
            if (closer.norm <= 2.0**-8 * columns.norm).all():
                return closer
        return self._corrected(columns, correction, most)

    def step(self, columns: Columns, way: Way, bits: float) -> Columns:
        """``Z ← Z + A⁻¹ r``, the correction rounded to what makes the next residual exact."""
        return self._corrected(columns, self._correction(columns, way), bits)

    def _correction(self, columns: Columns, way: Way) -> Floats:
        """``A⁻¹ r`` in the units of Z, about."""
        targets = self.target_scale[columns.index, None]
        left = columns.residual.value() * (self.scale * targets)
        return way.solve(left) * (self.scale / targets)

    def _corrected(self, columns: Columns, correction: Floats, bits: float) -> Columns:
        parts = self.system.parts_of(correction, bits)
        residual = self.system.residual_after(columns.residual, parts)
        return replace(
            columns,
            weights=columns.weights.plus(*parts),
            residual=residual,
            norm=self._norms(residual, columns.index),
        )

    def _likely_bits(self, columns: Columns, correction: Floats) -> float:
        """How many bits of a correction will decide all that is left.

        What is rounded off, e with entries up to u/2, comes back in the residual as ``(G + Λ) e``, of about
        ``√(k/12) u`` times a row of that, and a bound takes a residual over λ: so much smaller than the
        least bound that decides must u be.
        """
        largest = np.abs(self.theta(columns).parts[0]).max(1)
        if self.ridge is None or not largest.all():
            return math.inf
        moved = np.abs(correction).max(1) * self.target_scale[columns.index]
        share = float(np.max(moved / largest)) / float(np.max(self.scale))
        if not 0 < share < math.inf:
            return math.inf
        return max(math.log2(share) + LIKELY_BITS + self._stiffness, 1.0)

    @cached_property
    def _stiffness(self) -> float:
        """log₂ of ``√(k/12)`` times the largest row of A over λ, about; 0 if that is less than 1."""
        assert self.ridge is not None
        row = self.system.height * float(np.max(self.scale)) ** 2 * math.sqrt(len(self.scale) / 12)
        return max(math.log2(row / self.ridge), 0.0) if row > 0 else 0.0

    def decide(
        self, columns: Columns, right: Floats
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Released weights, (m, k) float32, and which outputs are done, (m,)."""
        theta, bound = self.theta(columns), self.bound(columns)
        grid = self.grid.select(columns.index)
        if self.ridge is None:
            return grid.nearest(theta.value()), columns.norm <= self.enough * right[columns.index]
        near = bound <= HOPELESS * np.abs(theta.parts[0]).max(1, initial=0.0)
        if not near.any():
            return grid.nearest(theta.value()), near
        return grid.decide(theta, bound)

    def _norms(self, residual: Expansion, index: NDArray[np.intp]) -> Floats:
        """Upper bounds on ``‖S ρ_j T‖_2``, (m,); relative to the largest entry, so nothing underflows."""
        sizes = residual.magnitude_bound() * self.scale  # (m, k)
        largest = sizes.max(1, initial=0.0)
        sizes /= np.where(largest > 0, largest, 1.0)[:, None]
        squares = np.einsum("ij,ij->i", sizes, sizes)
        norms: Floats = largest * np.sqrt(squares) * NORM_UPWARDS * self.target_scale[index]
        return norms
