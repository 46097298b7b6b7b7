"""A file that was changed, shortened or deleted is noticed, and none of them leads out of the folder."""

from __future__ import annotations

import json
import random
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.shell import efface
from tests.workspaces import (
    OWNER,
    assert_checks,
    contents,
    in_flight,
    people,
    without_ledger,
)

from efface.errors import EffaceError, FormatError, LedgerError, RecordError
from efface.workspace import Workspace
from efface.workspace.published import CURRENT, load
from efface.workspace.store import Store
from efface.workspace.verify import all_checks


def tamper(path: Path, *statements: str) -> None:
    """As somebody who has the file."""
    with sqlite3.connect(path / "ledger.sqlite") as connection:
        for event in ("update", "delete"):
            connection.execute(f"DROP TRIGGER ledger_rows_{event}")
        for statement in statements:
            connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("lines", [None, 0, 1, 4])
def test_a_missing_or_shortened_ledger_is_an_error(
    made: dict[str, Path], tmp_path: Path, lines: int | None
) -> None:
    path = shutil.copytree(made["compact"], tmp_path / "w")
    Workspace.open(path).forget(owner=OWNER)
    if lines is None:
        (path / "ledger.sqlite").unlink()
    else:
        tamper(path, f"DELETE FROM ledger_rows WHERE seq > {lines}")
    for words in (("verify",), ("forget", "--owner", "person-one"), ("resume",)):
        assert efface(words[0], path, *words[1:]).exit_code == 4
    again = people().select(owner=OWNER)
    with pytest.raises((RecordError, LedgerError)):
        Workspace.open(path).add(again)


def test_a_ledger_of_other_times_is_an_error_too(made: dict[str, Path], tmp_path: Path) -> None:
    """Of the same workspace, with the same key: it knows nothing of the release; or none at all."""
    path = shutil.copytree(made["compact"], tmp_path / "w")
    Workspace.open(path).forget(owner=OWNER)
    shutil.copy(made["compact"] / "ledger.sqlite", path / "ledger.sqlite")
    for command in ("verify", "resume"):
        result = efface(command, path)
        assert result.exit_code == 4
        assert "shortened" in result.stderr
    path = shutil.copytree(made["compact"], tmp_path / "v")
    (path / "ledger.sqlite").unlink()
    with pytest.raises(LedgerError, match="says nothing of release 1"):
        Workspace.open(path)
    assert efface("verify", path).exit_code == 4


def checks_fail(path: Path) -> bool:
    try:
        return any(check.ok is False for check in all_checks(Workspace.open(path, recover=False)))
    except EffaceError:
        return True


def test_a_change_of_any_file_is_noticed(path: Path) -> None:
    """One byte of every file, at places drawn once; the lock has none."""
    Workspace.open(path).plan(sigma=1e5)
    Workspace.open(path).forget(ids="image-1-0")
    Workspace.open(path).forget(owner=OWNER)
    assert not checks_fail(path)
    dice = random.Random(5)
    for name, data in contents(path).items():
        if name.startswith("activations/"):
            continue
        places = {0, len(data) - 1, *(dice.randrange(len(data)) for _ in range(6))}
        if name == "ledger.sqlite":  # its pages have room that means nothing: what its rows say
            places = {m.start() + dice.randrange(40) for m in re.finditer(rb'\{"action"', data)}
            assert len(places) > 10
        for position in places:
            changed = bytearray(data)
            changed[position] ^= 1 << dice.randrange(7)
            (path / name).write_bytes(changed)
            assert checks_fail(path), (name, position)
        (path / name).unlink()
        assert checks_fail(path), name
        (path / name).write_bytes(data)
    assert not checks_fail(path)


def test_a_change_of_the_activations_is_noticed(made: dict[str, Path], tmp_path: Path) -> None:
    path = shutil.copytree(made["tangent"], tmp_path / "w")
    Workspace.open(path).forget(owner=OWNER)
    (rows,) = path.glob("activations/*/rows.bin")
    cache = Workspace.open(path).inventory.cache
    assert cache is not None
    data, size = rows.read_bytes(), cache._row_bytes
    places = cache._places
    for slot in (min(places.slots.values()), min(places.free), max(places.free)):
        changed = bytearray(data)
        changed[slot * size + 5] ^= 1
        rows.write_bytes(changed)
        assert checks_fail(path), slot
    rows.write_bytes(data[: len(data) // 2])
    assert checks_fail(path)
    rows.write_bytes(data)
    index = rows.with_name("index.json")
    values = json.loads(index.read_text())
    for change in ({"capacity": 10**15}, {"free": values["free"][1:]}, {"slots": {}}, {"shape": 1}):
        index.write_text(json.dumps(values | change))
        assert checks_fail(path), change
    index.write_text(json.dumps(values))
    assert not checks_fail(path)


def test_a_plan_is_covered_and_survives_a_kill(made: dict[str, Path], tmp_path: Path) -> None:
    path = shutil.copytree(made["tangent"], tmp_path / "w")
    planned = Workspace.open(path).plan(0.5, 1e-6)
    assert_checks(path)
    before = contents(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "save_guarantee", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Workspace.open(path).plan(0.25)
    assert in_flight(path)
    assert Workspace.open(path, recover=False).guarantee == planned
    efface("cancel", path)
    assert without_ledger(contents(path)) == without_ledger(before)
    (path / "core/1/guarantee.json").unlink()
    assert checks_fail(path)


@pytest.mark.parametrize("value", ["../../etc", "1/../1", 0, -1, True, None, [1], 1.0])
@pytest.mark.parametrize("name", ["release", "core"])
def test_current_names_numbers(path: Path, name: str, value: Any) -> None:
    values = json.loads((path / CURRENT).read_text())
    (path / CURRENT).write_text(json.dumps({**values, name: value}))
    with pytest.raises(FormatError, match="both are numbers"):
        load(path)
    with pytest.raises(FormatError, match="both are numbers"):
        Workspace.open(path)


def test_a_prefix_digest_does_not_lead_out(made: dict[str, Path], tmp_path: Path) -> None:
    path = shutil.copytree(made["tangent"], tmp_path / "w")
    settings = json.loads((path / "core/1/model.json").read_text())
    settings["activations"]["prefix_digest"] = "../../../" + "a" * 55
    (path / "core/1/model.json").write_text(json.dumps(settings))
    with pytest.raises(FormatError, match="not as it was saved"):
        Workspace.open(path).model()
    assert [p.name for p in tmp_path.iterdir()] == ["w"]


def test_an_older_workspace_is_named_as_such(path: Path) -> None:
    (path / CURRENT).write_text(json.dumps({"schema": "efface.current/1", "release": 1}))
    with pytest.raises(FormatError, match=r"efface\.current/1.*train again"):
        Workspace.open(path)
