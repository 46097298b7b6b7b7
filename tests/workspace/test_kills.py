"""A kill at any step of a request ends where the request would have ended."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.processes import kill
from tests.workspaces import (
    ACTIONS,
    OWNER,
    assert_checks,
    contents,
    fingerprint,
)

from efface.guarantee.certificates import ShiftCertificate
from efface.workspace import Workspace
from efface.workspace.steps import KILL_AT, Milestone
from efface.workspace.told import WorkspaceLedger
from efface.workspace.verify import all_checks

STEPS = {
    "forget": [s for s in Milestone if s not in (Milestone.STAGED, Milestone.ABORTED)],
    "add": [s for s in Milestone if s is not Milestone.ABORTED],
}


BEFORE_THE_INTENT = (Milestone.LOCKED, Milestone.STAGED)


@pytest.mark.parametrize(
    ("action", "step"), [(action, step) for action in STEPS for step in STEPS[action]]
)
def test_a_kill_at_any_step_ends_in_the_same_state(
    path: Path,
    kind: str,
    action: str,
    step: Milestone,
    made: dict[str, Path],
    undisturbed: Callable[[str, str], tuple[Path, dict[str, Any]]],
) -> None:
    reference, expected = undisturbed(kind, action)
    kill(path, action, step)
    Workspace.open(path)
    if step in BEFORE_THE_INTENT:
        assert contents(path) == contents(made[kind])  # it was never asked for
        ACTIONS[action](Workspace.open(path))
    assert fingerprint(path) == expected
    done = [e for e in WorkspaceLedger(path).entries() if e.step is Milestone.DONE]
    assert [entry.number for entry in done] == [1, 2]
    assert_checks(path)
    assert_same_solution(path, reference)


def assert_same_solution(path: Path, reference: Path) -> None:
    """Both noiseless states are within their proved distance of the one minimiser (tangent)."""
    one, two = Workspace.open(path), Workspace.open(reference)
    a, b = one.certificate, two.certificate
    if isinstance(a, ShiftCertificate) and isinstance(b, ShiftCertificate):
        distance = float((one.model().user.state - two.model().user.state).norm())
        assert distance <= a.distance_bound + b.distance_bound


@pytest.mark.needs("linux")
def test_all_is_on_disk_before_it_is_published(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a power cut needs and a kill does not: files and folders are synced, CURRENT after them."""
    synced: list[str] = []
    link = "/proc/self/fd/{}"
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(link.format(fd))))
    Workspace.open(path).forget(owner=OWNER)
    names = [Path(name).relative_to(path.resolve()).as_posix() for name in synced]
    published = names.index("CURRENT.tmp")
    made_now = [p for f in ("releases/2", "private/2") for p in (path / f).iterdir()]
    made_now += (path / "certificates").glob("2.*")
    for file in made_now:
        # files are synced under their temporary names, or (tensors) after being written to them
        assert names.index(f"{file.relative_to(path).as_posix()}.tmp") < published
    for folder in ("releases/2", "releases", "private/2", "private", "certificates"):
        assert folder in names[:published]
    assert names[published + 1] == "."
    assert "releases" in names[published:]


def test_the_next_request_finishes_the_one_that_was_cut_short(path: Path) -> None:
    kill(path, "forget", Milestone.COMPUTED)
    Workspace.open(path, recover=False).forget(owner="person-one")
    workspace = Workspace.open(path)
    assert workspace.number == 3
    assert {OWNER, "person-one"}.isdisjoint(workspace.records.owners)


def test_a_kill_during_recovery_is_recovered_from(
    path: Path, kind: str, undisturbed: Callable[[str, str], tuple[Path, dict[str, Any]]]
) -> None:
    kill(path, "forget", Milestone.CERTIFICATE)
    kill(path, "resume", Milestone.PRIVATE)
    kill(path, "resume", Milestone.OLD_RELEASES_GONE)
    result = Workspace.open(path, recover=False).resume()
    assert result is not None
    assert result.num_records == 6
    assert fingerprint(path) == undisturbed(kind, "forget")[1]


def test_without_the_variable_nothing_is_killed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KILL_AT, "")
    assert Workspace.open(path).forget(owner=OWNER).release == 2
    assert Workspace.open(path).resume() is None


@pytest.mark.parametrize("step", [Milestone.COMPUTED, Milestone.PRIVATE, Milestone.SWITCHED])
def test_a_request_that_was_cut_short_keeps_its_policy(
    made: dict[str, Path], tmp_path: Path, step: Milestone
) -> None:
    path = shutil.copytree(made["tangent"], tmp_path / "w")
    Workspace.open(path).plan(state="noisy")
    kill(path, "forget", step)
    certificate = Workspace.open(path).certificate
    assert isinstance(certificate, ShiftCertificate)
    assert certificate.keeps_no_secret
    assert not list(path.rglob("state.safetensors"))
    assert not [c for c in all_checks(Workspace.open(path), retrain=True) if c.ok is False]
