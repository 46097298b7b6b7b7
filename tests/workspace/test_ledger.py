"""The ledger: lines that follow from each other, intents that read back, a lock that holds."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efface.errors import LedgerError
from efface.files import locked
from efface.guarantee.promise import Guarantee
from efface.model.request import Request, RequestKind
from efface.workspace.ledger import Action, Intent, Journal, Milestone, reach


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(1, Action.TRAIN, Milestone.DONE)
    journal.append(2, Action.FORGET, Milestone.ACCEPTED)
    journal.append(2, Action.FORGET, Milestone.PUBLISHED)
    return journal


def test_lines_are_read_back(journal: Journal) -> None:
    first, second, third = journal.entries()
    assert (first.number, first.action, first.step) == (1, Action.TRAIN, Milestone.DONE)
    assert second.step is Milestone.ACCEPTED
    assert third.step is Milestone.PUBLISHED


def test_no_journal_has_no_lines(tmp_path: Path) -> None:
    assert Journal(tmp_path / "none.jsonl").entries() == []


def test_a_missing_or_shortened_journal_is_noticed(journal: Journal) -> None:
    whole = journal.path.read_bytes()
    for lines in range(3):
        journal.path.write_bytes(b"".join(whole.splitlines(keepends=True)[:lines]))
        with pytest.raises(LedgerError, match="missing, shortened or changed: it had 3 lines"):
            journal.entries()
    journal.path.unlink()
    with pytest.raises(LedgerError, match="missing, shortened"):
        journal.entries()


def test_a_change_of_the_last_line_is_noticed(journal: Journal) -> None:
    journal.path.write_bytes(journal.path.read_bytes().replace(b"published", b"prepared"))
    with pytest.raises(LedgerError, match="shortened or changed"):
        journal.entries()


@pytest.mark.parametrize("text", [None, "{", "{}", '{"schema": "efface.journal-head/1"}', "[]"])
def test_a_missing_or_damaged_head_is_noticed(journal: Journal, text: str | None) -> None:
    journal.head.unlink()
    if text is not None:
        journal.head.write_text(text)
    with pytest.raises(LedgerError, match=r"journal\.head is missing or damaged"):
        journal.entries()


def test_a_head_that_lags_behind_is_no_harm(journal: Journal) -> None:
    """A crash between a line and the head, or no room for the head."""
    head = journal.head.read_bytes()
    journal.append(2, Action.FORGET, Milestone.PURGED)
    journal.head.write_bytes(head)
    assert len(journal.entries()) == 4


@pytest.mark.needs("posix")
def test_the_journal_is_its_owners_alone(journal: Journal) -> None:
    assert {p.stat().st_mode & 0o777 for p in (journal.path, journal.head)} == {0o600}


@pytest.mark.parametrize("line", [0, 1])
def test_a_changed_line_is_noticed_at_the_next(journal: Journal, line: int) -> None:
    lines = journal.path.read_text().splitlines()
    lines[line] = lines[line].replace('"number": ', '"number": 1')
    journal.path.write_text("\n".join(lines) + "\n")
    with pytest.raises(LedgerError, match=f"line {line + 2} of journal.jsonl"):
        journal.entries()


def test_a_missing_line_is_noticed(journal: Journal) -> None:
    lines = journal.path.read_text().splitlines()
    journal.append(2, Action.FORGET, Milestone.PURGED)
    last = journal.path.read_text().splitlines()[3]
    journal.path.write_text("\n".join([lines[0], lines[2], lines[2], last]) + "\n")
    with pytest.raises(LedgerError, match="line 2"):
        journal.entries()


@pytest.mark.parametrize("text", ["not json", "{}", "[]", '{"previous": ""}'])
def test_a_line_that_is_none_is_noticed(journal: Journal, text: str) -> None:
    with journal.path.open("a") as file:
        file.write(text + "\n")
    with pytest.raises(LedgerError, match="line 4"):
        journal.entries()


def test_a_line_cut_short_is_ignored_then_dropped(journal: Journal) -> None:
    whole, head = journal.path.read_bytes(), journal.head.read_bytes()
    for cut in (1, 40, len(whole.splitlines()[-1])):
        journal.path.write_bytes(whole + whole.splitlines()[-1][:cut])
        assert len(journal.entries()) == 3
        journal.append(2, Action.FORGET, Milestone.PURGED)
        assert [entry.step for entry in journal.entries()][-2:] == [
            Milestone.PUBLISHED,
            Milestone.PURGED,
        ]
        journal.path.write_bytes(whole)
        journal.head.write_bytes(head)
    journal.path.write_bytes(whole + b"{")
    journal.repair()
    assert journal.path.read_bytes() == whole


def test_a_line_that_does_not_fit_leaves_the_journal_as_it_was(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = journal.path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        journal.append(2, Action.FORGET, Milestone.PURGED)
    assert journal.path.read_bytes() == before


def test_a_journal_names_nobody(journal: Journal) -> None:
    """Its lines have these fields, and so no place for a name."""
    fields = {"number", "action", "step", "when", "previous"}
    for line in journal.path.read_text().splitlines():
        assert set(json.loads(line)) == fields


names = st.text(min_size=1)
requests = st.one_of(
    st.none(),
    st.just(Request(RequestKind.EVERYTHING)),
    st.builds(Request, st.just(RequestKind.IDS), st.lists(names, min_size=1).map(tuple)),
    st.builds(Request, st.just(RequestKind.OWNER), st.tuples(names)),
)
positive = st.floats(min_value=1e-300, max_value=1e300)
intents = st.builds(
    Intent,
    number=st.integers(2, 10**9),
    action=st.sampled_from([Action.FORGET, Action.ADD]),
    digests=st.lists(names).map(tuple),
    request=requests,
    guarantee=st.none() | st.builds(Guarantee, positive, positive, positive, positive),
    restored=st.lists(names).map(tuple),
)


@given(intent=intents)
def test_intents_read_back(intent: Intent, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "pending.json"
    intent.save(path)
    assert Intent.load(path) == intent


def test_no_file_is_no_intent(tmp_path: Path) -> None:
    assert Intent.load(tmp_path / "pending.json") is None


def test_the_lock_lets_one_in_at_a_time(tmp_path: Path) -> None:
    """Each thread opens the file itself, as processes do."""
    inside, most, lock = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with locked(tmp_path / "lock"):
                with lock:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0)  # let others try
                with lock:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_an_error_inside_frees_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "lock"):
        raise ZeroDivisionError
    with locked(tmp_path / "lock"):
        pass


def test_steps_are_passed_unless_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: killed.append(number))
    monkeypatch.delenv("EFFACE_TEST_KILL_AT", raising=False)
    reach(Milestone.SWITCHED)
    monkeypatch.setenv("EFFACE_TEST_KILL_AT", "release")
    reach(Milestone.SWITCHED)
    assert killed == []
    reach(Milestone.RELEASE)
    assert killed == [9]
