"""What is known before running: SGD's convergence, the paper's theorem, and sequences of requests.

The notation is that of ``bounds.py``: σ is a standard deviation, μ the ridge, β ≥ μ the largest
curvature of one record's loss, "errata k" entry k of docs/errata.md, our corrections of the paper.
These are the values that can be had without a result; ``bounds.distance_bound`` needs the result's gradient.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from enum import StrEnum

from efface.guarantee.bounds import check_nonnegative, kl, paper_sensitivity_bound, require


def paper_sgd_bound(
    initial_sq: float, *, mu: float, beta: float, sigma_l: float, batch_size: int, steps: int
) -> float:
    """E‖w_t − w*‖² ≤ (1 − μ²/β²)^t ‖w_0 − w*‖² + 2σ_ℓ/(Bβ), at learning rate μ/β².

    Theorem (SGD), right as printed (errata 13) for indices drawn iid *with* replacement and a
    constant rate without momentum: not for shuffled epochs (errata 14, 15). σ_ℓ = mean ℓ̂_i(w*) −
    mean min ℓ̂_i.
    """
    require(beta >= mu > 0, f"beta={beta}, mu={mu}.", "0 < mu <= beta")
    return _power(mu, beta, steps)[0] * initial_sq + 2 * sigma_l / (batch_size * beta)


def sgd_bound(
    initial_sq: float,
    *,
    learning_rate: float,
    mu: float,
    beta: float,
    sigma_l: float,
    batch_size: int,
    steps: int,
) -> float:
    """E‖w_t − w*‖² ≤ (1 − ημ)^t ‖w_0 − w*‖² + 2ηβσ_ℓ/(Bμ) for η ≤ 1/(2β) (errata 13).

    From ⟨e, ∇L⟩ ≥ L − L* + μ/2 ‖e‖² and E‖∇_B‖² ≤ 2β(L − L*) + 2βσ_ℓ/B: rate κ, not κ².
    Sampling as in `paper_sgd_bound`.
    """
    require(beta >= mu > 0, f"beta={beta}, mu={mu}.", "0 < mu <= beta")
    require(0 < learning_rate <= 0.5 / beta, f"rate {learning_rate}.", "use at most 1/(2 beta)")
    decay = math.exp(steps * math.log1p(-learning_rate * mu))
    return decay * initial_sq + 2 * learning_rate * beta * sigma_l / (batch_size * mu)


def _power(mu: float, beta: float, steps: int) -> tuple[float, float]:
    """(γ^τ, 1 − γ^τ) for γ = 1 − (μ/β)², both to full relative precision.

    γ^τ is never returned below the smallest normal float: a larger γ^τ only loosens a bound.
    """
    gap = (mu / beta) * (mu / beta)
    log_power = steps * math.log1p(-gap) if gap < 1 else (-math.inf if steps else 0.0)
    return max(math.exp(log_power), sys.float_info.min), -math.expm1(log_power)


@dataclass(frozen=True)
class TheoremInputs:
    """Constants of the paper's formal theorem; all are worst cases over the requests j ≤ K.

    ``beta`` ≥ λ_max(∇²ℓ̂_i), ridge included; ``M`` ≥ ℓ_i(0); ``sigma`` is the noise's standard
    deviation; ``sigma_l`` is σ_ℓ of the retraining objective (M is always large enough: L(w*) ≤
    L(0) ≤ M). ``residual_gradient_norm`` ≥ √(E‖g_r(w_{j−1})‖²), the noise in the state included:
    with it the forgetting step's own constant ‖g_r‖²/(2μ) is used (errata 16).
    """

    n: int
    b: int
    num_requests: int
    beta: float
    M: float
    mu: float
    sigma: float
    sigma_l: float
    d: int
    batch_size: int
    steps: int
    residual_gradient_norm: float | None = None

    def __post_init__(self) -> None:
        require(self.beta >= self.mu > 0, f"beta={self.beta}, mu={self.mu}.", "0 < mu <= beta")
        require(self.sigma > 0, f"sigma is {self.sigma}.", "the theorem needs noise")
        counts = (self.n, self.b, self.num_requests, self.d, self.batch_size)
        require(min(counts) >= 1 and self.steps >= 0, "a count is below 1.", "pass counts >= 1")
        require(self.b < self.n, f"{self.b} of {self.n} forgotten.", "keep at least one record")
        check_nonnegative("M or sigma_l", self.M, self.sigma_l)
        check_nonnegative("residual_gradient_norm", self.residual_gradient_norm or 0.0)

    @property
    def one_minus_gamma(self) -> float:
        """(μ/β)², to full precision where γ itself rounds to 1."""
        return (self.mu / self.beta) * (self.mu / self.beta)

    @property
    def sgd_constant(self) -> float:
        """max(σ_ℓ, ‖g_r‖²/(2μ)): serves the retraining and the forgetting run alike."""
        if self.residual_gradient_norm is None:
            return self.sigma_l
        return max(
            self.sigma_l, self.residual_gradient_norm * self.residual_gradient_norm / (2 * self.mu)
        )


@dataclass(frozen=True)
class AprioriBound:
    """The theorem's value, and what it says; ``reason`` explains ``vacuous`` either way."""

    nats_bound: float
    gamma: float
    alpha: float
    vacuous: bool
    reason: str
    assumptions: tuple[str, ...]


