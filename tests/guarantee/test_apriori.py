"""Every a-priori bound against a simulation of what it bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import Ridge

from efface.errors import EffaceError
from efface.guarantee import apriori, bounds
from efface.guarantee.apriori import StatePolicy, TheoremInputs

ROUNDING = 1 + 1e-9  # float64 solves of well-conditioned problems with d <= 6
TINY = Ridge(
    np.array([[1.0, 0.2], [0.4, -1.0], [-0.8, 0.5], [0.3, 0.9]] * 6),
    np.array([1.0, -0.5, 0.7, 0.2, -1.0, 0.6] * 4),
    1.0,
)


def sgd(
    grad: np.ndarray, ridge: Ridge, w: np.ndarray, rate: float, steps: int, batch: int, seed: int
) -> np.ndarray:
    """SGD with replacement for many replicas at once: f_i(w) = ½ wᵀH_i w − (x_i y_i | grad)ᵀw.

    ``grad`` (r, d) replaces x_i y_i when given: the forgetting problem; w is (r, d).
    """
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        index = rng.integers(len(ridge.y), size=(len(w), batch))
        x = ridge.x[index]  # (r, batch, d)
        pull = np.einsum("rbd,rb->rd", x, np.einsum("rbd,rd->rb", x, w)) / batch + ridge.mu * w
        linear = grad if grad.size else np.einsum("rbd,rb->rd", x, ridge.y[index]) / batch
        w = w - rate * (pull - linear)
    return w


NONE = np.empty(0)


@pytest.mark.parametrize(("steps", "batch"), [(1, 1), (5, 2), (60, 4)])
def test_simulated_sgd_stays_below_both_theorems(steps: int, batch: int) -> None:
    best, mu, beta = TINY.minimiser(), TINY.mu, TINY.beta()
    constants = {"mu": mu, "beta": beta, "sigma_l": TINY.sigma_l(), "batch_size": batch}
    start = np.tile(best + 3.0, (4000, 1))
    initial = float(np.sum((start[0] - best) ** 2))
    for rate, bound in [
        (mu / beta**2, apriori.paper_sgd_bound(initial, steps=steps, **constants)),
        (
            0.5 / beta,
            apriori.sgd_bound(initial, steps=steps, learning_rate=0.5 / beta, **constants),
        ),
    ]:
        w = sgd(NONE, TINY, start, rate, steps, batch, seed=steps)
        error = np.sum((w - best) ** 2, axis=1)
        assert error.mean() <= bound + 5 * error.std() / math.sqrt(len(error))


def simulate_requests(inputs: TheoremInputs) -> tuple[list[float], float]:
    """(nats at each request, largest RMS ‖g_r‖) of the paper's procedure on TINY, noisy state."""
    rng, replicas = np.random.default_rng(5), 3000
    rate, long = inputs.mu / inputs.beta**2, 40 + inputs.steps
    zero = np.zeros((replicas, 2))
    w = sgd(NONE, TINY, zero, rate, long, inputs.batch_size, seed=11)
    nats, largest = [], 0.0
    for j in range(1, inputs.num_requests + 1):
        left = TINY.without(j * inputs.b)
        g = w @ left.hessian() - left.x.T @ left.y / len(left.y)  # (r, d)
        largest = max(largest, math.sqrt(np.mean(np.sum(g**2, axis=1))))
        w = w - sgd(g, left, zero, rate, inputs.steps, inputs.batch_size, seed=20 + j)
        retrained = sgd(NONE, left, zero, rate, long, inputs.batch_size, seed=40 + j)
        nats.append(float(np.mean(np.sum((w - retrained) ** 2, axis=1)) / (2 * inputs.sigma**2)))
        w = w + inputs.sigma * rng.normal(size=w.shape)
    return nats, largest


@pytest.mark.parametrize("steps", [1, 4, 30])
def test_simulated_forgetting_stays_below_the_theorem(steps: int) -> None:
    M = float(np.max(TINY.y**2)) / 2
    inputs = TheoremInputs(24, 2, 4, TINY.beta(), M, TINY.mu, 0.2, M, 2, 4, steps)
    nats, gradient = simulate_requests(inputs)
    sound = replace(inputs, residual_gradient_norm=gradient)
    bound = apriori.paper_information_bound(sound)
    assert max(nats) <= bound.nats_bound
    assert sound.sgd_constant >= inputs.sgd_constant


