"""Asking again for somebody who was forgotten: when that was, by which receipt, from keyed hashes alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.shell import efface, values_of
from tests.workspaces import NEW, OWNER, contents

from efface.model.request import Request
from efface.receipts import keys
from efface.workspace import Workspace, earlier
from efface.workspace.earlier import ForgottenError
from efface.workspace.protocol import RequestProtocol

OTHERS = ("person-one", "person-four")


@pytest.mark.parametrize(
    "whom", [{"owner": OWNER}, {"ids": "image-1-2"}, {"ids": ["image-1-2", "image-1-3"]}]
)
def test_the_same_request_twice(path: Path, whom: dict[str, str]) -> None:
    Workspace.open(path).forget(**whom)  # type: ignore[arg-type]
    Workspace.open(path).forget(owner="person-one")
    before = contents(path)
    with pytest.raises(ForgottenError, match=r"It was forgotten on 20\d\d-\d\d-\d\d by request 2"):
        Workspace.open(path).forget(**whom)  # type: ignore[arg-type]
    with pytest.raises(ForgottenError) as found:
        Workspace.open(path, recover=False).preview(**whom)  # type: ignore[arg-type]
    assert (found.value.earlier.number, found.value.exit_code) == (2, 2)
    assert contents(path) == before
    told = b"".join(data for name, data in contents(path).items() if "ledger" in name)
    assert OWNER.encode() not in told


def test_another_spelling_of_the_name(path: Path) -> None:
    Workspace.open(path).forget(owner=f" {OWNER} ")
    with pytest.raises(ForgottenError):
        Workspace.open(path).forget(owner=OWNER)


def test_in_the_shell_with_the_receipt(path: Path, tmp_path: Path) -> None:
    keys.make(tmp_path / "signing.key")
    again = ("forget", path, "--owner", OWNER)
    assert efface(*again, "--key", tmp_path / "signing.key").exit_code == 0
    values = values_of(efface(*again, "--json"), 2)
    assert values["forgotten"]["request"] == 2
    assert values["forgotten"]["receipt"] == "receipts/2.json"
    assert f"efface evidence {path} --request 2" in values["fix"]
    shown = efface(*again)
    assert shown.exit_code == 2
    assert values["forgotten"]["time"][:10] in shown.stderr
    assert "receipts/2.json" in shown.stderr


def test_each_of_several_that_were_carried_out_together(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(earlier, "AT_ONCE", 1)  # a row each
    lines = [json.dumps({"owner": name}) for name in OTHERS]
    (tmp_path / "requests.jsonl").write_text("\n".join(lines))
    assert efface("forget", path, "--from", tmp_path / "requests.jsonl").exit_code == 0
    for name in OTHERS:
        assert values_of(efface("forget", path, "--owner", name, "--json"), 2)["forgotten"]
        assert name.encode() not in b"".join(contents(path).values())
    refused = values_of(efface("forget", path, "--from", tmp_path / "requests.jsonl", "--json"), 2)
    assert refused["error"].startswith("line 1: ")
    assert refused["forgotten"]["request"] == 2
    unknown = values_of(efface("forget", path, "--owner", "mallory", "--json"), 2)
    assert "forgotten" not in unknown
    assert efface("ledger", "verify", path).exit_code == 0
    assert efface("verify", path).exit_code == 0


def test_one_that_was_called_off_is_not_taken_for_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had the number that the next one got."""
    with monkeypatch.context() as patch:
        patch.setattr(RequestProtocol, "_carry_out", lambda *_: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            Workspace.open(path).forget(owner="person-one")
    workspace = Workspace.open(path, recover=False)
    assert workspace.cancel() is not None
    Workspace.open(path).forget(owner=OWNER)
    inventory = Workspace.open(path).inventory
    found = earlier.find(inventory, Request.of(owner=OWNER))
    assert found is not None
    assert found.number == 2
    assert earlier.find(inventory, Request.of(owner="person-one")) is None


def test_somebody_who_came_back_can_be_forgotten_again(path: Path) -> None:
    workspace = Workspace.open(path)
    workspace.forget(owner=OWNER)
    workspace.add(NEW)
    assert Workspace.open(path).forget(owner=OWNER).release == 4
    with pytest.raises(ForgottenError, match="by request 4"):
        Workspace.open(path).forget(owner=OWNER)
