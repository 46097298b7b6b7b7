"""Preconditioners P ≈ H. They come from core data (or retained data), never from what was forgotten."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from efface.parts.tangent.problem import RidgeProblem


class Preconditioner(ABC):
    @abstractmethod
    def apply(self, r: Tensor) -> Tensor:
        """P⁻¹ r, times any positive constant: CG does not see it."""


@dataclass(frozen=True)
class Identity(Preconditioner):
    def apply(self, r: Tensor) -> Tensor:
        return r


@dataclass(frozen=True)
class Nystrom(Preconditioner):
    """P = U (Λ + μ) Uᵀ + (λ_s + μ)(I − U Uᵀ) from a rank-s sketch of C = H − μI.

    With Y = C Ω for a random orthonormal Ω (d, s): Ĉ = Y (Ωᵀ Y)⁻¹ Yᵀ = U Λ Uᵀ ⪯ C. CG then needs about
    √((λ_s + μ)/μ) fewer iterations. Takes s products (s passes) to build and d·s numbers to keep.
    """

    basis: Tensor  # (d, s)
    eigenvalues: Tensor  # (s,), descending
    mu: float

    @classmethod
    def build(
        cls, problem: RidgeProblem, rank: int, seed: int = 0, dtype: torch.dtype | None = None
    ) -> Nystrom:
        """From ``rank`` products with ``problem``; the basis is kept in ``dtype``, the problem's own
        unless given (d·s numbers are gigabytes for a large tail)."""
        rank = min(rank, problem.d)
        generator = torch.Generator().manual_seed(seed)
        test = torch.randn(problem.d, rank, generator=generator, dtype=torch.float64)
        test = torch.linalg.qr(test).Q
        sketch = torch.empty_like(test)
        for j in range(rank):
            v = test[:, j].contiguous()
            sketch[:, j] = problem.product(v) - problem.mu * v
        # A tiny shift keeps the small Cholesky positive definite; it is taken off again below. It has
        # to cover the products' own rounding.
        shift = max(1e-9, 100 * torch.finfo(problem.dtype).eps) * float(sketch.norm())
        sketch.add_(test, alpha=shift)
        small = test.T @ sketch
        factor = torch.linalg.cholesky((small + small.T) / 2)
        half = torch.linalg.solve_triangular(factor, sketch.T, upper=False).T  # (d, s)
        # The shift keeps halfᵀ half well conditioned, so its eigenvectors serve for an SVD of the tall.
        values, vectors = torch.linalg.eigh(half.T @ half)
        values, vectors = values.flip(0), vectors.flip(1)
        basis = (half @ (vectors / values.sqrt())).to(dtype or problem.dtype)
        return cls(basis, (values - shift).clamp_min(0), problem.mu)

    def apply(self, r: Tensor) -> Tensor:
        inside = (self.basis.T @ r.to(self.basis.dtype)).double()
        tail = float(self.eigenvalues[-1]) + self.mu
        scaled = inside * (tail / (self.eigenvalues + self.mu) - 1)
        return r + self.basis @ scaled.to(self.basis.dtype)
