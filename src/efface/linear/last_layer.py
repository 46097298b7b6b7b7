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
        return cls(ridge(with_ones(features), targets, mu), mu)

    def logits(self, features: Tensor) -> Tensor:
        return with_ones(features) @ self.theta


def ridge(rows: Tensor, targets: Tensor, mu: float) -> Tensor:
    """(XᵀX/n + μI)⁻¹ XᵀY/n in float64, (p, c)."""
    x, n = rows.double(), len(rows)
    gram = x.T @ x / n + mu * torch.eye(x.shape[1], dtype=x.dtype)
    return torch.cholesky_solve(x.T @ targets.double() / n, torch.linalg.cholesky(gram))


def with_ones(features: Tensor) -> Tensor:
    features = features.double()
    return torch.cat([features, torch.ones(len(features), 1, dtype=features.dtype)], dim=1)
