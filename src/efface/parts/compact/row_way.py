"""A way to the weights from the rows that are left, where they are few: between rows, not between features.

With V = Q S, one row of real numbers a sample (n, k), ``A = Vᵀ V + λ I`` and

    A⁻¹ = ( I − Vᵀ (V Vᵀ + λ I)⁻¹ V ) / λ.

The matrix in the middle is n by n: for n well below k it takes far less time than a factor of A, which is
nearly singular then, too. As with every way, the rows decide how long the weights take, never which they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from efface.errors import EffaceError
from efface.parts.compact.expansion import Floats
from efface.parts.compact.factor import DOUBLE, STRIP, Factor, Way, blocks_of
from efface.parts.compact.rows import Rows
from efface.parts.compact.spooled_rows import SpooledRows
from efface.parts.compact.stored_rows import StoredRows
from efface.parts.compact.workers import workers

MOST_ROWS = 3 / 8  # of the features: with more, a factor between features takes less time


@dataclass(frozen=True, eq=False)
class RowWay(Way):
    """``A⁻¹`` from rows and a factor of what is between them."""

    rows: Floats  # V, (n, k)
    factor: Factor  # of V Vᵀ + λ I
    ridge: float

    @classmethod
    def of(
        cls, rows: Rows | SpooledRows | StoredRows, scale: Floats, ridge: float, num_rows: int
    ) -> RowWay | None:
        """None where there is a better way: too many rows, or others than the sums have (``num_rows``).

        Nor where they cannot be read: damage to rows that stay is no reason to refuse a request.
        """
        few = 0 < num_rows <= MOST_ROWS * len(scale) and len(rows) == num_rows
        if not few or not ridge > 0:
            return None
        try:
            real = np.concatenate([block.features * scale for block in rows.blocks()])
        except (EffaceError, KeyError, ValueError, OSError):
            return None
        ones = np.ones(num_rows)
        diagonal = np.einsum("ij,ij->i", real, real) + ridge
        spans = blocks_of(num_rows, STRIP)
        strips = workers().each(lambda ab: (*ab, real[slice(*ab)] @ real[: ab[1]].T), spans)
        factor = Factor.of(strips, ones, ridge * ones, diagonal, DOUBLE)
        return None if factor is None else cls(real, factor, ridge)

    @property
    def precision(self) -> np.dtype[Any]:
        return DOUBLE

    def solve(self, right: Floats) -> Floats:
        shares = workers().shares(self.rows.shape[1], STRIP)
        inner = sum(workers().each(lambda s: right[:, s] @ self.rows[:, s].T, shares))
        between = self.factor.solve(np.asarray(inner))
        pieces = workers().each(lambda s: right[:, s] - between @ self.rows[:, s], shares)
        found: Floats = np.concatenate(pieces, axis=1) / self.ridge
        return found
