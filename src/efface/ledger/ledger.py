"""The ledger itself: opening, appending, reading and checking."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from efface.errors import EffaceError, LedgerError
from efface.ledger.database import Database, Execute, Params
from efface.ledger.row import EMPTY, LONGEST, RESTORE, Head, LedgerRow, chained, stored

TABLES = (
    "CREATE TABLE IF NOT EXISTS ledger_rows (seq INTEGER PRIMARY KEY, time TEXT NOT NULL, "
    "kind TEXT NOT NULL, body TEXT NOT NULL, previous TEXT NOT NULL, digest TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS ledger_head (one INTEGER PRIMARY KEY CHECK (one = 1), "
    "seq INTEGER NOT NULL, digest TEXT NOT NULL, mac TEXT)",
)
ROWS = (
    "SELECT seq, time, kind, CASE WHEN length(body) <= :longest THEN body END, previous, digest "
    "FROM ledger_rows WHERE seq > :since ORDER BY seq LIMIT :most"
)
LAST = "SELECT seq, digest FROM ledger_rows ORDER BY seq DESC LIMIT 1"
HEAD = "SELECT seq, digest, mac FROM ledger_head"
AT_ONCE = 1000  # rows read at a time


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class Transaction:
    """What is done in it happens together, or not at all."""

    def __init__(self, execute: Execute, key: bytes | None) -> None:
        self._execute, self._key = execute, key

    def append(self, kind: str, body: Mapping[str, Any]) -> LedgerRow:
        """Add a row to the chain. ``body`` is JSON, and names nobody."""
        found = self._execute(LAST, ())
        head = Head(*found[0]) if found else EMPTY
        _check_head(head, self._execute(HEAD, ()))
        row = LedgerRow.after(head, now(), kind, body)
        values = (row.seq, row.time, row.kind, row.body, row.previous, row.digest)
        self._execute("INSERT INTO ledger_rows VALUES (?, ?, ?, ?, ?, ?)", values)
        self._execute("DELETE FROM ledger_head", ())
        mac = None if self._key is None else row.head.signed(self._key)
        self._execute("INSERT INTO ledger_head VALUES (1, ?, ?, ?)", (row.seq, row.digest, mac))
        return row

    def execute(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        """One statement on the tables of :meth:`Ledger.define`; ``?`` or ``:name`` stand for values."""
        return self._execute(sql, params)


class Ledger:
    """Rows in a database, one chain. Can be shared between threads; close it, or use ``with``.

    ``key`` signs the head, so that whoever lacks it can neither shorten the chain nor write another.
    """

    def __init__(self, database: Database, key: bytes | None = None) -> None:
        self.database, self.key = database, key

    @classmethod
    def open(cls, place: str | Path, *, create: bool = False, key: bytes | None = None) -> Ledger:
        """At a path, ``sqlite:///path`` or ``postgresql+psycopg://…``; ``create`` makes file and tables."""
        ledger = cls(_database(str(place), create), key)
        if create:
            ledger.define((*TABLES, *ledger.database.append_only("ledger_rows")))
        return ledger

    @classmethod
    def look(cls, path: Path, *, key: bytes | None = None) -> Ledger:
        """A file of SQLite, only to be read: nothing is changed, and it may lie where nothing can be."""
        from efface.ledger.sqlite import SqliteDatabase

        return cls(SqliteDatabase(path, looking=True), key)

    def define(self, statements: Iterable[str]) -> None:
        """Tables of others beside the rows: ``CREATE TABLE IF NOT EXISTS …``, all or none."""
        with self.database.writing() as execute:
            for statement in statements:
                execute(statement, ())

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """One writer at a time; an exception within undoes all that was done in it."""
        with self.database.writing() as execute:
            yield Transaction(execute, self.key)

    def query(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        """The rows of one SELECT, without waiting for writers."""
        with self.database.reading() as execute:
            return execute(sql, params)

    def rows(self, since: int = 0) -> Iterator[LedgerRow]:
        """The rows after number ``since``, as they are stored: :meth:`verify` checks them."""
        while True:
            with self.database.reading() as execute:
                found = _read(execute, since)
            yield from found
            if len(found) < AT_ONCE:
                return
            since = found[-1].seq

    def head(self) -> Head:
        """The last row; (0, "") if there is none."""
        found = self.query(LAST)
        return Head(*found[0]) if found else EMPTY

    def verify(self, *kept: Head) -> Head:
        """Check the whole chain; LedgerError names the first row that was edited, removed or moved.

        ``kept`` are heads that were noted elsewhere, in a manifest or a receipt: they must be on the chain.
        """
        rows = self.checked(*kept)
        return rows[-1].head if rows else EMPTY

    def checked(self, *kept: Head) -> list[LedgerRow]:
        """All rows, once :meth:`verify` has nothing to say against them."""
        missing = {head.seq: head for head in kept if head != EMPTY}
        with self.database.reading() as execute:
            rows, noted = [], execute(HEAD, ())
            for row in chained(_all(execute)):
                rows.append(row)
                if missing.pop(row.seq, row.head) != row.head:
                    message = (
                        f"row {row.seq} of the ledger is not the one that was noted elsewhere."
                    )
                    raise LedgerError(message, RESTORE)
        head = rows[-1].head if rows else EMPTY
        _check_head(head, noted)
        if missing:
            message = f"the ledger is shortened: it had {max(missing)} rows, and has {head.seq}."
            raise LedgerError(message, RESTORE)
        self._check_signature(head, noted)
        return rows

    def _check_signature(self, head: Head, noted: list[tuple[Any, ...]]) -> None:
        if self.key is None or head == EMPTY:
            return
        if not hmac.compare_digest(head.signed(self.key), str(noted[0][2])):
            raise LedgerError("the head of the ledger is not the one that was signed.", RESTORE)

    def scrub(self) -> None:
        """After deletions: nothing of what was deleted stays in the database's files."""
        self.database.scrub()

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _database(place: str, create: bool) -> Database:
    scheme, separator, rest = place.partition("://")
    if separator and scheme.startswith("postgres"):
        from efface.ledger.postgres import PostgresDatabase

        return PostgresDatabase(place)
    if separator and scheme != "sqlite":
        message = f"{scheme}:// is no database that efface knows."
        raise EffaceError(message, "give a path, sqlite:///path or postgresql+psycopg://….")
    from efface.ledger.sqlite import SqliteDatabase

    return SqliteDatabase(Path(rest.removeprefix("/") if separator else place), create=create)


def _read(execute: Execute, since: int) -> list[LedgerRow]:
    options = {"since": since, "most": AT_ONCE, "longest": LONGEST}
    return [stored(cells, since + 1 + i) for i, cells in enumerate(execute(ROWS, options))]


def _all(execute: Execute) -> Iterator[LedgerRow]:
    since = 0
    while found := _read(execute, since):
        yield from found
        since = found[-1].seq


def _check_head(head: Head, noted: list[tuple[Any, ...]]) -> None:
    """The database keeps the head apart from the rows: a row that was taken off the end shows."""
    if not noted and head == EMPTY:
        return
    wanted = Head(*noted[0][:2]) if len(noted) == 1 else EMPTY
    if wanted.seq > head.seq:
        message = f"row {head.seq + 1} of the ledger is missing: it had {wanted.seq} rows."
        raise LedgerError(message, RESTORE)
    if wanted != head:
        raise LedgerError(f"row {wanted.seq + 1} of the ledger was added by other means.", RESTORE)
