"""Every bound against a problem small enough to know the truth, every conversion against its
definition (an integral, a simulation, an exact lattice sum)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm
from tests.reference import Ridge

from efface.errors import EffaceError
from efface.guarantee import bounds

ROUNDING = 1 + 1e-9  # float64 solves of well-conditioned problems with d <= 6
shifts = st.floats(1e-4, 8)
deltas = st.floats(1e-12, 0.3)


@st.composite
def ridges(draw: st.DrawFn) -> tuple[Ridge, int, np.random.Generator]:
    """A problem, the size of its forget set (its first records), and a source of weights."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, d = draw(st.integers(2, 12)), draw(st.integers(1, 6))
    scale = 10 ** rng.uniform(-1.5, 1.5, size=d)  # uneven spectrum: μ is far from the typical λ
    y = rng.normal(size=n) * 10 ** draw(st.floats(-1, 2))
    ridge = Ridge(rng.normal(size=(n, d)) * scale, y, 10 ** draw(st.floats(-3, 1)))
    return ridge, draw(st.integers(1, n - 1)), rng


# --- distances ---


@settings(max_examples=150, deadline=None)
@given(ridges())
def test_no_weights_are_farther_than_certified(
    case: tuple[Ridge, int, np.random.Generator],
) -> None:
    ridge, _, rng = case
    best, hessian = ridge.minimiser(), ridge.hessian()
    for size in (1e-3, 1.0, 1e3):
        w = best + size * rng.normal(size=best.size)
        g = ridge.gradient(w)
        true = np.linalg.norm(w - best)
        plain = bounds.distance_bound(float(np.linalg.norm(g)), ridge.mu)
        assert true <= plain * ROUNDING
        sketch = rng.uniform() * (hessian - ridge.mu * np.eye(best.size))  # ⪯ C
        energy = g @ np.linalg.solve(sketch + ridge.mu * np.eye(best.size), g)
        tighter = bounds.energy_distance_bound(float(energy), ridge.mu)
        assert true <= tighter * ROUNDING
        assert tighter <= plain * ROUNDING


def test_distance_bound_is_attained_along_the_flattest_direction() -> None:
    ridge = Ridge(np.array([[3.0, 0.0]]), np.array([1.0]), 0.5)  # λ = 9.5 and 0.5
    w = ridge.minimiser() + np.array([0.0, 2.0])
    assert bounds.distance_bound(float(np.linalg.norm(ridge.gradient(w))), 0.5) == pytest.approx(2)
    assert bounds.distance_bound(1.0, 0.5, gradient_error=0.25) == 2.5


@settings(max_examples=150, deadline=None)
@given(ridges())
def test_no_forget_set_moves_the_optimum_more_than_either_sensitivity(
    case: tuple[Ridge, int, np.random.Generator],
) -> None:
    ridge, b, _ = case
    n, best = len(ridge.y), ridge.minimiser()
    moved = np.linalg.norm(best - ridge.without(b).minimiser())
    forget = float(np.linalg.norm(ridge.only(b).gradient(best)))
    ours = bounds.sensitivity_bound(b, n, forget, ridge.mu)
    paper = bounds.paper_sensitivity_bound(
        b, n, ridge.beta(), float(np.max(ridge.y**2)) / 2, ridge.mu
    )
    # 1e-9 absolute: with b of n records the optimum can stay where it is, to rounding
    assert moved <= ours * ROUNDING + 1e-9
    assert moved <= paper * ROUNDING + 1e-9
    assert ours == pytest.approx(
        bounds.distance_bound(float(np.linalg.norm(ridge.without(b).gradient(best))), ridge.mu),
        rel=1e-6,
        abs=1e-9,
    )


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("probes", [1, 4, 8])
def test_probed_eigenvalues_are_too_small_as_rarely_as_promised(probes: int, rank: int) -> None:
    rng, runs, failure = np.random.default_rng(3), 4000, 0.1
    jac = rng.normal(size=(rank, 12))
    true = np.linalg.eigvalsh(jac @ jac.T)[-1]
    moved = jac @ rng.normal(size=(runs, 12, probes))
    probed = np.linalg.eigvalsh(moved @ moved.transpose(0, 2, 1))[:, -1]
    found = [bounds.probed_eigenvalue_bound(value, probes, failure) for value in probed]
    rate = float(np.mean(np.array(found) < true))
    assert rate <= failure + 4 * math.sqrt(failure / runs)
    if rank == 1:  # the probed value is λ χ²_p exactly: the bound is not looser than it says
        assert rate >= failure - 4 * math.sqrt(failure / runs)
    assert bounds.probed_eigenvalue_bound(1.0, probes, 1e-300) > 1e3


def test_probes_that_cannot_be() -> None:
    for probed, probes, failure in ((-1.0, 4, 0.1), (math.nan, 4, 0.1), (1, 0, 0.1), (1, 4, 0.0)):
        with pytest.raises(EffaceError):
            bounds.probed_eigenvalue_bound(probed, probes, failure)


