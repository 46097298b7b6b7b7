"""The chain: whatever is edited, removed or put elsewhere is found, in SQLite and in PostgreSQL alike."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from efface.errors import EffaceError, LedgerError
from efface.ledger import Head, Ledger, LedgerRow
from efface.ledger.postgres import for_driver
from efface.ledger.row import chained

KEY = bytes(range(32))
NOTES = ("CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, who TEXT)",)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    from tests.ledger.servers import postgres

    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.needs("posix"))])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty one."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.sqlite")
    url: str = request.getfixturevalue("server")
    with Ledger.open(url) as ledger:
        ledger.define(["DROP TABLE IF EXISTS ledger_rows, ledger_head, notes CASCADE"])
    return url


@pytest.fixture
def ledger(place: str) -> Iterator[Ledger]:
    with Ledger.open(place, create=True, key=KEY) as ledger:
        ledger.define(NOTES)
        for number in range(5):
            with ledger.transaction() as tx:
                tx.append("request", {"number": number, "state": "done"})
        yield ledger


def test_rows_are_read_back(ledger: Ledger) -> None:
    rows = list(ledger.rows())
    assert [row.seq for row in rows] == [1, 2, 3, 4, 5]
    assert [row.values["number"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row.previous for row in rows] == ["", *(row.digest for row in rows[:-1])]
    assert list(ledger.rows(since=3)) == rows[3:]
    assert ledger.head() == ledger.verify() == rows[-1].head


def test_an_empty_ledger_is_valid(place: str) -> None:
    with Ledger.open(place, create=True) as ledger:
        assert ledger.verify() == ledger.head() == Head(0, "")
        assert list(ledger.rows()) == []


def test_it_is_opened_again(ledger: Ledger, place: str) -> None:
    with Ledger.open(place, create=True, key=KEY) as again, again.transaction() as tx:
        assert tx.append("request", {}).seq == 6
    assert ledger.verify().seq == 6


def test_what_happens_in_a_transaction_happens_together(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="JSON compliant"), ledger.transaction() as tx:  # noqa: PT012
        tx.execute("INSERT INTO notes VALUES (?, ?)", (1, "a"))
        tx.append("note", {"number": 1})
        tx.append("note", {"number": float("nan")})
    assert ledger.query("SELECT * FROM notes") == []
    assert ledger.verify().seq == 5
    with ledger.transaction() as tx:
        tx.execute("INSERT INTO notes VALUES (:id, :who)", {"id": 1, "who": "what's this?"})
        tx.append("note", {"number": 1})
        assert tx.execute("SELECT who FROM notes WHERE id = ?", (1,)) == [("what's this?",)]
    assert ledger.query("SELECT id FROM notes WHERE who = 'what''s this?'") == [(1,)]
    assert ledger.verify().seq == 6


def test_writers_wait_for_each_other(ledger: Ledger) -> None:
    def work() -> None:
        for _ in range(10):
            with ledger.transaction() as tx:
                tx.append("turn", {})

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.verify().seq == 45


def test_rows_cannot_be_changed_by_mistake(ledger: Ledger) -> None:
    for sql in ("UPDATE ledger_rows SET kind = 'other'", "DELETE FROM ledger_rows"):
        with pytest.raises(Exception, match="only ever added"), ledger.transaction() as tx:
            tx.execute(sql)
    assert ledger.verify().seq == 5


# --- on purpose -----------------------------------------------------------------------------------

EDITS: dict[str, tuple[str, str]] = {
    "an edited body": (
        "UPDATE ledger_rows SET body = '{\"number\":9}' WHERE seq = 3",
        "row 3 .* changed",
    ),
    "an edited time": ("UPDATE ledger_rows SET time = 'x' WHERE seq = 1", "row 1 .* changed"),
    "an edited kind": ("UPDATE ledger_rows SET kind = 'x' WHERE seq = 5", "row 5 .* changed"),
    "an edited digest": (
        "UPDATE ledger_rows SET digest = previous WHERE seq = 2",
        "row 2 .* changed",
    ),
    "a removed row": ("DELETE FROM ledger_rows WHERE seq = 2", "row 2 .* missing"),
    "the first removed": ("DELETE FROM ledger_rows WHERE seq = 1", "row 1 .* missing"),
    "the last removed": ("DELETE FROM ledger_rows WHERE seq = 5", "row 5 .* missing: it had 5"),
    "all removed": ("DELETE FROM ledger_rows", "row 1 .* missing: it had 5"),
    "two exchanged": (
        "UPDATE ledger_rows SET seq = CASE seq WHEN 2 THEN -3 WHEN 3 THEN -2 END WHERE seq IN (2, 3);"
        "UPDATE ledger_rows SET seq = -seq WHERE seq < 0",
        "row 2 .* changed",
    ),
    "a removed row, numbers closed": (
        "DELETE FROM ledger_rows WHERE seq = 2;"
        "UPDATE ledger_rows SET seq = 2 WHERE seq = 3; UPDATE ledger_rows SET seq = 3 WHERE seq = 4;"
        "UPDATE ledger_rows SET seq = 4 WHERE seq = 5",
        "row 2 .* changed",
    ),
    "no head": ("DELETE FROM ledger_head", "row 1 .* by other means"),
    "another head": ("UPDATE ledger_head SET seq = 4", "row 5 .* by other means"),
    "no signature": ("UPDATE ledger_head SET mac = NULL", "not the one that was signed"),
    "another signature": ("UPDATE ledger_head SET mac = 'x'", "not the one that was signed"),
    "a row shorter, and the head with it": (
        "UPDATE ledger_head SET seq = 4, digest = (SELECT previous FROM ledger_rows WHERE seq = 5);"
        "DELETE FROM ledger_rows WHERE seq = 5",
        "not the one that was signed",
    ),
}


def tamper(ledger: Ledger, script: str) -> None:
    """As somebody would who has the file, or is the administrator."""
    triggers = {"ledger.sqlite": ("ledger_rows_update", "ledger_rows_delete")}
    with ledger.transaction() as tx:
        for name in triggers.get(ledger.database.name, ()):
            tx.execute(f"DROP TRIGGER {name}")
        if ledger.database.name not in triggers:
            tx.execute("DROP TRIGGER ledger_rows_kept ON ledger_rows")
        for sql in script.split(";"):
            tx.execute(sql)


@pytest.mark.parametrize("edit", EDITS)
def test_tampering_is_found(ledger: Ledger, edit: str) -> None:
    script, message = EDITS[edit]
    tamper(ledger, script)
    with pytest.raises(LedgerError, match=message) as caught:
        ledger.verify()
    assert caught.value.exit_code == 4


def test_a_chain_written_anew_is_found_by_a_head_that_is_kept_elsewhere(ledger: Ledger) -> None:
    """Without the key, and with one: whoever has all of the file and the key can write another chain."""
    noted, first = ledger.head(), next(ledger.rows())
    tamper(ledger, "DELETE FROM ledger_rows; DELETE FROM ledger_head")
    with ledger.transaction() as tx:
        for number in range(7):
            tx.append("request", {"number": number, "state": "invented"})
    assert ledger.verify().seq == 7
    with pytest.raises(LedgerError, match=r"row 5 .* noted elsewhere"):
        ledger.verify(noted)
    with pytest.raises(LedgerError, match=r"row 1 .* noted elsewhere"):
        ledger.verify(noted, first.head)
    with pytest.raises(LedgerError, match="shortened: it had 9 rows, and has 7"):
        ledger.verify(Head(9, noted.digest))


def test_nothing_is_added_to_a_chain_that_was_cut(ledger: Ledger) -> None:
    tamper(ledger, "DELETE FROM ledger_rows WHERE seq = 5")
    with pytest.raises(LedgerError, match=r"row 5 .* missing"), ledger.transaction() as tx:
        tx.append("request", {})


def test_rows_alone_can_be_checked(ledger: Ledger) -> None:
    """As a stranger does who is given the rows and no database."""
    rows = list(ledger.rows())
    assert list(chained(rows)) == rows
    assert list(chained(rows[2:], rows[1].head)) == rows[2:]
    with pytest.raises(LedgerError, match=r"row 3 .* does not follow"):
        list(chained([LedgerRow.after(Head(2, "x"), "t", "k", {})], Head(2, "y")))


@pytest.mark.parametrize("body", ["[]", "{", "1", "[" * 100_000])
def test_a_body_that_is_none_is_found(body: str) -> None:
    from efface.ledger.row import digest

    row = LedgerRow(1, "t", "k", body, "", digest(1, "t", "k", body, ""))
    with pytest.raises(LedgerError, match=r"row 1 .* not JSON"):
        list(chained([row]))


def test_bodies_must_be_json(ledger: Ledger) -> None:
    for body in ({"x": float("nan")}, {"x": "y" * (1 << 21)}):
        with (
            pytest.raises(ValueError, match=r"JSON compliant|not a row"),
            ledger.transaction() as tx,
        ):
            tx.append("request", body)
    with pytest.raises(ValueError, match="not a row"), ledger.transaction() as tx:
        tx.append("two\nlines", {})


# --- places ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("mysql://somewhere", "mysql:// is no database"),
        ("nowhere.sqlite", "there is no ledger nowhere"),
        ("sqlite:///nowhere.sqlite", "there is no ledger nowhere"),
        ("postgresql://", "does not answer"),
        ("postgresql+psycopg://u:secret@127.0.0.1:1/x", "127.0.0.1/x does not answer"),
        ("postgresql+psycopg://:::", "URL of the ledger cannot be read"),
    ],
)
def test_places_that_are_none(place: str, message: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(EffaceError, match=message) as caught:
        Ledger.open(place).head()
    assert "secret" not in str(caught.value)


def test_a_url_of_sqlite_is_its_path(tmp_path: Path) -> None:
    path = tmp_path / "odd name?#%.sqlite"
    Ledger.open(path, create=True).close()
    with Ledger.open(f"sqlite:////{str(path).lstrip('/')}") as ledger:
        assert ledger.head().seq == 0


@pytest.mark.parametrize("data", [b"no database at all" * 100, b"SQLite format 3\0" + bytes(4000)])
def test_a_file_that_is_no_database(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(data)
    with pytest.raises(LedgerError, match="damaged, or no database"), Ledger.open(path) as ledger:
        ledger.verify()


def test_a_cell_of_another_kind_is_found(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path, create=True) as ledger:
        with ledger.transaction() as tx:
            tx.append("request", {})
        tamper(ledger, "UPDATE ledger_rows SET body = x'00'")
        with pytest.raises(LedgerError, match=r"row 1 .* changed"):
            ledger.verify()


@pytest.mark.needs("posix")
def test_the_files_are_their_owners_alone(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.sqlite", create=True) as ledger:
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
        assert len(list(tmp_path.iterdir())) == 3
        ledger.close()
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.sqlite"]


@pytest.mark.needs("posix")
@pytest.mark.parametrize("closed", [True, False])
def test_a_ledger_that_cannot_be_written_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    path = tmp_path / "ledger.sqlite"
    writer = Ledger.open(path, create=True)
    with writer.transaction() as tx:
        tx.append("request", {})
    if closed:
        writer.close()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with Ledger.look(path) as ledger:
        if closed:
            assert ledger.verify().seq == 1
            assert [path.name for path in tmp_path.iterdir()] == ["ledger.sqlite"]
            with pytest.raises(OSError, match="Read-only"), ledger.transaction() as tx:
                tx.append("request", {})
        else:
            with pytest.raises(EffaceError, match="was not closed"):
                ledger.verify()
    writer.close()


# --- what is deleted ------------------------------------------------------------------------------


def remains(folder: Path, text: str) -> list[str]:
    return [
        path.name
        for path in folder.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    ]


def fill_and_empty(ledger: Ledger) -> None:
    """Names of all lengths, some over several pages, deleted one by one, in another order, and all."""
    with ledger.transaction() as tx:
        for i in range(200):
            tx.execute("INSERT INTO notes VALUES (?, ?)", (i, f"OTTILIE-{i}" * (1 + i * i // 20)))
    for i in range(0, 200, 7):
        with ledger.transaction() as tx:
            tx.execute("UPDATE notes SET who = ? WHERE id = ?", ("OTTILIE short", i))
            tx.append("note", {"number": i})
    with ledger.transaction() as tx:
        tx.execute("DELETE FROM notes WHERE id % 3 = 0")
    with ledger.transaction() as tx:
        tx.execute("DELETE FROM notes")
        tx.append("deleted", {})


def test_deleted_values_are_in_no_file(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.sqlite", create=True) as ledger:
        ledger.define(NOTES)
        fill_and_empty(ledger)
        assert remains(tmp_path, "OTTILIE") == ["ledger.sqlite-wal"]  # so the test can see them
        ledger.scrub()
        assert remains(tmp_path, "OTTILIE") == []
        assert ledger.verify().seq == 30
    assert remains(tmp_path, "OTTILIE") == []


def test_scrubbing_says_when_a_reader_is_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from efface.ledger import sqlite

    monkeypatch.setattr(sqlite, "PATIENCE", 0.01)
    with Ledger.open(tmp_path / "ledger.sqlite", create=True) as ledger:
        ledger.define(NOTES)
        reader = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM notes").fetchall()
        fill_and_empty(ledger)
        with pytest.raises(EffaceError, match="somebody is reading"):
            ledger.scrub()
        reader.close()
        ledger.scrub()
        assert remains(tmp_path, "OTTILIE") == []


@pytest.mark.needs("posix")
def test_deleted_values_are_in_no_table_of_postgres(server: str) -> None:
    with Ledger.open(server, create=True) as ledger:
        ledger.define(NOTES)
        fill_and_empty(ledger)
        [(data,)] = ledger.query("SHOW data_directory")
        flush = ledger.database._engine.execution_options(isolation_level="AUTOCOMMIT")  # type: ignore[attr-defined]
        with flush.connect() as connection:
            connection.exec_driver_sql("CHECKPOINT")
        if not os.access(data, os.R_OK):
            pytest.skip("the server's files cannot be read")
        tables = Path(data) / "base"
        assert remains(tables, "OTTILIE") != []
        ledger.scrub()
        with flush.connect() as connection:
            connection.exec_driver_sql("CHECKPOINT")
        assert remains(tables, "OTTILIE") == []


# --- other ----------------------------------------------------------------------------------------


def test_marks_in_quotes_are_no_parameters() -> None:
    sql, values = for_driver("SELECT '?:a', \"?\", ? WHERE x::text = ? AND y % 2 = 0", (1, 2))
    assert sql == "SELECT '?:a', \"?\", %(p0)s WHERE x::text = %(p1)s AND y %% 2 = 0"
    assert values == {"p0": 1, "p1": 2}
    assert for_driver("SELECT :a", {"a": 1}) == ("SELECT %(a)s", {"a": 1})


def test_a_kill_leaves_all_or_nothing(tmp_path: Path) -> None:
    """A process dies in the middle of its transaction, after others that were finished."""
    path = tmp_path / "ledger.sqlite"
    code = (
        "import os, sys; from efface.ledger import Ledger\n"
        f"ledger = Ledger.open({str(path)!r}, create=True)\n"
        "for i in range(3):\n"
        "    with ledger.transaction() as tx: tx.append('request', {'number': i})\n"
        "with ledger.transaction() as tx:\n"
        "    tx.append('request', {'number': 3}); os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    with Ledger.open(path) as ledger:
        assert ledger.verify().seq == 3


def test_nothing_heavy_is_imported() -> None:
    code = "import sys, efface.ledger; print({'torch', 'numpy', 'sqlalchemy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_child_process_has_its_own_connection(tmp_path: Path) -> None:
    """SQLite's connections must not be carried over a fork."""
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    with Ledger.open(tmp_path / "ledger.sqlite", create=True) as ledger:
        first = _connection(ledger)()
        child = os.fork()
        if child == 0:
            os._exit(0 if _connection(ledger)() is not first else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _connection(ledger: Ledger) -> Callable[[], object]:
    found: Callable[[], object] = ledger.database._connection  # type: ignore[attr-defined]
    return found
