"""Fresh Gaussian noise from a cryptographic stream, in float64 or exactly on a grid.

The stream is SHAKE-256(label ‖ key ‖ counter), key = 32 bytes of the operating system, drawn for
each call and held by that call's frame only: no object, file or log keeps it. ``test_seed`` takes
the key's place in tests, and what it makes is marked as not releasable.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from efface.errors import EffaceError

Shape = int | tuple[int, ...]
Floats = NDArray[np.float64]
Draw = Callable[[int], NDArray[np.uint64]]

_CHUNK = 1 << 16  # samples at a time: the working set stays in cache
_MAX_RATIO = 2.0**40  # largest sigma / grid: leaves 2^12 of headroom below 2^53


@dataclass(frozen=True, eq=False)
class Released:
    """Weights with noise, on a grid. ``releasable`` is False when a test chose the noise."""

    values: Floats
    releasable: bool
    sigma: float
    grid: float


def gaussian(shape: Shape, sigma: float, *, test_seed: bytes | None = None) -> Floats:
    """σξ, ξ ~ N(0, I): ±Φ⁻¹(u) with a random sign and u an odd multiple of 2^-54 inside (0, ½).

    Exactly symmetric; |ξ| stops at 8.3 (probability of more: 1e-16). Not for release: the low bits
    of w + σξ in floating point depend on w (Mironov 2012). Use `release_on_grid` for that.
    """
    from scipy.special import ndtri

    _check_sigma(sigma)
    out = np.empty(shape, dtype=np.float64)
    flat = out.reshape(-1)
    draw = _stream(b"efface gaussian", test_seed)
    for start in range(0, flat.size, _CHUNK):
        words = draw(min(_CHUNK, flat.size - start))
        magnitude = ndtri(_odd_fraction(words, 54))  # u < 1/2, so it is negative
        flat[start : start + words.size] = np.where(words & np.uint64(1), magnitude, -magnitude)
    out *= sigma
    return out


def discrete_gaussian(
    shape: Shape, sigma: float, grid: float, *, test_seed: bytes | None = None
) -> Floats:
    """γk with P(k) ∝ exp(−(γk)²/(2σ²)), k integer: the discrete Gaussian on multiples of γ.

    Rejection as in Canonne, Kamath & Steinke (2020), vectorised, with s = σ/γ and t = 2^q near s:
    propose y = U + tV, U uniform on {0..t−1}, P(V) ∝ e^{−V}, and a sign; accept with probability
    exp(−U/t − (y − s²/t)²/(2s²)), except −0. Integers and signs are exact; the two comparisons with
    an exponential are made in float64 against 53-bit uniforms, where CKS use rationals. By a count
    of roundings (not a machine-checked proof) a sample's total variation from the ideal law is
    below 2^-46: what that costs of δ is in `certificates.sampler_cost`. Timing depends on the noise,
    never on the weights.
    """
    _check_sigma(sigma)
    _check_grid(sigma, grid)
    out = np.empty(shape, dtype=np.float64)
    flat = out.reshape(-1)
    draw = _stream(b"efface discrete gaussian", test_seed)
    done = 0
    while done < flat.size:
        left = flat.size - done
        accepted = _propose(draw, sigma / grid, min(_CHUNK, 3 * left + 64))[:left]
        flat[done : done + accepted.size] = accepted
        done += accepted.size
    out *= grid  # exact: the grid is a power of two
    return out


def release_on_grid(
    w: NDArray[np.floating], sigma: float, grid: float, *, test_seed: bytes | None = None
) -> Released:
    """round(w/γ)γ + discrete noise: float64 values that are exact multiples of γ.

    Rounding costs γ√d/σ of shift (`bounds.grid_shift`); every later rounding, to float32 say, is
    post-processing and free.
    """
    _check_sigma(sigma)
    _check_grid(sigma, grid)
    weights = np.asarray(w, dtype=np.float64)
    if not np.all(np.isfinite(weights)):
        raise EffaceError("the weights hold NaN or infinity.", "solve again before releasing")
    if weights.size and float(np.max(np.abs(weights))) / grid >= 2.0**52:
        raise EffaceError("the weights are too large for the grid.", "use a coarser grid")
    noise = discrete_gaussian(weights.shape, sigma, grid, test_seed=test_seed)
    values = np.rint(weights / grid) * grid + noise
    values.flags.writeable = False
    return Released(values, test_seed is None, sigma, grid)


def grid_for(sigma: float, d: int, growth: float = 1e-3) -> float:
    """Coarsest power of two γ with γ√d/σ ≤ ``growth`` (and γ ≤ σ)."""
    _check_sigma(sigma)
    if d < 1 or not growth > 0:
        raise EffaceError(
            f"{d} weights and a growth of {growth} give no grid.", "pass values above 0"
        )
    limit = min(sigma, growth * sigma / math.sqrt(d))
    return math.ldexp(1.0, math.frexp(limit)[1] - 1)


def _stream(label: bytes, test_seed: bytes | None) -> Draw:
    """A function that returns the next ``count`` 64-bit words. A counter ends each hash input, so
    that chunks of any size never overlap; the label keeps the two samplers apart."""
    state = hashlib.shake_256(label + b"\0")
    state.update(secrets.token_bytes(32) if test_seed is None else test_seed)
    counter = 0

    def draw(count: int) -> NDArray[np.uint64]:
        nonlocal counter
        block = state.copy()
        block.update(counter.to_bytes(8, "little"))
        counter += 1
        return np.frombuffer(block.digest(8 * count), dtype="<u8").astype(np.uint64, copy=False)

    return draw


def _odd_fraction(words: NDArray[np.uint64], bits: int) -> Floats:
    """(2k + 1) 2^-bits, k the top 52 bits: every value is exact, 0 and the upper end are excluded.

    A half-step offset on 53-bit k would round up to 1 at the top, hence 52 bits and odd numerators.
    """
    odd = (words >> np.uint64(11)) | np.uint64(1)  # 53 bits, the last one set
    return odd.astype(np.float64) * 2.0**-bits


def _propose(draw: Draw, s: float, count: int) -> Floats:
    """``count`` proposals, the accepted ones as whole floats (signed)."""
    q = max(0, round(math.log2(s)))
    t = 2.0**q
    words = draw(count)
    negative = (words & np.uint64(1)).astype(bool)
    u = (words >> np.uint64(64 - q)).astype(np.float64) if q else np.zeros(count)
    y = u + t * np.floor(-np.log(_odd_fraction(draw(count), 53)))
    z = (y - s * s / t) / s
    keep = _odd_fraction(draw(count), 53) < np.exp(-u / t - z * z / 2)
    keep &= ~(negative & (y == 0))  # zero would count twice
    return np.where(negative, -y, y)[keep]


def _check_sigma(sigma: float) -> None:
    if not (sigma > 0 and math.isfinite(sigma)):
        raise EffaceError(f"sigma is {sigma}.", "pass a standard deviation above 0")


def _check_grid(sigma: float, grid: float) -> None:
    if not grid > 0 or math.frexp(grid)[0] != 0.5:
        raise EffaceError(
            f"the grid {grid} is not a power of two.", "in Python: grid_for(sigma, d)."
        )
    if not 1 <= sigma / grid <= _MAX_RATIO:
        raise EffaceError(
            f"sigma / grid is {sigma / grid:.3g}.", "keep it between 1 and 2**40: take grid_for"
        )
