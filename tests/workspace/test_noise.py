"""Noise: it is in the release alone, planned before, and a release that it does not hide is not published."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.processes import kill
from tests.workspaces import (
    CORE,
    NEW,
    OWNER,
    assert_checks,
    contents,
    fitted,
    people,
    without_ledger,
)

from efface.errors import EffaceError, GuaranteeError
from efface.guarantee import noise
from efface.guarantee.apriori import StatePolicy
from efface.guarantee.certificates import ExactCertificate, ShiftCertificate
from efface.workspace import Workspace
from efface.workspace.published import load
from efface.workspace.steps import Milestone
from efface.workspace.verify import all_checks


def test_a_tangent_release_has_noise_that_its_state_lacks(
    made: dict[str, Path], tmp_path: Path
) -> None:
    path = shutil.copytree(made["tangent"], tmp_path / "w")
    Workspace.open(path).forget(owner=OWNER)
    user = Workspace.open(path).model().user
    guarantee = Workspace.open(path).guarantee
    assert guarantee is not None
    spread = float((user.weights - user.state).std())
    assert spread == pytest.approx(guarantee.sigma, rel=0.05)  # d = 9,347: 1/√(2d) is 0.7 %


@pytest.mark.parametrize("policy", StatePolicy)
def test_where_weights_without_noise_are(
    made: dict[str, Path], tmp_path: Path, policy: StatePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file is searched for the weights as they were before the noise, of all requests."""
    solved: list[bytes] = []
    release_on_grid = noise.release_on_grid

    def listen(w: np.ndarray, *values: Any, **options: Any) -> noise.Released:
        solved.append(np.array(w, dtype="<f8").tobytes()[:512])
        return release_on_grid(w, *values, **options)

    monkeypatch.setattr(noise, "release_on_grid", listen)
    path = shutil.copytree(made["tangent"], tmp_path / "w")
    first = load(path).user.weights.numpy().tobytes()[:512]
    Workspace.open(path).plan(state=policy)
    Workspace.open(path).forget(owner=OWNER)
    Workspace.open(path).forget(owner="person-one")
    Workspace.open(path).add(NEW)
    assert len(solved) == 3
    found = [any(w in data for data in contents(path).values()) for w in (first, *solved)]
    assert found == [False, False, False, policy is StatePolicy.SECRET]
    assert (path / "private/4/state.safetensors").exists() == (policy is StatePolicy.SECRET)
    assert Workspace.open(path).model().user.history.num_requests == 3
    checks = list(all_checks(Workspace.open(path), retrain=True))
    assert [c.name for c in checks if c.ok is False] == []
    unchecked = [c.name for c in checks if c.ok is None]
    assert unchecked == (["epsilon from the gradient"] if policy is StatePolicy.NOISY else [])


def test_planning_needs_core_data_or_sigma(made: dict[str, Path], tmp_path: Path) -> None:
    path = shutil.copytree(made["tangent"], tmp_path / "w")
    workspace = Workspace.open(path)
    planned = workspace.guarantee
    assert planned is not None
    assert planned.epsilon == 1.0
    assert workspace.plan(0.5, 1e-6).sigma == planned.sigma
    assert Workspace.open(path).guarantee == workspace.plan(0.5, 1e-6)
    result = Workspace.open(path).forget(owner=OWNER)
    assert isinstance(result.certificate, ShiftCertificate)
    assert result.certificate.guarantee.epsilon == 0.5
    settings = json.loads((path / "core/1/model.json").read_text())
    (path / "core/1/model.json").write_text(json.dumps({**settings, "sigma": None}))
    with pytest.raises(EffaceError, match="give sigma"):
        Workspace.open(path).plan()
    assert Workspace.open(path).plan(sigma=0.5).sigma == 0.5


def test_compact_needs_no_plan(made: dict[str, Path]) -> None:
    with pytest.raises(EffaceError, match="no plan is needed"):
        Workspace.open(made["compact"]).plan()


