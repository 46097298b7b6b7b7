"""``efface audit`` and ``efface compare``, on tiny settings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import cases
from tests.audit.scenes import core, records
from typer.testing import CliRunner, Result

from efface import files
from efface.audit.scene import Scene
from efface.audit.served import Held, hold, scene_of, served_weights
from efface.audit.study import Settings
from efface.cli import app
from efface.data.record import Split
from efface.data.records import Records
from efface.errors import EffaceError
from efface.model.mixed_linear import MixedLinear
from efface.pipeline.audit import run
from efface.workspace import Workspace

QUICK = Settings(seeds=1, worlds=0, canaries=40, relearn=50)


def efface(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def workspace(path: Path, kind: str) -> Workspace:
    options = {"compact": {"features": 200, "total_ridge": 0.1}, "tangent": {"mu": 0.3}}[kind]
    data = records()
    fitted = MixedLinear(core(), kind, **options).fit(data.user, replay=data.core)
    return Workspace.create(path, fitted)


def audited(opened: Workspace, asked: Records, out: Path) -> dict:
    return run(opened, asked, records().test, QUICK, out)


@pytest.mark.parametrize("kind", ["compact", "tangent"])
def test_a_request_that_was_carried_out_passes(tmp_path: Path, kind: str) -> None:
    opened = workspace(tmp_path / "w", kind)
    asked = records().user.select(owner=records().user[0].owner)
    before = audited(opened, asked, tmp_path / "before")
    assert not before["ok"]
    assert before["served"]["num_still_in"] == len(asked)
    assert before["served"]["held"] is None  # no certificate speaks about them yet
    opened.forget(ids=asked.ids)
    kept = sorted(str(p) for p in opened.path.rglob("*"))
    values = audited(opened, asked, tmp_path / "after")
    assert values["ok"], values["contradictions"]
    assert values["served"]["held"]["kept"]
    assert values["served"]["num_still_in"] == 0
    assert sorted(str(p) for p in opened.path.rglob("*")) == kept  # nothing of them came back
    stored = json.loads((tmp_path / "after" / "audit.json").read_text())
    assert stored["served"] == values["served"]


@pytest.mark.parametrize("kind", ["compact", "tangent"])
def test_weights_that_are_not_what_the_certificate_says_are_found(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = workspace(tmp_path / "w", kind)
    old = opened.model()
    asked = records().user[:30]
    opened.forget(ids=asked.ids)

    def swapped(self: Workspace, *given: str | None) -> MixedLinear:
        """The certificate of the new release on the weights of the old one."""
        model = original(self, *given)
        if kind == "compact":
            model.user.theta = old.user.theta
        else:
            model.user.weights = old.user.weights
        return model

    original = Workspace.model
    monkeypatch.setattr(Workspace, "model", swapped)
    values = audited(opened, asked, tmp_path / "out")
    assert not values["served"]["held"]["kept"]
    assert not values["ok"]


def test_the_audit_command_needs_to_know_whose_records(tmp_path: Path) -> None:
    workspace(tmp_path / "w", "compact")
    result = efface("audit", tmp_path / "w", "digits")
    assert result.exit_code == 2
    assert "whose records" in result.stderr


def test_the_audit_command_fails_while_the_records_are_in(tmp_path: Path) -> None:
    opened = workspace(tmp_path / "w", "compact")
    owner = opened.records[0].owner
    words = ("audit", opened.path, "digits", "--owner", owner, "--worlds", 0, "--canaries", 0)
    result = efface(*words, "--out", tmp_path / "out")
    assert result.exit_code == 3, result.stderr
    assert "still in the model's data" in result.stdout


def test_compare_writes_table_json_and_page(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--features", 100, "--seeds", 1, "--worlds", 0, "--canaries", 60, "--out", out)
    words = ("--methods", "original,retrain,exact", "--cache", tmp_path / "kept", "--json")
    result = efface("compare", "digits", *options, *words)
    assert result.exit_code == 0, result.stderr
    assert list((tmp_path / "kept").rglob("rows.bin"))
    values = json.loads(result.stdout)
    stored = files.read_json(out / "compare.json", "efface.audit/1")
    assert stored["methods"] == values["methods"]
    assert (out / "report.html").is_file()
    assert values["methods"]["exact"]["readouts"]["distance_test"]["mean"] < 1e-6  # float32 weights


@pytest.mark.parametrize(("words", "beside"), [((), True), (("--features", 20), False)])
def test_without_a_number_the_model_is_the_default_one_and_not_its_last_layer(
    words: tuple[object, ...], beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wide network would leave a fixed number of them none: that is the last layer alone."""
    seen: list[MixedLinear] = []

    def stop(model: MixedLinear, *_: object) -> None:
        seen.append(model)
        raise EffaceError("seen enough.", "nothing.")

    monkeypatch.setattr(Scene, "of", stop)
    assert efface("compare", "digits", "--out", tmp_path, *words).exit_code == 2
    projection = seen[0].user.projection
    assert (projection.num_features > projection.num_pooled + 1) == beside


