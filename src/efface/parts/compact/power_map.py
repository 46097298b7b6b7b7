"""Power normalisation of ψ: large numbers are drawn towards small ones, part by part.

    z_j = sign(x_j) |x_j|^p / d_l,      x = ψ, j in part l, p = ¼, ½, ¾ or 1

A few channels that light up strongly would else drown all others in a sum of squares. The pooled
features are one part and every layer's features another; on core data, *after* the power, d_l makes the root
mean squared norm 1 for the pooled features and ``LAYER_WEIGHT`` (or ``MAP_WEIGHT``) for each layer: they
refine what the pooled features say, and would drown them at equal weight. The constant feature stays 1.

Powers are square roots and products of float64, ``|x|^¾ = √|x| · √√|x|``: each is rounded once, as
IEEE 754 prescribes, so z is the same on every machine. The roots are numpy's: torch's are not correctly
rounded (``arithmetic/exact/roots.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from efface.errors import EffaceError, FormatError

POWERS = (0.25, 0.5, 0.75, 1.0)
LAYER_WEIGHT = 0.25  # of a layer's features beside the pooled ones; see docs/method.md
MAP_WEIGHT = 1 / 3  # of a map's


@dataclass(frozen=True, eq=False)
class PowerMap:
    """ψ → z, see the module.

    Args:
        power: p, one of ``POWERS``.
        sizes: how many features each part has; the constant one, after the first part, is in none.
        divisors: d_l > 0, one a part.
    """

    power: float
    sizes: tuple[int, ...]
    divisors: NDArray[np.float64]  # (parts,)

    def __post_init__(self) -> None:
        require_power(self.power)
        divisors = np.array(self.divisors, dtype=np.float64)
        good = divisors.shape == (len(self.sizes),) and np.isfinite(divisors).all()
        if not (good and (divisors > 0).all()):
            raise FormatError(
                f"the power map's divisors {divisors!r:.80} are not one positive number a part.",
                "restore the model's files from a copy, or calibrate again.",
            )
        divisors.flags.writeable = False
        object.__setattr__(self, "divisors", divisors)
        _check_roots()

    @classmethod
    def fit(
        cls,
        core_rows: NDArray[np.float64],
        power: float,
        sizes: Sequence[int],
        *,
        layer_weight: float = LAYER_WEIGHT,
    ) -> PowerMap:
        """d_l = √(mean over core rows of ‖sign(x)|x|^p‖² in part l) / weight; 1 for a part that is all 0."""
        require_power(power)
        raised = signed_power(core_rows, power)
        norms = [float(np.sqrt(np.square(raised[:, at]).sum(1).mean())) for at in places_of(sizes)]
        weights = [1.0, *[layer_weight] * (len(sizes) - 1)]
        divisors = [n / w if n > 0 else 1.0 for n, w in zip(norms, weights, strict=True)]
        return cls(power, tuple(sizes), np.array(divisors))

    def __call__(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """z of every row, (n, k) float64."""
        raised = signed_power(rows, self.power)
        for at, divisor in zip(places_of(self.sizes), self.divisors, strict=True):
            raised[:, at] /= divisor
        return raised


def signed_power(x: NDArray[np.float64], power: float) -> NDArray[np.float64]:
    """sign(x) |x|^p, entry by entry; a new array."""
    if power == 1.0:
        return np.array(x, dtype=np.float64)
    size = np.abs(np.asarray(x, dtype=np.float64))
    root = np.sqrt(size)
    if power != 0.5:
        fourth = np.sqrt(root)
        root = fourth if power == 0.25 else np.multiply(root, fourth, out=root)
    return np.copysign(root, x)


def places_of(sizes: Sequence[int]) -> list[slice]:
    """Where the parts are in ψ = (first part, 1, other parts)."""
    starts = np.cumsum([0, *sizes])
    return [slice(int(a) + (i > 0), int(b) + (i > 0)) for i, (a, b) in enumerate(pairwise(starts))]


def require_power(power: float) -> None:
    if power not in POWERS:
        known = ", ".join(f"{p:g}" for p in POWERS)
        raise EffaceError(f"a power of {power!r:.20}.", f"use one of {known}.")


@cache
def _check_roots() -> None:
    """Numpy's roots against math.sqrt, which is the C library's: asked once a process."""
    numbers = np.concatenate([np.arange(1.0, 258.0), np.arange(1.0, 258.0) * 2.0**-149])
    if np.sqrt(numbers).tolist() != [math.sqrt(v) for v in numbers.tolist()]:
        raise EffaceError(
            "numpy's square roots are not correctly rounded on this machine.",
            "use another build of numpy, or --power 1 (in Python: power=1).",
        )
