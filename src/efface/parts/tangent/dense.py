"""Small problems with H_D written out: solved by Cholesky in float64, or its factor as a preconditioner."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from efface.errors import EffaceError
from efface.linear.operator import Prepared
from efface.linear.solution import Solution, Status
from efface.parts.tangent.preconditioners import Preconditioner
from efface.parts.tangent.problem import RidgeProblem
from efface.progress import Progress


@dataclass(frozen=True)
class Cholesky:
    """w* = −H_D⁻¹ g_D(0), exactly up to float64; refuses more than ``max_weights`` weights."""

    max_weights: int = 20_000

    def solve(
        self,
        problem: RidgeProblem,
        start: Tensor | None = None,
        *,
        progress: Progress | None = None,
    ) -> Solution:
        if problem.d > self.max_weights:
            raise EffaceError(
                f"{problem.d} weights are too many for a dense Hessian.",
                "use ConjugateGradient, or linearise fewer layers.",
            )
        before = problem.passes
        hessian, gradient = normal_equations(problem)
        factor = torch.linalg.cholesky(hessian)
        w = torch.cholesky_solve(-gradient[:, None], factor)[:, 0]
        residual = float(problem.gradient(w, torch.float64).norm())
        return Solution(w, Status.CONVERGED, residual, problem.passes - before)


@dataclass(frozen=True, eq=False)
class DenseFactor(Preconditioner):
    """P = JᵀJ/n + μI, written out on some samples: conjugate gradients on these, or on nearly these, take a
    few steps. The products are float32's, the factor is float64's; d² numbers."""

    factor: Tensor  # (d, d)

    @classmethod
    def build(cls, problem: RidgeProblem) -> DenseFactor:
        gram = torch.zeros(problem.d, problem.d)
        for batch, _ in problem.batches(torch.float32):
            rows = jacobian_rows(problem, batch)
            gram.addmm_(rows.T, rows)
        hessian = gram.double() / max(problem.n, 1)
        hessian.diagonal().add_(problem.mu)
        factor, failed = torch.linalg.cholesky_ex(hessian)
        shift = 1e-8 * float(hessian.diagonal().mean())
        while int(failed):  # float32's products are not positive definite to the last digit
            hessian.diagonal().add_(shift)
            factor, failed = torch.linalg.cholesky_ex(hessian)
            shift *= 10
        return cls(factor)

    def apply(self, r: Tensor) -> Tensor:
        return torch.cholesky_solve(r[:, None], self.factor)[:, 0]


def normal_equations(problem: RidgeProblem) -> tuple[Tensor, Tensor]:
    """H_D (d, d) and g_D(0) (d,), in float64, from explicit Jacobian rows; one pass."""
    hessian = problem.mu * torch.eye(problem.d, dtype=torch.float64)
    gradient = problem.zeros()
    for batch, targets in problem.batches(torch.float64):
        rows = jacobian_rows(problem, batch)  # (n·c, d)
        hessian.addmm_(rows.T, rows, alpha=1 / problem.n)
        gradient += rows.T @ (batch.outputs - targets).reshape(-1) / problem.n
    return hessian, gradient


def jacobian_rows(problem: RidgeProblem, batch: Prepared) -> Tensor:
    """J of a batch, one row a sample and output: (n·c, d), by one vjp a row."""
    rows = []
    n, c = batch.outputs.shape
    for i in range(n):
        one = batch.select(slice(i, i + 1))
        for k in range(c):
            unit = torch.zeros(1, c, dtype=batch.outputs.dtype)
            unit[0, k] = 1
            rows.append(problem.operator.vjp(one, unit))
    return torch.stack(rows)
