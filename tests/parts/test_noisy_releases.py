"""The noise of a release: how much, fresh, on the grid, planned from core data alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.parts.forgetters import (
    CLASSES,
    CORE_RECORDS,
    MU,
    TEST,
    exact_weights,
    fitted,
    snapshot,
    user_records,
)
from tests.parts.test_forgetting import assert_is_core
from tests.reference import explicit_jacobian
from torch import Tensor

from efface.errors import EffaceError, GuaranteeError
from efface.guarantee.apriori import StatePolicy
from efface.guarantee.certificates import ExactCertificate, ShiftCertificate
from efface.guarantee.promise import Guarantee
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core

# --- noise ----------------------------------------------------------------------------------------


def noises(core: Core, count: int, **options: Any) -> tuple[MixedLinear, Guarantee, Tensor]:
    """Noise of several releases of one request, (count, d)."""
    model = fitted(core, "tangent")
    guarantee, data, forget = model.plan(), model.data, np.array([3])
    assert data is not None
    rows = []
    for _ in range(count):
        outcome = model.user.outcome(data, forget, guarantee, **options)
        assert outcome.release is not None
        assert outcome.state is not None
        rows.append(outcome.release - outcome.state)
    return model, guarantee, torch.stack(rows)


def test_the_noise_has_its_variance_in_every_layer_and_is_fresh(core: Core) -> None:
    model, guarantee, noise = noises(core, 30)
    n = noise.numel()
    assert float(noise.mean()) == pytest.approx(0, abs=5 * guarantee.sigma / math.sqrt(n))
    # Standard error of a variance over n draws: √(2/n), here 1.7 %.
    ratio = float(noise.square().mean()) / guarantee.sigma**2
    assert ratio == pytest.approx(1, abs=5 * math.sqrt(2 / n))
    for view in model.user.operator.layout.views(noise[0]).values():
        assert (view != 0).all()
    different = noise[0] - noise[1]  # never the same noise twice: the variance doubles
    ratio = float(different.square().mean()) / guarantee.sigma**2
    assert ratio == pytest.approx(2, abs=5 * 2 * math.sqrt(2 / len(different)))


def test_the_released_weights_are_on_the_grid_and_served(core: Core) -> None:
    model = fitted(core, "tangent")
    model.forget(ids="s1-3")
    guarantee, user = model.guarantee, model.user
    assert guarantee is not None
    multiples = user.weights / guarantee.grid
    assert torch.equal(multiples, multiples.round())
    x = core.activations(TEST)
    tangent = user.operator.jvp(user.operator.prepare(x), user.weights.float())
    torch.testing.assert_close(model.logits(TEST), core.logits_of(x) + tangent)
    assert not torch.equal(user.weights, user.state)


def test_the_noiseless_state_carries_no_noise_to_the_next_request(core: Core) -> None:
    """Two models, different noise, the same states: the second request starts from the state."""
    models = [fitted(core, "tangent") for _ in range(2)]
    for model in models:
        model.forget(ids="s1-3")
        model.forget(ids="s1-5")
    assert torch.equal(models[0].user.state, models[1].user.state)
    assert not torch.equal(models[0].user.weights, models[1].user.weights)


def noisy_requests(core: Core) -> tuple[MixedLinear, ShiftCertificate]:
    model = fitted(core, "tangent")
    model.plan(state="noisy")
    model.forget(ids="s1-3")
    certificate = model.forget(ids="s1-5")
    assert isinstance(certificate, ShiftCertificate)
    return model, certificate


def test_a_noisy_state_is_the_release_and_nothing_else_is_kept(core: Core) -> None:
    (one, first), (two, second) = noisy_requests(core), noisy_requests(core)
    for model, certificate in ((one, first), (two, second)):
        assert model.solution is not None
        assert torch.equal(model.user.state, model.user.weights)
        assert torch.equal(model.solution.value, model.user.weights)
        assert certificate.passed
        assert certificate.guarantee.state is StatePolicy.NOISY
        assert certificate.total_shift_bound == pytest.approx(math.hypot(*model.user.shifts))
    assert not torch.equal(one.user.state, two.user.state)
    # Two fresh noises apart, however many requests there were: the first one's noise is gone.
    ratio = float((one.user.weights - two.user.weights).norm()) / first.guarantee.sigma
    assert ratio**2 / 2 / first.d == pytest.approx(1, abs=6 * math.sqrt(2 / first.d))


def test_the_policy_can_change_between_requests(core: Core) -> None:
    model, _ = noisy_requests(core)
    model.plan(state="secret")
    certificate = model.forget(ids="s1-7")
    want = exact_weights(core, user_records().without(["s1-3", "s1-5", "s1-7"]))
    assert isinstance(certificate, ShiftCertificate)
    assert float((model.user.state - want).norm()) <= certificate.distance_bound * (1 + 1e-6)
    assert not torch.equal(model.user.state, model.user.weights)


def test_noise_of_a_test_seed_repeats_and_is_not_releasable(core: Core) -> None:
    _, _, noise = noises(core, 2, test_seed=b"seed")
    assert torch.equal(noise[0], noise[1])
    certificate = fitted(core, "tangent").forget(ids="s1-3", test_seed=b"seed")
    assert certificate.passed
    assert certificate.public()["passed"] is False
    real = fitted(core, "tangent").forget(ids="s1-3")
    assert real.public()["passed"] is True


def test_shifts_of_releases_add_up(core: Core) -> None:
    model = fitted(core, "tangent")
    made = [model.forget(ids=f"s1-{i}") for i in range(3)]
    shifts = [c.planned_shift for c in made if isinstance(c, ShiftCertificate)]
    assert model.user.shifts == tuple(shifts)
    for k, certificate in enumerate(made):
        assert isinstance(certificate, ShiftCertificate)
        want = math.sqrt(sum(m * m for m in shifts[: k + 1]))
        assert certificate.total_shift_bound == pytest.approx(want, rel=1e-12)


# --- noise between releases (compact) -------------------------------------------------------------


def test_noise_on_exact_weights_hides_the_difference_and_nothing_else_changes(core: Core) -> None:
    plain, model = fitted(core, "compact"), fitted(core, "compact")
    before = plain.user.theta.astype(np.float64)
    model.plan(sigma=1e6)
    certificate = model.forget(ids=["s1-3", "s1-9"])
    plain.forget(ids=["s1-3", "s1-9"])
    assert isinstance(certificate, ExactCertificate)
    assert certificate.difference is not None
    distance = float(np.linalg.norm(plain.user.theta - before))
    assert certificate.difference.distance == distance  # to the bit: the same solves
    assert certificate.passed
    never = fitted(core, "compact", user_records().without(["s1-3", "s1-9"]))
    assert certificate.statistics_digest == never.user.statistics_digest
    assert certificate.weights_digest == model.user.weights_digest != never.user.weights_digest
    noise, d = model.user.theta - never.user.theta, model.user.num_weights
    # Standard error of a mean square over d draws: √(2/d).
    assert float(np.square(noise).mean()) == pytest.approx(1e12, rel=6 * math.sqrt(2 / d))
    guarantee = certificate.difference.guarantee
    assert np.array_equal(
        model.user.theta, np.rint(model.user.theta / guarantee.grid) * guarantee.grid
    )


def test_noise_between_releases_is_fresh_and_not_added_up(core: Core) -> None:
    model, again = fitted(core, "compact"), fitted(core, "compact")
    for one in (model, again):
        one.plan(sigma=1e6)
        one.forget(ids="s1-3")
        first = one.user.theta.copy()
        one.add(user_records(3, 2))
        assert not np.array_equal(one.user.theta, first)
    d = model.user.num_weights
    apart = float(np.square(model.user.theta - again.user.theta).mean())
    assert apart == pytest.approx(2e12, rel=6 * math.sqrt(2 / d))  # two noises, not four
    together = user_records().without(["s1-3"]) + user_records(3, 2)
    never = fitted(core, "compact", together)
    assert model.user.statistics_digest == never.user.statistics_digest


@pytest.mark.parametrize("action", ["forget", "add"])
def test_noise_that_does_not_hide_the_difference_changes_nothing(core: Core, action: str) -> None:
    model = fitted(core, "compact")
    model.forget(ids="s1-40")
    model.plan(sigma=1e-6)
    before = snapshot(model)
    request = {
        "forget": lambda: model.forget(ids="s1-3"),
        "add": lambda: model.add(user_records(3, 2)),
    }[action]
    with pytest.raises(GuaranteeError, match="between the two releases asked for") as caught:
        request()
    assert snapshot(model) == before
    enough = 1.01 * float(caught.value.fix.split("above ")[1].split(",")[0])
    model.plan(sigma=enough * 1.05)  # the fix is given to two digits
    certificate = request()
    assert certificate is not None
    assert certificate.passed


def test_after_everything_an_addition_is_hidden_only_by_as_much_noise_as_it_needs(
    core: Core,
) -> None:
    model = fitted(core, "compact", replay=CORE_RECORDS)
    model.plan(sigma=1e6)
    certificate = model.forget(everything=True)
    assert isinstance(certificate, ExactCertificate)
    assert certificate.difference is None
    assert_is_core(model)
    back = model.add(user_records())
    never = fitted(core, "compact", replay=CORE_RECORDS)
    assert isinstance(back, ExactCertificate)
    assert back.difference is not None
    assert back.difference.distance == float(np.linalg.norm(never.user.theta.astype(np.float64)))
    assert back.statistics_digest == never.user.statistics_digest


def test_noise_between_releases_of_a_test_seed_is_not_releasable(core: Core) -> None:
    models = [fitted(core, "compact") for _ in range(2)]
    for model in models:
        model.plan(sigma=1e6)
        certificate = model.forget(ids="s1-3", test_seed=b"seed")
        assert certificate.passed
        assert certificate.public()["passed"] is False
    assert models[0].user.weights_digest == models[1].user.weights_digest


def test_compact_plans_that_cannot_be_made(core: Core) -> None:
    with pytest.raises(EffaceError, match="has no features yet"):
        MixedLinear(core, "compact").plan(sigma=1.0)
    with pytest.raises(EffaceError, match="exact sums, which have no noise"):
        fitted(core, "compact").plan(sigma=1.0, state="noisy")


# --- plans ----------------------------------------------------------------------------------------


def test_the_plan_comes_from_core_data_alone(core: Core) -> None:
    plans = [fitted(core, "tangent", user_records(30, seed)).plan() for seed in (1, 2)]
    plans.append(MixedLinear(core, "tangent", mu=MU).plan())
    assert plans[0] == plans[1] == plans[2]
    model = fitted(core, "tangent")
    model.forget(ids="s1-3")
    assert model.guarantee == plans[0]  # planned by itself, with the defaults


def test_the_planned_noise_moves_logits_as_asked(core: Core) -> None:
    user = MixedLinear(core, "tangent", mu=MU).user
    x = torch.as_tensor(core.activations(CORE_RECORDS)[0:12])
    jac = explicit_jacobian(core.tail.double(), x.double())
    core.tail.float()
    square = float(jac.square().sum((1, 2)).mean())
    assert user.mean_jacobian_square(x, probes=400) == pytest.approx(square, rel=0.15)
    guarantee = user.plan(1.0, 1e-5, None, "secret", lambda: x, logit_noise=0.02)
    moved = guarantee.sigma * math.sqrt(square / 3)  # root mean square over 3 logits
    assert moved == pytest.approx(0.02 * 5, rel=0.6)  # two probes only: σ need not be precise


def test_plans_that_cannot_be_made(core: Core) -> None:
    with pytest.raises(EffaceError, match="compact user part forgets exactly"):
        MixedLinear(core, "compact").plan()
    untrained = MixedLinear(Core("cnn", classes=CLASSES), "tangent")
    with pytest.raises(EffaceError, match=r"sigma is chosen on core records.*give sigma"):
        untrained.plan()
    assert untrained.plan(sigma=0.5).sigma == 0.5
