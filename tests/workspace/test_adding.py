"""Adding records is fitting on all of them; forgotten ones are refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.workspaces import (
    CLASSES,
    NEW,
    OWNER,
    assert_checks,
    assert_forgotten,
    contents,
    fitted,
    people,
)

from efface.data.records import Records
from efface.errors import RecordError
from efface.workspace import Workspace


def test_adding_is_fitting_on_all(made: dict[str, Path], tmp_path: Path) -> None:
    path = shutil.copytree(made["compact"], tmp_path / "w")
    Workspace.open(path).add(NEW)
    together = fitted("compact", people() + NEW)
    user = Workspace.open(path).model().user
    assert user.statistics_digest == together.user.statistics_digest
    assert user.weights_digest == together.user.weights_digest


def test_adding_after_everything_was_forgotten_is_fitting_anew(
    made: dict[str, Path], tmp_path: Path
) -> None:
    path = shutil.copytree(made["compact"], tmp_path / "w")
    Workspace.open(path).forget(everything=True)
    Workspace.open(path).add(NEW)
    user = Workspace.open(path).model().user
    assert user.statistics_digest == fitted("compact", NEW).user.statistics_digest


def test_a_workspace_may_begin_without_user_records(kind: str, tmp_path: Path) -> None:
    workspace = Workspace.create(tmp_path / "w", fitted(kind, people()[[]]))
    workspace.add(NEW)
    assert_checks(workspace.path)
    if kind == "compact":
        digest = fitted(kind, NEW).user.statistics_digest
        assert workspace.model().user.statistics_digest == digest


def test_a_release_after_forgetting_is_certified_even_if_it_only_adds(path: Path) -> None:
    assert Workspace.open(path).forget(owner=OWNER).certificate is not None
    result = Workspace.open(path).add(NEW)
    assert result.certificate is not None
    assert result.certificate.num_forgotten == 0
    assert len(Workspace.open(path).records) == 30
    assert_checks(path)


def test_a_forgotten_record_is_refused_under_any_name(path: Path) -> None:
    Workspace.open(path).forget(owner=OWNER)
    again = people().select(owner=OWNER)
    renamed = Records([replace(r, id=f"new-{r.id}", owner="x") for r in again], CLASSES)
    before = contents(path)
    with pytest.raises(RecordError, match="was forgotten here"):
        Workspace.open(path).add(renamed)
    assert contents(path) == before
    Workspace.open(path).add(renamed, allow_reingest=True)
    workspace = Workspace.open(path)
    assert_forgotten(workspace, people()[[]])
    assert set(renamed.ids) <= set(workspace.records.ids)
    workspace.forget(owner="x")
    assert_forgotten(workspace, again)


def test_adding_in_memory_is_fitting_on_all(kind: str) -> None:
    """The model's own ``add``: compact to the bit, tangent to the solver's tolerance."""
    model = fitted(kind, people())
    model.add(NEW)
    together = fitted(kind, people() + NEW)
    assert model.data is not None
    assert together.data is not None
    assert model.data.records == together.data.records
    np.testing.assert_array_equal(model.data.labels, together.data.labels)
    if kind == "compact":
        assert model.user.statistics_digest == together.user.statistics_digest
    else:
        assert model.solution is not None
        assert together.solution is not None
        far = (model.solution.residual_norm + together.solution.residual_norm) / 0.1  # ‖g‖/μ
        assert float((model.user.state - together.user.state).norm()) <= far
