"""Certificates: what was proved about a release, from numbers checked on the final weights.

A private certificate holds everything; its public form holds only what was fixed beforehand and whether it
was met, because residual norms, passes and times are functions of the forgotten data.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from efface import __version__, bounds, noise
from efface.errors import EffaceError, GuaranteeError

NOT_COVERED = (
    "releases made before the request",
    "the difference between a release before and one after the request",
    "what other people's later requests were chosen to reveal",
    "core data",
)


def sampler_delta(delta: float, d: int) -> float:
    """δ less what the sampler of the noise may be off: at most 2⁻⁴⁶ in total variation a coordinate."""
    return delta - d * 2.0**-46


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ)-indistinguishability from retraining without the records, through noise N(0, σ²I).

    It holds when the shift m = ‖w − w*_r‖/σ is at most ``shift``; the solver must therefore bring the
    gradient on the retained data to ‖g_r‖ ≤ m σ μ. All of it is fixed before the request and public.
    """

    epsilon: float
    delta: float
    sigma: float
    grid: float

    @classmethod
    def plan(cls, epsilon: float, delta: float, sigma: float, d: int) -> Guarantee:
        """σ is the caller's (from core data: see ``sigma_for``), the grid is as fine as it needs be."""
        if not (0 < epsilon < math.inf and 0 < delta < 1 and 0 < sigma < math.inf):
            raise EffaceError(
                f"no guarantee with epsilon {epsilon}, delta {delta}, sigma {sigma}.",
                "all are positive and finite, and delta is below 1.",
            )
        if sampler_delta(delta, d) <= 0:
            raise EffaceError(
                f"delta {delta:g} is below what the noise's sampler can promise for {d} weights.",
                f"use a delta above {d * 2.0**-46:.1g}.",
            )
        return cls(epsilon, delta, sigma, noise.grid_for(sigma, d))

    def shift(self, d: int) -> float:
        """The largest m before rounding to the grid that still gives (ε, δ) after it, rounded down."""
        delta = sampler_delta(self.delta, d)
        nothing = bounds.grid_shift(0.0, self.grid, d, self.sigma)
        if bounds.grid_epsilon_bound(delta, nothing) > self.epsilon:
            raise GuaranteeError(
                f"the grid {self.grid:g} alone spends epsilon {self.epsilon}.",
                "raise sigma or epsilon.",
            )
        low, high = 0.0, bounds.shift_for(self.epsilon, self.delta)
        for _ in range(60):
            middle = (low + high) / 2
            grown = bounds.grid_shift(middle, self.grid, d, self.sigma)
            ok = bounds.grid_epsilon_bound(delta, grown) <= self.epsilon
            low, high = (middle, high) if ok else (low, middle)
        return low

    def gradient_tolerance(self, mu: float, d: int) -> float:
        """‖g_r‖ ≤ m σ μ."""
        return self.shift(d) * self.sigma * mu


def sigma_for(jacobian_square: float, num_outputs: int, logit_std: float) -> float:
    """σ such that the noise moves a logit by ``logit_std`` in the root mean square over core data.

    E‖J ξ σ‖² = σ² ‖J‖_F², so σ = logit_std · √(c / mean‖J‖_F²), the mean taken on core samples.
    """
    return (
        logit_std * math.sqrt(num_outputs / jacobian_square) if jacobian_square > 0 else logit_std
    )


@dataclass(frozen=True)
class ShiftCertificate:
    """The a-posteriori certificate of an approximate solve with noise (the tangent user part).

    ``gradient_norm`` is ‖g_r‖ recomputed in float64 on the final noiseless weights. Everything named
    ``*_bound`` follows from it by ``bounds.py``; ``distance_estimate`` (to an actual retrain, as in the
    paper's plots) is a measurement.
    """

    guarantee: Guarantee
    mu: float
    d: int
    num_retained: int
    num_forgotten: int
    gradient_norm: float
    passes: float
    releasable: bool = True
    earlier_shifts: tuple[float, ...] = ()
    distance_estimate: float | None = None
    apriori: dict[str, Any] = field(default_factory=dict)
    kind: str = "a-posteriori"
    version: str = __version__

    @property
    def distance_bound(self) -> float:
        return bounds.distance_bound(self.gradient_norm, self.mu)

    @property
    def shift_bound(self) -> float:
        g = self.guarantee
        return bounds.grid_shift(self.distance_bound / g.sigma, g.grid, self.d, g.sigma)

    @property
    def total_shift_bound(self) -> float:
        """Of all releases since the oldest request still counted: √Σ m_k²."""
        return bounds.total_shift([*self.earlier_shifts, self.shift_bound])

    def _epsilon(self, shift: float) -> float:
        delta = sampler_delta(self.guarantee.delta, self.d)
        return bounds.grid_epsilon_bound(delta, shift) if delta > 0 else math.inf

    @property
    def epsilon_bound(self) -> float:
        return self._epsilon(self.shift_bound)

    @property
    def passed(self) -> bool:
        return self.epsilon_bound <= self.guarantee.epsilon

    def private(self) -> dict[str, Any]:
        m = self.shift_bound
        return {
            **asdict(self),
            "distance_bound": self.distance_bound,
            "shift_bound": m,
            "information_bound_nats": bounds.information_bound(m),
            "best_advantage_bound": bounds.advantage_bound(bounds.kl(m)),
            "epsilon_bound": self.epsilon_bound,
            "total_shift_bound": self.total_shift_bound,
            "total_epsilon_bound": self._epsilon(self.total_shift_bound),
            "passed": self.passed,
            "not_covered": NOT_COVERED,
        }

    def public(self) -> dict[str, Any]:
        """Only what was set beforehand, and whether it was met."""
        return {
            "kind": self.kind,
            "guarantee": asdict(self.guarantee),
            "passed": self.passed and self.releasable,
            "releasable": self.releasable,
            "not_covered": NOT_COVERED,
            "version": self.version,
        }


@dataclass(frozen=True)
class ExactCertificate:
    """The exact certificate (the compact user part, and everything forgotten at once).

    ``statistics_digest`` is that of the integer sums of the retained records. A model never given the
    forgotten records has the same digest, and from equal sums one machine solves for equal weights.
    """

    statistics_digest: str
    weights_digest: str
    num_retained: int
    num_forgotten: int
    solve_residual: float
    kind: str = "exact"
    version: str = __version__

    passed = True
    passes = 0.0

    def private(self) -> dict[str, Any]:
        return {**asdict(self), "passed": True, "not_covered": NOT_COVERED}

    def public(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "statistics_digest": self.statistics_digest,
            "weights_digest": self.weights_digest,
            "num_retained": self.num_retained,
            "passed": True,
            "not_covered": NOT_COVERED,
            "version": self.version,
        }


Certificate = ShiftCertificate | ExactCertificate
