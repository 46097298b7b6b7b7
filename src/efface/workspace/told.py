"""What a workspace tells of itself: ``ledger.sqlite``, one row a step, and the request in flight.

A step and what changes with it share a transaction: a request is accepted together with its first row, and is
no longer in flight together with its last. Rows name nobody (numbers, steps, times, keyed hashes); the
request in flight does, so it is overwritten when it is done, in all of the ledger's files.

Rows follow from each other, and the head is signed with the workspace's key: what is edited, removed or moved
shows. The manifest of a release has the head as it was then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from efface.errors import LedgerError
from efface.ledger import Head, Ledger, LedgerRow
from efface.workspace.disk import remove
from efface.workspace.forgotten import KEY, load_key
from efface.workspace.journal import Journal, is_journal_of_training, take_over
from efface.workspace.published import CURRENT
from efface.workspace.steps import STEP, Action, Entry, Intent, Milestone

NAME = "ledger.sqlite"
BESIDE = (f"{NAME}-wal", f"{NAME}-shm")  # SQLite's own, while it works
TABLE = "CREATE TABLE IF NOT EXISTS pending (one INTEGER PRIMARY KEY CHECK (one = 1), body TEXT NOT NULL)"
SAVE = "INSERT INTO pending VALUES (1, ?)"
TABLES = frozenset({"ledger_rows", "ledger_head", "pending"})


class WorkspaceLedger:
    """The ledger in the folder ``root``. Adding rows needs the lock, reading does not.

    ``looks`` says whether nothing may be changed, not even what SQLite puts in order by itself.
    """

    def __init__(self, root: Path, looks: Callable[[], bool] = lambda: False) -> None:
        self.root, self.path, self.journal = root, root / NAME, Journal(root)
        self._looks = looks
        self._ledger: Ledger | None = None
        self._held = 0

    # --- reading ----------------------------------------------------------------------------------

    def rows(self, *kept: Head) -> list[LedgerRow]:
        """All rows, checked; LedgerError names the first that is not what it was."""
        if not self.path.exists():
            return []
        with self._opened() as ledger:
            return ledger.checked(*kept) if _is_made(ledger) else []

    def entries(self, *kept: Head) -> list[Entry]:
        """The steps of all requests so far; of an earlier version's journal, if that is what there is."""
        if self.is_earlier():
            return self.journal.entries()
        return [entry_of(row) for row in self.rows(*kept) if row.kind == STEP]

    def head(self) -> Head:
        with self._opened() as ledger:
            return ledger.head()

    def pending(self) -> Intent | None:
        """The request in flight."""
        if self.is_earlier():
            return self.journal.intent()
        if not self.path.exists():
            return None
        with self._opened() as ledger:
            found = ledger.query("SELECT body FROM pending") if _is_made(ledger) else []
        return Intent.from_text(str(found[0][0])) if found else None

    def is_earlier(self) -> bool:
        """Whether there is a journal that no ledger has taken over yet."""
        return self.journal.exists() and not self._has_rows()

    def _has_rows(self) -> bool:
        if not self.path.exists():
            return False
        with self._opened() as ledger:
            return _is_made(ledger) and ledger.head().seq > 0

    def is_of_training(self) -> bool:
        """Whether it begins a training that was cut short before anything was published."""
        if self.is_earlier():
            entries = self.journal.entries()
            return bool(entries) and is_journal_of_training(entries)
        with self._opened() as ledger:
            ours = ledger.database.tables() <= TABLES
        return ours and is_journal_of_training(self.entries())

    def strays(self) -> list[Path]:
        """What a finished request does not leave: a log with old copies, an earlier version's files."""
        log = self.root / BESIDE[0]
        logs = [log] if log.is_file() and log.stat().st_size else []
        return logs + ([] if self.is_earlier() else self.journal.left())

    def owned(self) -> set[str]:
        """The names of its files."""
        if self.is_earlier():
            return {path.name for path in self.journal.left()}
        return {NAME, *BESIDE}

    # --- writing, with the lock ---------------------------------------------------------------------

    def append(self, number: int, action: Action, step: Milestone, **more: str) -> None:
        """Add a row; it is on disk afterwards."""
        with self._opened(writing=True) as ledger, ledger.transaction() as tx:
            tx.append(STEP, {**Entry(number, action, step, "").values(), **more})

    def accept(
        self, intent: Intent, several: Sequence[Mapping[str, Any]] = (), **more: str
    ) -> None:
        """From here on the request will be carried out, by this process or another.

        ``several`` are rows about the requests that it is made of.
        """
        values = {**Entry(intent.number, intent.action, Milestone.ACCEPTED, "").values(), **more}
        with self._opened(writing=True) as ledger, ledger.transaction() as tx:
            tx.execute("DELETE FROM pending")
            tx.execute(SAVE, (intent.to_text(),))
            tx.append(STEP, values)
            for row in several:
                tx.append("requests", row)

    def end(
        self,
        number: int,
        action: Action,
        step: Milestone,
        receipt: Mapping[str, Any] | None = None,
        **more: str,
    ) -> None:
        """The last row of a request, which is no longer in flight, and that of its receipt."""
        with self._opened(writing=True) as ledger, ledger.transaction() as tx:
            tx.execute("DELETE FROM pending")
            tx.append(STEP, {**Entry(number, action, step, "").values(), **more})
            if receipt is not None:
                tx.append("receipt", receipt)

    def receipt(self, values: Mapping[str, Any]) -> None:
        """The row of a receipt that was signed later."""
        with self._opened(writing=True) as ledger, ledger.transaction() as tx:
            tx.append("receipt", values)

    def scrub(self) -> None:
        """No copy of the request stays in the ledger's files."""
        with self._opened(writing=True) as ledger:
            ledger.scrub()

    def take_over(self) -> None:
        """What an earlier version wrote becomes rows; see ``journal.py``."""
        if self.is_earlier():
            with self._opened(writing=True) as ledger:
                take_over(self.journal, ledger, SAVE)
        if self.journal.left() and self._has_rows():
            for path in self.journal.left():
                remove(path)

    # --- connections --------------------------------------------------------------------------------

    @contextmanager
    def held(self) -> Iterator[None]:
        """One connection for all that happens within."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            if not self._held:
                self._close()

    @contextmanager
    def _opened(self, writing: bool = False) -> Iterator[Ledger]:
        with self.held():
            if writing and not (self.path.exists() and _is_made(self._here())):
                with Ledger.open(self.path, create=True) as made:
                    made.define([TABLE])
            ledger = self._here()
            ledger.key = self._key(writing)
            yield ledger

    def _here(self) -> Ledger:
        if self._ledger is None:
            open_it = Ledger.look if self._looks() else Ledger.open
            self._ledger = open_it(self.path)
        return self._ledger

    def _close(self) -> None:
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger.close()

    def _key(self, writing: bool) -> bytes | None:
        """It is made after the first row; the head is signed from the release on that CURRENT names."""
        path = self.root / "private" / KEY
        there = path.exists() if writing else (self.root / CURRENT).exists()
        return load_key(path) if there else None


def entry_of(row: LedgerRow) -> Entry:
    values = row.values
    try:
        return Entry.of(values, str(values.get("when", row.time)))
    except (KeyError, TypeError, ValueError) as problem:
        message = f"row {row.seq} of the ledger is no step of a request."
        raise LedgerError(message, "restore it from a copy.") from problem


def _is_made(ledger: Ledger) -> bool:
    """A crash at the very beginning leaves an empty file."""
    return ledger.database.tables() >= TABLES
