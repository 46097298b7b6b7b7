"""A request that fails or is refused changes nothing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.workspaces import (
    CLASSES,
    CORE,
    NEW,
    OWNER,
    assert_forgotten,
    contents,
    fitted,
    people,
    without_ledger,
)

from efface.data.record import Split
from efface.data.records import Records
from efface.errors import EffaceError, FormatError, GuaranteeError, RequestError
from efface.guarantee.promise import Guarantee
from efface.model.kept import KeptModel
from efface.model.mixed_linear import MixedLinear
from efface.workspace import Workspace
from efface.workspace.steps import Milestone


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        ({"owner": "nobody"}, "nobody"),
        ({"ids": ["image-1-0", "no-such-id"]}, "no-such-id"),
        ({"ids": ["core-record-3"]}, "core record"),
        ({"ids": []}, "names no record"),
        ({}, "exactly one"),
        ({"owner": OWNER, "label": "a"}, "exactly one"),
    ],
)
def test_a_bad_request_changes_nothing(path: Path, request_: dict[str, Any], named: str) -> None:
    before = contents(path)
    with pytest.raises(RequestError, match=named):
        Workspace.open(path).forget(**request_)
    assert contents(path) == before


def test_a_forgotten_id_that_nobody_asked_for_alone(path: Path) -> None:
    Workspace.open(path).forget(owner=OWNER)
    before = contents(path)
    with pytest.raises(RequestError, match="if it was forgotten, nothing is left to do") as told:
        Workspace.open(path).forget(ids="image-1-2")
    assert contents(path) == before
    assert told.value.fix.startswith("check the spelling; if it was")  # one sentence, not two
    assert told.value.fix.count(".") == 1


@pytest.mark.parametrize(
    ("records", "named"),
    [
        (people()[:1], "in the workspace already"),
        (people()[[]], "no records to add"),
        (CORE[:1], "is a core record"),
        (Records([replace(CORE[0], id="x", split=Split.USER)], CLASSES), "same image is core data"),
        (Records([replace(NEW[0], label="d")], ("a", "b", "c", "d")), "'d' is none of the core's"),
    ],
)
def test_what_cannot_be_added_changes_nothing(path: Path, records: Records, named: str) -> None:
    before = contents(path)
    with pytest.raises(EffaceError, match=named):
        Workspace.open(path).add(records)
    assert contents(path) == before


def test_a_guarantee_that_is_not_reached_publishes_nothing(
    made: dict[str, Path], tmp_path: Path
) -> None:
    path = shutil.copytree(made["tangent"], tmp_path / "w")
    before = contents(path)
    workspace = Workspace.open(path)
    impossible = Guarantee.plan(1.0, 1e-5, 1e-15, workspace.settings["num_weights"])
    with pytest.raises(GuaranteeError):
        workspace.forget(owner=OWNER, guarantee=impossible)
    after = contents(path)
    assert workspace.inventory.settled()
    assert workspace.inventory.ledger.entries()[-1].step is Milestone.ABORTED
    assert_forgotten(workspace, people()[[]])
    assert without_ledger(before) == without_ledger(after)
    assert workspace.forget(owner=OWNER).release == 2


def test_an_unexpected_error_while_computing_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for model in (MixedLinear, KeptModel):
            patch.setattr(model, "save_user", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Workspace.open(path).forget(owner=OWNER)
    workspace = Workspace.open(path)
    assert workspace.number == 1
    assert OWNER in workspace.records.owners
    assert workspace.inventory.settled()


def test_a_folder_that_is_no_workspace(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="not a workspace"):
        Workspace.open(tmp_path)
    fitted("compact", people()).save(tmp_path)
    with pytest.raises(FormatError, match="not a workspace"):
        Workspace.open(tmp_path)
