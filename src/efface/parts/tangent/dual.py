"""The ridge problem from the side of the samples: as many unknowns as there are samples times outputs.

The minimiser is w* = Jᵀα* with (K + nμI) α* = y − f, K = J Jᵀ the tangent kernel. A product with K is one
walk Jᵀ and one walk J: a pass, as for H. But vectors have n·c numbers and not d, so that a preconditioner may
be far better than one between weights (``KroneckerKernel``), and at ridges as small as the paper's that
decides. It is for problems with more weights than that, d > n·c: else K has eigenvalues 0 that P has not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from efface.errors import EffaceError
from efface.linear.solution import Solution, Status
from efface.parts.tangent.cg import residual_fraction
from efface.parts.tangent.kronecker import KroneckerKernel
from efface.parts.tangent.problem import RidgeProblem
from efface.progress import Progress

LOOK = 5  # iterations between two looks at the gradient, which cost half a pass each
NEAR = 30.0  # … once the residual is that near


@dataclass(eq=False)
class _Point:
    """α with w = Jᵀα, the outputs' residual f + Jw − y and the gradient, both in float64."""

    alpha: Tensor  # (n, c)
    w: Tensor  # (d,)
    residual: Tensor  # (n, c)
    gradient: Tensor  # (d,)

    def missing(self, ridge: float) -> Tensor:
        """ρ = y − f − (K + nμI)α; the gradient is −Jᵀρ/n."""
        return -(self.residual + ridge * self.alpha)


@dataclass(frozen=True)
class DualConjugateGradient:
    """Minimise L_D by preconditioned CG on (K + nμI) α = y − f, until ‖g_D(w)‖ ≤ target, w = Jᵀα.

    target = ``absolute`` if given, else ``tolerance`` · ‖g_D(0)‖. What is reported is the gradient in float64
    on the final weights; where it misses the target, CG restarts from them (iterative refinement). The
    preconditioner is built anew in each solve, from the samples of the problem alone: after a request nothing
    of the forgotten ones is in it. It takes some n × n matrices: more than ``max_samples`` are refused.
    """

    tolerance: float = 1e-4
    absolute: float | None = None
    max_passes: int = 500
    refinements: int = 8
    max_samples: int = 12_000
    side: int = 64

    def solve(
        self,
        problem: RidgeProblem,
        start: Tensor | None = None,
        *,
        progress: Progress | None = None,
    ) -> Solution:
        self._check(problem)
        before, history = problem.passes, []
        point, at_zero = self._start(problem, start)
        target = self.absolute if self.absolute is not None else self.tolerance * at_zero
        kernel: KroneckerKernel | None = None
        for _ in range(self.refinements + 1):
            if float(point.gradient.norm()) <= target or self._left(problem, before) < 1:
                break
            kernel = kernel or KroneckerKernel.build(problem, side=self.side)
            budget = self._left(problem, before)
            step, moved, norms = self._inner(problem, kernel, point, target, budget, progress)
            history += norms
            point = _at(problem, point.alpha + step, point.w + moved)
        norm, passes = float(point.gradient.norm()), problem.passes - before
        if norm <= target:
            return Solution(point.w, Status.CONVERGED, norm, passes, "", tuple(history))
        advice = f"wanted {target:.1e}: raise max_passes (now {self.max_passes}), or raise mu."
        return Solution(point.w, Status.STOPPED_SHORT, norm, passes, advice, tuple(history))

    def _check(self, problem: RidgeProblem) -> None:
        if problem.n > self.max_samples:
            message = f"{problem.n} samples are too many for matrices between samples."
            raise EffaceError(message, f"use cg, or allow for more than {self.max_samples}.")

    def _left(self, problem: RidgeProblem, before: float) -> float:
        """Passes that may still go into CG; one is kept back for the gradient on the new weights."""
        return self.max_passes - (problem.passes - before) - 1

    def _start(self, problem: RidgeProblem, start: Tensor | None) -> tuple[_Point, float]:
        """Where to begin, and ‖g_D(0)‖.

        At a minimiser α = (y − f − Jw)/(nμ). For weights that were one before a request this is what is
        left of the old α, and a good start; if it is worse than nothing, begin with nothing.
        """
        alpha = torch.zeros_like(problem.targets)
        zero = _at(problem, alpha, problem.zeros())
        norm = float(zero.gradient.norm())
        ridge = problem.n * problem.mu
        if start is None or not start.any() or problem.n == 0:
            return zero, norm
        alpha = -(zero.residual + problem.push(start)) / ridge
        warm = _at(problem, alpha, problem.pull(alpha))
        better = warm.missing(ridge).norm() < zero.missing(ridge).norm()
        return (warm if better else zero), norm

    def _inner(
        self,
        problem: RidgeProblem,
        kernel: KroneckerKernel,
        point: _Point,
        target: float,
        budget: float,
        progress: Progress | None,
    ) -> tuple[Tensor, Tensor, list[float]]:
        """CG from zero on (K + nμI) δ = ρ: δ, Jᵀδ, and the norms of the residual on the way."""
        ridge, used = problem.n * problem.mu, problem.passes
        r = point.missing(ridge)
        x, moved = torch.zeros_like(r), torch.zeros_like(point.w)
        z = kernel.apply(r)
        p, rz = z.clone(), float((r * z).sum())
        start = float(r.norm())
        wanted = start * 0.5 * target / max(float(point.gradient.norm()), 1e-300)
        # In float32 products the recursive residual stops meaning anything after about 5 digits.
        floor = max(0.01 * wanted, 1e-5 * start if problem.dtype == torch.float32 else 0.0)
        norms: list[float] = []
        while problem.passes - used <= budget - 1.5:
            pulled = problem.pull(p)
            hp = problem.push(pulled) + ridge * p
            curvature = float((p * hp).sum())
            if not curvature > 0:
                break
            step = rz / curvature
            x.add_(p, alpha=step)
            moved.add_(pulled, alpha=step)
            r.sub_(hp, alpha=step)
            norms.append(float(r.norm()))
            if progress is not None:
                progress(
                    residual_fraction(norms[-1], start, wanted), f"residual {norms[-1] / start:.1e}"
                )
            if norms[-1] <= floor or self._is_there(problem, r, norms, wanted, target):
                break
            z = kernel.apply(r)
            rz, old = float((r * z).sum()), rz
            p.mul_(rz / old).add_(z)
        return x, moved, norms

    def _is_there(
        self, problem: RidgeProblem, r: Tensor, norms: list[float], wanted: float, target: float
    ) -> bool:
        """Whether ‖Jᵀρ‖/n is small enough, looked at now and then when it may be."""
        if len(norms) % LOOK or norms[-1] > NEAR * wanted:
            return False
        return float(problem.pull(r).norm()) / max(problem.n, 1) <= 0.5 * target


def _at(problem: RidgeProblem, alpha: Tensor, w: Tensor) -> _Point:
    residual, gradient = problem.residual(w, torch.float64)
    return _Point(alpha, w, residual, gradient)
