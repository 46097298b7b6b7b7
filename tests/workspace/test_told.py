"""The ledger of a workspace: steps as rows, the request in flight, and what becomes of an earlier journal."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from pathlib import Path

import pytest
from tests.places import ROOT
from tests.processes import kill
from tests.workspace.journals import write_journal
from tests.workspaces import OWNER, assert_checks, contents, in_flight

from efface.errors import LedgerError
from efface.ledger import Ledger
from efface.model.request import Request
from efface.workspace import Workspace
from efface.workspace.journal import FILES, Journal
from efface.workspace.steps import Action, Intent, Milestone
from efface.workspace.told import WorkspaceLedger

INTENT = Intent(2, Action.FORGET, ("ab" * 32,), Request.of(owner="OTTILIE"))
FIELDS = {"number", "action", "step", "when", "manifest", "request", "lines", "digest"}


@pytest.fixture
def told(tmp_path: Path) -> WorkspaceLedger:
    ledger = WorkspaceLedger(tmp_path)
    ledger.append(1, Action.TRAIN, Milestone.DONE)
    ledger.accept(INTENT)
    return ledger


def test_steps_are_read_back(told: WorkspaceLedger) -> None:
    first, second = told.entries()
    assert (first.number, first.action, first.step) == (1, Action.TRAIN, Milestone.DONE)
    assert (second.number, second.step, second.ended) == (2, Milestone.ACCEPTED, False)
    assert told.pending() == INTENT


def test_a_request_and_its_last_row_go_together(told: WorkspaceLedger, tmp_path: Path) -> None:
    assert b"OTTILIE" in b"".join(contents(tmp_path).values())
    told.end(2, Action.FORGET, Milestone.DONE)
    told.scrub()
    assert told.pending() is None
    assert told.entries()[-1].step is Milestone.DONE
    assert b"OTTILIE" not in b"".join(contents(tmp_path).values())
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.sqlite"]


def test_no_ledger_has_no_rows(tmp_path: Path) -> None:
    told = WorkspaceLedger(tmp_path)
    assert told.entries() == []
    assert told.pending() is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", [Milestone.ACCEPTED, Milestone.PURGED, Milestone.DONE])
def test_names_are_gone_after_a_kill_and_a_recovery(path: Path, step: Milestone) -> None:
    """The log still holds the request when the process dies; the next one that opens it sees to that."""
    kill(path, "forget", step)
    Workspace.open(path)
    assert not in_flight(path)
    found = contents(path)
    assert "ledger.sqlite-wal" not in found
    assert not [name for name, data in found.items() if OWNER.encode() in data]


def test_rows_name_nobody(path: Path) -> None:
    """They have these fields, and so no place for a name."""
    Workspace.open(path).forget(owner=OWNER)
    with Ledger.open(path / "ledger.sqlite") as ledger:
        rows = list(ledger.rows())
    assert {row.kind for row in rows} == {"step"}
    assert {key for row in rows for key in row.values} <= FIELDS
    asked = [row.values["request"] for row in rows if "request" in row.values]
    assert [len(text) for text in asked] == [64]


def test_a_row_that_is_no_step_is_an_error(told: WorkspaceLedger, tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger, ledger.transaction() as tx:
        tx.append("step", {"number": "2", "action": "forget", "step": "done"})
    with pytest.raises(LedgerError, match="row 3 of the ledger is no step"):
        told.entries()


# --- journals of earlier versions -----------------------------------------------------------------


STEPS = ((1, "train", "done"), (2, "forget", "accepted"), (2, "forget", "prepared"))


@pytest.fixture
def earlier(tmp_path: Path) -> WorkspaceLedger:
    write_journal(tmp_path, *STEPS)
    (tmp_path / "pending.json").write_text(INTENT.to_text())
    return WorkspaceLedger(tmp_path)


def test_a_journal_is_read_before_it_is_taken_over(
    earlier: WorkspaceLedger, tmp_path: Path
) -> None:
    before = contents(tmp_path)
    assert [(e.number, e.action, e.step) for e in earlier.entries()] == list(STEPS)
    assert earlier.pending() == INTENT
    assert contents(tmp_path) == before


def test_a_journal_is_taken_over(earlier: WorkspaceLedger, tmp_path: Path) -> None:
    line = (tmp_path / "journal.jsonl").read_text().splitlines()[-1]
    earlier.take_over()
    assert [(e.number, e.action, e.step, e.when) for e in earlier.entries()] == [
        (*step, "then") for step in STEPS
    ]
    assert earlier.pending() == INTENT
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.sqlite"]
    first = earlier.rows()[0]
    assert first.kind == "migrated"
    assert first.values == {"lines": 3, "digest": hashlib.sha256(line.encode()).hexdigest()}


def test_a_crash_while_it_is_taken_over(earlier: WorkspaceLedger, tmp_path: Path) -> None:
    """Both are there, and the ledger counts: what is in it by then is not taken over again."""
    kept = {name: (tmp_path / name).read_bytes() for name in FILES[:3]}
    earlier.take_over()
    earlier.end(2, Action.FORGET, Milestone.DONE)
    for name, data in kept.items():
        (tmp_path / name).write_bytes(data)
    assert earlier.pending() is None
    assert earlier.entries()[-1].step is Milestone.DONE
    assert {path.name for path in earlier.strays()} == set(kept)
    earlier.take_over()
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.sqlite"]
    assert len(earlier.entries()) == 4
    (tmp_path / "ledger.sqlite").write_bytes(b"")  # it died before the first commit
    for name, data in kept.items():
        (tmp_path / name).write_bytes(data)
    assert earlier.pending() == INTENT
    earlier.take_over()
    assert len(earlier.entries()) == 3


@pytest.mark.parametrize("lines", [0, 1, 2])
def test_a_shortened_journal_is_not_taken_over(
    earlier: WorkspaceLedger, tmp_path: Path, lines: int
) -> None:
    text = (tmp_path / "journal.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "journal.jsonl").write_text("".join(text[:lines]))
    with pytest.raises(LedgerError, match="missing, shortened or changed: it had 3 lines"):
        earlier.take_over()
    assert earlier.journal.left()


@pytest.mark.parametrize("line", [0, 1])
def test_a_changed_line_is_noticed_at_the_next(
    earlier: WorkspaceLedger, tmp_path: Path, line: int
) -> None:
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    lines[line] = lines[line].replace('"number": ', '"number": 1')
    (tmp_path / "journal.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(LedgerError, match=rf"line {line + 2} of journal\.jsonl"):
        earlier.entries()


@pytest.mark.parametrize("text", ["not json", "{}", "[]", '{"previous": ""}'])
def test_a_line_that_is_none_is_noticed(
    earlier: WorkspaceLedger, tmp_path: Path, text: str
) -> None:
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write(text + "\n")
    with pytest.raises(LedgerError, match="line 4"):
        earlier.entries()


@pytest.mark.parametrize("text", [None, "{", "{}", '{"schema": "efface.journal-head/1"}', "[]"])
def test_a_missing_or_damaged_head_is_noticed(
    earlier: WorkspaceLedger, tmp_path: Path, text: str | None
) -> None:
    (tmp_path / "journal.head").unlink()
    if text is not None:
        (tmp_path / "journal.head").write_text(text)
    with pytest.raises(LedgerError, match=r"journal\.head is missing or damaged"):
        earlier.entries()


def test_a_line_cut_short_is_ignored(tmp_path: Path) -> None:
    write_journal(tmp_path, *STEPS)
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"action": "for')
    assert len(Journal(tmp_path).entries()) == 3


@pytest.mark.parametrize("kind", ["compact", "tangent"])
def test_an_earlier_workspace_is_taken_over_by_opening_it(tmp_path: Path, kind: str) -> None:
    with tarfile.open(ROOT / "tests" / "workspace" / "earlier.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    path = tmp_path / kind
    before, lines = contents(path), (path / "journal.jsonl").read_text().splitlines()
    assert_checks(path)  # only looks
    assert contents(path) == before
    opened = Workspace.open(path)
    entries = opened.inventory.ledger.entries()
    told = [json.loads(line) for line in lines]
    assert [(e.number, e.action, e.step, e.when) for e in entries] == [
        (v["number"], v["action"], v["step"], v["when"]) for v in told
    ]
    after = contents(path)
    assert {n: d for n, d in before.items() if not n.startswith("journal")} == {
        n: d for n, d in after.items() if n != "ledger.sqlite"
    }
    assert_checks(path)


def test_an_earlier_request_in_flight_is_carried_out(tmp_path: Path) -> None:
    with tarfile.open(ROOT / "tests" / "workspace" / "earlier.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    path = tmp_path / "compact"
    copy = shutil.copytree(path, tmp_path / "copy")
    number = Workspace.open(copy).number + 1
    gone = Workspace.open(copy).records.select(owner="person-four")
    steps = [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]
    known = [(v["number"], v["action"], v["step"]) for v in steps]
    write_journal(path, *known, (number, "forget", "accepted"))
    intent = Intent(number, Action.FORGET, gone.digests, Request.of(owner="person-four"))
    (path / "pending.json").write_text(intent.to_text())
    assert "person-four" not in Workspace.open(path).records.owners
    assert_checks(path)
    assert not [name for name, data in contents(path).items() if b"person-four" in data]