# --- the Gaussian shift ---


@pytest.mark.parametrize(
    ("m", "kl", "tv", "eps"),
    [(0.03, 4.5e-4, 0.012, 0.09), (0.1, 0.005, 0.040, 0.34), (0.3, 0.045, 0.119, 1.13)],
)
def test_numbers_of_the_notes(m: float, kl: float, tv: float, eps: float) -> None:
    assert bounds.kl(m) == pytest.approx(kl)
    assert bounds.information_bound(m) == bounds.kl(m)
    assert bounds.renyi(m, 3) == pytest.approx(3 * kl)
    assert bounds.total_variation(m) == pytest.approx(tv, abs=5e-4)
    assert bounds.epsilon(1e-5, m) == pytest.approx(eps, abs=5e-3)


def test_epsilon_one_allows_a_shift_of_0268() -> None:
    assert bounds.shift_for(1, 1e-5) == pytest.approx(0.268, abs=5e-4)
    assert bounds.epsilon(1e-5, 1.0) == pytest.approx(4.4, abs=0.05)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.05, 5), st.floats(0, 6))
def test_delta_is_the_hockey_stick_integral(m: float, eps: float) -> None:
    def excess(x: float) -> float:
        return norm.pdf(x - m) - math.exp(eps) * norm.pdf(x)

    start = eps / m + m / 2  # the densities cross here: below it the positive part is 0
    value, error = quad(excess, start, max(start, m) + 12, epsabs=1e-13, epsrel=1e-10, limit=200)
    assert bounds.delta(eps, m) == pytest.approx(value, rel=1e-6, abs=10 * error + 1e-11)


@given(st.floats(1e-4, 30), st.floats(0, 500))
def test_delta_in_the_tails_is_a_probability_and_monotone(m: float, eps: float) -> None:
    value = bounds.delta(eps, m)
    assert 0 < value <= 1
    # 1e-9: neighbours may differ by the rounding allowance
    assert bounds.delta(eps + 0.1, m) <= value * (1 + 1e-9)
    assert bounds.delta(eps, m * 1.1) >= value * (1 - 1e-9)


def test_delta_is_accurate_where_the_plain_formula_is_not() -> None:
    # mpmath, 60 digits: the naive difference of the two terms is 0 or overflows here
    mp = pytest.importorskip("mpmath")
    with mp.workdps(60):
        for eps, m in [(50, 2.0), (800, 10.0), (3, 0.1), (0.01, 1e-3), (700, 36.0)]:
            e, s = mp.mpf(eps), mp.mpf(m)
            exact = mp.ncdf(s / 2 - e / s) - mp.exp(e) * mp.ncdf(-s / 2 - e / s)
            value = bounds.delta(eps, m)
            assert value >= exact  # rounded up
            assert value == pytest.approx(float(exact), rel=1e-6)


@settings(max_examples=80, deadline=None)
@given(shifts, deltas)
def test_epsilon_and_shift_invert_delta_on_the_safe_side(m: float, delta: float) -> None:
    eps = bounds.epsilon(delta, m)
    assert bounds.delta(eps, m) <= delta
    if eps > 0:
        assert bounds.delta(eps * (1 - 1e-6), m) > delta
        back = bounds.shift_for(eps, delta)
        assert bounds.delta(eps, back) <= delta
        assert back == pytest.approx(m, rel=1e-6)


@settings(max_examples=80, deadline=None)
@given(shifts, deltas, st.floats(1.01, 3))
def test_more_distance_means_less_privacy(m: float, delta: float, factor: float) -> None:
    for conversion in (bounds.kl, bounds.total_variation, bounds.best_auc):
        assert conversion(m * factor) >= conversion(m)
    assert bounds.tpr_at_fpr(m * factor, 0.01) >= bounds.tpr_at_fpr(m, 0.01)
    assert bounds.epsilon(delta, m * factor) >= bounds.epsilon(delta, m)
    assert bounds.epsilon(delta / factor, m) >= bounds.epsilon(delta, m)
    assert bounds.shift_for(1.0, delta) >= bounds.shift_for(1.0, delta / factor)


def test_ends_of_the_range() -> None:
    assert bounds.delta(0.5, 0.0) == 0
    assert bounds.epsilon(1e-5, 0.0) == 0
    assert bounds.epsilon(0.0, 0.1) == math.inf
    assert bounds.epsilon(0.5, 0.1) == 0
    assert bounds.shift_for(1.0, 0.0) == 0
    assert bounds.shift_for(1.0, 1.0) == math.inf
    assert bounds.delta(0.0, 0.4) == pytest.approx(bounds.best_advantage(0.4))
    assert bounds.shift_for(0.0, 1e-200) == pytest.approx(math.sqrt(2 * math.pi) * 1e-200)
    assert (bounds.tpr_at_fpr(1.0, 0.0), bounds.tpr_at_fpr(1.0, 1.0)) == (0, 1)
    with pytest.raises(EffaceError, match="shift"):
        bounds.kl(-1.0)


