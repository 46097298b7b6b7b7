"""Integers times float32 weights, each sum rounded once: predictions that are the same everywhere.

``Σ_j q_j s_j w_jc`` for integers q, powers of two s and float32 weights w. The numbers ``s_j w_jc`` of an
output c are cut into slices, the first of which are multiples of a power of two u so coarse that

    max |q| Σ_j |slice_j| < 2^53 u,

so every partial sum of ``q · slice`` is a multiple of u that float64 holds, in whatever order a machine adds.
What is left after one slice is cut into the next, until nothing is left; the few exact sums are then added
with one rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from efface.errors import EffaceError

Floats = NDArray[np.float64]
MOST_TERMS = 2**45  # max |q| times k: eight bits of a weight are then left for a slice


def exact_product(
    integers: NDArray[np.integer], weights: NDArray[np.float32], scale: ArrayLike = 1.0
) -> Floats:
    """``Σ_j q_j s_j w_jc``, correctly rounded to float64, (n, c).

    Args:
        integers: q, (n, k).
        weights: w, (k, c) float32.
        scale: s, powers of two within 2^±400, (k,) or one number.
    """
    largest = float(np.abs(integers.astype(np.float64)).max()) if integers.size else 0.0
    return SlicedWeights(weights, scale, largest).times(integers)


class SlicedWeights:
    """Weights cut into slices once, for many products with integers up to ``largest``.

    A product is the exact sum rounded once, so it does not depend on how the weights were cut.
    """

    def __init__(
        self, weights: NDArray[np.float32], scale: ArrayLike = 1.0, largest: float = 1.0
    ) -> None:
        scales = np.broadcast_to(np.asarray(scale, dtype=np.float64), (len(weights),))
        _require_valid(weights, scales)
        if largest * len(weights) > MOST_TERMS:
            raise EffaceError(
                f"{len(weights)} integers up to {largest:.0f} cannot be added up exactly.",
                "Quantise them to fewer bits.",
            )
        exact = weights.astype(np.float64) * scales[:, None]  # 24 bits times powers of two: exact
        self.slices = list(_slices(exact, max(largest, 1.0)))
        self._together = torch.from_numpy(np.concatenate(self.slices, axis=1))

    def times(self, integers: NDArray[np.integer]) -> Floats:
        """``Σ_j q_j s_j w_jc``, correctly rounded, (n, c)."""
        if integers.dtype.kind not in "iu":
            raise EffaceError(f"A product of {integers.dtype} is not exact.", "Give integers.")
        if integers.ndim != 2 or integers.shape[1] != len(self._together):
            fix = "Give (n, k) and (k, c)."
            raise EffaceError(f"{integers.shape} does not go with {self.slices[0].shape}.", fix)
        if integers.size == 0:
            return np.zeros((len(integers), self.slices[0].shape[1]))
        products = torch.from_numpy(integers.astype(np.float64)) @ self._together
        return _sum(np.split(products.numpy(), len(self.slices), axis=1))


def _slices(left: Floats, largest: float) -> Iterator[Floats]:
    """``left`` (k, c) in pieces whose products are exact.

    ``q_max Σ |left| < 2^52 u`` by the choice of u, and rounding adds at most ``q_max k u / 2``.
    """
    while True:
        sums = largest * np.abs(left).sum(
            0
        )  # (c,), off by far less than the factor of 2 that is left
        unit = np.ldexp(1.0, np.frexp(sums)[1] - 52)
        piece = np.rint(left / unit) * unit
        yield piece
        left = left - piece
        if not left.any():
            return


def _sum(terms: list[Floats]) -> Floats:
    """Each sum rounded once: of two terms by float64 itself, of more by Shewchuk's ``fsum``."""
    if len(terms) <= 2:
        return np.asarray(sum(terms)) + 0.0
    flat = zip(*(term.ravel().tolist() for term in terms), strict=True)
    return np.array([math.fsum(values) for values in flat]).reshape(terms[0].shape)


def _require_valid(weights: NDArray[np.float32], s: Floats) -> None:
    if weights.dtype != np.float32 or weights.ndim != 2:
        raise EffaceError(
            f"A product with {weights.dtype} of shape {weights.shape} is not exact.",
            "Give weights in float32, (k, c).",
        )
    powers = (np.frexp(s)[0] == 0.5).all() and (s >= 2.0**-400).all() and (s <= 2.0**400).all()
    if not (powers and np.isfinite(weights).all()):
        raise EffaceError("A weight is not finite, or a scale is no power of two.", "Solve again.")
