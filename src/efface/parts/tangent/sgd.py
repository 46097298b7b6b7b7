"""The paper's optimiser: SGD with momentum and a stepwise learning rate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from efface.linear.solution import Solution, Status
from efface.parts.tangent.problem import RidgeProblem
from efface.progress import Progress


@dataclass(frozen=True)
class SGD:
    """w ← w − η_t u,  u ← m u + ĝ(w),  ĝ a minibatch gradient of L_D (ridge inside).

    The defaults are the paper's training settings: 50 epochs, batch 64, η = 0.05, m = 0.9, η × 0.1 at
    epochs 25 and 40. With ``momentum=0`` it is plain SGD. ``replacement=True`` draws minibatches
    independently, as the paper's theorem assumes (errata 14); the default shuffles each epoch, as the
    paper ran it. ``tolerance`` only decides what the result is called: with None the fixed number of
    epochs is the contract, otherwise ‖g‖ above it is reported as stopped short.
    """

    epochs: int = 50
    batch_size: int = 64
    lr: float = 0.05
    momentum: float = 0.9
    milestones: tuple[int, ...] = (25, 40)
    factor: float = 0.1
    replacement: bool = False
    tolerance: float | None = None
    seed: int = 0

    def rate(self, epoch: int) -> float:
        return self.lr * self.factor ** sum(epoch >= m for m in self.milestones)

    def solve(
        self,
        problem: RidgeProblem,
        start: Tensor | None = None,
        *,
        progress: Progress | None = None,
    ) -> Solution:
        before = problem.passes
        w = problem.zeros() if start is None else start.clone()
        w = w.to(problem.dtype)
        limit = 1e3 * max(float(w.norm()), float(problem.targets.norm()), 1.0)
        velocity = torch.zeros_like(w)
        generator = torch.Generator().manual_seed(self.seed)
        for epoch in range(self.epochs):
            for index in minibatches(problem.n, self.batch_size, self.replacement, generator):
                velocity.mul_(self.momentum).add_(problem.minibatch_gradient(w, index))
                w.add_(velocity, alpha=-self.rate(epoch))
            if not float(w.norm()) < limit:
                return self._diverged(problem, w, before)
            if progress is not None:
                progress((epoch + 1) / self.epochs, f"epoch {epoch + 1}/{self.epochs}")
        return self._finish(problem, w.double(), before)

    def _finish(self, problem: RidgeProblem, w: Tensor, before: float) -> Solution:
        residual = float(problem.gradient(w).norm())
        status, advice = Status.FIXED_BUDGET, ""
        if self.tolerance is not None:
            status = Status.CONVERGED if residual <= self.tolerance else Status.STOPPED_SHORT
            if status is Status.STOPPED_SHORT:
                advice = f"wanted {self.tolerance:.1e}: raise epochs, or use ConjugateGradient."
        return Solution(w, status, residual, problem.passes - before, advice)

    def _diverged(self, problem: RidgeProblem, w: Tensor, before: float) -> Solution:
        advice = (
            f"learning rate {self.lr} is too large for this problem: keep it below "
            f"2(1 + momentum)/λmax(H); efface.parts.tangent.sgd.largest_eigenvalue estimates λmax."
        )
        return Solution(w.double(), Status.DIVERGED, float("inf"), problem.passes - before, advice)


def minibatches(n: int, size: int, replacement: bool, generator: torch.Generator) -> list[Tensor]:
    """One epoch of index sets: a shuffle cut into pieces, or independent draws."""
    if n == 0:
        return []
    if replacement:
        steps = -(-n // size)
        return list(torch.randint(n, (steps, min(size, n)), generator=generator))
    return list(torch.randperm(n, generator=generator).split(size))


def largest_eigenvalue(problem: RidgeProblem, iterations: int = 12, seed: int = 0) -> float:
    """λmax(H_D) by power iteration: an estimate from below (use it for step sizes, not for bounds)."""
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(problem.d, generator=generator, dtype=torch.float64)
    value = 0.0
    for _ in range(iterations):
        v = v / v.norm()
        v_next = problem.product(v)
        value = float(v @ v_next)
        v = v_next
    return value