def test_the_class_list_is_core_s_as_for_train(tmp_path: Path) -> None:
    """A class that only users have would leave its name behind: compare refuses it, as train does."""
    sets = (cases.tiny_records(12, 0, split=Split.CORE), cases.tiny_records(12, 1))
    both = [record for some in sets for record in some]
    strange = np.where(np.arange(24) == 23, "iguana", [record.label for record in both])
    np.savez(
        tmp_path / "data.npz",
        images=np.stack([record.image()[:, :, 0] for record in both]),
        labels=strange,
        splits=np.array([str(record.split) for record in both]),
    )
    words = (tmp_path / "data.npz", "--features", 20, "--out", tmp_path / "out")
    for command in ("train", "compare"):
        result = efface(command, *words)
        assert result.exit_code == 2
        assert "its class 'iguana' has no core record" in result.stderr


def test_an_unknown_method_is_a_usage_error(tmp_path: Path) -> None:
    result = efface("compare", "digits", "--methods", "magic", "--out", tmp_path, "--features", 50)
    assert result.exit_code == 2
    assert "magic" in result.stderr


def test_a_noisy_release_is_held_to_its_shift_and_to_its_noise(tmp_path: Path) -> None:
    opened = workspace(tmp_path / "w", "tangent")
    asked = records().user[:30]
    opened.forget(ids=asked.ids)
    certificate = opened.certificate
    s = scene_of(opened.model(), asked, records().test, certificate)
    trained, retrained = s.solve(s.everyone), s.solve(s.retained)
    sigma, away = s.guarantee.sigma, trained - retrained
    generator = torch.Generator().manual_seed(0)
    xi = torch.randn(len(away), generator=generator, dtype=torch.float64)
    noisy = retrained + sigma * xi

    def held(weights: torch.Tensor) -> Held:
        found = hold(s, weights, trained, retrained, certificate)
        assert found is not None
        return found

    assert held(noisy).kept
    far = held(noisy + 10 * sigma * away / away.norm())
    assert not far.kept
    # a bound from below on a shift of 10, and not a loose one: three deviations of z and of the level
    assert 10 - 3.9 - 3 < far.shift_lower_bound <= 10
    bare = held(retrained)
    assert not bare.kept  # nothing hides it
    assert bare.shift_lower_bound == 0


def test_exact_weights_with_noise_are_held_to_the_noise_alone(tmp_path: Path) -> None:
    opened = workspace(tmp_path / "w", "compact")
    asked = records().user[:30]
    opened.plan(sigma=1e4)
    opened.forget(ids=asked.ids)
    certificate, model = opened.certificate, opened.model()
    served = served_weights(model)
    s = scene_of(model, asked, records().test, certificate)
    trained, retrained = s.solve(s.everyone), s.solve(s.retained)
    away = (trained - retrained) / (trained - retrained).norm()
    for weights, kept in (
        (served, True),
        (retrained, False),  # no noise
        (served + 10 * 1e4 * away, False),
    ):
        found = hold(s, weights, trained, retrained, certificate)
        assert found is not None
        assert found.kept == kept
