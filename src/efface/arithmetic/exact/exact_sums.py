"""Sums and matrix products that no order of summation can change.

With P the power of two at or below the largest magnitude of a slice, and step s = 2^(1−b) P, every entry is
replaced by s·q, q = round(entry / s) to even, |q| ≤ 2^b. Then

    Σ_i s q_i       is exact if K · 2^b ≤ 2^53,
    Σ_i s q_i t r_i  is exact if K · 2^(b+c) ≤ 2^53 (q of b bits, r of c bits),

K the number of terms: every partial sum, in any order, is an integer of at most 53 bits times one power of
two, which float64 holds. The scale is taken over the summed slice alone, so that an entry of the result is a
function of the numbers that it is the sum of: not of the rest of the batch either.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Dims = int | tuple[int, ...]
MANTISSA = 53  # bits of a float64
_EXPONENT_FIELD = 0x7FF0000000000000
_LEAST = 2.0**-400  # slices below are rounded as if they reached it: no product of steps underflows


def sum_bits(terms: int) -> int:
    """The largest b with ``terms`` · 2^b ≤ 2^53, kept small enough for the rounding itself."""
    return min(MANTISSA - _log2_ceil(terms), MANTISSA - 3)


def product_bits(terms: int) -> tuple[int, int]:
    """(b, c) with ``terms`` · 2^(b+c) ≤ 2^53, as equal as can be; the odd bit goes to the first."""
    both = MANTISSA - _log2_ceil(terms)
    return both - both // 2, both // 2


def _log2_ceil(terms: int) -> int:
    return max(terms - 1, 0).bit_length()


def power_of_two_below(x: Tensor) -> Tensor:
    """2^⌊log₂ x⌋ for x > 0, by clearing the mantissa: no logarithm that a library could round."""
    return x.view(torch.int64).bitwise_and(_EXPONENT_FIELD).view(torch.float64)


def rounded(x: Tensor, bits: int, dims: Dims) -> Tensor:
    """x on a grid of 2^``bits`` steps (and sign), one grid for each slice along ``dims``.

    (x + c) − c with c = 1.5 · 2^52 s rounds x to multiples of s, ties to even: x + c lies between
    2^52 s and 2^53 s, where float64's own grid is s. It needs |x| ≤ 2^51 s, so ``bits`` ≤ 50.
    """
    if x.numel() == 0:
        return x.clone()
    largest = torch.maximum(x.amax(dims, keepdim=True), -x.amin(dims, keepdim=True))
    shift = power_of_two_below(largest).clamp_(min=_LEAST).mul_(1.5 * 2.0 ** (MANTISSA - bits))
    return torch.add(x, shift).sub_(shift)


def exact_sum(x: Tensor, dims: Dims, keepdim: bool = False) -> Tensor:
    """Σ over ``dims``, to about 53 − log₂ K bits of the largest term."""
    return rounded(x, sum_bits(terms_along(x, dims)), dims).sum(dims, keepdim=keepdim)


def exact_mean(x: Tensor, dims: Dims, keepdim: bool = False) -> Tensor:
    """The exact sum divided once."""
    return exact_sum(x, dims, keepdim).div_(terms_along(x, dims))


def terms_along(x: Tensor, dims: Dims) -> int:
    return math.prod(x.shape[d] for d in ([dims] if isinstance(dims, int) else dims))


def exact_matmul(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of (…, m, k) and (…, k, n): a grid for each row of a and each column of b."""
    bits = product_bits(a.shape[-1])
    return positive_zeros(rounded(a, bits[0], -1) @ rounded(b, bits[1], -2))


def positive_zeros(x: Tensor) -> Tensor:
    """x, in place, with −0 as +0: whether products like 0 · (−1) sum to one or the other is up to the kernel.

    Sums of rounded numbers need no such care: rounding leaves no −0, and a sum of others is never −0.
    """
    return x.add_(0.0)