@pytest.mark.parametrize("m", [0.05, 0.7, 2.5])
def test_the_best_attack_has_the_stated_auc_and_power(m: float) -> None:
    # AUC = P(score of a member > score of a non-member), the score being x itself
    auc, _ = quad(lambda x: norm.pdf(x - m) * norm.cdf(x), -12, 12 + m)
    assert bounds.best_auc(m) == pytest.approx(auc, abs=1e-9)
    rng = np.random.default_rng(0)
    out, inside = rng.normal(size=400_000), m + rng.normal(size=400_000)
    for fpr in (0.01, 0.2):
        power = np.mean(inside > np.quantile(out, 1 - fpr))
        assert bounds.tpr_at_fpr(m, fpr) == pytest.approx(power, abs=5e-3)  # 5 standard errors
    gap = max(np.mean(inside > c) - np.mean(out > c) for c in np.linspace(-1, 4, 101))
    assert bounds.best_advantage(m) == pytest.approx(gap, abs=6e-3)


@given(st.floats(1e-150, 50))  # below, m² underflows
def test_advantage_bound_covers_the_exact_advantage(m: float) -> None:
    assert bounds.total_variation(m) <= bounds.advantage_bound(bounds.kl(m)) <= 1


# --- grids and sequences ---


def test_composition_is_one_gaussian_of_the_total_shift() -> None:
    ms = np.array([0.3, 0.8, 0.5])
    total = bounds.total_shift(ms)
    assert total == pytest.approx(math.sqrt(0.98))
    x = ms + np.random.default_rng(1).normal(size=(300_000, 3))
    log_ratio = x @ ms - ms @ ms / 2
    for eps in (0.0, 0.5, 2.0):
        excess = np.maximum(0, -np.expm1(eps - log_ratio))
        error = 5 * excess.std() / math.sqrt(len(excess))
        assert bounds.delta(eps, total) == pytest.approx(excess.mean(), abs=error)


def test_schedule_spends_the_budget_and_no_more() -> None:
    spent = bounds.total_shift(bounds.schedule(0.7, k) for k in range(1, 5001))
    assert 0.7 * (1 - 1e-3) < spent < 0.7
    assert bounds.schedule(0.7, 1) == pytest.approx(0.7 * math.sqrt(6) / math.pi)


def lattice(s: float, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Discrete Gaussians of scale s at ``shift`` and 0, on all integers that carry mass."""
    k = np.arange(-int(40 * s) - shift, int(40 * s) + 2 * shift + 1)
    p, q = np.exp(-(((k - shift) / s) ** 2) / 2), np.exp(-((k / s) ** 2) / 2)
    return p / p.sum(), q / q.sum()


@pytest.mark.parametrize(("s", "shift"), [(1.0, 1), (4.0, 1), (4.0, 3), (10.0, 12), (50.0, 7)])
def test_grid_epsilon_covers_the_exact_lattice_pair(s: float, shift: int) -> None:
    p, q = lattice(s, shift)
    m = shift / s
    for delta in (1e-7, 1e-3):
        eps = bounds.grid_epsilon_bound(delta, m)
        assert np.maximum(0, p - math.exp(eps) * q).sum() <= delta
        assert eps >= bounds.epsilon(delta, m) * 0.999
    mass = (p > 0) & (q > 0)
    assert np.sum(p[mass] * np.log(p[mass] / q[mass])) == pytest.approx(bounds.kl(m), rel=1e-9)
    assert np.abs(p - q).sum() / 2 <= bounds.advantage_bound(bounds.kl(m))


def test_continuous_conversions_are_not_bounds_on_a_lattice() -> None:
    p, q = lattice(2.0, 1)
    assert np.abs(p - q).sum() / 2 > bounds.total_variation(0.5)


def test_grid_shift_covers_rounding_both_centres() -> None:
    rng = np.random.default_rng(2)
    grid, sigma, d = 0.25, 0.5, 9
    a, b = rng.normal(size=(2, 500, d))
    moved = np.linalg.norm(np.rint(a / grid) * grid - np.rint(b / grid) * grid, axis=1) / sigma
    before = np.linalg.norm(a - b, axis=1) / sigma
    assert all(
        x <= bounds.grid_shift(y, grid, d, sigma) for x, y in zip(moved, before, strict=True)
    )
    assert bounds.grid_shift(1.0, grid, d, sigma) == 2.5


@pytest.mark.parametrize(
    "call",
    [
        lambda: bounds.distance_bound(1.0, 0.0),
        lambda: bounds.distance_bound(1.0, 1.0, gradient_error=math.nan),
        lambda: bounds.kl(math.nan),
        lambda: bounds.sensitivity_bound(5, 5, 1.0, 1.0),
        lambda: bounds.delta(-1.0, 1.0),
        lambda: bounds.schedule(1.0, 0),
    ],
)
def test_impossible_inputs_say_what_to_do(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(EffaceError) as caught:
        call()
    assert caught.value.fix
