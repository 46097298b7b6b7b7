"""Forgetting for the tangent user part: from weights w to (nearly) the minimiser on the retained data.

Both procedures compute w − Δ with Δ ≈ H_r⁻¹ g_r(w); they differ in how. The residual on the final weights
is recomputed in float64, whatever the procedure: that is what the certificate rests on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from efface.linear.solution import Solution, Status
from efface.parts.tangent.cg import ConjugateGradient
from efface.parts.tangent.dual import DualConjugateGradient
from efface.parts.tangent.preconditioners import Identity, Preconditioner
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.sgd import SGD, minibatches
from efface.progress import Progress


@dataclass(frozen=True)
class PaperForgetting:
    """The paper's procedure: SGD on ½ vᵀH_r v − g_rᵀ v, g_r complete, H_r sampled; then w − v.

    The printed settings are momentum 0.999 and a learning rate halved every epoch, 3 epochs from 0.01
    or 4 from 0.025. Momentum 0.999 cannot contract in so few steps (errata 15); 0.9 is what was probably
    meant, and both are here. ``snapshots`` > 1 recomputes g_r after each run of ``epochs``, which makes it
    SVRG (errata 17); g_r is then in float64, the steps in the problem's type. ``complete=False`` estimates
    g_r from the minibatch too: plain fine-tuning. A ``dtype`` of None is faster where nothing is certified:
    the residual then has the floor of float32.
    """

    epochs: int = 3
    lr: float = 0.01
    momentum: float = 0.999
    factor: float = 0.5
    batch_size: int = 64
    snapshots: int = 1
    complete: bool = True
    seed: int = 0
    dtype: torch.dtype | None = (
        torch.float64
    )  # of g_r and of the residual; None is the problem's own

    def solve(
        self, problem: RidgeProblem, start: Tensor, *, progress: Progress | None = None
    ) -> Solution:
        before = problem.passes
        if not self.complete:
            solution = self._fine_tune(problem, start, progress)
            w, diverged = solution.value, solution.status is Status.DIVERGED
        else:
            w, diverged = self._outer(problem, start, progress)
        if diverged:
            advice = f"learning rate {self.lr} is too large for this problem: lower it."
            return Solution(w, Status.DIVERGED, float("inf"), problem.passes - before, advice)
        residual = float(problem.gradient(w, self.dtype).norm())
        return Solution(w, Status.FIXED_BUDGET, residual, problem.passes - before)

    def _outer(
        self, problem: RidgeProblem, start: Tensor, progress: Progress | None
    ) -> tuple[Tensor, bool]:
        """w ← w − v once a snapshot; the flag says that w left every reasonable bound, as in SGD."""
        w = start.double().clone()
        limit = 1e3 * max(float(w.norm()), float(problem.targets.norm()), 1.0)
        for k in range(self.snapshots):
            gradient = problem.gradient(w, self.dtype)
            w = w - self._step(problem, gradient, self.seed + k, progress)
            if not float(w.norm()) < limit:
                return w, True
        return w, False

    def _step(
        self, problem: RidgeProblem, gradient: Tensor, seed: int, progress: Progress | None
    ) -> Tensor:
        """v ≈ H_r⁻¹ g_r by ``epochs`` epochs from v = 0."""
        v = torch.zeros(problem.d, dtype=problem.dtype)
        velocity, target = torch.zeros_like(v), gradient.to(problem.dtype)
        generator = torch.Generator().manual_seed(seed)
        for epoch in range(self.epochs):
            for index in minibatches(problem.n, self.batch_size, False, generator):
                descent = problem.minibatch_product(v, index) - target
                velocity.mul_(self.momentum).add_(descent)
                v.add_(velocity, alpha=-self.lr * self.factor**epoch)
            if progress is not None:
                progress((epoch + 1) / self.epochs, f"epoch {epoch + 1}/{self.epochs}")
        return v.double()

    def _fine_tune(
        self, problem: RidgeProblem, start: Tensor, progress: Progress | None
    ) -> Solution:
        solver = SGD(
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            momentum=self.momentum,
            milestones=tuple(range(1, self.epochs)),
            factor=self.factor,
            seed=self.seed,
        )
        return solver.solve(problem, start, progress=progress)


@dataclass(frozen=True)
class SolvedForgetting:
    """Warm-started conjugate gradients, run until ‖g_r‖ ≤ the tolerance that the guarantee needs.

    ``dual`` solves between the samples that stay (``DualConjugateGradient``), with its own preconditioner.

    ``preconditioner`` must come from core data or from data that stay (``TangentUser.preconditioner``):
    one built from the forgotten records would be a copy of what they did to the curvature. It changes
    how many passes a request takes, not where it ends, and is held in memory alone.
    """

    max_passes: int = 2000
    preconditioner: Preconditioner = Identity()  # noqa: RUF009 - frozen and stateless
    dual: bool = False

    def solver(self, tolerance: float) -> ConjugateGradient | DualConjugateGradient:
        if self.dual:
            return DualConjugateGradient(absolute=tolerance, max_passes=self.max_passes)
        return ConjugateGradient(
            absolute=tolerance, max_passes=self.max_passes, preconditioner=self.preconditioner
        )
