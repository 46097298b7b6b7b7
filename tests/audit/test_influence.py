"""What is left in the very weights that are served: the strongest attack is what an audit leads with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.audit.scenes import records, scene, shadow
from tests.audit.test_audit_commands import audited, workspace

from efface.audit.attacks import likelihood_ratio, play, white_box
from efface.audit.influence import influence_left, strongest
from efface.audit.methods import METHODS, Method
from efface.audit.metrics import judge
from efface.audit.scene import Scene
from efface.audit.study import Settings, Study
from efface.model.mixed_linear import MixedLinear
from efface.workspace import Workspace


@pytest.mark.parametrize("share", [1.0, 0.1, 1e-3, 1e-6])
def test_a_millionth_of_the_influence_is_found_in_the_weights(share: float) -> None:
    base = scene("compact")
    trained, retrained = base.solve(base.everyone), base.solve(base.retained)
    left = influence_left(base, retrained + share * (trained - retrained), trained, retrained)
    assert left.found
    assert left.share == pytest.approx(share, rel=1e-3)
    assert left.auc is not None
    assert left.auc > 0.9  # record by record, too


def test_nothing_is_found_where_nothing_is_left() -> None:
    base = scene("compact")
    trained, retrained = base.solve(base.everyone), base.solve(base.retained)
    model = base.user  # another way to the same weights: integers, and a solve of its own
    exact = METHODS["exact"](base, trained).weights
    assert model.kind == "compact"
    assert not influence_left(base, exact, trained, retrained).found
    single = exact.float().double()
    assert not influence_left(base, single, trained, retrained).found  # float32 weights round


def test_noise_hides_a_share_up_to_its_size() -> None:
    base = scene("tangent")
    trained, retrained = base.solve(base.everyone), base.solve(base.retained)
    undone = trained - retrained
    sigma = float(undone.norm()) / 100
    generator = torch.Generator().manual_seed(0)
    noisy = retrained + sigma * torch.randn(len(undone), generator=generator, dtype=torch.float64)
    assert not influence_left(base, noisy, trained, retrained, sigma).found
    assert influence_left(base, noisy + 0.2 * undone, trained, retrained, sigma).found


class LeavesSome(Method):
    def forget(self, scene: Scene, weights: torch.Tensor, seed: int) -> torch.Tensor:
        kept = scene.solve(scene.retained)
        return kept + 0.01 * (weights - kept)


def test_the_likelihood_ratio_misses_what_the_white_box_finds() -> None:
    """A hundredth of the influence left: why the headline is not LiRA's."""
    game = play(shadow(), LeavesSome("some", "leaves some"))
    seen = {"white-box": white_box(game), "lira": likelihood_ratio(game)}
    verdicts = {name: judge(*trials).to_dict() | {"covered": True} for name, trials in seen.items()}
    assert verdicts["white-box"]["auc"] > 0.95
    assert verdicts["lira"]["at_chance"]
    best = strongest({"attacks": verdicts, "canary": {}})
    assert best is not None
    assert best["attack"] == "white-box"


def test_the_strongest_attack_is_the_one_furthest_from_chance() -> None:
    def verdict(auc: float, half: float, covered: bool = True) -> dict:
        chance = [0.5 - half, 0.5 + half]
        inside = chance[0] <= auc <= chance[1]
        return {"auc": auc, "chance": chance, "covered": covered, "epsilon_bound": 0.0} | {
            "at_chance": inside
        }

    method = {
        "canary": {"loss": verdict(0.60, 0.10), "difference": verdict(1.0, 0.01, covered=False)},
        "attacks": {"lira": verdict(0.55, 0.01)},
    }
    best = strongest(method)
    assert best is not None
    assert (best["attack"], best["game"]) == ("lira", "attacks")
    assert strongest({"canary": {}, "attacks": {}}) is None


def test_an_audit_attacks_the_weights_that_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A millionth of the forgotten records left in the published weights: 1e-6 of ‖w‖ would not see it."""
    opened = workspace(tmp_path / "w", "compact")
    old, asked = opened.model().user.theta, records().user[:30]
    opened.forget(ids=asked.ids)
    clean = audited(opened, asked, tmp_path / "clean")
    assert clean["ok"]
    assert abs(clean["headline"]["influence"]) < 1e-7
    assert clean["headline"]["attack"]["attack"] in clean["methods"]["exact"]["canary"]

    original = Workspace.model

    def leaky(self: Workspace, *given: str | None) -> MixedLinear:
        model = original(self, *given)
        model.user.theta = np.asarray(model.user.theta + 1e-5 * (old - model.user.theta))
        return model

    monkeypatch.setattr(Workspace, "model", leaky)
    values = audited(opened, asked, tmp_path / "leaky")
    assert values["served"]["influence"]["found"]
    assert values["served"]["influence"]["share"] == pytest.approx(1e-5, rel=1e-2)
    assert not values["ok"]
    page = (tmp_path / "leaky" / "report.html").read_text()
    assert "influence left" in page


def test_a_study_names_its_strongest_attack() -> None:
    quick = Settings(seeds=1, worlds=0, canaries=60, relearn=20, methods=("original", "retrain"))
    values = Study(scene("compact"), quick).run()
    assert values["strongest"]["original"]["auc"] > 0.9
    assert not values["strongest"]["original"]["at_chance"]
