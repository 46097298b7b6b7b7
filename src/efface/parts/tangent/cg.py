"""Preconditioned conjugate gradients for H_D w = b, the solver of choice for the user weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from efface.linear.solution import Solution, Status
from efface.parts.tangent.preconditioners import Identity, Preconditioner
from efface.parts.tangent.problem import RidgeProblem
from efface.progress import Progress


@dataclass(frozen=True)
class ConjugateGradient:
    """Minimise L_D by CG on H_D Δ = −g_D(w₀) from w₀ = ``start``, until ‖g_D‖ ≤ target.

    target = ``absolute`` if given, else ``tolerance`` · ‖g_D(0)‖. The recursive residual of CG drifts
    (in float32 visibly), so the gradient is recomputed in float64 on the final weights; if it misses the
    target there, CG restarts from them (iterative refinement) at most ``refinements`` times. A solve that
    stops short says so in its status.
    """

    tolerance: float = 1e-4
    absolute: float | None = None
    max_passes: int = 500
    refinements: int = 8
    preconditioner: Preconditioner = Identity()  # noqa: RUF009 - frozen and stateless

    def solve(
        self,
        problem: RidgeProblem,
        start: Tensor | None = None,
        *,
        progress: Progress | None = None,
    ) -> Solution:
        before, history = problem.passes, []
        w = problem.zeros() if start is None else start.double().clone()
        gradient = problem.gradient(w, torch.float64)
        target = self._target(problem, w, gradient)
        for _ in range(self.refinements + 1):
            # One pass is kept back for the gradient on the new weights.
            left = int(self.max_passes - (problem.passes - before)) - 1
            if float(gradient.norm()) <= target or left <= 0:
                break
            step, norms = self._inner(problem, -gradient, target, left, progress)
            history += norms
            w = w + step
            gradient = problem.gradient(w, torch.float64)
        return self._solution(w, gradient, target, problem.passes - before, history)

    def _target(self, problem: RidgeProblem, w: Tensor, gradient: Tensor) -> float:
        if self.absolute is not None:
            return self.absolute
        at_zero = gradient if not w.any() else problem.gradient(problem.zeros(), torch.float64)
        return self.tolerance * float(at_zero.norm())

    def _inner(
        self,
        problem: RidgeProblem,
        rhs: Tensor,
        target: float,
        budget: int,
        progress: Progress | None,
    ) -> tuple[Tensor, list[float]]:
        """CG from zero on H Δ = rhs; stops at half the target, at the budget, or at stagnation."""
        x, r = torch.zeros_like(rhs), rhs.clone()
        z = self.preconditioner.apply(r)
        p, rz = z.clone(), float(r @ z)
        norms: list[float] = []
        start = float(rhs.norm())
        # In float32 products the recursive residual stops meaning anything after about 5 digits.
        floor = max(0.5 * target, problem.floor * start)
        for _ in range(budget):
            hp = problem.product(p)
            curvature = float(p @ hp)
            if not curvature > 0:
                break
            alpha = rz / curvature
            x.add_(p, alpha=alpha)
            r.add_(hp, alpha=-alpha)
            norms.append(float(r.norm()))
            if progress is not None:
                progress(residual_fraction(norms[-1], start, floor), f"residual {norms[-1]:.1e}")
            if norms[-1] <= floor:
                break
            z = self.preconditioner.apply(r)
            rz, old = float(r @ z), rz
            p.mul_(rz / old).add_(z)
        return x, norms

    def _solution(
        self, w: Tensor, gradient: Tensor, target: float, passes: float, history: list[float]
    ) -> Solution:
        residual = float(gradient.norm())
        if residual <= target:
            return Solution(w, Status.CONVERGED, residual, passes, "", tuple(history))
        advice = (
            f"wanted {target:.1e}: raise max_passes (now {self.max_passes}), raise mu, or give a "
            f"preconditioner."
        )
        return Solution(w, Status.STOPPED_SHORT, residual, passes, advice, tuple(history))


def residual_fraction(now: float, start: float, goal: float) -> float:
    """How far a residual has come on a logarithmic scale, for progress bars."""
    if now <= 0 or goal <= 0 or start <= goal:
        return 1.0
    return min(1.0, max(0.0, math.log(start / now) / math.log(start / goal)))
