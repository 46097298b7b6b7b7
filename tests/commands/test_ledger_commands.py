"""``efface ledger verify`` and ``show``."""

from __future__ import annotations

import json
import sqlite3
import tarfile
from pathlib import Path

import pytest
from tests.places import ROOT
from tests.shell import efface, values_of
from tests.workspaces import OWNER, contents, fitted, people

from efface.ledger import LedgerRow
from efface.ledger.row import chained
from efface.workspace import Workspace


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "model"
    Workspace.create(path, fitted("compact", people())).forget(owner=OWNER)
    return path


def test_a_ledger_is_whole(model: Path) -> None:
    before = contents(model)
    result = efface("ledger", "verify", model)
    assert result.exit_code == 0
    assert "each as it was written" in result.stdout
    values = values_of(efface("ledger", "verify", model, "--json"))
    assert values["rows"] == values["head"]["seq"] > 5
    assert contents(model) == before


def test_rows_are_shown_and_can_be_checked_elsewhere(model: Path) -> None:
    lines = efface("ledger", "show", model, "--lines").stdout.splitlines()
    rows = [LedgerRow(**json.loads(line)) for line in lines]
    assert list(chained(rows)) == rows
    shown = values_of(efface("ledger", "show", model, "--json"))["rows"]
    assert [row["digest"] for row in shown] == [row.digest for row in rows]
    table = efface("ledger", "show", model).stdout
    assert "forget published" in table
    assert OWNER not in "".join(lines) + table


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE ledger_rows SET time = 'never' WHERE seq = 2", "row 2 of the ledger was changed"),
        ("DELETE FROM ledger_rows WHERE seq = 3", "row 3 of the ledger is missing"),
        (
            "DELETE FROM ledger_rows WHERE seq = (SELECT max(seq) FROM ledger_rows)",
            "missing: it had",
        ),
        ("UPDATE ledger_rows SET seq = 99 WHERE seq = 4", "row 4 of the ledger is missing"),
    ],
)
def test_a_changed_ledger_is_exit_code_4(tmp_path: Path, statement: str, message: str) -> None:
    path = tmp_path / "model"
    Workspace.create(path, fitted("compact", people())).forget(owner=OWNER)
    connection = sqlite3.connect(path / "ledger.sqlite")
    for event in ("update", "delete"):
        connection.execute(f"DROP TRIGGER ledger_rows_{event}")
    connection.execute(statement)
    connection.commit()
    connection.close()
    for member in ("verify", "show"):
        result = efface("ledger", member, path)
        assert result.exit_code == 4
        assert message in result.stderr


def test_an_earlier_journal_is_named(tmp_path: Path) -> None:
    with tarfile.open(ROOT / "tests" / "workspace" / "earlier.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    result = efface("ledger", "verify", tmp_path / "compact")
    assert result.exit_code == 2
    assert "efface resume" in result.stderr
    assert efface("resume", tmp_path / "compact").exit_code == 0
    assert efface("ledger", "verify", tmp_path / "compact").exit_code == 0


def test_no_model_is_exit_code_2(tmp_path: Path) -> None:
    assert efface("ledger", "verify", tmp_path).exit_code == 2
