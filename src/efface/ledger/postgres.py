"""PostgreSQL, for the ledger of a service: through SQLAlchemy and psycopg, which ``efface[postgres]`` brings.

Deleted values are gone from the tables' files after :meth:`PostgresDatabase.scrub`; PostgreSQL's own log and
backups are its administrator's affair (docs/receipts.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from efface.errors import EffaceError
from efface.ledger.database import Database, Execute, Params

if TYPE_CHECKING:
    from sqlalchemy import Connection

MARK = re.compile(
    r"'[^']*'|\"[^\"]*\"|\?|::|:([A-Za-z_]\w*)"
)  # quoted text and casts are left alone
ROWS = "ledger_rows"


class PostgresDatabase(Database):
    """The database at ``url``, ``postgresql+psycopg://user@host/name``."""

    def __init__(self, url: str) -> None:
        try:
            import sqlalchemy
            import sqlalchemy.exc
        except ImportError as problem:
            fix = 'pip install "efface[postgres]".'
            raise EffaceError("PostgreSQL needs SQLAlchemy and psycopg.", fix) from problem
        self._sql, plain = sqlalchemy, re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url)
        try:
            where = sqlalchemy.make_url(plain)
            options: dict[str, Any] = {"hide_parameters": True, "pool_pre_ping": True}
            self._engine = sqlalchemy.create_engine(where, **options)
        except (sqlalchemy.exc.ArgumentError, ImportError, ValueError) as problem:
            message = "the URL of the ledger cannot be read, or its driver is missing."
            fix = 'give postgresql+psycopg://user@host/name; pip install "efface[postgres]".'
            raise EffaceError(message, fix) from problem
        self.name = f"{where.host or 'localhost'}/{where.database}"

    @contextmanager
    def writing(self) -> Iterator[Execute]:
        with self._explained(), self._engine.begin() as connection:
            execute = self._execute(connection)
            if ROWS in self._names(execute):
                execute(f"LOCK TABLE {ROWS} IN EXCLUSIVE MODE", ())  # readers go on
            yield execute

    @contextmanager
    def reading(self) -> Iterator[Execute]:
        isolated = self._engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
        with self._explained(), isolated.begin() as connection:
            yield self._execute(connection)

    def append_only(self, table: str) -> list[str]:
        return [
            "CREATE OR REPLACE FUNCTION efface_only_added() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'rows of the ledger are only ever added'; END $$",
            f"CREATE OR REPLACE TRIGGER {table}_kept BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION efface_only_added()",
        ]

    def tables(self) -> set[str]:
        with self.reading() as execute:
            return self._names(execute)

    def scrub(self) -> None:
        """Write every table anew but the rows, which nothing is deleted from; the old files are unlinked."""
        alone = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        with self._explained(), alone.connect() as connection:
            execute = self._execute(connection)
            for name in sorted(self._names(execute) - {ROWS}):
                execute(f'VACUUM FULL "{name}"', ())

    def close(self) -> None:
        self._engine.dispose()

    def _names(self, execute: Execute) -> set[str]:
        found = execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()", ())
        return {str(name) for (name,) in found}

    def _execute(self, connection: Connection) -> Execute:
        def execute(sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
            result = connection.exec_driver_sql(*for_driver(sql, params))
            return [tuple(row) for row in result] if result.returns_rows else []

        return execute

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except self._sql.exc.OperationalError as problem:  # its text may hold what was to be stored
            message = f"the database {self.name} does not answer, or refuses."
            raise EffaceError(message, "check that it runs, and the URL.") from problem


def for_driver(sql: str, params: Params) -> tuple[str, dict[str, Any]]:
    """``?`` and ``:name`` as psycopg spells them, ``%(p0)s`` and ``%(name)s``; not those in quotes."""
    values = params if isinstance(params, Mapping) else {f"p{i}": v for i, v in enumerate(params)}
    names = iter(values)

    def mark(found: re.Match[str]) -> str:
        if found[0] == "?":
            return f"%({next(names)})s"
        return f"%({found[1]})s" if found[1] else found[0]

    return MARK.sub(mark, sql.replace("%", "%%")), dict(values)
