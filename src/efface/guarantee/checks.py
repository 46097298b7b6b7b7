"""A check: something that a certificate or a workspace claims, and whether it is so."""

from __future__ import annotations

import math
from dataclasses import dataclass

from efface.guarantee.certificates import Difference, ShiftCertificate


@dataclass(frozen=True)
class Check:
    """``ok`` is None for what cannot be checked (any more): it neither holds nor fails."""

    name: str
    ok: bool | None
    detail: str


def noise_check(promise: ShiftCertificate | Difference, norm: float, shift: float = 0.0) -> Check:
    """‖release − w‖ / (σ √d) is 1 ± 1/√(2d): noise that was left out, or too small, shows.

    Where w is known up to a distance of ``shift`` σ only, that much more is allowed for.
    """
    sigma, d = promise.guarantee.sigma, promise.d
    ratio = norm / (sigma * math.sqrt(d))
    ok = abs(ratio - 1) <= 6 / math.sqrt(2 * d) + shift / math.sqrt(d)
    return Check("noise in the release", ok, f"{ratio:.4f} of what sigma {sigma:.3g} gives")
