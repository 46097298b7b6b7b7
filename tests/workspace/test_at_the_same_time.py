"""Writers queue up, and readers see one release or the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.processes import PROCESSES, quick
from tests.workspaces import OWNER, TEST, assert_checks, fitted, people

from efface.model.mixed_linear import MixedLinear
from efface.workspace import Workspace
from efface.workspace.published import load


def forgetting_child(path: Path, owner: str) -> None:
    quick()
    Workspace.open(path).forget(owner=owner)


def test_two_processes_queue_up(path: Path, kind: str) -> None:
    owners = (OWNER, "person-one")
    children = [PROCESSES.Process(target=forgetting_child, args=(path, o)) for o in owners]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    workspace = Workspace.open(path)
    left = people().where(lambda record: record.owner not in owners)
    assert workspace.records == left
    assert workspace.number == 3
    if kind == "compact":
        digest = fitted(kind, left).user.statistics_digest
        assert workspace.model().user.statistics_digest == digest
    assert_checks(path)


def reading_child(path: Path, ready: Any, result: Any) -> None:
    """Load and predict until the third release is there, and once more."""
    quick()
    seen, last = [], False
    while True:
        model = load(path)
        seen.append((model._user_digest, tuple(model.predict(TEST))))
        ready.set()
        if last:
            break
        last = Workspace(path).number >= 3
    result.put(seen)


def test_readers_see_one_release_or_the_other(path: Path) -> None:
    def served() -> tuple[str, tuple[str, ...]]:
        model = load(path)
        return model._user_digest, tuple(model.predict(TEST))

    ready, result = PROCESSES.Event(), PROCESSES.SimpleQueue()
    child = PROCESSES.Process(target=reading_child, args=(path, ready, result))
    child.start()
    assert ready.wait(60)
    known = [served()]
    for owner in (OWNER, "person-one"):
        Workspace.open(path).forget(owner=owner)
        known.append(served())
    seen = result.get()
    child.join()
    assert set(seen) <= set(known)
    assert seen[0] == known[0]
    assert seen[-1] == known[-1]
    assert len(set(known)) == 3


def test_a_reader_that_comes_too_late_reads_the_new_release(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release is deleted between reading CURRENT and reading the release."""
    real, calls = MixedLinear.load.__func__, []  # type: ignore[attr-defined]

    def late(cls: type[MixedLinear], folder: Path, **options: Any) -> MixedLinear:
        calls.append(folder.name)
        if len(calls) == 1:
            with monkeypatch.context() as patch:
                patch.setattr(MixedLinear, "load", classmethod(real))
                Workspace.open(path).forget(owner=OWNER)
        return real(cls, folder, **options)

    monkeypatch.setattr(MixedLinear, "load", classmethod(late))
    load(path)
    assert calls == ["1", "2"]
