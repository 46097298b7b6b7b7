"""A Cholesky factor of the ridge system, made in place, in float32 or in float64.

``C (S G S + n μ D) C = L Lᵀ`` with diagonal powers of two C that bring the diagonal to [1/2, 2): whatever
the scales S, float32 then neither overflows nor loses small features. A float32 factor takes half the
memory and less than half the time; with residuals in float64 it refines to float64's accuracy.

Whatever uses one is *a way* to the weights: it decides how long they take, and never which they are
(see ``refinement``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from efface.parts.compact.expansion import Floats
from efface.parts.compact.workers import workers

Strips = Iterable[tuple[int, int, Floats]]
Singles = NDArray[np.floating[Any]]  # float32 or float64
SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
BLOCK = 128  # columns factorised at once, and the size of the blocks that are inverted
STRIP = 4 * BLOCK  # rows of L that a solve reads at once
LEAST_ROWS = 8  # right-hand sides that are worth a thread of their own


class Way(ABC):
    """``A⁻¹`` approximately: what corrections come from."""

    @property
    def guess(self) -> Floats | None:
        """Weights that may be near the solution, (c, k), to begin with; None: begin with 0."""
        return None

    @property
    @abstractmethod
    def precision(self) -> np.dtype[Any]:
        """float32 or float64: how much of a correction is worth keeping."""

    @abstractmethod
    def solve(self, right: Floats) -> Floats:
        """``A⁻¹`` times each row of ``right``, (m, k)."""


@dataclass(frozen=True, eq=False)
class Factor(Way):
    """``A⁻¹ ≈ C L⁻ᵀ L⁻¹ C``, to the precision of ``lower``.

    Solving is products alone, which are several times faster than substitution: the blocks on the diagonal
    of L are kept inverted.
    """

    strips: tuple[Singles, ...]  # L[start:stop, :stop], from the top, STRIP rows each
    inverses: Singles  # (blocks, BLOCK, BLOCK), of the blocks on its diagonal
    balance: Floats  # (k,), the diagonal of C

    @classmethod
    def of(
        cls, strips: Strips, scale: Floats, ridge: Floats, diagonal: Floats, dtype: DTypeLike
    ) -> Factor | None:
        """The factor of ``A = S G S + diag(ridge)``, or None if there is none that can be relied on.

        Args:
            strips: ``(start, stop, G[start:stop, :stop])``, all of the lower triangle of G.
            scale: of each feature, (k,).
            ridge: what is added to the diagonal, (k,).
            diagonal: that of A, (k,).
            dtype: float32 or float64.
        """
        size = len(scale)
        balance = _balancing(diagonal)
        matrix: Singles = np.empty((size, size), dtype)
        # A feature that was never seen has a row of zeros and any factor: 2 keeps it finite.
        both = np.minimum(scale * balance, 2.0).astype(dtype)

        def fill(part: tuple[int, int, Floats]) -> None:
            start, stop, strip = part
            rows = matrix[start:stop, :stop]
            np.multiply(strip, both[:stop], out=rows, casting="same_kind")
            rows *= both[start:stop, None]

        workers().each(fill, strips)
        matrix[np.diag_indices(size)] += (ridge * balance**2).astype(dtype)
        inverses = factorise(matrix)
        rows = tuple(matrix[a:b, :b] for a, b in blocks_of(size, STRIP))
        return None if inverses is None else cls(rows, inverses, balance)

    @property
    def precision(self) -> np.dtype[Any]:
        return self.inverses.dtype

    def solve(self, right: Floats) -> Floats:
        parts = [right[share] for share in workers().shares(len(right), LEAST_ROWS)]
        return np.concatenate(workers().each(self._solve, parts))

    def _solve(self, right: Floats) -> Floats:
        balanced = right * self.balance
        # Rows near 1, or small residuals would leave the range of float32.
        size = _power_of_two(np.abs(balanced).max(1, initial=0.0))[:, None]  # (m, 1)
        y = (balanced / size).astype(self.precision)
        for strip in self.strips:
            start, stop = strip.shape[1] - len(strip), strip.shape[1]
            y[:, start:stop] -= y[:, :start] @ strip[:, :start].T
            self._down(y[:, start:stop], strip[:, start:], start // BLOCK)
        for strip in reversed(self.strips):
            start, stop = strip.shape[1] - len(strip), strip.shape[1]
            self._up(y[:, start:stop], strip[:, start:], start // BLOCK)
            y[:, :start] -= y[:, start:stop] @ strip[:, :start]
        return y.astype(np.float64) * size * self.balance

    def _down(self, y: Singles, lower: Singles, number: int) -> None:
        """``y ← y L⁻ᵀ`` in place, for a square of L whose first block has this number."""
        for i, (start, stop) in enumerate(blocks_of(len(lower))):
            here = slice(start, stop)
            y[:, here] -= y[:, :start] @ lower[here, :start].T
            inverse = self.inverses[number + i].T
            y[:, here] = self._times(y[:, here], inverse, lower[here, here].T)

    def _up(self, y: Singles, lower: Singles, number: int) -> None:
        """``y ← y L⁻¹`` in place, for the same."""
        for i, (start, stop) in reversed(list(enumerate(blocks_of(len(lower))))):
            here = slice(start, stop)
            y[:, here] = self._times(y[:, here], self.inverses[number + i], lower[here, here])
            y[:, :start] -= y[:, here] @ lower[here, :start]

    def _times(self, right: Singles, inverse: Singles, block: Singles) -> Singles:
        """``right block⁻¹``, (m, b). See :func:`factorise` on why float64 may correct it."""
        inverse = inverse[: len(block), : len(block)]
        found: Singles = right @ inverse
        if self.precision == DOUBLE and is_ill_conditioned(block):
            found += (right - found @ block) @ inverse
        return found


def blocks_of(size: int, block: int = BLOCK) -> Iterable[tuple[int, int]]:
    return ((start, min(start + block, size)) for start in range(0, size, block))


def factorise(matrix: Singles, block: int = BLOCK) -> Singles | None:
    """L over the lower triangle of ``matrix``; returns its inverted diagonal blocks, None if there is no L.

    A column of blocks at a time: all but ``k · block²`` of the work is products. What is below a diagonal
    block is multiplied by the block's inverse, which is less accurate than substitution if that block is ill
    conditioned: that is, where a pivot is small. In float64 a correction makes up for it. In float32 a factor
    with a pivot up to ``k u``, about the bound on its rounding error, is refused: a singular matrix could not
    be told from one that float64 solves.
    """
    size, double = len(matrix), matrix.dtype == DOUBLE
    least = 0.0 if double else size * float(np.finfo(matrix.dtype).eps) / 2  # k u
    spans = list(blocks_of(size, block))
    inverses: Singles = np.zeros((len(spans), block, block), matrix.dtype)
    for i, (start, stop) in enumerate(spans):
        width, left = stop - start, matrix[start:stop, :start]
        square = matrix[start:stop, start:stop]
        square -= left @ left.T
        try:
            top = np.linalg.cholesky(square)
        except np.linalg.LinAlgError:
            return None
        if not (top.diagonal().astype(np.float64) ** 2 > least).all():  # nor if one is no number
            return None
        square[:] = top
        inverse = inverses[i, :width, :width]
        inverse[:] = inverted(top)
        _fill_below(matrix, start, stop, inverse)
    return inverses


def _fill_below(matrix: Singles, start: int, stop: int, inverse: Singles) -> None:
    """``L[stop:, start:stop]``, from what is left of it and the diagonal block above."""
    top, left = matrix[start:stop, start:stop], matrix[start:stop, :start]
    correct = matrix.dtype == DOUBLE and is_ill_conditioned(top)

    def fill(share: slice) -> None:
        rows = slice(stop + share.start, stop + share.stop)
        below = matrix[rows, start:stop] - matrix[rows, :start] @ left.T
        solved = below @ inverse.T
        if correct:
            solved += (below - solved @ top.T) @ inverse.T
        matrix[rows, start:stop] = solved

    workers().each(fill, workers().shares(len(matrix) - stop, BLOCK))


def is_ill_conditioned(block: Singles) -> bool:
    """Whether pivots of a block of L are so small that products with its inverse lose digits."""
    return not float(block.diagonal().min()) > 2.0**-10


def inverted(lower: Singles, smallest: int = 32) -> Singles:
    """The inverse of a lower triangular matrix, by halves."""
    size = len(lower)
    if size <= smallest:
        return np.tril(np.linalg.inv(lower))
    half = size // 2
    first, last = inverted(lower[:half, :half]), inverted(lower[half:, half:])
    inverse = np.zeros_like(lower)
    inverse[:half, :half], inverse[half:, half:] = first, last
    inverse[half:, :half] = -last @ (lower[half:, :half] @ first)
    return inverse


def _balancing(diagonal: Floats) -> Floats:
    """Powers of two c with ``c² diagonal`` in [1/2, 2); 1 where the diagonal is 0."""
    exponent = np.frexp(diagonal)[1]  # diagonal = m 2^exponent, m in [1/2, 1)
    powers: Floats = np.ldexp(1.0, -(exponent // 2))
    return powers


def _power_of_two(values: Floats) -> Floats:
    powers: Floats = np.ldexp(1.0, np.frexp(values)[1])
    return powers