SMALL = TheoremInputs(1000, 1, 10, 2.0, 0.5, 1.0, 1.0, 0.1, 5, 32, 60)


@pytest.mark.parametrize("steps", [3, 60])
def test_theorem_equals_its_formula_minimised_over_alpha(steps: int) -> None:
    i = replace(SMALL, b=40, M=50.0, steps=steps)  # here S² = 41 against d = 5
    p = (1 - (i.mu / i.beta) ** 2) ** i.steps
    s = 8 * i.b * i.beta * math.sqrt(2 * i.M) / (i.n * i.mu**1.5)
    alpha = np.exp(np.linspace(math.log(1e-4), math.log(1 / p - 1), 200_001))[:-1]
    paper = 2 * p * (2 + 1 / alpha) * ((s / i.sigma) ** 2 + i.d)  # errata 5: σ² convention
    paper += 8 * i.sigma_l / (i.batch_size * i.beta * i.sigma**2)
    value = np.min(paper / (1 - (1 + alpha) * p)) / 2  # errata 6: the half
    bound = apriori.paper_information_bound(i)
    assert bound.nats_bound == pytest.approx(value, rel=1e-6)
    assert bound.gamma == 0.75
    assert 0 < bound.alpha < 1 / p - 1
    assert bound.vacuous == (steps == 3)
    assert any("errata 16" in note for note in bound.assumptions)


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-3, 1e3), st.floats(1e-8, 1), st.integers(1, 10**6), st.floats(1.01, 10))
def test_theorem_improves_with_noise_and_steps(
    sigma: float, ratio: float, steps: int, factor: float
) -> None:
    base = replace(SMALL, sigma=sigma, mu=ratio * SMALL.beta, steps=steps)
    nats = apriori.paper_information_bound(base).nats_bound
    better = [replace(base, sigma=sigma * factor), replace(base, steps=2 * steps)]
    worse = [replace(base, sigma_l=1.0), replace(base, M=2.0), replace(base, b=2)]
    for other in better:
        assert apriori.paper_information_bound(other).nats_bound <= nats * ROUNDING
    for other in worse:
        assert apriori.paper_information_bound(other).nats_bound >= nats / ROUNDING


def test_theorem_is_vacuous_at_realistic_constants() -> None:
    mu = 5e-4
    real = TheoremInputs(6000, 60, 1, mu / math.sqrt(1e-15), 625, mu, 1e-3, 2.9, 6074, 64, 279)
    bound = apriori.paper_information_bound(real)
    assert real.one_minus_gamma == pytest.approx(1e-15)
    assert math.isfinite(bound.nats_bound)
    # α → x/2 and the value → 4A/x², x = 1 − γ^τ = 279e-15, A = (S/σ)² + d: all digits survive
    s = 8 * real.b * real.beta * math.sqrt(2 * real.M) / (real.n * mu**1.5)
    expected = 4 * ((s / real.sigma) ** 2 + real.d) / 279e-15**2
    assert bound.nats_bound == pytest.approx(expected, rel=1e-6)
    assert bound.vacuous
    # hardly any contraction left: infinite, and still no crash
    for hopeless in (replace(real, mu=1e-200), replace(real, steps=0), replace(real, sigma=1e-300)):
        bound = apriori.paper_information_bound(hopeless)
        assert bound.vacuous
        assert bound.nats_bound == math.inf
        assert bound.reason


def test_theorem_checks_its_hidden_condition() -> None:
    assert math.isfinite(apriori.paper_information_bound(replace(SMALL, b=50)).nats_bound)
    bound = apriori.paper_information_bound(replace(SMALL, b=51))
    assert (bound.nats_bound, bound.vacuous) == (math.inf, True)
    assert "errata 20" in bound.reason


def test_theorem_with_a_perfectly_conditioned_problem() -> None:
    # γ = 0: one step solves, what remains is the SGD constant 4σ_ℓ/(Bβσ²)
    bound = apriori.paper_information_bound(replace(SMALL, mu=SMALL.beta))
    assert bound.nats_bound == pytest.approx(4 * 0.1 / (32 * 2.0))


def test_forgetting_constant_replaces_sigma_l_only_upwards() -> None:
    assert replace(SMALL, residual_gradient_norm=0.01).sgd_constant == 0.1
    larger = replace(SMALL, residual_gradient_norm=3.0)
    assert larger.sgd_constant == 4.5
    assert (
        apriori.paper_information_bound(larger).nats_bound
        > apriori.paper_information_bound(SMALL).nats_bound
    )


