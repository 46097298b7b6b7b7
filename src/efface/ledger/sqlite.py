"""SQLite: a file beside the model, in WAL mode.

``synchronous=FULL``: what is committed survives a power cut. ``secure_delete``: what is deleted is
overwritten with zeros, and :meth:`SqliteDatabase.scrub` empties the write-ahead log, which has older copies.
The file belongs to its owner alone (0600), and so do those that SQLite puts beside it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from efface.errors import EffaceError, FormatError, LedgerError
from efface.ledger.database import Database, Execute, Params

PATIENCE = 60.0  # seconds to wait for another writer
AT_FIRST = (
    "auto_vacuum=FULL"  # what is deleted makes the file smaller; said before there are tables
)
PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "secure_delete=ON",
    "foreign_keys=ON",
    "trusted_schema=OFF",  # a file is data: what its schema names is not run with our rights
    "temp_store=MEMORY",
)
DISK = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_PERM: errno.EACCES,
}


def run(connection: sqlite3.Connection, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
    """Every statement that may change the file comes through here: tests let it fail, or die at it."""
    return connection.execute(sql, params).fetchall()


def _look(connection: sqlite3.Connection, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
    return connection.execute(sql, params).fetchall()


class SqliteDatabase(Database):
    """The file at ``path``; ``create`` makes it if there is none.

    ``looking`` changes nothing at all, not even what SQLite tidies up by itself, and works where nothing can
    be written; then nobody else may be writing, or the file must be shared in the usual way.
    """

    def __init__(self, path: Path, *, create: bool = False, looking: bool = False) -> None:
        self.path, self.name, self._looks = path, path.name, looking
        self._mine = threading.local()
        self._all: list[sqlite3.Connection] = []
        self._guard = threading.Lock()
        if create and not path.exists():
            handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            os.close(handle)
        self._create = create
        if path.is_symlink() or not path.is_file():
            fix = "check the path; a ledger is made when a model is trained."
            raise FormatError(f"there is no ledger {path}.", fix)

    @contextmanager
    def writing(self) -> Iterator[Execute]:
        with self._explained():
            connection = self._connection()
            run(connection, "BEGIN IMMEDIATE")
            try:
                yield functools.partial(run, connection)
                run(connection, "COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.rollback()
                raise

    @contextmanager
    def reading(self) -> Iterator[Execute]:
        with self._explained():
            connection = self._connection()
            connection.execute("BEGIN")
            try:
                yield functools.partial(_look, connection)
            finally:
                with contextlib.suppress(sqlite3.Error):
                    connection.rollback()

    def append_only(self, table: str) -> list[str]:
        return [
            f"CREATE TRIGGER IF NOT EXISTS {table}_{event} BEFORE {event} ON {table} "
            "BEGIN SELECT RAISE(ABORT, 'rows of the ledger are only ever added'); END"
            for event in ("update", "delete")
        ]

    def tables(self) -> set[str]:
        with self.reading() as execute:
            found = execute("SELECT name FROM sqlite_master WHERE type = 'table'", ())
        return {str(name) for (name,) in found}

    def scrub(self) -> None:
        """Empty the write-ahead log; what was deleted in the file itself is zeros since then."""
        with self._explained():
            [(busy, _, _)] = run(self._connection(), "PRAGMA wal_checkpoint(TRUNCATE)")
        if busy:
            message = (
                f"somebody is reading {self.name}: old copies of deleted values are still in it."
            )
            raise EffaceError(message, "try again when nobody reads it.")

    def close(self) -> None:
        with self._guard:
            connections, self._all = self._all, []
            self._mine = threading.local()
        for connection in connections:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    # --- connections: one a thread, and none is carried into a child process ------------------------

    def _connection(self) -> sqlite3.Connection:
        held: tuple[int, sqlite3.Connection] | None = getattr(self._mine, "held", None)
        if held is not None and held[0] == os.getpid():
            return held[1]
        if self._looks:
            return self._hold(self._open(f"file:{_quoted(self.path)}?{self._at_rest()}"))
        connection = self._open(f"file:{_quoted(self.path)}?mode=rw")
        try:
            for pragma in (AT_FIRST, *PRAGMAS) if self._create else PRAGMAS:
                run(connection, f"PRAGMA {pragma}")
        except BaseException:
            connection.close()
            raise
        return self._hold(connection)

    def _at_rest(self) -> str:
        """How to look: a log means that somebody writes, or was killed, and SQLite has to put it together."""
        log = self.path.with_name(f"{self.path.name}-wal")
        if not log.exists() or not log.stat().st_size:
            return "mode=ro&immutable=1"
        if not os.access(self.path.parent, os.W_OK):
            message = f"{self.name} was not closed, and nothing can be written beside it."
            raise EffaceError(message, "copy the folder to where you may write, and look there.")
        return "mode=ro"

    def _open(self, uri: str) -> sqlite3.Connection:
        options: dict[str, Any] = {"timeout": PATIENCE, "isolation_level": None}
        return sqlite3.connect(uri, uri=True, check_same_thread=False, **options)

    def _hold(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        with self._guard:
            self._all.append(connection)
        self._mine.held = os.getpid(), connection
        return connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of SQLite as those of the disk, or of the file."""
        try:
            yield
        except sqlite3.Error as problem:
            self._raise(problem)

    def _raise(self, problem: sqlite3.Error) -> NoReturn:
        code = getattr(problem, "sqlite_errorcode", None)
        code = None if code is None else code & 0xFF  # without what only SQLite's authors need
        if code in DISK:
            raise OSError(DISK[code], os.strerror(DISK[code]), str(self.path)) from problem
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            message = f"somebody else is writing to {self.name}, for {PATIENCE:.0f} s now."
            raise EffaceError(message, "try again later.") from problem
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            message = f"{self.name} is damaged, or no database ({problem})."
            raise LedgerError(message, "restore it from a copy.") from problem
        if code in (None, sqlite3.SQLITE_ERROR) and isinstance(problem, sqlite3.OperationalError):
            message = f"{self.name} does not hold what a ledger does ({problem})."
            raise LedgerError(message, "restore it from a copy.") from problem
        raise problem


def _quoted(path: Path) -> str:
    """As part of a URI: the three characters that end a path there, and the one that escapes."""
    text = path.absolute().as_posix()
    text = text if text.startswith("/") else f"/{text}"  # a Windows drive
    return text.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