_PAPER_ASSUMPTIONS = (
    "quadratic losses, indices drawn iid with replacement, constant learning rate mu/beta^2, no "
    "momentum (errata 13-15)",
    "non-adaptive requests (errata 19)",
    "the reference is SGD retrained for T_j >= tau + 2 log(n_j mu/(4 b beta))/log(1/gamma) steps "
    "from 0 (errata 21)",
    "information is given D_r, in nats (errata 6)",
)


def paper_information_bound(inputs: TheoremInputs, vacuous_error: float = 1e-3) -> AprioriBound:
    """I(∪D_f^k; w_j | D_r) ≤ [γ^τ (2 + 1/α) ((S/σ)² + d) + 4s/(Bβσ²)] / (1 − (1+α)γ^τ).

    S = 8bβ√(2M)/(nμ^{3/2}). The formal theorem with its errors repaired: σ a standard deviation
    (errata 4, 5), the missing half (6), Kb ≤ n/2 checked (20). s is `TheoremInputs.sgd_constant`.
    Any α in (0, γ^{−τ} − 1) is valid; the best one has a closed form. *Vacuous* means: the bound
    leaves some attack a total error FPR + FNR below ``vacuous_error`` (`advantage_bound`; 6.2 nats
    for 1e-3). The bound holds for each fixed D_f, so this reading of it is sound.
    """
    gamma = 1 - inputs.one_minus_gamma
    notes = (*_PAPER_ASSUMPTIONS, _constant_note(inputs))
    if 2 * inputs.num_requests * inputs.b > inputs.n:
        reason = "K b > n/2: the theorem's hidden condition n_j >= n/2 fails (errata 20)"
        return AprioriBound(math.inf, gamma, math.nan, True, reason, notes)
    nats, alpha = _theorem_value(inputs)
    vacuous, reason = _verdict(nats, vacuous_error)
    return AprioriBound(nats, gamma, alpha, vacuous, reason, notes)


def _constant_note(inputs: TheoremInputs) -> str:
    if inputs.residual_gradient_norm is None:
        return (
            "sigma_l is taken to cover the forgetting step too, as printed: not proved, its own "
            "constant is up to |g_r|^2/(2 mu) (errata 16)"
        )
    return "residual_gradient_norm bounds the root mean square of g_r at every request (errata 16)"


def _theorem_value(inputs: TheoremInputs) -> tuple[float, float]:
    """(nats, α): minimise [pA(2 + 1/α) + Q] / (x − αp) over α, p = γ^τ, x = 1 − p.

    The stationary point is α = Ax / (Ap + √(A²p² + A(2pA + Q)x)); then αp ≤ x/2: nothing cancels.
    """
    p, x = _power(inputs.mu, inputs.beta, inputs.steps)
    s = 2 * paper_sensitivity_bound(inputs.b, inputs.n, inputs.beta, inputs.M, inputs.mu)
    scale = s / inputs.sigma
    A = scale * scale + inputs.d
    Q = 4 * inputs.sgd_constant / (inputs.batch_size * inputs.beta) / inputs.sigma / inputs.sigma
    if x <= 0 or not math.isfinite(A * A) or not math.isfinite(Q):
        return math.inf, math.nan
    alpha = A * x / (A * p + math.sqrt(A * p * A * p + A * (2 * p * A + Q) * x))
    nats = (p * A * (2 + 1 / alpha) + Q) / (x - alpha * p) if alpha > 0 else math.inf
    return (nats, alpha) if math.isfinite(nats) else (math.inf, alpha)


def _verdict(nats: float, vacuous_error: float) -> tuple[bool, str]:
    """(vacuous, why). 1 − √(1 − e^{−B}) is written so that it does not cancel."""
    tail = math.exp(-nats)
    error = max(tail / (1 + math.sqrt(1 - tail)), 1 - math.sqrt(nats / 2))
    if math.isinf(nats):
        return True, "the bound is infinite: gamma^tau is 1 to machine precision, or it overflows"
    if error < vacuous_error:
        return True, f"{nats:.3g} nats leave room for an attack with total error {error:.3g}"
    return False, f"every attack has a total error (FPR + FNR) of at least {error:.3g}"


