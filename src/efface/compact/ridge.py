"""User weights from exact statistics: one Cholesky factorisation, refined and checked.

``(S G S / n + μ D) Θ = S B T / n`` for integer sums G, B of n rows, feature scales S, target
scales T and a 0/1 diagonal D. Both sides are multiplied by n, so that no entry of G is ever
divided: with power-of-two scales the system is exact but for the rounding of ``n μ``.

Equal statistics give bit-equal weights on one machine at one thread count, whatever their history.
BLAS may add in another order with another number of threads: fix ``num_threads`` to rule that out.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg.lapack import dpotrf, dpotrs
from threadpoolctl import threadpool_limits

from efface.compact.statistics import Statistics
from efface.errors import EffaceError

Floats = NDArray[np.float64]


class RidgeStatus(Enum):
    """How a solve ended; the value says what to do."""

    SOLVED = "solved"
    EMPTY = "no rows: the weights are zero"
    INACCURATE = "the residual is above the tolerance: raise mu"
    NOT_POSITIVE_DEFINITE = "the matrix is singular in float64: raise mu"


@dataclass(frozen=True, eq=False)
class RidgeSolution:
    """Weights, and how well they solve the system.

    Args:
        theta: the user weights in units of ``scale * q``, (k, c); NaN where there is no solution.
        mu: the regularisation strength.
        num_rows: n.
        residual_norm: ``‖(S G S / n + μ D) Θ − S B T / n‖_F``, recomputed from the statistics.
        relative_residual: the same over ``‖S B T / n‖_F``.
        status: see :class:`RidgeStatus`.
    """

    theta: Floats
    mu: float
    num_rows: int
    residual_norm: float
    relative_residual: float
    status: RidgeStatus

    @property
    def ok(self) -> bool:
        return self.status in (RidgeStatus.SOLVED, RidgeStatus.EMPTY)

    def checked(self) -> RidgeSolution:
        """Itself if it is a solution, an error otherwise."""
        if not self.ok:
            raise EffaceError(
                f"The ridge system at mu={self.mu} was not solved: {self.status.value} "
                f"(relative residual {self.relative_residual:.1e}).",
                "Choose a larger mu.",
            )
        return self


@dataclass(frozen=True, eq=False)
class _System:
    """``(S G S + n μ D) Θ = S B T``, read strip by strip from the statistics."""

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

    def ridge(self, mu: float) -> Floats:
        return float(self.statistics.num_rows) * mu * self.penalty  # (k,)

    def right_hand_side(self) -> Floats:
        return self.statistics.cross() * self.target_scale * self.scale[:, None]  # (k, c)

    def fill(self, matrix: Floats, mu: float) -> None:
        """Write the lower triangle of the left-hand side into ``matrix``, (k, k)."""
        for start, stop, strip in self.statistics.strips():
            rows = matrix[start:stop, :stop]
            np.multiply(strip, self.scale[:stop], out=rows)
            rows *= self.scale[start:stop, None]
        matrix.flat[:: len(matrix) + 1] += self.ridge(mu)

    def residual(self, theta: Floats, right: Floats, mu: float) -> Floats:
        """``S B T − (S G S + n μ D) Θ``, without the full matrix, (k, c)."""
        scaled = theta * self.scale[:, None]
        product = np.zeros_like(theta)
        for start, stop, strip in self.statistics.strips():
            product[start:stop] += strip @ scaled[:stop]
            product[:start] += strip[:, :start].T @ scaled[start:stop]
        return right - product * self.scale[:, None] - self.ridge(mu)[:, None] * theta

    def solve(self, mu: float, matrix: Floats, tolerance: float) -> RidgeSolution:
        """Factorise in ``matrix``, solve, refine once, and measure what is left."""
        right = self.right_hand_side()
        if self.statistics.num_rows == 0:
            return self._solution(np.zeros_like(right), mu, right, right, RidgeStatus.EMPTY)
        self.fill(matrix, mu)
        # The transpose of a C-ordered array is what LAPACK calls column-major: no copy is made,
        # and the lower triangle of the one is the upper of the other.
        factor, failed = dpotrf(matrix.T, lower=0, clean=0, overwrite_a=1)
        if failed:
            nowhere = np.full_like(right, np.nan)
            return self._solution(nowhere, mu, nowhere, right, RidgeStatus.NOT_POSITIVE_DEFINITE)
        theta = np.ascontiguousarray(dpotrs(factor, right, lower=0)[0])
        left_over = self.residual(theta, right, mu)
        refined = theta + dpotrs(factor, left_over, lower=0)[0]
        refined_left_over = self.residual(refined, right, mu)
        if np.linalg.norm(refined_left_over) < np.linalg.norm(left_over):
            theta, left_over = refined, refined_left_over
        solution = self._solution(theta, mu, left_over, right, RidgeStatus.SOLVED)
        if solution.relative_residual <= tolerance:
            return solution
        return self._solution(theta, mu, left_over, right, RidgeStatus.INACCURATE)

    def _solution(
        self, theta: Floats, mu: float, left_over: Floats, right: Floats, status: RidgeStatus
    ) -> RidgeSolution:
        num_rows = self.statistics.num_rows
        norm, size = float(np.linalg.norm(left_over)), float(np.linalg.norm(right))
        relative = norm / size if size else norm  # for a zero right-hand side both are 0
        theta.flags.writeable = False
        return RidgeSolution(theta, mu, num_rows, norm / max(num_rows, 1), relative, status)


def solve(
    statistics: Statistics,
    mu: float,
    *,
    scale: ArrayLike = 1.0,
    target_scale: ArrayLike = 1.0,
    unpenalised: int | None = None,
    tolerance: float = 1e-9,
    num_threads: int | None = None,
) -> RidgeSolution:
    """Θ with ``(S G S / n + μ D) Θ = S B T / n``; Θ = 0 where there are no rows.

    Args:
        statistics: integer sums over the rows that count.
        mu: regularisation strength, chosen on core data or by the caller, >= 0.
        scale: of each feature, (k,) or one number; powers of two keep the system exact.
        target_scale: of each output, (c,) or one number.
        unpenalised: index of the feature with ``D_jj = 0``, usually the bias.
        tolerance: relative residual above which the status is INACCURATE.
        num_threads: BLAS threads during the solve; None leaves them as they are.
    """
    return solve_path(
        statistics,
        [mu],
        scale=scale,
        target_scale=target_scale,
        unpenalised=unpenalised,
        tolerance=tolerance,
        num_threads=num_threads,
    )[0]


def solve_path(
    statistics: Statistics,
    mus: Iterable[float],
    *,
    scale: ArrayLike = 1.0,
    target_scale: ArrayLike = 1.0,
    unpenalised: int | None = None,
    tolerance: float = 1e-9,
    num_threads: int | None = None,
) -> tuple[RidgeSolution, ...]:
    """:func:`solve` for each of ``mus``, in one (k, k) workspace, for choosing μ on core data.

    A Cholesky factorisation for each: one eigendecomposition takes as long as about twenty of
    them, and its solutions would not be those that :func:`solve` gives bit for bit.
    """
    strengths = [_nonnegative(mu) for mu in mus]
    system = _System.build(statistics, scale, target_scale, unpenalised)
    size = statistics.num_features if statistics.num_rows else 0
    matrix = np.empty((size, size))
    with _threads(num_threads):
        return tuple(system.solve(mu, matrix, tolerance) for mu in strengths)


def _threads(num_threads: int | None) -> AbstractContextManager[object]:
    if num_threads is None:
        return nullcontext()
    limits: AbstractContextManager[object] = threadpool_limits(num_threads, user_api="blas")
    return limits


def _nonnegative(mu: float) -> float:
    if not (np.isfinite(mu) and mu >= 0):
        raise EffaceError(f"mu is {mu}.", "Give a finite number, at least 0.")
    return float(mu)


def _positive(values: ArrayLike, size: int, name: str) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim > 1 or array.size not in (1, size):
        raise EffaceError(f"{name} has shape {array.shape}.", f"Give one number, or {size}.")
    if not (np.isfinite(array).all() and (array > 0).all()):
        raise EffaceError(f"{name} is not positive.", "Use the scales of the quantisers.")
    return np.ascontiguousarray(np.broadcast_to(array, (size,)))
