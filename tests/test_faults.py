"""Every operation on the disk, of every change of a workspace, fails or is the last one: all, not a sample.

Afterwards the workspace is recovered, and must then be, byte for byte, in one of two states: as before, or as
if nothing had gone wrong. The ledger may differ, since it tells of what was tried.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.faults import Disk
from tests.places import ROOT
from tests.workspace.journals import write_journal
from tests.workspaces import (
    CORE,
    OWNER,
    TEST,
    UNSYNCED,
    contents,
    core,
    in_flight,
    people,
    without_ledger,
)

from efface.data.records import Records
from efface.errors import EffaceError, FormatError
from efface.ledger import ledger, sqlite
from efface.model.mixed_linear import MixedLinear
from efface.model.request import Request
from efface.parts.compact import stored_rows
from efface.receipts import keys
from efface.workspace import Workspace, building
from efface.workspace.published import current, load
from efface.workspace.steps import Action, Intent
from efface.workspace.verify import all_checks

ERRORS = (errno.ENOSPC, errno.EIO, errno.EPERM)
EVERY_ERROR = os.environ.get("EFFACE_FAULTS") == "all"  # else each operation fails with one of them
PEOPLE, NEW = people(12), people(2, seed=5)
NEXT = PEOPLE[0].id
LEFT = PEOPLE.where(lambda record: record.owner != OWNER)


@pytest.fixture(scope="module", autouse=True)
def the_same_every_time() -> Iterator[None]:
    """One key, one clock, no waiting for the real disk, two buckets of rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "new_key", lambda: bytes(range(32)))
        patch.setattr(ledger, "now", lambda: "2030-01-01T00:00:00+00:00")
        patch.setattr(keys, "now", lambda: "2030-01-01T00:00:00+00:00")
        patch.setattr(secrets, "token_hex", lambda number: "ab" * number)  # of receipts
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(sqlite, "PRAGMAS", UNSYNCED)
        patch.setattr(stored_rows, "PER_BUCKET", 8)
        yield


def fitted(records: Records) -> MixedLinear:
    return MixedLinear(core(), features=40).fit(records, replay=CORE[:4])


@cache
def models() -> tuple[MixedLinear, MixedLinear]:
    return fitted(PEOPLE), fitted(LEFT)


# --- what is done, and to what --------------------------------------------------------------------


def nothing(path: Path) -> None:
    path.mkdir()


def train(path: Path) -> None:
    Workspace.create(path, models()[0])


def overwrite(path: Path) -> None:
    Workspace.create(path, models()[1], overwrite=True)


def forget(path: Path) -> None:
    Workspace.open(path).forget(owner=OWNER)


def add(path: Path) -> None:
    Workspace.open(path).add(NEW)


def plan(path: Path) -> None:
    Workspace.open(path).plan(sigma=1e5)


def resume(path: Path) -> None:
    Workspace.open(path, recover=False).resume()


def cancel(path: Path) -> None:
    Workspace.open(path, recover=False).cancel()


def signed(path: Path) -> None:
    """A model with a key, and a receipt that the next one supersedes."""
    keys.make(path.parent / "signing.key")
    Workspace.create(path, models()[0]).protocol.signing.use(path.parent / "signing.key")
    Workspace.open(path).forget(ids=NEXT)


def journal(path: Path) -> None:
    """A model of an earlier version, which had a journal instead of a ledger."""
    with tarfile.open(ROOT / "tests" / "workspace" / "earlier.tar.xz") as archive:
        archive.extractall(path.parent / "earlier", filter="data")
    (path.parent / "earlier" / "compact").rename(path)


def journal_and_request(path: Path) -> None:
    """The same, and it died over a request."""
    journal(path)
    copy = shutil.copytree(path, path.with_name("copy"))
    opened = Workspace.open(copy)
    gone = opened.records.select(owner="person-four").digests
    intent = Intent(opened.number + 1, Action.FORGET, gone, Request.of(owner="person-four"))
    written = [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]
    steps = [(v["number"], v["action"], v["step"]) for v in written]
    write_journal(path, *steps, (intent.number, "forget", "accepted"))
    (path / "pending.json").write_text(intent.to_text())
    shutil.rmtree(copy)


def dead(act: Callable[[Path], None], name: str, after: str = "") -> Callable[[Path], None]:
    """A beginning: what a process leaves that died at the first operation called ``name`` (after another)."""

    def begin(path: Path) -> None:
        train(path)
        work = path.with_name("work")
        path.rename(work)

        def watch(number: int) -> None:
            passed = not after or after in disk.done
            if passed and disk.done[number] == name and not path.exists():
                shutil.copytree(work, path)

        disk = Disk(watch=watch)
        with disk.installed():
            act(work)
        shutil.rmtree(work)

    return begin


@dataclass(frozen=True)
class Case:
    """``act`` on what ``begin`` made; ``kept`` says that it must happen in the end, whatever fails.

    It has ``states`` at least, or the test would not see what it is for.
    """

    begin: Callable[[Path], None]
    act: Callable[[Path], None]
    kept: bool = False
    states: int = 6


CASES = {
    "train": Case(nothing, train, kept=True),  # it is done again
    "overwrite": Case(train, overwrite),
    "forget": Case(signed, forget),  # all of it without a key, and a receipt besides
    "add": Case(train, add),
    "plan": Case(train, plan),
    "resume before the switch": Case(dead(forget, "replace manifest.json.tmp"), resume, kept=True),
    "resume after the switch": Case(dead(add, "rmdir 1"), resume, kept=True),
    "resume, only SQLite's log is left": Case(
        dead(forget, "sql PRAGMA wal_checkpoint(TRUNCATE)"), resume, kept=True, states=1
    ),
    "cancel": Case(dead(add, "replace CURRENT.tmp"), cancel, kept=True),  # it is done again
    "overwrite and a request": Case(dead(forget, "rmdir 1"), overwrite),
    "take a journal over": Case(journal, resume, kept=True, states=4),
    "take a journal and its request over": Case(journal_and_request, resume, kept=True),
}


