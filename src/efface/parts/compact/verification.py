"""The compact part's certificate: sums and weights computed anew from the rows that are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from efface.guarantee.certificates import Certificate, ExactCertificate
from efface.guarantee.check import Check
from efface.guarantee.checks import noise_check

# Weights without a proof, or of an earlier version in float64, may differ by float32's rounding from those
# solved on another machine from the same sums.
RELATIVE = 2.0**-22


@dataclass(frozen=True)
class Snapshot:
    """Sums and weights at one moment."""

    statistics_digest: str
    weights_digest: str
    theta: np.ndarray | None
    proved: bool | None


def compare(stored: Snapshot, again: Snapshot, certificate: Certificate | None) -> Iterator[Check]:
    """``again`` is from the retained rows, just now."""
    same = again.statistics_digest == stored.statistics_digest
    found = f"{again.statistics_digest} from the rows, {stored.statistics_digest} stored"
    yield Check(
        "statistics from the retained rows", same, stored.statistics_digest if same else found
    )
    assert stored.theta is not None
    assert again.theta is not None
    difference = certificate.difference if isinstance(certificate, ExactCertificate) else None
    if difference is not None:
        gone = "not checked: the sums before the request are gone"
        yield Check("epsilon between the releases", None, gone)
        moved = np.linalg.norm(stored.theta - again.theta.astype(np.float64))
        yield noise_check(difference, float(moved))
        return
    yield _same_weights(stored, again, certificate)


def _same_weights(stored: Snapshot, again: Snapshot, certificate: Certificate | None) -> Check:
    """Where the stored weights were proved, and those solved just now are, they must be equal."""
    name = "weights from the statistics"
    assert stored.theta is not None
    assert again.theta is not None
    if again.weights_digest == stored.weights_digest:
        proved = "proved to be the exact solution, rounded" if again.proved else "not proved"
        return Check(name, True, f"{stored.weights_digest} ({proved})")
    moved = np.abs(again.theta.astype(np.float64) - stored.theta).max()
    off = float(moved / np.abs(again.theta).max())
    claimed = isinstance(certificate, ExactCertificate) and certificate.weights_proved
    if claimed and again.proved:
        detail = f"they differ by {off:.1e} relative from the exact solution, which is proved"
        return Check(name, False, detail)
    detail = (
        f"they differ by {off:.1e} relative (without a proof on both sides, this may be rounding)"
    )
    return Check(name, off <= RELATIVE, detail)
