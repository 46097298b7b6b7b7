"""Ctrl-C: a request is kept and said to be, can be called off, and only looking does not carry it out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.processes import kill
from tests.shell import efface, values_of
from tests.workspaces import (
    OWNER,
    assert_checks,
    contents,
    in_flight,
    without_ledger,
)

from efface.errors import Interrupted
from efface.model.kept import KeptModel
from efface.model.mixed_linear import MixedLinear
from efface.workspace import Workspace
from efface.workspace.steps import Milestone


@pytest.mark.parametrize("command", [("verify",), ("forget", "--owner", OWNER, "--dry-run")])
def test_only_looking_does_not_carry_out_a_request(path: Path, command: tuple[str, ...]) -> None:
    kill(path, "forget", Milestone.ACCEPTED)
    before = contents(path)
    result = efface(command[0], path, *command[1:])
    assert contents(path) == before
    if command[0] == "verify":
        assert result.exit_code == 4
        assert "efface cancel" in " ".join(result.stdout.split())


def test_an_interrupted_request_says_what_will_happen(
    path: Path, made: dict[str, Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        for model in (MixedLinear, KeptModel):
            patch.setattr(model, "save_user", stop)
        with pytest.raises(Interrupted, match="is kept"):
            Workspace.open(path).forget(owner=OWNER)
        assert in_flight(path)
        result = efface("forget", path, "--owner", OWNER)
    assert result.exit_code == 130
    assert "efface resume" in result.stderr
    assert "efface cancel" in result.stderr
    values = values_of(efface("cancel", path, "--json"))
    assert (values["action"], values["num_records"], values["release"]) == ("forget", 6, 1)
    assert without_ledger(contents(path)) == without_ledger(contents(made[kind]))
    assert "nothing to cancel" in efface("cancel", path).stdout
    assert efface("verify", path).exit_code == 0


def test_an_interrupt_before_the_intent_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    before = contents(path)
    with monkeypatch.context() as patch:
        patch.setattr("efface.workspace.told.WorkspaceLedger.accept", stop)
        with pytest.raises(Interrupted, match="nothing was changed"):
            Workspace.open(path).forget(owner=OWNER)
    assert contents(path) == before


@pytest.mark.parametrize("action", ["forget", "add"])
@pytest.mark.parametrize("step", [Milestone.ACCEPTED, Milestone.PRIVATE, Milestone.PREPARED])
def test_a_request_can_be_called_off_until_it_is_published(
    path: Path, kind: str, made: dict[str, Path], action: str, step: Milestone
) -> None:
    kill(path, action, step)
    assert efface("cancel", path).exit_code == 0
    assert_checks(path)
    found = without_ledger(contents(path))
    index = {name for name in found if name.startswith("activations/")}
    expected = without_ledger(contents(made[kind]))
    assert found.keys() == expected.keys()
    assert {n for n in found if found[n] != expected[n]} <= index  # places that were used are free


def test_a_published_request_is_not_called_off(path: Path) -> None:
    kill(path, "forget", Milestone.SWITCHED)
    result = efface("cancel", path)
    assert result.exit_code == 2
    assert "efface resume" in result.stderr
    assert OWNER not in Workspace.open(path).records.owners
