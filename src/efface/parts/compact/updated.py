"""From the factor of a system to that of the same without some rows: Woodbury's identity.

``A' = A − V Vᵀ − δ I`` for the rows V = S q that went, and the ridge that went with them where λ = n μ. With
X = A⁻¹ V

    (A − V Vᵀ)⁻¹ = A⁻¹ + X (I − Vᵀ X)⁻¹ Xᵀ,

and δ, at most a few hundredths of λ, is left to a geometric series. The factor is a float64's: a row with
much influence has ``1 − vᵀ A⁻¹ v`` near 0, of which float32 would leave nothing.

Where δ = 0 the weights Θ before tell where those after are: with e = Vᵀ Θ − t, what they made of the rows
that went,

    Θ' = Θ + X (I − Vᵀ X)⁻¹ e,

for hardly any work, and as accurate as Θ itself (as that over ``1 − vᵀ A⁻¹ v``, where rows have influence).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from efface.parts.compact.expansion import Floats
from efface.parts.compact.factor import DOUBLE, Factor, Way

MOST_ROWS = 1 / 16  # of the features: more are not worth the update
LARGEST_SHIFT = 2.0**-4  # of λ
SERIES_BITS = 24  # what the series is taken to


@dataclass(frozen=True, eq=False)
class Updated(Way):
    """``(A − V Vᵀ − δ I)⁻¹``, approximately, from a factor of A."""

    factor: Way
    moved: Floats  # Xᵀ, (b, k)
    middle: Floats  # (I − Vᵀ X)⁻¹, (b, b)
    shift: float  # δ
    num_terms: int  # of the series, beyond the first
    weights: Floats | None = None  # Θ', about, (c, k)

    @classmethod
    def of(cls, factor: Factor, rows: Floats, ridge: float, new_ridge: float) -> Updated | None:
        """For rows that went, (b, k), in the units of the system; None where a new factor is the better way.

        ``ridge`` is what the factor was made with, ``new_ridge`` what is wanted now.
        """
        shift = ridge - new_ridge
        if len(rows) > MOST_ROWS * rows.shape[1] or not abs(shift) <= LARGEST_SHIFT * new_ridge:
            return None
        moved = factor.solve(rows)
        with np.errstate(all="ignore"):  # a factor that is none is found out by the residuals
            try:
                middle = np.linalg.inv(np.eye(len(rows)) - rows @ moved.T).astype(np.float64)
            except np.linalg.LinAlgError:
                return None
        ratio = abs(shift) / new_ridge
        num_terms = math.ceil(SERIES_BITS / -math.log2(ratio)) - 1 if shift else 0
        return cls(factor, moved, middle, shift, num_terms)

    def after(self, theta: Floats, errors: Floats) -> Updated:
        """With a guess: from the weights before, (k, c), and e, what they made of the rows, (b, c)."""
        if self.shift:
            return self
        return replace(self, weights=theta.T + errors.T @ self.middle.T @ self.moved)

    @property
    def guess(self) -> Floats | None:
        return self.weights

    @property
    def precision(self) -> np.dtype[Any]:
        return DOUBLE

    def solve(self, right: Floats) -> Floats:
        total = term = self._without(right)
        for _ in range(self.num_terms):
            term = self._without(self.shift * term)
            total = total + term
        return total

    def _without(self, right: Floats) -> Floats:
        """Times ``(A − V Vᵀ)⁻¹``."""
        found: Floats = self.factor.solve(right)
        found += right @ self.moved.T @ self.middle.T @ self.moved
        return found
