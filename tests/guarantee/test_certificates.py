"""Certificates: what they print follows from what they store, and they never say yes too early."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import floats, integers

from efface.errors import EffaceError, GuaranteeError
from efface.guarantee import bounds
from efface.guarantee.apriori import StatePolicy
from efface.guarantee.certificates import (
    NOT_COVERED,
    Certificate,
    Difference,
    ExactCertificate,
    ShiftCertificate,
)
from efface.guarantee.promise import Guarantee, sampler_cost, sigma_for
from efface.workspace.stored_certificate import certificate_of

D, MU = 1000, 0.01
GUARANTEE = Guarantee.plan(1.0, 1e-5, 0.05, D)


def certificate(gradient_norm: float = 1e-5, **changes: Any) -> ShiftCertificate:
    values: dict[str, Any] = {
        "guarantee": GUARANTEE,
        "mu": MU,
        "d": D,
        "num_retained": 90,
        "num_forgotten": 10,
        "gradient_norm": gradient_norm,
        "passes": 17.0,
        "gradient_error": 0.0,
    }
    return ShiftCertificate(**{**values, **changes})


EXACT = ExactCertificate("aa", "bb", num_retained=90, num_forgotten=10, solve_residual=1e-15)


# --- guarantees -----------------------------------------------------------------------------------

guarantees = st.builds(
    Guarantee.plan,
    epsilon=floats(0.05, 10),
    delta=floats(1e-6, 1e-2),
    sigma=floats(1e-6, 1e3),
    d=st.just(D),
)


@pytest.mark.parametrize("name", ["epsilon", "delta", "sigma"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_impossible_guarantees_are_refused(name: str, value: float) -> None:
    """An infinite epsilon would pass on any weights, diverged ones too."""
    values = {"epsilon": 1.0, "delta": 1e-5, "sigma": 0.1, name: value}
    with pytest.raises(EffaceError, match=r"no guarantee with .* Fix:"):
        Guarantee.plan(**values, d=D)


@settings(max_examples=25, deadline=None)
@given(guarantees)
def test_the_shift_is_the_largest_that_keeps_the_promise(guarantee: Guarantee) -> None:
    def epsilon_at(m: float) -> float:
        grown = bounds.grid_shift(m, guarantee.grid, D, guarantee.sigma)
        cost = (1 + math.exp(guarantee.epsilon)) * D * 2.0**-46  # of the noise's sampler
        usable = guarantee.delta - cost
        return bounds.grid_epsilon_bound(usable, grown)

    m = guarantee.shift(D)
    assert m > 0
    assert epsilon_at(m) <= guarantee.epsilon < epsilon_at(m * (1 + 1e-9))  # bisection's end


def test_a_grid_that_spends_everything_is_refused() -> None:
    with pytest.raises(GuaranteeError, match="grid 1 alone spends epsilon") as caught:
        Guarantee(0.1, 1e-5, sigma=1.0, grid=1.0).shift(D)
    assert "sigma" in caught.value.fix


def test_the_tolerance_is_shift_times_sigma_times_mu() -> None:
    want = GUARANTEE.shift(D) * 0.05 * MU
    assert GUARANTEE.gradient_tolerance(MU, D) == pytest.approx(want, rel=1e-15)


def test_sigma_moves_the_logits_as_asked() -> None:
    """E‖J σξ‖²/c = logit_std² for ξ ~ N(0, I)."""
    rng = np.random.default_rng(0)
    jac = rng.normal(size=(4, 50))  # c = 4 outputs, 50 weights
    sigma = sigma_for(float(np.square(jac).sum()), 4, logit_std=0.3)
    moved = jac @ rng.normal(size=(50, 20_000)) * sigma
    assert np.sqrt(np.square(moved).mean()) == pytest.approx(0.3, rel=0.03)  # 80,000 draws
    assert sigma_for(0.0, 4, 0.3) == 0.3


def test_what_requests_start_from_is_part_of_the_guarantee() -> None:
    noisy = Guarantee.plan(1.0, 1e-5, 0.05, D, "noisy")
    assert GUARANTEE.state is StatePolicy.SECRET
    assert noisy.state is StatePolicy.NOISY
    assert Guarantee(**json.loads(json.dumps(dataclasses.asdict(noisy)))) == noisy
    assert dataclasses.replace(noisy, state=StatePolicy.SECRET) == GUARANTEE
    assert noisy.gradient_tolerance(MU, D) == GUARANTEE.gradient_tolerance(MU, D)
    made = certificate(guarantee=noisy)
    assert (made.keeps_no_secret, certificate().keeps_no_secret) == (True, False)
    assert made.public()["guarantee"]["state"] == "noisy"
    with pytest.raises(EffaceError, match="unknown state policy 'open'") as caught:
        Guarantee.plan(1.0, 1e-5, 0.05, D, "open")
    assert caught.value.fix == "use secret or noisy."


# --- the a-posteriori certificate -----------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    guarantee=guarantees,
    mu=floats(1e-6, 10),
    # Away from the tolerance by more than the rounding of its five products and quotients.
    factor=st.one_of(floats(1 + 1e-9, 1e12), floats(0, 1 - 1e-9), st.just(math.inf)),
)
def test_it_passes_exactly_when_the_gradient_is_within_the_tolerance(
    guarantee: Guarantee, mu: float, factor: float
) -> None:
    gradient = factor * guarantee.gradient_tolerance(mu, D)
    given_up = certificate(gradient, guarantee=guarantee, mu=mu)
    assert given_up.passed == (factor < 1)
    assert given_up.public()["passed"] == (factor < 1)
    assert given_up.private()["passed"] == (factor < 1)


def test_a_gradient_that_is_no_number_is_no_certificate() -> None:
    with pytest.raises(EffaceError, match="negative or NaN"):
        _ = certificate(math.nan).passed


def plain_epsilon(delta: float, m: float) -> float:
    """min over α of the Rényi curve αm²/2 turned into (ε, δ), written once more."""
    alphas = 1 + np.geomspace(1e-2, 1e6, 400_000)
    values = (
        alphas * m * m / 2
        + np.log(1 / (alphas * delta)) / (alphas - 1)
        + np.log((alphas - 1) / alphas)
    )
    return float(values.min())


@settings(max_examples=20, deadline=None)
@given(gradient=floats(1e-7, 1e-3), mu=floats(1e-2, 1), d=integers(1, 10**7))
def test_what_it_prints_follows_from_what_it_stores(gradient: float, mu: float, d: int) -> None:
    """Recomputed from the stored numbers alone, after a journey through JSON."""
    guarantee = Guarantee.plan(1.0, 1e-5, 0.05, d)
    changes = {"gradient_error": gradient / 7, "earlier_shifts": (0.1, 0.02)}
    made = certificate(gradient, guarantee=guarantee, mu=mu, d=d, **changes)
    stored = json.loads(json.dumps(made.private()))
    g = stored["guarantee"]
    distance = (stored["gradient_norm"] + stored["gradient_error"]) / stored["mu"]
    m = distance / g["sigma"] + g["grid"] * math.sqrt(stored["d"]) / g["sigma"]
    assert stored["distance_bound"] == pytest.approx(distance, rel=1e-15)
    assert stored["shift_bound"] == pytest.approx(m, rel=1e-14)
    assert stored["information_bound_nats"] == pytest.approx(m * m / 2, rel=1e-13)
    # Two grids of orders α: both values are bounds, the finer grid's at most 1e-4 below.
    unit = stored["d"] * 2.0**-46  # the sampler's error in total variation, a release
    found = stored["epsilon_bound"]
    left = g["delta"] - (1 + math.exp(min(found or 50.0, 50.0))) * unit
    if found is None:
        assert left <= 0 or plain_epsilon(left, m) > 50
    else:
        assert found == pytest.approx(plain_epsilon(left, m), rel=1e-4)
        assert found >= bounds.epsilon(g["delta"], m)  # the Gaussian's own, exact
    planned = guarantee.shift(d) + g["grid"] * math.sqrt(stored["d"]) / g["sigma"]
    total = math.sqrt(sum(s * s for s in stored["earlier_shifts"]) + planned * planned)
    assert stored["total_shift_bound"] == pytest.approx(total, rel=1e-14)
    found = stored["total_epsilon_bound"]
    left = g["delta"] - (1 + math.exp(found)) * 3 * unit
    assert found == pytest.approx(plain_epsilon(left, total), rel=1e-4)
    assert stored["passed"] == (
        found is not None and (stored["epsilon_bound"] or 9) <= g["epsilon"]
    )


@pytest.mark.parametrize("num_releases", [1, 40])
def test_the_samplers_error_costs_what_the_docs_say(num_releases: int) -> None:
    # at ε = 8 and 4.5 million weights: 1.9e-4 a release, where d·2⁻⁴⁶ alone would be 6.4e-8
    cost = sampler_cost(8.0, 4_500_000, num_releases)
    assert cost == pytest.approx(1.907e-4 * num_releases, rel=1e-3)
    with pytest.raises(EffaceError, match="sampler can promise"):
        Guarantee.plan(8.0, 1e-4, 0.05, 4_500_000)
    assert Guarantee.plan(8.0, 2e-4, 0.05, 4_500_000).shift(4_500_000) > 0


@settings(max_examples=30, deadline=None)
@given(
    st.lists(floats(0, 1), min_size=2, max_size=6),
    st.lists(floats(0, 1), min_size=2, max_size=6),
    floats(0, 5),
    floats(0, 0.3),
)
def test_two_laws_that_are_sampled_inexactly_lose_that_much(
    p: list[float], q: list[float], epsilon: float, eta: float
) -> None:
    """sup_S P'(S) − e^ε Q'(S) for the worst P', Q' within η of P, Q is at most δ + (1 + e^ε) η."""
    size = min(len(p), len(q))
    laws = [np.array(v[:size]) + 1e-3 for v in (p, q)]
    one, other = (law / law.sum() for law in laws)
    worst = one.copy(), other.copy()
    for law, (to, away) in zip(worst, ((0, 1), (1, 0)), strict=True):
        moved = min(eta, law[away])
        law[to], law[away] = law[to] + moved, law[away] - moved

    def delta(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.maximum(a - math.exp(epsilon) * b, 0).sum())

    assert delta(*worst) <= delta(one, other) + (1 + math.exp(epsilon)) * eta + 1e-12


def test_a_bound_at_the_promise_is_met_and_one_above_it_is_not() -> None:
    at, above = GUARANTEE.planned_shift(D), 1.001 * GUARANTEE.planned_shift(D)
    assert GUARANTEE.is_met(at, D)
    assert GUARANTEE.epsilon_bound(at, D) <= GUARANTEE.epsilon
    assert not GUARANTEE.is_met(above, D)
    assert GUARANTEE.epsilon_bound(above, D) > GUARANTEE.epsilon


def test_earlier_releases_add_up_but_do_not_decide() -> None:
    """Against the newest release alone the certificate starts anew; together they are √Σm²."""
    alone, later = certificate(), certificate(earlier_shifts=(0.3, 0.4))
    m, planned = alone.shift_bound, GUARANTEE.planned_shift(D)
    assert m < planned  # what this release was found to have says nothing about adaptive requests
    assert alone.total_shift_bound == pytest.approx(planned, rel=1e-15)
    assert later.total_shift_bound == pytest.approx(math.hypot(0.3, 0.4, planned), rel=1e-15)
    assert (later.shift_bound, later.epsilon_bound) == (m, alone.epsilon_bound)
    assert later.private()["total_epsilon_bound"] > later.private()["epsilon_bound"]
    assert later.passed


# --- what the public sees -------------------------------------------------------------------------


def numbers_in(value: object) -> set[float]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return set()
    if isinstance(value, int | float):
        return {float(value)}
    parts = value.values() if isinstance(value, dict) else value
    return set().union(*[numbers_in(part) for part in parts])  # type: ignore[attr-defined]


def test_the_public_form_holds_only_what_was_fixed_beforehand() -> None:
    made = certificate(1.234567e-5, distance_estimate=0.777, earlier_shifts=(0.31,))
    made = dataclasses.replace(made, apriori={"nats_bound": 6e29})
    public = made.public()
    assert numbers_in(public) == numbers_in(dataclasses.asdict(GUARANTEE))
    assert public["guarantee"] == dataclasses.asdict(GUARANTEE)
    assert public["passed"] is True
    assert public["not_covered"] == NOT_COVERED
    json.dumps(public)


def test_public_forms_of_two_requests_do_not_differ() -> None:
    """Other residuals, passes and counts: functions of the forgotten data, so not to be seen."""
    other = certificate(3e-6, passes=40.0, num_forgotten=55, num_retained=45)
    assert other.public() == certificate().public()


@pytest.mark.parametrize("made", [certificate(), EXACT], ids=["shift", "exact"])
def test_public_forms_have_no_counts_of_the_forgotten_norms_or_times(made: Certificate) -> None:
    words = json.dumps(made.public()).replace("forgettable", "")
    for word in ("gradient", "residual", "passes", "num_forgotten", "distance", "seconds", "time"):
        assert word not in words


def test_a_release_with_test_noise_never_passes_in_public() -> None:
    made = certificate(releasable=False)
    assert made.passed
    assert made.public()["passed"] is False
    assert made.public()["releasable"] is False


def test_a_failed_certificate_fails_in_public() -> None:
    assert certificate(1.0).public()["passed"] is False


def test_the_exact_certificate_shows_its_digests() -> None:
    public = EXACT.public()
    assert (public["statistics_digest"], public["weights_digest"]) == ("aa", "bb")
    assert public["passed"] is EXACT.passed is True
    assert EXACT.private()["num_forgotten"] == 10
    json.dumps(EXACT.private())


def test_what_was_proved_of_the_weights_is_said_and_older_certificates_read_as_they_were() -> None:
    for proved in (True, False):
        made = dataclasses.replace(EXACT, weights_proved=proved)
        assert made.private()["weights_proved"] is made.public()["weights_proved"] is proved
        assert certificate_of(made.private(), ()) == made
    assert "weights_proved" not in EXACT.private() | EXACT.public()
    assert certificate_of(EXACT.private(), ()).weights_proved is None
    hidden = dataclasses.replace(with_noise(0.001), weights_proved=True)
    assert "weights_proved" not in hidden.public()  # it is a function of sums without noise


# --- the difference between two releases ----------------------------------------------------------


def with_noise(distance: float, **changes: Any) -> ExactCertificate:
    return dataclasses.replace(EXACT, difference=Difference(GUARANTEE, distance, D, **changes))


@settings(max_examples=25, deadline=None)
@given(factor=st.one_of(floats(0, 1 - 1e-9), floats(1 + 1e-9, 100)))
def test_a_difference_is_hidden_exactly_when_it_is_within_the_shift(factor: float) -> None:
    made = with_noise(factor * GUARANTEE.shift(D) * GUARANTEE.sigma)
    assert made.passed == (factor < 1)
    assert made.public()["passed"] == (factor < 1)
    stored = json.loads(json.dumps(made.private()))["difference"]
    m = stored["distance"] / 0.05 + GUARANTEE.grid * math.sqrt(D) / 0.05
    assert stored["shift_bound"] == pytest.approx(m, rel=1e-14)
    found = stored["epsilon_bound"]
    left = 1e-5 - (1 + math.exp(min(found or 50.0, 50.0))) * D * 2.0**-46
    if found is None:
        assert left <= 0 or plain_epsilon(left, m) > 12  # nothing is left of δ above that
    else:
        assert found == pytest.approx(plain_epsilon(left, m), rel=1e-4)


def test_what_has_no_noise_is_not_public_where_a_difference_is_hidden() -> None:
    """Sums and counts before and after a request differ: publishing them would undo the noise."""
    public = with_noise(0.001234).public()
    assert "statistics_digest" not in public
    assert "num_retained" not in public
    assert numbers_in(public) == numbers_in(dataclasses.asdict(GUARANTEE))
    assert with_noise(0.002, releasable=False).public()["passed"] is False
    assert NOT_COVERED[1] not in public["not_covered"]
    assert any("further apart" in text for text in public["not_covered"])
    assert EXACT.public()["difference"] is None
    assert EXACT.public()["not_covered"] == NOT_COVERED