@dataclass(frozen=True)
class RequestHistory:
    """What the theorem needs of a sequence of requests: their number, and worst cases over them.

    ``n`` is the size of the data before the first one, ``b`` the most records that one of them took out
    (or added: Lemma 4 does not care which of two sets is the older); ``beta`` and ``M`` hold for every
    record that was there at any request, the forgotten ones included.
    """

    num_requests: int = 0
    n: int = 0
    b: int = 0
    beta: float = 0.0
    M: float = 0.0

    def with_request(self, n: int, b: int, beta: float, M: float) -> RequestHistory:
        """One more request, from ``n`` records, that changes ``b`` of them.

        β and M are rounded up to powers of two: a larger constant is a constant too, and a rounded one
        tells nobody what the loss of the record that attains it was.
        """
        return RequestHistory(
            num_requests=self.num_requests + 1,
            n=self.n or n,
            b=max(self.b, b, 1),
            beta=max(self.beta, power_of_two_above(beta)),
            M=max(self.M, power_of_two_above(M)),
        )


def power_of_two_above(value: float) -> float:
    """The smallest power of two that is at least ``value``; 0 and infinity stay."""
    check_nonnegative("a constant", value)
    if value == 0 or math.isinf(value):
        return value
    fraction, exponent = math.frexp(value)  # value = fraction · 2^exponent, 1/2 ≤ fraction < 1
    return math.ldexp(1.0, exponent - 1 if fraction == 0.5 else exponent)


class StatePolicy(StrEnum):
    """What the next request starts from."""

    SECRET = "secret"
    NOISY = "noisy"

    @property
    def meaning(self) -> str:
        if self is StatePolicy.SECRET:
            return "the noiseless weights, kept secret"
        return "the released, noisy weights (the paper)"


@dataclass(frozen=True)
class SequentialBound:
    """A distance that holds at every request. ``shift_bound`` is None when it is root-mean-square.

    With ``failure_probability`` > 0 all values hold together, given the past, except with that
    probability: add it to δ.
    """

    distance_bound: float
    nats_bound: float
    shift_bound: float | None
    failure_probability: float
    assumptions: tuple[str, ...]


def minkowski_apriori_bound(
    policy: StatePolicy,
    *,
    rho: float,
    sensitivity: float,
    sigma: float,
    d: int,
    floor: float = 0.0,
    initial_error: float = 0.0,
    num_requests: int = 1,
    failure_probability: float | None = None,
) -> SequentialBound:
    """a_j ≤ ρ(a_{j−1} + s + ν) + √φ, so a_j ≤ max(a_∞, ρa_0 + c), c = ρ(s + ν) + √φ, a_∞ = c/(1−ρ).

    a_j = ‖w'_j − w*_j‖ (root mean square if a solver or the state is random): Minkowski where the
    paper has Young, so no α. s ≥ ‖w*_{j−1} − w*_j‖ is ``sensitivity``; φ is ``floor``, the solver's
    mean-square floor (0 promises a deterministic contraction by ρ); a_0 is ``initial_error``: the
    errata's form takes it to be below a_∞.
    NOISY: ν = σ√d, for non-adaptive requests; with ``failure_probability`` δ' ν = σ(√d +
    √(2 ln(K/δ'))) covers K adaptive ones, by the Gaussian tail of ‖ξ‖ and a union bound.
    SECRET: ν = 0, dimension-free, adaptive requests included.
    """
    require(0 <= rho < 1, f"rho is {rho}.", "the solver must contract: take more steps")
    check_nonnegative("a distance", sensitivity, floor, initial_error)
    require(sigma > 0 and d >= 1, f"sigma={sigma}, d={d}.", "pass positive values")
    high_probability = failure_probability is not None and policy is StatePolicy.NOISY
    require(
        not (high_probability and floor > 0),
        "a random solver has no high-probability form.",
        "use a deterministic solver (floor 0), or drop failure_probability",
    )
    noise, delta_prime = _state_noise(policy, sigma, d, num_requests, failure_probability)
    step = rho * (sensitivity + noise) + math.sqrt(floor)
    distance = max(step / (1 - rho), rho * initial_error + step)
    pointwise = floor == 0 and (policy is StatePolicy.SECRET or high_probability)
    return SequentialBound(
        distance_bound=distance,
        nats_bound=kl(distance / sigma),
        shift_bound=distance / sigma if pointwise else None,
        failure_probability=delta_prime,
        assumptions=(
            f"state: {policy.meaning}",
            "adaptive requests allowed"
            if high_probability or policy is StatePolicy.SECRET
            else "non-adaptive requests",
            "deterministic contraction by rho" if pointwise else "root-mean-square distances",
        ),
    )


def _state_noise(
    policy: StatePolicy, sigma: float, d: int, num_requests: int, failure: float | None
) -> tuple[float, float]:
    if policy is StatePolicy.SECRET:
        return 0.0, 0.0
    if failure is None:
        return sigma * math.sqrt(d), 0.0
    require(0 < failure < 1, f"failure probability {failure}.", "pass a value inside (0, 1)")
    require(num_requests >= 1, f"{num_requests} requests.", "pass at least 1")
    return sigma * (math.sqrt(d) + math.sqrt(2 * math.log(num_requests / failure))), failure
