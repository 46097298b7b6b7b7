"""The trivial linear baseline: ridge regression on the pooled features, solved in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LastLayer:
    """Logits Θᵀ [h; 1] with Θ (p + 1, c)."""

    theta: Tensor
    mu: float

    @classmethod
    def fit(cls, features: Tensor, targets: Tensor, mu: float) -> LastLayer:
        """Θ = (HᵀH/n + μI)⁻¹ HᵀY/n; the constant feature is regularised like the others.

        The Hessian is (HᵀH/n + μI) ⊗ I_c: all classes share one factorisation.
        """
        h = with_ones(features)
        n = len(h)
        gram = h.T @ h / n + mu * torch.eye(h.shape[1], dtype=h.dtype)
        rhs = h.T @ targets.double() / n
        return cls(torch.cholesky_solve(rhs, torch.linalg.cholesky(gram)), mu)

    def logits(self, features: Tensor) -> Tensor:
        return with_ones(features) @ self.theta


def with_ones(features: Tensor) -> Tensor:
    features = features.double()
    return torch.cat([features, torch.ones(len(features), 1, dtype=features.dtype)], dim=1)