# --- the two legal states -------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """The beginning; the two states a recovery may end in; the operations, and what each leaves."""

    start: Path
    before: dict[str, bytes]
    after: dict[str, bytes]
    operations: tuple[str, ...]
    states: dict[str, Path]


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A folder in memory where the system has one: it is copied thousands of times."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def prepared(memory: Path) -> Callable[[str], Prepared]:
    @cache
    def make(name: str) -> Prepared:
        models()
        case, folder = CASES[name], memory / name
        folder.mkdir()
        case.begin(folder / "start")
        work, states = shutil.copytree(folder / "start", folder / "work"), {}
        seen: set[frozenset[tuple[str, bytes]]] = set()

        def watch(number: int) -> None:
            state = frozenset(contents(work).items())
            if state not in seen:
                seen.add(state)
                label = f"operation {number} ({disk.done[number]}), state {len(seen)}"
                states[label] = shutil.copytree(work, folder / f"state-{len(seen)}")

        disk = Disk(watch=watch)
        with disk.installed():
            case.act(work)
        before = shutil.copytree(folder / "start", folder / "before")
        recover(name, before)
        if name != "cancel":
            assert all(check.ok for check in all_checks(Workspace.open(work, recover=False)))
        found = (without_ledger(contents(path)) for path in (before, work))
        return Prepared(folder / "start", *found, tuple(disk.done), states)

    return make


def recover(name: str, path: Path) -> None:
    """What the next command that changes something does first."""
    if current(path) is None:
        return
    cancel(path) if name == "cancel" else Workspace.open(path)


def check(name: str, made: Prepared, path: Path, where: str, *, succeeded: bool = False) -> None:
    """Readers are served at once; after recovery it is one state or the other."""
    case, accepted = CASES[name], in_flight(path)
    try:
        load(path).logits(TEST[:1])
    except FormatError:
        assert current(path) is None, where
    recover(name, path)
    if current(path) is None:
        assert name == "train", where
        case.act(path)
    if name == "forget":
        assert "receipts/3.json" in made.after
        assert not list(Workspace.open(path).protocol.signing.wrong()), where
    found = without_ledger(contents(path))
    certain = case.kept or succeeded or (accepted and "overwrite" not in name)
    legal = [made.after] if certain else [made.before, made.after]
    assert found in legal, f"{where}: {differences(found, legal)}"


def differences(found: dict[str, bytes], legal: list[dict[str, bytes]]) -> list[Any]:
    return [
        sorted(n for n in found.keys() | one.keys() if found.get(n) != one.get(n)) for one in legal
    ]


# --- the faults -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_death_at_any_operation(name: str, prepared: Callable[[str], Prepared]) -> None:
    made = prepared(name)
    assert len(made.states) >= CASES[name].states
    for where, path in made.states.items():
        check(name, made, path, f"{name}: death at {where}")


@pytest.mark.parametrize("name", CASES)
def test_an_error_at_any_operation(
    name: str, prepared: Callable[[str], Prepared], memory: Path
) -> None:
    made = prepared(name)
    for at, operation in enumerate(made.operations):
        for error in ERRORS if EVERY_ERROR else ERRORS[at % 3 : at % 3 + 1]:
            path = shutil.copytree(made.start, memory / "w")
            where = f"{name}: {os.strerror(error)} at operation {at} ({operation})"
            problem = failing(CASES[name].act, path, Disk(at, error))
            # plain words, never a raw error of the system
            assert problem is None or isinstance(problem, EffaceError), f"{where}: {problem!r}"
            check(name, made, path, where, succeeded=problem is None)
            shutil.rmtree(path)


def failing(act: Callable[[Path], None], path: Path, disk: Disk) -> Exception | None:
    with disk.installed():
        try:
            act(path)
        except (EffaceError, OSError) as problem:
            return problem
    return None


# --- activations, which are changed in place (tangent) --------------------------------------------


@pytest.mark.parametrize("act", [forget, add])
def test_a_death_while_activations_change(act: Callable[[Path], None], memory: Path) -> None:
    """Noise is drawn anew, so not byte for byte: the records, their rows and all checks must be right."""
    start, work = memory / f"tangent {act.__name__}", memory / "changing"
    Workspace.create(start, MixedLinear(core(), "tangent", mu=0.1).fit(PEOPLE, replay=CORE[:4]))
    shutil.copytree(start, work)
    states: dict[frozenset[tuple[str, bytes]], Path] = {}

    def watch(_: int) -> None:
        state = frozenset(contents(work / "activations").items())
        if state not in states:
            states[state] = shutil.copytree(work, memory / f"{act.__name__}-{len(states)}")

    with Disk(watch=watch).installed():
        act(work)
    wanted = Workspace.open(work).records
    assert len(states) > 5
    for path in states.values():
        accepted = in_flight(path)
        load(path)
        workspace = Workspace.open(path)
        assert workspace.records == (wanted if accepted or workspace.number == 2 else PEOPLE)
        assert all(check.ok for check in all_checks(workspace))
        assert workspace.inventory.cache is not None
        assert workspace.inventory.cache.digests == {*workspace.records.digests, *CORE[:4].digests}
    shutil.rmtree(work)
