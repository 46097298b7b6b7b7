"""What a distance in weight space says about privacy: every guarantee as a pure function.

One notation: L_D(w) = 1/(2n) Σ ‖f_i + J_i w − y_i‖² + μ/2 ‖w‖², H_D its Hessian, g_D its gradient,
w*_D its minimiser; D_r is retained, D_f forgotten, b = |D_f|. Noise is N(0, σ² I): σ is a standard
deviation everywhere (errata 4, 5). A *shift* m is ‖w' − w*_r‖ / σ: the release w' + σξ against the
ideal w*_r + σξ' is, after a rotation, N(m, 1) against N(0, 1). ``*_bound`` is proved, under the
assumptions its docstring names; "errata k" are our numbered corrections of the paper.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np
from scipy.special import erfcx, log_ndtr, ndtr, ndtri

from efface.errors import EffaceError

# Allowance for rounding in `delta`, times (1 + m) and its larger term: x = ε/m − m/2 carries an
# error of (m + 39) ulp while |x| < 39 (beyond, exp(−x²/2) underflows), and exp multiplies it by x.
_ROUNDING = 1e-12


def _require(condition: bool, message: str, fix: str) -> None:
    if not condition:
        raise EffaceError(message, fix)


def _check_nonnegative(what: str, *values: float) -> None:
    # one comparison per value: min() and max() can drop a NaN, and a bound with it
    _require(all(v >= 0 for v in values), f"{what} is negative or NaN.", "pass numbers >= 0")


def _check_shift(m: float) -> None:
    _require(m >= 0, f"the shift is {m}.", "pass a distance divided by sigma, at least 0")


# --- distances ---------------------------------------------------------------------------------


def distance_bound(gradient_norm: float, mu: float, gradient_error: float = 0.0) -> float:
    """‖w' − w*_r‖ ≤ (‖g_r(w')‖ + err) / μ, for any w', however it was obtained.

    L_r is quadratic, so H_r (w' − w*_r) = g_r(w') exactly, and H_r ⪰ μI.
    ``gradient_error`` bounds ‖computed − true gradient‖; the residual must be float64 (a float32
    one floors near 5e-5, numerics.md G).
    """
    _require(mu > 0, f"mu is {mu}.", "a ridge above 0 is what makes the problem certifiable")
    _check_nonnegative("a norm", gradient_norm, gradient_error)
    return (gradient_norm + gradient_error) / mu


def energy_distance_bound(g_dot_pinv_g: float, mu: float) -> float:
    """‖w' − w*_r‖ ≤ √(gᵀ(Ĉ + μI)⁻¹g / μ), with g = g_r(w') and Ĉ ⪯ C_r = H_r − μI.

    μ‖e‖² ≤ eᵀH_r e = gᵀH_r⁻¹g ≤ gᵀ(Ĉ + μI)⁻¹g. Never looser than `distance_bound` when Ĉ ⪰ 0.
    A Nyström sketch of C_r satisfies Ĉ ⪯ C_r; a K-FAC approximation or a sketch of other data
    does not. ``g_dot_pinv_g`` is gᵀ(Ĉ + μI)⁻¹g.
    """
    _require(mu > 0, f"mu is {mu}.", "a ridge above 0 is what makes the problem certifiable")
    _require(g_dot_pinv_g >= 0, "gᵀ(Ĉ+μ)⁻¹g is negative.", "the sketch is not positive")
    return math.sqrt(g_dot_pinv_g / mu)


def sensitivity_bound(b: int, n: int, forget_gradient_norm: float, mu: float) -> float:
    """‖w*_D − w*_r‖ ≤ b ‖g_f(w*_D)‖ / ((n − b) μ) (errata 10; replaces Lemma 4).

    (n−b) g_r = n g_D − b g_f with the ridge inside each, and g_D(w*_D) = 0; then `distance_bound`
    at w*_D. Only valid at the exact optimum of D. ``forget_gradient_norm`` is the *mean* gradient
    over D_f, ridge included: it needs the forget set alone.
    """
    _require(0 <= b < n, f"{b} of {n} records forgotten.", "keep at least one record")
    return b / (n - b) * distance_bound(forget_gradient_norm, mu)


def paper_sensitivity_bound(b: int, n: int, beta: float, M: float, mu: float) -> float:
    """Lemma 4: ‖w*_D − w*_r‖ ≤ 2bG/(nμ) with G ≤ 2β√(2M/μ), i.e. 4bβ√(2M) / (n μ^{3/2}).

    Proof repaired by errata 9–11: strong convexity of L_D (not L_f) at w*_D, and G of the loss
    *with* its ridge. β ≥ λ_max of every ∇²ℓ̂_i, M ≥ ℓ_i(0) ≥ 0.
    """
    _require(0 <= b < n, f"{b} of {n} records forgotten.", "keep at least one record")
    _require(beta >= mu > 0 and M >= 0, f"beta={beta}, mu={mu}, M={M}.", "0 < mu <= beta, M >= 0")
    return 4 * b * beta * math.sqrt(2 * M) / (n * mu * math.sqrt(mu))


# --- one Gaussian shift: N(m, 1) against N(0, 1), all exact ---------------------------------------


def kl(m: float) -> float:
    """KL = m²/2 nats."""
    _check_shift(m)
    return m * m / 2


def information_bound(m: float) -> float:
    """I(D_f; W | D_r) ≤ m²/2 nats, if ‖w' − w*_r‖ ≤ mσ always.

    Golden formula with Q = N(w*_r, σ²I): the half that the paper's bound misses, and conditional on
    D_r (errata 6); I(D_f; W) obeys it only if D_f and D_r are independent.
    """
    return kl(m)


def renyi(m: float, alpha: float) -> float:
    """Rényi divergence of order α: α m²/2 nats."""
    _require(alpha > 0, f"alpha is {alpha}.", "pass an order above 0")
    return alpha * kl(m)


def total_variation(m: float) -> float:
    """TV = 2Φ(m/2) − 1."""
    _check_shift(m)
    return math.erf(m / math.sqrt(8))


def best_advantage(m: float) -> float:
    """max over all attacks of TPR − FPR: the total variation."""
    return total_variation(m)


def best_auc(m: float) -> float:
    """Area under the ROC curve of the best attack: Φ(m/√2)."""
    _check_shift(m)
    return float(ndtr(m / math.sqrt(2)))


def tpr_at_fpr(m: float, fpr: float) -> float:
    """Power of the best attack at a false-positive rate (Neyman–Pearson): Φ(Φ⁻¹(fpr) + m)."""
    _check_shift(m)
    _require(0 <= fpr <= 1, f"fpr is {fpr}.", "pass a rate in [0, 1]")
    return float(ndtr(ndtri(fpr) + m)) if 0 < fpr < 1 else float(fpr)


def _mills(x: float) -> float:
    """R(x) = Φ(−x)/φ(x)."""
    return math.sqrt(math.pi / 2) * float(erfcx(x / math.sqrt(2)))


def delta(epsilon: float, m: float) -> float:
    """δ(ε) = Φ(m/2 − ε/m) − e^ε Φ(−m/2 − ε/m) (Balle & Wang 2018), rounded up.

    With t = ε/m, e^ε φ(t + m/2) = φ(t − m/2): δ = Φ(m/2 − t) − φ(t − m/2) R(t + m/2), R the Mills
    ratio, where no factor overflows, however large ε. An allowance of 1e-12 (1 + m) of the first
    term covers rounding, so the value is never below the true one.
    """
    _check_shift(m)
    _require(epsilon >= 0, f"epsilon is {epsilon}.", "pass epsilon >= 0")
    if m == 0:
        return 0.0
    if epsilon == 0:
        return min(1.0, total_variation(m) * (1 + _ROUNDING))
    if math.isinf(m):
        return 1.0
    low, high = epsilon / m - m / 2, epsilon / m + m / 2
    first = math.exp(float(log_ndtr(-low)))
    density = math.exp(-low * low / 2) / math.sqrt(2 * math.pi) if abs(low) < 39 else 0.0
    value = first - density * _mills(high)
    return min(1.0, max(value + _ROUNDING * (1 + m) * first, sys.float_info.min))


_delta = delta  # `epsilon` and `shift_for` take an argument of that name


def epsilon(delta: float, m: float) -> float:
    """Smallest ε ≥ 0 with δ(ε) ≤ ``delta``, rounded up (`delta` at it is met)."""
    _check_shift(m)
    _require(0 <= delta <= 1, f"delta is {delta}.", "pass a delta in [0, 1]")
    if _delta(0.0, m) <= delta:
        return 0.0
    if delta == 0 or math.isinf(m):
        return math.inf
    low, high = 0.0, m * (m / 2 - float(ndtri(delta)))  # δ(ε) ≤ Φ(m/2 − ε/m)
    while _delta(high, m) > delta:  # by rounding only: first guess is already an upper end
        high = 2 * high + m
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if _delta(middle, m) > delta else (low, middle)
    return high


def shift_for(epsilon: float, delta: float) -> float:
    """Largest m whose release is (ε, δ)-indistinguishable from the ideal one, rounded down."""
    _require(epsilon >= 0, f"epsilon is {epsilon}.", "pass epsilon >= 0")
    _require(0 <= delta <= 1, f"delta is {delta}.", "pass a delta in [0, 1]")
    if delta == 0:
        return 0.0
    if delta == 1 or math.isinf(epsilon):
        return math.inf
    low, high = 0.0, 1.0
    while _delta(epsilon, high) <= delta:
        low, high = high, 2 * high
    for _ in range(1200):  # enough to come down to the smallest normal float
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if _delta(epsilon, middle) <= delta else (low, middle)
    return low


def advantage_bound(nats: float) -> float:
    """TPR − FPR ≤ min(√(KL/2), √(1 − e^{−KL})): Pinsker, and Bretagnolle & Huber."""
    _require(nats >= 0, f"the divergence is {nats}.", "pass nats >= 0")
    return min(math.sqrt(nats / 2), math.sqrt(-math.expm1(-nats)))


# --- releases on a grid, and several releases -----------------------------------------------------


def grid_shift(m: float, grid: float, d: int, sigma: float) -> float:
    """m + γ√d/σ: both centres move by at most γ√d/2 when they are rounded to the grid γ.

    With discrete Gaussian noise KL ≤ m²/2 and Rényi_α ≤ αm²/2 hold for the result (lattice shifts,
    Canonne, Kamath & Steinke 2020). TV, AUC, TPR and `delta` are exact for continuous noise only:
    on the lattice they can be larger by a relative O((γ/σ)²). The proved forms are
    `grid_epsilon_bound` and `advantage_bound`.
    """
    _check_shift(m)
    _require(grid > 0 and d > 0 and sigma > 0, f"grid={grid}, d={d}, sigma={sigma}.", "all above 0")
    return m + grid * math.sqrt(d) / sigma


def grid_epsilon_bound(delta: float, m: float) -> float:
    """ε = min_α αm²/2 + (ln(1/δ) − ln α)/(α−1) + ln(1 − 1/α): from the Rényi curve alone.

    Valid at each α > 1 (Canonne, Kamath & Steinke 2020, Prop. 12), hence for a minimum over any set
    of them. ``m`` comes from `grid_shift`.
    """
    _check_shift(m)
    _require(0 < delta < 1, f"delta is {delta}.", "pass a delta inside (0, 1)")
    if m == 0:
        return 0.0
    excess = np.logspace(-3, 8, 8000)  # α − 1
    alpha = 1 + excess
    values = alpha * kl(m) + (-math.log(delta) - np.log(alpha)) / excess
    return max(0.0, float(np.min(values + np.log(excess / alpha))))


def total_shift(ms: Iterable[float]) -> float:
    """√(Σ m_k²): shift of all releases seen together (Dong, Roth & Su), adaptive ones included.

    Needs fresh noise each time, and each certificate to hold given the past transcript.
    """
    values = [float(m) for m in ms]
    for m in values:
        _check_shift(m)
    return math.hypot(*values)


def schedule(m_total: float, k: int) -> float:
    """m_k = m_total √6 / (πk), k = 1, 2, …: Σ m_k² = m_total² over infinitely many releases."""
    _check_shift(m_total)
    _require(k >= 1, f"release number {k}.", "count releases from 1")
    return m_total * math.sqrt(6) / (math.pi * k)


# --- before running: SGD and the paper's theorem --------------------------------------------------


def paper_sgd_bound(
    initial_sq: float, *, mu: float, beta: float, sigma_l: float, batch_size: int, steps: int
) -> float:
    """E‖w_t − w*‖² ≤ (1 − μ²/β²)^t ‖w_0 − w*‖² + 2σ_ℓ/(Bβ), at learning rate μ/β².

    Theorem (SGD), right as printed (errata 13) for indices drawn iid *with* replacement and a
    constant rate without momentum: not for shuffled epochs (errata 14, 15). σ_ℓ = mean ℓ̂_i(w*) −
    mean min ℓ̂_i.
    """
    _require(beta >= mu > 0, f"beta={beta}, mu={mu}.", "0 < mu <= beta")
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
    _require(beta >= mu > 0, f"beta={beta}, mu={mu}.", "0 < mu <= beta")
    _require(0 < learning_rate <= 0.5 / beta, f"rate {learning_rate}.", "use at most 1/(2 beta)")
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
        _require(self.beta >= self.mu > 0, f"beta={self.beta}, mu={self.mu}.", "0 < mu <= beta")
        _require(self.sigma > 0, f"sigma is {self.sigma}.", "the theorem needs noise")
        counts = (self.n, self.b, self.num_requests, self.d, self.batch_size)
        _require(min(counts) >= 1 and self.steps >= 0, "a count is below 1.", "pass counts >= 1")
        _require(self.b < self.n, f"{self.b} of {self.n} forgotten.", "keep at least one record")
        _check_nonnegative("M or sigma_l", self.M, self.sigma_l)
        _check_nonnegative("residual_gradient_norm", self.residual_gradient_norm or 0.0)

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


class StatePolicy(Enum):
    """What the next request starts from."""

    NOISY = "the released, noisy weights (the paper)"
    SECRET = "the noiseless weights, kept secret"


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
    _require(0 <= rho < 1, f"rho is {rho}.", "the solver must contract: take more steps")
    _check_nonnegative("a distance", sensitivity, floor, initial_error)
    _require(sigma > 0 and d >= 1, f"sigma={sigma}, d={d}.", "pass positive values")
    high_probability = failure_probability is not None and policy is StatePolicy.NOISY
    _require(
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
            f"state: {policy.value}",
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
    _require(0 < failure < 1, f"failure probability {failure}.", "pass a value inside (0, 1)")
    _require(num_requests >= 1, f"{num_requests} requests.", "pass at least 1")
    return sigma * (math.sqrt(d) + math.sqrt(2 * math.log(num_requests / failure))), failure
