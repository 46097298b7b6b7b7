"""Training into a folder: nothing of somebody else is touched, and a model is replaced by one switch."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes import PROCESSES, kill, quick
from tests.shell import efface
from tests.workspaces import (
    LEFT,
    NEW,
    OWNER,
    TEST,
    assert_checks,
    assert_forgotten,
    contents,
    fitted,
    people,
    without_ledger,
)

from efface import files
from efface.errors import EffaceError, RecordError
from efface.model.mixed_linear import MixedLinear
from efface.workspace import Workspace
from efface.workspace.published import CURRENT, load
from efface.workspace.steps import KILL_AT, Milestone

# --- an accepted request survives training anew ---------------------------------------------------


@pytest.mark.parametrize("step", [Milestone.ACCEPTED, Milestone.SWITCHED, Milestone.PUBLISHED])
def test_an_accepted_request_is_not_lost_by_overwriting(
    path: Path, kind: str, step: Milestone
) -> None:
    kill(path, "forget", step)
    with pytest.raises(RecordError, match="was forgotten here"):
        Workspace.create(path, fitted(kind, people()), overwrite=True)
    assert OWNER not in Workspace.open(path).records.owners
    workspace = Workspace.create(path, fitted(kind, LEFT), overwrite=True)
    assert_forgotten(workspace, people().select(owner=OWNER))
    assert_checks(path)


# --- other people's files -------------------------------------------------------------------------


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "private/diary",
        "certificates/1.public.json",
        "releases/1/notes",
        "activations/x",
        "core/1/x",
        "config.toml",
        "model.json",
        "journal.jsonl",
        "ledger.sqlite",
        "pending.json",
        "core.safetensors",
    ],
)
def test_a_folder_of_somebody_else_is_left_alone(
    tmp_path: Path, name: str, overwrite: bool
) -> None:
    file = tmp_path / "w" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(EffaceError, match="not empty, and no workspace"):
        Workspace.create(tmp_path / "w", fitted("compact", people()), overwrite=overwrite)
    assert contents(tmp_path / "w") == {name: b"mine"}


def test_strangers_files_in_a_workspace_survive_everything(path: Path, kind: str) -> None:
    mine = ["notes.txt", "private/diary", "certificates/me.txt", "releases/x/y", "core/z", "a.tmp"]
    for name in mine:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("mine")
    efface("verify", path)
    kill(path, "forget", Milestone.PRIVATE)
    Workspace.open(path)
    Workspace.open(path).add(NEW)
    Workspace.create(path, fitted(kind, LEFT), overwrite=True)
    assert {(path / name).read_text() for name in mine} == {"mine"}


def test_a_workspace_that_lost_its_current_is_not_cleared(path: Path, kind: str) -> None:
    (path / CURRENT).unlink()
    before = contents(path)
    with pytest.raises(EffaceError, match="not empty, and no workspace"):
        Workspace.create(path, fitted(kind, people()))
    assert contents(path) == before


# --- replacing a model ----------------------------------------------------------------------------


def overwriting_child(path: Path, kind: str, step: str) -> None:
    quick()
    model = fitted(kind, LEFT)
    os.environ[KILL_AT] = step
    Workspace.create(path, model, overwrite=True)


@pytest.mark.parametrize(
    "step",
    [
        Milestone.ACCEPTED,
        Milestone.RELEASE,
        Milestone.PRIVATE,
        Milestone.CERTIFICATE,
        Milestone.PREPARED,
        Milestone.SWITCHED,
        Milestone.OLD_RELEASES_GONE,
        Milestone.OLD_CORE_GONE,
        Milestone.OLD_STATE_GONE,
        Milestone.OLD_CERTIFICATES_GONE,
        Milestone.OLD_ROWS_GONE,
        Milestone.DONE,
    ],
)
def test_a_kill_while_overwriting_leaves_the_old_model_or_the_new(
    path: Path, kind: str, step: Milestone, made: dict[str, Path]
) -> None:
    old = load(path).logits(TEST)
    child = PROCESSES.Process(target=overwriting_child, args=(path, kind, str(step)))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    served = load(path).logits(TEST)  # before anybody has repaired anything
    switched = list(Milestone).index(step) >= list(Milestone).index(Milestone.SWITCHED)
    assert torch.equal(served, fitted(kind, LEFT).logits(TEST) if switched else old)
    workspace = Workspace.open(path)
    assert set(workspace.records.ids) == set((LEFT if switched else people()).ids)
    assert workspace.number == (2 if switched else 1)
    if not switched:
        assert without_ledger(contents(path)) == without_ledger(contents(made[kind]))
    assert_checks(path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_while_overwriting_keeps_the_old_model(
    path: Path, kind: str, made: dict[str, Path], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(MixedLinear, "save_user", broken)
        with pytest.raises(EffaceError, match="the folder is as it was"):
            Workspace.create(path, fitted(kind, LEFT), overwrite=True)
    assert without_ledger(contents(path)) == without_ledger(contents(made[kind]))
    assert_checks(path)


def test_a_workspace_held_across_a_retrain_sees_the_new_settings(
    made: dict[str, Path], tmp_path: Path
) -> None:
    path = shutil.copytree(made["tangent"], tmp_path / "w")
    held = Workspace.open(path)
    assert held.settings["user"] == "tangent"
    Workspace.create(path, fitted("compact", people()), overwrite=True)
    assert held.settings["user"] == "compact"
    held.forget(owner=OWNER)
    assert_checks(path)


def test_readers_read_on_while_a_model_is_replaced(
    path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the loader says when its files vanish under its hands: it reads the new release."""
    real, calls = files.read_tensors, []

    def vanishing(file: Path) -> Any:
        calls.append(file)
        if len(calls) == 1:
            monkeypatch.setattr(files, "read_tensors", real)
            Workspace.create(path, fitted(kind, LEFT), overwrite=True)
            raise RuntimeError("unable to open file in read-only mode: No such file or directory")
        return real(file)

    monkeypatch.setattr(files, "read_tensors", vanishing)
    served = load(path)
    assert torch.equal(served.logits(TEST), fitted(kind, LEFT).logits(TEST))


def test_an_error_that_is_not_the_readers_is_raised(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "read_tensors", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        load(path)
