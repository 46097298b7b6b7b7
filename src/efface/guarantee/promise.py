"""What is promised before any request: ε, δ, the size of the noise and its grid."""

from __future__ import annotations

import math
from dataclasses import dataclass

from efface.errors import EffaceError, GuaranteeError
from efface.guarantee import bounds, noise
from efface.guarantee.apriori import StatePolicy

SAMPLER_ERROR = 2.0**-46  # in total variation, a coordinate: see `noise.discrete_gaussian`


def sampler_cost(epsilon: float, d: int, num_releases: int = 1) -> float:
    """(1 + e^ε)·K·d·2⁻⁴⁶: what the sampler of the noise costs of δ in K releases of d weights.

    With laws P', Q' within η = K d 2⁻⁴⁶ of the ideal P, Q in total variation,
    P'(S) ≤ P(S) + η ≤ e^ε Q(S) + δ + η ≤ e^ε Q'(S) + δ + (1 + e^ε) η.
    """
    return (1 + math.exp(min(epsilon, 700.0))) * num_releases * d * SAMPLER_ERROR


def sampler_delta(delta: float, epsilon: float, d: int, num_releases: int = 1) -> float:
    """δ less the `sampler_cost`; not positive where nothing is left."""
    return delta - sampler_cost(epsilon, d, num_releases)


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ)-indistinguishability from retraining without the records, through noise N(0, σ²I).

    It holds when the shift m = ‖w − w*_r‖/σ is at most ``shift``; the solver must therefore bring the
    gradient on the retained data to ‖g_r‖ ≤ m σ μ. All of it is fixed before the request and public.
    ``state`` says what the next request starts from; the guarantee is the same either way, since it is
    about the final weights of a request, wherever they were solved from.
    """

    epsilon: float
    delta: float
    sigma: float
    grid: float
    state: StatePolicy = StatePolicy.SECRET

    def __post_init__(self) -> None:
        if self.state not in list(StatePolicy):
            names = " or ".join(StatePolicy)
            raise EffaceError(f"unknown state policy {self.state!r}.", f"use {names}.")
        object.__setattr__(self, "state", StatePolicy(self.state))  # from JSON it is a word

    @classmethod
    def plan(
        cls,
        epsilon: float,
        delta: float,
        sigma: float,
        d: int,
        state: StatePolicy | str = StatePolicy.SECRET,
    ) -> Guarantee:
        """σ is the caller's (from core data: see ``sigma_for``), the grid is as fine as it needs be."""
        if not (0 < epsilon < math.inf and 0 < delta < 1 and 0 < sigma < math.inf):
            raise EffaceError(
                f"no guarantee with epsilon {epsilon}, delta {delta}, sigma {sigma}.",
                "all are positive and finite, and delta is below 1.",
            )
        if sampler_delta(delta, epsilon, d) <= 0:
            cost = sampler_cost(epsilon, d)
            raise EffaceError(
                f"delta {delta:g} is below what the noise's sampler can promise for {d} weights at epsilon "
                f"{epsilon:g}.",
                f"use a delta above {cost:.1g}, or a smaller epsilon.",
            )
        return cls(epsilon, delta, sigma, noise.grid_for(sigma, d), state)  # type: ignore[arg-type]

    def shift(self, d: int) -> float:
        """The largest m before rounding to the grid that still gives (ε, δ) after it, rounded down."""
        delta = sampler_delta(self.delta, self.epsilon, d)
        if delta <= 0:
            raise GuaranteeError(
                f"the noise's sampler alone spends delta {self.delta:g} at epsilon {self.epsilon:g}.",
                "plan a larger delta or a smaller epsilon.",
            )
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

    def shift_bound(self, distance: float, d: int) -> float:
        """m of two noisy releases whose weights are at most ``distance`` apart, the grid included."""
        return bounds.grid_shift(distance / self.sigma, self.grid, d, self.sigma)

    def planned_shift(self, d: int) -> float:
        """What ``shift`` is at most for every release that passes, the grid included; fixed beforehand."""
        return bounds.grid_shift(self.shift(d), self.grid, d, self.sigma)

    def epsilon_bound(self, shift: float, d: int, num_releases: int = 1) -> float:
        """ε at this guarantee's δ, proved for noise on a grid; infinite if δ does not allow for any.

        The sampler's share of δ grows with ε, so it is the least ε with ε ≥ ε_grid(δ − cost(ε)), found
        from below and rounded up.
        """
        epsilon = 0.0
        for _ in range(200):
            delta = sampler_delta(self.delta, epsilon, d, num_releases)
            if delta <= 0:
                return math.inf
            needed = bounds.grid_epsilon_bound(delta, shift)
            if needed <= epsilon:
                met = num_releases == 1 and self.is_met(shift, d)
                return min(epsilon, self.epsilon) if met else epsilon
            epsilon = needed * (1 + 1e-9)
        return math.inf

    def is_met(self, shift: float, d: int) -> bool:
        """Whether one release at this shift keeps the promise: ε_grid(δ − cost(ε)) ≤ ε."""
        delta = sampler_delta(self.delta, self.epsilon, d)
        return delta > 0 and bounds.grid_epsilon_bound(delta, shift) <= self.epsilon

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
