"""User weights from exact statistics: the exact solution of the ridge system, rounded to float32.

``(S G S + λ D) Θ = S B T`` for integer sums G, B of n rows, feature scales S, target scales T, a 0/1
diagonal D and ``λ = n μ``. A Cholesky factor gives corrections; residuals are computed without a rounding
(see ``integer_system``), and refinement ends when their norm over λ proves which float32 each weight
rounds to (see ``refinement``, ``release_grid``). So **equal sums give equal weights on every machine at every
thread count**, where ``proved`` says so; how good the factor was decides the time it takes, not the result.

The factor is float32's where that will do. Where a pivot is too small for float32, or the steps do not get
there, it is made again in float64, which also decides what is singular.

The bound ``‖r‖ / λ`` needs D = I, λ > 0 and power-of-two scales. Otherwise, and where a weight is exactly
between two float32 numbers, systems of up to 24 features are solved in fractions; larger ones are
``proved=False``: their weights are those of a small residual, as near as this machine got.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from efface.errors import EffaceError
from efface.parts.compact.expansion import Floats
from efface.parts.compact.factor import DOUBLE, SINGLE, Factor, Way
from efface.parts.compact.integer_system import IntegerSystem
from efface.parts.compact.rational import MOST_FEATURES, solve_exactly
from efface.parts.compact.refinement import RANGE, TIE, Refined, Refinement
from efface.parts.compact.release_grid import ReleaseGrid, to_float32
from efface.parts.compact.statistics import Statistics
from efface.parts.compact.workers import working

Weights = NDArray[np.float32]
ROUNDING = 2.0**-48  # a relative residual that will do where nothing can be proved
ACCURATE = 2.0**-40  # above it a float32 factor did not refine as it should, and float64 takes over


class RidgeStatus(Enum):
    """How a solve ended; the value says what to do."""

    SOLVED = "solved"
    EMPTY = "no rows: the weights are zero"
    INACCURATE = "the residual is above the tolerance: raise mu"
    OUT_OF_RANGE = "a weight is beyond float32: raise mu, or the features' scales"
    NOT_POSITIVE_DEFINITE = "the matrix is singular in float64: raise mu"


@dataclass(frozen=True, eq=False)
class RidgeSolution:
    """Weights, and how well they solve the system.

    Args:
        theta: the user weights in units of ``scale * q``, (k, c) float32: the solution rounded to the
            ``ReleaseGrid``; NaN where there is none.
        mu: the regularisation strength λ / n.
        num_rows: n.
        residual_norm: ``‖(S G S / n + μ D) Θ − S B T / n‖_F`` before Θ was rounded, from exact residuals.
        relative_residual: the same over ``‖S B T / n‖_F``.
        status: see :class:`RidgeStatus`.
        ridge: λ.
        proved: whether ``theta`` is *the* rounded solution, the same on every machine.
        error_bound: on every ``|Θ − Θ*|`` before rounding; infinite where there is none.
    """

    theta: Weights
    mu: float
    num_rows: int
    residual_norm: float
    relative_residual: float
    status: RidgeStatus
    ridge: float
    proved: bool
    error_bound: float

    @property
    def ok(self) -> bool:
        return self.status in (RidgeStatus.SOLVED, RidgeStatus.EMPTY)

    def checked(self) -> RidgeSolution:
        """Itself if it is a solution, an error otherwise."""
        if not self.ok:
            raise EffaceError(
                f"The ridge system at mu {self.mu} was not solved: {self.status.value} "
                f"(relative residual {self.relative_residual:.1e}).",
                "Choose a larger --mu.",
            )
        return self


@dataclass(frozen=True, eq=False)
class _System:
    """``(S G S + λ D) Θ = S B T``, read strip by strip from the statistics."""

    statistics: Statistics
    scale: Floats  # (k,)
    target_scale: Floats  # (c,)
    penalty: Floats  # (k,), the diagonal of D

    @classmethod
    def build(
        cls,
        statistics: Statistics,
        scale: ArrayLike,
        target_scale: ArrayLike,
        unpenalised: int | None,
    ) -> _System:
        penalty = np.ones(statistics.num_features)
        if unpenalised is not None:
            penalty[unpenalised] = 0.0
        return cls(
            statistics,
            _positive(scale, statistics.num_features, "scale"),
            _positive(target_scale, statistics.num_outputs, "target_scale"),
            penalty,
        )

    def factor(self, ridge: float, dtype: DTypeLike) -> Factor | None:
        """Of the left-hand side, if it is positive definite in this precision."""
        added = ridge * self.penalty
        diagonal = self._gram_diagonal() * self.scale**2 + added
        return Factor.of(self.statistics.strips(), self.scale, added, diagonal, dtype)

    def _gram_diagonal(self) -> Floats:
        strips = self.statistics.strips()
        return np.concatenate([strip.diagonal(start) for start, _, strip in strips])

    def _is_hopeless_in_float32(self, ridge: float) -> bool:
        """Whether a float32 factor would surely be refused, for pivots that are too small.

        With fewer rows than features G is singular, and the last pivots are about λ: next to the diagonal
        less than float32 can tell from 0.
        """
        size, num_rows = self.statistics.num_features, self.statistics.num_rows
        largest = float(np.max(self._gram_diagonal() * self.scale**2))
        return num_rows < size and ridge < size * 2.0**-24 * largest / 4

    def refinement(self, ridge: float) -> Refinement:
        bounded, scale, target_scale = self._bounded(ridge), self.scale, self.target_scale
        return Refinement(
            IntegerSystem.build(self.statistics, ridge * self.penalty / scale**2),
            scale,
            target_scale,
            ReleaseGrid.build(scale, target_scale),
            ridge if bounded else None,
            ROUNDING,
        )

    def _bounded(self, ridge: float) -> bool:
        """Whether ``‖r‖ / λ`` bounds the error: A >= λ I, and residuals are exact."""
        low, high = RANGE
        scales = np.concatenate([self.scale, self.target_scale])
        exact = bool((np.frexp(scales)[0] == 0.5).all())
        within = bool(((scales >= low) & (scales <= high)).all()) and 2.0**-100 <= ridge <= 2.0**100
        return exact and within and bool(self.penalty.all())

    def solve(self, ridge: float, tolerance: float, near: Way | None) -> RidgeSolution:
        """Factorise in float32 and refine; what is left then, with a factor in float64.

        A function of the system alone: no clock, no earlier solution. Where a proof is possible ``near``
        is tried first; without one, the result may depend on the way, and there is just this one.
        """
        refinement = self.refinement(ridge)
        columns, outcome = refinement.start()
        if self.statistics.num_rows == 0:
            return self._solution(outcome, ridge, RidgeStatus.EMPTY)
        if near is not None and refinement.ridge is not None:
            if near.guess is not None:
                columns = refinement.from_guess(columns, near.guess)
            columns = refinement.run(columns, outcome, near)
            if not len(columns.index):
                return self._solution(outcome, ridge, self._status(outcome, tolerance))
        good_enough = TIE if refinement.ridge is not None else ACCURATE
        factorised = False
        for dtype in (SINGLE, DOUBLE)[self._is_hopeless_in_float32(ridge) :]:
            factor = self.factor(ridge, dtype)
            factorised = factor is not None
            if factor is not None:
                columns = refinement.run(columns, outcome, factor)
            del factor  # there are never two of them
            if factorised and (not len(columns.index) or outcome.relative_residual <= good_enough):
                break
        if not factorised:
            return self._solution(outcome, ridge, RidgeStatus.NOT_POSITIVE_DEFINITE)
        if refinement.ridge is None or len(columns.index):
            self._in_fractions(refinement, ridge, outcome)
        return self._solution(outcome, ridge, self._status(outcome, tolerance))

    def _status(self, outcome: Refined, tolerance: float) -> RidgeStatus:
        solved = outcome.relative_residual <= tolerance
        return RidgeStatus.SOLVED if solved else RidgeStatus.INACCURATE

    def _in_fractions(self, refinement: Refinement, ridge: float, outcome: Refined) -> None:
        """The last resort: small systems are solved exactly, others are left without a proof."""
        if refinement.ridge is None:
            outcome.done[:] = False
        if self.statistics.num_features > MOST_FEATURES:
            return
        scales, targets = (
            [Fraction(v) for v in values.tolist()] for values in (self.scale, self.target_scale)
        )
        added = [Fraction(ridge) * int(d) / s**2 for d, s in zip(self.penalty, scales, strict=True)]
        exact = solve_exactly(self.statistics, added)
        if exact is None:
            return
        for i, row in enumerate(exact):
            for j, value in enumerate(row):
                weight = refinement.grid.nearest_exactly(value * targets[j] / scales[i], j, i)
                outcome.theta[j, i] = to_float32(weight)
        outcome.done[:], outcome.bound[:] = True, 0.0

    def _solution(self, outcome: Refined, ridge: float, status: RidgeStatus) -> RidgeSolution:
        num_rows = self.statistics.num_rows
        weights = np.array(outcome.theta.T, order="C")  # (k, c)
        norm, relative = float(np.linalg.norm(outcome.norm)), outcome.relative_residual
        if status is RidgeStatus.NOT_POSITIVE_DEFINITE:
            weights[:], norm, relative = np.nan, np.nan, np.nan
        elif not np.isfinite(weights).all():
            status = RidgeStatus.OUT_OF_RANGE
        weights.flags.writeable = False
        return RidgeSolution(
            weights,
            ridge / max(num_rows, 1),
            num_rows,
            norm / max(num_rows, 1),
            relative,
            status,
            ridge,
            proved=bool(outcome.done.all()) and bool(np.isfinite(weights).all()),
            error_bound=float(outcome.bound.max()),
        )


def solve(
    statistics: Statistics,
    mu: float | None = None,
    *,
    ridge: float | None = None,
    scale: ArrayLike = 1.0,
    target_scale: ArrayLike = 1.0,
    unpenalised: int | None = None,
    tolerance: float = 1e-9,
    near: Way | None = None,
) -> RidgeSolution:
    """Θ with ``(S G S + λ D) Θ = S B T``, rounded to float32; Θ = 0 where there are no rows.

    Args:
        statistics: integer sums over the rows that count.
        mu: regularisation strength, chosen on core data or by the caller, >= 0: λ is ``n μ``, rounded once.
        ridge: λ itself; give one of the two.
        scale: of each feature, (k,) or one number; powers of two keep the system exact.
        target_scale: of each output, (c,) or one number.
        unpenalised: index of the feature with ``D_jj = 0``, usually the bias.
        tolerance: relative residual above which the status is INACCURATE.
        near: a way to try before a factor is made: it may save time, and changes no weight that is proved.
    """
    if (mu is None) == (ridge is None):
        raise EffaceError("A solve takes either mu or ridge.", "Give one of the two.")
    system = _System.build(statistics, scale, target_scale, unpenalised)
    strength = _nonnegative(ridge) if mu is None else _ridge_of(statistics, mu)
    with working():
        solution = system.solve(strength, tolerance, near)
    return solution if mu is None else replace(solution, mu=float(mu))


def factor_of(
    statistics: Statistics, ridge: float, scale: ArrayLike, target_scale: ArrayLike
) -> Factor | None:
    """A float64 factor of ``S G S + λ I``, to be kept; None where there is none."""
    system = _System.build(statistics, scale, target_scale, None)
    with working():
        return system.factor(ridge, DOUBLE)


def _ridge_of(statistics: Statistics, mu: float) -> float:
    """``λ = fl(n μ)``."""
    return float(statistics.num_rows) * _nonnegative(mu)


def solve_path(
    statistics: Statistics, mus: Iterable[float], **options: Any
) -> tuple[RidgeSolution, ...]:
    """:func:`solve` for each of ``mus``, with its options, for choosing μ on core data.

    A Cholesky factorisation for each: one eigendecomposition takes as long as about twenty of
    them, and its solutions would not be those that :func:`solve` gives bit for bit.
    """
    return tuple(solve(statistics, mu, **options) for mu in mus)


def _nonnegative(mu: float | None) -> float:
    if mu is None or not (np.isfinite(mu) and mu >= 0):
        raise EffaceError(f"mu is {mu}.", "Give a finite number, at least 0.")
    return float(mu)


def _positive(values: ArrayLike, size: int, name: str) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim > 1 or array.size not in (1, size):
        raise EffaceError(f"{name} has shape {array.shape}.", f"Give one number, or {size}.")
    if not (np.isfinite(array).all() and (array > 0).all()):
        raise EffaceError(f"{name} is not positive.", "Use the scales of the quantisers.")
    return np.array(np.broadcast_to(array, (size,)))
