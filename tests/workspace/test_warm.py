"""A factor kept for the next request: never of the forgotten, never trusted, known to all who look."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from tests.processes import kill
from tests.workspaces import OWNER, TEST, assert_checks, contents, made, people
from typer.testing import CliRunner

from efface import files
from efface.cli import app
from efface.parts.compact.kept_factor import NAME, KeptFactor
from efface.parts.compact.updated import Updated
from efface.workspace import Workspace
from efface.workspace.published import load
from efface.workspace.scan import scan
from efface.workspace.steps import Milestone

__all__ = ["made"]

pytestmark = pytest.mark.needs("posix")


@pytest.fixture
def kind() -> str:
    return "compact"


@pytest.fixture
def cold(made: dict[str, Path], tmp_path: Path) -> str:
    """The weights' digest after the request, without a kept factor."""
    path = shutil.copytree(made["compact"], tmp_path / "cold")
    certificate = Workspace.open(path).forget(owner=OWNER).certificate
    assert certificate is not None
    return certificate.weights_digest  # type: ignore[union-attr]


def factors(path: Path) -> list[str]:
    return sorted(p.relative_to(path).as_posix() for p in path.rglob("factor*"))


def digest_after(path: Path) -> str:
    certificate = Workspace.open(path).forget(owner=OWNER).certificate
    return certificate.weights_digest  # type: ignore[union-attr]


def test_a_request_uses_it_and_leaves_that_of_the_new_sums(
    path: Path, cold: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace.open(path)
    assert workspace.warm()
    assert factors(path) == [f"private/1/{NAME}"]
    used: list[int] = []
    real = Updated.of.__func__  # type: ignore[attr-defined]

    def watched(cls: type[Updated], *args: object) -> Updated | None:
        used.append(1)
        found: Updated | None = real(cls, *args)
        return found

    monkeypatch.setattr(Updated, "of", classmethod(watched))
    monkeypatch.setattr("efface.parts.compact.updated.MOST_ROWS", 1.0)  # of 6 rows and few features
    assert digest_after(path) == cold
    assert used == [1]
    assert factors(path) == [f"private/2/{NAME}"]
    kept = workspace.store.kept_model()
    again = path.parent / "again"
    again.mkdir()
    assert kept.user.keep_factor(again)
    assert (again / NAME).read_bytes() == (path / f"private/2/{NAME}").read_bytes()
    assert_checks(path)
    assert not workspace.warm(on=False)
    assert factors(path) == []
    assert digest_after_another(path)
    assert factors(path) == []


def digest_after_another(path: Path) -> bool:
    return Workspace.open(path).forget(owner="person-one").certificate is not None


@pytest.mark.parametrize("harm", ["missing", "damaged", "empty", "another", "link"])
def test_whatever_lies_there_the_weights_are_the_same(path: Path, cold: str, harm: str) -> None:
    Workspace.open(path).warm()
    file = path / f"private/1/{NAME}"
    data = file.read_bytes()
    file.unlink()
    if harm == "damaged":
        file.write_bytes(data[: len(data) // 2] + os.urandom(len(data) - len(data) // 2))
    elif harm == "empty":
        file.write_bytes(b"")
    elif harm == "another":
        arrays = files.read_arrays(path / "private/1/statistics.safetensors")
        files.write_arrays(file, arrays)
    elif harm == "link":
        file.symlink_to(path / "private/1/statistics.safetensors")
    assert digest_after(path) == cold
    assert factors(path) == [f"private/2/{NAME}"]


@pytest.mark.parametrize(
    "step",
    [
        Milestone.COMPUTED,
        Milestone.PRIVATE,
        Milestone.SWITCHED,
        Milestone.OLD_STATE_GONE,
        Milestone.OLD_ROWS_GONE,
        Milestone.FACTOR_KEPT,
        Milestone.DONE,
        Milestone.SCRUBBED,
    ],
)
def test_a_kill_leaves_no_factor_of_the_forgotten(
    path: Path, cold: str, step: Milestone, tmp_path: Path
) -> None:
    Workspace.open(path).warm()
    twin = shutil.copytree(path, tmp_path / "twin")
    before = (path / f"private/1/{NAME}").read_bytes()
    kill(path, "forget", step)
    workspace = Workspace.open(path)
    assert workspace.certificate.weights_digest == cold  # type: ignore[union-attr]
    assert digest_after(twin) == cold
    assert factors(path) == [f"private/2/{NAME}"]
    assert sorted(contents(path)) == sorted(contents(twin))
    after = (path / f"private/2/{NAME}").read_bytes()
    assert after == (twin / f"private/2/{NAME}").read_bytes() != before


def test_half_a_factor_is_put_right(path: Path) -> None:
    workspace = Workspace.open(path)
    workspace.warm()
    (path / f"private/1/{NAME}.tmp").write_bytes(b"half")
    assert not workspace.inventory.settled()
    assert factors(Workspace.open(path).path) == [f"private/1/{NAME}"]


def test_a_disk_without_room_for_it_is_no_harm(
    path: Path, cold: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Workspace.open(path).warm()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(KeptFactor, "save", full)
    assert digest_after(path) == cold
    assert factors(path) == []
    assert Workspace.open(path, recover=False).inventory.settled()


def test_scan_and_verify_know_it(path: Path) -> None:
    workspace = Workspace.open(path)
    workspace.warm()
    workspace.forget(owner=OWNER)
    gone = people().where(lambda record: record.owner == OWNER)
    found = scan(path, records=gone, owners=[OWNER])
    assert found.clean, found.findings
    assert f"private/2/{NAME}" in found.files
    assert_checks(path)
    assert load(path).accuracy(TEST) >= 0


def test_a_part_without_a_factor_keeps_none(made: dict[str, Path], tmp_path: Path) -> None:
    path = shutil.copytree(made["tangent"], tmp_path / "tangent")
    assert not Workspace.open(path).warm()
    assert factors(path) == []


def test_forgetting_everything_leaves_nothing_to_keep(path: Path) -> None:
    workspace = Workspace.open(path)
    workspace.warm()
    workspace.forget(everything=True)
    assert factors(path) == []


def test_the_command(path: Path) -> None:
    result = CliRunner().invoke(app, ["warm", str(path), "--json"])
    assert json.loads(result.stdout)["warm"] is True
    assert factors(path) == [f"private/1/{NAME}"]
    result = CliRunner().invoke(app, ["warm", str(path), "--off"])
    assert "no factor is kept" in result.stdout
    assert factors(path) == []
