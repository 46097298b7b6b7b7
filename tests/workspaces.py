"""Workspaces to try things on: a tiny core, records of five people, a folder of each kind made once,
and what two of them are compared by."""

from __future__ import annotations

import base64
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests import cases

from efface.data.record import Split
from efface.data.records import Records
from efface.ledger import sqlite
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.network.training import Stage
from efface.parts.compact import stored_rows
from efface.workspace import Workspace
from efface.workspace.told import WorkspaceLedger
from efface.workspace.verify import all_checks

CLASSES = ("a", "b", "c")
OWNER = "person-three"
KINDS = ("compact", "tangent")
OPTIONS: dict[str, dict[str, Any]] = {"compact": {"features": 120}, "tangent": {"mu": 0.1}}

CORE = cases.tiny_records(12, 0, split=Split.CORE, name="core-record-")
TEST = cases.tiny_records(30, 9, split=Split.TEST)


def people(n: int = 30, seed: int = 1) -> Records:
    """User records of five people in two cohorts, with names that can be searched for."""
    names = ("person-one", "person-two", OWNER, "person-four", "person-five")
    records = cases.tiny_records(n, seed, name=f"image-{seed}-")
    return Records(
        [
            replace(r, owner=names[i % 5], cohort=f"cohort-{i % 2}", extra={"path": f"dir/{r.id}"})
            for i, r in enumerate(records)
        ],
        CLASSES,
    )


NEW = people(6, seed=5)
LEFT = people().where(lambda record: record.owner != OWNER)


@cache
def core() -> Core:
    return Core("cnn", classes=CLASSES).fit(CORE, [Stage("all", epochs=2, batch_size=4)])


def fitted(kind: str, records: Records) -> MixedLinear:
    return MixedLinear(core(), kind, **OPTIONS[kind]).fit(records, replay=CORE)


UNSYNCED = tuple(p.replace("synchronous=FULL", "synchronous=OFF") for p in sqlite.PRAGMAS)
PER_BUCKET = 8  # four buckets of rows, two once there are less than 32


@pytest.fixture(autouse=True)
def as_in_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(sqlite, "PRAGMAS", UNSYNCED)
    monkeypatch.setattr(stored_rows, "PER_BUCKET", PER_BUCKET)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A workspace of each kind, made once; tests work on copies."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_rows, "PER_BUCKET", PER_BUCKET)
        for kind in KINDS:
            Workspace.create(folder / kind, fitted(kind, people()))
    return {kind: folder / kind for kind in KINDS}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def path(made: dict[str, Path], kind: str, tmp_path: Path) -> Path:
    return shutil.copytree(made[kind], tmp_path / "workspace")


ACTIONS: dict[str, Callable[[Workspace], Any]] = {
    "forget": lambda workspace: workspace.forget(owner=OWNER),
    "add": lambda workspace: workspace.add(NEW),
    "retire": lambda workspace: workspace.retire_plan(),
}


def contents(path: Path) -> dict[str, bytes]:
    found = (
        p for p in path.rglob("*") if p.is_file() and p.name not in ("lock", "ledger.sqlite-shm")
    )
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in found}


def without_ledger(found: dict[str, bytes]) -> dict[str, bytes]:
    """It tells of requests that were called off, too; manifests have its head, and receipts quote it."""
    return {
        name: _without_head(name, data)
        for name, data in found.items()
        if not name.startswith("ledger.sqlite")
    }


def _without_head(name: str, data: bytes) -> bytes:
    if name.startswith("receipts/"):
        said = json.loads(base64.b64decode(json.loads(data)["payload"]))
        said["subject"] = [entry for entry in said["subject"] if entry["name"] != "receipt"]
        return json.dumps({**said, "predicate": {**said["predicate"], "ledger": None}}).encode()
    if not name.endswith("manifest.json"):
        return data
    values = json.loads(data)
    return json.dumps({k: v for k, v in values.items() if k not in ("ledger", "hmac")}).encode()


def in_flight(path: Path) -> bool:
    """Whether a request is; asked of a copy, since looking at it lets SQLite tidy up."""
    with tempfile.TemporaryDirectory() as folder:
        for file in path.glob("ledger.sqlite*"):
            shutil.copy(file, folder)
        return WorkspaceLedger(Path(folder)).pending() is not None


def assert_forgotten(workspace: Workspace, records: Records) -> None:
    """These are refused when they come again, and no others."""
    forgotten = workspace.inventory.forgotten
    assert len(forgotten) == len(set(records.digests))
    assert all(digest in forgotten for digest in records.digests)


def fingerprint(path: Path) -> dict[str, Any]:
    """All that must not depend on how often the work was interrupted."""
    workspace = Workspace.open(path, recover=False)
    model, cached = workspace.model(), workspace.inventory.cache
    result = {
        "files": sorted(contents(path)),
        "release": workspace.number,
        "records": list(workspace.records),
        "forgotten": workspace.inventory.forgotten,
        "activations": None if cached is None else cached.digests,
        "settled": workspace.inventory.settled(),
    }
    if model.user.kind == "compact":
        result["digests"] = (model.user.statistics_digest, model.user.weights_digest)
        result["rows"] = {p.name: p.read_bytes() for p in (path / "private/rows").iterdir()}
    return result


def assert_checks(path: Path) -> None:
    failed = [c for c in all_checks(Workspace.open(path, recover=False), retrain=True) if not c.ok]
    assert not failed


@pytest.fixture(scope="session")
def undisturbed(
    made: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], tuple[Path, dict[str, Any]]]:
    @cache
    def run(kind: str, action: str) -> tuple[Path, dict[str, Any]]:
        path = shutil.copytree(made[kind], tmp_path_factory.mktemp("undisturbed") / "w")
        ACTIONS[action](Workspace.open(path))
        return path, fingerprint(path)

    return run