def run_sequence(
    policy: StatePolicy, rho: float, s: float, sigma: float, d: int, start: float
) -> np.ndarray:
    """Errors ‖w'_j − w*_j‖ (requests, replicas) of a solver that contracts by exactly ρ."""
    rng, replicas = np.random.default_rng(7), 2000
    target = np.zeros((replicas, d))
    state = target + start / math.sqrt(d)
    errors = []
    for _ in range(12):
        move = state - target  # the worst request: directly away from the state
        norms = np.linalg.norm(move, axis=1, keepdims=True)
        target = target - s * np.divide(
            move, norms, out=np.full_like(move, d**-0.5), where=norms > 0
        )
        solved = target + rho * (state - target)
        errors.append(np.linalg.norm(solved - target, axis=1))
        noise = sigma * rng.normal(size=solved.shape)
        state = solved + noise if policy is StatePolicy.NOISY else solved
    return np.array(errors)


@pytest.mark.parametrize("start", [0.0, 10.0])
@pytest.mark.parametrize("rho", [0.05, 0.5, 0.9])
def test_sequences_stay_below_the_minkowski_bound(rho: float, start: float) -> None:
    inputs = {"rho": rho, "sensitivity": 0.3, "sigma": 0.2, "d": 4, "initial_error": start}
    secret = apriori.minkowski_apriori_bound(StatePolicy.SECRET, **inputs)
    errors = run_sequence(StatePolicy.SECRET, rho, 0.3, 0.2, 4, start)
    assert errors.max() <= secret.distance_bound * ROUNDING
    if rho <= 0.5:  # 12 requests come within 0.5^12 of the limit: the bound is attained
        assert errors.max() >= secret.distance_bound * 0.999
    assert secret.shift_bound == pytest.approx(secret.distance_bound / 0.2)
    mean = apriori.minkowski_apriori_bound(StatePolicy.NOISY, **inputs)
    errors = run_sequence(StatePolicy.NOISY, rho, 0.3, 0.2, 4, start)
    assert np.sqrt(np.mean(errors**2, axis=1)).max() <= mean.distance_bound
    assert mean.shift_bound is None
    likely = apriori.minkowski_apriori_bound(
        StatePolicy.NOISY, **inputs, num_requests=12, failure_probability=0.05
    )
    assert np.mean(errors.max(axis=0) > likely.distance_bound) <= 0.05
    assert likely.failure_probability == 0.05
    assert secret.distance_bound <= mean.distance_bound <= likely.distance_bound


def test_secret_state_is_dimension_free_and_a_floor_is_only_root_mean_square() -> None:
    inputs = {"rho": 0.1, "sensitivity": 1.0, "sigma": 0.5}
    a, b = (apriori.minkowski_apriori_bound(StatePolicy.SECRET, d=d, **inputs) for d in (1, 10**6))
    assert a == b
    assert a.distance_bound == pytest.approx(0.1 / 0.9)
    assert a.nats_bound == pytest.approx(bounds.kl(0.1 / 0.9 / 0.5))
    floor = apriori.minkowski_apriori_bound(StatePolicy.SECRET, d=1, floor=0.04, **inputs)
    assert floor.distance_bound == pytest.approx(0.3 / 0.9)
    assert floor.shift_bound is None
    with pytest.raises(EffaceError, match="random solver"):
        apriori.minkowski_apriori_bound(
            StatePolicy.NOISY, d=1, floor=0.04, failure_probability=0.1, **inputs
        )


@pytest.mark.parametrize(
    "call",
    [
        lambda: replace(SMALL, residual_gradient_norm=math.nan),
        lambda: replace(SMALL, sigma_l=math.nan),
        lambda: apriori.minkowski_apriori_bound(
            StatePolicy.SECRET, rho=0.5, sensitivity=1, sigma=1, d=1, initial_error=math.nan
        ),
        lambda: replace(SMALL, beta=0.5),
        lambda: apriori.minkowski_apriori_bound(
            StatePolicy.SECRET, rho=1.0, sensitivity=1, sigma=1, d=1
        ),
    ],
)
def test_impossible_inputs_say_what_to_do(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(EffaceError) as caught:
        call()
    assert caught.value.fix
