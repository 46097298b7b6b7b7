"""Square roots of covariances, the same bits on every machine.

Of p(s), r numbers at each of m places s of a map,

    C = m Σ_s p(s) p(s)ᵀ − (Σ_s p(s)) (Σ_s p(s))ᵀ  =  m² · covariance,      √(C / tr C) by Newton and Schulz:

    Y ← C / tr C,  Z ← I;      M = (3I − ZY)/2,  Y ← YM,  Z ← MZ,  ``STEPS`` times.

A root draws strong and weak directions together, as roots of single numbers do for channels (Li, Xie, Wang
and Gao 2018). After few steps the weakest directions stay below their root, which is as well: they are noise.

Of integers p, C and its trace are integers, and exact in float64. Y, Z and M are rounded to multiples of
2^-BITS; their entries are below 2 and, of Z, 1.5^STEPS < 2^3, so that every sum of up to 2^9 products is one
of integers below 2^53: exact in whatever order it is added. Nothing else is done but divisions of single
numbers and rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS, BITS = 5, 20


def covariance_roots(p: Tensor) -> Tensor:
    """(n, places, r) -> (n, r, r) float64, symmetric."""
    p = p.double()
    total = p.sum(1)  # (n, r)
    squares = p.transpose(1, 2) @ p  # (n, r, r)
    return matrix_root(squares * p.shape[1] - total.unsqueeze(2) * total.unsqueeze(1))


def matrix_root(c: Tensor) -> Tensor:
    """About √(C / tr C) of symmetric C ≥ 0, (n, r, r) float64; 0 of 0."""
    one = torch.eye(c.shape[1], dtype=c.dtype, device=c.device)
    trace = (c * one).sum((1, 2), keepdim=True)
    y = _rounded(c / torch.where(trace > 0, trace, torch.ones_like(trace)))
    z = one.expand_as(y)
    for _ in range(STEPS):
        m = _rounded(1.5 * one - (z @ y) * 0.5)
        y, z = _rounded(y @ m), _rounded(m @ z)
    return y


def _rounded(x: Tensor) -> Tensor:
    return (x * 2.0**BITS).round() * 2.0**-BITS
