"""What a distance in weight space says about privacy: every guarantee as a pure function.

One notation: L_D(w) = 1/(2n) Σ ‖f_i + J_i w − y_i‖² + μ/2 ‖w‖², H_D its Hessian, g_D its gradient,
w*_D its minimiser; D_r is retained, D_f forgotten, b = |D_f|. Noise is N(0, σ² I): σ is a standard
deviation everywhere (errata 4, 5). A *shift* m is ‖w' − w*_r‖ / σ: the release w' + σξ against the
ideal w*_r + σξ' is, after a rotation, N(m, 1) against N(0, 1). ``*_bound`` is proved, under the
assumptions its docstring names; "errata k" is entry k of docs/errata.md, our
corrections of the paper.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from efface.errors import EffaceError

# Allowance for rounding in `delta`, times (1 + m) and its larger term: x = ε/m − m/2 carries an
# error of (m + 39) ulp while |x| < 39 (beyond, exp(−x²/2) underflows), and exp multiplies it by x.
_ROUNDING = 1e-12


def _special() -> Any:
    """Loaded when it is used: an exact request does not."""
    from scipy import special

    return special


def require(condition: bool, message: str, fix: str) -> None:
    if not condition:
        raise EffaceError(message, fix)


def check_nonnegative(what: str, *values: float) -> None:
    # one comparison per value: min() and max() can drop a NaN, and a bound with it
    require(all(v >= 0 for v in values), f"{what} is negative or NaN.", "pass numbers >= 0")


def _check_shift(m: float) -> None:
    require(m >= 0, f"the shift is {m}.", "pass a distance divided by sigma, at least 0")


# --- distances ---------------------------------------------------------------------------------


def distance_bound(gradient_norm: float, mu: float, gradient_error: float = 0.0) -> float:
    """‖w' − w*_r‖ ≤ (‖g_r(w')‖ + err) / μ, for any w', however it was obtained.

    L_r is quadratic, so H_r (w' − w*_r) = g_r(w') exactly, and H_r ⪰ μI.
    ``gradient_error`` bounds ‖computed − true gradient‖; the residual must be float64 (a float32
    one stops falling near 5e-5).
    """
    require(mu > 0, f"mu is {mu}.", "a ridge above 0 is what makes the problem certifiable")
    check_nonnegative("a norm", gradient_norm, gradient_error)
    return (gradient_norm + gradient_error) / mu


def energy_distance_bound(g_dot_pinv_g: float, mu: float) -> float:
    """‖w' − w*_r‖ ≤ √(gᵀ(Ĉ + μI)⁻¹g / μ), with g = g_r(w') and Ĉ ⪯ C_r = H_r − μI.

    μ‖e‖² ≤ eᵀH_r e = gᵀH_r⁻¹g ≤ gᵀ(Ĉ + μI)⁻¹g. Never looser than `distance_bound` when Ĉ ⪰ 0.
    A Nyström sketch of C_r satisfies Ĉ ⪯ C_r; a K-FAC approximation or a sketch of other data
    does not. ``g_dot_pinv_g`` is gᵀ(Ĉ + μI)⁻¹g.
    """
    require(mu > 0, f"mu is {mu}.", "a ridge above 0 is what makes the problem certifiable")
    require(g_dot_pinv_g >= 0, "gᵀ(Ĉ+μ)⁻¹g is negative.", "the sketch is not positive")
    return math.sqrt(g_dot_pinv_g / mu)


def sensitivity_bound(b: int, n: int, forget_gradient_norm: float, mu: float) -> float:
    """‖w*_D − w*_r‖ ≤ b ‖g_f(w*_D)‖ / ((n − b) μ) (errata 10; replaces Lemma 4).

    (n−b) g_r = n g_D − b g_f with the ridge inside each, and g_D(w*_D) = 0; then `distance_bound`
    at w*_D. Only valid at the exact optimum of D. ``forget_gradient_norm`` is the *mean* gradient
    over D_f, ridge included: it needs the forget set alone.
    """
    require(0 <= b < n, f"{b} of {n} records forgotten.", "keep at least one record")
    return b / (n - b) * distance_bound(forget_gradient_norm, mu)


def paper_sensitivity_bound(b: int, n: int, beta: float, M: float, mu: float) -> float:
    """Lemma 4: ‖w*_D − w*_r‖ ≤ 2bG/(nμ) with G ≤ 2β√(2M/μ), i.e. 4bβ√(2M) / (n μ^{3/2}).

    Proof repaired by errata 9–11: strong convexity of L_D (not L_f) at w*_D, and G of the loss
    *with* its ridge. β ≥ λ_max of every ∇²ℓ̂_i, M ≥ ℓ_i(0) ≥ 0.
    """
    require(0 <= b < n, f"{b} of {n} records forgotten.", "keep at least one record")
    require(beta >= mu > 0 and M >= 0, f"beta={beta}, mu={mu}, M={M}.", "0 < mu <= beta, M >= 0")
    return 4 * b * beta * math.sqrt(2 * M) / (n * mu * math.sqrt(mu))


def probed_eigenvalue_bound(probed: float, probes: int, failure_probability: float) -> float:
    """λ_max(J Jᵀ) ≤ λ_max(J V VᵀJᵀ) / q, V (d, p) standard normal, q the δ'-quantile of χ²_p.

    For the top eigenvector u, λ_max(J V VᵀJᵀ) ≥ ‖VᵀJᵀu‖², and Jᵀu is a vector of norm √λ_max that V
    does not depend on: the right side is λ_max times a χ² of p degrees, below q with probability δ'
    only. ``probed`` is λ_max(J V VᵀJᵀ). For n matrices at once pass δ'/n (a union bound); V may be the
    same for all. The quantile is rounded down by 1e-9 to cover its own rounding.
    """
    check_nonnegative("an eigenvalue", probed)
    require(probes >= 1, f"{probes} probes.", "use at least 1")
    require(0 < failure_probability < 1, f"it is {failure_probability}.", "pass one inside (0, 1)")
    quantile = 2 * float(_special().gammaincinv(probes / 2, failure_probability)) * (1 - 1e-9)
    return probed / quantile if quantile > 0 else math.inf


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
    require(alpha > 0, f"alpha is {alpha}.", "pass an order above 0")
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
    return float(_special().ndtr(m / math.sqrt(2)))


def tpr_at_fpr(m: float, fpr: float) -> float:
    """Power of the best attack at a false-positive rate (Neyman–Pearson): Φ(Φ⁻¹(fpr) + m)."""
    _check_shift(m)
    require(0 <= fpr <= 1, f"fpr is {fpr}.", "pass a rate in [0, 1]")
    return float(_special().ndtr(_special().ndtri(fpr) + m)) if 0 < fpr < 1 else float(fpr)


def _mills(x: float) -> float:
    """R(x) = Φ(−x)/φ(x)."""
    return math.sqrt(math.pi / 2) * float(_special().erfcx(x / math.sqrt(2)))


def delta(epsilon: float, m: float) -> float:
    """δ(ε) = Φ(m/2 − ε/m) − e^ε Φ(−m/2 − ε/m) (Balle & Wang 2018), rounded up.

    With t = ε/m, e^ε φ(t + m/2) = φ(t − m/2): δ = Φ(m/2 − t) − φ(t − m/2) R(t + m/2), R the Mills
    ratio, where no factor overflows, however large ε. An allowance of 1e-12 (1 + m) of the first
    term covers rounding, so the value is never below the true one.
    """
    _check_shift(m)
    require(epsilon >= 0, f"epsilon is {epsilon}.", "pass epsilon >= 0")
    if m == 0:
        return 0.0
    if epsilon == 0:
        return min(1.0, total_variation(m) * (1 + _ROUNDING))
    if math.isinf(m):
        return 1.0
    low, high = epsilon / m - m / 2, epsilon / m + m / 2
    first = math.exp(float(_special().log_ndtr(-low)))
    density = math.exp(-low * low / 2) / math.sqrt(2 * math.pi) if abs(low) < 39 else 0.0
    value = first - density * _mills(high)
    return min(1.0, max(value + _ROUNDING * (1 + m) * first, sys.float_info.min))


_delta = delta  # `epsilon` and `shift_for` take an argument of that name


def epsilon(delta: float, m: float) -> float:
    """Smallest ε ≥ 0 with δ(ε) ≤ ``delta``, rounded up (`delta` at it is met)."""
    _check_shift(m)
    require(0 <= delta <= 1, f"delta is {delta}.", "pass a delta in [0, 1]")
    if _delta(0.0, m) <= delta:
        return 0.0
    if delta == 0 or math.isinf(m):
        return math.inf
    low, high = 0.0, m * (m / 2 - float(_special().ndtri(delta)))  # δ(ε) ≤ Φ(m/2 − ε/m)
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
    require(epsilon >= 0, f"epsilon is {epsilon}.", "pass epsilon >= 0")
    require(0 <= delta <= 1, f"delta is {delta}.", "pass a delta in [0, 1]")
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
    require(nats >= 0, f"the divergence is {nats}.", "pass nats >= 0")
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
    require(grid > 0 and d > 0 and sigma > 0, f"grid={grid}, d={d}, sigma={sigma}.", "all above 0")
    return m + grid * math.sqrt(d) / sigma


def grid_epsilon_bound(delta: float, m: float) -> float:
    """ε = min_α αm²/2 + (ln(1/δ) − ln α)/(α−1) + ln(1 − 1/α): from the Rényi curve alone.

    Valid at each α > 1 (Canonne, Kamath & Steinke 2020, Prop. 12), hence for a minimum over any set
    of them. ``m`` comes from `grid_shift`.
    """
    _check_shift(m)
    require(0 < delta < 1, f"delta is {delta}.", "pass a delta inside (0, 1)")
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
    require(k >= 1, f"release number {k}.", "count releases from 1")
    return m_total * math.sqrt(6) / (math.pi * k)
