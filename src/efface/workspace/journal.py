"""The journal of workspaces that were made before there was a ledger: read, checked, and taken over.

``journal.jsonl`` has one line a step, each with the SHA-256 of the line before; ``journal.head`` the number
and the digest of its last line. :func:`take_over` makes rows of them, and of the request in flight, in one
transaction; the files go afterwards. A crash in between leaves both, and the ledger is the one that counts.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from efface import files
from efface.errors import EffaceError, LedgerError
from efface.ledger import Ledger
from efface.workspace.steps import STEP, Action, Entry, Intent, Milestone

HEAD_SCHEMA = "efface.journal-head/1"
FILES = ("journal.jsonl", "journal.head", "pending.json", "journal.head.tmp", "pending.json.tmp")
FIX = "the journal was changed after it was written: restore it from a copy."


class Journal:
    """``journal.jsonl`` in the folder ``root``, and what lies beside it."""

    def __init__(self, root: Path) -> None:
        self.root, self.path, self.head = root, root / FILES[0], root / FILES[1]
        self.pending = root / FILES[2]

    def exists(self) -> bool:
        return self.path.exists() or self.head.exists()

    def left(self) -> list[Path]:
        """Its files that are there."""
        paths = (self.root / name for name in FILES)
        return [path for path in paths if path.exists() or path.is_symlink()]

    def intent(self) -> Intent | None:
        """The request in flight."""
        if not self.pending.is_file():
            return None
        return Intent.from_text(self.pending.read_text("utf-8", "surrogateescape"))

    def entries(self) -> list[Entry]:
        """All lines; a LedgerError names the first that does not follow from the one before."""
        head = self._read_head()  # before the lines, because somebody may be adding some
        result, previous, lines = [], "", self._lines()
        self._check_head(head, lines)
        for i, line in enumerate(lines, 1):
            try:
                values = json.loads(line)
                chained = values.pop("previous") == previous
                entry = Entry.of(values, str(values["when"]))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
                raise self._broken(i) from problem
            if not chained:
                raise self._broken(i)
            result.append(entry)
            previous = _digest(line)
        return result

    def digest(self) -> str:
        """Of its last line."""
        lines = self._lines()
        return _digest(lines[-1]) if lines else ""

    def _read_head(self) -> tuple[int, str] | None:
        """The number and the digest of a line; None if there is no head."""
        if not self.head.exists():
            return None
        try:
            head = files.read_json(self.head, HEAD_SCHEMA)
            return int(head["line"]), str(head["digest"])
        except (EffaceError, KeyError, TypeError, ValueError) as problem:
            raise self._no_head() from problem

    def _no_head(self) -> LedgerError:
        message = f"{self.head.name} is missing or damaged: the journal cannot be trusted."
        return LedgerError(message, "restore the workspace from a copy.")

    def _check_head(self, head: tuple[int, str] | None, lines: list[bytes]) -> None:
        """The line that the head names is there, and is the one it was."""
        if head is None:
            if len(lines) > 1:  # after the first there is one, after a crash perhaps not yet
                raise self._no_head()
            return
        line, digest = head
        if not 1 <= line <= len(lines) or _digest(lines[line - 1]) != digest:
            message = f"{self.path.name} is missing, shortened or changed: it had {line} lines."
            raise LedgerError(message, "restore it from a copy.")

    def _lines(self) -> list[bytes]:
        data = self.path.read_bytes() if self.path.is_file() else b""
        return data[: data.rfind(b"\n") + 1].splitlines()  # the rest was cut short

    def _broken(self, line: int) -> LedgerError:
        message = f"line {line} of {self.path.name} does not follow from the line before it."
        return LedgerError(message, FIX)


def take_over(journal: Journal, ledger: Ledger, save: str) -> None:
    """All lines as rows, and the request in flight with them; ``save`` is the statement that keeps it."""
    entries, intent = journal.entries(), journal.intent()
    with ledger.transaction() as tx:
        tx.append("migrated", {"lines": len(entries), "digest": journal.digest()})
        for entry in entries:
            tx.append(STEP, {**entry.values(), "when": entry.when})
        if intent is not None:
            tx.execute(save, (intent.to_text(),))


def is_journal_of_training(entries: list[Entry]) -> bool:
    """Of a training that was cut short; once one is finished CURRENT was lost, and a person is asked."""
    finished = any(entry.step is Milestone.DONE for entry in entries)
    return not finished and all(entry.action is Action.TRAIN for entry in entries)


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
