"""Tables of smooth functions whose entries do not depend on the machine's mathematical library.

An entry is round(f(x) · 2^p) / 2^p at x = lo + i·h. float64 libraries err by a few units in the last
place, so the rounded entry could differ only where f(x) · 2^p lies that close to a half: those entries are
computed again with 60 digits (mpmath is software arithmetic, the same everywhere). Between entries the
function is interpolated linearly,

    f(x) ≈ v_i + t (v_{i+1} − v_i),      error ≤ h² max|f''| / 8 + 2^(−p),

two correctly rounded operations. Outside [lo, hi] the function is constant to within half a step 2^(−p).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import mpmath
import numpy as np
import torch
from scipy import special
from torch import Tensor

FRACTION_BITS = 36  # p
DIGITS = 60
PIECE = 32768
# In steps 2^(−p). All values are below 2, where 64 units in the last place are 2^-46: 2^-10 of a step.
_MARGIN = 2.0**-8


@dataclass(frozen=True)
class Function:
    """f in float64 and in many digits, on [lo, hi] with step h = 2^(−k)."""

    fast: Callable[[np.ndarray], np.ndarray]
    slow: Callable[[Any], Any]
    lo: int
    hi: int
    k: int


def _normal_density(x: np.ndarray) -> np.ndarray:
    return np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def _tanh_gate(x: np.ndarray) -> np.ndarray:
    """(1 + tanh u) / 2 = σ(2u), u = √(2/π) (x + 0.044715 x³)."""
    return special.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))


def _tanh_gate_slow(x: Any) -> Any:
    cubic = x + mpmath.mpf("0.044715") * x**3
    return 1 / (1 + mpmath.exp(-2 * mpmath.sqrt(2 / mpmath.pi) * cubic))


def _tanh_slope(x: np.ndarray) -> np.ndarray:
    gate, inner = _tanh_gate(x), np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x * x)
    return gate + 2 * x * gate * (1 - gate) * inner


def _tanh_slope_slow(x: Any) -> Any:
    gate = _tanh_gate_slow(x)
    inner = mpmath.sqrt(2 / mpmath.pi) * (1 + 3 * mpmath.mpf("0.044715") * x * x)
    return gate + 2 * x * gate * (1 - gate) * inner


FUNCTIONS = {
    "exp": Function(np.exp, mpmath.exp, -26, 0, 11),
    "sigmoid": Function(special.expit, lambda x: 1 / (1 + mpmath.exp(-x)), -26, 26, 9),
    "tanh": Function(np.tanh, mpmath.tanh, -14, 14, 11),
    "erf": Function(special.erf, mpmath.erf, -6, 6, 11),
    # GELU(x) = x Φ(x), its derivative Φ(x) + x φ(x); and the same of its tanh form.
    "normal": Function(special.ndtr, mpmath.ncdf, -8, 8, 10),
    "gelu slope": Function(
        lambda x: special.ndtr(x) + x * _normal_density(x),
        lambda x: mpmath.ncdf(x) + x * mpmath.npdf(x),
        -8,
        8,
        11,
    ),
    "tanh gate": Function(_tanh_gate, _tanh_gate_slow, -8, 8, 10),
    "tanh gelu slope": Function(_tanh_slope, _tanh_slope_slow, -8, 8, 11),
}


@dataclass(frozen=True)
class FunctionTable:
    """Entries v and their differences on a grid of step 2^(−k) from ``lo`` to ``hi``."""

    lo: int
    hi: int
    k: int
    values: Tensor  # (entries,)
    differences: Tensor  # (entries,), the last one 0

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty(x.shape, dtype=torch.float64)
        # In pieces that stay in the processor's cache, with what is computed on the way.
        pieces = zip(x.reshape(-1).split(PIECE), out.view(-1).split(PIECE), strict=True)
        for piece, result in pieces:
            self._look_up(piece, result)
        return out

    def _look_up(self, x: Tensor, out: Tensor) -> None:
        place = x.clamp(self.lo, self.hi).sub_(self.lo).mul_(2.0**self.k)
        index = place.to(torch.int32)  # not negative, so this is the floor
        torch.index_select(self.values, 0, index, out=out)
        out.add_(self.differences.index_select(0, index).mul_(place.frac_()))


@cache
def table(name: str) -> FunctionTable:
    """The table of a function in ``FUNCTIONS``, built once a process."""
    f = FUNCTIONS[name]
    values = torch.from_numpy(entries(f))
    differences = torch.cat([values.diff(), values.new_zeros(1)])  # exact: multiples of 2^(−p)
    return FunctionTable(f.lo, f.hi, f.k, values, differences)


def entries(f: Function) -> np.ndarray:
    """round(f · 2^p) / 2^p at every point of the grid, (entries,)."""
    x = np.arange(f.lo << f.k, (f.hi << f.k) + 1) / 2.0**f.k
    scaled = f.fast(x) * 2.0**FRACTION_BITS
    result = np.rint(scaled)
    doubtful = np.flatnonzero(np.abs(np.abs(scaled - result) - 0.5) <= _MARGIN)
    result[doubtful] = [entry(f, float(x[i])) for i in doubtful]
    return result / 2.0**FRACTION_BITS + 0.0  # no negative zeros


def entry(f: Function, x: float) -> int:
    """round(f(x) · 2^p) in many digits."""
    with mpmath.workdps(DIGITS):
        return int(mpmath.nint(f.slow(mpmath.mpf(x)) * 2**FRACTION_BITS))