def test_compact_releases_with_noise(made: dict[str, Path], tmp_path: Path) -> None:
    """The sums are exact and private, the noise is in the release alone, and a resume draws it anew."""
    path = shutil.copytree(made["compact"], tmp_path / "w")
    planned = Workspace.open(path).plan(sigma=1e5)
    assert Workspace.open(path).guarantee == planned
    kill(path, "forget", Milestone.PRIVATE)
    workspace = Workspace.open(path)
    never = fitted("compact", people().where(lambda record: record.owner != OWNER))
    certificate = workspace.certificate
    assert isinstance(certificate, ExactCertificate)
    assert certificate.difference is not None
    assert certificate.difference.guarantee == planned
    assert certificate.statistics_digest == never.user.statistics_digest
    assert workspace.model().user.statistics_digest == never.user.statistics_digest
    solved = np.ascontiguousarray(never.user.theta).tobytes()[:512]
    assert not any(solved in data for data in contents(path).values())
    workspace.add(NEW)
    checks = {c.name: c for c in all_checks(Workspace.open(path), retrain=True)}
    assert [c.name for c in checks.values() if c.ok is False] == []
    assert checks["statistics from the retained rows"].ok is True
    assert checks["noise in the release"].ok is True
    assert checks["epsilon between the releases"].ok is None
    assert checks["certificate"].detail == "exact, consistent"
    assert "weights from the statistics" not in checks


def test_compact_noise_that_hides_too_little_publishes_nothing(
    made: dict[str, Path], tmp_path: Path
) -> None:
    path = shutil.copytree(made["compact"], tmp_path / "w")
    Workspace.open(path).plan(sigma=1e-9)
    before = contents(path)
    with pytest.raises(GuaranteeError, match="between the two releases"):
        Workspace.open(path).forget(owner=OWNER)
    after = contents(path)
    assert without_ledger(before) == without_ledger(after)
    Workspace.open(path).forget(everything=True)  # the weights are 0: nothing to hide them in
    assert_checks(path)


def test_a_plan_made_before_the_workspace_is_kept(tmp_path: Path) -> None:
    model = fitted("compact", people())
    planned = model.plan(sigma=3.0)
    assert Workspace.create(tmp_path / "w", model).guarantee == planned


def test_a_plan_can_be_retired(made: dict[str, Path], tmp_path: Path) -> None:
    path = shutil.copytree(made["compact"], tmp_path / "w")
    workspace = Workspace.open(path)
    assert workspace.retire_plan() is None
    planned = workspace.plan(sigma=1.0)
    assert workspace.retire_plan() == planned
    assert workspace.guarantee is None
    assert not list(path.rglob("guarantee.json"))
    assert_checks(path)
    certificate = workspace.forget(owner=OWNER).certificate
    assert isinstance(certificate, ExactCertificate)
    assert certificate.difference is None
    assert_checks(path)


@pytest.mark.parametrize("step", [Milestone.ACCEPTED, Milestone.DONE, Milestone.SCRUBBED])
def test_a_kill_does_not_bring_a_retired_plan_back(
    made: dict[str, Path], tmp_path: Path, step: Milestone
) -> None:
    path = shutil.copytree(made["compact"], tmp_path / "w")
    Workspace.open(path).plan(sigma=1.0)
    kill(path, "retire", step)
    assert Workspace.open(path).guarantee is None
    assert_checks(path)


def test_a_class_that_is_core_as_well_is_said_to_be_known(
    made: dict[str, Path], tmp_path: Path
) -> None:
    path = shutil.copytree(made["compact"], tmp_path / "w")
    workspace = Workspace.open(path)
    number = sum(record.label == "b" for record in CORE)
    assert number
    for notes in (workspace.preview(label="b").notes, workspace.forget(label="b").notes):
        assert [f"{number} images of it are core data" in note for note in notes] == [True]
    assert workspace.forget(owner="person-one").notes == ()
