"""Checks that are computed from a certificate's numbers."""

from __future__ import annotations

import math

from efface.guarantee.certificates import Difference, ShiftCertificate
from efface.guarantee.check import Check


def noise_check(promise: ShiftCertificate | Difference, norm: float, shift: float = 0.0) -> Check:
    """‖release − w‖ / (σ √d) is 1 ± 1/√(2d): noise that was left out, or too small, shows.

    Where w is known up to a distance of ``shift`` σ only, that much more is allowed for.
    """
    sigma, d = promise.guarantee.sigma, promise.d
    ratio = norm / (sigma * math.sqrt(d))
    ok = abs(ratio - 1) <= 6 / math.sqrt(2 * d) + shift / math.sqrt(d)
    return Check("noise in the release", ok, f"{ratio:.4f} of what sigma {sigma:.3g} gives")
