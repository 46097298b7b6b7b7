"""User weights from exact statistics: one Cholesky factorisation, refined and checked.

``(S G S / n + μ D) Θ = S B T / n`` for integer sums G, B of n rows, feature scales S, target
scales T and a 0/1 diagonal D. Both sides are multiplied by n, so that no entry of G is ever
divided: with power-of-two scales the system is exact but for the rounding of ``n μ``.

The factor is float32's where that will do, and the residual always float64's, from the integer sums: two or
three steps of refinement reach float64's own rounding. Where a pivot is too small for float32, or the steps
do not get there, the factor is made again in float64, which also decides what is singular.

Equal statistics give bit-equal weights on one machine at one thread count, whatever their history.
BLAS may add in another order with another number of threads: fix ``num_threads`` to rule that out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from efface.compact.factor import Factor
from efface.compact.statistics import Statistics
from efface.errors import EffaceError

Floats = NDArray[np.float64]
ROUNDING = 2.0**-48  # a relative residual that is float64's own rounding: no step makes it smaller
ACCURATE = 2.0**-40  # above it a float32 factor did not refine as it should, and float64 takes over
MAX_STEPS = 10


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
    scale: Tensor  # (k,)
    target_scale: Tensor  # (c,)
    penalty: Tensor  # (k,), the diagonal of D

    @classmethod
    def build(
        cls,
        statistics: Statistics,
        scale: ArrayLike,
        target_scale: ArrayLike,
        unpenalised: int | None,
    ) -> _System:
        penalty = torch.ones(statistics.num_features, dtype=torch.float64)
        if unpenalised is not None:
            penalty[unpenalised] = 0.0
        return cls(
            statistics,
            _positive(scale, statistics.num_features, "scale"),
            _positive(target_scale, statistics.num_outputs, "target_scale"),
            penalty,
        )

    def ridge(self, mu: float) -> Tensor:
        return float(self.statistics.num_rows) * mu * self.penalty  # (k,)

    def right_hand_side(self) -> Tensor:
        cross = torch.tensor(self.statistics.cross())
        return cross * self.target_scale * self.scale[:, None]  # (k, c)

    def factor(self, mu: float, dtype: torch.dtype) -> Factor | None:
        """Of the left-hand side, if it is positive definite in this precision."""
        strips, ridge = self.statistics.tensor_strips, self.ridge(mu)
        gram = torch.cat([strip.diagonal(start) for start, _, strip in strips()])
        diagonal = gram * self.scale.square() + ridge
        return Factor.of(strips(), self.scale, ridge, diagonal, dtype)

    def residual(self, theta: Tensor, right: Tensor, mu: float) -> Tensor:
        """``S B T − (S G S + n μ D) Θ`` in float64, without the full matrix, (k, c)."""
        scaled = theta * self.scale[:, None]
        product = torch.zeros_like(theta)
        for start, stop, strip in self.statistics.tensor_strips():
            product[start:stop].addmm_(strip, scaled[:stop])
            if start:
                product[:start].addmm_(strip[:, :start].t(), scaled[start:stop])
        return right - product * self.scale[:, None] - self.ridge(mu)[:, None] * theta

    def solve(self, mu: float, tolerance: float) -> RidgeSolution:
        """Factorise in float32 and refine; where that does not do, the same in float64."""
        right = self.right_hand_side()
        if self.statistics.num_rows == 0:
            return self._solution(torch.zeros_like(right), mu, right, right, RidgeStatus.EMPTY)
        refined = self._refined(torch.float32, right, mu)
        if refined is None or not _relative(refined[1], right) <= ACCURATE:
            refined = self._refined(torch.float64, right, mu)
        if refined is None:
            nowhere = torch.full_like(right, torch.nan)
            return self._solution(nowhere, mu, nowhere, right, RidgeStatus.NOT_POSITIVE_DEFINITE)
        solved = _relative(refined[1], right) <= tolerance
        status = RidgeStatus.SOLVED if solved else RidgeStatus.INACCURATE
        return self._solution(refined[0], mu, refined[1], right, status)

    def _refined(
        self, dtype: torch.dtype, right: Tensor, mu: float
    ) -> tuple[Tensor, Tensor] | None:
        """``Θ ← Θ + A⁻¹ r`` from Θ = 0 while it halves ‖r‖, r recomputed: Θ and its r; None without factor.

        A function of the system alone: no clock, no earlier solution, no tolerance of the caller. The
        factor is freed on the way out: there are never two of them.
        """
        factor = self.factor(mu, dtype)
        if factor is None:
            return None
        theta, left_over = torch.zeros_like(right), right
        for _ in range(MAX_STEPS):
            if _relative(left_over, right) <= ROUNDING:
                break
            closer = theta + factor.solve(left_over)
            closer_left_over = self.residual(closer, right, mu)
            if not 2 * closer_left_over.norm() < left_over.norm():
                break
            theta, left_over = closer, closer_left_over
        return theta, left_over

    def _solution(
        self, theta: Tensor, mu: float, left_over: Tensor, right: Tensor, status: RidgeStatus
    ) -> RidgeSolution:
        num_rows, relative = self.statistics.num_rows, _relative(left_over, right)
        weights = theta.numpy()
        weights.flags.writeable = False
        norm = float(left_over.norm()) / max(num_rows, 1)
        return RidgeSolution(weights, mu, num_rows, norm, relative, status)


def _relative(left_over: Tensor, right: Tensor) -> float:
    """``‖r‖_F / ‖right‖_F``; for a zero right-hand side both are 0."""
    norm, size = float(left_over.norm()), float(right.norm())
    return norm / size if size else norm


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
    """:func:`solve` for each of ``mus``, for choosing μ on core data.

    A Cholesky factorisation for each: one eigendecomposition takes as long as about twenty of
    them, and its solutions would not be those that :func:`solve` gives bit for bit.
    """
    strengths = [_nonnegative(mu) for mu in mus]
    system = _System.build(statistics, scale, target_scale, unpenalised)
    with _threads(num_threads):
        return tuple(system.solve(mu, tolerance) for mu in strengths)


@contextmanager
def _threads(num_threads: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before if num_threads is None else num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _nonnegative(mu: float) -> float:
    if not (np.isfinite(mu) and mu >= 0):
        raise EffaceError(f"mu is {mu}.", "Give a finite number, at least 0.")
    return float(mu)


def _positive(values: ArrayLike, size: int, name: str) -> Tensor:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim > 1 or array.size not in (1, size):
        raise EffaceError(f"{name} has shape {array.shape}.", f"Give one number, or {size}.")
    if not (np.isfinite(array).all() and (array > 0).all()):
        raise EffaceError(f"{name} is not positive.", "Use the scales of the quantisers.")
    return torch.tensor(np.broadcast_to(array, (size,)))
