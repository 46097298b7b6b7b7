"""Power normalisation of ψ: large numbers are drawn towards small ones, part by part.

    z_j = sign(x_j) |x_j|^p / d_l,      x = ψ, j in part l, p = ¼, ½, ¾ or 1 (of energies ⅜)

A few channels that light up strongly would else drown all others in a sum of squares. The pooled
features are one part and every layer's features another; on core data, *after* the power, d_l makes the root
mean squared norm 1 for the pooled features and ``LAYER_WEIGHT`` (or ``MAP_WEIGHT``) for each layer: they
refine what the pooled features say, and would drown them at equal weight. The constant feature stays 1.
Energies have a norm of 1 as well; they are sums of squares, so ⅜ is the power ¾ of a root mean square.
Covariances are roots already: they stay as they are, ``ROOT_WEIGHT`` each (``powers_of``, ``weights_of``).

Powers are square roots and products of float64, ``|x|^¾ = √|x| · √√|x|``, ``|x|^⅜ = √√|x| · √√√|x|``: each
is rounded once, as IEEE 754 prescribes, so z is the same on every machine. The roots are numpy's: torch's are
not correctly rounded (``arithmetic/exact/roots.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from efface.errors import EffaceError, FormatError
from efface.linear.projection import Projection

POWERS = (0.25, 0.5, 0.75, 1.0)
ENERGY_POWER = 0.375  # see docs/method.md
LAYER_WEIGHT = 0.25  # of a layer's features beside the pooled ones; see docs/method.md
MAP_WEIGHT = 1 / 3  # of a map's
ROOT_WEIGHT = 0.7  # of the root of a map's covariance


@dataclass(frozen=True, eq=False)
class PowerMap:
    """ψ → z, see the module.

    Args:
        powers: p of each part, one of ``POWERS`` or ``ENERGY_POWER``; a number: of all.
        sizes: how many features each part has; the constant one, after the first part, is in none.
        divisors: d_l > 0, one a part.
    """

    powers: tuple[float, ...] | float
    sizes: tuple[int, ...]
    divisors: NDArray[np.float64]  # (parts,)

    def __post_init__(self) -> None:
        powers = _each(self.powers, len(self.sizes))
        object.__setattr__(self, "powers", powers)
        for power in powers:
            require_power(power, (*POWERS, ENERGY_POWER))
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
        powers: Sequence[float] | float,
        sizes: Sequence[int],
        *,
        weights: Sequence[float] | None = None,
    ) -> PowerMap:
        """d_l = √(mean over core rows of ‖sign(x)|x|^p‖² in part l) / weight; 1 for a part that is all 0."""
        plain = cls(_each(powers, len(sizes)), tuple(sizes), np.ones(len(sizes)))
        norms = [
            float(np.sqrt(np.square(signed_power(core_rows[:, at], p)).sum(1).mean()))
            for at, p in plain.parts
        ]
        weights = weights or [1.0, *[LAYER_WEIGHT] * (len(sizes) - 1)]
        divisors = [n / w if n > 0 else 1.0 for n, w in zip(norms, weights, strict=True)]
        return replace(plain, divisors=np.array(divisors))

    @property
    def parts(self) -> list[tuple[slice, float]]:
        """Where each part is in ψ, and its power."""
        return list(zip(places_of(self.sizes), _each(self.powers, len(self.sizes)), strict=True))

    def __call__(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """z of every row, (n, k) float64."""
        raised = np.array(rows, dtype=np.float64)
        for (at, power), divisor in zip(self.parts, self.divisors, strict=True):
            raised[:, at] = signed_power(raised[:, at], power) / divisor
        return raised


def signed_power(x: NDArray[np.float64], power: float) -> NDArray[np.float64]:
    """sign(x) |x|^p, entry by entry; a new array."""
    if power == 1.0:
        return np.array(x, dtype=np.float64)
    size = np.abs(np.asarray(x, dtype=np.float64))
    root = np.sqrt(size)
    if power == ENERGY_POWER:
        root = np.sqrt(root, out=root)
        root *= np.sqrt(root)
    elif power != 0.5:
        fourth = np.sqrt(root)
        root = fourth if power == 0.25 else np.multiply(root, fourth, out=root)
    return np.copysign(root, x)


def places_of(sizes: Sequence[int]) -> list[slice]:
    """Where the parts are in ψ = (first part, 1, other parts)."""
    starts = np.cumsum([0, *sizes])
    return [slice(int(a) + (i > 0), int(b) + (i > 0)) for i, (a, b) in enumerate(pairwise(starts))]


def _each(powers: Sequence[float] | float, count: int) -> tuple[float, ...]:
    return (powers,) * count if isinstance(powers, float | int) else tuple(powers)


def powers_of(projection: Projection, power: float) -> tuple[float, ...]:
    """Of its parts: p, but ⅜ of energies and 1 of what is a root already."""
    first = [ENERGY_POWER] * len(projection.energies) or [power]
    return (*first, *[1.0 if projection.roots else power] * len(projection.names))


def weights_of(projection: Projection, weight: float) -> tuple[float, ...]:
    """Of its parts: 1 for what is pooled and for energies, ``weight`` for each layer."""
    full = max(1, len(projection.energies))
    return (*[1.0] * full, *[weight] * len(projection.names))


def require_power(power: float, powers: Sequence[float] = POWERS) -> None:
    if power not in powers:
        known = ", ".join(f"{p:g}" for p in powers)
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
