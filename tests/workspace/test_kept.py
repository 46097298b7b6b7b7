"""What is kept of those who left, and who may read it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.processes import kill
from tests.workspaces import (
    NEW,
    OWNER,
    assert_checks,
    contents,
    fitted,
    people,
)

from efface.workspace import Workspace
from efface.workspace.published import CURRENT
from efface.workspace.steps import Milestone


def test_digests_of_superseded_releases_are_removed(path: Path, kind: str) -> None:
    """Whoever has the image could find its label by trying which sums have the old digest."""
    before = Workspace.open(path).forget(ids="image-1-0").certificate
    assert before is not None
    telling = [str(v) for k, v in before.private().items() if k.endswith(("digest", "residual"))]
    Workspace.open(path).forget(owner=OWNER)
    text = b"".join(d for n, d in contents(path).items() if n.startswith("certificates/")).decode()
    assert not [value for value in telling if value in text]
    old = json.loads((path / "certificates/2.public.json").read_text())
    assert old["superseded"] is True
    assert old["passed"] is True
    assert not (path / "certificates/2.private.json").exists()
    assert_checks(path)


def test_what_was_forgotten_is_kept_as_hmacs_alone(path: Path) -> None:
    gone = people().select(owner=OWNER)
    Workspace.open(path).forget(owner=OWNER)
    Workspace.open(path).forget(ids="image-1-0")
    everything = b"".join(contents(path).values())
    for record in (*gone, people()[0]):
        assert record.digest.encode() not in everything
        assert bytes.fromhex(record.digest) not in everything
    kept = json.loads((path / "private/3/forgotten.json").read_text())["hmac_sha256"]
    assert len(kept) == 7
    assert kept == sorted(kept)  # not in the order of requests
    (path / "private/key.json").write_text(json.dumps({"schema": "efface.key/1", "key": "00" * 32}))
    assert gone[0].digest not in Workspace.open(path, recover=False).inventory.forgotten


PUBLIC = ("CURRENT", "core/", "releases/", "certificates/")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_modes_do_not_depend_on_the_umask(kind: str, tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        workspace = Workspace.create(tmp_path / "w", fitted(kind, people()), config="# nothing")
        workspace.forget(ids="image-1-0")
        workspace.add(NEW)
        workspace.forget(owner=OWNER)
        workspace.plan(sigma=1e5)
    finally:
        os.umask(before)
    for file in (workspace.path, *workspace.path.rglob("*")):
        name = file.relative_to(workspace.path).as_posix()
        secret = name.endswith(".private.json") or name.endswith("core-records.json")
        public = name == "." or (f"{name}/".startswith(PUBLIC) and not secret)
        public = public or name == CURRENT
        folder = file.is_dir()
        wanted = (0o755 if folder else 0o644) if public else (0o700 if folder else 0o600)
        assert file.stat().st_mode & 0o777 == wanted, name


def test_a_request_in_flight_is_its_owners_alone(path: Path) -> None:
    kill(path, "add", Milestone.PRIVATE)
    for file in path.glob("ledger.sqlite*"):
        assert file.stat().st_mode & 0o777 == 0o600
    for file in (path / "private").rglob("*"):
        assert file.stat().st_mode & 0o077 == 0
