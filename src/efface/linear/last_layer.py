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
    """(XᵀX/n + μI)⁻¹ XᵀY/n in float64, (p, c).

    With fewer rows than numbers in one it is solved between samples, Xᵀ(XXᵀ/n + μI)⁻¹ Y/n: the same
    weights, from a smaller matrix.
    """
    x, y = rows.double(), targets.double()
    n, p = x.shape
    if n < p:
        return x.T @ _solved(x @ x.T / n, mu, y / n)
    return _solved(x.T @ x / n, mu, x.T @ y / n)


def _solved(gram: Tensor, mu: float, right: Tensor) -> Tensor:
    """(G + μI)⁻¹ R; G is changed."""
    gram.diagonal().add_(mu)
    return torch.cholesky_solve(right, torch.linalg.cholesky(gram))


def with_ones(features: Tensor) -> Tensor:
    features = features.double()
    return torch.cat([features, torch.ones(len(features), 1, dtype=features.dtype)], dim=1)
