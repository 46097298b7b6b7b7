"""A full disk loses no request and no release."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes import PROCESSES, quick
from tests.workspaces import (
    OWNER,
    TEST,
    assert_checks,
    contents,
    fingerprint,
    fitted,
    people,
)

from efface import files
from efface.errors import EffaceError, FormatError
from efface.ledger import sqlite
from efface.model.mixed_linear import MixedLinear
from efface.network.activations import ActivationCache
from efface.workspace import Workspace
from efface.workspace.published import load


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_database() -> sqlite3.OperationalError:
    problem = sqlite3.OperationalError("database or disk is full")
    problem.sqlite_errorcode = sqlite3.SQLITE_FULL
    return problem


@pytest.mark.parametrize(
    "functions", [("_write_beside", "write_arrays"), ("write_json",)], ids=["arrays", "json"]
)
def test_a_full_disk_keeps_the_request_and_the_old_release(
    path: Path,
    kind: str,
    functions: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: Callable[[str, str], tuple[Path, dict[str, Any]]],
) -> None:
    old = load(path).logits(TEST)
    with monkeypatch.context() as patch:
        # the request still finds room, what comes after it does not
        for function in functions:
            patch.setattr(files, function, full)
        with pytest.raises(EffaceError, match=r"disk is full; the old release .*efface resume"):
            Workspace.open(path).forget(owner=OWNER)
        assert torch.equal(load(path).logits(TEST), old)
        assert not (path / "releases/2").exists()
    Workspace.open(path)
    assert fingerprint(path) == undisturbed(kind, "forget")[1]


def test_no_room_for_the_intent_is_no_request(
    path: Path, monkeypatch: pytest.MonkeyPatch, made: dict[str, Path], kind: str
) -> None:
    for statement in ("BEGIN", "INSERT INTO pending", "INSERT INTO ledger_rows", "COMMIT"):

        def run(connection: Any, sql: str, params: Any = (), of: str = statement) -> Any:
            if sql.startswith(of):
                raise full_database()
            return connection.execute(sql, params).fetchall()

        with monkeypatch.context() as patch:
            patch.setattr(sqlite, "run", run)
            with pytest.raises(EffaceError, match="disk is full; nothing was changed"):
                Workspace.open(path).forget(owner=OWNER)
        assert contents(path) == contents(made[kind])


def test_no_room_while_purging_is_said_and_made_up_for(
    made: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: Callable[[str, str], tuple[Path, dict[str, Any]]],
) -> None:
    path = shutil.copytree(made["tangent"], tmp_path / "w")
    with monkeypatch.context() as patch:
        patch.setattr(ActivationCache, "purge", full)
        with pytest.raises(EffaceError, match=r"new release is served.*efface resume"):
            Workspace.open(path).forget(owner=OWNER)
    assert not Workspace.open(path, recover=False).inventory.settled()
    Workspace.open(path)
    assert fingerprint(path) == undisturbed("tangent", "forget")[1]


def test_a_full_disk_while_training_leaves_no_workspace(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fitted(kind, people())
    with monkeypatch.context() as patch:
        patch.setattr(MixedLinear, "save_user", full)
        with pytest.raises(EffaceError, match="disk is full; the folder is as it was"):
            Workspace.create(tmp_path / "w", model)
    with pytest.raises(FormatError, match="not a workspace"):
        Workspace.open(tmp_path / "w")
    Workspace.create(tmp_path / "w", model)
    assert_checks(tmp_path / "w")


def limited_child(path: Path, limit: int, result: Any) -> None:
    quick()
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        Workspace.open(path).forget(owner=OWNER)
    except EffaceError as error:
        result.put(str(error))


def test_a_real_limit_on_files(
    path: Path, kind: str, undisturbed: Callable[[str, str], tuple[Path, dict[str, Any]]]
) -> None:
    """The system refuses to write more than 36 kB into a file, as much as SQLite needs: safetensors'
    own way of failing."""
    result = PROCESSES.SimpleQueue()
    child = PROCESSES.Process(target=limited_child, args=(path, 36 * 1024, result))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert "the disk is full; the old release is still served" in result.get()
    assert Workspace(path).number == 1
    Workspace.open(path)
    assert fingerprint(path) == undisturbed(kind, "forget")[1]
