"""The methods: where they end, that they leave their input alone, and what they claim."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from tests.audit.scenes import model, records, scene
from torch import Tensor

from efface.audit.methods import (
    METHODS,
    REFERENCE,
    Claim,
    Method,
    Prominence,
    methods_for,
    own_method,
    prominent,
    register,
)
from efface.audit.scene import Scene, probed_diagonal
from efface.errors import EffaceError
from efface.guarantee import bounds
from efface.model.mixed_linear import MixedLinear
from efface.parts.tangent.forgetting import SolvedForgetting


@pytest.mark.parametrize("kind", ["compact", "tangent"])
def test_a_scene_is_the_model_it_was_made_from(kind: str) -> None:
    s, m = scene(kind), model(kind)
    weights = s.solve(s.everyone) if kind == "compact" else m.user.weights
    mine, models = s.logits(weights, s.test), m.logits(records().test)
    # compact: a feature on the edge of a quantisation step may fall on either side in another batch
    assert float((mine - models).abs().median()) < 1e-4
    assert float((mine - models).abs().max()) < 0.05


@pytest.mark.parametrize("kind", ["compact", "tangent"])
def test_every_method_returns_new_weights_and_leaves_the_old(kind: str) -> None:
    s = scene(kind)
    trained = s.solve(s.everyone, tolerance=1e-3)
    before = trained.clone()
    for m in methods_for(kind):
        result = m(s, trained, 0)
        assert result.weights.shape == trained.shape
        assert bool(torch.isfinite(result.weights).all()), m.name
        assert torch.equal(trained, before), m.name


def test_exact_and_solved_end_at_the_retrained_model_and_the_others_do_not() -> None:
    s = scene()
    trained, retrained = s.solve(s.everyone), s.solve(s.retained)
    gap = float((trained - retrained).norm())
    off = {
        m.name: float((m(s, trained).state - retrained).norm()) / gap
        for m in methods_for("compact")
    }
    assert off["original"] == 1
    assert off["retrain"] == 0
    assert off["exact"] < 2.0**-21  # float32 weights, beside a smaller gap
    assert off["solved"] < 1e-2  # before its noise
    assert off["influence-kfac"] < 1e-9  # A ⊗ I is the whole Hessian: one exact Newton step
    for name in ("fine-tune", "fisher", "influence", "last-layer", "paper-0.9", "paper-0.999"):
        assert off[name] > 0.1, name


@pytest.mark.parametrize("kind", ["compact", "tangent"])
@pytest.mark.parametrize("name", ["influence", "influence-kfac"])
def test_newton_steps_go_downhill(name: str, kind: str) -> None:
    s = scene(kind)
    trained = s.solve(s.everyone)
    stepped = METHODS[name](s, trained).weights
    assert s.retained_problem.loss(stepped) < s.retained_problem.loss(trained)


def test_kfac_curvature_comes_nearer_than_the_diagonal_but_not_there() -> None:
    s = scene("tangent")
    trained, retrained = s.solve(s.everyone), s.solve(s.retained)
    gap = float((trained - retrained).norm())
    kfac, diagonal = (
        float((METHODS[name](s, trained).weights - retrained).norm()) / gap
        for name in ("influence-kfac", "influence")
    )
    assert 0.01 < kfac < diagonal


def test_kfac_curvature_does_not_know_the_forgotten() -> None:
    """Other labels and other pixels of the forgotten records change nothing in it."""
    s = scene("tangent")
    inputs = s.train.inputs[slice(None)].clone()
    inputs[s.forget] *= 1000
    wild = replace(s, train=replace(s.train, inputs=inputs))
    v = torch.ones(s.operator.d, dtype=torch.float64)
    assert torch.equal(wild.kfac(v), s.kfac(v))


def test_the_probed_diagonal_is_near_the_explicit_one_and_nearer_with_more_probes() -> None:
    s = scene("tangent")
    problem, exact = s.retained_problem, s.curvature - s.retained_problem.mu

    def off(probes: int) -> float:
        found = probed_diagonal(problem, probes)
        assert bool((found >= 0).all())
        assert float(found.sum()) == pytest.approx(float(exact.sum()), rel=0.2)
        return float((found - exact).norm() / exact.norm())

    few, many = off(2), off(32)
    assert many < 0.2
    assert many < 0.6 * few


def test_the_curvature_is_the_diagonal_of_the_hessian() -> None:
    s = scene("tangent")
    for j in (0, 17, s.operator.d - 1):
        unit = torch.zeros(s.operator.d, dtype=torch.float64)
        unit[j] = 1
        assert float(s.curvature[j]) == pytest.approx(
            float(s.retained_problem.product(unit)[j]), rel=1e-4
        )


def test_fisher_noise_has_the_size_it_states() -> None:
    s = scene()
    trained, kept = s.solve(s.everyone), s.train.select(s.retained)
    moved = s.logits(METHODS["fisher"](s, trained, 1).weights, kept) - s.logits(trained, kept)
    assert float(moved.square().mean().sqrt()) == pytest.approx(0.1 * s.user.target_scale, rel=0.3)


def test_the_last_layer_alone_changes_only_the_head() -> None:
    s = scene("tangent")
    trained = s.solve(s.everyone, tolerance=1e-3)
    changed = METHODS["last-layer"](s, trained).weights - trained
    for name, view in s.operator.layout.views(changed).items():
        assert bool(view.any()) == name.startswith("classifier"), name


def test_retraining_without_records_is_fitting_without_them() -> None:
    s, data = scene(), records()
    stay = [i for i in range(len(data.user)) if i not in set(s.forget.tolist())]
    twin = MixedLinear(model().core, "compact", features=300, total_ridge=0.1)
    twin.fit(data.user[stay], replay=data.core)
    exact = METHODS["exact"](s, s.solve(s.everyone)).weights
    assert torch.equal(exact, torch.from_numpy(twin.user.theta.T.copy()).reshape(-1).double())


def test_claims() -> None:
    s = scene()
    assert METHODS["exact"].epsilon(s) == 0
    assert METHODS["paper-0.9"].epsilon(s) is None
    assert METHODS["solved"].epsilon(s) > s.guarantee.epsilon  # two releases may be 2 m apart
    g, d = s.guarantee, s.operator.d
    ideal = bounds.grid_epsilon_bound(g.delta, 2 * g.planned_shift(d))
    cost = (1 + math.exp(s.pair_epsilon)) * d * 2.0**-46  # the sampler's, taken off delta
    assert s.pair_epsilon > ideal
    assert bounds.grid_epsilon_bound(g.delta - cost, 2 * g.planned_shift(d)) <= s.pair_epsilon


@dataclass(frozen=True)
class Zero(Method):
    claim = Claim.EXACT
    kinds = ("compact",)

    def forget(self, scene: Scene, weights: Tensor, seed: int) -> Tensor:
        return torch.zeros_like(weights)


def test_a_new_method_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("efface.audit.methods.METHODS", dict(METHODS))
    register(Zero("zero", "the core model"))
    assert "zero" in [m.name for m in methods_for("compact")]
    assert "zero" not in [m.name for m in methods_for("tangent")]
    [zero] = methods_for("compact", ["zero"])
    assert not zero(scene(), torch.ones(3)).weights.any()
    assert zero.epsilon(scene()) == 0


def test_other_settings_make_another_method() -> None:
    s = scene("tangent")
    trained = s.solve(s.everyone)
    paper = METHODS["paper-0.9"]
    longer = paper.having(epochs=6)
    assert s.retained_problem.loss(longer(s, trained).weights) < s.retained_problem.loss(
        paper(s, trained).weights
    )
    with pytest.raises(TypeError, match="epoch"):
        paper.having(epoch=6)


def test_fisher_noise_may_count_as_that_of_a_release() -> None:
    s = scene()
    trained = s.solve(s.everyone)
    plain, hiding = METHODS["fisher"](s, trained), METHODS["fisher"].having(hides=True)(s, trained)
    assert torch.equal(plain.weights, hiding.weights)
    assert torch.equal(plain.state, plain.weights)
    assert torch.equal(hiding.state, trained)


def test_a_solve_that_stops_short_is_refused_unless_told_otherwise() -> None:
    s = scene("tangent")
    trained = s.solve(s.everyone, tolerance=1e-3)
    short = METHODS["solved"].having(by=SolvedForgetting(max_passes=2))
    with pytest.raises(EffaceError, match="certificate was not reached"):
        short(s, trained)
    result = short.having(strict=False, on_grid=False)(s, trained)
    noise = (result.weights - result.state) / s.guarantee.sigma
    assert float(noise.square().mean().sqrt()) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(("kind", "own"), [("compact", "exact"), ("tangent", "solved")])
def test_requests_are_carried_out_by_one_method_of_the_table(kind: str, own: str) -> None:
    assert own_method(kind).name == own


def test_reports_show_the_reference_last() -> None:
    curves, cards = prominent(Prominence.CURVE), prominent(Prominence.CARD)
    assert curves[-1] == REFERENCE
    assert set(cards) < set(curves) < set(METHODS)


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(EffaceError, match="no method 'magic'"):
        methods_for("compact", ["magic"])
    with pytest.raises(EffaceError, match="'exact' for the tangent"):
        methods_for("tangent", ["exact"])
